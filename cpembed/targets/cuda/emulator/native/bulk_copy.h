/* Bulk copies between global and shared memory (cp.async.bulk), which the asynchronous proxy makes.

   A load ends in the phase of a barrier object; it is in flight until then, and is made when a thread
   waits for the phase. Stores end in groups of the thread that issues them, which are made when it
   waits for them. */
#pragma once

#include "atomics.h"
#include "elements.h"
#include "tensor_map.h"

/* --------------------------------------------------------------------------------------- loads */

/* Places in shared memory of an image's chunks; several ranges where it ends within a swizzled row. */
static std::vector<Landing::Range> image_ranges(const Box &box, unsigned char *image) {
  if (box.swizzle == 0 || box.bytes % 128 == 0) return {{image, box.bytes}};
  std::vector<Landing::Range> ranges;
  uint32_t rank = shared_memory.rank(image);
  size_t start = shared_memory.offset(image);
  for (const Chunk &chunk : box.chunks)
    ranges.push_back({shared_memory.at(swizzled(start + chunk.image, box.swizzle), rank), 16});
  return ranges;
}

/* The barrier object of a copy to an image, in the same block; null with a fault. */
static Barrier *barrier_of_image(const unsigned char *image, uint32_t object, const char *what, Site site) {
  Barrier *b = barrier_for_copy(object, what, site);
  if (b == nullptr || shared_memory.rank(b->place) == shared_memory.rank(image)) return b;
  set_fault("%s at {at:%u}: its barrier object is in another block's shared memory than its destination", what,
            site);
  return nullptr;
}

/* The stamp of a copy that ends in the current phase of a barrier object. */
static Stamp stamp_of_copy(const Barrier &b) { return make_stamp(b.agent, 0, uint32_t(b.phase + 1)); }

/* A copy writes ranges, of `bytes` together. */
static bool issue_copy(Barrier &b, std::vector<Landing::Range> ranges, size_t bytes,
                       std::function<void(Stamp)> copy, const char *what, Site site) {
  Actor actor = actor_of(now());
  for (const Landing::Range &range : ranges)
    if (!shared_memory.write_by_proxy(range.to, range.bytes, actor, stamp_of_copy(b) | kInFlight, what, site))
      return false;
  b.landings.push_back({std::move(ranges), std::move(copy), int64_t(bytes), 0, site});
  progress++;
  return true;
}

/* `image` in one block of the cluster, whose barrier object is at the address `object`. */
static bool issue_load(const std::shared_ptr<const Box> &box, unsigned char *image, uint32_t object,
                       size_t alignment, const char *what, Site site) {
  if (!shared_memory.valid(image, box->bytes, alignment, what, site)) return false;
  Barrier *b = barrier_of_image(image, object, what, site);
  auto copy = [box, image](Stamp) {
    uint32_t rank = shared_memory.rank(image);
    size_t start = shared_memory.offset(image);
    for (const Chunk &chunk : box->chunks) {
      unsigned char *to = shared_memory.at(swizzled(start + chunk.image, box->swizzle), rank);
      if (chunk.bytes == 16) {
        memcpy(to, chunk.global, 16);
      } else {
        memset(to, 0, 16);
        memcpy(to + chunk.skip, chunk.global, chunk.bytes);
      }
    }
  };
  return b && issue_copy(*b, image_ranges(*box, image), box->bytes, copy, what, site);
}

/* To one block, or with a mask to the same places of several ones. */
static void load_to(const std::shared_ptr<const Box> &box, uint32_t to, uint32_t object, bool multicast,
                    uint32_t mask, size_t alignment, const char *what, Site site) {
  unsigned char *image = shared_pointer(to);
  tally.bulk_load_bytes += box->global_bytes;
  tally.bulk_load_sectors += box->sectors;
  tally.bulk_load_image_bytes += box->bytes;
  if (!multicast) {
    REQUIRE(issue_load(box, image, object, alignment, what, site));
    return;
  }
  if (mask == 0 || mask >> blocks_a_cluster) {
    set_fault("%s at {at:%u}: mask %#x of a multicast in a cluster of %u blocks", what, site, mask,
              blocks_a_cluster);
    abandon();
  }
  constexpr uint32_t kOffset = (1u << kRankBit) - 1;
  for (uint32_t rest = mask; rest; rest &= rest - 1) {
    uint32_t rank = uint32_t(__builtin_ctz(rest)) + 1;
    if (rest != mask) tally.multicast_bytes += box->bytes;
    REQUIRE(issue_load(box, shared_pointer(rank << kRankBit | (to & kOffset)),
                       rank << kRankBit | (object & kOffset), alignment, what, site));
  }
}

extern "C" void executor_bulk_load_tensor(ExecutorFunction &function, uint32_t to, const void *map,
                                          const int32_t *coordinates, int rank,
                                          const uint16_t *offsets, uint32_t object, bool multicast,
                                          uint32_t mask) {
  Site site = CALLER;
  count(function);
  const EncodedMap *encoded = map_at(map, function.name, site);
  REQUIRE(encoded != nullptr);
  std::shared_ptr<Box> box(new Box);
  REQUIRE(make_box(*box, *encoded, coordinates, rank, offsets, kUnset, function.name, site));
  load_to(box, to, object, multicast, mask, 128, function.name, site);
}

static bool whole_chunks(uint32_t bytes, const char *what, Site site) {
  if (bytes % 16 == 0) return true;
  set_fault("%s at {at:%u} of %u bytes: a multiple of 16", what, site, bytes);
  return false;
}

/* Chunks of bytes that lie side by side. */
static bool plain_box(Box &box, const void *global, uint32_t bytes, State state, const char *what, Site site) {
  if (!whole_chunks(bytes, what, site)) return false;
  if (bytes && !bulk_access(global, bytes, 16, state, what, site)) return false;
  auto start = static_cast<unsigned char *>(const_cast<void *>(global));
  for (uint32_t at = 0; at < bytes; at += 16) box.chunks.push_back({at, 0, 16, start + at});
  box.bytes = bytes, box.global_bytes = bytes;
  uint64_t address = reinterpret_cast<uint64_t>(global);
  if (bytes) box.sectors = (address + bytes - 1) / 32 - address / 32 + 1;
  return true;
}

extern "C" void executor_bulk_load(ExecutorFunction &function, uint32_t to, const void *from,
                                   uint32_t bytes, uint32_t object,
                                   bool multicast, uint32_t mask) {
  Site site = CALLER;
  count(function);
  std::shared_ptr<Box> box(new Box);
  REQUIRE(plain_box(*box, from, bytes, kUnset, function.name, site));
  load_to(box, to, object, multicast, mask, 16, function.name, site);
}

/* From the block's shared memory to that of another one of the cluster. The source is read until the other
   block's barrier object is complete. */
extern "C" void executor_bulk_copy_shared(ExecutorFunction &function, uint32_t to, uint32_t from, uint32_t bytes,
                                          uint32_t object) {
  Site site = CALLER;
  count(function);
  REQUIRE(whole_chunks(bytes, function.name, site));
  unsigned char *source = shared_pointer(from), *image = shared_pointer(to);
  REQUIRE(shared_memory.valid(source, bytes, 16, function.name, site));
  REQUIRE(shared_memory.valid(image, bytes, 16, function.name, site));
  REQUIRE(note_remote(shared_memory.rank(image), function.name, site, true));
  Barrier *b = barrier_of_image(image, object, function.name, site);
  REQUIRE(b && shared_memory.read_by_proxy(source, bytes, actor_of(now()), stamp_of_copy(*b), function.name, site));
  auto copy = [=](Stamp) { memcpy(image, source, bytes); };
  REQUIRE(issue_copy(*b, {{image, bytes}}, bytes, copy, function.name, site));
}

extern "C" void executor_bulk_prefetch(ExecutorFunction &function, const void *from, uint32_t bytes) {
  Site site = CALLER;
  count(function);
  REQUIRE(global_memory.aligned(from, 16, function.name, site) && whole_chunks(bytes, function.name, site));
}

/* -------------------------------------------------------------------------------------- stores */

static State written_by(int operation) { return operation < 0 ? kWritten : kAtomic; }

template <class T>
static void reduce_bytes(const Reduction &reduction, unsigned char *to, const unsigned char *from, size_t bytes,
                         int kind) {
  for (size_t at = 0; at < bytes; at += sizeof(T)) {
    T old, value;
    memcpy(&old, to + at, sizeof old), memcpy(&value, from + at, sizeof value);
    T made = T(combined(reduction.operation, kind, old, value, 0));
    memcpy(to + at, &made, sizeof made);
  }
}

template <class E>
static void reduce_halves(const Reduction &reduction, unsigned char *to, const unsigned char *from, size_t bytes) {
  for (size_t at = 0; at < bytes; at += 2) {
    uint16_t old, value;
    memcpy(&old, to + at, 2), memcpy(&value, from + at, 2);
    float x = E::load(old), y = E::load(value);
    uint16_t made = E::store(reduction.operation == executor::kAdd   ? x + y
                             : reduction.operation == executor::kMin ? fminf(x, y)
                                                                     : fmaxf(x, y));
    memcpy(to + at, &made, 2);
  }
}

static void reduce(const Reduction &reduction, unsigned char *to, const unsigned char *from, size_t bytes) {
  switch (reduction.kind) {
    case executor::kFloat16: return reduce_halves<F16>(reduction, to, from, bytes);
    case executor::kBfloat16: return reduce_halves<Bf16>(reduction, to, from, bytes);
    case executor::kUnsigned64:
    case executor::kSigned64: return reduce_bytes<uint64_t>(reduction, to, from, bytes, reduction.kind);
    default: return reduce_bytes<uint32_t>(reduction, to, from, bytes, reduction.kind);
  }
}

static void issue_store(const Box &box, uint32_t from, size_t alignment, Reduction reduction, const char *what,
                        Site site) {
  unsigned char *image = shared_pointer(from);
  REQUIRE(shared_memory.valid(image, box.bytes, alignment, what, site));
  BulkStores &stores = lane->stores;
  if (stores.agent == 0) stores.agent = make_agent("the bulk stores of " + doer(now()));
  Stamp reader = make_stamp(stores.agent, 0, stores.committed + 1);
  Actor actor = actor_of(now());
  for (const Landing::Range &range : image_ranges(box, image))
    REQUIRE(shared_memory.read_by_proxy(range.to, range.bytes, actor, reader, what, site));
  BulkStore store;
  store.site = site, store.reduction = reduction;
  size_t start = shared_memory.offset(image);
  for (const Chunk &chunk : box.chunks)
    if (chunk.bytes)
      store.pieces.push_back({chunk.global,
                              shared_memory.at(swizzled(start + chunk.image, box.swizzle),
                                               shared_memory.rank(image)) + chunk.skip,
                              chunk.bytes});
  stores.open.push_back(std::move(store));
  tally.bulk_store_bytes += box.global_bytes;
  tally.bulk_store_sectors += box.sectors;
  progress++;
}

extern "C" void executor_bulk_store_tensor(ExecutorFunction &function, const void *map,
                                           const int32_t *coordinates, int rank,
                                           uint32_t from, int operation, int kind) {
  Site site = CALLER;
  count(function);
  const EncodedMap *encoded = map_at(map, function.name, site);
  REQUIRE(encoded != nullptr);
  Box box;
  REQUIRE(make_box(box, *encoded, coordinates, rank, nullptr, written_by(operation), function.name, site));
  issue_store(box, from, 128, {operation, kind}, function.name, site);
}

extern "C" void executor_bulk_store(ExecutorFunction &function, const void *to, uint32_t from, uint32_t bytes,
                                    int operation, int kind) {
  Site site = CALLER;
  count(function);
  Box box;
  REQUIRE(plain_box(box, to, bytes, written_by(operation), function.name, site));
  issue_store(box, from, 16, {operation, kind}, function.name, site);
}

extern "C" void executor_bulk_commit(ExecutorFunction &function) {
  count(function);
  BulkStores &stores = lane->stores;
  stores.groups.push_back(std::move(stores.open));
  stores.open.clear();
  stores.committed++;
}

/* All groups but the last `pending` have read their sources, and unless `reads` written to memory. */
extern "C" void executor_bulk_wait(ExecutorFunction &function, uint32_t pending, bool reads) {
  count(function);
  BulkStores &stores = lane->stores;
  for (; stores.groups.size() > pending; stores.groups.pop_front(), stores.read++)
    for (const BulkStore &store : stores.groups.front())
      for (const BulkStore::Piece &piece : store.pieces)
        if (store.reduction.operation < 0)
          memcpy(piece.to, piece.from, piece.bytes);
        else
          reduce(store.reduction, piece.to, piece.from, piece.bytes);
  if (stores.agent == 0) return;
  Knowledge made;
  made.order.raise(stores.agent, stores.read);
  if (!reads && stores.committed > pending)
    made.order.raise(stores.writes_agent, stores.committed - pending);
  warp->clock.learn(1u << lane_number, std::move(made));
}

/* A block ends: no store may still read its shared memory. */
static void end_stores(const Warp &w) {
  for (uint32_t rest = w.live; rest; rest &= rest - 1) {
    const BulkStores &stores = w.lanes[__builtin_ctz(rest)].stores;
    for (const auto &group : stores.groups)
      for (const BulkStore &store : group) {
        set_fault("the block ends while the bulk store issued at {at:%u} reads its shared memory: no "
                  "cp.async.bulk.wait_group follows", store.site);
        return;
      }
    if (!stores.open.empty()) {
      set_fault("the block ends with the bulk store issued at {at:%u} in no group", stores.open[0].site);
      return;
    }
  }
}

/* Ordinary accesses that the lane knows of are visible to the asynchronous proxy from here on; `shared`:
   those of shared memory, which a fence of global memory leaves out. */
extern "C" void executor_fence_proxy_async(ExecutorFunction &function, bool shared) {
  count(function);
  if (shared) warp->clock.proxy_fence(1u << lane_number);
}

/* What others wrote to a tensor map in global memory is visible to the lane's copies, if it knows of it. */
extern "C" void executor_fence_tensormap(ExecutorFunction &function, const void *map, bool acquires) {
  Site site = CALLER;
  count(function);
  if (!acquires) {
    warp->clock.thread_fence(1u << lane_number, kGpuScope);
    return;
  }
  REQUIRE(global_access(map, 128, 128, kUnset, function.name, site, actor_of(now())));
  lane->fenced_maps.insert(map);
}

extern "C" void executor_prefetch_tensormap(ExecutorFunction &function, const void *map) {
  REQUIRE(map_at(map, function.name, CALLER) != nullptr);
}
