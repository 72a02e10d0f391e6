/* Loads, stores and asynchronous copies of PTX: each lane's is made at once, except that the copies
   of cp.async are made when they are waited for, which is as late as a GPU may make them. */
#pragma once

#include "cluster.h"
#include "plain.h"
#include "ptx.h"
#include "warp.h"

/* ------------------------------------------------------------------------------- addresses */

extern "C" uint32_t executor_shared_address(const void *p) {
  return shared_memory.holds(p) ? shared_address(p) : ~0u;
}

extern "C" uint64_t executor_address_in(int space, uint64_t generic) {
  auto p = reinterpret_cast<const void *>(generic);
  return space == executor::kGlobal ? generic : executor_shared_address(p);
}

static inline unsigned char *pointer_to(int space, uint64_t address) {
  bool shared = space == executor::kShared || space == executor::kSharedCluster;
  return shared ? shared_pointer(uint32_t(address)) : reinterpret_cast<unsigned char *>(address);
}

extern "C" uint64_t executor_generic_address(int space, uint64_t address) {
  return reinterpret_cast<uint64_t>(pointer_to(space, address));
}

/* An address of any space is in shared memory or not; `space` says where it has to be. */
static inline bool in_shared(int space, const void *p) {
  return space == executor::kGeneric ? shared_memory.holds(p) : space != executor::kGlobal;
}

/* ------------------------------------------------------------------------- loads and stores */

extern "C" ExecutorWords executor_load(ExecutorFunction &function, int space, uint64_t address,
                                       int bytes, bool valid, bool constant) {
  Site site = CALLER;
  size_t size = size_t(bytes);
  const unsigned char *p = pointer_to(space, address);
  bool shared = in_shared(space, p);
  ExecutorWords made = {};
  if (valid && shared) {
    REQUIRE(note_remote(shared_memory.rank(p), function.name, site));
    REQUIRE(shared_memory.valid(p, size, size, function.name, site));
    REQUIRE(shared_memory.read(p, size, now(), site));
  } else if (valid) {
    REQUIRE(global_access(p, size, size, kUnset, function.name, site, actor_of(now()), constant));
  }
  if (valid) memcpy(made.word, p, size);
  note_access(site, shared ? kSharedLoad : kGlobalLoad, size, &function,
              valid && shared ? p : nullptr, valid && !shared ? p : nullptr);
  return made;
}

extern "C" void executor_store(ExecutorFunction &function, int space, uint64_t address,
                               ExecutorWords words, int bytes, bool valid) {
  Site site = CALLER;
  size_t size = size_t(bytes);
  unsigned char *p = pointer_to(space, address);
  bool shared = in_shared(space, p);
  if (valid && shared) {
    REQUIRE(note_remote(shared_memory.rank(p), function.name, site));
    REQUIRE(shared_memory.valid(p, size, size, function.name, site));
    REQUIRE(shared_memory.write(p, size, now(), kWritten, site));
  } else if (valid) {
    REQUIRE(global_access(p, size, size, kWritten, function.name, site, actor_of(now())));
  }
  if (valid) memcpy(p, words.word, size);
  note_access(site, shared ? kSharedStore : kGlobalStore, size, &function,
              valid && shared ? p : nullptr, valid && !shared ? p : nullptr);
}

/* --------------------------------------------------------------------------------- cp.async */

/* `source_bytes` are read, and the others of `bytes` become zero. */
extern "C" void executor_copy_async(ExecutorFunction &function, uint64_t to, uint64_t from, int bytes,
                                    uint32_t source_bytes, bool valid) {
  Site site = CALLER;
  size_t size = size_t(bytes);
  unsigned char *shared = shared_pointer(uint32_t(to));
  auto global = reinterpret_cast<const unsigned char *>(from);
  bool reads = valid && source_bytes != 0;
  if (valid) {
    if (source_bytes > size) {
      set_fault("%s at {at:%u} reads %u bytes for a copy of %d", function.name, site, source_bytes,
                bytes);
      abandon();
    }
    REQUIRE(shared_memory.valid(shared, size, size, function.name, site));
    REQUIRE(shared_memory.write(shared, size, now(), kInFlight, site));
    // The source is aligned to the size of the copy, however much of it is read.
    if (reads) {
      REQUIRE(global_memory.aligned(global, size, function.name, site));
      REQUIRE(global_access(global, source_bytes, 1, kUnset, function.name, site, actor_of(now())));
    }
    lane->copies.queue.push_back({shared, global, bytes, int(source_bytes)});
  }
  note_access(site, kCopy, size, &function, valid ? shared : nullptr, reads ? global : nullptr);
}

static void make_copy(Copy &copy, Stamp writer) {
  memcpy(copy.to, copy.from, size_t(copy.source_bytes));
  memset(copy.to + copy.source_bytes, 0, size_t(copy.bytes - copy.source_bytes));
  shared_memory.set_writer(copy.to, size_t(copy.bytes), writer, 0);
  copy.landed = true;
}

/* The groups of a lane except the last `pending` are done. */
static void finish_copies(size_t pending) {
  Copies &copies = lane->copies;
  bool landed = false;
  uint64_t end = copies.done;
  for (; copies.groups() > pending; copies.first_end++) end = copies.ends[copies.first_end];
  size_t count = size_t(end - copies.done);
  for (size_t n = 0; n < count; n++)
    if (copies.queue[n].landed)
      landed = true;
    else
      make_copy(copies.queue[n], now() | kWritten);  // As if the lane wrote it now.
  copies.queue.erase(copies.queue.begin(), copies.queue.begin() + ptrdiff_t(count));
  copies.done = end;
  if (copies.groups() == 0) copies.ends.clear(), copies.first_end = 0;
  if (!landed) return;
  Knowledge learned;
  learned.order = copies.landed;
  warp->clock.learn(1u << lane_number, std::move(learned));
}

/* A function of a lane without addresses, for which a warp's lanes come one after the other. */
static inline bool count_call(Function &function) {
  bool first = lane_number == __builtin_ctz(warp->live);
  if (first) count(function);
  return first;
}

extern "C" void executor_copy_commit(ExecutorFunction &function) {
  if (count_call(function)) tally.cp_async_groups++;
  lane->copies.ends.push_back(lane->copies.issued());
}

extern "C" void executor_copy_wait(ExecutorFunction &function, int groups) {
  count_call(function);
  finish_copies(size_t(groups));
}

extern "C" void executor_copy_wait_all(ExecutorFunction &function) {
  count_call(function);
  lane->copies.ends.push_back(lane->copies.issued());
  finish_copies(0);
}
