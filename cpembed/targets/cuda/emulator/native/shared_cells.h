/* What is known of every part of shared memory: who wrote it last, and who has read it since. */
#pragma once

#include <numeric>
#include <string>

#include "clocks.h"
#include "fault.h"

/* kInFlight: by cp.async or a bulk copy, not waited for. kObject: a barrier object lies here. */
enum State : uint64_t { kUnset = 0, kWritten = 1, kInFlight = 2, kAtomic = 3, kObject = 4 };

static inline State state_of(Stamp s) { return State(s & 7); }

struct Cell {
  Stamp writer = 0;
  uint64_t reader = 0;  // A stamp, 0 for none, or with kSeveral set the number of a set.
  Site written_at = 0, read_at = 0;
};

constexpr uint64_t kSeveral = uint64_t{1} << 63;

/* Readers of which none is known to come after another. */
struct Reader {
  uint32_t component, time;
  uint64_t lanes;  // Bits, with that of collective functions.
  Site site;
};

class ReaderSets {
 public:
  void begin() {
    free_.resize(sets_.size());
    std::iota(free_.begin(), free_.end(), size_t{0});
  }

  /* A set of `count` readers, in the memory of one that was dropped if there is one. */
  uint64_t make(const Reader *readers, size_t count) {
    size_t number = sets_.size();
    if (free_.empty()) {
      sets_.emplace_back();
    } else {
      number = free_.back();
      free_.pop_back();
    }
    sets_[number].assign(readers, readers + count);
    return kSeveral | number;
  }
  std::vector<Reader> &of(uint64_t reader) { return sets_[reader & ~kSeveral]; }
  void drop(uint64_t reader) {
    if (!(reader & kSeveral)) return;
    free_.push_back(reader & ~kSeveral);
  }

 private:
  std::vector<std::vector<Reader>> sets_;
  std::vector<size_t> free_;
};

/* std::to_string has a table that is unique in the process, which keeps a library from closing. */
static inline std::string decimal(int64_t number) {
  char made[24];
  snprintf(made, sizeof made, "%lld", (long long)number);
  return made;
}

/* What agents are called in messages, from the first component that is no warp on. */
struct Agent {
  std::string text;
};
static std::vector<Agent> agents;

static uint32_t make_agent(const std::string &text) {
  agents.push_back({text});
  return uint32_t(warp_clocks.size() + agents.size() - 1);
}

static uint32_t warps_a_block = 1, blocks_a_cluster = 1;

/* Who made an access, in words. */
static std::string doer(uint32_t component, uint64_t lanes) {
  if (is_agent(component)) return agents[component - warp_clocks.size()].text;
  uint32_t warp = component % warps_a_block;
  char text[96];
  bool several = lanes >> kCollective || (lanes & (lanes - 1));
  if (several)
    snprintf(text, sizeof text, "warp %u", warp);
  else
    snprintf(text, sizeof text, "thread %u", warp * 32 + unsigned(__builtin_ctzll(lanes)));
  std::string made = text;
  if (blocks_a_cluster > 1) made += " of block " + decimal(component / warps_a_block) + " of the cluster";
  return made;
}
static std::string doer(Stamp s) { return doer(component_of(s), uint64_t{1} << lane_of(s)); }

/* Cells of one block, page by page: those of a page are as small as its accesses need. */
class Cells {
 public:
  void begin(size_t bytes) {
    running_++;
    pages_.resize(std::max(pages_.size(), (bytes + kPage - 1) / kPage));
    sets_.begin();
  }

  /* `visit` a cell and its first byte, for each cell of bytes; false as soon as it returns that. */
  template <class Visit>
  bool each(size_t start, size_t bytes, Visit visit) {
    for (size_t end = start + bytes; start < end;) {
      size_t within = start % kPage, piece = std::min(end - start, kPage - within);
      Page &page = page_of(start / kPage);
      split(page, within | piece);
      size_t granule = page.granule;
      Cell *cell = &page.cells[within / granule], *last = cell + piece / granule;
      for (; cell < last; cell++, start += granule)
        if (!visit(*cell, start)) return false;
    }
    return true;
  }

  /* Number of bytes of the cell that begins at `start`. */
  size_t granule(size_t start) { return page_of(start / kPage).granule; }

  /* A reader that is after the access `now`, or at the same time; null if none. */
  const Reader *reader_beyond(const Cell &cell, const WarpClock &clock, int lane) {
    if (cell.reader == 0) return nullptr;
    if (!(cell.reader & kSeveral)) {
      if (clock.knows(cell.reader, lane)) return nullptr;
      single_ = reader_of(cell.reader, cell.read_at);
      return &single_;
    }
    for (const Reader &r : sets_.of(cell.reader))
      if (!known(r, clock, lane)) return &r;
    return nullptr;
  }

  /* `clock`: of the thread that reads, which ends that others have read what it knows of; null if it ends none. */
  void note_reader(Cell &cell, Stamp now, const WarpClock *clock, Site site) {
    uint64_t r = cell.reader;
    if (r == now) return;
    if (!(r & kSeveral)) {
      if (r == 0 || follows(now, r) || (clock && clock->knows(r, lane_of(now)))) {
        cell.reader = now, cell.read_at = site;
        return;
      }
      Reader two[] = {reader_of(r, cell.read_at), reader_of(now, site)};
      cell.reader = sets_.make(two, 2);
      return;
    }
    std::vector<Reader> &set = sets_.of(r);
    Reader mine = reader_of(now, site);
    for (Reader &reader : set)
      if (reader.component == mine.component && (reader.time == mine.time || reader.lanes == mine.lanes)) {
        reader.lanes |= mine.lanes;
        reader.time = mine.time;
        return;
      }
    size_t kept = 0;
    for (const Reader &reader : set)
      if (!clock || !known(reader, *clock, lane_of(now))) set[kept++] = reader;
    set.resize(kept);
    set.push_back(mine);
  }

  void forget_readers(Cell &cell) {
    sets_.drop(cell.reader);
    cell.reader = 0;
  }

 private:
  static constexpr size_t kPage = 512, kGranule = 16;

  struct Page {
    uint64_t running = 0;  // Of which launch of a block its cells tell; of an earlier one they count as unset.
    size_t granule = kGranule;
    std::vector<Cell> cells;
  };

  Page &page_of(size_t number) {
    Page &page = pages_[number];
    if (__builtin_expect(page.running != running_, 0)) {
      page.running = running_, page.granule = kGranule;
      page.cells.assign(kPage / kGranule, Cell{});
    }
    return page;
  }

  /* The cells of a page become so small that bytes whose bounds have the bits `odd` are some of them. */
  void split(Page &page, size_t odd) {
    odd |= kGranule;
    size_t needed = odd & -odd;
    for (; __builtin_expect(page.granule > needed, 0); page.granule /= 2) {
      std::vector<Cell> finer;
      finer.reserve(page.cells.size() * 2);
      for (const Cell &cell : page.cells) {
        finer.insert(finer.end(), 2, cell);
        if (!(cell.reader & kSeveral)) continue;
        std::vector<Reader> same = sets_.of(cell.reader);
        finer.back().reader = sets_.make(same.data(), same.size());
      }
      page.cells.swap(finer);
    }
  }

  static Reader reader_of(Stamp s, Site site) {
    return {component_of(s), time_of(s), uint64_t{1} << lane_of(s), site};
  }

  /* Whether one thread, or agent, makes both accesses. */
  static bool follows(Stamp now, Stamp before) {
    return component_of(now) == component_of(before) && lane_of(now) == lane_of(before);
  }

  static bool known(const Reader &r, const WarpClock &clock, int lane) {
    if (clock.common.order.time(r.component) >= r.time) return true;
    for (uint64_t rest = r.lanes; rest; rest &= rest - 1)
      if (!clock.knows(make_stamp(r.component, __builtin_ctzll(rest), r.time), lane)) return false;
    return true;
  }

  uint64_t running_ = 0;
  std::vector<Page> pages_;
  ReaderSets sets_;
  Reader single_;
};
