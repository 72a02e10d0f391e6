/* The C++ interface of WMMA: fragments, and the runtime's functions of PTX for their types. */
#pragma once

namespace nvcuda {
namespace wmma {

struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major, mem_col_major };

/* Factors of half have 16 elements in every shape, some of them twice or four times. */
template <class Use, int M, int N, int K, class T>
constexpr int __elements() {
  if (std::is_same_v<Use, accumulator>) return M * N / 32;
  if (std::is_same_v<T, half>) return 16;
  return (std::is_same_v<Use, matrix_a> ? M : N) * K / 32;
}

template <class Use, int M, int N, int K, class T, class Layout = void>
struct fragment {
  using element_type = T;
  static constexpr int num_elements = __elements<Use, M, N, K, T>();
  T x[num_elements];
};

/* Its registers, and back. */
template <class F>
__CPEMBED_INLINE ExecutorFragment __registers(const F &f) {
  ExecutorFragment made = {};
  memcpy(made.word, f.x, sizeof f.x);
  return made;
}
template <class F>
__CPEMBED_INLINE void __take(F &f, const ExecutorFragment &registers) {
  memcpy(f.x, registers.word, sizeof f.x);
}

template <class Use, int M, int N, int K, class T, class Layout, class V>
__CPEMBED_INLINE void fill_fragment(fragment<Use, M, N, K, T, Layout> &f, const V &value) {
  for (int i = 0; i < f.num_elements; i++) f.x[i] = T(value);
}

#define LOAD(operand, by, Layout, shape, M, N, K, T, type) \
  __CPEMBED_INLINE void load_matrix_sync(fragment<matrix_##operand, M, N, K, T, Layout> &f, \
                                         const T *p, unsigned ld) { \
    static ExecutorFunction called{"wmma.load." #operand ".sync.aligned." #by "." #shape "." #type}; \
    __take(f, executor_load_fragment(called, executor_wmma_load_##operand##_##shape##_##type, \
                                     executor::kGeneric, uint64_t(p), int(ld), \
                                     std::is_same_v<Layout, col_major>)); \
  }
#define X(shape, M, N, K, type, E) \
  LOAD(a, row, row_major, shape, M, N, K, __element_##type, type) \
  LOAD(a, col, col_major, shape, M, N, K, __element_##type, type) \
  LOAD(b, row, row_major, shape, M, N, K, __element_##type, type) \
  LOAD(b, col, col_major, shape, M, N, K, __element_##type, type)
using __element_f16 = half;
using __element_bf16 = nv_bfloat16;
using __element_s8 = signed char;
using __element_u8 = unsigned char;
using __element_f32 = float;
using __element_s32 = int;
EXECUTOR_WMMA_FACTORS(X)
#undef X
#undef LOAD

#define X(shape, M, N, K, type, E) \
  __CPEMBED_INLINE void load_matrix_sync(fragment<accumulator, M, N, K, __element_##type> &f, \
                                         const __element_##type *p, unsigned ld, layout_t layout) { \
    static ExecutorFunction called{"wmma.load.c.sync.aligned." #shape "." #type}; \
    __take(f, executor_load_fragment(called, executor_wmma_load_c_##shape##_##type, \
                                     executor::kGeneric, uint64_t(p), int(ld), \
                                     layout == mem_col_major)); \
  } \
  __CPEMBED_INLINE void store_matrix_sync(__element_##type *p, \
                                          const fragment<accumulator, M, N, K, __element_##type> &f, \
                                          unsigned ld, layout_t layout) { \
    static ExecutorFunction called{"wmma.store.d.sync.aligned." #shape "." #type}; \
    executor_store_fragment(called, executor_wmma_store_d_##shape##_##type, executor::kGeneric, \
                            uint64_t(p), __registers(f), int(ld), layout == mem_col_major); \
  }
EXECUTOR_WMMA_SUMS(X)
#undef X

#define X(shape, M, N, K, sums, C, type, E) \
  template <class A, class B> \
  __CPEMBED_INLINE void mma_sync(fragment<accumulator, M, N, K, __element_##sums> &d, \
                                 const fragment<matrix_a, M, N, K, __element_##type, A> &a, \
                                 const fragment<matrix_b, M, N, K, __element_##type, B> &b, \
                                 const fragment<accumulator, M, N, K, __element_##sums> &c) { \
    static ExecutorFunction called{"wmma.mma.sync.aligned." #shape "." #sums "." #type}; \
    __take(d, executor_multiply_fragments(called, executor_wmma_mma_##shape##_##sums##_##type, \
                                          std::is_same_v<A, col_major>, std::is_same_v<B, col_major>, \
                                          __registers(a), __registers(b), __registers(c))); \
  }
EXECUTOR_WMMA_PRODUCTS(X)
#undef X

}  // namespace wmma
}  // namespace nvcuda
