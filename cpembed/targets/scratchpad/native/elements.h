/* Elements that C has no type for, and their values: widening is exact, narrowing rounds to nearest
   even; too large becomes infinite. A part of texts with such operands. */
typedef struct { uint16_t bits; } float16, bfloat16;
typedef struct { uint8_t bits; } float8_e4m3fn, float8_e5m2;

static inline float float_of_bits(uint32_t bits) {
  union { uint32_t bits; float value; } both = {bits};
  return both.value;
}
static inline uint32_t bits_of_float(float value) {
  union { float value; uint32_t bits; } both = {value};
  return both.bits;
}

static inline float value_of_bfloat16(bfloat16 x) { return float_of_bits((uint32_t)x.bits << 16); }
static inline bfloat16 bfloat16_of(float value) {
  uint32_t bits = bits_of_float(value);
  bfloat16 nan = {(uint16_t)(bits >> 16 | 0x40)};
  bfloat16 nearest = {(uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
  return value != value ? nan : nearest;
}

static inline float value_of_float16(float16 x) {
  uint32_t sign = (uint32_t)(x.bits >> 15) << 31, exponent = x.bits >> 10 & 31, m = x.bits & 1023;
  if (exponent == 0) return sign ? -(m * 0x1p-24f) : m * 0x1p-24f;
  return float_of_bits(sign | (exponent == 31 ? 255 : exponent + 112) << 23 | m << 13);
}
static inline float16 float16_of(float value) {
  uint32_t bits = bits_of_float(value), sign = bits >> 31 << 15, rest = bits & 0x7fffffff;
  float size = float_of_bits(rest);
  if (value != value) return (float16){(uint16_t)(sign | 0x7e00)};
  if (size >= 65520) return (float16){(uint16_t)(sign | 0x7c00)};
  /* Below the least normal number, adding 2^23 rounds to integers. */
  if (size < 0x1p-14f) return (float16){(uint16_t)(sign | (uint32_t)(size * 0x1p24f + 0x1p23f - 0x1p23f))};
  return (float16){(uint16_t)(sign | ((rest + 0xfff + (rest >> 13 & 1)) >> 13) - (112 << 10))};
}

static inline float value_of_float8_e5m2(float8_e5m2 x) {
  float16 wide = {(uint16_t)(x.bits << 8)};
  return value_of_float16(wide);
}
static inline float value_of_float8_e4m3fn(float8_e4m3fn x) {
  uint32_t sign = (uint32_t)(x.bits >> 7) << 31, exponent = x.bits >> 3 & 15, m = x.bits & 7;
  if (exponent == 0) return sign ? -(m * 0x1p-9f) : m * 0x1p-9f;
  if ((x.bits & 127) == 127) return float_of_bits(0x7fc00000);
  return float_of_bits(sign | (exponent + 120) << 23 | m << 20);
}
