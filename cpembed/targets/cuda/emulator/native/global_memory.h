/* The arrays of a launch: their bounds, which of their bytes are touched, and which nobody wrote.

   Who reads what is not noted at first, since most arrays are either read or written. A write of what has
   been read in the launch ends it, and it is run again with the array's readers noted (global_races.h). */
#pragma once

#include <cstring>
#include <vector>

#include "counters.h"
#include "fault.h"

class GlobalMemory {
 public:
  void begin() { buffers_.clear(); }

  /* `initialised`: a bit for each byte that something has written, in `bytes / 64 + 2` words that
     outlive the launch; null if all of them are. */
  void add(unsigned char *base, size_t bytes, int argument, uint64_t *initialised, bool tracked) {
    size_t words = bytes / 64 + 2;
    buffers_.push_back({base, bytes, argument, initialised, tracked, std::vector<uint64_t>(words),
                        std::vector<uint64_t>(words), {}});
  }

  /* Of a launch that may begin before the kernel before it ends. */
  void begin_dependent() {
    for (Buffer &buffer : buffers_)
      if (buffer.initialised)
        buffer.before.assign(buffer.initialised, buffer.initialised + buffer.bytes / 64 + 2);
  }

  struct Buffer {
    unsigned char *base;
    size_t bytes;
    int argument;
    uint64_t *initialised;
    bool tracked;
    std::vector<uint64_t> read, written;  // A bit for each byte.
    std::vector<uint64_t> before;         // Those that were written before a dependent launch.
    bool may_race = false;                // The launch has written it.
  };

  /* The array of bytes that may be accessed, and are aligned; null with a fault. */
  Buffer *touch(const void *p, size_t bytes, size_t alignment, bool writes, const char *what, Site site,
                bool atomic = false) {
    auto address = static_cast<const unsigned char *>(p);
    Buffer *found = buffer_of(address);
    if (found == nullptr || address < found->base || address + bytes > found->base + found->bytes) {
      if (found == nullptr)
        set_fault("%s at {at:%u} is out of bounds: the address is in no array", what, site);
      else
        set_fault("%s at {at:%u} is out of bounds: bytes %td to %td of argument %d, which has %zu",
                  what, site, address - found->base,
                  address - found->base + ptrdiff_t(bytes) - 1, found->argument, found->bytes);
      return nullptr;
    }
    if (reinterpret_cast<uintptr_t>(p) % alignment) {
      set_fault("%s at {at:%u} is misaligned: byte %td of argument %d, which has to be a multiple of %zu",
                what, site, address - found->base, found->argument, alignment);
      return nullptr;
    }
    size_t start = size_t(address - found->base);
    found->may_race |= writes || atomic;
    if (!atomic || writes) mark((writes ? found->written : found->read).data(), start, bytes);
    if (writes && !found->tracked && any(found->read.data(), start, bytes)) {
      set_fault("{track:%d}", found->argument);
      return nullptr;
    }
    if (found->initialised == nullptr) return found;
    if (writes) {
      mark(found->initialised, start, bytes);
      return found;
    }
    size_t byte = first_unset(found->initialised, start, bytes);
    if (byte == start + bytes) return found;
    set_fault("uninitialised global memory: %s at {at:%u} reads bytes %zu to %zu of argument %d, of "
              "which nobody has written byte %zu yet",
              what, site, start, start + bytes - 1, found->argument, byte);
    return nullptr;
  }

  bool holds(const void *p, size_t bytes) {
    auto address = static_cast<const unsigned char *>(p);
    Buffer *found = buffer_of(address);
    return found && address >= found->base && address + bytes <= found->base + found->bytes;
  }

  /* Whether an address is a multiple of `alignment`; else a fault is set. */
  bool aligned(const void *p, size_t alignment, const char *what, Site site) {
    if (reinterpret_cast<uintptr_t>(p) % alignment == 0) return true;
    Buffer *found = buffer_of(static_cast<const unsigned char *>(p));
    set_fault("%s at {at:%u} is misaligned: byte %td of argument %d, which has to be a multiple of %zu",
              what, site, found ? static_cast<const unsigned char *>(p) - found->base : 0,
              found ? found->argument : -1, alignment);
    return false;
  }

  void count_unique() {
    for (const Buffer &buffer : buffers_) {
      for (uint64_t word : buffer.read) tally.unique_bytes_read += uint64_t(__builtin_popcountll(word));
      for (uint64_t word : buffer.written)
        tally.unique_bytes_written += uint64_t(__builtin_popcountll(word));
    }
  }

  /* Within how many bytes of an array an address counts as meant for it. */
  static constexpr ptrdiff_t kNear = 1 << 16;

 private:
  /* The array that holds an address, or else the nearest one that is near. */
  Buffer *buffer_of(const unsigned char *address) {
    if (last_ < buffers_.size() && size_t(address - buffers_[last_].base) < buffers_[last_].bytes)
      return &buffers_[last_];
    Buffer *near = nullptr;
    ptrdiff_t nearest = kNear;
    for (Buffer &buffer : buffers_) {
      ptrdiff_t before = buffer.base - address;
      ptrdiff_t after = address - (buffer.base + buffer.bytes) + 1;
      ptrdiff_t distance = std::max(before, after);
      if (distance <= 0) {
        last_ = size_t(&buffer - buffers_.data());
        return &buffer;
      }
      if (distance < nearest) nearest = distance, near = &buffer;
    }
    return near;
  }

 public:
  static bool any(const uint64_t *bits, size_t start, size_t count) {
    for (; count > 64; start += 64, count -= 64)
      if (any(bits, start, 64)) return true;
    uint64_t mask = count >= 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1;
    if (bits[start / 64] & mask << start % 64) return true;
    return start % 64 + count > 64 && bits[start / 64 + 1] & mask >> (64 - start % 64);
  }

 private:
  /* The first of some bits that is not set; the one behind them if all are. */
  static size_t first_unset(const uint64_t *bits, size_t start, size_t count) {
    for (size_t bit = start; bit < start + count; bit = (bit | 63) + 1) {
      uint64_t unset = ~bits[bit / 64] >> bit % 64;
      if (unset == 0) continue;
      bit += size_t(__builtin_ctzll(unset));
      return std::min(bit, start + count);
    }
    return start + count;
  }

  static void mark(uint64_t *bits, size_t start, size_t count) {
    for (; count > 64; start += 64, count -= 64) mark(bits, start, 64);
    uint64_t mask = count >= 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1;
    bits[start / 64] |= mask << start % 64;
    if (start % 64 + count > 64) bits[start / 64 + 1] |= mask >> (64 - start % 64);
  }

  std::vector<Buffer> buffers_;
  size_t last_ = 0;  // That was accessed last.
};
