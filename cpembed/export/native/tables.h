/* Types of a library's tables, which program.h holds. */

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

/* Calls of an instance that are repeated, `first` to `last` - 1, and the number of its next loop
   that is not inside this one. Buffers, -1 where there is none: `number` gets the number of the
   step, `limit` has the number of steps, `condition` whether there is a first one, `again` whether
   a next one. Where `padded`, slices end with that of the last step of a run, and results are zeros
   from there on. */
typedef struct {
  int64_t steps;
  int32_t first, last, after, first_move, moves, number, limit, condition, again, padded;
} Loop;

/* An input of an instance that the sizes of a run determine: the float `size` divided by `extent`;
   a mask, whose first `extent` bytes of `size` are 1; or `extent` itself. */
enum { QUOTIENT, MASK, EXTENT };
typedef struct { int32_t buffer, kind; int64_t size; cpembed_extent extent; } Filler;

/* The network at some sizes, which has steps, buffers and a workspace of its own. It computes runs
   whose sizes are from `least` to `most`; `cost`: predicted microseconds. */
typedef struct {
  const int64_t *sizes, *least, *most;
  double cost;
  int32_t buffer_count, argument_count, prepare_count, step_count, filler_count, loop_count;
  int32_t first_step, first_loop; /* of those of all instances */
  const Buffer *buffers;
  const int32_t *arguments;
  const Call *prepare_calls, *run_calls;
  const int32_t *input_buffers, *output_buffers, *weight_buffers;
  const Filler *fillers;
  const Loop *loops;
  const Move *moves;
  int64_t own_bytes;
} Instance;

typedef struct { const char *name; int64_t least, most; } Symbol;
