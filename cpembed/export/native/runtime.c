/* What a library needs at run time: threads, memory, the calls of its kernels, the C interface.

   It is compiled once for each library, together with the library's tables (program.h), and
   everything but the functions of the interface stays hidden: libraries share nothing.

   Kernels are called as TVM's compiled functions are: (self, arguments, their number, result), a
   DLTensor pointer for each argument, 0 for success; parallel loops call TVMBackendParallelLaunch.
   Sources: tvm/runtime/c_backend_api.h, tvm/ffi/c_api.h, dlpack.h. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define ALIGNMENT 64
#define TENSOR_KIND 7 /* kTVMFFIDLTensorPtr */

typedef struct { int32_t kind; int32_t zero; void *value; } Any;
typedef struct {
  void *data;
  int32_t device_type, device_id, rank;
  uint8_t type_code, bits;
  uint16_t lanes;
  int64_t *shape, *strides;
  uint64_t byte_offset;
} Tensor;
typedef int (*Kernel)(void *self, const Any *arguments, int32_t count, Any *result);

enum { INPUT, OUTPUT, WEIGHTS, CONSTANT, OWN, WORKSPACE, WINDOW };
enum { START, READ, VIEW, WRITE, COPY, SWAP, FINISH };

/* `place`: the number among inputs, outputs or weights; or the byte offset in the constants, in
   the memory of the handle, or in the workspace. `copy`: where the handle keeps weights that are
   read after they were packed, -1 where none are. */
typedef struct {
  const char *name, *dtype;
  uint8_t type_code, bits, role, filled;
  int64_t elements, bytes, place, copy;
  uint64_t fill;
} Buffer;
typedef struct { Kernel kernel; const char *name; int32_t first, count; } Call;

/* What a loop moves, when: from buffer `source` to buffer `target`. */
typedef struct { int32_t moving, source, target, backwards; } Move;

/* Calls that are repeated, `first` to `last` - 1, and the number of the next loop that is not
   inside this one. Buffers, -1 where there is none: `number` gets the number of the step, `limit`
   has the number of steps, `condition` whether there is a first one, `again` whether a next one. */
typedef struct {
  int64_t steps;
  int32_t first, last, after, first_move, moves, number, limit, condition, again;
} Loop;

#include "program.h"
#include "processor.h"
#include "threads.h"

struct PUBLIC(handle) {
  Pool *pool;
  int packed;
  unsigned char *own;          /* packed weights, filled buffers */
  void *workspace;             /* where the caller gives none */
  void *mapped;                /* the file of weights */
  size_t mapped_bytes;
  const unsigned char *constants;
  void *staged[BUFFER_COUNT];  /* aligned copies of what callers give */
  Tensor tensors[BUFFER_COUNT];
  int64_t shapes[BUFFER_COUNT];
  Any arguments[ARGUMENT_COUNT];
  int64_t iterations[LOOP_COUNT + 1];  /* the step that each loop is in */
};

typedef struct PUBLIC(handle) Handle;

static int64_t one = 1;

static void *allocated(int64_t bytes) {
  size_t rounded = ((size_t)bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  return aligned_alloc(ALIGNMENT, rounded ? rounded : ALIGNMENT);
}

static int is_aligned(const void *memory) { return (uintptr_t)memory % ALIGNMENT == 0; }

/* Sums of 64-bit words, plain and by their places (Fletcher): any damaged word changes them. */
static void checksum(const unsigned char *data, size_t bytes, uint64_t sums[2]) {
  uint64_t plain = 0, placed = 0, word;
  for (size_t k = 0; k < bytes / 8; k++) {
    memcpy(&word, data + 8 * k, 8);
    plain += word;
    placed += (k + 1) * word;
  }
  sums[0] = plain;
  sums[1] = placed;
}

#if CONSTANTS_IN_FILE
static int map_weights(Handle *handle, const char *path) {
  char beside[4096];
  Dl_info about;
  if (path == NULL) { /* beside the library */
    if (!dladdr((void *)PUBLIC(open), &about) || about.dli_fname == NULL)
      return CPEMBED_NO_WEIGHTS_FILE;
    const char *slash = strrchr(about.dli_fname, '/');
    int folder = slash == NULL ? 0 : (int)(slash - about.dli_fname + 1);
    int used = snprintf(beside, sizeof beside, "%.*s%s", folder, about.dli_fname, CONSTANTS_FILE);
    if (used < 0 || used >= (int)sizeof beside) return CPEMBED_NO_WEIGHTS_FILE;
    path = beside;
  }
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return CPEMBED_NO_WEIGHTS_FILE;
  struct stat status;
  if (fstat(file, &status) != 0 || status.st_size != CONSTANTS_BYTES + ALIGNMENT) {
    close(file);
    return CPEMBED_WEIGHTS_DAMAGED;
  }
  size_t bytes = (size_t)status.st_size;
  void *mapped = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, file, 0);
  close(file);
  if (mapped == MAP_FAILED) return CPEMBED_OUT_OF_MEMORY;
  handle->mapped = mapped;
  handle->mapped_bytes = bytes;
  handle->constants = (const unsigned char *)mapped + ALIGNMENT;
  const uint64_t expected[2] = {CONSTANTS_SUM, CONSTANTS_PLACED_SUM};
  uint64_t sums[2];
  checksum(handle->constants, CONSTANTS_BYTES, sums);
  if (memcmp(mapped, "CPEMBEDW", 8) != 0 || memcmp(sums, expected, sizeof sums) != 0)
    return CPEMBED_WEIGHTS_DAMAGED;
  return CPEMBED_OK;
}
#endif

static void fill(unsigned char *memory, const Buffer *buffer) {
  size_t size = (size_t)(buffer->bytes / buffer->elements);
  for (int64_t k = 0; k < buffer->elements; k++)
    memcpy(memory + (size_t)k * size, &buffer->fill, size);
}

static void prepare_tensors(Handle *handle) {
  for (int k = 0; k < BUFFER_COUNT; k++) {
    const Buffer *buffer = &buffers[k];
    void *data = NULL;
    if (buffer->role == CONSTANT) data = (void *)(handle->constants + buffer->place);
    if (buffer->role == OWN) data = handle->own + buffer->place;
    if (buffer->role == WEIGHTS && buffer->copy >= 0) data = handle->own + buffer->copy;
    handle->shapes[k] = buffer->elements;
    handle->tensors[k] = (Tensor){.data = data, .device_type = 1, .rank = 1,
                                  .type_code = buffer->type_code, .bits = buffer->bits, .lanes = 1,
                                  .shape = &handle->shapes[k], .strides = &one};
    if (buffer->filled) fill(data, buffer);
  }
  for (int k = 0; k < ARGUMENT_COUNT; k++)
    handle->arguments[k] = (Any){TENSOR_KIND, 0, &handle->tensors[arguments[k]]};
}

static int call(Handle *handle, const Call *step) {
  Any result = {0, 0, NULL};
  int code = step->kernel(NULL, handle->arguments + step->first, step->count, &result);
  return code == 0 ? CPEMBED_OK : CPEMBED_KERNEL_FAILED;
}

static int prepare(Handle *handle) {
  int status = CPEMBED_OK;
  adopt(handle->pool);
  current = handle->pool;
  own_number = 0;
  for (int k = 0; k < PREPARE_COUNT && status == CPEMBED_OK; k++)
    status = call(handle, &prepare_calls[k]);
  handle->packed = status == CPEMBED_OK;
  return status;
}

static int aligned_copy(Handle *handle, int buffer) {
  if (handle->staged[buffer] == NULL) handle->staged[buffer] = allocated(buffers[buffer].bytes);
  handle->tensors[buffer].data = handle->staged[buffer];
  return handle->staged[buffer] == NULL ? CPEMBED_OUT_OF_MEMORY : CPEMBED_OK;
}

static int bind(Handle *handle, const void *const in[], void *const out[], void *workspace) {
  if ((INPUT_COUNT && in == NULL) || (OUTPUT_COUNT && out == NULL)) return CPEMBED_BAD_ARGUMENT;
  for (int k = 0; k < INPUT_COUNT; k++) {
    int buffer = input_buffers[k];
    if (in[k] == NULL) return CPEMBED_BAD_ARGUMENT;
    handle->tensors[buffer].data = (void *)in[k];
    if (is_aligned(in[k])) continue;
    if (aligned_copy(handle, buffer)) return CPEMBED_OUT_OF_MEMORY;
    memcpy(handle->staged[buffer], in[k], (size_t)buffers[buffer].bytes);
  }
  for (int k = 0; k < OUTPUT_COUNT; k++) {
    int buffer = output_buffers[k];
    if (out[k] == NULL) return CPEMBED_BAD_ARGUMENT;
    handle->tensors[buffer].data = out[k];
    if (!is_aligned(out[k]) && aligned_copy(handle, buffer)) return CPEMBED_OUT_OF_MEMORY;
  }
  if (WORKSPACE_BYTES == 0) return CPEMBED_OK;
  if (workspace == NULL) {
    if (handle->workspace == NULL) handle->workspace = allocated(WORKSPACE_BYTES);
    if (handle->workspace == NULL) return CPEMBED_OUT_OF_MEMORY;
    workspace = handle->workspace;
  }
  if (!is_aligned(workspace)) return CPEMBED_BAD_ARGUMENT;
  for (int k = 0; k < BUFFER_COUNT; k++)
    if (buffers[k].role == WORKSPACE)
      handle->tensors[k].data = (unsigned char *)workspace + buffers[k].place;
  return CPEMBED_OK;
}

/* Forget the caller's memory, which lives no longer than the call: NAME_tensor gives none of it. */
static void unbind(Handle *handle, const void *workspace) {
  for (int k = 0; k < BUFFER_COUNT; k++) {
    int role = buffers[k].role;
    if (role == INPUT || role == OUTPUT || role == WINDOW || (role == WORKSPACE && workspace != NULL))
      handle->tensors[k].data = NULL;
  }
}

/* One execution: what is called after each call, and where the times are added. */
typedef void (*Observer)(void *context, int step, const int64_t *iterations);
typedef struct { Handle *handle; double *ns; Observer observer; void *context; } Run;

static void move_all(Handle *handle, const Loop *loop, int moving, int64_t iteration) {
  for (int k = loop->first_move; k < loop->first_move + loop->moves; k++) {
    if (moves[k].moving != moving) continue;
    Tensor *source = &handle->tensors[moves[k].source], *target = &handle->tensors[moves[k].target];
    int64_t step = moves[k].backwards ? loop->steps - 1 - iteration : iteration;
    int64_t in = buffers[moves[k].source].bytes, out = buffers[moves[k].target].bytes;
    unsigned char *from = source->data, *to = target->data;
    if (moving == VIEW) {
      target->data = from + step * out;
    } else if (moving == SWAP) {
      target->data = from;
      source->data = to;
    } else {
      from += moving == READ ? step * out : 0;
      to += moving == WRITE ? step * in : 0;
      memcpy(to, from, (size_t)(moving == READ ? out : in));
    }
  }
}

static int is_true(const Handle *handle, int buffer) {
  return buffer < 0 || *(const unsigned char *)handle->tensors[buffer].data != 0;
}

static int run_range(const Run *run, int first, int last, int loop, int end);

static int run_loop(const Run *run, int number) {
  Handle *handle = run->handle;
  const Loop *loop = &loops[number];
  int64_t steps = loop->steps, *iteration = &handle->iterations[number];
  if (loop->limit >= 0) {
    int64_t limit = *(const int64_t *)handle->tensors[loop->limit].data;
    if (limit < steps) steps = limit;
  }
  move_all(handle, loop, START, 0);
  int goes_on = is_true(handle, loop->condition), status = CPEMBED_OK;
  for (*iteration = 0; goes_on && *iteration < steps && status == CPEMBED_OK; ++*iteration) {
    if (loop->number >= 0) *(int64_t *)handle->tensors[loop->number].data = *iteration;
    move_all(handle, loop, READ, *iteration);
    move_all(handle, loop, VIEW, *iteration);
    status = run_range(run, loop->first, loop->last, number + 1, loop->after);
    move_all(handle, loop, WRITE, *iteration);
    goes_on = is_true(handle, loop->again);
    move_all(handle, loop, COPY, 0);
    move_all(handle, loop, SWAP, 0);
  }
  move_all(handle, loop, FINISH, 0);
  if (run->observer != NULL && status == CPEMBED_OK)
    run->observer(run->context, -1 - number, handle->iterations);
  return status;
}

/* The calls `first` to `last` - 1, among them the loops `loop` to `end` - 1. */
static int run_range(const Run *run, int first, int last, int loop, int end) {
  int status = CPEMBED_OK;
  for (int k = first; status == CPEMBED_OK;) {
    if (loop < end && loops[loop].first == k && loops[loop].last <= last) {
      status = run_loop(run, loop);
      k = loops[loop].last;
      loop = loops[loop].after;
      continue;
    }
    if (k >= last) break;
    int64_t started = run->ns == NULL ? 0 : now_ns();
    status = call(run->handle, &run_calls[k]);
    if (run->ns != NULL) run->ns[k] += (double)(now_ns() - started);
    if (run->observer != NULL && status == CPEMBED_OK)
      run->observer(run->context, k, run->handle->iterations);
    k++;
  }
  return status;
}

/* The first loop from a step on; -1 where the step is inside a loop. */
static int loop_from(int step) {
  int loop = 0;
  for (; loop < LOOP_COUNT && loops[loop].first < step; loop = loops[loop].after)
    if (loops[loop].last > step) return -1;
  return loop;
}

static int execute(const Run *run, int first, int last, const void *const in[], void *const out[],
                   void *workspace) {
  Handle *handle = run->handle;
  if (handle == NULL || first < 0 || last > STEP_COUNT || first > last)
    return CPEMBED_BAD_ARGUMENT;
  int loop = loop_from(first);
  if (loop < 0 || loop_from(last) < 0) return CPEMBED_BAD_ARGUMENT;
  if (!handle->packed) return CPEMBED_NOT_PACKED;
  int status = bind(handle, in, out, workspace);
  adopt(handle->pool);
  current = handle->pool;
  own_number = 0;
  if (run->ns != NULL) memset(run->ns, 0, (size_t)STEP_COUNT * sizeof *run->ns);
  if (status == CPEMBED_OK) status = run_range(run, first, last, loop, LOOP_COUNT);
  for (int k = 0; k < OUTPUT_COUNT && status == CPEMBED_OK; k++)
    if (!is_aligned(out[k]))
      memcpy(out[k], handle->staged[output_buffers[k]], (size_t)buffers[output_buffers[k]].bytes);
  unbind(handle, workspace);
  return status;
}

/* ----------------------------------------------------------------------------------- interface */

#define API __attribute__((visibility("default")))

API void PUBLIC(close)(Handle *handle) {
  if (handle == NULL) return;
  if (handle->pool != NULL) pool_close(handle->pool);
  for (int k = 0; k < BUFFER_COUNT; k++) free(handle->staged[k]);
  if (handle->mapped != NULL) munmap(handle->mapped, handle->mapped_bytes);
  free(handle->workspace);
  free(handle->own);
  free(handle->pool);
  free(handle);
}

static int opened(Handle *handle, int threads, const char *weights) {
  int status = lacking_feature();
  if (status != CPEMBED_OK) return status;
  handle->own = allocated(OWN_BYTES);
  Pool *pool = allocated(sizeof *pool);
  if (handle->own == NULL || pool == NULL) {
    free(pool);
    return CPEMBED_OUT_OF_MEMORY;
  }
  memset(handle->own, 0, OWN_BYTES);
  memset(pool, 0, sizeof *pool);
  handle->pool = pool;
  if ((status = pool_open(pool, threads > 0 ? threads : DEFAULT_THREADS)) != CPEMBED_OK) return status;
#if CONSTANTS_IN_FILE
  if ((status = map_weights(handle, weights)) != CPEMBED_OK) return status;
#else
  (void)weights, (void)checksum;
  handle->constants = CONSTANTS;
#endif
  prepare_tensors(handle);
  return WEIGHT_COUNT ? CPEMBED_OK : prepare(handle);
}

API int PUBLIC(open)(int threads, const char *weights, Handle **handle) {
  if (handle == NULL) return CPEMBED_BAD_ARGUMENT;
  *handle = calloc(1, sizeof **handle);
  if (*handle == NULL) return CPEMBED_OUT_OF_MEMORY;
  int status = opened(*handle, threads, weights);
  if (status != CPEMBED_OK) {
    PUBLIC(close)(*handle);
    *handle = NULL;
  }
  return status;
}

API int PUBLIC(pack)(Handle *handle, const void *const weights[]) {
  if (handle == NULL || (WEIGHT_COUNT && weights == NULL)) return CPEMBED_BAD_ARGUMENT;
  for (int k = 0; k < WEIGHT_COUNT; k++)
    if (weights[k] == NULL) return CPEMBED_BAD_ARGUMENT;
  int status = CPEMBED_OK;
  for (int k = 0; k < WEIGHT_COUNT && status == CPEMBED_OK; k++) {
    int number = weight_buffers[k];
    const Buffer *buffer = &buffers[number];
    Tensor *tensor = &handle->tensors[number];
    if (buffer->copy < 0 && is_aligned(weights[k])) {
      tensor->data = (void *)weights[k];
      continue;
    }
    if (buffer->copy < 0) status = aligned_copy(handle, number);
    if (status == CPEMBED_OK) memcpy(tensor->data, weights[k], (size_t)buffer->bytes);
  }
  if (status == CPEMBED_OK) status = prepare(handle);
  for (int k = 0; k < WEIGHT_COUNT; k++) { /* copies that were for packing only */
    int number = weight_buffers[k];
    free(handle->staged[number]);
    handle->staged[number] = NULL;
    if (buffers[number].copy < 0) handle->tensors[number].data = NULL;
  }
  return status;
}

API int PUBLIC(run)(Handle *handle, const void *const in[], void *const out[], void *workspace) {
  const Run run = {handle, NULL, NULL, NULL};
  return execute(&run, 0, STEP_COUNT, in, out, workspace);
}

API int PUBLIC(run_steps)(Handle *handle, int first, int last, const void *const in[],
                          void *const out[], void *workspace) {
  const Run run = {handle, NULL, NULL, NULL};
  return execute(&run, first, last, in, out, workspace);
}

API int PUBLIC(run_timed)(Handle *handle, const void *const in[], void *const out[],
                          void *workspace, double *ns) {
  if (ns == NULL) return CPEMBED_BAD_ARGUMENT;
  const Run run = {handle, ns, NULL, NULL};
  return execute(&run, 0, STEP_COUNT, in, out, workspace);
}

API int PUBLIC(run_observed)(Handle *handle, const void *const in[], void *const out[],
                             void *workspace, Observer observer, void *context) {
  if (observer == NULL) return CPEMBED_BAD_ARGUMENT;
  const Run run = {handle, NULL, observer, context};
  return execute(&run, 0, STEP_COUNT, in, out, workspace);
}

API size_t PUBLIC(workspace_size)(void) { return WORKSPACE_BYTES; }

API int PUBLIC(thread_count)(const Handle *handle) {
  return handle == NULL ? 0 : handle->pool->threads;
}

API int PUBLIC(step_count)(void) { return STEP_COUNT; }

API const char *PUBLIC(step_name)(int step) {
  return step < 0 || step >= STEP_COUNT ? NULL : run_calls[step].name;
}

API int PUBLIC(input_count)(void) { return INPUT_COUNT; }
API int PUBLIC(output_count)(void) { return OUTPUT_COUNT; }
API int PUBLIC(weight_count)(void) { return WEIGHT_COUNT; }

API const cpembed_tensor *PUBLIC(input)(int number) {
  return number < 0 || number >= INPUT_COUNT ? NULL : &input_table[number];
}
API const cpembed_tensor *PUBLIC(output)(int number) {
  return number < 0 || number >= OUTPUT_COUNT ? NULL : &output_table[number];
}
API const cpembed_tensor *PUBLIC(weight)(int number) {
  return number < 0 || number >= WEIGHT_COUNT ? NULL : &weight_table[number];
}

API const void *PUBLIC(tensor)(const Handle *handle, const char *name, const char **dtype,
                               int64_t *elements) {
  if (handle == NULL || name == NULL) return NULL;
  for (int k = 0; k < BUFFER_COUNT; k++)
    if (strcmp(buffers[k].name, name) == 0) {
      if (dtype != NULL) *dtype = buffers[k].dtype;
      if (elements != NULL) *elements = buffers[k].elements;
      return handle->tensors[k].data;
    }
  return NULL;
}

API const char *PUBLIC(kernel_message)(const Handle *handle) {
  return handle == NULL ? "" : handle->pool->error;
}

API const char *PUBLIC(status_text)(int status) {
  if (status >= 0 && status < STATUS_COUNT) return status_texts[status];
  int feature = status - CPEMBED_LACKS_FEATURE;
  return feature >= 0 && feature < FEATURE_COUNT ? lacks_texts[feature] : "unknown status";
}
