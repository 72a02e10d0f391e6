/* Warps, their lanes, and how they run: lane after lane until each has come to the same collective
   function, which the last one to come executes for all. */
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "accesses.h"
#include "counters.h"
#include "fault.h"
#include "fiber.h"
#include "global_memory.h"
#include "shared_memory.h"

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
};

enum Place : uint8_t { kRunning, kInCollective, kAtBarrier, kEnded };

struct Lane {
  void *stack = nullptr;
  const char *stack_low = nullptr, *stack_high = nullptr;
  unsigned index[3] = {};
  Place place = kRunning;
  Request *request = nullptr;
  Site barrier = 0;
  std::vector<Copy> open_group;
  std::deque<std::vector<Copy>> groups;
};

struct Warp {
  int number = 0;
  uint32_t live = 0;   // The lanes that it has.
  uint32_t ready = 0;  // Those that can go on.
  uint64_t phase = 0;  // Its barriers, and the block's.
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
static uint64_t epoch;      // Barriers of the block, from 1.
static bool backwards;      // The order of lanes.
static void *scheduler;     // Its stack.

static inline Stamp now(int as_lane) { return make_stamp(epoch, warp->phase, warp->number, as_lane); }
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
