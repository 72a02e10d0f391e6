/* What is known of every part of shared memory: who wrote it last, and who has read it since. */
#pragma once

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
  void begin() { sets_.clear(), free_.clear(); }

  uint64_t make(std::vector<Reader> readers) {
    size_t number = sets_.size();
    if (free_.empty()) {
      sets_.push_back(std::move(readers));
    } else {
      number = free_.back();
      free_.pop_back();
      sets_[number] = std::move(readers);
    }
    return kSeveral | number;
  }
  std::vector<Reader> &of(uint64_t reader) { return sets_[reader & ~kSeveral]; }
  void drop(uint64_t reader) {
    if (!(reader & kSeveral)) return;
    of(reader).clear();
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
  bool several = lanes >> kCollective & 1 || (lanes & (lanes - 1));
  if (several)
    snprintf(text, sizeof text, "warp %u", warp);
  else
    snprintf(text, sizeof text, "thread %u", warp * 32 + unsigned(__builtin_ctzll(lanes)));
  std::string made = text;
  if (blocks_a_cluster > 1) made += " of block " + decimal(component / warps_a_block) + " of the cluster";
  return made;
}
static std::string doer(Stamp s) { return doer(component_of(s), uint64_t{1} << lane_of(s)); }

class Cells {
 public:
  void begin(size_t bytes) {
    granule_ = 16;
    cells_.assign((bytes + 15) / 16, Cell{});
    sets_.begin();
  }

  /* The cells of bytes, which become smaller where they have to. */
  std::pair<size_t, size_t> range(size_t start, size_t bytes) {
    size_t odd = start | bytes | 16;
    size_t needed = odd & -odd;
    while (granule_ > needed) {
      std::vector<Cell> finer;
      finer.reserve(cells_.size() * 2);
      for (const Cell &cell : cells_) {
        finer.insert(finer.end(), 2, cell);
        if (cell.reader & kSeveral) {
          std::vector<Reader> same = sets_.of(cell.reader);
          finer.back().reader = sets_.make(std::move(same));
        }
      }
      cells_.swap(finer);
      granule_ /= 2;
    }
    return {start / granule_, (start + bytes) / granule_};
  }

  Cell &operator[](size_t number) { return cells_[number]; }
  size_t granule() const { return granule_; }

  /* A reader that is after the access `now`, or at the same time; null if none. */
  const Reader *reader_beyond(const Cell &cell, const WarpClock &clock, int lane) {
    if (cell.reader == 0) return nullptr;
    if (!(cell.reader & kSeveral)) {
      if (clock.knows(cell.reader, lane)) return nullptr;
      single_ = {component_of(cell.reader), time_of(cell.reader), uint64_t{1} << lane_of(cell.reader),
                 cell.read_at};
      return &single_;
    }
    for (const Reader &r : sets_.of(cell.reader))
      if (!known(r, clock, lane)) return &r;
    return nullptr;
  }

  void note_reader(Cell &cell, Stamp now, const WarpClock &clock, Site site) {
    uint64_t r = cell.reader;
    if (r == now) return;
    if (!(r & kSeveral)) {
      if (r == 0 || clock.knows(r, lane_of(now))) {
        cell.reader = now, cell.read_at = site;
        return;
      }
      cell.reader = sets_.make({{component_of(r), time_of(r), uint64_t{1} << lane_of(r), cell.read_at},
                                {component_of(now), time_of(now), uint64_t{1} << lane_of(now), site}});
      return;
    }
    std::vector<Reader> &set = sets_.of(r);
    uint32_t component = component_of(now), time = time_of(now);
    for (Reader &reader : set)
      if (reader.component == component && reader.time == time) {
        reader.lanes |= uint64_t{1} << lane_of(now);
        return;
      }
    size_t kept = 0;
    for (const Reader &reader : set)
      if (!known(reader, clock, lane_of(now))) set[kept++] = reader;
    set.resize(kept);
    set.push_back({component, time, uint64_t{1} << lane_of(now), site});
  }

  void forget_readers(Cell &cell) {
    sets_.drop(cell.reader);
    cell.reader = 0;
  }

 private:
  static bool known(const Reader &r, const WarpClock &clock, int lane) {
    if (clock.common.order.time(r.component) >= r.time) return true;
    for (uint64_t rest = r.lanes; rest; rest &= rest - 1)
      if (!clock.knows(make_stamp(r.component, __builtin_ctzll(rest), r.time), lane)) return false;
    return true;
  }

  size_t granule_ = 16;
  std::vector<Cell> cells_;
  ReaderSets sets_;
  Reader single_;
};
