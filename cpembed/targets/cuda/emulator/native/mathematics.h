/* Functions of numbers beyond the C library's. Approximate ones are computed as the exact ones are,
   and no multiplication is fused with an addition where the text does not say so. */
#pragma once

template <class T, class U>
using __cpembed_common =
    std::enable_if_t<std::is_arithmetic_v<T> && std::is_arithmetic_v<U>, std::common_type_t<T, U>>;

template <class T, class U>
__CPEMBED_INLINE __cpembed_common<T, U> max(T a, U b) {
  using C = std::common_type_t<T, U>;
  if constexpr (std::is_floating_point_v<C>) return std::fmax(C(a), C(b));
  return C(a) > C(b) ? C(a) : C(b);
}
template <class T, class U>
__CPEMBED_INLINE __cpembed_common<T, U> min(T a, U b) {
  using C = std::common_type_t<T, U>;
  if constexpr (std::is_floating_point_v<C>) return std::fmin(C(a), C(b));
  return C(a) < C(b) ? C(a) : C(b);
}

/* Of <math_constants.h>. */
#define CUDART_INF_F INFINITY
#define CUDART_NAN_F NAN

/* The C library has these names for itself. */
#define __expf expf
#define __exp10f exp10f
#define __logf logf
#define __log2f log2f
#define __log10f log10f
#define __sinf sinf
#define __cosf cosf
#define __tanf tanf
#define __tanhf tanhf
#define __powf powf

__CPEMBED_INLINE float __fdividef(float a, float b) { return a / b; }
__CPEMBED_INLINE float __saturatef(float a) { return fminf(fmaxf(a, 0.0f), 1.0f); }
__CPEMBED_INLINE float rsqrtf(float a) { return 1.0f / sqrtf(a); }
__CPEMBED_INLINE double rsqrt(double a) { return 1.0 / std::sqrt(a); }
__CPEMBED_INLINE float __frcp_rn(float a) { return 1.0f / a; }
__CPEMBED_INLINE float __fsqrt_rn(float a) { return sqrtf(a); }
__CPEMBED_INLINE float __fadd_rn(float a, float b) { return a + b; }
__CPEMBED_INLINE float __fsub_rn(float a, float b) { return a - b; }
__CPEMBED_INLINE float __fdiv_rn(float a, float b) { return a / b; }
__CPEMBED_INLINE float __fmul_rn(float a, float b) { return a * b; }
__CPEMBED_INLINE float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }

/* Conversions to integers saturate, and a NaN becomes 0. */
__CPEMBED_INLINE int __cpembed_to_int(float a) {
  if (a != a) return 0;
  if (a >= 0x1p31f) return INT32_MAX;
  return a < -0x1p31f ? INT32_MIN : int(a);
}
__CPEMBED_INLINE int __float2int_rn(float a) { return __cpembed_to_int(nearbyintf(a)); }
__CPEMBED_INLINE int __float2int_rz(float a) { return __cpembed_to_int(a); }
__CPEMBED_INLINE int __float2int_rd(float a) { return __cpembed_to_int(floorf(a)); }
__CPEMBED_INLINE int __float2int_ru(float a) { return __cpembed_to_int(ceilf(a)); }
__CPEMBED_INLINE float __int2float_rn(int a) { return float(a); }
__CPEMBED_INLINE int __float_as_int(float a) { return int(executor::bits_of_float(a)); }
__CPEMBED_INLINE unsigned __float_as_uint(float a) { return executor::bits_of_float(a); }
__CPEMBED_INLINE float __int_as_float(int a) { return executor::float_of_bits(uint32_t(a)); }
__CPEMBED_INLINE float __uint_as_float(unsigned a) { return executor::float_of_bits(a); }

__CPEMBED_INLINE int __popc(unsigned a) { return __builtin_popcount(a); }
__CPEMBED_INLINE int __clz(int a) { return a ? __builtin_clz(unsigned(a)) : 32; }
__CPEMBED_INLINE int __ffs(int a) { return __builtin_ffs(a); }
__CPEMBED_INLINE int __mul24(int a, int b) { return a * b; }
__CPEMBED_INLINE int __mulhi(int a, int b) { return int(int64_t(a) * b >> 32); }
__CPEMBED_INLINE unsigned __umulhi(unsigned a, unsigned b) { return unsigned(uint64_t(a) * b >> 32); }

__CPEMBED_INLINE int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 4; i++) c += int(int8_t(a >> 8 * i)) * int(int8_t(b >> 8 * i));
  return c;
}
__CPEMBED_INLINE unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
  for (int i = 0; i < 4; i++) c += (a >> 8 * i & 255) * (b >> 8 * i & 255);
  return c;
}
template <class T>
__CPEMBED_INLINE int __dp4a(const T &a, const T &b, int c) {
  static_assert(sizeof(T) == 4);
  int x, y;
  memcpy(&x, &a, 4);
  memcpy(&y, &b, 4);
  return __dp4a(x, y, c);
}
