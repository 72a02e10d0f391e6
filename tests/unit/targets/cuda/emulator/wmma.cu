// Products of one tile by one warp: through the device functions of this package's kernels, and
// through the C++ interface with all layouts.
#include <mma.h>
#include <cuda_fp16.h>
#include <cuda_bf16.h>

template <class T>
__forceinline__ __device__ void copy(T* to, const T* from, int count) {
  for (int i = threadIdx.x; i < count; i += 32) to[i] = from[i];
  __syncwarp();
}

// B by columns of 16; `pitch`: elements between rows of A, and of columns of B, in shared memory.
#define PRODUCT(shape, M, N, type, T, sums, S, types)                                      \
  __shared__ __align__(128) T a_tile[M * 32], b_tile[N * 32];                              \
  __shared__ __align__(128) S c_tile[M * N];                                               \
  for (int i = threadIdx.x; i < M * 16; i += 32) a_tile[i / 16 * pitch + i % 16] = A[i];   \
  for (int i = threadIdx.x; i < N * 16; i += 32) b_tile[i / 16 * pitch + i % 16] = B[i];   \
  __syncwarp();                                                                            \
  T a[16], b[16];                                                                          \
  S c[8];                                                                                  \
  for (int i = 0; i < 8; i++) c[i] = 0;                                                    \
  cpembed_wmma_load_a_##shape##_##type(a, a_tile, pitch);                                  \
  cpembed_wmma_load_b_##shape##_##type(b, b_tile, pitch);                                  \
  cpembed_wmma_mma_##shape##_##types(c, a, b);                                             \
  cpembed_wmma_store_##shape##_##sums(c_tile, c, N);                                       \
  __syncwarp();                                                                            \
  copy(C, c_tile, M * N)

using namespace nvcuda::wmma;

// D = A * B + C, each by rows or by columns, from global memory.
template <class LayoutA, class LayoutB>
__forceinline__ __device__ void product(half* A, half* B, float* C, float* D, layout_t layout) {
  fragment<matrix_a, 16, 16, 16, half, LayoutA> a;
  fragment<matrix_b, 16, 16, 16, half, LayoutB> b;
  fragment<accumulator, 16, 16, 16, float> c, d;
  load_matrix_sync(a, A, 16);
  load_matrix_sync(b, B, 16);
  load_matrix_sync(c, C, 16, layout);
  mma_sync(d, a, b, c);
  for (int i = 0; i < d.num_elements; i++) d.x[i] *= 2.0f;
  store_matrix_sync(D, d, 16, layout);
}
extern "C" __global__ void interface_rr(half* A, half* B, float* C, float* D) {
  product<row_major, row_major>(A, B, C, D, mem_row_major);
}
extern "C" __global__ void interface_rc(half* A, half* B, float* C, float* D) {
  product<row_major, col_major>(A, B, C, D, mem_row_major);
}
extern "C" __global__ void interface_cr(half* A, half* B, float* C, float* D) {
  product<col_major, row_major>(A, B, C, D, mem_col_major);
}
extern "C" __global__ void interface_cc(half* A, half* B, float* C, float* D) {
  product<col_major, col_major>(A, B, C, D, mem_col_major);
}

// Each lane takes the element that the row-major order of the lanes would give it.
extern "C" __global__ void assumes_a_layout(half* A, float* D) {
  fragment<matrix_a, 16, 16, 16, half, row_major> a;
  load_matrix_sync(a, A, 16);
  for (int i = 0; i < 8; i++) D[threadIdx.x * 8 + i] = a.x[i];
}

extern "C" __global__ void misaligned(half* A, half* D, int offset, int ld) {
  fragment<matrix_a, 16, 16, 16, half, row_major> a;
  load_matrix_sync(a, A + offset, ld);
  D[threadIdx.x] = a.x[0];
}

// What the warp stored is read without a barrier of the warp.
extern "C" __global__ void no_barrier(float* D) {
  __shared__ __align__(128) float tile[256];
  fragment<accumulator, 16, 16, 16, float> c;
  fill_fragment(c, 1.0f);
  store_matrix_sync(tile, c, 16, mem_row_major);
  D[threadIdx.x] = tile[threadIdx.x];
}
