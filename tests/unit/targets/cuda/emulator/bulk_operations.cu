// Copies between blocks, tensor maps in memory, dependent launches, constants; `wrong` makes them wrong.
__device__ inline unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
extern "C" __global__ void between_blocks(int* out, int wrong) {
  extern __shared__ __align__(128) int memory[];
  unsigned rank, other, object = at(memory + 128), to, far_object;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  other = 1 - rank;
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(object));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  memory[threadIdx.x] = rank * 100 + threadIdx.x;
  if (wrong != 1) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::: "memory");
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(at(memory + 64)), "r"(other));
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(far_object) : "r"(object), "r"(other));
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 128;" ::"r"(object) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "r"(at(memory)), "r"(wrong == 4 ? 120 : 128), "r"(wrong == 5 ? object : far_object) : "memory");
    if (wrong == 3) memory[0] = 7;
  }
  unsigned done = wrong == 2;
  while (!done)
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], 0; selp.b32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(object) : "memory");
  out[rank * 32 + threadIdx.x] = memory[64 + threadIdx.x];
  if (wrong != 6)
    asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

extern "C" __global__ void mapped(const CUtensorMap* map, CUtensorMap* made, float* out, int wrong) {
  extern __shared__ __align__(128) float tile[];
  unsigned object = (unsigned)__cvta_generic_to_shared(tile + 64);
  const CUtensorMap* used = map;
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(object));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    if (wrong > 0) {
      for (int n = 0; n < 16; n++) made->opaque[n] = map->opaque[n];
      used = made;
    }
    if (wrong != 1)
      asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(used) : "memory");
    if (wrong == 3) used = (const CUtensorMap*)(out);
    if (wrong == 4) used = (const CUtensorMap*)(1 << 20);
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 256;" ::"r"(object) : "memory");
    asm volatile("cp.async.bulk.tensor.1d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2}], [%3];" ::"r"(
                     (unsigned)__cvta_generic_to_shared(tile)), "l"(used), "r"(8), "r"(object) : "memory");
  }
  __syncthreads();
  unsigned done = 0;
  while (!done)
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.b32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(object) : "memory");
  for (int n = threadIdx.x; n < 64; n += 32) out[n] = tile[n];
}

extern "C" __global__ void first(float* data) { data[threadIdx.x] = threadIdx.x; }
extern "C" __global__ void second(float* data, const float* weights, float* out, int wrong) {
  float held = weights[threadIdx.x];  // Before the wait, as nobody writes it.
  if (wrong == 0 || (wrong == 2 && threadIdx.x == 0)) asm volatile("griddepcontrol.wait;" ::: "memory");
  if (wrong == 2) __syncthreads();
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  if (wrong == 3) data[threadIdx.x] = 1;
  else out[threadIdx.x] = held + data[threadIdx.x];
}

extern "C" __global__ void read_and_written(float* data, int shift, int barrier) {
  float held = data[threadIdx.x + shift];
  if (barrier) __syncthreads();
  data[threadIdx.x] = held + 1;
}
extern "C" __global__ void constants(float* data, int late) {
  float held;
  if (late) data[threadIdx.x] = 3;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.f32 %0, [%1];" : "=f"(held) : "l"(data + threadIdx.x));
  if (!late) data[threadIdx.x] = held + 1;
}
