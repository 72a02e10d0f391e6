/* A library's program as a process that another one directs, such as one under an emulator.

   Commands come on standard input, a byte and its numbers of 64 bits: S first last, followed by the
   inputs, runs steps; R loops, followed by the inputs, runs a call that is observed; O number
   returns an output; T bytes, followed by a name, returns a buffer; Z, followed by the size of each
   symbol, sets the sizes that inputs and outputs have from then on. A reply is a status of 64 bits,
   for O and T then the bytes of the memory. After each step of an observed call the reply is 1, the
   step and the iteration of each loop; then come commands T, until N goes on. The last is 0, then
   the status of the call. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "NAME.h"

static void *memory(int64_t bytes) {
  void *block = aligned_alloc(64, (size_t)(bytes + 64) / 64 * 64);
  if (block == NULL) exit(3);
  memset(block, 0, (size_t)(bytes + 64) / 64 * 64);
  return block;
}

static void get(void *data, size_t bytes) {
  if (bytes > 0 && fread(data, 1, bytes, stdin) != bytes) exit(4);
}

static int64_t number(void) {
  int64_t value;
  get(&value, sizeof value);
  return value;
}

static void reply(int64_t value, const void *data, size_t bytes) {
  fwrite(&value, sizeof value, 1, stdout);
  if (bytes > 0) fwrite(data, 1, bytes, stdout);
  fflush(stdout);
}

static size_t size_of(const char *type) {
  const char *digits = type + strcspn(type, "0123456789");
  int bits = *digits ? atoi(digits) : 8;
  return bits < 8 ? 1 : (size_t)bits / 8;
}

static NAME_handle *handle;
static int64_t loops, *sizes;

/* Bytes of a tensor at the present sizes. */
static size_t bytes_of(const cpembed_tensor *tensor) {
  int64_t bytes = tensor->item_bytes;
  for (int k = 0; k < tensor->extent_count; k++) {
    const cpembed_extent *extent = &tensor->extents[k];
    int64_t times = extent->symbol < 0 ? 0 : extent->factor * sizes[extent->symbol];
    bytes *= (times + extent->offset) / extent->divisor;
  }
  return (size_t)bytes;
}

static void reply_tensor(void) {
  char name[4096] = {0};
  int64_t bytes = number(), elements = 0;
  if (bytes >= (int64_t)sizeof name) exit(5);
  get(name, (size_t)bytes);
  const char *type = NULL;
  const void *data = NAME_tensor(handle, name, &type, &elements);
  size_t length = data == NULL ? 0 : (size_t)elements * size_of(type);
  reply((int64_t)length, data, length);
}

static void observe(void *context, int step, const int64_t *iterations) {
  (void)context;
  int64_t place = step;
  reply(1, &place, sizeof place);
  if (loops > 0) fwrite(iterations, sizeof *iterations, (size_t)loops, stdout);
  fflush(stdout);
  for (int command; (command = getchar()) != 'N';) {
    if (command != 'T') exit(6);
    reply_tensor();
  }
}

int main(int count, char **words) {
  int status = NAME_open(count > 2 ? atoi(words[2]) : 1, count > 1 ? words[1] : NULL, &handle);
  const char *text = NAME_status_text(status);
  reply(status, NULL, 0);
  reply((int64_t)strlen(text), text, strlen(text));
  if (status != CPEMBED_OK) return 0;
  int inputs = NAME_input_count(), outputs = NAME_output_count();
  void **in = calloc((size_t)inputs + 1, sizeof *in), **out = calloc((size_t)outputs + 1, sizeof *out);
  for (int k = 0; k < inputs; k++) in[k] = memory(NAME_input(k)->bytes);
  for (int k = 0; k < outputs; k++) out[k] = memory(NAME_output(k)->bytes);
  int symbols = NAME_symbol_count();
  sizes = calloc((size_t)symbols + 1, sizeof *sizes);
  for (int k = 0; k < symbols; k++) NAME_symbol(k, NULL, &sizes[k]);
  for (int command; (command = getchar()) != EOF;) {
    if (command == 'S') {
      int64_t first = number(), last = number();
      for (int k = 0; k < inputs; k++) get(in[k], bytes_of(NAME_input(k)));
      reply(NAME_run_steps(handle, (int)first, (int)last, (const void *const *)in, out, NULL), NULL, 0);
    } else if (command == 'O') {
      int64_t k = number();
      reply(0, out[k], bytes_of(NAME_output((int)k)));
    } else if (command == 'R') {
      loops = number();
      for (int k = 0; k < inputs; k++) get(in[k], bytes_of(NAME_input(k)));
      int64_t result = NAME_run_observed(handle, (const void *const *)in, out, NULL, observe, NULL);
      reply(0, &result, sizeof result);
    } else if (command == 'Z') {
      for (int k = 0; k < symbols; k++) sizes[k] = number();
      reply(NAME_resize(handle, sizes), NULL, 0);
    } else if (command == 'T') {
      reply_tensor();
    }
  }
  NAME_close(handle);
  return 0;
}
