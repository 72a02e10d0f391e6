/* Warps, their lanes, and how they run: lane after lane until each has come to the same collective
   function, which the last one to come executes for all. */
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

#include "counters.h"
#include "fault.h"
#include "fiber.h"
#include "global_memory.h"
#include "shared_memory.h"
#include "traffic.h"

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
  int bytes;
  bool valid;
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

/* A bulk store that a lane has issued: its copies are made when they are waited for. */
struct BulkStore {
  struct Piece {
    unsigned char *to;
    const unsigned char *from;
    size_t bytes;
  };
  std::vector<Piece> pieces;
  Site site;
};

struct BulkStores {
  std::vector<BulkStore> open;
  std::deque<std::vector<BulkStore>> groups;  // Committed, not waited for.
  uint32_t committed = 0, read = 0, agent = 0;
};

struct Lane {
  void *stack = nullptr;
  const char *stack_low = nullptr, *stack_high = nullptr;
  unsigned index[3] = {};
  Place place = kRunning;
  Request *request = nullptr;
  BarrierCall barrier = {};
  Waiter *waiter = nullptr;
  uint64_t accesses = 0;  // How many it has made.
  std::vector<Copy> open_group;
  std::deque<std::vector<Copy>> groups;
  BulkStores stores;
};

/* An access through a device function, for which the warp's lanes come one after the other. */
struct Access {
  Function *function;
  Site site;
  int bytes;
  uint32_t came = 0, valid = 0;
  uint32_t shared[32];
  uint64_t global[32];
};

/* Plain accesses that are made at one place of the text; plain.h. */
struct PlainGroup {
  uint32_t came = 0;
  uint64_t address[32];  // In shared memory the offset.
};

struct PlainPlace {
  int bytes;
  bool shared, writes;
  uint64_t times[32] = {};  // That each lane has been here.
  std::deque<PlainGroup> groups;
  uint64_t accounted = 0;  // Groups before those of the queue.
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
  std::deque<Access> accesses;
  uint64_t accounted = 0;  // Accesses before those of the queue.
  std::unordered_map<uint64_t, PlainPlace> plain;

  Request &request(int lane) { return *lanes[lane].request; }
};

static SharedMemory shared_memory;
static GlobalMemory global_memory;
static Warp *warp;          // That runs.
static Lane *lane;
static int lane_number;
static bool backwards;      // The order of lanes.
static void *scheduler;     // Its stack.

/* What has happened that may let a waiting lane go on. */
static uint64_t progress;

static inline Stamp now(int as_lane) {
  return make_stamp(warp->clock.component, as_lane, warp->clock.time);
}
static inline Stamp now() { return now(lane_number); }

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

static bool same_accesses(Warp &w, uint32_t lanes) {
  const Lane &first = w.lanes[__builtin_ctz(lanes)];
  for (uint32_t rest = lanes; rest; rest &= rest - 1) {
    int other = __builtin_ctz(rest);
    if (w.lanes[other].accesses == first.accesses) continue;
    set_fault("divergence: lanes %d and %d of warp %d have made %llu and %llu accesses when they come to "
              "%s", __builtin_ctz(lanes), other, w.number, (unsigned long long)first.accesses,
              (unsigned long long)w.lanes[other].accesses,
              first.request ? first.request->function->name : "a barrier");
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
  if (r.lanes == warp->live) REQUIRE(same_accesses(*warp, r.lanes));
  r.function->calls++;
  r.run(*warp, r.lanes);
  if (__builtin_expect(faulted, 0)) abandon();
  for (uint32_t rest = r.lanes; rest; rest &= rest - 1)
    warp->lanes[__builtin_ctz(rest)].place = kRunning;
  warp->ready |= r.lanes;
}

/* A function of a lane without addresses, for which a warp's lanes come one after the other. */
static inline void count_call(Function &function) {
  if (lane_number == __builtin_ctz(warp->live)) function.calls++;
}

/* ------------------------------------------------------------------------------- accesses */

static void count_shared(const Wavefronts &cost, bool writes) {
  (writes ? tally.shared_store_wavefronts : tally.shared_load_wavefronts) += cost.taken;
  (writes ? tally.shared_store_wavefronts_least : tally.shared_load_wavefronts_least) += cost.least;
}

static void count_global(uint64_t *addresses, int count, int bytes, bool writes) {
  Sectors cost = global_cost(addresses, count, bytes);
  (writes ? tally.global_store_sectors : tally.global_load_sectors) += cost.taken;
  (writes ? tally.global_store_sectors_least : tally.global_load_sectors_least) += cost.least;
  (writes ? tally.global_store_bytes : tally.global_load_bytes) += uint64_t(count) * uint64_t(bytes);
}

enum Kind { kGlobalLoad, kGlobalStore, kSharedLoad, kSharedStore, kCopy };

static void account(Access &a, Kind kind) {
  a.function->calls++;
  if (kind != kGlobalLoad && kind != kGlobalStore)
    count_shared(shared_cost(a.shared, a.came, a.bytes), kind != kSharedLoad);
  if (kind == kSharedLoad || kind == kSharedStore) return;
  uint64_t addresses[32];
  int count = 0;
  for (uint32_t rest = a.valid; rest; rest &= rest - 1)
    addresses[count++] = a.global[__builtin_ctz(rest)];
  count_global(addresses, count, a.bytes, kind == kGlobalStore);
}

/* The lane makes its next access; the last lane to make it completes the warp's. */
static inline void access(Function &function, Kind kind, Site site, const void *in_shared,
                          const void *in_global, int bytes, bool valid) {
  uint64_t place = lane->accesses++ - warp->accounted;
  if (place == warp->accesses.size()) {
    warp->accesses.emplace_back();
    Access &made = warp->accesses.back();
    made.function = &function, made.site = site, made.bytes = bytes;
  }
  Access &a = warp->accesses[place];
  if (__builtin_expect(a.function != &function, 0)) {
    set_fault("divergence: lane %d of warp %d calls %s at {at:%u} where lane %d calls %s at {at:%u}",
              lane_number, warp->number, function.name, site, __builtin_ctz(a.came),
              a.function->name, a.site);
    abandon();
  }
  if (in_shared) a.shared[lane_number] = uint32_t(shared_memory.offset(in_shared));
  if (in_global) a.global[lane_number] = reinterpret_cast<uint64_t>(in_global);
  a.came |= 1u << lane_number;
  if (valid) a.valid |= 1u << lane_number;
  if (a.came != warp->live) return;
  account(a, kind);
  warp->accesses.pop_front();
  warp->accounted++;
}
