/* Shared memory of the block that runs, with what is known of every part of it.

   For each cell (16 bytes, or fewer once something smaller is touched): who wrote it last and who
   has read it since. Two accesses are ordered where one thread makes both, where a barrier of the
   block is between them, or a __syncwarp for threads of one warp. What cp.async writes is in
   flight until the thread that issued it has waited; nobody may touch it before. */
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "fault.h"

constexpr int kCollective = 32;  // As a lane: a warp's collective function.
constexpr int kManyLanes = 33;
constexpr int kManyWarps = 63;

enum State : uint64_t { kUnset = 0, kWritten = 1, kInFlight = 2, kAtomic = 3 };

/* A moment of a thread: 2 bits for a state, 6 of the lane, 6 of the warp, 25 of the number of its
   warp's barriers, and 25 of the block's. */
using Stamp = uint64_t;

static inline Stamp make_stamp(uint64_t epoch, uint64_t phase, int warp, int lane) {
  return epoch << 39 | (phase & 0x1ffffff) << 14 | uint64_t(warp) << 8 | uint64_t(lane) << 2;
}
static inline uint64_t epoch_of(Stamp s) { return s >> 39; }
static inline uint64_t phase_of(Stamp s) { return s >> 14 & 0x1ffffff; }
static inline int warp_of(Stamp s) { return int(s >> 8 & 63); }
static inline int lane_of(Stamp s) { return int(s >> 2 & 63); }
static inline State state_of(Stamp s) { return State(s & 3); }

struct Cell {
  Stamp writer = 0, reader = 0;  // No reader: 0, since epochs begin at 1.
  Site written_at = 0, read_at = 0;
};

/* Where variables of the text that are not dynamic lie: a section of the library. */
extern "C" {
extern unsigned char __start_executor_shared __attribute__((weak, visibility("hidden")));
extern unsigned char __stop_executor_shared __attribute__((weak, visibility("hidden")));
extern unsigned char executor_dynamic_shared[];
}

constexpr size_t kMostShared = 228 * 1024;
alignas(1024) unsigned char executor_dynamic_shared[kMostShared];

class SharedMemory {
 public:
  /* A block begins: nothing is set. */
  void begin(size_t dynamic_bytes) {
    dynamic_bytes_ = dynamic_bytes;
    static_ = &__start_executor_shared;
    static_bytes_ = static_ ? size_t(&__stop_executor_shared - static_) : 0;
    static_padded_ = (static_bytes_ + 1023) / 1024 * 1024;
    granule_ = 16;
    cells_.assign((static_padded_ + dynamic_bytes_ + 15) / 16, Cell{});
    if (static_bytes_) memset(static_, 0x7f, static_bytes_);  // A NaN in every float type.
    memset(executor_dynamic_shared, 0x7f, dynamic_bytes_);
  }

  bool holds(const void *p) const {
    auto address = static_cast<const unsigned char *>(p);
    return (address >= executor_dynamic_shared && address < executor_dynamic_shared + kMostShared) ||
           (address >= static_ && address < static_ + static_bytes_);
  }

  size_t static_bytes() const { return static_bytes_; }

  /* The address that the banks see. */
  size_t offset(const void *p) const {
    auto address = static_cast<const unsigned char *>(p);
    if (address >= executor_dynamic_shared && address < executor_dynamic_shared + kMostShared)
      return static_padded_ + size_t(address - executor_dynamic_shared);
    return size_t(address - static_);
  }

  /* The inverse. */
  unsigned char *at(size_t offset) const {
    return offset < static_padded_ ? static_ + offset
                                   : executor_dynamic_shared + (offset - static_padded_);
  }

  /* Whether bytes are the block's, and aligned to `alignment`; else a fault is set. */
  bool valid(const void *p, size_t bytes, size_t alignment, const char *what, Site site) {
    size_t start = holds(p) ? offset(p) : 0;
    size_t end = start < static_padded_ ? static_bytes_ : static_padded_ + dynamic_bytes_;
    if (!holds(p) || start + bytes > end) {
      if (!holds(p))
        set_fault("%s at {at:%u} is given an address outside of shared memory", what, site);
      else
        set_fault("%s at {at:%u} is out of bounds: %s of %zu", what, site,
                  place(start, bytes).text, start < static_padded_ ? static_bytes_ : dynamic_bytes_);
      return false;
    }
    if (start % alignment) {
      set_fault("%s at {at:%u} is misaligned: %s, which has to be a multiple of %zu", what, site,
                place(start, bytes).text, alignment);
      return false;
    }
    return true;
  }

  bool read(const void *p, size_t bytes, Stamp now, Site site) {
    auto [first, last] = range(offset(p), bytes);
    for (size_t c = first; c < last; c++) {
      Cell &cell = cells_[c];
      if (!written_before(cell, now) || state_of(cell.writer) == kUnset)
        return bad_read(c, now, site);
      note_reader(cell, now, site);
    }
    return true;
  }

  /* `state`: of what is written. */
  bool write(const void *p, size_t bytes, Stamp now, State state, Site site) {
    auto [first, last] = range(offset(p), bytes);
    for (size_t c = first; c < last; c++) {
      Cell &cell = cells_[c];
      bool atomics = state == kAtomic && state_of(cell.writer) == kAtomic;
      if (!(atomics || written_before(cell, now)) || !read_before(cell, now))
        return bad_write(c, now, state, site);
      cell.writer = now | state;
      cell.written_at = site;
      cell.reader = 0;
    }
    return true;
  }

  /* What cp.async wrote is there: as if the thread wrote it now. */
  void land(const void *p, size_t bytes, Stamp now) {
    auto [first, last] = range(offset(p), bytes);
    for (size_t c = first; c < last; c++) cells_[c].writer = now | kWritten;
  }

 private:
  struct Text {
    char text[96];
  };

  /* Variables are named by the caller, from their places in the library: {variable:FIRST:LAST}. */
  Text place(size_t start, size_t bytes) const {
    Text made;
    if (start < static_padded_) {
      Site first = site_of(static_ + start);
      snprintf(made.text, sizeof made.text, "{variable:%u:%zu}", first, first + bytes - 1);
    } else {
      snprintf(made.text, sizeof made.text, "bytes %zu to %zu of dynamic shared memory",
               start - static_padded_, start - static_padded_ + bytes - 1);
    }
    return made;
  }

  static bool written_before(const Cell &cell, Stamp now) {
    Stamp w = cell.writer;
    if (state_of(w) == kUnset) return true;
    if (state_of(w) == kInFlight) return false;
    if (epoch_of(w) < epoch_of(now)) return true;
    if (warp_of(w) != warp_of(now)) return false;
    return phase_of(w) < phase_of(now) || lane_of(w) == lane_of(now);
  }

  static bool read_before(const Cell &cell, Stamp now) {
    Stamp r = cell.reader;
    if (r == 0 || epoch_of(r) < epoch_of(now)) return true;
    if (warp_of(r) != warp_of(now)) return false;
    return phase_of(r) < phase_of(now) || lane_of(r) == lane_of(now);
  }

  static void note_reader(Cell &cell, Stamp now, Site site) {
    Stamp r = cell.reader;
    if (r == now) return;
    int warp = warp_of(now), lane = lane_of(now);
    if (r != 0 && epoch_of(r) == epoch_of(now)) {
      if (warp_of(r) != warp)
        warp = kManyWarps;
      else if (phase_of(r) == phase_of(now) && lane_of(r) != lane)
        lane = kManyLanes;
    }
    cell.reader = make_stamp(epoch_of(now), phase_of(now), warp, lane);
    cell.read_at = site;
  }

  /* The cells of bytes, which become smaller where they have to. */
  std::pair<size_t, size_t> range(size_t start, size_t bytes) {
    size_t odd = start | bytes | 16;
    size_t needed = odd & -odd;
    while (granule_ > needed) {
      std::vector<Cell> finer;
      finer.reserve(cells_.size() * 2);
      for (const Cell &cell : cells_) finer.insert(finer.end(), 2, cell);
      cells_.swap(finer);
      granule_ /= 2;
    }
    return {start / granule_, (start + bytes) / granule_};
  }

  static Text thread(Stamp s) {
    Text made;
    if (warp_of(s) == kManyWarps)
      snprintf(made.text, sizeof made.text, "several warps");
    else if (lane_of(s) == kCollective || lane_of(s) == kManyLanes)
      snprintf(made.text, sizeof made.text, "warp %d", warp_of(s));
    else
      snprintf(made.text, sizeof made.text, "thread %d", warp_of(s) * 32 + lane_of(s));
    return made;
  }

  bool bad_read(size_t c, Stamp now, Site site) {
    const Cell &cell = cells_[c];
    Text where = place(c * granule_, granule_);
    State state = state_of(cell.writer);
    if (state == kUnset)
      set_fault("uninitialised shared memory: %s reads %s at {at:%u}, which nobody has written yet",
                thread(now).text, where.text, site);
    else if (state == kInFlight)
      set_fault("cp.async not waited for: %s reads %s at {at:%u} while the copy that thread %d issued "
                "at {at:%u} is in flight", thread(now).text, where.text, site,
                warp_of(cell.writer) * 32 + lane_of(cell.writer), cell.written_at);
    else
      set_fault("data race in shared memory: %s reads %s at {at:%u}, which %s wrote at {at:%u} with no "
                "barrier between them", thread(now).text, where.text, site,
                thread(cell.writer).text, cell.written_at);
    return false;
  }

  bool bad_write(size_t c, Stamp now, State state, Site site) {
    const Cell &cell = cells_[c];
    Text where = place(c * granule_, granule_);
    const char *copies = state == kInFlight ? "copies to" : "writes";
    if (state_of(cell.writer) == kInFlight)
      set_fault("cp.async not waited for: %s %s %s at {at:%u} while the copy that thread %d issued at "
                "{at:%u} is in flight", thread(now).text, copies, where.text, site,
                warp_of(cell.writer) * 32 + lane_of(cell.writer), cell.written_at);
    else if (!written_before(cell, now))
      set_fault("data race in shared memory: %s %s %s at {at:%u}, which %s wrote at {at:%u} with no "
                "barrier between them", thread(now).text, copies, where.text, site,
                thread(cell.writer).text, cell.written_at);
    else
      set_fault("data race in shared memory: %s %s %s at {at:%u}, which %s read at {at:%u} with no "
                "barrier between them", thread(now).text, copies, where.text, site,
                thread(cell.reader).text, cell.read_at);
    return false;
  }

  size_t dynamic_bytes_ = 0, static_bytes_ = 0, static_padded_ = 0, granule_ = 16;
  unsigned char *static_ = nullptr;
  std::vector<Cell> cells_;
};
