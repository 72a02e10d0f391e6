/* The PEs' memories: bounds, what was never written, and what a transfer still uses. */
#pragma once

#include "machine.h"

/* All memories of all PEs, with gaps between them, so that running off one is seen. */
class Scratchpads {
 public:
  static constexpr long kGap = 1 << 15;

  void begin() {
    starts_.clear();
    long end = kGap;
    for (int m = 0; m < shape.memories; m++) {
      starts_.push_back(end);
      end += (shape.memory_bytes[m] + 255) / 256 * 256 + kGap;
    }
    of_one_ = end;
    bytes_.assign(size_t(end) * pes.size() + 256, 0xff);
    auto address = reinterpret_cast<uintptr_t>(bytes_.data());
    base_ = bytes_.data() + (256 - address % 256) % 256;
    for (Pe &p : pes) {
      p.memories.clear();
      for (int m = 0; m < shape.memories; m++) {
        long bytes = long(shape.memory_bytes[m]);
        unsigned char *start = base_ + of_one_ * p.number + starts_[size_t(m)];
        p.memories.push_back({start, bytes, std::vector<unsigned char>(size_t(bytes)), 0});
      }
    }
  }

  bool holds(const void *p) const {
    auto at = static_cast<const unsigned char *>(p);
    return at >= base_ && at < base_ + of_one_ * long(pes.size());
  }

  struct Place {
    int memory;
    long offset;
  };

  /* Where bytes lie; a fault where that is not in one memory of the running PE. */
  Place place(const void *p, long bytes, const char *what, Site site) {
    if (!holds(p)) fail("%s at {at:%u} has an address that is in no scratchpad", what, site);
    long from = static_cast<const unsigned char *>(p) - base_;
    Pe &owner = pes[size_t(from / of_one_)];
    if (&owner != pe)
      fail("%s at {at:%u} is in the scratchpad of PE (%d, %d)", what, site, owner.row, owner.column);
    size_t m = 0;
    while (m + 1 < starts_.size() && from % of_one_ >= starts_[m + 1] - kGap / 2) m++;
    long offset = from % of_one_ - starts_[m];
    if (offset < 0 || offset + bytes > pe->memories[m].bytes)
      fail("%s at {at:%u} is out of bounds: bytes %ld to %ld of memory %zu, which has %ld", what,
           site, offset, offset + bytes - 1, m, pe->memories[m].bytes);
    return {int(m), offset};
  }

  void read(const void *p, long bytes, const char *what, Site site) {
    if (bytes <= 0) return;
    Place at = place(p, bytes, what, site);
    for (const Transfer &t : pe->pending)
      if (t.get && overlaps(t, at, bytes)) in_use(t, at, bytes, "reads", what, site);
    const auto &written = pe->memories[size_t(at.memory)].written;
    auto from = written.begin() + at.offset;
    if (auto never = memchr(&*from, 0, size_t(bytes)))
      fail("%s at {at:%u} reads byte %td of memory %d, which was never written (of bytes %ld to %ld)",
           what, site, static_cast<const unsigned char *>(never) - written.data(), at.memory,
           at.offset, at.offset + bytes - 1);
    use(at, bytes);
  }

  void write(const void *p, long bytes, const char *what, Site site) {
    if (bytes <= 0) return;
    Place at = place(p, bytes, what, site);
    require_free(at, bytes, what, site);
    mark_written(at, bytes);
    use(at, bytes);
  }

  /* That no transfer uses bytes that are going to be changed. */
  void require_free(Place at, long bytes, const char *what, Site site) {
    for (const Transfer &t : pe->pending)
      if (overlaps(t, at, bytes)) in_use(t, at, bytes, "writes", what, site);
  }

  void mark_written(Place at, long bytes) {
    memset(&pe->memories[size_t(at.memory)].written[size_t(at.offset)], 1, size_t(bytes));
  }

  void use(Place at, long bytes) {
    long &peak = pe->memories[size_t(at.memory)].peak;
    peak = std::max(peak, at.offset + bytes);
  }

  /* A fault where an instruction wrote between memories, without saying so. */
  void check_gaps() const {
    for (const Pe &p : pes) {
      const unsigned char *from = base_ + of_one_ * p.number;
      for (size_t m = 0; m <= p.memories.size(); m++) {
        bool last = m == p.memories.size();
        const unsigned char *to = last ? base_ + of_one_ * (p.number + 1) : p.memories[m].base;
        auto changed = std::find_if(from, to, [](unsigned char byte) { return byte != 0xff; });
        if (changed != to) {
          bool after = m > 0 && (last || changed - from < kGap / 2);
          return set_fault("PE (%d, %d): an instruction that did not say so changed a byte %s memory "
                           "%zu", p.row, p.column, after ? "after" : "before", after ? m - 1 : m);
        }
        if (!last) from = p.memories[m].base + p.memories[m].bytes;
      }
    }
  }

  std::vector<size_t> peaks() const {
    std::vector<size_t> made(size_t(shape.memories), 0);
    for (const Pe &p : pes)
      for (size_t m = 0; m < made.size(); m++)
        made[m] = std::max(made[m], size_t(p.memories[m].peak));
    return made;
  }

 private:
  static bool overlaps(const Transfer &t, Place at, long bytes) {
    return t.memory == at.memory && t.offset < at.offset + bytes && at.offset < t.offset + t.size;
  }

  [[noreturn]] static void in_use(const Transfer &t, Place at, long bytes, const char *how,
                                  const char *what, Site site) {
    fail("%s at {at:%u} %s bytes %ld to %ld of memory %d, which dma_%s at {at:%u} still %s: it has "
         "not been waited for", what, site, how, at.offset, at.offset + bytes - 1, at.memory,
         t.get ? "get" : "put", t.site, t.get ? "fills" : "reads");
  }

  std::vector<unsigned char> bytes_;
  unsigned char *base_ = nullptr;
  long of_one_ = 0;
  std::vector<long> starts_;
};

static Scratchpads scratchpads;
