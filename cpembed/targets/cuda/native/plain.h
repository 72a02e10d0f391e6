/* Plain loads and stores of the text.

   Accesses to a fiber's own stack are left out. Those of a warp belong together where they are made
   from one place for the same time by each lane. */
#pragma once

#include "plain_accesses.h"
#include "warp.h"

static void account_plain(const PlainPlace &place, const PlainGroup &group) {
  if (place.shared) {
    uint32_t offsets[32];
    for (int l = 0; l < 32; l++) offsets[l] = uint32_t(group.address[l]);
    count_shared(shared_cost(offsets, group.came, place.bytes), place.writes);
    return;
  }
  uint64_t addresses[32];
  int count = 0;
  for (uint32_t rest = group.came; rest; rest &= rest - 1)
    addresses[count++] = group.address[__builtin_ctz(rest)];
  count_global(addresses, count, place.bytes, place.writes);
}

/* The lane's access belongs to the group of those that others make here for the same time. */
static void note_plain(Site site, size_t bytes, bool shared, bool writes, uint64_t address) {
  uint64_t key = uint64_t(site) << 8 | uint64_t(shared) << 6 | bytes;
  auto [found, made] = warp->plain.try_emplace(key);
  PlainPlace &place = found->second;
  if (made) place.bytes = int(bytes), place.shared = shared, place.writes = writes;
  uint64_t number = place.times[lane_number]++ - place.accounted;
  if (number >= place.groups.size()) place.groups.resize(number + 1);
  PlainGroup &group = place.groups[number];
  group.came |= 1u << lane_number;
  group.address[lane_number] = address;
  while (!place.groups.empty() && place.groups.front().came == warp->live) {
    account_plain(place, place.groups.front());
    place.groups.pop_front();
    place.accounted++;
  }
}

/* The warp is at a barrier, or at its end: groups to which no more lanes come. */
static void settle_plain(Warp &w) {
  for (auto &[key, place] : w.plain)
    for (const PlainGroup &group : place.groups) account_plain(place, group);
  w.plain.clear();
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
    } else {
      REQUIRE(global_memory.touch(start, piece, done ? 1 : alignment, writes, what, site));
    }
    note_plain(site, piece, shared, writes,
               shared ? shared_memory.offset(start) : reinterpret_cast<uint64_t>(start));
    done += piece;
  }
}

/* Before an atomic operation of a lane, which is then made at once. */
extern "C" void executor_atomic(void *p, size_t bytes, const void *return_address) {
  Site site = site_of(return_address);
  if (shared_memory.holds(p)) {
    REQUIRE(shared_memory.valid(p, bytes, bytes, "an atomic operation", site));
    REQUIRE(shared_memory.write(p, bytes, now(), kAtomic, site));
    return;
  }
  for (bool writes : {false, true})
    REQUIRE(global_memory.touch(p, bytes, bytes, writes, "an atomic operation", site));
  tally.global_load_bytes += bytes;
  tally.global_store_bytes += bytes;
}
