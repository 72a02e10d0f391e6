/* Barriers, exchanges between lanes, votes, and where a thread is. */
#pragma once

#include "atomics.h"
#include "plain.h"
#include "warp.h"

/* ---------------------------------------------------------------------------------- barriers */

/* A warp comes to a barrier of its block, and waits at it if `waits`. The last one to come ends it. */
static void come_to_barrier(Warp &w, const BarrierCall &call, bool waits) {
  Block &block = *w.block;
  NamedBarrier &b = block.barriers[call.number];
  if (b.arrived == 0) b.expected = call.threads, b.site = call.site;
  if (b.expected != call.threads) {
    set_fault("warp %d comes to barrier %u at {at:%u} as one of %u threads, and others at {at:%u} as of %u",
              w.number, call.number, call.site, call.threads, b.site, b.expected);
    return;
  }
  progress++;
  b.arrived += 32;
  if (waits) w.clock.meet(w.live);
  w.clock.release(w.live, b.released);
  if (waits) b.waiting.push_back(&w);
  if (b.arrived < b.expected) return;
  b.arrived = 0;
  for (Warp *waiting : b.waiting) {
    waiting->clock.learn_all(b.released);
    waiting->ready = waiting->live;
    for (Lane &l : waiting->lanes) l.place = kRunning;
  }
  b.waiting.clear(), b.released.clear();
  (call.threads == block.warps * 32 ? tally.barriers : tally.named_barriers)++;
}

static bool valid_barrier(uint32_t number, uint32_t threads, const char *name, Site site) {
  if (number < 16 && threads % 32 == 0 && threads > 0 && threads <= warp->block->warps * 32) return true;
  set_fault("%s at {at:%u}: barrier %u of %u threads; numbers go to 15, and threads are a multiple of 32 up "
            "to the block's %u", name, site, number, threads, warp->block->warps * 32);
  return false;
}

/* The lane waits for the block, or as many threads of it. */
static void barrier(Function &function, Site site, uint32_t number, uint32_t threads) {
  count_call(function);
  REQUIRE(valid_barrier(number, threads, function.name, site));
  lane->barrier = {&function, site, number, threads};
  lane->request = nullptr;
  park(kAtBarrier);
}

static Function f_syncthreads{"__syncthreads"};
extern "C" void executor_syncthreads() {
  barrier(f_syncthreads, CALLER, 0, warp->block->warps * 32);
}

extern "C" void executor_bar_sync(ExecutorFunction &function, uint32_t number, uint32_t threads) {
  barrier(function, CALLER, number, threads ? threads : warp->block->warps * 32);
}

static void arrive_at_barrier(Warp &w, uint32_t lanes) {
  Request &first = w.request(__builtin_ctz(lanes));
  BarrierCall call{first.function, first.site, uint32_t(first.number), uint32_t(first.value)};
  for (uint32_t rest = lanes; rest; rest &= rest - 1) {
    const Request &r = w.request(__builtin_ctz(rest));
    if (r.number == first.number && r.value == first.value) continue;
    set_fault("bar.arrive at {at:%u}: lanes of warp %d name different barriers", r.site, w.number);
    return;
  }
  come_to_barrier(w, call, false);
}
extern "C" void executor_bar_arrive(ExecutorFunction &function, uint32_t number, uint32_t threads) {
  Site site = CALLER;
  REQUIRE(valid_barrier(number, threads, function.name, site));
  Request r{&function, arrive_at_barrier, site, ~0u};
  r.number = number, r.value = threads;
  collective(r);
}

static Function f_syncwarp{"__syncwarp"};

static void sync_warp(Warp &w, uint32_t lanes) { w.clock.meet(lanes); }

extern "C" void executor_syncwarp(uint32_t mask) {
  Request r{&f_syncwarp, sync_warp, CALLER, mask};
  collective(r);
}

/* -------------------------------------------------------------------- exchanges and votes */

/* Of a lane that does not take part: no number in any type of floats. */
constexpr uint64_t kRubbish = 0x7ffb'adba'7ffb'adba;

/* Each lane gets the value of the lane that it names. */
static void exchange(Warp &w, uint32_t lanes) {
  uint64_t values[32];
  for (uint32_t rest = lanes; rest; rest &= rest - 1) {
    int l = __builtin_ctz(rest);
    values[l] = w.request(l).value;
  }
  for (uint32_t rest = lanes; rest; rest &= rest - 1) {
    Request &r = w.request(__builtin_ctz(rest));
    r.value = lanes >> r.number & 1 ? values[r.number] : kRubbish;
  }
}

static Function f_shuffle{"__shfl_sync"};
static Function f_shuffle_up{"__shfl_up_sync"};
static Function f_shuffle_down{"__shfl_down_sync"};
static Function f_shuffle_xor{"__shfl_xor_sync"};

/* `how`: 0 a lane by number, 1 up, 2 down, 3 exclusive or; within segments of `width` lanes. */
extern "C" uint64_t executor_shuffle(int how, uint32_t mask, uint64_t value, int operand, int width,
                                     const void *return_address) {
  Function *const functions[] = {&f_shuffle, &f_shuffle_up, &f_shuffle_down, &f_shuffle_xor};
  int first = lane_number / width * width, last = first + width - 1, from = lane_number;
  switch (how) {
    case 0: from = first + (operand & (width - 1)); break;
    case 1: from = lane_number - operand < first ? lane_number : lane_number - operand; break;
    case 2: from = lane_number + operand > last ? lane_number : lane_number + operand; break;
    case 3: from = (lane_number ^ operand) > last ? lane_number : lane_number ^ operand; break;
  }
  Request r{functions[how], exchange, site_of(return_address), mask};
  r.value = value;
  r.number = from & 31;
  collective(r);
  return r.value;
}

static Function f_ballot{"__ballot_sync"};

static void ballot(Warp &w, uint32_t lanes) {
  uint32_t votes = 0;
  for (uint32_t rest = lanes; rest; rest &= rest - 1)
    votes |= uint32_t(w.request(__builtin_ctz(rest)).value != 0) << __builtin_ctz(rest);
  for (uint32_t rest = lanes; rest; rest &= rest - 1) w.request(__builtin_ctz(rest)).value = votes;
}

extern "C" uint32_t executor_ballot(uint32_t mask, int predicate, const void *return_address) {
  Request r{&f_ballot, ballot, site_of(return_address), mask};
  r.value = uint64_t(predicate != 0);
  collective(r);
  return uint32_t(r.value);
}

/* --------------------------------------------------------- shfl, vote, redux and match of PTX */

/* `direction`: 0 a lane by number, 1 up, 2 down, 3 exclusive or. `segments`: the operand c, with a bound and the
   bits of lanes that stay. Returns the value, and whether the lane is one of its segment in bit 32. */
extern "C" uint64_t executor_exchange(ExecutorFunction &function, int direction, uint32_t mask, uint32_t value,
                                      uint32_t operand, uint32_t segments) {
  int by = int(operand & 31), bound = int(segments & 31), stays = int(segments >> 8 & 31);
  int first = lane_number & stays, last = first | (bound & ~stays), from = lane_number;
  switch (direction) {
    case 0: from = first | (by & ~stays); break;
    case 1: from = lane_number - by; break;
    case 2: from = lane_number + by; break;
    case 3: from = lane_number ^ by; break;
  }
  bool within = direction == 1 ? from >= last : from <= last;
  Request r{&function, exchange, CALLER, mask};
  r.value = value, r.number = within ? from & 31 : lane_number;
  collective(r);
  return uint32_t(r.value) | uint64_t(within) << 32;
}

extern "C" uint32_t executor_vote(ExecutorFunction &function, uint32_t mask, bool predicate) {
  Request r{&function, ballot, CALLER, mask};
  r.value = predicate;
  collective(r);
  return uint32_t(r.value);
}

static void combine_lanes(Warp &w, uint32_t lanes) {
  const Request &first = w.request(__builtin_ctz(lanes));
  uint64_t made = first.value;
  for (uint32_t rest = lanes & (lanes - 1); rest; rest &= rest - 1)
    made = combined(int(first.number & 255), int(first.number >> 8), made,
                    w.request(__builtin_ctz(rest)).value, 0);
  for (uint32_t rest = lanes; rest; rest &= rest - 1) w.request(__builtin_ctz(rest)).value = made;
}

extern "C" uint32_t executor_combine(ExecutorFunction &function, int operation, int kind, uint32_t mask,
                                     uint32_t value) {
  Request r{&function, combine_lanes, CALLER, mask};
  r.value = value, r.number = operation | kind << 8;
  collective(r);
  return uint32_t(r.value);
}

static void match_lanes(Warp &w, uint32_t lanes) {
  uint64_t values[32];
  for (uint32_t rest = lanes; rest; rest &= rest - 1)
    values[__builtin_ctz(rest)] = w.request(__builtin_ctz(rest)).value;
  for (uint32_t rest = lanes; rest; rest &= rest - 1) {
    Request &r = w.request(__builtin_ctz(rest));
    uint32_t same = 0;
    for (uint32_t others = lanes; others; others &= others - 1)
      if (values[__builtin_ctz(others)] == values[__builtin_ctz(rest)]) same |= others & -others;
    r.value = r.number && same != lanes ? 0 : same;
  }
}

/* The lanes with the same value; of `all`, none unless all have it. */
extern "C" uint32_t executor_match(ExecutorFunction &function, uint32_t mask, uint64_t value, bool all) {
  Request r{&function, match_lanes, CALLER, mask};
  r.value = value, r.number = all;
  collective(r);
  return uint32_t(r.value);
}

static Function f_active{"__activemask"};

/* Which lanes are here is known when no lane of the warp can go on (settle). */
extern "C" uint32_t executor_activemask() {
  Request r{&f_active, nullptr, CALLER, 0};
  lane->request = &r;
  park(kInCollective);
  return uint32_t(r.value);
}

static bool wake_active(Warp &w) {
  uint32_t here = 0;
  for (uint32_t rest = w.live; rest; rest &= rest - 1) {
    const Lane &l = w.lanes[__builtin_ctz(rest)];
    if (l.place == kInCollective && l.request->function == &f_active) here |= rest & -rest;
  }
  for (uint32_t rest = here; rest; rest &= rest - 1) {
    Lane &l = w.lanes[__builtin_ctz(rest)];
    l.request->value = here;
    l.place = kRunning;
  }
  if (here) count(f_active);
  w.ready |= here;
  return here != 0;
}
