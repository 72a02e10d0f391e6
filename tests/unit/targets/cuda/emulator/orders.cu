// Runs a program: in each step threads read or write bytes of shared memory, or synchronise in one of
// several ways. steps[step][thread] = kind, first byte, bytes or a mask.
#include <cstdint>

enum { NOTHING, READ, WRITE, BLOCK, SOME, SYNC_MASK, ARRIVE, WAIT };

extern "C" __global__ void interpreter(const int* steps, int count, int arrivals, int* out) {
  extern __shared__ __align__(64) unsigned char memory[];
  uint32_t object = static_cast<uint32_t>(__cvta_generic_to_shared(memory + 64));
  if (threadIdx.x < 64) memory[threadIdx.x] = 0;
  if (threadIdx.x == 0)
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(object), "r"(arrivals));
  __syncthreads();
  long long sum = 0;
  int parity = 0;
  for (int step = 0; step < count; step++) {
    const int* mine = steps + (step * 96 + threadIdx.x) * 3;
    int kind = mine[0], first = mine[1], extra = mine[2];
    if (kind == BLOCK) __syncthreads();
    if (kind == SOME) asm volatile("bar.sync %0, 64;" ::"r"(first) : "memory");
    if (kind == SYNC_MASK) __syncwarp(extra);
    if (kind == ARRIVE)
      asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(object) : "memory");
    if (kind == WAIT) {
      asm volatile(
          "{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra again; }" ::"r"(
              object),
          "r"(first) : "memory");
    }
    if (kind == READ) sum += memory[first];
    if (kind == WRITE) memory[first] = 0;
  }
  out[threadIdx.x] = sum + parity;
}
