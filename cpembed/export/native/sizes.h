/* Sizes of a run: which instances compute it, and which part of each tensor every one takes.

   A run of any sizes is divided into pieces along at most one symbol, SPLIT. The instance of a
   piece may be larger than what is left of the run: then its inputs are filled up with zeros, and
   what it writes beyond is dropped. */

/* The instances whose predicted time is the least: the best end for each number of rows. */
static int divide(Handle *handle) {
  int64_t rows = SPLIT < 0 ? 1 : handle->sizes[SPLIT < 0 ? 0 : SPLIT];
  double *best = malloc((size_t)(rows + 1) * sizeof *best);
  int32_t *choice = malloc((size_t)(rows + 1) * sizeof *choice);
  free(handle->pieces);
  handle->pieces = malloc((size_t)(rows + 1) * sizeof *handle->pieces);
  handle->piece_count = 0;
  int status = best && choice && handle->pieces ? CPEMBED_OK : CPEMBED_OUT_OF_MEMORY;
  for (int64_t left = 0; left <= rows && status == CPEMBED_OK; left++) {
    best[left] = 0;
    choice[left] = -1;
    for (int32_t k = 0; left > 0 && k < INSTANCE_COUNT; k++) {
      int fits = 1;
      for (int s = 0; s < SYMBOL_COUNT; s++)
        fits &= instances[k].least[s] <= handle->sizes[s] && handle->sizes[s] <= instances[k].most[s];
      if (!fits) continue;
      int64_t taken = SPLIT < 0 ? 1 : instances[k].sizes[SPLIT < 0 ? 0 : SPLIT];
      double cost = instances[k].cost + (left > taken ? best[left - taken] : 0);
      if (choice[left] >= 0 && cost >= best[left]) continue;
      best[left] = cost;
      choice[left] = k;
    }
    /* An instance for every size was there when the library was built. */
    if (left > 0 && choice[left] < 0) status = CPEMBED_SIZE_OUT_OF_RANGE;
  }
  for (int64_t left = rows; left > 0 && status == CPEMBED_OK;) {
    int32_t k = choice[left];
    handle->pieces[handle->piece_count++] = (Piece){k, rows - left};
    left -= SPLIT < 0 ? 1 : instances[k].sizes[SPLIT < 0 ? 0 : SPLIT];
  }
  free(best);
  free(choice);
  return status;
}

/* The part of a caller's tensor that a piece takes, dimension by dimension of its extents. */
typedef struct {
  int64_t rank, item;
  int64_t count[MOST_EXTENTS], run[MOST_EXTENTS], instance[MOST_EXTENTS]; /* taken, of either */
  int64_t start; /* byte offset of its first element in the caller's tensor */
  int is_whole;  /* adjacent there, and all of the instance's tensor */
} Box;

static int64_t extent_at(const cpembed_extent *extent, const int64_t *sizes) {
  int64_t times = extent->symbol < 0 ? 0 : extent->factor * sizes[extent->symbol];
  return (times + extent->offset) / extent->divisor;
}

static Box box_of(const Handle *handle, const Piece *piece, const cpembed_tensor *tensor) {
  if (SYMBOL_COUNT == 0) return (Box){.item = tensor->bytes, .is_whole = 1};
  Box box = {.rank = tensor->extent_count, .item = tensor->item_bytes, .is_whole = 1};
  int64_t stride = box.item;
  int is_partial = 0; /* whether an inner dimension is taken in part */
  for (int64_t k = box.rank - 1; k >= 0; k--) {
    const cpembed_extent *extent = &tensor->extents[k];
    int is_split = SPLIT >= 0 && extent->symbol == SPLIT;
    int64_t first = is_split ? extent->factor * piece->first : 0; /* the divisor is 1 */
    int64_t total = extent_at(extent, handle->sizes);
    int64_t taken = extent_at(extent, instances[piece->instance].sizes);
    box.run[k] = total;
    box.instance[k] = taken;
    box.count[k] = taken < total - first ? taken : total - first;
    box.start += first * stride;
    stride *= total;
    if (box.count[k] != taken || (is_partial && taken != 1)) box.is_whole = 0;
    if (box.count[k] != total) is_partial = 1;
  }
  return box;
}

/* Copy a box between two row-major tensors, whose strides in bytes are those of `target` and
   `source`; inner dimensions that are whole in both are copied at once. */
static void copy_box(const Box *box, int64_t dimension, unsigned char *target,
                     const int64_t *target_extents, const unsigned char *source,
                     const int64_t *source_extents) {
  int64_t target_stride = box->item, source_stride = box->item, bytes = box->item;
  int is_block = 1;
  for (int64_t k = box->rank - 1; k > dimension; k--) {
    is_block &= box->count[k] == target_extents[k] && box->count[k] == source_extents[k];
    target_stride *= target_extents[k];
    source_stride *= source_extents[k];
    bytes *= box->count[k];
  }
  if (dimension >= box->rank || is_block) {
    memcpy(target, source, (size_t)(bytes * (dimension < box->rank ? box->count[dimension] : 1)));
    return;
  }
  for (int64_t k = 0; k < box->count[dimension]; k++)
    copy_box(box, dimension + 1, target + k * target_stride, target_extents,
             source + k * source_stride, source_extents);
}

static void copy_in(const Box *box, void *staged, const void *from, int64_t bytes) {
  for (int64_t k = 0; k < box->rank; k++)
    if (box->count[k] != box->instance[k]) {
      memset(staged, 0, (size_t)bytes);
      break;
    }
  copy_box(box, 0, staged, box->instance, (const unsigned char *)from + box->start, box->run);
}

static void copy_out(const Box *box, void *to, const void *staged) {
  copy_box(box, 0, (unsigned char *)to + box->start, box->run, staged, box->instance);
}

static int write_filler(const Handle *handle, Part *part, const Instance *instance,
                        const Filler *filler) {
  if (aligned_copy(part, instance, filler->buffer)) return CPEMBED_OUT_OF_MEMORY;
  int64_t extent = extent_at(&filler->extent, handle->sizes);
  unsigned char *memory = part->staged[filler->buffer];
  if (filler->kind == EXTENT) {
    memcpy(memory, &extent, sizeof extent);
  } else if (filler->kind == MASK) {
    memset(memory, 1, (size_t)extent);
    memset(memory + extent, 0, (size_t)(filler->size - extent));
  } else {
    float quotient = (float)((double)filler->size / (double)extent);
    memcpy(memory, &quotient, sizeof quotient);
  }
  return CPEMBED_OK;
}
