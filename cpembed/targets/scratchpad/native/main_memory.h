/* Main memory: the arrays of a run, their bounds, and which transfers use the same bytes without an
   order between them. */
#pragma once

#include <memory>

#include "machine.h"

/* Of a few bytes, the transfers that used them last, by their numbers; 0: none. */
struct Cell {
  uint32_t writer, readers[2];  // The readers are of different PEs.
};

struct Array {
  unsigned char *base;
  long bytes;
  int operand;
  bool writable;
  int per_byte;  // Elements of a byte of the machine, each of which has a byte here.
  std::unique_ptr<Cell, void (*)(void *)> cells{nullptr, free};
};

class MainMemory {
 public:
  void begin() {
    arrays_.clear();
    log_.assign(1, {});
    epoch_ = 1;
    granule_ = shape.alignment_bytes % 4 == 0 ? 4 : shape.alignment_bytes % 2 == 0 ? 2 : 1;
  }

  void add(unsigned char *base, long bytes, int operand, bool writable, int per_byte) {
    Array made{base, bytes, operand, writable, per_byte};
    // An address space that is only backed by memory where it is used.
    size_t count = writable ? size_t(bytes / granule_ + 2) : 1;
    made.cells.reset(static_cast<Cell *>(calloc(count, sizeof(Cell))));
    arrays_.push_back(std::move(made));
  }

  /* The array that an address is meant for; null where there is none near. */
  Array *array_of(const void *p) {
    auto at = static_cast<const unsigned char *>(p);
    Array *near = nullptr;
    long nearest = 1 << 16;
    for (Array &a : arrays_) {
      long distance = std::max<long>(a.base - at, at - (a.base + a.bytes) + 1);
      if (distance <= 0) return &a;
      if (distance < nearest) nearest = distance, near = &a;
    }
    return near;
  }

  /* Give a transfer a number, and note which bytes it uses from now on. */
  void start(Transfer &t) {
    t.number = uint32_t(log_.size());
    log_.push_back({pe->number, epoch_, t.site, t.get, false});
    mark(t);
  }

  void end(const Transfer &t) { log_[t.number].ended = true; }

  /* All PEs have met: what was used before has an order, except for what is still under way. */
  void next_epoch() {
    epoch_++;
    for (Pe &p : pes) {
      for (Transfer &t : p.pending) {
        log_[t.number].epoch = epoch_;
        mark(t);
      }
    }
  }

 private:
  struct Entry {
    int pe;
    uint32_t epoch;
    Site site;
    bool get, ended;
  };

  bool conflicts(uint32_t number, const Transfer &t) const {
    const Entry &other = log_[number];
    if (number == 0 || number == t.number || other.epoch != epoch_) return false;
    return other.pe != log_[t.number].pe || !other.ended;
  }

  void mark(const Transfer &t) {
    if (!t.array->writable) return;
    for (long done = 0; done < t.size; done += t.block) {
      long first = t.start + done / t.block * t.stride;
      for (long at = first; at < first + t.block; at += granule_) {
        Cell &cell = t.array->cells.get()[at / granule_];
        if (conflicts(cell.writer, t)) overlap(t, at, cell.writer);
        if (t.get) {
          if (log_[cell.readers[0]].pe != log_[t.number].pe) cell.readers[1] = cell.readers[0];
          cell.readers[0] = t.number;
          continue;
        }
        for (uint32_t reader : cell.readers)
          if (conflicts(reader, t)) overlap(t, at, reader);
        cell.writer = t.number;
      }
    }
  }

  [[noreturn]] void overlap(const Transfer &t, long at, uint32_t number) const {
    const Entry &mine = log_[t.number], &other = log_[number];
    const Pe &p = pes[size_t(other.pe)];
    bool own = mine.pe == other.pe;
    pe = &pes[size_t(mine.pe)];
    fail("dma_%s at {at:%u} uses byte %ld of operand %d, which PE (%d, %d) %s by dma_%s at {at:%u} %s",
         t.get ? "get" : "put", t.site, at, t.array->operand, p.row, p.column,
         other.get ? "reads" : "writes", other.get ? "get" : "put", other.site,
         own ? "that has not been waited for" : "without sync_all in between");
  }

  std::vector<Array> arrays_;
  std::vector<Entry> log_;
  uint32_t epoch_ = 1;
  long granule_ = 4;
};

static MainMemory main_memory;
