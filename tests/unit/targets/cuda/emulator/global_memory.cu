// Reads of global memory that nobody may have written.
#include <cuda_fp16.h>
#include <mma.h>

extern "C" __global__ void fill(float* out, int first, int count) {
  if (threadIdx.x >= first && threadIdx.x < first + count) out[threadIdx.x] = threadIdx.x;
}

extern "C" __global__ void plain_read(const float* in, float* out) { out[threadIdx.x] = in[threadIdx.x]; }

extern "C" __global__ void vector_read(const float4* in, float4* out) { out[threadIdx.x] = in[threadIdx.x]; }

extern "C" __global__ void instruction_read(const float* in, float* out) {
  float held;
  cpembed_load_4(&held, in + threadIdx.x, 1);
  cpembed_store_4(out + threadIdx.x, &held, 1);
}

extern "C" __global__ void copy(const float* in, float* out) {
  __shared__ __align__(16) float tile[32];
  cpembed_cp_async_4(tile + threadIdx.x, in + threadIdx.x, 1);
  cpembed_cp_async_commit();
  cpembed_cp_async_wait_0();
  out[threadIdx.x] = tile[threadIdx.x];
}

extern "C" __global__ void atomic(float* sums) { atomicAdd(sums + threadIdx.x, 1.0f); }

extern "C" __global__ void fragment_read(const half* in, float* out) {
  using namespace nvcuda::wmma;
  fragment<matrix_a, 16, 16, 16, half, row_major> a;
  load_matrix_sync(a, in, 16);
  out[threadIdx.x] = __half2float(a.x[0]);
}
