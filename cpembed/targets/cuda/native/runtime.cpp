/* Runs the kernels of a text that is linked with this file: block after block, warp after warp.

   One thread of the host does it all, so nothing here is locked. */
#include "fiber.h"
#include "matrix_functions.h"
#include "memory_functions.h"
#include "plain.h"
#include "random.h"
#include "warp.h"
#include "warp_functions.h"
#include "wmma_functions.h"

#include <memory>

extern "C" {
struct ExecutorBuffer {
  unsigned char *base;
  uint64_t bytes;
  int32_t argument;
};

struct ExecutorLaunch {
  void (*invoke)(void **);
  void **arguments;
  const ExecutorBuffer *buffers;
  int32_t buffer_count;
  int32_t order;  // 0 forward, 1 backward, 2 by `seed`.
  uint64_t seed;
  uint32_t grid[3], block[3];
  uint32_t shared_bytes;
};
}

struct Index {
  unsigned x, y, z;
};

static ExecutorLaunch launched;
static Index block_index;
static Stacks stacks;
static std::vector<std::unique_ptr<Warp>> warps;

extern "C" Index executor_thread_index() { return {lane->index[0], lane->index[1], lane->index[2]}; }
extern "C" Index executor_block_index() { return block_index; }
extern "C" Index executor_block_size() {
  return {launched.block[0], launched.block[1], launched.block[2]};
}
extern "C" Index executor_grid_size() { return {launched.grid[0], launched.grid[1], launched.grid[2]}; }
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

static void begin_block() {
  epoch = 1;
  shared_memory.begin(launched.shared_bytes);
  unsigned x = launched.block[0], y = launched.block[1];
  unsigned threads = x * y * launched.block[2];
  for (unsigned number = 0; number * 32 < threads; number++) {
    if (warps.size() <= number) warps.push_back(std::make_unique<Warp>());
    Warp &w = *warps[number];
    unsigned lanes = std::min(32u, threads - number * 32);
    w.number = int(number);
    w.live = w.ready = lanes == 32 ? ~0u : (1u << lanes) - 1;
    w.phase = 0, w.ended = false;
    w.accesses.clear();
    for (unsigned l = 0; l < lanes; l++) {
      unsigned thread = number * 32 + l;
      Lane &made = w.lanes[l];
      char *top = stacks.top(thread);
      if (top == nullptr) {
        set_fault("no memory for the stacks of %u threads", threads);
        return;
      }
      made.stack = fiber_start(top, thread_body);
      made.stack_low = stacks.bottom(thread), made.stack_high = made.stack_low + Stacks::kBytes;
      made.index[0] = thread % x, made.index[1] = thread / x % y, made.index[2] = thread / x / y;
      made.place = kRunning, made.request = nullptr;
      made.open_group.clear(), made.groups.clear();
    }
  }
  warps.resize((threads + 31) / 32);
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
      snprintf(made.text, sizeof made.text, "in __syncthreads at {at:%u}", l.barrier);
      break;
    default: snprintf(made.text, sizeof made.text, "at the end of the kernel");
  }
  return made;
}

/* No lane of the warp can go on: it is at a barrier, or at its end; anything else is a fault. */
static void settle(Warp &w) {
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
  w.ended = w.lanes[first].place == kEnded;
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

static void run_block() {
  begin_block();
  while (!faulted) {
    if (launched.order == 2) backwards = random_number() & 1;
    for (uint32_t number : in_order(warps.size())) {
      run_warp(*warps[number]);
      if (faulted) return;
    }
    size_t ended = 0;
    for (auto &w : warps) ended += w->ended;
    if (ended == warps.size()) return;
    for (auto &w : warps)
      if (ended && !w->ended) {
        size_t other = 0;
        while (!warps[other]->ended) other++;
        set_fault("a barrier is not reached by all: warp %d waits at {at:%u} and warp %zu is at the end "
                  "of the kernel", w->number, w->lanes[0].barrier, other);
        return;
      }
    epoch++;
    tally.barriers++;
    for (auto &w : warps) {
      w->phase++;
      w->ready = w->live;
      for (Lane &l : w->lanes) l.place = kRunning;
    }
  }
}

/* The fault as one line; null where there was none. */
extern "C" __attribute__((visibility("default"))) const char *executor_run(
    const ExecutorLaunch *launch) {
  launched = *launch;
  faulted = false;
  backwards = launched.order == 1;
  random_state = launched.seed;
  tally = Tally{};
  forget_calls();
  global_memory.begin();
  for (int i = 0; i < launched.buffer_count; i++)
    global_memory.add(launched.buffers[i].base, launched.buffers[i].bytes,
                      launched.buffers[i].argument);
  size_t blocks = size_t(launched.grid[0]) * launched.grid[1] * launched.grid[2];
  for (uint32_t block : in_order(blocks)) {
    block_index = {block % launched.grid[0], block / launched.grid[0] % launched.grid[1],
                   block / launched.grid[0] / launched.grid[1]};
    run_block();
    if (faulted) break;
    tally.blocks++;
  }
  global_memory.count_unique();
  return faulted ? fault_text : nullptr;
}

extern "C" __attribute__((visibility("default"))) const uint32_t *executor_block_of_fault() {
  static uint32_t index[3];
  index[0] = block_index.x, index[1] = block_index.y, index[2] = block_index.z;
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
