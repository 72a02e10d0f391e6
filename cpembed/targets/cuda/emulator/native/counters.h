/* What is counted; the names are those of the fields of Counters in executor.py. */
#pragma once

#include <cstdint>

#include "function.h"

#define EXECUTOR_COUNTERS(X) \
  X(shared_load_wavefronts) X(shared_load_wavefronts_least) \
  X(shared_store_wavefronts) X(shared_store_wavefronts_least) \
  X(ldmatrix_wavefronts) \
  X(global_load_sectors) X(global_load_sectors_least) \
  X(global_store_sectors) X(global_store_sectors_least) \
  X(global_load_bytes) X(global_store_bytes) \
  X(unique_bytes_read) X(unique_bytes_written) \
  X(barriers) X(named_barriers) X(cluster_barriers) X(mbarrier_phases) \
  X(bulk_load_bytes) X(bulk_load_sectors) X(bulk_load_image_bytes) X(multicast_bytes) \
  X(bulk_store_bytes) X(bulk_store_sectors) X(wgmma_wavefronts) X(wgmma_wavefronts_least) \
  X(cp_async_groups) X(blocks)

struct Tally {
#define X(name) uint64_t name = 0;
  EXECUTOR_COUNTERS(X)
#undef X
};

static Tally tally;

using Function = ExecutorFunction;

/* Functions that were called in the last run. Each place of an instruction has one of its own. */
static Function *called_functions;

static inline void count(Function &function) {
  if (__builtin_expect(!function.listed, 0)) {
    function.listed = true;
    function.next = called_functions;
    called_functions = &function;
  }
  function.calls++;
}

static void forget_calls() {
  for (Function *f = called_functions; f != nullptr; f = f->next) f->calls = 0, f->listed = false;
  called_functions = nullptr;
}
