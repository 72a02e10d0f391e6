// C[m][n] = sum of A[m][k] * B[n][k], by two warp groups that multiply and one warp that copies.
// A block has a tile of 128 rows and TILE_N columns; both operands come with the 128-byte swizzle.
// Blocks of a cluster lie below each other, and each copies its part of B's tile to all of them.
#include <cstdint>
#include <cuda.h>
#include <cuda_fp16.h>

constexpr int TILE_N = 64, STAGES = 3, CLUSTER = 1;
constexpr int A_BYTES = 128 * 128, B_BYTES = TILE_N * 128;

__device__ __forceinline__ uint32_t address_of(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void init(uint32_t object, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(object), "r"(arrivals));
}

__device__ __forceinline__ void arrive(uint32_t object) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(object) : "memory");
}

__device__ __forceinline__ void expect(uint32_t object, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(object), "r"(bytes) : "memory");
}

__device__ __forceinline__ void wait(uint32_t object, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(object), "r"(parity) : "memory");
}

__device__ __forceinline__ void load(uint32_t to, const CUtensorMap* map, int x, int y, uint32_t object) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];" ::"r"(to), "l"(map), "r"(x), "r"(y), "r"(object) : "memory");
}

__device__ __forceinline__ void load_to_all(uint32_t to, const CUtensorMap* map, int x, int y, uint32_t object) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to), "l"(map), "r"(x), "r"(y), "r"(object),
      "h"((unsigned short)((1 << CLUSTER) - 1)) : "memory");
}

__device__ __forceinline__ void arrive_at(uint32_t object, uint32_t block) {
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there];\n"
      "}\n" ::"r"(object), "r"(block) : "memory");
}

__device__ __forceinline__ void meet_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// The matrix at an address: rows of 128 bytes, 8 of them every 1024 bytes, 128-byte swizzle.
__device__ __forceinline__ uint64_t describe(uint32_t address) {
  return uint64_t((address & 0x3ffff) >> 4) | uint64_t(1) << 16 | uint64_t(1024 >> 4) << 32 | uint64_t(1) << 62;
}

__device__ __forceinline__ void multiply(float (&d)[32], uint64_t a, uint64_t b, int adds) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "%32, %33, p, 1, 1, 0, 0;\n"
      "}\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
        "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "l"(a), "l"(b), "r"(adds));
}

extern "C" __global__ void __launch_bounds__(384, 1)
    gemm(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map,
         const __grid_constant__ CUtensorMap c_map, float* c, int m, int n, int k, int store_by_map) {
  extern __shared__ __align__(1024) unsigned char memory[];
  uint32_t images = address_of(memory);
  uint32_t objects = images + STAGES * (A_BYTES + B_BYTES);
  int row = blockIdx.x * 128, column = blockIdx.y * TILE_N, steps = (k + 63) / 64;
  int group = threadIdx.x / 128;

  if (threadIdx.x == 0) {
    for (int stage = 0; stage < STAGES; stage++) {
      init(objects + stage * 16, 1);      // Full: the producer arrives, and the bytes.
      init(objects + stage * 16 + 8, 2 * CLUSTER);  // Empty: both consumers of each block.
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  if (CLUSTER > 1)
    meet_cluster();
  else
    __syncthreads();
  uint32_t rank = 0;
  if (CLUSTER > 1) asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));

  if (group == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == 0) {
      for (int step = 0; step < steps; step++) {
        int stage = step % STAGES;
        uint32_t full = objects + stage * 16, empty = full + 8, image = images + stage * (A_BYTES + B_BYTES);
        wait(empty, step / STAGES % 2 ^ 1);
        expect(full, A_BYTES + B_BYTES);
        load(image, &a_map, step * 64, row, full);
        constexpr int PART = TILE_N / CLUSTER;
        if (CLUSTER > 1)
          load_to_all(image + A_BYTES + rank * PART * 128, &b_map, step * 64, column + rank * PART, full);
        else
          load(image + A_BYTES, &b_map, step * 64, column, full);
      }
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 160;");
    float d[32];
    for (int i = 0; i < 32; i++) d[i] = 0.0f;
    for (int step = 0; step < steps; step++) {
      int stage = step % STAGES;
      uint32_t full = objects + stage * 16, empty = full + 8, image = images + stage * (A_BYTES + B_BYTES);
      wait(full, step / STAGES % 2);
      asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
      for (int depth = 0; depth < 4; depth++)
        multiply(d, describe(image + (group - 1) * 64 * 128 + depth * 32),
                 describe(image + A_BYTES + depth * 32), 1);
      asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
      asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
      if (CLUSTER == 1 && threadIdx.x % 128 == 0) arrive(empty);
      if (CLUSTER > 1 && threadIdx.x % 128 < CLUSTER) arrive_at(empty, threadIdx.x % 128);
    }
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    int first = (group - 1) * 64 + warp * 16 + lane / 4;
    if (store_by_map) {
      // The first stages are free: all copies have been multiplied, by both groups.
      float* tile = reinterpret_cast<float*>(memory);
      asm volatile("bar.sync 1, 256;" ::: "memory");
      for (int i = 0; i < 32; i++) {
        int y = first + (i % 4 < 2 ? 0 : 8), x = i / 4 * 8 + lane % 4 * 2 + i % 2;
        tile[(x / 32 * 128 + y) * 32 + (x % 32 / 4 ^ y % 8) * 4 + x % 4] = d[i];
      }
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
      asm volatile("bar.sync 1, 256;" ::: "memory");
      if (threadIdx.x == 128) {
        for (int half = 0; half < 2; half++)
          asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(
                           &c_map),
                       "r"(column + half * 32), "r"(row), "r"(images + half * 128 * 128) : "memory");
        asm volatile("cp.async.bulk.commit_group;");
        asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
      }
    } else {
      for (int i = 0; i < 32; i++) {
        int y = row + first + (i % 4 < 2 ? 0 : 8), x = column + i / 4 * 8 + lane % 4 * 2 + i % 2;
        if (y < m && x < n) c[y * n + x] = d[i];
      }
    }
  }
  if (CLUSTER > 1) meet_cluster();  // Others arrive at barrier objects of this block.
}
