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

#include "program.h"
#include "processor.h"
#include "threads.h"

/* What an instance needs in a handle. */
typedef struct {
  unsigned char *own; /* packed weights, filled buffers */
  void **staged;      /* aligned copies of what callers give, by buffer */
  Tensor *tensors;
  int64_t *shapes;
  Any *arguments;
} Part;

/* Rows of a run that one instance computes. */
typedef struct { int32_t instance; int64_t first; } Piece;

struct PUBLIC(handle) {
  Pool *pool;
  int packed;
  void *workspace;             /* where the caller gives none */
  void *mapped;                /* the file of weights */
  size_t mapped_bytes;
  const unsigned char *constants;
  int64_t sizes[SYMBOL_COUNT + 1];
  Piece *pieces;
  int64_t piece_count;
  int32_t last; /* the instance that ran last */
  Part parts[INSTANCE_COUNT];
  int64_t iterations[LOOP_COUNT + 1]; /* the step that each loop of each instance is in */
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

/* Memory and tensors of an instance, made when it is first needed. */
static int open_part(Handle *handle, int32_t number) {
  const Instance *instance = &instances[number];
  Part *part = &handle->parts[number];
  if (part->own != NULL) return CPEMBED_OK;
  size_t buffers = (size_t)instance->buffer_count, arguments = (size_t)instance->argument_count;
  part->staged = calloc(buffers + 1, sizeof *part->staged);
  part->tensors = calloc(buffers + 1, sizeof *part->tensors);
  part->shapes = calloc(buffers + 1, sizeof *part->shapes);
  part->arguments = calloc(arguments + 1, sizeof *part->arguments);
  part->own = allocated(instance->own_bytes);
  if (!part->staged || !part->tensors || !part->shapes || !part->arguments || !part->own) {
    free(part->own);
    part->own = NULL;
    return CPEMBED_OUT_OF_MEMORY;
  }
  memset(part->own, 0, (size_t)instance->own_bytes);
  for (int k = 0; k < instance->buffer_count; k++) {
    const Buffer *buffer = &instance->buffers[k];
    void *data = NULL;
    if (buffer->role == CONSTANT) data = (void *)(handle->constants + buffer->place);
    if (buffer->role == OWN) data = part->own + buffer->place;
    if (buffer->role == WEIGHTS && buffer->copy >= 0) data = part->own + buffer->copy;
    part->shapes[k] = buffer->elements;
    part->tensors[k] = (Tensor){.data = data, .device_type = 1, .rank = 1,
                                .type_code = buffer->type_code, .bits = buffer->bits, .lanes = 1,
                                .shape = &part->shapes[k], .strides = &one};
    if (buffer->filled) fill(data, buffer);
  }
  for (int k = 0; k < instance->argument_count; k++)
    part->arguments[k] = (Any){TENSOR_KIND, 0, &part->tensors[instance->arguments[k]]};
  return CPEMBED_OK;
}

static void close_part(Handle *handle, int32_t number) {
  Part *part = &handle->parts[number];
  for (int k = 0; part->staged != NULL && k < instances[number].buffer_count; k++)
    free(part->staged[k]);
  free(part->staged);
  free(part->tensors);
  free(part->shapes);
  free(part->arguments);
  free(part->own);
}

static int call(Part *part, const Call *step) {
  Any result = {0, 0, NULL};
  int code = step->kernel(NULL, part->arguments + step->first, step->count, &result);
  return code == 0 ? CPEMBED_OK : CPEMBED_KERNEL_FAILED;
}

static int prepare(Handle *handle) {
  int status = CPEMBED_OK;
  adopt(handle->pool);
  current = handle->pool;
  own_number = 0;
  /* Only a library of one instance has weights that are packed when it runs. */
  for (int k = 0; k < instances[0].prepare_count && status == CPEMBED_OK; k++)
    status = call(&handle->parts[0], &instances[0].prepare_calls[k]);
  handle->packed = status == CPEMBED_OK;
  return status;
}

static int aligned_copy(Part *part, const Instance *instance, int buffer) {
  if (part->staged[buffer] == NULL)
    part->staged[buffer] = allocated(instance->buffers[buffer].bytes);
  part->tensors[buffer].data = part->staged[buffer];
  return part->staged[buffer] == NULL ? CPEMBED_OUT_OF_MEMORY : CPEMBED_OK;
}

#include "sizes.h"

static int bind(Handle *handle, const Piece *piece, const void *const in[], void *const out[],
                void *workspace) {
  const Instance *instance = &instances[piece->instance];
  Part *part = &handle->parts[piece->instance];
  for (int k = 0; k < INPUT_COUNT; k++) {
    int buffer = instance->input_buffers[k];
    Box box = box_of(handle, piece, &input_table[k]);
    const unsigned char *first = (const unsigned char *)in[k] + box.start;
    part->tensors[buffer].data = (void *)first;
    if (box.is_whole && is_aligned(first)) continue;
    if (aligned_copy(part, instance, buffer)) return CPEMBED_OUT_OF_MEMORY;
    copy_in(&box, part->staged[buffer], in[k], instance->buffers[buffer].bytes);
  }
  for (int k = 0; k < OUTPUT_COUNT; k++) {
    int buffer = instance->output_buffers[k];
    Box box = box_of(handle, piece, &output_table[k]);
    unsigned char *first = (unsigned char *)out[k] + box.start;
    part->tensors[buffer].data = first;
    if (box.is_whole && is_aligned(first)) continue;
    if (aligned_copy(part, instance, buffer)) return CPEMBED_OUT_OF_MEMORY;
  }
  for (int k = 0; k < instance->filler_count; k++)
    if (write_filler(handle, part, instance, &instance->fillers[k])) return CPEMBED_OUT_OF_MEMORY;
  for (int k = 0; k < instance->buffer_count; k++)
    if (instance->buffers[k].role == WORKSPACE)
      part->tensors[k].data = (unsigned char *)workspace + instance->buffers[k].place;
  return CPEMBED_OK;
}

/* Copy back what was not written in place. */
static void return_outputs(Handle *handle, const Piece *piece, void *const out[]) {
  const Instance *instance = &instances[piece->instance];
  Part *part = &handle->parts[piece->instance];
  for (int k = 0; k < OUTPUT_COUNT; k++) {
    int buffer = instance->output_buffers[k];
    Box box = box_of(handle, piece, &output_table[k]);
    if (part->tensors[buffer].data != (unsigned char *)out[k] + box.start)
      copy_out(&box, out[k], part->staged[buffer]);
  }
}

/* Forget the caller's memory, which lives no longer than the call: NAME_tensor gives none of it. */
static void unbind(Handle *handle, int32_t number, int is_own_workspace) {
  for (int k = 0; k < instances[number].buffer_count; k++) {
    int role = instances[number].buffers[k].role;
    if (role == INPUT || role == OUTPUT || role == WINDOW ||
        (role == WORKSPACE && !is_own_workspace))
      handle->parts[number].tensors[k].data = NULL;
  }
}

/* One execution of an instance: what is called after each call, and where the times are added. */
typedef void (*Observer)(void *context, int step, const int64_t *iterations);
typedef struct {
  Handle *handle;
  double *ns;
  Observer observer;
  void *context;
  const Instance *instance;
  Part *part;
} Run;

/* Move what a loop of `steps` steps moves at some time of a step. */
static void move_all(const Run *run, const Loop *loop, int moving, int64_t iteration,
                     int64_t steps) {
  const Buffer *buffers = run->instance->buffers;
  for (int k = loop->first_move; k < loop->first_move + loop->moves; k++) {
    const Move *move = &run->instance->moves[k];
    if (move->moving != moving) continue;
    Tensor *source = &run->part->tensors[move->source], *target = &run->part->tensors[move->target];
    int64_t step = move->backwards ? (loop->padded ? steps : loop->steps) - 1 - iteration : iteration;
    int64_t in = buffers[move->source].bytes, out = buffers[move->target].bytes;
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

/* Zeros in the slices of results from a step on. */
static void clear_results(const Run *run, const Loop *loop, int64_t step) {
  const Buffer *buffers = run->instance->buffers;
  for (int k = loop->first_move; k < loop->first_move + loop->moves; k++) {
    const Move *move = &run->instance->moves[k];
    if (move->moving != WRITE || step >= loop->steps) continue;
    int64_t bytes = buffers[move->source].bytes;
    unsigned char *result = run->part->tensors[move->target].data;
    memset(result + step * bytes, 0, (size_t)((loop->steps - step) * bytes));
  }
}

static int is_true(const Part *part, int buffer) {
  return buffer < 0 || *(const unsigned char *)part->tensors[buffer].data != 0;
}

static int run_range(const Run *run, int first, int last, int loop, int end);

static int run_loop(const Run *run, int number) {
  const Loop *loop = &run->instance->loops[number];
  Part *part = run->part;
  int place = run->instance->first_loop + number; /* among the loops of all instances */
  int64_t steps = loop->steps, *iteration = &run->handle->iterations[place];
  if (loop->limit >= 0) {
    int64_t limit = *(const int64_t *)part->tensors[loop->limit].data;
    if (limit < steps) steps = limit;
  }
  if (steps < 0) steps = 0;
  move_all(run, loop, START, 0, steps);
  int goes_on = is_true(part, loop->condition), status = CPEMBED_OK;
  for (*iteration = 0; goes_on && *iteration < steps && status == CPEMBED_OK; ++*iteration) {
    if (loop->number >= 0) *(int64_t *)part->tensors[loop->number].data = *iteration;
    move_all(run, loop, READ, *iteration, steps);
    move_all(run, loop, VIEW, *iteration, steps);
    status = run_range(run, loop->first, loop->last, number + 1, loop->after);
    move_all(run, loop, WRITE, *iteration, steps);
    goes_on = is_true(part, loop->again);
    move_all(run, loop, COPY, 0, steps);
    move_all(run, loop, SWAP, 0, steps);
  }
  move_all(run, loop, FINISH, 0, steps);
  if (loop->padded) clear_results(run, loop, *iteration);
  if (run->observer != NULL && status == CPEMBED_OK)
    run->observer(run->context, -1 - place, run->handle->iterations);
  return status;
}

/* The calls `first` to `last` - 1 of an instance, among them its loops `loop` to `end` - 1. */
static int run_range(const Run *run, int first, int last, int loop, int end) {
  const Instance *instance = run->instance;
  int status = CPEMBED_OK;
  for (int k = first; status == CPEMBED_OK;) {
    if (loop < end && instance->loops[loop].first == k && instance->loops[loop].last <= last) {
      status = run_loop(run, loop);
      k = instance->loops[loop].last;
      loop = instance->loops[loop].after;
      continue;
    }
    if (k >= last) break;
    int step = instance->first_step + k;
    int64_t started = run->ns == NULL ? 0 : now_ns();
    status = call(run->part, &instance->run_calls[k]);
    if (run->ns != NULL) run->ns[step] += (double)(now_ns() - started);
    if (run->observer != NULL && status == CPEMBED_OK)
      run->observer(run->context, step, run->handle->iterations);
    k++;
  }
  return status;
}

/* A call of an instance by the number of a step, which counts those of all instances. */
static int call_of(const Instance *instance, int step) {
  int call = step - instance->first_step;
  return call < 0 ? 0 : call < instance->step_count ? call : instance->step_count;
}

/* The first loop of an instance from a call on; -1 where the call is inside a loop. */
static int loop_from(const Instance *instance, int call) {
  const Loop *loops = instance->loops;
  int loop = 0;
  for (; loop < instance->loop_count && loops[loop].first < call; loop = loops[loop].after)
    if (loops[loop].last > call) return -1;
  return loop;
}

/* The steps of a piece from `first` to `last` - 1, which count those of all instances. */
static int execute_piece(Run run, const Piece *piece, int first, int last, const void *const in[],
                         void *const out[], void *workspace, int is_own) {
  Handle *handle = run.handle;
  const Instance *instance = run.instance = &instances[piece->instance];
  run.part = &handle->parts[piece->instance];
  int status = open_part(handle, piece->instance);
  if (status == CPEMBED_OK) status = bind(handle, piece, in, out, workspace);
  if (status != CPEMBED_OK) return status;
  handle->last = piece->instance;
  int from = call_of(instance, first), to = call_of(instance, last);
  status = run_range(&run, from, to, loop_from(instance, from), instance->loop_count);
  if (status == CPEMBED_OK) return_outputs(handle, piece, out);
  unbind(handle, piece->instance, is_own);
  return status;
}

static int execute(const Run *run, int first, int last, const void *const in[], void *const out[],
                   void *workspace) {
  Handle *handle = run->handle;
  if (handle == NULL || first < 0 || last > STEP_COUNT || first > last)
    return CPEMBED_BAD_ARGUMENT;
  for (int k = 0; k < INSTANCE_COUNT; k++)
    if (loop_from(&instances[k], call_of(&instances[k], first)) < 0 ||
        loop_from(&instances[k], call_of(&instances[k], last)) < 0)
      return CPEMBED_BAD_ARGUMENT;
  if (!handle->packed) return CPEMBED_NOT_PACKED;
  if (handle->piece_count == 0) return CPEMBED_OUT_OF_MEMORY; /* of the last resizing */
  if ((INPUT_COUNT && in == NULL) || (OUTPUT_COUNT && out == NULL)) return CPEMBED_BAD_ARGUMENT;
  for (int k = 0; k < INPUT_COUNT; k++)
    if (in[k] == NULL) return CPEMBED_BAD_ARGUMENT;
  for (int k = 0; k < OUTPUT_COUNT; k++)
    if (out[k] == NULL) return CPEMBED_BAD_ARGUMENT;
  int is_own = workspace == NULL;
  if (WORKSPACE_BYTES != 0 && is_own) {
    if (handle->workspace == NULL) handle->workspace = allocated(WORKSPACE_BYTES);
    if (handle->workspace == NULL) return CPEMBED_OUT_OF_MEMORY;
    workspace = handle->workspace;
  }
  if (WORKSPACE_BYTES != 0 && !is_aligned(workspace)) return CPEMBED_BAD_ARGUMENT;
  adopt(handle->pool);
  current = handle->pool;
  own_number = 0;
  if (run->ns != NULL) memset(run->ns, 0, (size_t)STEP_COUNT * sizeof *run->ns);
  int status = CPEMBED_OK;
  for (int64_t k = 0; k < handle->piece_count && status == CPEMBED_OK; k++)
    status = execute_piece(*run, &handle->pieces[k], first, last, in, out, workspace, is_own);
  return status;
}

/* ----------------------------------------------------------------------------------- interface */

#define API __attribute__((visibility("default")))

API void PUBLIC(close)(Handle *handle) {
  if (handle == NULL) return;
  if (handle->pool != NULL) pool_close(handle->pool);
  for (int32_t k = 0; k < INSTANCE_COUNT; k++) close_part(handle, k);
  if (handle->mapped != NULL) munmap(handle->mapped, handle->mapped_bytes);
  free(handle->workspace);
  free(handle->pieces);
  free(handle->pool);
  free(handle);
}

static int opened(Handle *handle, int threads, const char *weights) {
  int status = lacking_feature();
  if (status != CPEMBED_OK) return status;
  Pool *pool = allocated(sizeof *pool);
  if (pool == NULL) return CPEMBED_OUT_OF_MEMORY;
  memset(pool, 0, sizeof *pool);
  handle->pool = pool;
  if ((status = pool_open(pool, threads > 0 ? threads : DEFAULT_THREADS)) != CPEMBED_OK) return status;
#if CONSTANTS_IN_FILE
  if ((status = map_weights(handle, weights)) != CPEMBED_OK) return status;
#else
  (void)weights, (void)checksum;
  handle->constants = CONSTANTS;
#endif
  /* The other instances of a library with ranges are opened when they first run. */
  if (SYMBOL_COUNT == 0 && (status = open_part(handle, 0)) != CPEMBED_OK) return status;
  for (int k = 0; k < SYMBOL_COUNT; k++) handle->sizes[k] = symbols[k].most;
  if ((status = divide(handle)) != CPEMBED_OK) return status;
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
  const Instance *instance = &instances[0];
  Part *part = &handle->parts[0];
  for (int k = 0; k < WEIGHT_COUNT && status == CPEMBED_OK; k++) {
    int number = instance->weight_buffers[k];
    const Buffer *buffer = &instance->buffers[number];
    Tensor *tensor = &part->tensors[number];
    if (buffer->copy < 0 && is_aligned(weights[k])) {
      tensor->data = (void *)weights[k];
      continue;
    }
    if (buffer->copy < 0) status = aligned_copy(part, instance, number);
    if (status == CPEMBED_OK) memcpy(tensor->data, weights[k], (size_t)buffer->bytes);
  }
  if (status == CPEMBED_OK) status = prepare(handle);
  for (int k = 0; k < WEIGHT_COUNT; k++) { /* copies that were for packing only */
    int number = instance->weight_buffers[k];
    free(part->staged[number]);
    part->staged[number] = NULL;
    if (instance->buffers[number].copy < 0) part->tensors[number].data = NULL;
  }
  return status;
}

API int PUBLIC(resize)(Handle *handle, const int64_t sizes[]) {
  if (handle == NULL || (SYMBOL_COUNT && sizes == NULL)) return CPEMBED_BAD_ARGUMENT;
  int same = 1;
  handle->pool->error[0] = 0;
  for (int k = 0; k < SYMBOL_COUNT; k++) {
    if (sizes[k] < symbols[k].least || sizes[k] > symbols[k].most) {
      snprintf(handle->pool->error, sizeof handle->pool->error,
               "%s is %lld, the library takes %lld to %lld", symbols[k].name, (long long)sizes[k],
               (long long)symbols[k].least, (long long)symbols[k].most);
      return CPEMBED_SIZE_OUT_OF_RANGE;
    }
    same &= sizes[k] == handle->sizes[k];
  }
  if (same) return CPEMBED_OK;
  for (int k = 0; k < SYMBOL_COUNT; k++) handle->sizes[k] = sizes[k];
  return divide(handle);
}

API int PUBLIC(run)(Handle *handle, const void *const in[], void *const out[], void *workspace) {
  const Run run = {.handle = handle};
  return execute(&run, 0, STEP_COUNT, in, out, workspace);
}

API int PUBLIC(run_steps)(Handle *handle, int first, int last, const void *const in[],
                          void *const out[], void *workspace) {
  const Run run = {.handle = handle};
  return execute(&run, first, last, in, out, workspace);
}

API int PUBLIC(run_timed)(Handle *handle, const void *const in[], void *const out[],
                          void *workspace, double *ns) {
  if (ns == NULL) return CPEMBED_BAD_ARGUMENT;
  const Run run = {.handle = handle, .ns = ns};
  return execute(&run, 0, STEP_COUNT, in, out, workspace);
}

API int PUBLIC(run_observed)(Handle *handle, const void *const in[], void *const out[],
                             void *workspace, Observer observer, void *context) {
  if (observer == NULL) return CPEMBED_BAD_ARGUMENT;
  const Run run = {.handle = handle, .observer = observer, .context = context};
  return execute(&run, 0, STEP_COUNT, in, out, workspace);
}

API size_t PUBLIC(workspace_size)(void) { return WORKSPACE_BYTES; }

API int PUBLIC(thread_count)(const Handle *handle) {
  return handle == NULL ? 0 : handle->pool->threads;
}

API int PUBLIC(step_count)(void) { return STEP_COUNT; }

API const char *PUBLIC(step_name)(int step) {
  for (int32_t k = 0; k < INSTANCE_COUNT; k++) {
    int place = step - instances[k].first_step;
    if (place >= 0 && place < instances[k].step_count) return instances[k].run_calls[place].name;
  }
  return NULL;
}

API int PUBLIC(symbol_count)(void) { return SYMBOL_COUNT; }

API const char *PUBLIC(symbol)(int number, int64_t *least, int64_t *most) {
  if (number < 0 || number >= SYMBOL_COUNT) return NULL;
  if (least != NULL) *least = symbols[number].least;
  if (most != NULL) *most = symbols[number].most;
  return symbols[number].name;
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
  const Instance *instance = &instances[handle->last];
  if (handle->parts[handle->last].own == NULL) return NULL;
  for (int k = 0; k < instance->buffer_count; k++)
    if (strcmp(instance->buffers[k].name, name) == 0) {
      if (dtype != NULL) *dtype = instance->buffers[k].dtype;
      if (elements != NULL) *elements = instance->buffers[k].elements;
      return handle->parts[handle->last].tensors[k].data;
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
