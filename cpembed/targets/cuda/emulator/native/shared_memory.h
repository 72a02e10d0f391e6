/* Shared memory of the blocks that run, each with its cells (shared_cells.h).

   Two accesses are ordered where one thread makes both, or where what the first one's thread released
   at a barrier, a barrier object or an atomic operation has come to the second one's (clocks.h). What
   cp.async writes is in flight until the thread that issued it has waited; what a bulk copy writes,
   until its barrier object's phase is complete. Nobody may touch it before. */
#pragma once

#include <sys/mman.h>

#include <cstring>

#include "shared_cells.h"

/* Where variables of the text that are not dynamic lie: a section of the library. */
extern "C" {
extern unsigned char __start_executor_shared __attribute__((weak, visibility("hidden")));
extern unsigned char __stop_executor_shared __attribute__((weak, visibility("hidden")));
}

constexpr size_t kMostShared = size_t{1} << 18;  // Of a block, which has 227 KiB at most.
constexpr size_t kMostAlignment = 1024;          // That swizzles need.
constexpr uint32_t kMostBlocks = 16;             // Of a cluster.

/* Who does something: the clock of its warp, its lane, and the moment. */
struct Actor {
  const WarpClock &clock;
  int lane;
  Stamp stamp;
};

static Actor actor_of(Stamp now) { return {*warp_clocks[component_of(now)], lane_of(now), now}; }

class SharedMemory {
 public:
  /* `blocks` begin: nothing is set. Dynamic memory is aligned as declared, and no further. */
  void begin(uint32_t blocks, size_t dynamic_bytes, size_t alignment) {
    if (base_ == nullptr) {
      void *made = mmap(nullptr, kMostShared * (kMostBlocks + 1), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (made == MAP_FAILED) {
        set_fault("no memory for the shared memory of %u blocks", kMostBlocks);
        return;
      }
      mapped_ = static_cast<unsigned char *>(made);
      base_ = mapped_ + (kMostShared - reinterpret_cast<uintptr_t>(made) % kMostShared);
    }
    dynamic_bytes_ = dynamic_bytes;
    static_ = &__start_executor_shared;
    static_bytes_ = static_ ? size_t(&__stop_executor_shared - static_) : 0;
    static_padded_ = (static_bytes_ + kMostAlignment - 1) / kMostAlignment * kMostAlignment;
    if (alignment < kMostAlignment) static_padded_ += alignment;
    blocks_ = blocks;
    for (uint32_t rank = 0; rank < blocks; rank++) {
      cells_[rank].begin(static_padded_ + dynamic_bytes_);
      memset(dynamic(rank), 0x7f, dynamic_bytes_);
    }
    if (static_bytes_) memset(static_, 0x7f, static_bytes_);  // A NaN in every float type.
  }

  ~SharedMemory() {
    if (mapped_) munmap(mapped_, kMostShared * (kMostBlocks + 1));
  }

  unsigned char *dynamic(uint32_t rank) const { return base_ + rank * kMostShared; }
  size_t static_bytes() const { return static_bytes_; }

  bool holds(const void *p) const {
    auto address = static_cast<const unsigned char *>(p);
    return (address >= base_ && address < base_ + blocks_ * kMostShared) ||
           (address >= static_ && address < static_ + static_bytes_);
  }

  /* The block of the cluster, by its rank. */
  uint32_t rank(const void *p) const {
    auto address = static_cast<const unsigned char *>(p);
    return address >= base_ && address < base_ + blocks_ * kMostShared
               ? uint32_t(size_t(address - base_) / kMostShared)
               : 0;
  }

  /* The address that the banks see. */
  size_t offset(const void *p) const {
    auto address = static_cast<const unsigned char *>(p);
    if (address >= base_ && address < base_ + blocks_ * kMostShared)
      return static_padded_ + size_t(address - base_) % kMostShared;
    return size_t(address - static_);
  }

  /* The inverse, in the block of a rank. */
  unsigned char *at(size_t offset, uint32_t rank) const {
    return offset < static_padded_ ? static_ + offset : dynamic(rank) + (offset - static_padded_);
  }

  /* Whether bytes are a block's, and aligned to `alignment`; else a fault is set. */
  bool valid(const void *p, size_t bytes, size_t alignment, const char *what, Site site) {
    size_t start = holds(p) ? offset(p) : 0;
    size_t end = start < static_padded_ ? static_bytes_ : static_padded_ + dynamic_bytes_;
    if (!holds(p) || start + bytes > end) {
      if (!holds(p))
        set_fault("%s at {at:%u} is given an address outside of shared memory", what, site);
      else
        set_fault("%s at {at:%u} is out of bounds: %s of %zu", what, site,
                  place(start, bytes).c_str(),
                  start < static_padded_ ? static_bytes_ : dynamic_bytes_);
      return false;
    }
    if (start % alignment) {
      set_fault("%s at {at:%u} is misaligned: %s, which has to be a multiple of %zu", what, site,
                place(start, bytes).c_str(), alignment);
      return false;
    }
    return true;
  }

  bool read(const void *p, size_t bytes, Stamp now, Site site) {
    Actor actor = actor_of(now);
    Cells &cells = cells_[rank(p)];
    Stamp known = kNobody;
    return cells.each(offset(p), bytes, [&](Cell &cell, size_t start) {
      if (cell.writer != known && !readable(cell, actor)) return bad_access(cells, cell, start, actor, "reads", site);
      known = cell.writer;
      cells.note_reader(cell, now, &actor.clock, site);
      return true;
    });
  }

  /* `state`: of what is written. */
  bool write(const void *p, size_t bytes, Stamp now, State state, Site site) {
    Actor actor = actor_of(now);
    Cells &cells = cells_[rank(p)];
    return cells.each(offset(p), bytes, [&](Cell &cell, size_t start) {
      bool atomics = state == kAtomic && state_of(cell.writer) == kAtomic;
      if (!(atomics || written_before(cell, actor)) || cells.reader_beyond(cell, actor.clock, actor.lane))
        return bad_access(cells, cell, start, actor, state == kInFlight ? "copies to" : "writes", site);
      overwrite(cells, cell, now | state, site);
      return true;
    });
  }

  /* Bytes begin or end to be a barrier object, or are unset again. */
  void set_writer(const void *p, size_t bytes, Stamp writer, Site site) {
    cells_[rank(p)].each(offset(p), bytes, [&](Cell &cell, size_t) {
      cell.writer = writer;
      if (site) cell.written_at = site;
      return true;
    });
  }

  /* The asynchronous proxy reads for `actor`; `reader` is the stamp of the operation. */
  bool read_by_proxy(const void *p, size_t bytes, const Actor &actor, Stamp reader, const char *what,
                     Site site) {
    Cells &cells = cells_[rank(p)];
    Stamp known = kNobody;
    return cells.each(offset(p), bytes, [&](Cell &cell, size_t start) {
      if (cell.writer != known && !readable(cell, actor))
        return bad_access(cells, cell, start, actor, (std::string("(") + what + ") reads").c_str(), site);
      if (cell.writer != known && !fenced(cell, actor))
        return no_proxy_fence(cells, cell, start, actor, what, "reads", site);
      known = cell.writer;
      // No thread has waited for it yet, so that it is after no reader.
      cells.note_reader(cell, reader, nullptr, site);
      return true;
    });
  }

  /* It writes for `actor`; `writer`: the stamp of the operation with its state. */
  bool write_by_proxy(const void *p, size_t bytes, const Actor &actor, Stamp writer, const char *what,
                      Site site) {
    Cells &cells = cells_[rank(p)];
    Stamp known = kNobody, passed = kNobody;
    return cells.each(offset(p), bytes, [&](Cell &cell, size_t start) {
      bool same = cell.writer == known && (cell.reader == passed || cell.reader == 0);
      if (!same &&
          (!written_before(cell, actor) || cells.reader_beyond(cell, actor.clock, actor.lane)))
        return bad_access(cells, cell, start, actor, (std::string("(") + what + ") copies to").c_str(), site);
      if (!same && !fenced(cell, actor))
        return no_proxy_fence(cells, cell, start, actor, what, "overwrites", site);
      known = cell.writer, passed = cell.reader;
      overwrite(cells, cell, writer, site);
      return true;
    });
  }

  /* What lies in shared memory, in words. Variables are named by the caller, from their places in the
     library: {variable:FIRST:LAST}. */
  std::string place(size_t start, size_t bytes) const {
    char made[96];
    if (start < static_padded_) {
      Site first = site_of(static_ + start);
      snprintf(made, sizeof made, "{variable:%u:%zu}", first, first + bytes - 1);
    } else {
      snprintf(made, sizeof made, "bytes %zu to %zu of dynamic shared memory", start - static_padded_,
               start - static_padded_ + bytes - 1);
    }
    return made;
  }

 private:
  static constexpr Stamp kNobody = ~Stamp{0};  // The stamp of no access.

  static void overwrite(Cells &cells, Cell &cell, Stamp writer, Site site) {
    cell.writer = writer;
    cell.written_at = site;
    cells.forget_readers(cell);
  }

  static bool readable(const Cell &cell, const Actor &actor) {
    State state = state_of(cell.writer);
    return (state == kWritten || state == kAtomic) && actor.clock.knows(cell.writer, actor.lane);
  }

  static bool written_before(const Cell &cell, const Actor &actor) {
    State state = state_of(cell.writer);
    if (state == kUnset) return true;
    if (state == kInFlight || state == kObject) return false;
    return actor.clock.knows(cell.writer, actor.lane);
  }

  /* Whether the asynchronous proxy sees the last write. */
  static bool fenced(const Cell &cell, const Actor &actor) {
    if (state_of(cell.writer) == kUnset || is_agent(component_of(cell.writer))) return true;
    return actor.clock.proxy_knows(cell.writer, actor.lane);
  }

  bool no_proxy_fence(Cells &cells, const Cell &cell, size_t start, const Actor &actor, const char *what,
                      const char *does, Site site) {
    set_fault("missing fence.proxy.async: %s of %s at {at:%u} %s %s, which %s wrote at {at:%u} with no "
              "proxy fence between them", what, doer(actor.stamp).c_str(), site, does,
              place(start, cells.granule(start)).c_str(), doer(cell.writer).c_str(),
              cell.written_at);
    return false;
  }

  /* Of an access that may not be made. */
  bool bad_access(Cells &cells, const Cell &cell, size_t start, const Actor &actor, const char *does,
                  Site site) {
    std::string where = place(start, cells.granule(start)), who = doer(actor.stamp);
    State state = state_of(cell.writer);
    bool reads = strstr(does, "reads") != nullptr;
    if (state == kUnset && reads)
      set_fault("uninitialised shared memory: %s %s %s at {at:%u}, which nobody has written yet",
                who.c_str(), does, where.c_str(), site);
    else if (state == kObject)
      set_fault("%s %s %s at {at:%u}, where the barrier object lies that was initialised at {at:%u}",
                who.c_str(), does, where.c_str(), site, cell.written_at);
    else if (state == kInFlight && is_agent(component_of(cell.writer)))
      set_fault("bulk copy not waited for: %s %s %s at {at:%u} while the copy that was issued at {at:%u} "
                "to %s is in flight", who.c_str(), does, where.c_str(), site, cell.written_at,
                doer(cell.writer).c_str());
    else if (state == kInFlight)
      set_fault("cp.async not waited for: %s %s %s at {at:%u} while the copy that %s issued "
                "at {at:%u} is in flight", who.c_str(), does, where.c_str(), site,
                doer(cell.writer).c_str(), cell.written_at);
    else if (state != kUnset && !actor.clock.knows(cell.writer, actor.lane) &&
             is_agent(component_of(cell.writer)))
      set_fault("bulk copy not waited for: %s %s %s at {at:%u}, which the copy issued at {at:%u} wrote; "
                "it has not waited for %s", who.c_str(), does, where.c_str(), site, cell.written_at,
                doer(cell.writer).c_str());
    else if (state != kUnset && !actor.clock.knows(cell.writer, actor.lane))
      set_fault("data race in shared memory: %s %s %s at {at:%u}, which %s wrote at {at:%u} with no "
                "barrier between them", who.c_str(), does, where.c_str(), site,
                doer(cell.writer).c_str(), cell.written_at);
    else if (const Reader *r = cells.reader_beyond(cell, actor.clock, actor.lane))
      set_fault("data race in shared memory: %s %s %s at {at:%u}, which %s read at {at:%u} with no "
                "barrier between them", who.c_str(), does, where.c_str(), site,
                doer(r->component, r->lanes).c_str(), r->site);
    return false;
  }

  size_t dynamic_bytes_ = 0, static_bytes_ = 0, static_padded_ = 0;
  uint32_t blocks_ = 1;
  unsigned char *static_ = nullptr, *base_ = nullptr, *mapped_ = nullptr;
  Cells cells_[kMostBlocks];
};
