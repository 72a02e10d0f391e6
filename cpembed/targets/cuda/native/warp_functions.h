/* Barriers, exchanges between lanes, votes, and where a thread is. */
#pragma once

#include "memory_functions.h"
#include "plain.h"
#include "warp.h"

/* ---------------------------------------------------------------------------------- barriers */

static Function f_syncthreads{"__syncthreads"};

/* The lane waits for the whole block. */
extern "C" void executor_syncthreads() {
  count_call(f_syncthreads);
  lane->barrier = CALLER;
  lane->request = nullptr;
  park(kAtBarrier);
}

static Function f_syncwarp{"__syncwarp"};

static void sync_warp(Warp &w, uint32_t lanes) {
  // A barrier of some lanes orders nothing for the others, which the stamps cannot say.
  if (lanes == w.live) w.phase++;
}

extern "C" void executor_syncwarp(uint32_t mask) {
  Request r{&f_syncwarp, sync_warp, CALLER, mask};
  collective(r);
}

/* -------------------------------------------------------------------- exchanges and votes */

/* Each lane gets the value of the lane that it names; of one that is not there, its own. */
static void exchange(Warp &w, uint32_t lanes) {
  uint64_t values[32];
  for (uint32_t rest = lanes; rest; rest &= rest - 1) {
    int l = __builtin_ctz(rest);
    values[l] = w.request(l).value;
  }
  for (uint32_t rest = lanes; rest; rest &= rest - 1) {
    Request &r = w.request(__builtin_ctz(rest));
    if (lanes >> r.number & 1) r.value = values[r.number];
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
