/* Plain loads and stores of the text, and atomic operations.

   Accesses to a fiber's own stack are left out. The text is compiled with -fsanitize-coverage=trace-pc too,
   so that a lane that does not end is noticed. */
#pragma once

#include "plain_accesses.h"
#include "warp.h"

/* An access of the running lane, which may be made; `function` is null for plain ones. */
static inline void note_access(Site site, Kind kind, size_t bytes, Function *function,
                               const void *in_shared, const void *in_global) {
  LaneAccess access;
  if (in_shared) access.in_shared = true, access.shared = uint32_t(shared_memory.offset(in_shared));
  if (in_global) access.in_global = true, access.global = reinterpret_cast<uint64_t>(in_global);
  warp->accesses.add(lane_number, warp->live, site, kind, int(bytes), function, access);
}

static void plain_access(const void *p, size_t bytes, size_t alignment, bool writes, Site site) {
  auto address = static_cast<const char *>(p);
  if (lane == nullptr || (address >= lane->stack_low && address < lane->stack_high)) return;
  const char *what = writes ? "a store" : "a load";
  bool shared = shared_memory.holds(p);
  if (!shared && in_library(p)) return;
  for (size_t done = 0; done < bytes;) {
    size_t piece = std::min<size_t>(bytes - done, 16);
    const char *start = address + done;
    if (shared) {
      REQUIRE(shared_memory.valid(start, piece, done ? 1 : alignment, what, site));
      REQUIRE(writes ? shared_memory.write(start, piece, now(), kWritten, site)
                     : shared_memory.read(start, piece, now(), site));
      note_access(site, writes ? kSharedStore : kSharedLoad, piece, nullptr, start, nullptr);
    } else {
      REQUIRE(global_access(start, piece, done ? 1 : alignment, writes ? kWritten : kUnset, what, site,
                            actor_of(now())));
      note_access(site, writes ? kGlobalStore : kGlobalLoad, piece, nullptr, nullptr, start);
    }
    done += piece;
  }
}

static uint64_t most_steps;

extern "C" void __sanitizer_cov_trace_pc() {
  if (__builtin_expect(lane == nullptr || ++lane->steps <= most_steps, 1)) return;
  set_fault("%s does not end: it is at {at:%u} after %llu basic blocks", doer(now()).c_str(), CALLER,
            (unsigned long long)most_steps);
  abandon();
}

/* What the compiler says of an array and of an index (-fsanitize=bounds). */
struct IndexedArray {
  struct {
    const char *file;
    uint32_t line, column;
  } place;
  struct Type {
    uint16_t kind, size;
    char name[];
  } const *array, *index;
};

extern "C" void __ubsan_handle_out_of_bounds(const IndexedArray *indexed, uintptr_t index) {
  set_fault("index %lld of an array %s at {at:%u} is out of bounds", (long long)index, indexed->array->name,
            CALLER);
  abandon();
}

extern "C" void __ubsan_handle_divrem_overflow(const void *, uintptr_t, uintptr_t) {
  set_fault("%s divides an integer by zero at {at:%u}", doer(now()).c_str(), CALLER);
  abandon();
}

extern "C" void executor_trap(ExecutorFunction &) {
  set_fault("%s ends the launch by a trap at {at:%u}", doer(now()).c_str(), CALLER);
  abandon();
}
