/* Which element of a matrix each register of each lane holds in mma.sync.

   From the PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type", "... for
   mma.m16n8k32" (8-bit integers) and "ldmatrix": with group = lane / 4 and within = lane % 4. These
   maps are written here on their own; kernels are generated from others. */
#pragma once

struct Position {
  int row, column;
};

/* A of m16n8k16, 16-bit: element i of 8, two a register. */
static inline Position a_16x16(int lane, int i) {
  int group = lane / 4, within = lane % 4;
  return {i % 4 < 2 ? group : group + 8, within * 2 + i % 2 + (i < 4 ? 0 : 8)};
}

/* B of m16n8k16, 16-bit: element i of 4; row is k, column is n. */
static inline Position b_16x8(int lane, int i) {
  int group = lane / 4, within = lane % 4;
  return {within * 2 + i % 2 + (i < 2 ? 0 : 8), group};
}

/* A of m16n8k32, 8-bit: element i of 16, four a register. */
static inline Position a_16x32(int lane, int i) {
  int group = lane / 4, within = lane % 4;
  return {i % 8 < 4 ? group : group + 8, within * 4 + i % 4 + (i < 8 ? 0 : 16)};
}

/* B of m16n8k32, 8-bit: element i of 8. */
static inline Position b_32x8(int lane, int i) {
  int group = lane / 4, within = lane % 4;
  return {within * 4 + i % 4 + (i < 4 ? 0 : 16), group};
}

/* C and D of both: element i of 4. */
static inline Position c_16x8(int lane, int i) {
  int group = lane / 4, within = lane % 4;
  return {i < 2 ? group : group + 8, within * 2 + i % 2};
}

/* An 8x8 matrix of 16-bit elements of ldmatrix: element i of 2. With .trans rows and columns change
   places. */
static inline Position matrix_8x8(int lane, int i) { return {lane / 4, lane % 4 * 2 + i}; }
