/* Which element of a matrix each register of each lane holds in mma.sync.

   From the PTX ISA, "Matrix Fragments for mma.m16n8k4", "... m16n8k8", "... m16n8k16" and "...
   m16n8k32", and "ldmatrix": with group = lane / 4 and within = lane % 4. All of them follow one
   rule of the number `e` of elements that a register of 32 bits has: 1, 2 or 4. These maps are
   written here on their own; kernels are generated from others. */
#pragma once

struct Position {
  int row, column;
};

/* A of 16 rows: registers alternate between rows `group` and `group + 8`, then go 4 * e columns on. */
template <int e>
static inline Position a_position(int lane, int i) {
  int group = lane / 4, within = lane % 4, number = i / e;
  return {group + 8 * (number % 2), within * e + i % e + number / 2 * 4 * e};
}

/* B of 8 columns: row is k, column is n. */
template <int e>
static inline Position b_position(int lane, int i) {
  int group = lane / 4, within = lane % 4;
  return {within * e + i % e + i / e * 4 * e, group};
}

/* C and D of 16 rows and 8 columns: element i of 4. */
static inline Position c_16x8(int lane, int i) {
  int group = lane / 4, within = lane % 4;
  return {i < 2 ? group : group + 8, within * 2 + i % 2};
}

/* An 8x8 matrix of 16-bit elements of ldmatrix: element i of 2. With .trans rows and columns change
   places. */
static inline Position matrix_8x8(int lane, int i) { return {lane / 4, lane % 4 * 2 + i}; }
