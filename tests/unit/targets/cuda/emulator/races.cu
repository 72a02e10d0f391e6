// Runs a program: in each step threads read or write bytes of shared memory, or all meet at a
// barrier. steps[step][thread] = kind, first byte, bytes.
enum { NOTHING, READ, WRITE, COPY, WAIT, BLOCK_BARRIER, WARP_BARRIER };

extern "C" __global__ void interpreter(const int* steps, int count, const float* zeros, int* out) {
  __shared__ __align__(64) unsigned char memory[64];
  memory[threadIdx.x] = 0;
  __syncthreads();
  long long sum = 0;
  for (int step = 0; step < count; step++) {
    int kind = 0, first = 0, bytes = 0;
    int mine[4];
    cpembed_load_16(mine, steps + (step * 64 + threadIdx.x) * 4, 1);
    kind = mine[0], first = mine[1], bytes = mine[2];
    if (kind == BLOCK_BARRIER) __syncthreads();
    if (kind == WARP_BARRIER) __syncwarp();
    if (kind == WAIT) cpembed_cp_async_wait_0();
    if (kind == COPY) {
      unsigned to = __cvta_generic_to_shared(memory + first);
      if (bytes == 4) asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(zeros));
      if (bytes == 8) asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(zeros));
      if (bytes == 16) asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(to), "l"(zeros));
      asm volatile("cp.async.commit_group;");
    }
    if (kind == READ) {
      if (bytes == 1) sum += *(unsigned char*)(memory + first);
      if (bytes == 2) sum += *(unsigned short*)(memory + first);
      if (bytes == 4) sum += *(int*)(memory + first);
      if (bytes == 8) sum += *(long long*)(memory + first);
      if (bytes == 16) {
        int4 all = *(int4*)(memory + first);
        sum += all.x + all.y + all.z + all.w;
      }
    }
    if (kind == WRITE) {
      if (bytes == 1) *(unsigned char*)(memory + first) = 0;
      if (bytes == 2) *(unsigned short*)(memory + first) = 0;
      if (bytes == 4) *(int*)(memory + first) = 0;
      if (bytes == 8) *(long long*)(memory + first) = 0;
      if (bytes == 16) *(int4*)(memory + first) = make_int4(0, 0, 0, 0);
    }
  }
  out[threadIdx.x] = sum;
}
