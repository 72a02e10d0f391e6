/* The machine of a run: its processing elements (PEs) as fibers, and which of them goes on. */
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "counters.h"
#include "fault.h"
#include "fiber.h"
#include "random.h"

extern "C" {
struct ExecutorShape {
  int32_t rows, columns, memories, fifo_depth, lanes;
  int64_t transaction_bytes, alignment_bytes;
  const int64_t *memory_bytes;
};
}

static ExecutorShape shape;

/* A memory of one PE. `written` says of each byte whether it ever was. */
struct Memory {
  unsigned char *base;
  long bytes;
  std::vector<unsigned char> written;
  long peak;
};

struct Array;

/* A DMA transfer that nobody has waited for. `early`: its data arrive when it is started, otherwise
   when it is waited for; a machine may do either. */
struct Transfer {
  bool get, early;
  uint32_t number;  // In the log of main memory.
  Site site;
  const volatile int *reply;
  int memory;
  long offset, size, block, stride;
  Array *array;
  long start;  // In the array.
  std::vector<unsigned char> staged;  // The source of a put when it was started.
};

struct Vector {
  int from;
  Site site;
  long bytes;
  unsigned char data[128];
};

enum State { kRunning, kRowPut, kRowGet, kColumnPut, kColumnGet, kInGemm, kInSync, kEnded };
static const char *const kStates[] = {"runs", "row_put", "row_get", "column_put", "column_get",
                                      "gemm", "sync_all", "ended"};

struct Pe {
  int number, row, column;
  void *stack;
  const char *stack_low, *stack_high;
  State state;
  Site site;  // Where it waits.
  int target;  // Of a put that waits.
  std::vector<Memory> memories;
  std::vector<Transfer> pending;
  std::deque<Vector> queues[2];  // Of its row, of its column.
};

static std::vector<Pe> pes;
static Pe *pe;  // The one that runs.
static void *scheduler;
static Stacks stacks;

/* End the run with a fault of the running PE; its fiber is not gone on with. */
__attribute__((format(printf, 1, 2), noreturn)) static void fail(const char *format, ...) {
  char text[1600];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  set_fault("PE (%d, %d): %s", pe->row, pe->column, text);
  executor_switch(&pe->stack, scheduler);
  __builtin_unreachable();
}

/* Let others go on, and come back once `state` allows it. */
static void wait_in(State state, Site site, int target = -1) {
  pe->state = state, pe->site = site, pe->target = target;
  executor_switch(&pe->stack, scheduler);
}

static void yield() { wait_in(kRunning, 0); }

static bool full(const Pe &target, int queue) {
  return target.queues[queue].size() >= size_t(shape.fifo_depth);
}

static bool can_go_on(const Pe &p) {
  switch (p.state) {
    case kRunning: return true;
    case kRowPut: return !full(pes[size_t(p.target)], 0);
    case kColumnPut: return !full(pes[size_t(p.target)], 1);
    case kRowGet: return !p.queues[0].empty();
    case kColumnGet: return !p.queues[1].empty();
    default: return false;
  }
}

/* PEs that stand at one place are named once. */
static void set_deadlock() {
  std::string said;
  int groups = 0;
  std::vector<bool> named(pes.size());
  for (size_t i = 0; i < pes.size() && groups < 4; i++) {
    if (named[i]) continue;
    Pe &p = pes[i];
    size_t others = 0;
    for (size_t j = i + 1; j < pes.size(); j++) {
      Pe &q = pes[j];
      if (q.state == p.state && (p.state == kEnded || q.site == p.site)) named[j] = true, others++;
    }
    char text[200];
    int used = snprintf(text, sizeof text, "%sPE (%d, %d)", groups++ ? "; " : "", p.row, p.column);
    auto rest = [&] { return text + used; };
    auto room = [&] { return sizeof text - size_t(used); };
    if (others) used += snprintf(rest(), room(), " and %zu others", others);
    if (p.state == kEnded)
      snprintf(rest(), room(), others ? " have ended" : " has ended");
    else
      used += snprintf(rest(), room(), " wait%s in %s at {at:%u}", others ? "" : "s",
                       kStates[p.state], p.site);
    if (p.state == kRowPut || p.state == kColumnPut)
      snprintf(rest(), room(), " for room in the queue of PE (%d, %d)", pes[size_t(p.target)].row,
               pes[size_t(p.target)].column);
    said += text;
  }
  set_fault("deadlock: %s", said.c_str());
}

/* Run all PEs to their ends, in an order by the seed. */
static void run_all() {
  std::vector<size_t> ready;
  while (!faulted) {
    ready.clear();
    size_t ended = 0;
    for (size_t i = 0; i < pes.size(); i++) {
      if (can_go_on(pes[i])) ready.push_back(i);
      ended += pes[i].state == kEnded;
    }
    if (ended == pes.size()) return;
    if (ready.empty()) return set_deadlock();
    pe = &pes[ready[random_number() % ready.size()]];
    pe->state = kRunning;
    executor_switch(&scheduler, pe->stack);
  }
}
