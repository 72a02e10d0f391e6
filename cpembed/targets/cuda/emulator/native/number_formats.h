/* float16 and bfloat16: conversions, to nearest and ties to even.

   Both the runtime and the kernels use them; a processor's own instructions are used where the
   compiler was told that it has them. */
#pragma once

#include <cstdint>
#include <cstring>
#if defined(__F16C__) && defined(__FLT16_MAX__)
#define EXECUTOR_FLOAT16 _Float16
#endif

namespace executor {

static inline float float_of_bits(uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, 4);
  return value;
}

static inline uint32_t bits_of_float(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, 4);
  return bits;
}

static inline float float16_to_float(uint16_t h) {
#ifdef EXECUTOR_FLOAT16
  EXECUTOR_FLOAT16 value;
  __builtin_memcpy(&value, &h, 2);
  return float(value);
#else
  uint32_t sign = uint32_t(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 1023;
  if (exponent == 31) return float_of_bits(sign | 0x7f800000 | mantissa << 13);
  if (exponent != 0) return float_of_bits(sign | (exponent + 112) << 23 | mantissa << 13);
  float value = float(mantissa) * 0x1p-24f;  // Exact.
  return sign ? -value : value;
#endif
}

static inline uint16_t float_to_float16(float value) {
#ifdef EXECUTOR_FLOAT16
  EXECUTOR_FLOAT16 rounded = EXECUTOR_FLOAT16(value);
  uint16_t bits;
  __builtin_memcpy(&bits, &rounded, 2);
  return bits;
#else
  uint32_t bits = bits_of_float(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return uint16_t(sign | 0x7e00 | (magnitude >> 13 & 0x1ff));
  if (magnitude >= 0x477ff000) return uint16_t(sign | 0x7c00);  // From 65520 on.
  if (magnitude < 0x38800000) {  // Below 2^-14: a multiple of 2^-24, which adding 2^-1 * 2^0 rounds to.
    float sum = float_of_bits(magnitude) + 0.5f;  // The unit in the last place of [0.5, 1) is 2^-24.
    return uint16_t(sign | (bits_of_float(sum) - bits_of_float(0.5f)));
  }
  uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
  return uint16_t(sign | ((rounded - 0x38000000) >> 13));
#endif
}

static inline float bfloat16_to_float(uint16_t b) { return float_of_bits(uint32_t(b) << 16); }

static inline uint16_t float_to_bfloat16(float value) {
  uint32_t bits = bits_of_float(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return uint16_t(bits >> 16 | 0x40);
  return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace executor
