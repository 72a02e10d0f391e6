/* CUDA C++ for the executor: what a kernel's text may use, in terms of the runtime. */
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <utility>

#define CPEMBED_EXECUTOR 1
#define __CUDACC__ 1
#define __CUDA_ARCH__ 800
#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0
#define CUDART_VERSION 13000

#define __global__ __attribute__((visibility("hidden"), noinline))
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __inline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define __constant__
#define __restrict__
#define __align__(n) __attribute__((aligned(n)))
#define alignas(n) __attribute__((aligned(n)))
/* Blocks that run together, which are those of a cluster, have dynamic shared memory only, so
   variables are the library's; `extern __shared__` is replaced before the text is compiled. */
#define __shared__ static __attribute__((section("executor_shared")))

#define __CPEMBED_INLINE static inline __attribute__((always_inline))
/* Functions of their own, whose accesses are not those of the text. */
#define __CPEMBED_OWN static __attribute__((noinline, no_sanitize("thread")))
#define __CPEMBED_HERE __builtin_return_address(0)

struct uint3 {
  unsigned int x, y, z;
};
struct dim3 {
  unsigned int x, y, z;
};

extern "C" {
/* They are the same for all of a thread's life. */
__attribute__((const)) uint3 executor_thread_index();
__attribute__((const)) uint3 executor_block_index();
__attribute__((const)) dim3 executor_block_size();
__attribute__((const)) dim3 executor_grid_size();
__attribute__((const)) uint3 executor_cluster_index();
__attribute__((const)) uint3 executor_index_in_cluster();
__attribute__((const)) dim3 executor_cluster_size();
__attribute__((const)) dim3 executor_cluster_count();
void executor_syncthreads();
void executor_syncwarp(uint32_t mask);
uint64_t executor_shuffle(int how, uint32_t mask, uint64_t value, int operand, int width,
                          const void *return_address);
uint32_t executor_ballot(uint32_t mask, int predicate, const void *return_address);
uint32_t executor_activemask();
void executor_thread_fence(int scope);
void executor_atomic(void *p, size_t bytes, int scope, const void *return_address);
uint32_t executor_shared_address(const void *p);
__attribute__((const)) void *executor_dynamic_shared();
}

/* Dynamic shared memory that is declared outside of functions. */
template <class T>
struct executor_dynamic_array {
  operator T *() const { return static_cast<T *>(executor_dynamic_shared()); }
  template <class U>
  explicit operator U *() const {
    return static_cast<U *>(executor_dynamic_shared());
  }
};

#define threadIdx (executor_thread_index())
#define blockIdx (executor_block_index())
#define blockDim (executor_block_size())
#define gridDim (executor_grid_size())
#define warpSize 32

#include "small_floats.h"
#include "vectors.h"
#include "mathematics.h"
#include "ptx.h"
#include "warp_intrinsics.h"
#include "wmma.h"
#include "kernel_entry.h"
