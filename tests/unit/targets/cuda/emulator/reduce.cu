// A bulk reduction; TYPE and OPERATION are replaced, and `wrong` makes it wrong.
#include <cstdint>
extern "C" __global__ void k(const TYPE* in, TYPE* out, int wrong) {
  extern __shared__ __align__(128) TYPE tile[];
  for (int n = threadIdx.x; n < 64; n += 32) tile[n] = in[n];
  if (wrong != 1) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) {
    unsigned from = (unsigned)__cvta_generic_to_shared(tile);
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.OPERATION [%0], [%1], %2;" ::"l"(out), "r"(from),
                 "r"((unsigned)(64 * sizeof(TYPE))) : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    if (wrong != 2) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    if (wrong == 3) out[0] = 1;
  }
}
