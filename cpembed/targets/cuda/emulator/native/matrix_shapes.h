/* Shapes and element types of mma.sync and of WMMA: PTX's names, and the classes of elements.h. */
#pragma once

/* X(shape, K, sums, C, a, A, b, B); rows and columns of the product are 16 and 8. */
#define EXECUTOR_PRODUCTS(X) \
  X(m16n8k8, 8, f32, F32, f16, F16, f16, F16) \
  X(m16n8k8, 8, f16, F16, f16, F16, f16, F16) \
  X(m16n8k8, 8, f32, F32, bf16, Bf16, bf16, Bf16) \
  X(m16n8k8, 8, f32, F32, tf32, Tf32, tf32, Tf32) \
  X(m16n8k4, 4, f32, F32, tf32, Tf32, tf32, Tf32) \
  X(m16n8k16, 16, f32, F32, f16, F16, f16, F16) \
  X(m16n8k16, 16, f16, F16, f16, F16, f16, F16) \
  X(m16n8k16, 16, f32, F32, bf16, Bf16, bf16, Bf16) \
  EXECUTOR_BYTES(X, m16n8k16, 16) \
  EXECUTOR_BYTES(X, m16n8k32, 32) \
  X(m16n8k32, 32, f32, F32, e4m3, E4m3, e4m3, E4m3) \
  X(m16n8k32, 32, f32, F32, e4m3, E4m3, e5m2, E5m2) \
  X(m16n8k32, 32, f32, F32, e5m2, E5m2, e4m3, E4m3) \
  X(m16n8k32, 32, f32, F32, e5m2, E5m2, e5m2, E5m2) \
  X(m16n8k32, 32, f16, F16, e4m3, E4m3, e4m3, E4m3) \
  X(m16n8k32, 32, f16, F16, e4m3, E4m3, e5m2, E5m2) \
  X(m16n8k32, 32, f16, F16, e5m2, E5m2, e4m3, E4m3) \
  X(m16n8k32, 32, f16, F16, e5m2, E5m2, e5m2, E5m2)
#define EXECUTOR_BYTES(X, shape, K) \
  X(shape, K, s32, S32, s8, S8, s8, S8) \
  X(shape, K, s32, S32, s8, S8, u8, U8) \
  X(shape, K, s32, S32, u8, U8, s8, S8) \
  X(shape, K, s32, S32, u8, U8, u8, U8)

#define EXECUTOR_WMMA_SHAPES(Y, X) Y(X, m16n16k16, 16, 16, 16) Y(X, m32n8k16, 32, 8, 16) Y(X, m8n32k16, 8, 32, 16)

/* X(shape, M, N, K, type, E). */
#define EXECUTOR_WMMA_FACTORS(X) EXECUTOR_WMMA_SHAPES(EXECUTOR_WMMA_FACTORS_OF, X)
#define EXECUTOR_WMMA_FACTORS_OF(X, shape, M, N, K) \
  X(shape, M, N, K, f16, F16) X(shape, M, N, K, bf16, Bf16) X(shape, M, N, K, s8, S8) \
  X(shape, M, N, K, u8, U8)
#define EXECUTOR_WMMA_SUMS(X) EXECUTOR_WMMA_SHAPES(EXECUTOR_WMMA_SUMS_OF, X)
#define EXECUTOR_WMMA_SUMS_OF(X, shape, M, N, K) \
  X(shape, M, N, K, f32, F32) X(shape, M, N, K, f16, F16) X(shape, M, N, K, s32, S32)

/* X(shape, M, N, K, sums, C, type, E): both factors have one type. */
#define EXECUTOR_WMMA_PRODUCTS(X) EXECUTOR_WMMA_SHAPES(EXECUTOR_WMMA_PRODUCTS_OF, X)
#define EXECUTOR_WMMA_PRODUCTS_OF(X, shape, M, N, K) \
  X(shape, M, N, K, f32, F32, f16, F16) X(shape, M, N, K, f16, F16, f16, F16) \
  X(shape, M, N, K, f32, F32, bf16, Bf16) X(shape, M, N, K, s32, S32, s8, S8) \
  X(shape, M, N, K, s32, S32, u8, U8)
