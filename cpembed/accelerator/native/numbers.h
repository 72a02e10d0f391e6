/* Element types: how values are stored, and conversions to them with one rounding.

   A codec reads and writes element `index` behind an address. Conversions are those of
   cpembed/ir/arithmetic.py. */
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#define ALWAYS_INLINE inline __attribute__((always_inline))

template <class S>
struct Whole {
  static constexpr int kBits = 8 * sizeof(S);
  static ALWAYS_INLINE S get(const uint8_t *at, int64_t index) {
    S value;
    memcpy(&value, at + index * int64_t(sizeof(S)), sizeof(S));
    return value;
  }
  template <class T>
  static ALWAYS_INLINE void put(uint8_t *at, int64_t index, T value) {
    S stored = S(value);
    memcpy(at + index * int64_t(sizeof(S)), &stored, sizeof(S));
  }
};

/* Two values in a byte, the first one in the low bits. */
template <bool kSigned>
struct Nibble {
  static constexpr int kBits = 4;
  static ALWAYS_INLINE int32_t get(const uint8_t *at, int64_t index) {
    int32_t bits = at[index >> 1] >> (4 * (index & 1)) & 15;
    return kSigned ? (bits ^ 8) - 8 : bits;
  }
  template <class T>
  static ALWAYS_INLINE void put(uint8_t *at, int64_t index, T value) {
    int shift = 4 * int(index & 1);
    uint8_t &byte = at[index >> 1];
    byte = uint8_t((byte & ~(15 << shift)) | (int(int64_t(value) & 15) << shift));
  }
};

/* A value of fewer bits than its byte, which arrays in main memory hold. */
template <int kValueBits, bool kSigned>
struct Narrow {
  static constexpr int kBits = 8;
  static ALWAYS_INLINE int32_t get(const uint8_t *at, int64_t index) {
    return kSigned ? int8_t(at[index]) : at[index];
  }
  template <class T>
  static ALWAYS_INLINE void put(uint8_t *at, int64_t index, T value) {
    int32_t low = kSigned ? -(1 << (kValueBits - 1)) : 0;
    at[index] = uint8_t(((int32_t(int64_t(value)) - low) & ((1 << kValueBits) - 1)) + low);
  }
};

/* A binary floating-point format of at most 16 bits. `kLast` are the bits of the largest finite
   magnitude, `kOver` those of a magnitude beyond it, `kNan` those of NaN. */
template <class S, int kPrecision, int kExponentMinimum, unsigned kLast, unsigned kOver, unsigned kNan>
struct Small {
  static constexpr int kBits = 8 * sizeof(S);
  static constexpr unsigned kSign = 1u << (kBits - 1);

  static unsigned encode(double value) {
    unsigned sign = std::signbit(value) ? kSign : 0;
    if (value != value) return sign | kNan;
    double magnitude = std::fabs(value);
    if (magnitude == 0) return sign;
    if (magnitude > 1e300) return sign | kOver;
    int exponent = std::ilogb(magnitude);
    if (exponent < kExponentMinimum) exponent = kExponentMinimum;
    // Exact: a scaling by a power of two; the default rounding is to nearest even.
    double digits = std::nearbyint(std::ldexp(magnitude, kPrecision - 1 - exponent));
    double bits = double(exponent - kExponentMinimum) * double(1 << (kPrecision - 1)) + digits;
    return sign | (bits > double(kLast) ? kOver : unsigned(bits));
  }
  static float decode(unsigned bits) {
    unsigned magnitude = bits & (kSign - 1);
    double value;
    if (magnitude > kLast) {
      value = magnitude == kOver && kOver != kNan ? INFINITY : NAN;
    } else {
      int exponent = int(magnitude >> (kPrecision - 1));
      int digits = int(magnitude & ((1u << (kPrecision - 1)) - 1));
      if (exponent > 0) digits |= 1 << (kPrecision - 1), exponent--;
      value = std::ldexp(double(digits), exponent + kExponentMinimum - (kPrecision - 1));
    }
    return float(bits & kSign ? -value : value);
  }
  static ALWAYS_INLINE float get(const uint8_t *at, int64_t index) {
    S bits;
    memcpy(&bits, at + index * int64_t(sizeof(S)), sizeof(S));
    if constexpr (kPrecision == 8 && kBits == 16) {  // bfloat16: the upper half of a float32.
      uint32_t wide = uint32_t(bits) << 16;
      float value;
      memcpy(&value, &wide, 4);
      return value;
    } else {
      return decoded()[bits];
    }
  }
  template <class T>
  static ALWAYS_INLINE void put(uint8_t *at, int64_t index, T value) {
    S bits = S(encode(double(value)));
    memcpy(at + index * int64_t(sizeof(S)), &bits, sizeof(S));
  }

 private:
  static const float *decoded() {
    static const float *values = [] {
      float *table = new float[size_t{1} << kBits];
      for (unsigned bits = 0; bits < 1u << kBits; bits++) table[bits] = decode(bits);
      return table;
    }();
    return values;
  }
};

using float16 = Small<uint16_t, 11, -14, 0x7bff, 0x7c00, 0x7e00>;
using bfloat16 = Small<uint16_t, 8, -126, 0x7f7f, 0x7f80, 0x7fc0>;
using float8_e4m3fn = Small<uint8_t, 4, -6, 0x7e, 0x7f, 0x7f>;
using float8_e5m2 = Small<uint8_t, 3, -14, 0x7b, 0x7c, 0x7e>;
using int4 = Nibble<true>;
using uint4 = Nibble<false>;

/* A float as the type of 16 or 8 bits has it. */
template <class C>
static inline double rounded_to(double value) {
  return C::decode(C::encode(value));
}

/* cast(x, intN) of a float: the fraction is cut off; what is no int64 is the least one. */
static ALWAYS_INLINE int64_t cut_off(double value) {
  return value >= -0x1p63 && value < 0x1p63 ? int64_t(value) : INT64_MIN;
}

/* Wraps around in fewer bits than a byte has. */
static ALWAYS_INLINE int64_t wrapped(int64_t value, int bits, bool is_signed) {
  int64_t low = is_signed ? -(int64_t{1} << (bits - 1)) : 0;
  return ((value - low) & ((int64_t{1} << bits) - 1)) + low;
}

static ALWAYS_INLINE int64_t clamped(int64_t value, int64_t low, int64_t high) {
  return value < low ? low : value > high ? high : value;
}

/* intN(x) of a float: to nearest even, saturated; NaN is 0. */
static ALWAYS_INLINE int64_t saturated(double value, int64_t low, int64_t high) {
  if (value != value) return 0;
  double whole = std::nearbyint(value);
  if (whole <= double(low)) return low;
  if (whole >= double(high)) return high;
  return int64_t(whole);
}

static ALWAYS_INLINE double limited(double value, double largest) {
  return value > largest ? largest : value < -largest ? -largest : value;
}

/* A shift by 64 and more bits leaves the sign. */
static ALWAYS_INLINE int64_t shifted(int64_t value, int64_t by) {
  return uint64_t(by) < 64 ? value >> by : value < 0 ? -1 : 0;
}

template <class T>
static ALWAYS_INLINE T magnitude(T value) {
  return std::abs(value);
}
template <class T>
static ALWAYS_INLINE T larger(T a, T b) {
  return a > b || a != a ? a : b;
}
template <class T>
static ALWAYS_INLINE T smaller(T a, T b) {
  return a < b || a != a ? a : b;
}
