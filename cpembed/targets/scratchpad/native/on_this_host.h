/* What scratchpad.h needs where the executor runs the text. */
#pragma once

#include <stdint.h>
#include <string.h>

/* The accesses of an instruction's own function are those that it declares; its caller, which is
   instrumented, must not make them in its place. */
#ifdef __clang__
#define INSTRUCTION __attribute__((noinline, no_sanitize("thread")))
#else
#define INSTRUCTION __attribute__((noipa, no_sanitize("thread")))
#endif

/* A type as a number: its kind, then its size. */
#define ELEMENT_CODE(type) \
  (((type)0.5 != 0 ? 'f' : (type)-1 < (type)0 ? 'i' : 'u') * 256 + (int)sizeof(type))

#ifdef __cplusplus
extern "C" {
#endif
void scratchpad_gemm(int m, int n, int k, const void *a, long lda, const void *b, long ldb, void *c,
                     long ldc, int variant, int type_a, int type_b, int type_c);

/* The compiler's instrumentation leaves these functions out. */
void *scratchpad_memcpy(void *to, const void *from, size_t bytes);
void *scratchpad_memset(void *to, int value, size_t bytes);
#ifdef __cplusplus
}
#endif
#define memcpy scratchpad_memcpy
#define memmove scratchpad_memcpy
#define memset scratchpad_memset
