/* __half and __nv_bfloat16. Arithmetic is done in float and rounded once: for + - * / that is the
   correctly rounded result, since float has more than twice their digits. */
#pragma once

#include "number_formats.h"

struct Float16Format {
  static float expand(uint16_t bits) { return executor::float16_to_float(bits); }
  static uint16_t round(float value) { return executor::float_to_float16(value); }
};
struct Bfloat16Format {
  static float expand(uint16_t bits) { return executor::bfloat16_to_float(bits); }
  static uint16_t round(float value) { return executor::float_to_bfloat16(value); }
};

template <class Format>
struct SmallFloat {
  uint16_t bits;

  SmallFloat() = default;
  template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
  SmallFloat(T value) : bits(Format::round(static_cast<float>(value))) {}
  /* From a volatile one; a template is no copy constructor, so that copies stay trivial. */
  template <class T, class = std::enable_if_t<std::is_same_v<T, SmallFloat>>, class = void>
  SmallFloat(const volatile T &other) : bits(other.bits) {}
  template <class T, class = std::enable_if_t<std::is_same_v<T, SmallFloat>>>
  void operator=(const T &other) volatile {
    bits = other.bits;
  }
  template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
  operator T() const {
    return static_cast<T>(Format::expand(bits));
  }

  static SmallFloat of_bits(uint16_t bits) {
    SmallFloat made;
    made.bits = bits;
    return made;
  }
  float expanded() const { return Format::expand(bits); }

  friend SmallFloat operator+(SmallFloat a, SmallFloat b) { return a.expanded() + b.expanded(); }
  friend SmallFloat operator-(SmallFloat a, SmallFloat b) { return a.expanded() - b.expanded(); }
  friend SmallFloat operator*(SmallFloat a, SmallFloat b) { return a.expanded() * b.expanded(); }
  friend SmallFloat operator/(SmallFloat a, SmallFloat b) { return a.expanded() / b.expanded(); }
  friend SmallFloat operator-(SmallFloat a) { return of_bits(uint16_t(a.bits ^ 0x8000)); }
  friend SmallFloat operator+(SmallFloat a) { return a; }
  SmallFloat &operator+=(SmallFloat b) { return *this = *this + b; }
  SmallFloat &operator-=(SmallFloat b) { return *this = *this - b; }
  SmallFloat &operator*=(SmallFloat b) { return *this = *this * b; }
  SmallFloat &operator/=(SmallFloat b) { return *this = *this / b; }
  friend bool operator<(SmallFloat a, SmallFloat b) { return a.expanded() < b.expanded(); }
  friend bool operator>(SmallFloat a, SmallFloat b) { return a.expanded() > b.expanded(); }
  friend bool operator<=(SmallFloat a, SmallFloat b) { return a.expanded() <= b.expanded(); }
  friend bool operator>=(SmallFloat a, SmallFloat b) { return a.expanded() >= b.expanded(); }
  friend bool operator==(SmallFloat a, SmallFloat b) { return a.expanded() == b.expanded(); }
  friend bool operator!=(SmallFloat a, SmallFloat b) { return a.expanded() != b.expanded(); }
};

using __half = SmallFloat<Float16Format>;
using half = __half;
using __nv_bfloat16 = SmallFloat<Bfloat16Format>;
using nv_bfloat16 = __nv_bfloat16;

template <class T>
struct __attribute__((aligned(4))) SmallFloat2 {
  T x, y;
  SmallFloat2() = default;
  SmallFloat2(T x, T y) : x(x), y(y) {}
};
using __half2 = SmallFloat2<__half>;
using half2 = __half2;
using __nv_bfloat162 = SmallFloat2<__nv_bfloat16>;
using nv_bfloat162 = __nv_bfloat162;

__CPEMBED_INLINE float __half2float(__half a) { return a.expanded(); }
__CPEMBED_INLINE float __bfloat162float(__nv_bfloat16 a) { return a.expanded(); }
__CPEMBED_INLINE __half __float2half(float a) { return a; }
__CPEMBED_INLINE __half __float2half_rn(float a) { return a; }
__CPEMBED_INLINE __nv_bfloat16 __float2bfloat16(float a) { return a; }
__CPEMBED_INLINE __nv_bfloat16 __float2bfloat16_rn(float a) { return a; }
__CPEMBED_INLINE half2 make_half2(half x, half y) { return {x, y}; }
__CPEMBED_INLINE half2 __halves2half2(half x, half y) { return {x, y}; }
__CPEMBED_INLINE half2 __half2half2(half x) { return {x, x}; }
__CPEMBED_INLINE half2 __floats2half2_rn(float x, float y) { return {half(x), half(y)}; }
__CPEMBED_INLINE half __low2half(half2 a) { return a.x; }
__CPEMBED_INLINE half __high2half(half2 a) { return a.y; }
__CPEMBED_INLINE unsigned short __half_as_ushort(half a) { return a.bits; }
__CPEMBED_INLINE half __ushort_as_half(unsigned short a) { return half::of_bits(a); }
__CPEMBED_INLINE unsigned short __bfloat16_as_ushort(nv_bfloat16 a) { return a.bits; }
__CPEMBED_INLINE nv_bfloat16 __ushort_as_bfloat16(unsigned short a) { return nv_bfloat16::of_bits(a); }
__CPEMBED_INLINE int __half2int_rz(half a) { return int(a.expanded()); }
__CPEMBED_INLINE int __half2int_rn(half a) { return int(nearbyintf(a.expanded())); }

#define SMALL_FLOAT_BINARY(name, expression) \
  template <class F> \
  __CPEMBED_INLINE SmallFloat<F> name(SmallFloat<F> a, SmallFloat<F> b) { \
    return expression; \
  } \
  template <class F> \
  __CPEMBED_INLINE SmallFloat2<SmallFloat<F>> name##2(SmallFloat2<SmallFloat<F>> a, \
                                                     SmallFloat2<SmallFloat<F>> b) { \
    return {name(a.x, b.x), name(a.y, b.y)}; \
  }
SMALL_FLOAT_BINARY(__hadd, a + b)
SMALL_FLOAT_BINARY(__hsub, a - b)
SMALL_FLOAT_BINARY(__hmul, a *b)
SMALL_FLOAT_BINARY(__hdiv, a / b)
SMALL_FLOAT_BINARY(__hmax, fmaxf(a.expanded(), b.expanded()))
SMALL_FLOAT_BINARY(__hmin, fminf(a.expanded(), b.expanded()))
SMALL_FLOAT_BINARY(hpow, powf(a.expanded(), b.expanded()))
#undef SMALL_FLOAT_BINARY

#define SMALL_FLOAT_COMPARISON(name, op) \
  template <class F> \
  __CPEMBED_INLINE bool name(SmallFloat<F> a, SmallFloat<F> b) { \
    return a op b; \
  }
SMALL_FLOAT_COMPARISON(__hgt, >)
SMALL_FLOAT_COMPARISON(__hlt, <)
SMALL_FLOAT_COMPARISON(__hge, >=)
SMALL_FLOAT_COMPARISON(__hle, <=)
SMALL_FLOAT_COMPARISON(__heq, ==)
SMALL_FLOAT_COMPARISON(__hne, !=)
#undef SMALL_FLOAT_COMPARISON

/* The product is exact in double, and so, but for one far smaller than the sum, is the sum. */
template <class F>
__CPEMBED_INLINE SmallFloat<F> __hfma(SmallFloat<F> a, SmallFloat<F> b, SmallFloat<F> c) {
  return static_cast<float>(double(a.expanded()) * double(b.expanded()) + double(c.expanded()));
}
template <class F>
__CPEMBED_INLINE SmallFloat2<SmallFloat<F>> __hfma2(SmallFloat2<SmallFloat<F>> a,
                                                   SmallFloat2<SmallFloat<F>> b,
                                                   SmallFloat2<SmallFloat<F>> c) {
  return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)};
}

#define SMALL_FLOAT_UNARY(name, expression) \
  template <class F> \
  __CPEMBED_INLINE SmallFloat<F> name(SmallFloat<F> value) { \
    float a = value.expanded(); \
    return expression; \
  }
SMALL_FLOAT_UNARY(__habs, fabsf(a))
SMALL_FLOAT_UNARY(__hneg, -a)
SMALL_FLOAT_UNARY(hexp, expf(a))
SMALL_FLOAT_UNARY(hexp2, exp2f(a))
SMALL_FLOAT_UNARY(hexp10, powf(10.0f, a))
SMALL_FLOAT_UNARY(hlog, logf(a))
SMALL_FLOAT_UNARY(hlog2, log2f(a))
SMALL_FLOAT_UNARY(hlog10, log10f(a))
SMALL_FLOAT_UNARY(hsqrt, sqrtf(a))
SMALL_FLOAT_UNARY(hrsqrt, 1.0f / sqrtf(a))
SMALL_FLOAT_UNARY(hrcp, 1.0f / a)
SMALL_FLOAT_UNARY(hsin, sinf(a))
SMALL_FLOAT_UNARY(hcos, cosf(a))
SMALL_FLOAT_UNARY(htanh, tanhf(a))
SMALL_FLOAT_UNARY(hfloor, floorf(a))
SMALL_FLOAT_UNARY(hceil, ceilf(a))
SMALL_FLOAT_UNARY(htrunc, truncf(a))
SMALL_FLOAT_UNARY(hrint, nearbyintf(a))
#undef SMALL_FLOAT_UNARY
template <class F>
__CPEMBED_INLINE bool __hisnan(SmallFloat<F> a) {
  return a.expanded() != a.expanded();
}
