/* The library libNAME.so.NOTE

   DOCUMENTS */

#ifndef GUARD
#define GUARD

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef CPEMBED_INTERFACE
#define CPEMBED_INTERFACE
/* What functions return. */
STATUSES

/* A part of an axis: factor times the size of a symbol, plus offset, divided by the divisor and
   rounded down; the offset where the symbol is -1. The indices of an axis are the product of its
   extents. */
typedef struct {
  int32_t axis, symbol;
  int64_t factor, offset, divisor;
} cpembed_extent;

/* A tensor that a caller gives: dense, row-major. Where sizes are ranges, shape and bytes are those
   at the largest sizes. */
typedef struct {
  const char *name;
  const char *dtype;    /* as numpy spells it; bfloat16 as 16 bits, int7 and uint7 as bytes */
  int32_t rank;
  const int64_t *shape;
  int64_t bytes, item_bytes;
  int32_t extent_count;
  const cpembed_extent *extents;
} cpembed_tensor;
#endif

typedef struct NAME_handle NAME_handle;

/* Open the library. threads: 0 for DEFAULT. WEIGHTS_FILE
   A handle runs one call at a time; several handles are independent. */
int NAME_open(int threads, const char *weights_file, NAME_handle **handle);

/* End the threads and free everything; NULL is allowed. */
void NAME_close(NAME_handle *handle);

/* Pack the weights, once before the first run, or again: one pointer for each weight. They are
   copied. Needed where NAME_weight_count() is not 0. */
int NAME_pack(NAME_handle *handle, const void *const weights[]);

/* One call: a pointer for each input and output. Memory that is aligned to 64 bytes is used where
   it is, other memory copied. workspace: NAME_workspace_size() bytes, aligned to 64 bytes and free
   for other use between calls; NULL for the handle's own. */
int NAME_run(NAME_handle *handle, const void *const inputs[], void *const outputs[],
             void *workspace);
size_t NAME_workspace_size(void);

/* Sizes that are ranges: the name of each (a symbol), and its least and largest size; NULL beyond
   the last. NAME_resize sets them, in this order, for the calls that follow; before, they are the
   largest. It fails with CPEMBED_SIZE_OUT_OF_RANGE, and NAME_kernel_message says which. */
int NAME_symbol_count(void);
const char *NAME_symbol(int number, int64_t *least, int64_t *most);
int NAME_resize(NAME_handle *handle, const int64_t sizes[]);

/* What a status means, in words; what a kernel said that failed. */
const char *NAME_status_text(int status);
const char *NAME_kernel_message(const NAME_handle *handle);

/* What is given: by number, NULL beyond the last. */
int NAME_input_count(void);
int NAME_output_count(void);
int NAME_weight_count(void);
const cpembed_tensor *NAME_input(int number);
const cpembed_tensor *NAME_output(int number);
const cpembed_tensor *NAME_weight(int number);

/* The steps of a run, one after the other: their number, their names, the nanoseconds of each
   (ns: a place for each step; of steps inside a loop the sum), and a part of them, first to
   last - 1, which begins and ends outside of loops. Where sizes are ranges, a run takes the steps
   of some instances, one or several times, and the others none. */
int NAME_step_count(void);
const char *NAME_step_name(int step);
int NAME_run_timed(NAME_handle *handle, const void *const inputs[], void *const outputs[],
                   void *workspace, double *ns);
int NAME_run_steps(NAME_handle *handle, int first, int last, const void *const inputs[],
                   void *const outputs[], void *workspace);

/* One call that is observed: observer(context, step, iterations) is called after each step, and
   after the loop k with step -1 - k. iterations[k] is the step that loop k is in. The observer may
   call NAME_tensor and nothing else of the library. */
int NAME_run_observed(NAME_handle *handle, const void *const inputs[], void *const outputs[],
                      void *workspace,
                      void (*observer)(void *context, int step, const int64_t *iterations),
                      void *context);

/* The memory of a buffer by its name, as the last steps left it, with its type and number of
   elements. It is the handle's own: valid until NAME_close; steps that follow, and NAME_pack, may
   write over it. NULL where there is none: of a name that is no buffer's, and of what lies in the
   caller's memory (inputs, outputs, weights that were only packed, a workspace that was given). */
const void *NAME_tensor(const NAME_handle *handle, const char *name, const char **dtype,
                        int64_t *elements);

/* The threads of a handle. */
int NAME_thread_count(const NAME_handle *handle);

#ifdef __cplusplus
}
#endif
#endif
