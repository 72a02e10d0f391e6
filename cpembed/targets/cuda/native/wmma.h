/* The C++ interface of WMMA: fragments, and the runtime's function for each of their types. */
#pragma once

namespace nvcuda {
namespace wmma {

struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major, mem_col_major };

template <class Use, int M, int N, int K>
struct __elements;
template <int M, int N, int K>
struct __elements<matrix_a, M, N, K> {
  static constexpr int count = M * K / 32;
};
template <int M, int N, int K>
struct __elements<matrix_b, M, N, K> {
  static constexpr int count = K * N / 32;
};
template <int M, int N, int K>
struct __elements<accumulator, M, N, K> {
  static constexpr int count = M * N / 32;
};

template <class Use, int M, int N, int K, class T, class Layout = void>
struct fragment {
  using element_type = T;
  static constexpr int num_elements = __elements<Use, M, N, K>::count;
  T x[num_elements];
};

template <class Use, int M, int N, int K, class T, class Layout, class V>
__CPEMBED_INLINE void fill_fragment(fragment<Use, M, N, K, T, Layout> &f, const V &value) {
  for (int i = 0; i < f.num_elements; i++) f.x[i] = T(value);
}

#define LOAD_FACTOR(shape, M, N, K, which, Layout, T, function) \
  __CPEMBED_INLINE void load_matrix_sync(fragment<which, M, N, K, T, Layout> &f, const T *p, \
                                         unsigned ld) { \
    function(f.x, p, int(ld)); \
  }
#define FACTOR(shape, M, N, K, T, type) \
  LOAD_FACTOR(shape, M, N, K, matrix_a, row_major, T, cpembed_wmma_load_a_##shape##_##type) \
  LOAD_FACTOR(shape, M, N, K, matrix_a, col_major, T, cpembed_wmma_load_a_##shape##_##type##_col) \
  LOAD_FACTOR(shape, M, N, K, matrix_b, col_major, T, cpembed_wmma_load_b_##shape##_##type) \
  LOAD_FACTOR(shape, M, N, K, matrix_b, row_major, T, cpembed_wmma_load_b_##shape##_##type##_row)
#define SUMS(shape, M, N, K, T, type) \
  __CPEMBED_INLINE void load_matrix_sync(fragment<accumulator, M, N, K, T> &f, const T *p, unsigned ld, \
                                         layout_t layout) { \
    (layout == mem_row_major ? cpembed_wmma_load_c_##shape##_##type \
                             : cpembed_wmma_load_c_##shape##_##type##_col)(f.x, p, int(ld)); \
  } \
  __CPEMBED_INLINE void store_matrix_sync(T *p, const fragment<accumulator, M, N, K, T> &f, unsigned ld, \
                                          layout_t layout) { \
    (layout == mem_row_major ? cpembed_wmma_store_##shape##_##type \
                             : cpembed_wmma_store_##shape##_##type##_col)(p, f.x, int(ld)); \
  }
#define PRODUCT(shape, M, N, K, C, AB, types) \
  template <class A, class B> \
  __CPEMBED_INLINE void mma_sync(fragment<accumulator, M, N, K, C> &d, \
                                 const fragment<matrix_a, M, N, K, AB, A> &a, \
                                 const fragment<matrix_b, M, N, K, AB, B> &b, \
                                 const fragment<accumulator, M, N, K, C> &c) { \
    fragment<accumulator, M, N, K, C> sum = c; \
    cpembed_wmma_mma_##shape##_##types(sum.x, a.x, b.x); \
    d = sum; \
  }
#define SHAPE(shape, M, N, K) \
  FACTOR(shape, M, N, K, half, f16) \
  FACTOR(shape, M, N, K, nv_bfloat16, bf16) \
  FACTOR(shape, M, N, K, signed char, s8) \
  FACTOR(shape, M, N, K, unsigned char, u8) \
  SUMS(shape, M, N, K, float, f32) \
  SUMS(shape, M, N, K, half, f16) \
  SUMS(shape, M, N, K, int, s32) \
  PRODUCT(shape, M, N, K, float, half, f32_f16_f16) \
  PRODUCT(shape, M, N, K, half, half, f16_f16_f16) \
  PRODUCT(shape, M, N, K, float, nv_bfloat16, f32_bf16_bf16) \
  PRODUCT(shape, M, N, K, int, signed char, s32_s8_s8) \
  PRODUCT(shape, M, N, K, int, unsigned char, s32_u8_u8)
SHAPE(m16n16k16, 16, 16, 16)
SHAPE(m32n8k16, 32, 8, 16)
SHAPE(m8n32k16, 8, 32, 16)
#undef SHAPE
#undef PRODUCT
#undef SUMS
#undef FACTOR
#undef LOAD_FACTOR

}  // namespace wmma
}  // namespace nvcuda
