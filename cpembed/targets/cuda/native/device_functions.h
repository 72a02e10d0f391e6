/* The device functions of this package's kernels (device.py has what a GPU executes). */
#pragma once

extern "C" {
#define SIZED(n) \
  void cpembed_load_##n(void *registers, const void *global, int valid); \
  void cpembed_store_##n(void *global, const void *registers, int valid); \
  void cpembed_shared_load_##n(void *registers, const void *shared); \
  void cpembed_shared_store_##n(void *shared, const void *registers);
SIZED(16) SIZED(8) SIZED(4) SIZED(2) SIZED(1)
#undef SIZED

void cpembed_cp_async_16(void *shared, const void *global, int valid);
void cpembed_cp_async_8(void *shared, const void *global, int valid);
void cpembed_cp_async_4(void *shared, const void *global, int valid);
void cpembed_cp_async_commit();
void cpembed_cp_async_wait_0();
void cpembed_cp_async_wait_1();
void cpembed_cp_async_wait_2();
void cpembed_cp_async_wait_3();
void cpembed_cp_async_wait_4();
void cpembed_cp_async_wait_5();
void cpembed_cp_async_wait_6();
void cpembed_cp_async_wait_7();

void cpembed_ldmatrix_x1(void *registers, const void *shared);
void cpembed_ldmatrix_x2(void *registers, const void *shared);
void cpembed_ldmatrix_x4(void *registers, const void *shared);
void cpembed_ldmatrix_x1_trans(void *registers, const void *shared);
void cpembed_ldmatrix_x2_trans(void *registers, const void *shared);
void cpembed_ldmatrix_x4_trans(void *registers, const void *shared);

void cpembed_mma_m16n8k16_f32_f16_f16(void *c, const void *a, const void *b);
void cpembed_mma_m16n8k16_f16_f16_f16(void *c, const void *a, const void *b);
void cpembed_mma_m16n8k16_f32_bf16_bf16(void *c, const void *a, const void *b);
void cpembed_mma_m16n8k32_s32_s8_s8(void *c, const void *a, const void *b);
void cpembed_mma_m16n8k32_s32_u8_s8(void *c, const void *a, const void *b);
void cpembed_mma_m16n8k32_s32_u8_u8(void *c, const void *a, const void *b);
void cpembed_mma_m16n8k32_s32_s8_u8(void *c, const void *a, const void *b);

#define WMMA_FACTORS(shape, type) \
  void cpembed_wmma_load_a_##shape##_##type(void *fragment, const void *memory, int ld); \
  void cpembed_wmma_load_b_##shape##_##type(void *fragment, const void *memory, int ld); \
  void cpembed_wmma_load_a_##shape##_##type##_col(void *fragment, const void *memory, int ld); \
  void cpembed_wmma_load_b_##shape##_##type##_row(void *fragment, const void *memory, int ld);
#define WMMA_SUMS(shape, type) \
  void cpembed_wmma_load_c_##shape##_##type(void *fragment, const void *memory, int ld); \
  void cpembed_wmma_load_c_##shape##_##type##_col(void *fragment, const void *memory, int ld); \
  void cpembed_wmma_store_##shape##_##type(void *memory, const void *fragment, int ld); \
  void cpembed_wmma_store_##shape##_##type##_col(void *memory, const void *fragment, int ld);
#define WMMA_SHAPE(shape) \
  WMMA_FACTORS(shape, f16) \
  WMMA_FACTORS(shape, bf16) \
  WMMA_FACTORS(shape, s8) \
  WMMA_FACTORS(shape, u8) \
  WMMA_SUMS(shape, f32) \
  WMMA_SUMS(shape, f16) \
  WMMA_SUMS(shape, s32) \
  void cpembed_wmma_mma_##shape##_f32_f16_f16(void *c, const void *a, const void *b); \
  void cpembed_wmma_mma_##shape##_f16_f16_f16(void *c, const void *a, const void *b); \
  void cpembed_wmma_mma_##shape##_f32_bf16_bf16(void *c, const void *a, const void *b); \
  void cpembed_wmma_mma_##shape##_s32_s8_s8(void *c, const void *a, const void *b); \
  void cpembed_wmma_mma_##shape##_s32_u8_u8(void *c, const void *a, const void *b);
WMMA_SHAPE(m16n16k16)
WMMA_SHAPE(m32n8k16)
WMMA_SHAPE(m8n32k16)
#undef WMMA_SHAPE
#undef WMMA_SUMS
#undef WMMA_FACTORS
}
