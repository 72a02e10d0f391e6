/* The built-in vector types, aligned as CUDA aligns them. */
#pragma once

#define VECTORS(name, type, size) \
  struct __attribute__((aligned(size))) name##1 { \
    type x; \
  }; \
  struct __attribute__((aligned(2 * size))) name##2 { \
    type x, y; \
  }; \
  struct name##3##_ { \
    type x, y, z; \
  }; \
  struct __attribute__((aligned(4 * size > 16 ? 16 : 4 * size))) name##4 { \
    type x, y, z, w; \
  }; \
  __CPEMBED_INLINE name##1 make_##name##1(type x) { return {x}; } \
  __CPEMBED_INLINE name##2 make_##name##2(type x, type y) { return {x, y}; } \
  __CPEMBED_INLINE name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }

VECTORS(char, signed char, 1)
VECTORS(uchar, unsigned char, 1)
VECTORS(short, short, 2)
VECTORS(ushort, unsigned short, 2)
VECTORS(int, int, 4)
VECTORS(uint, unsigned int, 4)
VECTORS(float, float, 4)
VECTORS(longlong, long long, 8)
VECTORS(ulonglong, unsigned long long, 8)
VECTORS(double, double, 8)
#undef VECTORS

#define VECTOR3(name) using name##3 = name##3##_;
VECTOR3(char)
VECTOR3(uchar)
VECTOR3(short)
VECTOR3(ushort)
VECTOR3(int)
VECTOR3(float)
VECTOR3(longlong)
VECTOR3(ulonglong)
VECTOR3(double)
#undef VECTOR3
