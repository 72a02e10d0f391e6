/* C = A * B on a mesh, tile by tile, with two buffers for each of A and B. */
#include "scratchpad.h"

enum { M = 96, N = 64, K = 160, TILE_M = 32, TILE_N = 32, TILE_K = 32 };
enum { ROWS = 8, COLUMNS = 8, MB = TILE_M / ROWS, NB = TILE_N / COLUMNS };
enum { AK = TILE_K / COLUMNS, BK = TILE_K / ROWS, STEPS = K / TILE_K };
enum { A_AT = 0, A_BYTES = MB * AK * 4, B_AT = 2 * A_BYTES, B_BYTES = BK * NB * 4 };
enum { C_AT = B_AT + 2 * B_BYTES, C_BYTES = MB * NB * 4 };

/* A block of a matrix in main memory, in the order in which the matrix is stored. */
static const float *at(const void *matrix, int row, int column, int ld, int column_major) {
  return (const float *)matrix + (column_major ? column * ld + row : row * ld + column);
}

static void fetch(const struct arguments *a, int i, int j, int step, dma_reply *reply) {
  int buffer = step % 2;
  int column_major = VARIANT & A_COLUMN_MAJOR;
  const float *from = at(a->operand[0], i + PE_ROW * MB, step * TILE_K + PE_COLUMN * AK,
                         column_major ? M : K, column_major);
  long block = (column_major ? MB : AK) * 4, stride = (column_major ? M : K) * 4;
  dma_get(scratchpad(0, A_AT + buffer * A_BYTES), from, A_BYTES, block, stride, reply);
  column_major = VARIANT & B_COLUMN_MAJOR;
  from = at(a->operand[1], step * TILE_K + PE_ROW * BK, j + PE_COLUMN * NB, column_major ? K : N,
            column_major);
  block = (column_major ? BK : NB) * 4, stride = (column_major ? K : N) * 4;
  dma_get(scratchpad(0, B_AT + buffer * B_BYTES), from, B_BYTES, block, stride, reply);
}

static void tile(const struct arguments *a, int i, int j) {
  dma_reply replies[2] = {0, 0}, stored = 0;
  int over_n = VARIANT & VECTORISED_OVER_N;
  float *c = scratchpad(0, C_AT);
  zero(c, C_BYTES);
  fetch(a, i, j, 0, &replies[0]);
  for (int step = 0; step < STEPS; step++) {
    int buffer = step % 2;
    if (step + 1 < STEPS) fetch(a, i, j, step + 1, &replies[1 - buffer]);
    dma_wait(&replies[buffer], 2);
    gemm(TILE_M, TILE_N, TILE_K, scratchpad(0, A_AT + buffer * A_BYTES),
         VARIANT & A_COLUMN_MAJOR ? MB : AK, scratchpad(0, B_AT + buffer * B_BYTES),
         VARIANT & B_COLUMN_MAJOR ? BK : NB, c, over_n ? NB : MB, VARIANT);
  }
  float *to = (float *)at(a->operand[2], i + PE_ROW * MB, j + PE_COLUMN * NB, over_n ? N : M, !over_n);
  dma_put(to, c, C_BYTES, (over_n ? NB : MB) * 4, (over_n ? N : M) * 4, &stored);
  dma_wait(&stored, 1);
}

void kernel(const struct arguments *a) {
  for (int i = 0; i < M; i += TILE_M)
    for (int j = 0; j < N; j += TILE_N) tile(a, i, j);
}
