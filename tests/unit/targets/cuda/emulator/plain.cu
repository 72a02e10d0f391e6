// Kernels without device functions of this package: plain accesses, vectors, shuffles.
#include <cuda_fp16.h>

template <typename T>
struct __align__(8) vector4 {
  T x, y, z, w;
  __host__ __device__ vector4() : x(T(0)), y(T(0)), z(T(0)), w(T(0)) {}
};
using half4 = vector4<half>;

extern "C" __global__ void __launch_bounds__(64) sums(const float* __restrict__ in, float* __restrict__ out,
                                                     int columns) {
  __shared__ alignas(64) float parts[2];
  alignas(64) float sum[1];
  sum[0] = 0.0f;
  for (int i = threadIdx.x; i < columns; i += 64) sum[0] += in[blockIdx.x * columns + i];
  for (int offset = 16; offset > 0; offset /= 2)
    sum[0] += __shfl_down_sync(__activemask(), sum[0], offset, 32);
  if (threadIdx.x % 32 == 0) ((volatile float*)parts)[threadIdx.x / 32] = sum[0];
  __syncthreads();
  if (threadIdx.x == 0) out[blockIdx.x] = parts[0] + parts[1];
}

// Elements `stride` apart: 8 bytes a lane, doubled.
extern "C" __global__ void doubled(half* __restrict__ in, half* __restrict__ out, int stride) {
  half4 v = *(half4*)(in + threadIdx.x * stride);
  half4 w;
  w.x = v.x + v.x;
  w.y = v.y + v.y;
  w.z = v.z + v.z;
  w.w = v.w + v.w;
  *(half4*)(out + threadIdx.x * 4) = w;
}

extern "C" __global__ void through_shared(const float4* in, float4* out, int pitch) {
  extern __shared__ float4 tile[];
  tile[threadIdx.x * pitch] = in[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = tile[threadIdx.x * pitch];
}

extern "C" __global__ void quantised(const float* in, signed char* out, int* dots) {
  int i = threadIdx.x;
  char4 four = make_char4(1, -2, 3, i % 4);
  out[i] = (signed char)max(min(nearbyintf(in[i]), 127.0f), -128.0f);
  dots[i] = __dp4a(*(int*)&four, *(int*)&four, i);
}

extern "C" __global__ void shuffles(int* out) {
  int lane = threadIdx.x;
  out[lane] = __shfl_sync(0xffffffffu, lane, 5);
  out[32 + lane] = __shfl_up_sync(0xffffffffu, lane, 3, 8);
  out[64 + lane] = __shfl_down_sync(0xffffffffu, lane, 3, 8);
  out[96 + lane] = __shfl_xor_sync(0xffffffffu, lane, 6, 8);
  out[128 + lane] = __ballot_sync(0xffffffffu, lane % 3 == 0);
  out[160 + lane] = __any_sync(0xffffffffu, lane == 7) + 2 * __all_sync(0xffffffffu, lane < 31);
  if (lane < 8) out[192 + lane] = __shfl_xor_sync(0xffu, lane, 1) + __activemask();
}
