// Barrier objects, bulk copies of bytes, elections and named barriers: one kernel for each rule, with a
// parameter that makes it right (0) or wrong.
#include <cstdint>

__device__ __forceinline__ uint32_t address_of(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ __forceinline__ void init(uint32_t object, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(object), "r"(arrivals));
}
__device__ __forceinline__ void wait(uint32_t object, uint32_t parity) {
  asm volatile(
      "{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra again; }" ::"r"(object),
      "r"(parity) : "memory");
}

extern "C" __global__ void invalidated(int* out, int wrong) {
  extern __shared__ __align__(64) int memory[];
  uint32_t object = address_of(memory);
  if (threadIdx.x == 0) {
    init(object, 1);
    if (!wrong) asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(object));
    memory[0] = 7;
  }
  __syncthreads();
  out[threadIdx.x] = memory[0];
}

extern "C" __global__ void by_state(int* out, int wrong) {
  extern __shared__ __align__(64) int memory[];
  uint32_t object = address_of(memory + 64);
  if (threadIdx.x == 0) init(object, wrong == 1 ? 63 : 64);
  __syncthreads();
  memory[threadIdx.x] = threadIdx.x;
  uint64_t state;
  uint32_t done = 0;
  asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];" : "=l"(state) : "r"(object) : "memory");
  if (wrong == 2) state += 5;
  while (!done)
    asm volatile(
        "{ .reg .pred p; mbarrier.test_wait.acquire.cta.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p; }"
        : "=r"(done) : "r"(object), "l"(state) : "memory");
  out[threadIdx.x] = memory[63 - threadIdx.x];
}

extern "C" __global__ void relaxed(int* out, int wrong) {
  extern __shared__ __align__(64) int memory[];
  uint32_t object = address_of(memory + 64);
  if (threadIdx.x == 0) init(object, 64);
  __syncthreads();
  memory[threadIdx.x] = threadIdx.x;
  if (wrong == 1)
    asm volatile("mbarrier.arrive.relaxed.cta.shared::cta.b64 _, [%0];" ::"r"(object) : "memory");
  else
    asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(object) : "memory");
  if (wrong == 2)
    asm volatile(
        "{ .reg .pred p; again: mbarrier.try_wait.parity.relaxed.cta.shared::cta.b64 p, [%0], 0; @!p bra again; }"
        ::"r"(object) : "memory");
  else
    wait(object, 0);
  out[threadIdx.x] = memory[63 - threadIdx.x];
}

// A look at the next phase that nobody waits for returns false when nothing else can go on.
extern "C" __global__ void peeked(int* out, int wrong) {
  extern __shared__ __align__(64) int memory[];
  uint32_t first = address_of(memory), second = first + 8;
  if (threadIdx.x == 0) init(first, 1), init(second, 1);
  __syncthreads();
  if (threadIdx.x == 0) {
    uint32_t there;
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.b32 %0, 1, 0, p; }"
        : "=r"(there) : "r"(second) : "memory");
    if (!wrong) asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(first) : "memory");
    if (!there) wait(second, 0);
  } else if (threadIdx.x == 32) {
    wait(first, 0);
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(second) : "memory");
  }
  out[threadIdx.x] = 1;
}

extern "C" __global__ void bytes(const int* in, int* out, int wrong) {
  extern __shared__ __align__(64) int memory[];
  uint32_t to = address_of(memory), object = to + 256;
  if (threadIdx.x == 0) {
    init(object, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    int count = wrong == 1 ? 264 : 256;
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(object), "r"(256) : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
        "l"(in + (wrong == 2 ? 1 : 0)), "r"(count), "r"(object) : "memory");
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(object) : "memory");
  }
  __syncthreads();
  if (wrong != 3) wait(object, 0);
  int mine = memory[63 - threadIdx.x];
  __syncthreads();
  memory[threadIdx.x] = mine;
  if (wrong != 4) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 256;" ::"l"(out), "r"(to) : "memory");
    asm volatile("cp.async.bulk.commit_group;");
    if (wrong != 5) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    memory[0] = -1;
    if (wrong == 6) out[1] = out[0];
    if (wrong == 5) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
  }
}

extern "C" __global__ void elected(int* out, int wrong) {
  extern __shared__ __align__(64) int memory[];
  uint32_t elected;
  asm volatile(
      "{ .reg .pred p; .reg .b32 leader; elect.sync leader|p, 0xffffffff; selp.b32 %0, 1, 0, p; }"
      : "=r"(elected));
  if (elected) memory[threadIdx.x / 32] = 5;
  if (!wrong) __syncwarp();
  out[threadIdx.x] = memory[threadIdx.x / 32];
}

// The first warp waits for what the second one says without waiting.
extern "C" __global__ void said(int* out, int wrong) {
  extern __shared__ __align__(64) int memory[];
  if (threadIdx.x >= 32) {
    memory[threadIdx.x] = threadIdx.x;
    asm volatile("bar.arrive 3, 64;" ::: "memory");
    if (wrong) memory[threadIdx.x] = 0;
  } else {
    asm volatile("bar.sync 3, 64;" ::: "memory");
    memory[threadIdx.x] = memory[threadIdx.x + 32];
  }
  out[threadIdx.x] = memory[threadIdx.x];
}

__device__ inline void wait_for(uint32_t object, uint32_t parity) {
  uint32_t done = 0;
  while (!done)
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p; }"
        : "=r"(done) : "r"(object), "r"(parity) : "memory");
}

extern "C" __global__ void dropped(int* out, int wrong) {
  extern __shared__ __align__(64) int memory[];
  uint32_t object = address_of(memory + 128);
  if (threadIdx.x == 0) init(object, 64);
  __syncthreads();
  memory[threadIdx.x] = threadIdx.x;
  bool last = threadIdx.x >= 32;
  if (last && wrong != 1)
    asm volatile("mbarrier.arrive_drop.shared::cta.b64 _, [%0];" ::"r"(object) : "memory");
  else
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(object) : "memory");
  wait_for(object, 0);
  out[threadIdx.x] = memory[63 - threadIdx.x];
  if (last) return;
  memory[64 + threadIdx.x] = 1;
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(object) : "memory");
  if (wrong != 3) wait_for(object, 1);
  out[threadIdx.x] += memory[64 + 31 - threadIdx.x] - 1;
}

extern "C" __global__ void copies_arrive(const int* in, int* out, int wrong) {
  extern __shared__ __align__(64) int memory[];
  uint32_t object = address_of(memory + 64);
  if (threadIdx.x == 0) init(object, 64);
  __syncthreads();
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(address_of(memory + threadIdx.x)),
               "l"(in + threadIdx.x) : "memory");
  if (wrong == 10 || wrong == 2)
    asm volatile("cp.async.mbarrier.arrive.shared::cta.b64 [%0];" ::"r"(object) : "memory");
  if (wrong == 1 || wrong == 10)
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(object) : "memory");
  if (wrong == 0 || wrong == 3)
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(object) : "memory");
  if (wrong != 3) wait_for(object, 0);
  out[threadIdx.x] = memory[63 - threadIdx.x];
  // Its own copy is there for a lane that waits for it, too.
  asm volatile("cp.async.wait_all;" ::: "memory");
  out[threadIdx.x] += memory[threadIdx.x] - threadIdx.x;
}

extern "C" __global__ void pending(int* out, int wrong) {
  extern __shared__ __align__(64) int memory[];
  uint32_t object = address_of(memory), count;
  if (threadIdx.x == 0) init(object, 64);
  __syncthreads();
  uint64_t state;
  if (wrong)
    asm volatile("mbarrier.arrive.noComplete.release.cta.shared::cta.b64 %0, [%1], 1;" : "=l"(state) : "r"(object) : "memory");
  else
    asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];" : "=l"(state) : "r"(object) : "memory");
  asm volatile("mbarrier.pending_count.b64 %0, %1;" : "=r"(count) : "l"(state));
  out[64 - count] = 7;
}

extern "C" __global__ void completed(int* out, int wrong) {
  extern __shared__ __align__(64) int memory[];
  uint32_t object = address_of(memory);
  if (threadIdx.x == 0) init(object, 1);
  __syncthreads();
  if (threadIdx.x == 0)
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 16;" ::"r"(object) : "memory");
  if (threadIdx.x == 33)
    asm volatile("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(object), "r"(16 + 4 * (wrong - 2 * (wrong == 2))) : "memory");
  if (threadIdx.x == 33 && wrong == 2)
    asm volatile("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(object), "r"(2000000) : "memory");
  wait_for(object, 0);
  out[threadIdx.x] = threadIdx.x;
}

// A wait may return before it is over.
extern "C" __global__ void tried(int* out, int wrong) {
  extern __shared__ __align__(64) int memory[];
  uint32_t object = address_of(memory + 64);
  if (threadIdx.x == 0) init(object, 64);
  __syncthreads();
  memory[threadIdx.x] = threadIdx.x;
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(object) : "memory");
  if (wrong)
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0; }" ::"r"(object) : "memory");
  else
    wait_for(object, 0);
  out[threadIdx.x] = memory[63 - threadIdx.x];
}
