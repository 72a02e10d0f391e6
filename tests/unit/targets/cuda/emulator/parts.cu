// Blocks write parts of a sum; the last one to come adds them in their order. Three ways of saying so.

__device__ __forceinline__ unsigned next(unsigned* counter) {
  unsigned before;
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
  return before;
}

extern "C" __global__ void by_one_fence(float* parts, unsigned* counter, float* out) {
  __shared__ unsigned before;
  parts[blockIdx.x * 64 + threadIdx.x] = blockIdx.x + threadIdx.x;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    before = atomicAdd(counter, 1u);
    __threadfence();
  }
  __syncthreads();
  if (before != gridDim.x - 1) return;
  float sum = 0.0f;
  for (int part = 0; part < gridDim.x; part++) sum += parts[part * 64 + threadIdx.x];
  out[threadIdx.x] = sum;
}

extern "C" __global__ void by_fences(float* parts, unsigned* counter, float* out) {
  __shared__ unsigned before;
  parts[blockIdx.x * 64 + threadIdx.x] = blockIdx.x + threadIdx.x;
  __threadfence();  // Each thread.
  __syncthreads();
  if (threadIdx.x == 0) before = atomicAdd(counter, 1u);
  __syncthreads();
  if (before != gridDim.x - 1) return;
  __threadfence();
  float sum = 0.0f;
  for (int part = 0; part < gridDim.x; part++) sum += parts[part * 64 + threadIdx.x];
  out[threadIdx.x] = sum;
}

extern "C" __global__ void by_order(float* parts, unsigned* counter, float* out) {
  __shared__ unsigned before;
  parts[blockIdx.x * 64 + threadIdx.x] = blockIdx.x + threadIdx.x;
  __syncthreads();
  if (threadIdx.x == 0) before = next(counter);
  __syncthreads();
  if (before != gridDim.x - 1) return;
  float sum = 0.0f;
  for (int part = 0; part < gridDim.x; part++) sum += parts[part * 64 + threadIdx.x];
  out[threadIdx.x] = sum;
}

extern "C" __global__ void within_a_block(float* parts, unsigned* counter, float* out) {
  parts[threadIdx.x] = threadIdx.x;
  __syncthreads();
  out[threadIdx.x] = parts[63 - threadIdx.x];
}
