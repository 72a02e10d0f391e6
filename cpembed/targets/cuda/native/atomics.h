/* Atomic operations, and what they and fences order in global memory. */
#pragma once

#include "memory_functions.h"

/* An atomic operation on global memory: what it acquires and releases. */
static void atomic_access(void *p, size_t bytes, const char *what, bool acquires, bool releases, Site site) {
  for (bool writes : {false, true}) REQUIRE(global_memory.touch(p, bytes, bytes, writes, what, site));
  REQUIRE(global_races.access(p, bytes, kAtomic, actor_of(now()), what, site));
  std::shared_ptr<const Knowledge> &location = global_releases[reinterpret_cast<uint64_t>(p)];
  uint32_t self = 1u << lane_number;
  std::shared_ptr<const Knowledge> before = location;
  Knowledge mine;
  warp->clock.release(self, mine);
  auto after = before ? share(*before) : share();
  std::shared_ptr<Clusters> clusters(new Clusters);
  (*clusters)[running_cluster] = releases ? std::move(mine.order) : std::move(mine.fenced);
  join_clusters(after->clusters, clusters);
  join_clusters(after->clusters, mine.clusters);
  location = after;
  if (!before) return;
  auto learned = share();
  (acquires ? learned->clusters : learned->pending) = before->clusters;
  warp->clock.acquire(self, learned, nullptr, 0);
}

/* __threadfence, and the fences of PTX whose scope is the GPU. */
extern "C" void executor_thread_fence() { warp->clock.thread_fence(1u << lane_number); }

/* Before an atomic operation of a lane, which is then made at once. */
extern "C" void executor_atomic(void *p, size_t bytes, const void *return_address) {
  Site site = site_of(return_address);
  if (shared_memory.holds(p)) {
    REQUIRE(shared_memory.valid(p, bytes, bytes, "an atomic operation", site));
    REQUIRE(shared_memory.write(p, bytes, now(), kAtomic, site));
    return;
  }
  atomic_access(p, bytes, "an atomic operation", false, false, site);
  tally.global_load_bytes += bytes;
  tally.global_store_bytes += bytes;
}

/* ---------------------------------------------------------------------- atom, red, ld, st of PTX */

static uint64_t combined(int operation, int kind, uint64_t old, uint64_t value, uint64_t other) {
  using namespace executor;
  auto less = [&](uint64_t a, uint64_t b) {
    if (kind == kSigned32) return int32_t(a) < int32_t(b);
    if (kind == kSigned64) return int64_t(a) < int64_t(b);
    return a < b;
  };
  switch (operation) {
    case kAdd:
      if (kind == kFloat32)
        return bits<uint32_t>(bits<float>(uint32_t(old)) + bits<float>(uint32_t(value)));
      return old + value;
    case kInc: return old >= value ? 0 : old + 1;
    case kDec: return old == 0 || old > value ? value : old - 1;
    case kMin: return less(value, old) ? value : old;
    case kMax: return less(old, value) ? value : old;
    case kAnd: return old & value;
    case kOr: return old | value;
    case kXor: return old ^ value;
    case kCas: return old == value ? other : old;
    case kLoadOnly: return old;
    default: return value;  // Exchange, and a store.
  }
}

/* Returns what was there before; `other`: the new value of a compare-and-swap. */
extern "C" uint64_t executor_atom(ExecutorFunction &function, int operation, int kind, int space,
                                  uint64_t address, uint64_t value, uint64_t other, bool acquires,
                                  bool releases) {
  Site site = CALLER;
  count(function);
  size_t bytes = kind == executor::kUnsigned64 || kind == executor::kSigned64 ? 8 : 4;
  unsigned char *p = pointer_to(space, address);
  if (in_shared(space, p)) {
    REQUIRE(note_remote(shared_memory.rank(p), function.name, site));
    REQUIRE(shared_memory.valid(p, bytes, bytes, function.name, site));
    REQUIRE(shared_memory.write(p, bytes, now(), kAtomic, site));
  } else {
    atomic_access(p, bytes, function.name, acquires, releases, site);
    tally.global_load_bytes += bytes;
    tally.global_store_bytes += bytes;
  }
  uint64_t old = 0;
  memcpy(&old, p, bytes);
  uint64_t made = combined(operation, kind, old, value, other);
  memcpy(p, &made, bytes);
  return old;
}

extern "C" void executor_fence(ExecutorFunction &function, bool gpu) {
  count(function);
  if (gpu) warp->clock.thread_fence(1u << lane_number);
}
