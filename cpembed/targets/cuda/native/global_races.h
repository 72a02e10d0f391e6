/* Races in global memory: who wrote what last in this launch, and whether a reader knows of it.

   Blocks run one after the other, or a cluster at a time, so that a block learns of another one only
   through an atomic operation on a location that the other one released to: by the operation itself
   (acq_rel), or with a fence of the GPU before it there and after it here. A write after a read of
   what nobody had written in the launch is not found. */
#pragma once

#include <unordered_map>

#include "shared_cells.h"

class GlobalRaces {
 public:
  void begin() { pages_.clear(), last_ = nullptr, last_number_ = ~uint64_t{0}; }

  /* An access of `actor`; `state`: kUnset of a read, else of what is written. */
  bool access(const void *p, size_t bytes, State state, const Actor &actor, const char *what, Site site) {
    uint64_t address = reinterpret_cast<uint64_t>(p);
    for (size_t done = 0; done < bytes;) {
      uint64_t start = address + done;
      size_t piece = std::min<size_t>(bytes - done, kPage - start % kPage);
      Page *page = page_of(start / kPage, state != kUnset);
      if (page && !access_page(*page, start % kPage, piece, state, actor, what, site)) return false;
      done += piece;
    }
    return true;
  }

 private:
  static constexpr size_t kPage = 4096;

  struct Cell {
    Stamp writer = 0;
    uint32_t cluster = 0;
    Site site = 0;
  };
  struct Page {
    size_t granule = 16;
    std::vector<Cell> cells = std::vector<Cell>(kPage / 16);
  };

  Page *page_of(uint64_t number, bool make) {
    if (pages_.empty() && !make) return nullptr;
    if (number != last_number_ || (make && last_ == nullptr)) {
      auto known = pages_.find(number);
      if (known == pages_.end() && make)
        known = pages_.emplace(number, std::unique_ptr<Page>(new Page)).first;
      last_ = known == pages_.end() ? nullptr : known->second.get();
      last_number_ = number;
    }
    return last_;
  }

  bool access_page(Page &page, size_t start, size_t bytes, State state, const Actor &actor,
                   const char *what, Site site) {
    size_t odd = start | bytes | 16, needed = odd & -odd;
    for (; page.granule > needed; page.granule /= 2) {
      std::vector<Cell> finer;
      finer.reserve(page.cells.size() * 2);
      for (const Cell &cell : page.cells) finer.insert(finer.end(), 2, cell);
      page.cells.swap(finer);
    }
    for (size_t c = start / page.granule; c < (start + bytes) / page.granule; c++) {
      Cell &cell = page.cells[c];
      bool atomics = state == kAtomic && state_of(cell.writer) == kAtomic;
      if (state_of(cell.writer) != kUnset && !atomics && !knows(actor, cell))
        return report(cell, state, actor, what, site);
      if (state != kUnset) cell = {actor.stamp | state, running_cluster, site};
    }
    return true;
  }

  static bool knows(const Actor &actor, const Cell &cell) {
    if (cell.cluster == running_cluster && actor.clock.knows(cell.writer, actor.lane)) return true;
    return actor.clock.knows_of_cluster(cell.cluster, cell.writer, actor.lane);
  }

  static bool report(const Cell &cell, State state, const Actor &actor, const char *what, Site site) {
    bool other = cell.cluster != running_cluster;
    std::string writer = other ? "a thread of another block" : doer(cell.writer);
    set_fault("data race in global memory: %s of %s at {at:%u} %s what %s wrote at {at:%u} with no %s between "
              "them", what, doer(actor.stamp).c_str(), site, state == kUnset ? "reads" : "overwrites",
              writer.c_str(), cell.site, other ? "release and acquire" : "barrier");
    return false;
  }

  std::unordered_map<uint64_t, std::unique_ptr<Page>> pages_;
  Page *last_ = nullptr;
  uint64_t last_number_ = ~uint64_t{0};
};

static GlobalRaces global_races;
