/* Atomic operations, and what they and fences order. */
#pragma once

#include "memory_functions.h"

/* What has been released to a location: to threads of each block of the cluster that runs, to the
   cluster's, and to all. */
struct Location {
  uint32_t cluster = 0;
  std::map<uint32_t, Knowledge> blocks;
  Knowledge in_cluster;
  SharedClusters clusters;
};
static std::unordered_map<const void *, Location> locations;

enum Effect : int { kAcquires = 1, kReleases = 2, kReadsOnly = 4, kWritesOnly = 8 };

static Knowledge part_of(const Knowledge &all, bool releases, Scope scope) {
  Knowledge made;
  made.order = releases ? all.order : all.fenced[scope];
  if (releases) made.proxy = all.proxy;
  return made;
}

/* What an operation releases to its location. */
static void publish(Location &location, int effects, Scope scope) {
  if (effects & kReadsOnly) return;
  Knowledge mine;
  warp->clock.release(1u << lane_number, mine);
  // A store ends what earlier operations released; one that reads as well continues it.
  if (effects & kWritesOnly) location = Location{running_cluster, {}, {}, nullptr};
  bool releases = effects & kReleases;
  location.blocks[warp->block->rank].join(part_of(mine, releases, kBlockScope));
  if (scope >= kClusterScope) location.in_cluster.join(part_of(mine, releases, kClusterScope));
  if (scope < kGpuScope) return;
  std::shared_ptr<Clusters> clusters(new Clusters);
  (*clusters)[running_cluster] = part_of(mine, releases, kGpuScope).order;
  join_clusters(location.clusters, clusters);
  join_clusters(location.clusters, mine.clusters);
}

/* What it learns from what others have released. */
static void learn(const Location &before, int effects, Scope scope) {
  if (effects & kWritesOnly) return;
  Knowledge seen[2];
  auto block = before.blocks.find(warp->block->rank);
  if (block != before.blocks.end()) seen[kBlockScope] = block->second;
  if (scope >= kClusterScope) seen[kClusterScope] = before.in_cluster;
  Knowledge learned;
  for (int s = 0; s < 2; s++)
    if (effects & kAcquires)
      learned.join(seen[s]);
    else
      learned.unacquired[s] = seen[s].order;
  if (scope == kGpuScope && before.clusters) {
    if (effects & kAcquires)
      learned.learn(before.clusters);
    else
      learned.pending = before.clusters;
  }
  warp->clock.learn(1u << lane_number, std::move(learned));
}

/* An atomic operation of the running lane, which may be made after it. */
static void atomic_access(void *p, size_t bytes, const char *what, int effects, Scope scope, Site site) {
  if (shared_memory.holds(p)) {
    REQUIRE(note_remote(shared_memory.rank(p), what, site));
    REQUIRE(shared_memory.valid(p, bytes, bytes, what, site));
    REQUIRE(shared_memory.write(p, bytes, now(), kAtomic, site));
  } else {
    if (!(effects & kWritesOnly)) REQUIRE(global_memory.touch(p, bytes, bytes, false, what, site, true));
    // As an operation that writes: those that only read do not race with others.
    if (effects & kReadsOnly)
      REQUIRE(global_races.access(p, bytes, kAtomic, actor_of(now()), what, site, false));
    else
      REQUIRE(global_access(p, bytes, bytes, kAtomic, what, site, actor_of(now())));
    if (!(effects & kWritesOnly)) tally.global_load_bytes += bytes;
    if (!(effects & kReadsOnly)) tally.global_store_bytes += bytes;
  }
  Location &location = locations[p];
  if (location.cluster != running_cluster) {
    location.cluster = running_cluster;
    location.blocks.clear(), location.in_cluster.clear();
  }
  Location before = location;
  publish(location, effects, scope);
  learn(before, effects, scope);
}

/* __threadfence and its kin. */
extern "C" void executor_thread_fence(int scope) {
  warp->clock.thread_fence(1u << lane_number, Scope(scope));
}

/* Before an atomic operation of a lane, which is then made at once. */
extern "C" void executor_atomic(void *p, size_t bytes, int scope, const void *return_address) {
  atomic_access(p, bytes, "an atomic operation", 0, Scope(scope), site_of(return_address));
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
                                  uint64_t address, uint64_t value, uint64_t other, int order, int scope) {
  Site site = CALLER;
  count(function);
  size_t bytes = kind == executor::kUnsigned64 || kind == executor::kSigned64 ? 8 : 4;
  unsigned char *p = pointer_to(space, address);
  if (in_shared(space, p) != shared_memory.holds(p)) {
    set_fault("%s at {at:%u}: the address is not one of its space", function.name, site);
    abandon();
  }
  int effects = order;
  if (operation == executor::kLoadOnly) effects |= kReadsOnly;
  if (operation == executor::kStoreOnly) effects |= kWritesOnly;
  atomic_access(p, bytes, function.name, effects, Scope(scope), site);
  uint64_t old = 0;
  memcpy(&old, p, bytes);
  uint64_t made = combined(operation, kind, old, value, other);
  if (operation != executor::kLoadOnly) memcpy(p, &made, bytes);
  return old;
}

extern "C" void executor_fence(ExecutorFunction &function, int scope) {
  count(function);
  warp->clock.thread_fence(1u << lane_number, Scope(scope));
}
