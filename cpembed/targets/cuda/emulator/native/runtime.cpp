/* Runs the kernels of a text that is linked with this file: block after block, warp after warp.

   One thread of the host does it all, so nothing here is locked. */
#include "fiber.h"
#include "matrix_functions.h"
#include "memory_functions.h"
#include "plain.h"
#include "random.h"
#include "warp.h"
#include "atomics.h"
#include "bulk_copy.h"
#include "cluster.h"
#include "mbarrier.h"
#include "warp_functions.h"
#include "warp_group.h"
#include "wmma_functions.h"

#include <memory>

extern "C" {
struct ExecutorBuffer {
  unsigned char *base;
  uint64_t bytes;
  int32_t argument;
  uint64_t *initialised;
  bool tracked = true;  // Whether readers are noted.
};

struct ExecutorLaunch {
  void (*invoke)(void **);
  void **arguments;
  const ExecutorBuffer *buffers;
  int32_t buffer_count;
  int32_t order;  // 0 forward, 1 backward, 2 by `seed`.
  uint64_t seed;
  uint32_t grid[3], block[3], cluster[3];
  uint32_t shared_bytes, shared_alignment;
  const uint32_t *clusters;  // Numbers of those that run; null: all of them.
  uint64_t cluster_count;
  bool computes = true;  // Else products leave their sums as they are.
  uint64_t steps = 1 << 24;  // Most basic blocks of a lane.
  bool multiplies_registers;
  bool dependent;  // May begin before the kernel before it ends.
};
}

static ExecutorLaunch launched;
static Stacks stacks;
static std::vector<std::unique_ptr<Block>> blocks;  // Of the cluster that runs.
static std::vector<std::unique_ptr<Warp>> warps;    // Of all these blocks, by their components.

struct Index {
  unsigned x, y, z;
};

static Index index_of(const unsigned *xyz) { return {xyz[0], xyz[1], xyz[2]}; }

extern "C" Index executor_thread_index() { return index_of(lane->index); }
extern "C" Index executor_block_index() { return index_of(warp->block->index); }
extern "C" Index executor_block_size() { return index_of(launched.block); }
extern "C" Index executor_grid_size() { return index_of(launched.grid); }
extern "C" uint32_t executor_cluster_rank() { return warp->block->rank; }
extern "C" uint32_t executor_cluster_blocks() { return blocks_a_cluster; }
extern "C" Index executor_cluster_size() { return index_of(launched.cluster); }
extern "C" Index executor_cluster_count() {
  const uint32_t *g = launched.grid, *c = launched.cluster;
  return {g[0] / c[0], g[1] / c[1], g[2] / c[2]};
}
extern "C" Index executor_cluster_index() {
  const unsigned *i = warp->block->index, *c = launched.cluster;
  return {i[0] / c[0], i[1] / c[1], i[2] / c[2]};
}
extern "C" Index executor_index_in_cluster() {
  const unsigned *i = warp->block->index, *c = launched.cluster;
  return {i[0] % c[0], i[1] % c[1], i[2] % c[2]};
}
extern "C" void *executor_dynamic_shared() { return shared_memory.dynamic(warp->block->rank); }
extern "C" uint32_t executor_lane() { return uint32_t(lane_number); }
extern "C" uint32_t executor_warp() { return uint32_t(warp->number); }

static std::vector<uint32_t> in_order(size_t count) {
  std::vector<uint32_t> made(count);
  for (size_t i = 0; i < count; i++) made[i] = uint32_t(launched.order == 1 ? count - 1 - i : i);
  if (launched.order == 2)
    for (size_t i = count; i > 1; i--) std::swap(made[i - 1], made[random_number() % i]);
  return made;
}

static void thread_body() {
  launched.invoke(launched.arguments);
  lane->request = nullptr;
  park(kEnded);
  __builtin_unreachable();
}

static void begin_lanes(Warp &w, unsigned first_thread, unsigned first_stack, unsigned lanes) {
  unsigned x = launched.block[0], y = launched.block[1];
  for (unsigned l = 0; l < lanes && !faulted; l++) {
    unsigned thread = first_thread + l;
    Lane &made = w.lanes[l];
    char *top = stacks.top(first_stack + l);
    if (top == nullptr) {
      set_fault("no memory for the stacks of all threads");
      return;
    }
    made.stack = fiber_start(top, thread_body);
    made.stack_low = stacks.bottom(first_stack + l), made.stack_high = made.stack_low + Stacks::kBytes;
    made.index[0] = thread % x, made.index[1] = thread / x % y, made.index[2] = thread / x / y;
    made.steps = 0;
    made.place = kRunning, made.request = nullptr, made.waiter = nullptr;
    made.copies.clear(), made.fenced_maps.clear();
    made.retry = {};
    // Not a new object: its queue would be allocated for each thread of each block.
    made.stores.open.clear(), made.stores.groups.clear();
    made.stores.committed = made.stores.read = 0;
    made.stores.agent = made.stores.writes_agent = 0;
  }
}

/* The blocks of a cluster begin; `first`: the index of its first block in the grid. */
static void begin_cluster(const unsigned *first) {
  running_cluster++;
  unsigned threads = launched.block[0] * launched.block[1] * launched.block[2];
  unsigned a_block = (threads + 31) / 32;
  unsigned count = launched.cluster[0] * launched.cluster[1] * launched.cluster[2];
  shared_memory.begin(count, launched.shared_bytes, launched.shared_alignment);
  if (count > 1 && shared_memory.static_bytes())
    set_fault("a kernel with static shared memory is launched with clusters, which need dynamic shared memory");
  warp_clocks.clear(), agents.clear(), barriers.clear();
  warps_a_block = a_block, blocks_a_cluster = count;
  blocks.resize(count), warps.resize(count * a_block);
  for (unsigned rank = 0; rank < count; rank++) {
    blocks[rank] = std::make_unique<Block>();
    Block &block = *blocks[rank];
    block.rank = rank, block.threads = threads, block.warps = a_block;
    unsigned inside[3] = {rank % launched.cluster[0], rank / launched.cluster[0] % launched.cluster[1],
                          rank / launched.cluster[0] / launched.cluster[1]};
    for (int d = 0; d < 3; d++) block.index[d] = first[d] + inside[d];
    for (unsigned number = 0; number < a_block; number++) {
      auto &slot = warps[rank * a_block + number];
      if (!slot) slot = std::make_unique<Warp>();
      Warp &w = *slot;
      unsigned lanes = std::min(32u, threads - number * 32);
      w.number = int(number), w.block = &block;
      w.live = w.ready = lanes == 32 ? ~0u : (1u << lanes) - 1;
      w.blocked = 0, w.ended = false;
      w.accesses.clear();
      w.clock.begin(rank * a_block + number, w.live);
      warp_clocks.push_back(&w.clock);
      begin_lanes(w, number * 32, rank * threads + number * 32, lanes);
    }
  }
  previous_grid = launched.dependent ? make_agent("the kernel before") : 0;
  begin_cluster_barrier();
  begin_remote_accesses();
  begin_warp_groups();
  register_counts.assign(warp_clocks.size(), {});
}

/* All warps of a block are at the end of the kernel. */
static void end_block(const Block &block) {
  end_barriers(block);
  for (uint32_t n = 0; n < block.warps && !faulted; n++) {
    end_products(*warps[block.rank * warps_a_block + n]);
    if (!faulted) end_stores(*warps[block.rank * warps_a_block + n]);
  }
  if (!faulted) check_registers(block);
  if (!faulted) end_remote_accesses(block);
}

struct Where {
  char text[160];
};

static Where where(const Lane &l) {
  Where made;
  switch (l.place) {
    case kInCollective:
      snprintf(made.text, sizeof made.text, "in %s at {at:%u}", l.request->function->name,
               l.request->site);
      break;
    case kAtBarrier:
      snprintf(made.text, sizeof made.text, "in %s at {at:%u}", l.barrier.function->name,
               l.barrier.site);
      break;
    case kBlocked:
      snprintf(made.text, sizeof made.text, "waiting at {at:%u}", l.waiter->site);
      break;
    default: snprintf(made.text, sizeof made.text, "at the end of the kernel");
  }
  return made;
}

/* No lane of the warp can go on: it is at a barrier, or at its end, or some of its lanes wait for
   something; anything else is a fault. */
static void settle(Warp &w) {
  if (w.blocked) return;
  int first = __builtin_ctz(w.live);
  for (uint32_t rest = w.live; rest; rest &= rest - 1) {
    int other = __builtin_ctz(rest);
    Place place = w.lanes[other].place;
    if (place == w.lanes[first].place && place != kInCollective) continue;
    bool same = other == first;  // A collective function that waits for lanes that do not come.
    for (int l = first; same && l < 32; l++)
      if (w.live >> l & 1 && strcmp(where(w.lanes[l]).text, where(w.lanes[first]).text) != 0)
        same = false, other = l;
    set_fault("divergence: lane %d of warp %d is %s while lane %d is %s", first, w.number,
              where(w.lanes[first]).text, other, where(w.lanes[other]).text);
    return;
  }
  w.accesses.settle();
  if (w.lanes[first].place == kEnded) {
    w.ended = true;
    progress++;
    if (++w.block->ended == w.block->warps) end_block(*w.block);
    return;
  }
  const BarrierCall &call = w.lanes[first].barrier;
  for (uint32_t rest = w.live; rest; rest &= rest - 1) {
    const BarrierCall &other = w.lanes[__builtin_ctz(rest)].barrier;
    if (other.number == call.number && other.threads == call.threads) continue;
    set_fault("divergence: lanes %d and %d of warp %d are at barriers %u and %u, at {at:%u} and {at:%u}",
              first, __builtin_ctz(rest), w.number, call.number, other.number, call.site, other.site);
    return;
  }
  come_to_barrier(w, call, true);
}

static void run_warp(Warp &w) {
  do {
    enter(w, next_ready(w));
    executor_switch(&scheduler, lane->stack);
    if (faulted) break;
  } while (wake_active(w));
  if (!faulted) settle(w);
  lane = nullptr;
}

/* Whether lanes that may return from a wait with nothing having happened have been made to. */
static bool wake_failing() {
  static uint64_t last;
  bool woken = false;
  if (progress == last) return false;  // They were woken before, and nothing came of it.
  for (auto &w : warps)
    for (uint32_t rest = w->blocked; rest; rest &= rest - 1) {
      int number = __builtin_ctz(rest);
      Waiter &waiter = *w->lanes[number].waiter;
      if (!waiter.may_fail) continue;
      waiter.failed = woken = true;
      unblock(*w, number);
    }
  last = progress;
  return woken;
}

/* Nothing can go on. */
static void report_deadlock() {
  const Warp *ended = nullptr, *at_barrier = nullptr;
  std::string lines;
  int count = 0;
  for (auto &w : warps) {
    const Lane &first = w->lanes[__builtin_ctz(w->live)];
    if (w->ended) {
      if (!ended) ended = w.get();
      continue;
    }
    std::string who = doer(w->clock.component, uint64_t{1} << kCollective), line;
    if (w->blocked) {
      const Lane &l = w->lanes[__builtin_ctz(w->blocked)];
      who = doer(w->clock.component, w->blocked);
      line = who + " waits at {at:" + decimal(l.waiter->site) + "} for " +
             l.waiter->text(*l.waiter);
    } else {
      if (!at_barrier) at_barrier = w.get();
      const NamedBarrier &b = w->block->barriers[first.barrier.number];
      line = who + " waits at {at:" + decimal(first.barrier.site) + "} at barrier " +
             decimal(first.barrier.number) + ", where " + decimal(b.arrived) + " of " +
             decimal(b.expected) + " threads are";
    }
    if (count++ < 3) lines += (lines.empty() ? "" : "; ") + line;
  }
  bool only_barriers = true;
  for (auto &w : warps) only_barriers &= w->ended || !w->blocked;
  if (only_barriers && ended && at_barrier && at_barrier->lanes[0].barrier.number == 0 && count > 0) {
    set_fault("a barrier is not reached by all: warp %d waits at {at:%u} and warp %d is at the end "
              "of the kernel", at_barrier->number, at_barrier->lanes[0].barrier.site, ended->number);
    return;
  }
  if (count > 3) lines += "; and " + decimal(count - 3) + " more warps wait";
  set_fault("deadlock: %s", lines.c_str());
}

static void run_cluster(const unsigned *first) {
  begin_cluster(first);
  while (!faulted) {
    if (launched.order == 2) backwards = random_number() & 1;
    bool ran = false;
    for (uint32_t number : in_order(warps.size())) {
      Warp &w = *warps[number];
      if (w.blocked) wake_ready(w);
      if (faulted) return;
      if (w.ready == 0) continue;
      ran = true;
      run_warp(w);
      if (faulted) return;
    }
    if (ran) continue;
    size_t ended = 0;
    for (auto &w : warps) ended += w->ended;
    if (ended == warps.size()) return;
    if (!wake_failing()) report_deadlock();
  }
}

/* The fault as one line; null where there was none. */
extern "C" __attribute__((visibility("default"))) const char *executor_run(
    const ExecutorLaunch *launch) {
  launched = *launch;
  multiplies_registers = launched.multiplies_registers;
  computes = launched.computes, most_steps = launched.steps;
  faulted = false;
  order_of_lanes = launched.order;
  backwards = elects_last = launched.order == 1;
  random_state = launched.seed;
  tally = Tally{};
  forget_calls();
  global_memory.begin();
  global_races.begin();
  locations.clear();
  running_cluster = 0;
  for (int i = 0; i < launched.buffer_count; i++)
    global_memory.add(launched.buffers[i].base, launched.buffers[i].bytes,
                      launched.buffers[i].argument, launched.buffers[i].initialised,
                      launched.buffers[i].tracked);
  if (launched.dependent) global_memory.begin_dependent();
  unsigned clusters[3];
  for (int d = 0; d < 3; d++) clusters[d] = launched.grid[d] / launched.cluster[d];
  size_t count = launched.clusters ? launched.cluster_count : size_t(clusters[0]) * clusters[1] * clusters[2];
  for (uint32_t number : in_order(count)) {
    if (launched.clusters) number = launched.clusters[number];
    unsigned first[3] = {number % clusters[0], number / clusters[0] % clusters[1],
                         number / clusters[0] / clusters[1]};
    for (int d = 0; d < 3; d++) first[d] *= launched.cluster[d];
    run_cluster(first);
    if (faulted) break;
    tally.blocks += blocks.size();
  }
  global_memory.count_unique();
  return faulted ? fault_text : nullptr;
}

extern "C" __attribute__((visibility("default"))) const uint32_t *executor_block_of_fault() {
  static uint32_t index[3];
  for (int d = 0; d < 3; d++) index[d] = warp ? warp->block->index[d] : 0;
  return index;
}

/* Counters by number: a name, or null after the last one. */
extern "C" __attribute__((visibility("default"))) const char *executor_counter(int number,
                                                                               uint64_t *value) {
  static const char *const names[] = {
#define X(name) #name,
      EXECUTOR_COUNTERS(X)
#undef X
  };
  const uint64_t values[] = {
#define X(name) tally.name,
      EXECUTOR_COUNTERS(X)
#undef X
  };
  if (number >= int(sizeof names / sizeof *names)) return nullptr;
  *value = values[number];
  return names[number];
}

extern "C" __attribute__((visibility("default"))) const char *executor_function(int number,
                                                                                uint64_t *calls) {
  Function *function = called_functions;
  while (number-- > 0 && function != nullptr) function = function->next;
  if (function == nullptr) return nullptr;
  *calls = function->calls;
  return function->name;
}
