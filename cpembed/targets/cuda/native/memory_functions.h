/* Loads, stores and asynchronous copies: each lane's is made at once, except that the copies of
   cp.async are made when they are waited for, which is as late as a GPU may make them. */
#pragma once

#include "plain.h"
#include "warp.h"

/* One function; the last argument checks whether it may be made, and makes it. */
#define MEMORY_FUNCTION(name, parameters, kind, in_shared, in_global, bytes, valid, ...) \
  static Function f_##name(#name); \
  extern "C" void name parameters { \
    Site site = CALLER; \
    access(f_##name, kind, site, in_shared, in_global, bytes, valid); \
    const char *what = #name; \
    __VA_ARGS__ \
  }

#define SIZED(n) \
  MEMORY_FUNCTION(cpembed_load_##n, (void *registers, const void *global, int valid), kGlobalLoad, \
                  nullptr, global, n, valid != 0, { \
    if (valid) { \
      REQUIRE(global_memory.touch(global, n, n, false, what, site)); \
      memcpy(registers, global, n); \
    } else { \
      memset(registers, 0, n); \
    } \
  }) \
  MEMORY_FUNCTION(cpembed_store_##n, (void *global, const void *registers, int valid), kGlobalStore, \
                  nullptr, global, n, valid != 0, { \
    if (valid) { \
      REQUIRE(global_memory.touch(global, n, n, true, what, site)); \
      memcpy(global, registers, n); \
    } \
  }) \
  MEMORY_FUNCTION(cpembed_shared_load_##n, (void *registers, const void *shared), kSharedLoad, \
                  shared, nullptr, n, true, { \
    REQUIRE(shared_memory.valid(shared, n, n, what, site)); \
    REQUIRE(shared_memory.read(shared, n, now(), site)); \
    memcpy(registers, shared, n); \
  }) \
  MEMORY_FUNCTION(cpembed_shared_store_##n, (void *shared, const void *registers), kSharedStore, \
                  shared, nullptr, n, true, { \
    REQUIRE(shared_memory.valid(shared, n, n, what, site)); \
    REQUIRE(shared_memory.write(shared, n, now(), kWritten, site)); \
    memcpy(shared, registers, n); \
  })

SIZED(16)
SIZED(8)
SIZED(4)
SIZED(2)
SIZED(1)

#define COPY(n) \
  MEMORY_FUNCTION(cpembed_cp_async_##n, (void *shared, const void *global, int valid), kCopy, shared, \
                  global, n, valid != 0, { \
    REQUIRE(shared_memory.valid(shared, n, n, what, site)); \
    REQUIRE(shared_memory.write(shared, n, now(), kInFlight, site)); \
    if (valid) REQUIRE(global_memory.touch(global, n, n, false, what, site)); \
    lane->open_group.push_back({static_cast<unsigned char *>(shared), \
                                static_cast<const unsigned char *>(global), n, valid != 0}); \
  })
COPY(16)
COPY(8)
COPY(4)
#undef COPY
#undef SIZED
#undef MEMORY_FUNCTION

/* The groups of a lane except the last `pending` are done. */
static void finish_copies(size_t pending) {
  while (lane->groups.size() > pending) {
    for (const Copy &copy : lane->groups.front()) {
      if (copy.valid)
        memcpy(copy.to, copy.from, size_t(copy.bytes));
      else
        memset(copy.to, 0, size_t(copy.bytes));
      shared_memory.land(copy.to, size_t(copy.bytes), now());
    }
    lane->groups.pop_front();
  }
}

static Function f_commit("cpembed_cp_async_commit");
extern "C" void cpembed_cp_async_commit() {
  count_call(f_commit);
  if (lane_number == __builtin_ctz(warp->live)) tally.cp_async_groups++;
  lane->groups.push_back(std::move(lane->open_group));
  lane->open_group.clear();
}

#define WAIT(n) \
  static Function f_wait_##n("cpembed_cp_async_wait_" #n); \
  extern "C" void cpembed_cp_async_wait_##n() { \
    count_call(f_wait_##n); \
    finish_copies(n); \
  }
WAIT(0) WAIT(1) WAIT(2) WAIT(3) WAIT(4) WAIT(5) WAIT(6) WAIT(7)
#undef WAIT

/* Inline PTX of other kernels, which some lanes of a warp may reach without the others. */
extern "C" void executor_cp_async(void *shared, const void *global, int bytes, bool valid) {
  Site site = CALLER;
  size_t size = size_t(bytes);
  REQUIRE(shared_memory.valid(shared, size, size, "cp.async", site));
  REQUIRE(shared_memory.write(shared, size, now(), kInFlight, site));
  note_plain(site, size, true, true, shared_memory.offset(shared));
  if (valid) {
    REQUIRE(global_memory.touch(global, size, size, false, "cp.async", site));
    note_plain(site, size, false, false, reinterpret_cast<uint64_t>(global));
  }
  lane->open_group.push_back({static_cast<unsigned char *>(shared),
                              static_cast<const unsigned char *>(global), bytes, valid});
}

extern "C" void executor_cp_async_wait(int groups) { finish_copies(size_t(groups)); }

/* cp.async.wait_all. */
extern "C" void executor_cp_async_wait_all() {
  if (!lane->open_group.empty()) lane->groups.push_back(std::move(lane->open_group));
  lane->open_group.clear();
  finish_copies(0);
}
