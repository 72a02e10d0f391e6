/* Runs the kernel of a text that is linked with this file, once by each PE.

   One thread of the host does it all, so nothing here is locked. */
#include "gemm.h"
#include "plain_accesses.h"

extern "C" {
struct ExecutorArray {
  unsigned char *base;
  int64_t bytes;
  int32_t writable, per_byte;
};

struct ExecutorRun {
  ExecutorShape shape;
  const ExecutorArray *arrays;
  int32_t array_count;
  uint64_t seed;
};

struct arguments {
  void *operand[8];
};

void kernel(const arguments *);
}

static arguments operands;

/* An access of the text that is no call of the interface. */
static void plain_access(const void *p, size_t bytes, size_t, bool writes, Site site) {
  if (pe == nullptr || on_own_stack(p)) return;
  const char *what = writes ? "a store" : "a load";
  if (scratchpads.holds(p)) {
    if (writes) return scratchpads.write(p, long(bytes), what, site);
    return scratchpads.read(p, long(bytes), what, site);
  }
  if (in_library(p)) {
    if (writes) fail("%s at {at:%u} changes a static variable, which all PEs share", what, site);
    return;
  }
  if (const Array *array = main_memory.array_of(p))
    fail("%s at {at:%u} is of operand %d in main memory, which only DMA reaches", what, site,
         array->operand);
  fail("%s at {at:%u} has an address that is in no scratchpad", what, site);
}

extern "C" void *scratchpad_memcpy(void *to, const void *from, size_t bytes) {
  plain_access(from, bytes, 1, false, CALLER);
  plain_access(to, bytes, 1, true, CALLER);
  return memmove(to, from, bytes);
}
extern "C" void *scratchpad_memset(void *to, int value, size_t bytes) {
  plain_access(to, bytes, 1, true, CALLER);
  return memset(to, value, bytes);
}

extern "C" int scratchpad_place(int which) {
  const int places[] = {pe->row, pe->column, shape.rows, shape.columns};
  return places[which];
}

extern "C" void *scratchpad(int memory, long offset) {
  if (memory < 0 || memory >= shape.memories)
    fail("scratchpad at {at:%u} has no memory %d: the machine has %d", CALLER, memory, shape.memories);
  const Memory &m = pe->memories[size_t(memory)];
  if (offset < 0 || offset > m.bytes)
    fail("scratchpad at {at:%u} is out of bounds: byte %ld of memory %d, which has %ld", CALLER,
         offset, memory, m.bytes);
  return m.base + offset;
}

extern "C" void zero(void *at, long bytes) {
  Site site = CALLER;
  scratchpads.write(at, bytes, "zero", site);
  memset(at, 0, size_t(bytes));
  tally.others[kZeroedBytes] += uint64_t(bytes);
}

extern "C" void touch_read(const void *at, long bytes) {
  scratchpads.read(at, bytes, "touch_read", CALLER);
}
extern "C" void touch_write(void *at, long bytes) {
  scratchpads.write(at, bytes, "touch_write", CALLER);
}
extern "C" void touch_call(const char *name, long m, long n, long k) {
  tally.instructions[{name, {m, n, k}}]++;
}

static void body() {
  kernel(&operands);
  require_no_transfers();
  wait_in(kEnded, 0);
  __builtin_unreachable();
}

static bool begin_pes() {
  pes.clear();
  pes.resize(size_t(shape.rows) * size_t(shape.columns));
  gemms.assign(pes.size(), Gemm{});
  for (size_t i = 0; i < pes.size(); i++) {
    Pe &p = pes[i];
    char *top = stacks.top(i);
    if (top == nullptr) {
      set_fault("no memory for the stacks of %zu PEs", pes.size());
      return false;
    }
    p.number = int(i), p.row = p.number / shape.columns, p.column = p.number % shape.columns;
    p.stack = fiber_start(top, body);
    p.stack_low = stacks.bottom(i), p.stack_high = p.stack_low + Stacks::kBytes;
    p.state = kRunning;
  }
  return true;
}

/* The fault as one line; null where there was none. */
extern "C" __attribute__((visibility("default"))) const char *executor_run(const ExecutorRun *run) {
  shape = run->shape;
  faulted = false;
  random_state = run->seed;
  tally = Tally{};
  main_memory.begin();
  operands = arguments{};
  for (int i = 0; i < run->array_count; i++) {
    const ExecutorArray &a = run->arrays[i];
    main_memory.add(a.base, a.bytes, i, a.writable, a.per_byte);
    operands.operand[i] = a.base;
  }
  if (!begin_pes()) return fault_text;
  scratchpads.begin();
  run_all();
  if (!faulted) check_queues("at the end");
  if (!faulted) scratchpads.check_gaps();
  pe = nullptr;
  return faulted ? fault_text : nullptr;
}

/* What the last run did; counters.py reads it. */
extern "C" __attribute__((visibility("default"))) const char *executor_counters() {
  static std::string text;
  text = tally_text(scratchpads.peaks());
  return text.c_str();
}
