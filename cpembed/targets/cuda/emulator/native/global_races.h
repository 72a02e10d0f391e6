/* Races in global memory: who wrote what last in this launch, who has read it since, and whether an access
   knows of them.

   Blocks run one after the other, or a cluster at a time, so that a block learns of another one only
   through an atomic operation on a location that the other one released to: by the operation itself
   (acq_rel), or with a fence of the GPU before it there and after it here. */
#pragma once

#include <unordered_map>

#include "shared_cells.h"

class GlobalRaces {
 public:
  void begin() {
    pages_.clear(), last_ = nullptr, last_number_ = ~uint64_t{0};
    readers_.clear(), readers_.emplace_back();
  }

  /* An access of `actor`; `state`: kUnset of a read, else of what is written. `tracked`: readers of the array
     are noted. `constant`: what is read may not be written in the launch, in any order. */
  bool access(const void *p, size_t bytes, State state, const Actor &actor, const char *what, Site site,
              bool tracked, bool constant = false) {
    uint64_t address = reinterpret_cast<uint64_t>(p);
    for (size_t done = 0; done < bytes;) {
      uint64_t start = address + done;
      size_t piece = std::min<size_t>(bytes - done, kPage - start % kPage);
      Page *page = page_of(start / kPage, tracked || state != kUnset);
      Call call{state, actor, what, site, tracked, constant};
      if (page && !access_page(*page, start % kPage, piece, call)) return false;
      done += piece;
    }
    return true;
  }

  bool written(const void *p) {
    uint64_t address = reinterpret_cast<uint64_t>(p);
    Page *page = page_of(address / kPage, false);
    return page && state_of(page->cells[address % kPage / page->granule].writer.stamp) != kUnset;
  }

 private:
  static constexpr size_t kPage = 4096;

  struct Access {
    Stamp stamp = 0;
    uint32_t cluster = 0;
    Site site = 0;
  };
  struct Cell {
    Access writer;
    uint32_t readers = 0;  // Number of a set.
  };
  struct Page {
    size_t granule = 16;
    std::vector<Cell> cells = std::vector<Cell>(kPage / 16);
  };
  struct Call {
    State state;
    const Actor &actor;
    const char *what;
    Site site;
    bool tracked, constant;
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

  bool access_page(Page &page, size_t start, size_t bytes, const Call &call) {
    size_t odd = start | bytes | 16, needed = odd & -odd;
    for (; page.granule > needed; page.granule /= 2) {
      std::vector<Cell> finer;
      finer.reserve(page.cells.size() * 2);
      for (const Cell &cell : page.cells) {
        finer.insert(finer.end(), 2, cell);
        if (cell.readers) finer.back().readers = new_set(readers_[cell.readers]);
      }
      page.cells.swap(finer);
    }
    for (size_t c = start / page.granule; c < (start + bytes) / page.granule; c++) {
      Cell &cell = page.cells[c];
      State before = state_of(cell.writer.stamp);
      bool atomics = call.state == kAtomic && before == kAtomic;
      if (before != kUnset && call.constant) return report_constant(cell, call);
      if (before != kUnset && !atomics && !knows(call.actor, cell.writer))
        return report(cell.writer, "wrote", call);
      if (call.state == kUnset) {
        if (call.tracked) note_reader(cell, call);
        continue;
      }
      if (cell.readers) {
        for (const Access &reader : readers_[cell.readers])
          if (!knows(call.actor, reader)) return report(reader, "read", call);
        readers_[cell.readers].clear();
      }
      cell.writer = {call.actor.stamp | call.state, running_cluster, call.site};
    }
    return true;
  }

  uint32_t new_set(std::vector<Access> readers) {
    readers_.push_back(std::move(readers));
    return uint32_t(readers_.size() - 1);
  }

  void note_reader(Cell &cell, const Call &call) {
    if (cell.readers == 0) cell.readers = new_set({});
    std::vector<Access> &set = readers_[cell.readers];
    size_t kept = 0;
    for (const Access &reader : set)
      if (!knows(call.actor, reader)) set[kept++] = reader;
    set.resize(kept);
    set.push_back({call.actor.stamp, running_cluster, call.site});
  }

  static bool knows(const Actor &actor, const Access &access) {
    if (access.cluster == running_cluster && actor.clock.knows(access.stamp, actor.lane)) return true;
    return actor.clock.knows_of_cluster(access.cluster, access.stamp, actor.lane);
  }

  static std::string doer_of(const Access &access) {
    return access.cluster == running_cluster ? doer(access.stamp) : "a thread of another block";
  }

  static bool report(const Access &before, const char *did, const Call &call) {
    bool other = before.cluster != running_cluster;
    set_fault("data race in global memory: %s of %s at {at:%u} %s what %s %s at {at:%u} with no %s between "
              "them", call.what, doer(call.actor.stamp).c_str(), call.site,
              call.state == kUnset ? "reads" : "overwrites", doer_of(before).c_str(), did, before.site,
              other ? "release and acquire" : "barrier");
    return false;
  }

  static bool report_constant(const Cell &cell, const Call &call) {
    set_fault("%s of %s at {at:%u} reads what %s wrote at {at:%u} in the same launch, which has to be constant "
              "for it", call.what, doer(call.actor.stamp).c_str(), call.site, doer_of(cell.writer).c_str(),
              cell.writer.site);
    return false;
  }

  std::unordered_map<uint64_t, std::unique_ptr<Page>> pages_;
  Page *last_ = nullptr;
  uint64_t last_number_ = ~uint64_t{0};
  std::vector<std::vector<Access>> readers_;  // The first set is none.
};

static GlobalRaces global_races;
