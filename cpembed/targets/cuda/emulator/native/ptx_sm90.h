/* The runtime's functions of the instructions of sm_90; ptx/hopper.py has the rows. Addresses of
   shared memory are those of the cluster (cluster.h). */
#pragma once

#include "ptx.h"

extern "C" {
uint32_t executor_cluster_rank();
uint32_t executor_cluster_blocks();
void executor_bar_sync(ExecutorFunction &, uint32_t number, uint32_t threads);
void executor_bar_arrive(ExecutorFunction &, uint32_t number, uint32_t threads);
uint32_t executor_mapa(ExecutorFunction &, uint32_t address, uint32_t rank);
void executor_cluster_arrive(ExecutorFunction &, bool releases);
void executor_cluster_wait(ExecutorFunction &);
uint32_t executor_elect(ExecutorFunction &, uint32_t mask);
void executor_setmaxnreg(ExecutorFunction &, uint32_t count, bool increases);

void executor_mbarrier_init(ExecutorFunction &, uint32_t address, uint32_t arrivals);
void executor_mbarrier_inval(ExecutorFunction &, uint32_t address);
uint64_t executor_mbarrier_arrive(ExecutorFunction &, uint32_t address, uint32_t arrivals, int64_t bytes,
                                  bool releases, bool drops, bool completes);
uint32_t executor_mbarrier_pending(ExecutorFunction &, uint64_t state);
void executor_mbarrier_complete_tx(ExecutorFunction &, uint32_t address, uint32_t bytes);
void executor_copy_arrive(ExecutorFunction &, uint32_t address, bool counted);
void executor_mbarrier_expect_tx(ExecutorFunction &, uint32_t address, uint32_t bytes);
bool executor_mbarrier_wait_parity(ExecutorFunction &, uint32_t address, uint32_t parity, bool acquires);
bool executor_mbarrier_wait(ExecutorFunction &, uint32_t address, uint64_t state, bool acquires);
void executor_fence_mbarrier_init(ExecutorFunction &);
void executor_fence_proxy_async(ExecutorFunction &);

void executor_bulk_load_tensor(ExecutorFunction &, uint32_t to, const void *map, const int32_t *coordinates,
                               int rank, const uint16_t *offsets, uint32_t object, bool multicast,
                               uint32_t mask);
void executor_bulk_load(ExecutorFunction &, uint32_t to, const void *from, uint32_t bytes, uint32_t object,
                        bool multicast, uint32_t mask);
void executor_bulk_store_tensor(ExecutorFunction &, const void *map, const int32_t *coordinates, int rank,
                                uint32_t from, int operation, int kind);
void executor_bulk_store(ExecutorFunction &, const void *to, uint32_t from, uint32_t bytes, int operation,
                         int kind);
void executor_bulk_copy_shared(ExecutorFunction &, uint32_t to, uint32_t from, uint32_t bytes, uint32_t object);
void executor_bulk_prefetch(ExecutorFunction &, const void *from, uint32_t bytes);
void executor_fence_tensormap(ExecutorFunction &, const void *map, bool acquires);
void executor_wait_for_grid(ExecutorFunction &);
void executor_launch_dependents(ExecutorFunction &);
void executor_bulk_commit(ExecutorFunction &);
void executor_bulk_wait(ExecutorFunction &, uint32_t pending, bool reads);
void executor_prefetch_tensormap(ExecutorFunction &, const void *map);

/* `places` addresses follow: of each of the `registers`, or of the first one where they lie side by side. */
void executor_wgmma(ExecutorFunction &, ExecutorWords a_words, ExecutorPlaces a_places, bool from_registers,
                    uint64_t a, uint64_t b, bool adds, int scale_a, int scale_b, int transposed_a,
                    int transposed_b, int registers, int places, ...);
void executor_wgmma_fence(ExecutorFunction &);
void executor_wgmma_commit(ExecutorFunction &);
void executor_wgmma_wait(ExecutorFunction &, uint32_t pending);
}

namespace executor {

/* A product of a warp group; the addresses of the registers of its sums are pushed on the stack, since an
   array of them would be instrumented. Where the compiler sees that they are an array's, one is enough. */
template <class... Places>
static inline __attribute__((always_inline)) void multiply_group(
    ExecutorFunction &function, ExecutorWords a_words, ExecutorPlaces a_places, bool from_registers, uint64_t a,
    uint64_t b, bool adds, int scale_a, int scale_b, int transposed_a, int transposed_b, void *first,
    Places... others) {
  constexpr int registers = 1 + sizeof...(others);
  int number = 0;
  bool side_by_side = ((static_cast<char *>(others) == static_cast<char *>(first) + 4 * ++number) && ...);
  if (side_by_side)
    executor_wgmma(function, a_words, a_places, from_registers, a, b, adds, scale_a, scale_b, transposed_a,
                   transposed_b, registers, 1, first);
  else
    executor_wgmma(function, a_words, a_places, from_registers, a, b, adds, scale_a, scale_b, transposed_a,
                   transposed_b, registers, registers, first, others...);
}

}  // namespace executor
