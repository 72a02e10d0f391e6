/* Clusters: addresses in the shared memory of each block, barriers of the cluster, and what else
   sm_90 has for warps as a whole (elect.sync, setmaxnreg). */
#pragma once

#include <map>

#include "warp.h"

/* A 32-bit address is an offset in the block's own shared memory, or, as mapa makes it, the offset
   with the rank of a block of the cluster, from 1 on, in the bits above. */
constexpr uint32_t kRankBit = 24;

static inline uint32_t shared_address(const void *p) {
  uint32_t rank = shared_memory.rank(p), offset = uint32_t(shared_memory.offset(p));
  return rank == warp->block->rank || offset < shared_memory.static_bytes()
             ? offset
             : (rank + 1) << kRankBit | offset;
}

static inline unsigned char *shared_pointer(uint32_t address) {
  uint32_t rank = address >> kRankBit, offset = address & ((1u << kRankBit) - 1);
  if (rank > blocks_a_cluster || offset >= kMostShared) return nullptr;
  return shared_memory.at(offset, rank ? rank - 1 : warp->block->rank);
}

static inline bool is_remote(uint32_t address) {
  return address >> kRankBit && (address >> kRankBit) - 1 != warp->block->rank;
}

extern "C" uint32_t executor_mapa(ExecutorFunction &function, uint32_t address, uint32_t rank) {
  Site site = CALLER;
  count(function);
  if (rank >= blocks_a_cluster) {
    set_fault("mapa at {at:%u} names block %u of a cluster of %u", site, rank, blocks_a_cluster);
    abandon();
  }
  return (rank + 1) << kRankBit | (address & ((1u << kRankBit) - 1));
}

/* ------------------------------------------------------------------ the end of a block's memory */

/* What other blocks have done to a block's shared memory: the last of each thread. */
struct RemoteAccess {
  Stamp stamp;
  Site site;
  const char *what;
};
static std::vector<std::map<uint64_t, RemoteAccess>> remote_accesses;  // By the block's rank.
static std::vector<bool> ended_blocks;

static void begin_remote_accesses() {
  remote_accesses.assign(blocks_a_cluster, {});
  ended_blocks.assign(blocks_a_cluster, false);
}

/* The lane does something to the shared memory of a block, which has to be there until it is done. Of a
   copy, `completes`: the block's own barrier object tells it. */
static bool note_remote(uint32_t rank, const char *what, Site site, bool completes = false) {
  if (rank == warp->block->rank) return true;
  if (ended_blocks[rank]) {
    set_fault("%s at {at:%u} by %s: block %u of the cluster, whose shared memory it accesses, has ended", what,
              site, doer(now()).c_str(), rank);
    return false;
  }
  if (completes) return true;
  uint64_t thread = uint64_t(warp->clock.component) * 32 + uint64_t(lane_number);
  remote_accesses[rank][thread] = {now(), site, what};
  return true;
}

/* A block ends: its threads know that others have done what they do to its shared memory. */
static void end_remote_accesses(const Block &block) {
  ended_blocks[block.rank] = true;
  for (auto &[thread, access] : remote_accesses[block.rank]) {
    bool known = false;
    for (uint32_t n = 0; n < warps_a_block && !known; n++)
      known = warp_clocks[block.rank * warps_a_block + n]->anyone_knows(access.stamp);
    if (known) continue;
    set_fault("block %u of the cluster ends before it is known that %s has done %s at {at:%u}, which accesses "
              "its shared memory: no barrier of the cluster is between them", block.rank,
              doer(access.stamp).c_str(), access.what, access.site);
    return;
  }
}

/* -------------------------------------------------------------------------- barrier.cluster */

struct ClusterBarrier {
  uint32_t arrived = 0;  // Warps.
  uint64_t phase = 0;    // Barriers that are complete.
  Knowledge releasing;
  std::shared_ptr<const Knowledge> released;
};
static ClusterBarrier cluster_barrier;
static std::vector<uint64_t> cluster_arrivals, cluster_waits;  // Of each warp.

static void begin_cluster_barrier() {
  cluster_barrier = ClusterBarrier{};
  cluster_arrivals.assign(warp_clocks.size(), 0);
  cluster_waits.assign(warp_clocks.size(), 0);
}

static void arrive_at_cluster(Warp &w, uint32_t lanes) {
  const Request &r = w.request(__builtin_ctz(lanes));
  uint32_t component = w.clock.component;
  if (cluster_arrivals[component] > cluster_waits[component]) {
    set_fault("barrier.cluster.arrive at {at:%u}: warp %d has arrived before and not waited", r.site,
              w.number);
    return;
  }
  cluster_arrivals[component]++;
  progress++;
  if (r.number) w.clock.release(lanes, cluster_barrier.releasing);
  if (++cluster_barrier.arrived < warp_clocks.size()) return;
  cluster_barrier.arrived = 0;
  cluster_barrier.phase++;
  cluster_barrier.released = share(std::move(cluster_barrier.releasing));
  cluster_barrier.releasing = Knowledge{};
  tally.cluster_barriers++;
}

/* `releases`: else .relaxed, which orders nothing. */
extern "C" void executor_cluster_arrive(ExecutorFunction &function, bool releases) {
  Request r{&function, arrive_at_cluster, CALLER, ~0u};
  r.number = releases;
  collective(r);
}

static void begin_cluster_wait(Warp &w, uint32_t lanes) {
  uint32_t component = w.clock.component;
  if (cluster_arrivals[component] == cluster_waits[component]) {
    set_fault("barrier.cluster.wait at {at:%u}: warp %d has not arrived before",
              w.request(__builtin_ctz(lanes)).site, w.number);
    return;
  }
  cluster_waits[component]++;
}

static bool cluster_ready(Waiter &waiter) { return cluster_barrier.phase >= waiter.number; }
static std::string cluster_text(const Waiter &) {
  return "the cluster's barrier, where " + decimal(cluster_barrier.arrived) + " of " +
         decimal(warp_clocks.size()) + " warps are";
}

extern "C" void executor_cluster_wait(ExecutorFunction &function) {
  Request r{&function, begin_cluster_wait, CALLER, ~0u};
  collective(r);
  Waiter waiter{cluster_ready, cluster_text, r.site, nullptr, 0};
  waiter.number = cluster_waits[warp->clock.component];
  wait_for(waiter);
  warp->clock.acquire(1u << lane_number, cluster_barrier.released, &cluster_barrier, waiter.number);
}

/* ------------------------------------------------------------------- elect.sync, setmaxnreg */

static bool elects_last;  // Which lane is elected is not said, but it is the same one each time.

static void elect(Warp &w, uint32_t lanes) {
  int leader = elects_last ? 31 - __builtin_clz(lanes) : __builtin_ctz(lanes);
  for (uint32_t rest = lanes; rest; rest &= rest - 1) {
    Request &r = w.request(__builtin_ctz(rest));
    r.value = uint64_t(leader);
  }
}

/* The number of the elected lane. */
extern "C" uint32_t executor_elect(ExecutorFunction &function, uint32_t mask) {
  Request r{&function, elect, CALLER, mask};
  collective(r);
  return uint32_t(r.value);
}

/* Registers of each lane that warps have asked for, in their order. */
static std::vector<std::vector<uint32_t>> register_counts;

/* Registers that a launch gives each lane at most: all of a multiprocessor, divided among the block's. */
static uint32_t launched_registers() { return 65536 / (warps_a_block * 32) / 8 * 8; }

static void set_registers(Warp &w, uint32_t lanes) {
  const Request &r = w.request(__builtin_ctz(lanes));
  uint32_t count = uint32_t(r.value), component = w.clock.component;
  if (count % 8 || count < 24 || count > 256) {
    set_fault("setmaxnreg at {at:%u} asks for %u registers: a multiple of 8 from 24 to 256", r.site, count);
    return;
  }
  auto &mine = register_counts[component];
  // Until the first change a lane has what the launch divides among all lanes, or less.
  uint32_t most = mine.empty() ? launched_registers() : mine.back();
  uint32_t least = mine.empty() ? 0 : mine.back();
  if (r.number ? count < least : count > most) {
    set_fault("setmaxnreg at {at:%u} %screases the registers of warp %d to %u, which has %s%u", r.site,
              r.number ? "in" : "de", w.number, count, mine.empty() ? "at most " : "", most);
    return;
  }
  mine.push_back(count);
  uint32_t block = component / warps_a_block * warps_a_block;
  uint32_t first = component - uint32_t(w.number % 4), last = std::min(first + 4, block + warps_a_block);
  for (uint32_t other = first; other < last; other++) {
    auto &theirs = register_counts[other];
    if (theirs.size() < mine.size() || theirs[mine.size() - 1] == count) continue;
    set_fault("setmaxnreg at {at:%u}: warp %d asks for %u registers, and another warp of its group for %u",
              r.site, w.number, count, theirs[mine.size() - 1]);
    return;
  }
  uint32_t sum = 0;
  for (uint32_t other = block; other < block + warps_a_block; other++)
    if (!register_counts[other].empty()) sum += 32 * register_counts[other].back();
  if (sum > 65536)
    set_fault("setmaxnreg at {at:%u}: the warps of the block ask for %u registers of 65536", r.site, sum);
}
extern "C" void executor_setmaxnreg(ExecutorFunction &function, uint32_t count, bool increases) {
  Request r{&function, set_registers, CALLER, ~0u};
  r.value = count, r.number = increases;
  collective(r);
}

/* --------------------------------------------------------------------- dependent launches */

/* The kernel before is done, and what it wrote is there. */
extern "C" void executor_wait_for_grid(ExecutorFunction &function) {
  count(function);
  if (previous_grid == 0) return;
  auto learned = share();
  learned->order.raise(previous_grid, 1);
  warp->clock.acquire(1u << lane_number, learned, &previous_grid, 1);
}
extern "C" void executor_launch_dependents(ExecutorFunction &function) { count(function); }

/* A block ends: each group of four warps has set its registers together. */
static void check_registers(const Block &block) {
  for (uint32_t first = block.rank * warps_a_block; first < (block.rank + 1) * warps_a_block; first += 4)
    for (uint32_t other = first; other < first + 4 && other < (block.rank + 1) * warps_a_block; other++)
      if (register_counts[other].size() != register_counts[first].size()) {
        set_fault("setmaxnreg was executed %zu times by warp %u and %zu times by warp %u of its group",
                  register_counts[first].size(), first % warps_a_block, register_counts[other].size(),
                  other % warps_a_block);
        return;
      }
  uint32_t first = block.rank * warps_a_block, sum = 0, changed = 0;
  for (uint32_t n = first; n < first + warps_a_block; n++) {
    changed += !register_counts[n].empty();
    sum += register_counts[n].empty() ? launched_registers() : register_counts[n].back();
  }
  // What a warp adds, others have to give back: until then it waits.
  if (changed && sum > launched_registers() * warps_a_block)
    set_fault("setmaxnreg waits for ever: the warps of the block ask for %u registers of %u, those of warps that "
              "ask for none included", 32 * sum, 32 * launched_registers() * warps_a_block);
}
