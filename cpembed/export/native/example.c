/* An example: it opens the library, packs random weights, runs, and REFERENCE_WORDS

   cc -O2 example.c -o example -L. -lNAME -Wl,-rpath,'$ORIGIN' -lm && ./example */

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "NAME.h"

static uint64_t state = 88172645463325252u;

static uint64_t random_bits(void) { /* Marsaglia's xorshift */
  state ^= state << 13;
  state ^= state >> 7;
  return state ^= state << 17;
}

static float random_float(void) { return (float)(int64_t)(random_bits() >> 40) / 8388608.0f - 1; }

static uint16_t to_bfloat16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float from_bfloat16(uint16_t value) {
  uint32_t bits = (uint32_t)value << 16;
  float found;
  memcpy(&found, &bits, 4);
  return found;
}

static void *memory(size_t bytes) {
  void *found = aligned_alloc(64, (bytes + 64) / 64 * 64);
  if (found == NULL) {
    fprintf(stderr, "out of memory\n");
    exit(1);
  }
  memset(found, 0, bytes);
  return found;
}

static int64_t elements(const cpembed_tensor *tensor) {
  int64_t count = 1;
  for (int32_t axis = 0; axis < tensor->rank; axis++) count *= tensor->shape[axis];
  return count;
}

/* Integers over their whole range, floats from -1 to 1; scales that keep results in range. */
static void *random_data(const cpembed_tensor *tensor) {
  void *data = memory((size_t)tensor->bytes);
  const char *type = tensor->dtype;
  int is_scale = strncmp(tensor->name, "scale", 5) == 0;
  int is_bias = strncmp(tensor->name, "bias", 4) == 0;
  for (int64_t k = 0; k < elements(tensor); k++) {
    uint64_t bits = random_bits() >> 11;
    if (strcmp(type, "float32") == 0)
      ((float *)data)[k] = is_scale ? (random_float() + 1.5f) * SCALE : random_float();
    else if (strcmp(type, "float64") == 0)
      ((double *)data)[k] = random_float();
    else if (strcmp(type, "bfloat16") == 0)
      ((uint16_t *)data)[k] = to_bfloat16(random_float());
    else if (strcmp(type, "float16") == 0)
      ((uint16_t *)data)[k] = (uint16_t)(bits & 0xbbff); /* below 2 */
    else if (strcmp(type, "uint7") == 0)
      ((uint8_t *)data)[k] = (uint8_t)(bits & 127);
    else if (strcmp(type, "int7") == 0)
      ((int8_t *)data)[k] = (int8_t)((int)(bits & 127) - 64);
    else if (is_bias && strcmp(type, "int32") == 0)
      ((int32_t *)data)[k] = (int32_t)(bits % 20001) - 10000;
    else
      for (int64_t byte = 0, size = tensor->bytes / elements(tensor); byte < size; byte++)
        ((uint8_t *)data)[k * size + byte] = (uint8_t)(random_bits() >> 16);
  }
  return data;
}

static void require(int status) {
  if (status == CPEMBED_OK) return;
  fprintf(stderr, "NAME: %s\n", NAME_status_text(status));
  exit(1);
}

/* REFERENCE */

int main(void) {
  NAME_handle *handle;
  require(NAME_open(0, NULL, &handle));
  int input_count = NAME_input_count(), output_count = NAME_output_count();
  int weight_count = NAME_weight_count(), wrong = 0;
  const void *inputs[MOST], *weights[MOST];
  void *outputs[MOST];
  for (int k = 0; k < input_count; k++) inputs[k] = random_data(NAME_input(k));
  for (int k = 0; k < weight_count; k++) weights[k] = random_data(NAME_weight(k));
  for (int k = 0; k < output_count; k++) outputs[k] = memory((size_t)NAME_output(k)->bytes);

  if (weight_count > 0) require(NAME_pack(handle, weights));
  void *workspace = memory(NAME_workspace_size());
  require(NAME_run(handle, inputs, outputs, workspace));
  wrong = check(inputs, weights, outputs);

  struct timespec start, end;
  clock_gettime(CLOCK_MONOTONIC, &start);
  for (int call = 0; call < 10; call++) require(NAME_run(handle, inputs, outputs, workspace));
  clock_gettime(CLOCK_MONOTONIC, &end);
  double us = (double)(end.tv_sec - start.tv_sec) * 1e5 + (double)(end.tv_nsec - start.tv_nsec) / 1e4;
  printf("%s: %.1f us a call on %d threads\n", wrong ? "WRONG" : "OK", us,
         NAME_thread_count(handle));

  NAME_close(handle);
  free(workspace);
  for (int k = 0; k < input_count; k++) free((void *)inputs[k]);
  for (int k = 0; k < weight_count; k++) free((void *)weights[k]);
  for (int k = 0; k < output_count; k++) free(outputs[k]);
  return wrong != 0;
}
