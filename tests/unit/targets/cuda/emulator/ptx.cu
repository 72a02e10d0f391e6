// A product of 16x32 and 32x8 by one warp, written as TVM writes it.
#include <cstdint>
#include <cuda_fp16.h>

__forceinline__ __device__ void copy(void* to, void* from) {
  unsigned int to_address = __cvta_generic_to_shared(to);
  asm volatile("cp.async.cg.shared.global [%0], [%1], %2;"
    :: "r"(to_address), "l"(from), "n"(16));
}

__forceinline__ __device__ void copy_if(void* to, void* from, int predicate) {
  unsigned int to_address = __cvta_generic_to_shared(to);
  __asm__ __volatile__(
    "{\n"
    " .reg .pred p;\n"
    " setp.eq.u32 p, %3, 1;\n"
    " @p cp.async.cg.shared.global [%0], [%1], %2;\n"
    " @!p st.shared.v4.u32 [%0], {%4, %4, %4, %4};\n"
    "}\n"
    :: "r"(to_address), "l"(from), "n"(16), "r"(predicate), "r"(0)
  );
}

extern "C" __global__ void __launch_bounds__(32)
    product(half* __restrict__ A, half* __restrict__ B, float* __restrict__ C, int mutation) {
  extern __shared__ __align__(64) uint8_t buffer[];
  int lane = threadIdx.x;
  float c[4] = {0, 0, 0, 0};
  unsigned a[4], b[2];
  for (int turn = 0; turn < 2; turn++) {
    int piece = turn * 32 + lane;
    copy(buffer + piece * 16, A + piece * 8);
  }
  // Some lanes copy what the others do not.
  for (int turn = 0; turn < 2; turn++)
    copy_if(buffer + 1024 + (turn * 32 + lane) * 16, B + lane * 8, turn == 0);
  asm volatile("cp.async.commit_group;");
  if (mutation != 1) {
    asm volatile("cp.async.wait_group 0;" ::: "memory");
  }
  if (mutation != 2) __syncthreads();
  for (int k = 0; k < 2; k++) {
    unsigned int a_address = __cvta_generic_to_shared(buffer + lane % 16 * 64 + k * 32 + lane / 16 * 16);
    asm volatile(
      "ldmatrix.sync.aligned.m8n8.x4.shared.b16"
      "{%0, %1, %2, %3}, [%4];\n"
      : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
      : "r"(a_address)
    );
    unsigned int b_address = __cvta_generic_to_shared(buffer + 1024 + lane % 8 * 64 + k * 32 + lane / 8 % 2 * 16);
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];\n"
      : "=r"(b[0]), "=r"(b[1]) : "r"(b_address));
    asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};\n"
      : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
  }
  for (int i = 0; i < 4; i++) C[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = c[i];
}
