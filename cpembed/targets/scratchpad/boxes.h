/* Transfers of boxes, and tiles along an axis; a part of every generated text. */

/* What one PE holds of an operand for a tile, dimensions outermost first: of each, the place of its
   first element in the operand (negative, or beyond `size`, where padding is), places held, how far
   neighbours are from each other in the operand (`step` places, `apart` bytes). */
struct box {
  int dimensions;
  long first[BOX_DIMENSIONS], held[BOX_DIMENSIONS], size[BOX_DIMENSIONS];
  long step[BOX_DIMENSIONS], apart[BOX_DIMENSIONS];
  long row; /* places of the scratchpad that the innermost dimension takes; 0: those held */
};

static long least(long a, long b) { return a < b ? a : b; }

/* Points of `points` that each of `parts` PEs holds, in granules, the last one filled up. */
static long share(long points, long granule, long parts) {
  return (points + granule - 1) / granule * (granule / parts);
}

/* Start the transfers of a box between main memory, where the operand begins at `memory`, and the
   scratchpad, where the box is dense, or in rows. What lies outside of the operand is zero there, and is not
   stored. Returns how many transfers there are. */
static int move_box(int put, char *here, char *memory, const struct box *b, long element,
                    dma_reply *reply) {
  long held[BOX_DIMENSIONS], apart[BOX_DIMENSIONS], dense[BOX_DIMENSIONS];
  long whole = element, skipped = 0;
  int inside = 1, cut = 0, n = 0;
  for (int d = b->dimensions - 1; d >= 0; d--) {
    long first = b->first[d], step = b->step[d];
    long skip = first < 0 ? (step - 1 - first) / step : 0;
    long end = first < b->size[d] ? (b->size[d] - first + step - 1) / step : 0;
    long count = least(b->held[d], end) - skip;
    if (count <= 0) inside = 0;
    if (count < b->held[d]) cut = 1;
    if (inside) {
      memory += (first + skip * step) * (b->apart[d] / step);
      skipped += skip * whole;
      if (count > 1) held[n] = count, apart[n] = b->apart[d], dense[n] = whole, n++;
    }
    whole *= d == b->dimensions - 1 && b->row ? b->row : b->held[d];
  }
  if (!put && cut) zero(here, whole);
  if (!inside) return 0;
  here += skipped;
  /* Innermost first: what is contiguous in both is a block, what has one distance a transfer. */
  int d = 0, transfers = 0;
  long block = element, blocks = 1, stride = element;
  for (; d < n && apart[d] == block && dense[d] == block; d++) block *= held[d];
  if (d < n && dense[d] == block) {
    for (stride = apart[d]; d < n && dense[d] == block * blocks && apart[d] == stride * blocks; d++)
      blocks *= held[d];
  }
  long at[BOX_DIMENSIONS] = {0};
  for (;;) {
    char *from = memory, *to = here;
    for (int e = d; e < n; e++) from += at[e] * apart[e], to += at[e] * dense[e];
    if (put)
      dma_put(from, to, block * blocks, block, stride, reply);
    else
      dma_get(to, from, block * blocks, block, stride, reply);
    transfers++;
    int e = d;
    while (e < n && ++at[e] == held[e]) at[e++] = 0;
    if (e >= n) return transfers;
  }
}
