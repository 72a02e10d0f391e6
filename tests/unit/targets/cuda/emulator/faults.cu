// One kernel for each thing that CUDA does not define, with a parameter that makes it right.

extern "C" __global__ void store_beyond(float* out, int shift) { out[threadIdx.x + shift] = 1.0f; }

extern "C" __global__ void load_beyond(const float* in, float* out, int shift) {
  float held = 0.0f;
  cpembed_load_4(&held, in + (int)threadIdx.x + shift, 1);
  out[threadIdx.x] = held;
}

extern "C" __global__ void masked(const float* in, float* out, int bound) {
  float held = 7.0f;
  cpembed_load_4(&held, in + threadIdx.x, threadIdx.x < bound);
  cpembed_store_4(out + threadIdx.x, &held, threadIdx.x < 31);
}

extern "C" __global__ void misaligned(const float* in, float* out, int shift) {
  float held[4];
  cpembed_load_16(held, in + threadIdx.x * 4 + shift, 1);
  out[threadIdx.x] = held[0];
}

extern "C" __global__ void shared_beyond(float* out, int shift) {
  extern __shared__ __align__(64) float tile[];
  tile[threadIdx.x + shift] = 1.0f;
  out[threadIdx.x] = tile[threadIdx.x + shift];
}

extern "C" __global__ void uninitialised(float* out, int written) {
  __shared__ float tile[64];
  if (threadIdx.x < written) tile[threadIdx.x] = 1.0f;
  __syncthreads();
  out[threadIdx.x] = tile[threadIdx.x];
}

extern "C" __global__ void some_at_a_barrier(float* out, int count) {
  if (threadIdx.x < count) __syncthreads();
  out[threadIdx.x] = 1.0f;
}

extern "C" __global__ void reversed(float* out, int barrier) {
  __shared__ float tile[64];
  tile[threadIdx.x] = threadIdx.x;
  if (barrier == 1) __syncthreads();
  if (barrier == 2) __syncwarp();
  out[threadIdx.x] = tile[threadIdx.x ^ 31];
}

extern "C" __global__ void overwritten(float* out, int barrier) {
  __shared__ float tile[64];
  tile[threadIdx.x] = threadIdx.x;
  __syncthreads();
  float held = tile[63 - threadIdx.x];
  if (barrier) __syncthreads();
  tile[threadIdx.x] = held;
  out[threadIdx.x] = held;
}

extern "C" __global__ void one_word(float* out, int apart) {
  __shared__ char tile[64];
  tile[apart ? threadIdx.x : 0] = 1;
  __syncthreads();
  out[threadIdx.x] = tile[0];
}

// Lanes may load and store apart from each other; a barrier of the warp orders them.
extern "C" __global__ void different_instructions(float* out, int rest) {
  float held = 1.0f;
  if (threadIdx.x % 32 < 16) cpembed_store_4(out + threadIdx.x, &held, 1);
  else if (rest)
    cpembed_store_4(out + threadIdx.x, &held, 1);
}

extern "C" __global__ void some_in_a_collective(float* out, int count) {
  int value = threadIdx.x;
  if (threadIdx.x < count) value = __shfl_xor_sync(0xffffffffu, value, 1);
  __syncwarp();
  out[threadIdx.x] = value;
}

extern "C" __global__ void copy_in_flight(const float* in, float* out, int waits) {
  __shared__ float tile[64];
  cpembed_cp_async_4(tile + threadIdx.x, in + threadIdx.x, 1);
  cpembed_cp_async_commit();
  if (waits) cpembed_cp_async_wait_0();
  if (waits == 2) __syncthreads();
  out[threadIdx.x] = tile[waits == 1 ? threadIdx.x ^ 32 : threadIdx.x];
}

extern "C" __global__ void atomics(int* out, int atomic) {
  __shared__ int sum;
  if (threadIdx.x == 0) sum = 0;
  __syncthreads();
  if (atomic)
    atomicAdd(&sum, 1);
  else
    sum += 1;
  __syncthreads();
  out[threadIdx.x] = sum;
}

extern "C" __global__ void numbers(float* out, int i, unsigned char u, float f, double d, half h) {
  out[0] = i, out[1] = u, out[2] = f, out[3] = d, out[4] = __half2float(h);
}

extern "C" __global__ void ticket(int* counter, int* out) {
  out[blockIdx.x * blockDim.x + threadIdx.x] = atomicAdd(counter, 1);
}

extern "C" __global__ void far_away(const float* in, float* out, long long shift) {
  float held = 0.0f;
  cpembed_load_4(&held, in + threadIdx.x + shift, 1);
  out[threadIdx.x] = held;
}

extern "C" __global__ void computes_forever(float* out, int stays) {
  unsigned state = threadIdx.x + 1;
  do state = state * 747796405u + 2891336453u; while (state % 97 || (stays && threadIdx.x == 40));
  out[threadIdx.x] = state;
}

extern "C" __global__ void meets_forever(float* out, int stays) {
  for (int n = 0; n < 1 || stays; n++) __syncthreads();
  out[threadIdx.x] = 1.0f;
}

extern "C" __global__ void beyond_a_shared_array(float* out, int last) {
  __shared__ float first[64];
  __shared__ float second[64];
  first[threadIdx.x] = second[threadIdx.x] = 1.0f;
  __syncthreads();
  out[threadIdx.x] = first[threadIdx.x ? threadIdx.x : last] + second[threadIdx.x];
}

extern "C" __global__ void beyond_registers(float* out, int last) {
  float held[4] = {1.0f, 2.0f, 3.0f, 4.0f};
  for (int n = 0; n <= last; n++) held[n] += threadIdx.x;
  out[threadIdx.x] = held[threadIdx.x % 4];
}

extern "C" __global__ void polls_forever(float* out, int stays) {
  out[threadIdx.x] = 1.0f;
  while (stays && *(volatile float*)(out + threadIdx.x) == 1.0f);
}

struct Pair {
  float first;
  float second;
};

extern "C" __global__ void unset_floats(float* out, int sets) {
  static_assert(sizeof(Pair) == 8);
  float one;
  alignas(64) float several[4];
  for (int n = 0; n < 4 * sets; n++) several[n] = one = 5.0f;
  out[threadIdx.x] = threadIdx.x % 2 ? one * 0 : several[threadIdx.x % 4] * 0;
}

extern "C" __global__ void divides(float* out, int by) {
  out[threadIdx.x] = 64 / by + 64 % by;
}

extern "C" __global__ void divides_by_nothing(float* out, int anyway) {
  if (anyway) out[0] = 64 / 0;
  out[threadIdx.x] = 1.0f;
}
