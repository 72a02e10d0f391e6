/* Tensor maps, and which bytes a tensor copy moves.

   The encoding is this package's (tma/tensor_maps.py); what the driver's means is not published.
   Dimensions begin with the innermost one. */
#pragma once

#include "mbarrier.h"

struct EncodedMap {
  uint64_t address, strides[4];
  uint32_t dims[5];
  uint16_t box[5];
  uint8_t element_strides[5], mode, dtype, rank, swizzle, element_bytes;
  int16_t lower[3], upper[3];
  uint16_t channels, pixels;
  uint8_t fill, reserved[23];
  char mark[8];
};
static_assert(sizeof(EncodedMap) == 128, "as tma/tensor_maps.py packs it");

/* What is loaded to, or stored from, 16 bytes of an image: `bytes` of global memory from `skip` on. */
struct Chunk {
  uint32_t image;  // Byte in the image.
  uint8_t skip, bytes;
  unsigned char *global;
};

/* A part of an array that one copy moves. */
struct Box {
  std::vector<Chunk> chunks;
  uint32_t bytes = 0;         // Of the image.
  uint32_t swizzle = 0;       // Chunks of 16 bytes that are permuted, less 1.
  uint64_t global_bytes = 0, sectors = 0;
};

/* The hardware permutes chunks by bits of the address in shared memory. */
static inline size_t swizzled(size_t offset, uint32_t mask) {
  return offset ^ ((offset >> 7 & mask) << 4);
}

/* A map is a parameter of the kernel, or lies in global memory: one that the launch has written there needs a
   fence (fence.proxy.tensormap) before its use. */
static const EncodedMap *map_at(const void *p, const char *what, Site site) {
  auto map = static_cast<const EncodedMap *>(p);
  auto address = static_cast<const char *>(p);
  bool is_parameter = address >= lane->stack_low && address < lane->stack_high - sizeof *map;
  if (!is_parameter && !(global_memory.holds(p, sizeof *map))) {
    set_fault("%s at {at:%u}: the address is that of no tensor map", what, site);
    return nullptr;
  }
  if (!is_parameter && !global_access(p, sizeof *map, 64, kUnset, what, site, actor_of(now()))) return nullptr;
  if (!is_parameter && global_races.written(p) && !lane->fenced_maps.count(p)) {
    set_fault("missing fence.proxy.tensormap: %s at {at:%u} reads a tensor map that was written in this launch",
              what, site);
    return nullptr;
  }
  if (reinterpret_cast<uintptr_t>(p) % 64) {
    set_fault("%s at {at:%u}: a tensor map lies at a multiple of 64 bytes", what, site);
    return nullptr;
  }
  if (memcmp(map->mark, "CUTENMAP", 8) == 0) return map;
  set_fault("%s at {at:%u}: the address is that of no tensor map", what, site);
  return nullptr;
}

/* The asynchronous proxy reads or writes global memory for a lane. What it writes is there for others
   when the lane has waited for its stores, not only for their sources. */
static bool bulk_access(const void *p, size_t bytes, size_t alignment, State state, const char *what, Site site) {
  Actor actor = actor_of(now());
  if (state == kUnset) return global_access(p, bytes, alignment, state, what, site, actor);
  if (state == kAtomic && !global_memory.touch(p, bytes, alignment, false, what, site, true)) return false;
  BulkStores &stores = lane->stores;
  if (stores.writes_agent == 0) stores.writes_agent = make_agent("a bulk store of " + doer(now()));
  Actor store{actor.clock, actor.lane, make_stamp(stores.writes_agent, 0, stores.committed + 1)};
  return global_access(p, bytes, alignment, state, what, site, store);
}

/* One row of an image: elements from `first` on in the innermost dimension. */
static bool add_row(Box &box, const EncodedMap &map, bool inside, unsigned char *row, int64_t first,
                    uint32_t elements, State state, const char *what, Site site) {
  int64_t size = map.element_bytes, begin = std::max<int64_t>(first, 0),
          end = std::min<int64_t>(first + elements, map.dims[0]);
  if (!inside || end <= begin) begin = end = first;
  uint32_t bytes = uint32_t(elements * size);
  if (end > begin) {
    uint64_t address = reinterpret_cast<uint64_t>(row) + uint64_t(begin * size);
    uint64_t length = uint64_t((end - begin) * size);
    if (!bulk_access(reinterpret_cast<void *>(address), length, 1, state, what, site)) return false;
    box.global_bytes += length;
    box.sectors += (address + length - 1) / 32 - address / 32 + 1;
  }
  for (uint32_t at = 0; at < bytes; at += 16) {
    int64_t low = first * size + at, high = low + 16;
    int64_t from = std::max(low, begin * size), to = std::min(high, end * size);
    if (to < from) from = to = low;
    box.chunks.push_back({box.bytes + at, uint8_t(from - low), uint8_t(to - from), row + from});
  }
  box.bytes += bytes;
  return true;
}

/* A tile: coordinates may lie outside of the array. */
static bool tiled_box(Box &box, const EncodedMap &map, const int32_t *coordinates, State state,
                      const char *what, Site site) {
  uint32_t counts[5], index[5] = {};
  for (int d = 0; d < 5; d++)
    counts[d] = d == 0 || d >= map.rank
                    ? 1
                    : (map.box[d] + map.element_strides[d] - 1u) / map.element_strides[d];
  for (;;) {
    bool inside = true;
    int64_t offset = 0;
    for (int d = 1; d < map.rank; d++) {
      int64_t c = coordinates[d] + int64_t(index[d]) * map.element_strides[d];
      inside &= c >= 0 && c < map.dims[d];
      offset += c * int64_t(map.strides[d - 1]);
    }
    auto row = reinterpret_cast<unsigned char *>(map.address) + offset;
    if (!add_row(box, map, inside, row, coordinates[0], map.box[0], state, what, site)) return false;
    int d = 1;
    while (d < 5 && ++index[d] == counts[d]) index[d++] = 0;
    if (d == 5) return true;
  }
}

/* Pixels of an image from a first one on, moved by the offsets of a filter's tap: they run through the
   corners' box in each dimension, then through images. */
static bool im2col_box(Box &box, const EncodedMap &map, const int32_t *coordinates,
                       const uint16_t *offsets, const char *what, Site site) {
  int spatial = map.rank - 2;
  int64_t base[5];
  for (int d = 0; d < map.rank; d++) base[d] = coordinates[d];
  for (uint32_t pixel = 0; pixel < map.pixels; pixel++) {
    bool inside = base[map.rank - 1] >= 0 && base[map.rank - 1] < map.dims[map.rank - 1];
    int64_t offset = base[map.rank - 1] * int64_t(map.strides[map.rank - 2]);
    for (int d = 1; d <= spatial; d++) {
      int64_t c = base[d] + offsets[d - 1];
      inside &= c >= 0 && c < map.dims[d];
      offset += c * int64_t(map.strides[d - 1]);
    }
    auto row = reinterpret_cast<unsigned char *>(map.address) + offset;
    if (!add_row(box, map, inside, row, coordinates[0], map.channels, kUnset, what, site)) return false;
    int d = 1;
    for (; d <= spatial; d++) {
      base[d] += map.element_strides[d];
      if (base[d] <= int64_t(map.dims[d]) - 1 + map.upper[d - 1]) break;
      base[d] = map.lower[d - 1];
    }
    if (d > spatial) base[map.rank - 1]++;
  }
  return true;
}

/* `offsets`: of an im2col load, else null. */
static bool make_box(Box &box, const EncodedMap &map, const int32_t *coordinates, int rank,
                     const uint16_t *offsets, State state, const char *what, Site site) {
  if (rank != map.rank || (map.mode == 1) != (offsets != nullptr)) {
    set_fault("%s at {at:%u} has %d coordinates%s, and its tensor map is one of rank %d%s", what, site, rank,
              offsets ? " and offsets" : "", map.rank, map.mode ? " in im2col mode" : "");
    return false;
  }
  static const uint32_t masks[] = {0, 1, 3, 7};
  box.swizzle = masks[map.swizzle & 3];
  return offsets ? im2col_box(box, map, coordinates, offsets, what, site)
                 : tiled_box(box, map, coordinates, state, what, site);
}
