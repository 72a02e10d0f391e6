/* Element types of matrices: how they are stored, and as what they are multiplied and added. */
#pragma once

#include <cmath>

#include "number_formats.h"

struct F16 {
  using Stored = uint16_t;
  using Value = float;
  static Value load(Stored bits) { return executor::float16_to_float(bits); }
  static Stored store(Value value) { return executor::float_to_float16(value); }
};
struct Bf16 {
  using Stored = uint16_t;
  using Value = float;
  static Value load(Stored bits) { return executor::bfloat16_to_float(bits); }
  static Stored store(Value value) { return executor::float_to_bfloat16(value); }
};
struct F32 {
  using Stored = float;
  using Value = float;
  static Value load(Stored value) { return value; }
  static Stored store(Value value) { return value; }
};
/* The 13 lowest bits of a float are not multiplied. */
struct Tf32 {
  using Stored = uint32_t;
  using Value = float;
  static Value load(Stored bits) { return executor::float_of_bits(bits & 0xffffe000); }
};
/* 4 bits of exponent, no infinity. */
struct E4m3 {
  using Stored = uint8_t;
  using Value = float;
  static Value load(Stored bits) {
    int exponent = bits >> 3 & 15, mantissa = bits & 7;
    float value = exponent == 15 && mantissa == 7 ? executor::float_of_bits(0x7fc00000)
                  : exponent ? ldexpf(float(8 + mantissa), exponent - 10)
                             : ldexpf(float(mantissa), -9);
    return bits & 0x80 ? -value : value;
  }
};
/* The upper half of a float16. */
struct E5m2 {
  using Stored = uint8_t;
  using Value = float;
  static Value load(Stored bits) { return executor::float16_to_float(uint16_t(bits << 8)); }
};
/* Sums of integers wrap around. */
struct S8 {
  using Stored = int8_t;
  using Value = uint32_t;
  static Value load(Stored value) { return uint32_t(int32_t(value)); }
};
struct U8 {
  using Stored = uint8_t;
  using Value = uint32_t;
  static Value load(Stored value) { return value; }
};
struct S32 {
  using Stored = uint32_t;
  using Value = uint32_t;
  static Value load(Stored value) { return value; }
  static Stored store(Value value) { return value; }
};

/* Add the products of `k` factors, and as many rows of values that are `stride` apart, to a row of sums. */
template <int columns, class V>
static inline void add_products(V *sums, const V *factors, const V *values, int k, int stride) {
  V made[columns];  // In registers.
  memcpy(made, sums, sizeof made);
  for (int depth = 0; depth < k; depth++)
    for (int c = 0; c < columns; c++) made[c] += factors[depth] * values[depth * stride + c];
  memcpy(sums, made, sizeof made);
}

/* c += a * b over dense matrices. Products of float16 and of bfloat16 are exact in float; sums are
   taken in float, from the accumulator on along k, and rounded once to the accumulator's type where
   they are stored. The order inside a GPU is not published, so floats agree to a tolerance only. */
template <class V, int M, int N, int K>
__attribute__((noinline)) static void multiply_add(V (&c)[M][N], const V (&a)[M][K], const V (&b)[K][N]) {
  for (int i = 0; i < M; i++) add_products<N>(c[i], a[i], b[0], K, N);
}
