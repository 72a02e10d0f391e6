/* Warps, their lanes, and how they run: lane after lane until each has come to the same collective
   function, which the last one to come executes for all. */
#pragma once

#include <cstdint>
#include <deque>
#include <set>
#include <string>
#include <vector>

#include "accesses.h"
#include "counters.h"
#include "fault.h"
#include "fiber.h"
#include "global_memory.h"
#include "shared_memory.h"
#include "global_races.h"

struct Warp;

/* A collective function that a lane waits in; it lies in the lane's stack. */
struct Request {
  Function *function;
  void (*run)(Warp &, uint32_t lanes);
  Site site;
  uint32_t lanes;  // Which have to come: all that live, or a mask of the text.
  void *registers = nullptr;
  const void *first = nullptr, *second = nullptr;
  int64_t number = 0;
  uint64_t value = 0;
};

struct Copy {
  unsigned char *to;
  const unsigned char *from;
  int bytes, source_bytes;  // Beyond those of the source are zeros.
  bool landed = false;      // A barrier object that the copies arrive at was waited for.
};

/* Copies of cp.async of a lane that are in flight, in their groups. */
struct Copies {
  std::vector<Copy> queue;
  std::vector<uint64_t> ends;  // Of the committed groups that are not waited for, as numbers of copies.
  size_t first_end = 0;
  uint64_t done = 0;           // Copies before those of the queue.
  Clock landed;                // Of barrier objects that copies have arrived at.

  uint64_t issued() const { return done + queue.size(); }
  size_t groups() const { return ends.size() - first_end; }
  void clear() {
    queue.clear(), ends.clear(), landed.clear();
    first_end = 0, done = 0;
  }
};

enum Place : uint8_t { kRunning, kInCollective, kAtBarrier, kBlocked, kEnded };

/* A barrier of the block that a lane waits at. */
struct BarrierCall {
  Function *function;
  Site site;
  uint32_t number, threads;
};

/* What a lane waits for on its own, as lanes do at a barrier object; it lies in the lane's stack. */
struct Waiter {
  bool (*ready)(Waiter &);
  std::string (*text)(const Waiter &);
  Site site;
  Warp *warp;
  int lane;
  void *object = nullptr;
  uint64_t number = 0;
  bool may_fail = false;  // mbarrier.try_wait may return with nothing having happened.
  bool failed = false;
};

/* A wait that returned before it was over, as it may once: the next one of the lane waits. */
struct Retry {
  const void *object = nullptr;
  uint64_t number = 0;
};

/* An operation of a bulk store, and the type of its elements; -1: none. */
struct Reduction {
  int operation, kind;
};

/* A bulk store that a lane has issued: its copies are made when they are waited for. */
struct BulkStore {
  struct Piece {
    unsigned char *to;
    const unsigned char *from;
    size_t bytes;
  };
  std::vector<Piece> pieces;
  Site site;
  Reduction reduction = {-1, 0};
};

struct BulkStores {
  std::vector<BulkStore> open;
  std::deque<std::vector<BulkStore>> groups;  // Committed, not waited for.
  uint32_t committed = 0, read = 0;
  uint32_t agent = 0, writes_agent = 0;  // Of the reads of sources, and of the writes.
};

struct Lane {
  void *stack = nullptr;
  const char *stack_low = nullptr, *stack_high = nullptr;
  unsigned index[3] = {};
  Place place = kRunning;
  uint64_t steps = 0;  // Basic blocks that it has entered.
  Request *request = nullptr;
  BarrierCall barrier = {};
  Waiter *waiter = nullptr;
  Retry retry;
  Copies copies;
  std::set<const void *> fenced_maps;  // Tensor maps of which it may use what was written.
  BulkStores stores;
};

struct NamedBarrier {
  uint32_t arrived = 0, expected = 0;
  Site site = 0;
  Knowledge released;
  std::vector<Warp *> waiting;
};

/* A block that runs, alone or with the others of its cluster. */
struct Block {
  uint32_t rank = 0;
  unsigned index[3] = {};
  uint32_t threads = 0, warps = 0, ended = 0;
  NamedBarrier barriers[16];
};

struct Warp {
  int number = 0;  // In its block.
  Block *block = nullptr;
  WarpClock clock;
  uint32_t live = 0;   // The lanes that it has.
  uint32_t ready = 0;  // Those that can go on.
  uint32_t blocked = 0;  // Those with a waiter.
  bool ended = false;
  Lane lanes[32];
  Accesses accesses;

  Request &request(int lane) { return *lanes[lane].request; }
};

static SharedMemory shared_memory;
static GlobalMemory global_memory;
static Warp *warp;          // That runs.
static Lane *lane;
static int lane_number;
static bool backwards;      // The order of lanes.
static void *scheduler;     // Its stack.
static int order_of_lanes;  // 0 forward, 1 backward, 2 at random.
static bool computes;       // Else products are counted, and not computed.

/* The kernel before, of a launch that may begin while it runs (griddepcontrol): its agent, else 0. */
static uint32_t previous_grid;

/* What the kernel before has written may be accessed by those who know that it is done. */
static bool after_previous_grid(const GlobalMemory::Buffer &buffer, const void *p, size_t bytes,
                                const char *what, Site site) {
  if (previous_grid == 0 || buffer.before.empty()) return true;
  if (warp->clock.knows(make_stamp(previous_grid, 0, 1), lane_number)) return true;
  size_t start = size_t(static_cast<const unsigned char *>(p) - buffer.base);
  if (!GlobalMemory::any(buffer.before.data(), start, bytes)) return true;
  set_fault("%s of %s at {at:%u} accesses what the kernel before has written: no griddepcontrol.wait is before "
            "it", what, doer(make_stamp(warp->clock.component, lane_number, 0)).c_str(), site);
  return false;
}

/* What has happened that may let a waiting lane go on. */
static uint64_t progress;

static inline Stamp now(int as_lane) {
  return make_stamp(warp->clock.component, as_lane, warp->clock.time);
}
static inline Stamp now() { return now(lane_number); }

/* Whether the running lane, or `actor` for it, may access bytes of global memory; else a fault is set. */
static inline bool global_access(const void *p, size_t bytes, size_t alignment, State state, const char *what,
                                 Site site, const Actor &actor, bool constant = false) {
  GlobalMemory::Buffer *buffer =
      global_memory.touch(p, bytes, alignment, state != kUnset, what, site, state == kAtomic);
  if (buffer == nullptr || !after_previous_grid(*buffer, p, bytes, what, site)) return false;
  return (!buffer->tracked && !buffer->may_race) ||
         global_races.access(p, bytes, state, actor, what, site, buffer->tracked, constant);
}

static inline int next_ready(const Warp &w) {
  return backwards ? 31 - __builtin_clz(w.ready) : __builtin_ctz(w.ready);
}

static inline void enter(Warp &w, int number) {
  warp = &w;
  lane_number = number;
  lane = &w.lanes[number];
}

/* The lane stops; another one of its warp goes on, or the scheduler. */
static inline void park(Place place) {
  Lane *self = lane;
  self->place = place;
  warp->ready &= ~(1u << lane_number);
  if (warp->ready == 0 || faulted) {
    executor_switch(&self->stack, scheduler);
    return;
  }
  enter(*warp, next_ready(*warp));
  executor_switch(&self->stack, lane->stack);
}

/* After a fault: this fiber is left where it is. */
[[noreturn]] static void abandon() {
  void *left;
  executor_switch(&left, scheduler);
  __builtin_unreachable();
}

#define REQUIRE(condition) \
  do { \
    if (__builtin_expect(!(condition), 0)) abandon(); \
  } while (0)

/* The lane waits until its waiter is ready, or is told that it fails. */
static void wait_for(Waiter &waiter) {
  waiter.warp = warp, waiter.lane = lane_number;
  if (waiter.ready(waiter) || faulted) {
    REQUIRE(!faulted);
    return;
  }
  lane->waiter = &waiter;
  warp->blocked |= 1u << lane_number;
  park(kBlocked);
  if (__builtin_expect(faulted, 0)) abandon();
}

static void unblock(Warp &w, int number) {
  w.lanes[number].place = kRunning;
  w.blocked &= ~(1u << number);
  w.ready |= 1u << number;
}

/* Lanes whose waiters are ready can go on. */
static void wake_ready(Warp &w) {
  for (uint32_t rest = w.blocked; rest && !faulted; rest &= rest - 1) {
    int number = __builtin_ctz(rest);
    if (w.lanes[number].waiter->ready(*w.lanes[number].waiter)) unblock(w, number);
  }
}

/* Whether all lanes of a request have come to it. */
static bool complete(const Warp &w, const Request &r) {
  for (uint32_t rest = r.lanes; rest; rest &= rest - 1) {
    const Lane &other = w.lanes[__builtin_ctz(rest)];
    if (other.place != kInCollective || other.request->function != r.function ||
        other.request->lanes != r.lanes)
      return false;
  }
  return true;
}

/* The lane comes to a collective function and goes on when it has been executed. */
static inline void collective(Request &r) {
  r.lanes &= warp->live;
  lane->request = &r;
  lane->place = kInCollective;
  uint32_t others = warp->ready & ~(1u << lane_number) & r.lanes;
  if (others || !complete(*warp, r)) {
    park(kInCollective);
    return;
  }
  count(*r.function);
  r.run(*warp, r.lanes);
  if (__builtin_expect(faulted, 0)) abandon();
  for (uint32_t rest = r.lanes; rest; rest &= rest - 1)
    warp->lanes[__builtin_ctz(rest)].place = kRunning;
  warp->ready |= r.lanes;
}
