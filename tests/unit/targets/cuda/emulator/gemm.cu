// C = A * B^T: a tile of 64 x 64 a block, rows of 64 bytes a stage, two stages of cp.async.
// `mutation` leaves one thing out or does it wrongly.

enum Mutation {
  NONE,
  NO_BARRIER_BEFORE_READING,
  NO_BARRIER_BEFORE_WRITING,
  WAITS_FOR_TOO_FEW,
  NO_COMMIT,
  READS_THE_OTHER_STAGE,
  WRITES_THE_SAME_STAGE,
  WRONG_ROWS,
  WRONG_CHUNKS,
  FIFTH_CHUNK,
  ROW_BEYOND,
};

struct F16 {
  using Element = half;
  using Sum = float;
  static __device__ void mma(Sum* c, const unsigned* a, const unsigned* b) {
    cpembed_mma_m16n8k16_f32_f16_f16(c, a, b);
  }
};
struct S8 {
  using Element = signed char;
  using Sum = int;
  static __device__ void mma(Sum* c, const unsigned* a, const unsigned* b) {
    cpembed_mma_m16n8k32_s32_s8_s8(c, a, b);
  }
};

__forceinline__ __device__ int place(int row, int chunk, int swizzled) {
  return row * 64 + (swizzled ? chunk ^ row / 2 % 4 : chunk) * 16;
}

template <class T>
__forceinline__ __device__ void load(unsigned char* stage, const T* from, int k, int ld, int swizzled) {
  for (int turn = 0; turn < 2; turn++) {
    int row = (threadIdx.x + turn * 128) / 4, chunk = threadIdx.x % 4;
    cpembed_cp_async_16(stage + place(row, chunk, swizzled),
                        from + row * ld + k + chunk * (16 / sizeof(T)), 1);
  }
}

template <class P>
__forceinline__ __device__ void gemm(const typename P::Element* A, const typename P::Element* B,
                                     typename P::Sum* C, int N, int K, int swizzled, int mutation) {
  extern __shared__ __align__(64) unsigned char buffer[];
  constexpr int stage_bytes = 64 * 64, step_elements = 64 / sizeof(typename P::Element);
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, steps = K / step_elements;
  const typename P::Element* a_tile = A + (blockIdx.y * 64 + (mutation == ROW_BEYOND)) * K;
  const typename P::Element* b_tile = B + blockIdx.x * 64 * K;
  typename P::Sum c[2][4][4];
  unsigned a[2][4], b[2][4];
  for (int i = 0; i < 2; i++)
    for (int j = 0; j < 4; j++)
      for (int e = 0; e < 4; e++) c[i][j][e] = 0;

  load(buffer, a_tile, 0, K, swizzled);
  load(buffer + 2 * stage_bytes, b_tile, 0, K, swizzled);
  cpembed_cp_async_commit();
  for (int step = 0; step < steps; step++) {
    if (step + 1 < steps) {
      int next = (step + (mutation != WRITES_THE_SAME_STAGE)) % 2;
      load(buffer + next * stage_bytes, a_tile, (step + 1) * step_elements, K, swizzled);
      load(buffer + (2 + next) * stage_bytes, b_tile, (step + 1) * step_elements, K, swizzled);
    }
    if (mutation != NO_COMMIT) cpembed_cp_async_commit();
    if (mutation == WAITS_FOR_TOO_FEW)
      cpembed_cp_async_wait_2();
    else
      cpembed_cp_async_wait_1();
    if (mutation != NO_BARRIER_BEFORE_READING) __syncthreads();
    int stage = (step + (mutation == READS_THE_OTHER_STAGE)) % 2;
    unsigned char* a_stage = buffer + stage * stage_bytes;
    unsigned char* b_stage = buffer + (2 + stage) * stage_bytes;
    for (int k = 0; k < 2; k++) {
      for (int i = 0; i < 2; i++) {
        int row = warp / 2 * 32 + i * 16 + (mutation == WRONG_ROWS ? lane / 2 : lane % 16);
        int chunk = k * 2 + (mutation == WRONG_CHUNKS ? lane % 2 : lane / 16);
        if (mutation == FIFTH_CHUNK) chunk++;
        cpembed_ldmatrix_x4(a[i], a_stage + place(row, chunk, swizzled));
        int column = warp % 2 * 32 + i * 16 + lane % 8 + lane / 16 * 8;
        cpembed_ldmatrix_x4(b[i], b_stage + place(column, k * 2 + lane / 8 % 2, swizzled));
      }
      for (int i = 0; i < 2; i++)
        for (int j = 0; j < 4; j++) P::mma(c[i][j], a[i], b[j / 2] + j % 2 * 2);
    }
    if (mutation != NO_BARRIER_BEFORE_WRITING) __syncthreads();
  }
  for (int i = 0; i < 2; i++)
    for (int j = 0; j < 4; j++)
      for (int below = 0; below < 2; below++) {
        int row = blockIdx.y * 64 + warp / 2 * 32 + i * 16 + below * 8 + lane / 4;
        int column = blockIdx.x * 64 + warp % 2 * 32 + j * 8 + lane % 4 * 2;
        cpembed_store_8(C + row * N + column, &c[i][j][below * 2], 1);
      }
}

extern "C" __global__ void __launch_bounds__(128) gemm_f16(half* __restrict__ A, half* __restrict__ B,
                                                           float* __restrict__ C, int N, int K,
                                                           int swizzled, int mutation) {
  gemm<F16>(A, B, C, N, K, swizzled, mutation);
}

extern "C" __global__ void __launch_bounds__(128)
    gemm_s8(signed char* __restrict__ A, signed char* __restrict__ B, int* __restrict__ C, int N,
            int K, int swizzled, int mutation) {
  gemm<S8>(A, B, C, N, K, swizzled, mutation);
}
