/* Times of a run. An instruction starts when its unit is free, what it touches is ready and its
   waits have signals; a path with a limited bandwidth carries the bytes of one instruction after
   the other.

   The order in which instructions get a path must not depend on the paths: else, a faster memory
   could make a program slower. It is that of a run in which paths have no limit: an instruction
   that is ready late does not delay those of other units that are ready before it. All times are
   then sums and maxima of the times on the paths, which never fall when one of them rises. */
#pragma once

#include <deque>

#include "machine.h"

class Timing {
 public:
  explicit Timing(Run &run) : touched_{run, {}, {}, {}, {}}, run_(run) {}

  double total = 0;
  std::vector<double> unit_busy, memory_busy;
  std::vector<int64_t> moved_bits;

  void begin() {
    const Setup &setup = run_.setup;
    size_t memories = run_.memories.size(), units = size_t(setup.unit_count);
    unit_busy.assign(units, 0), memory_busy.assign(memories, 0), moved_bits.assign(2 * memories, 0);
    unit_free_[0].assign(units, 0), unit_free_[1].assign(units, 0);
    path_free_.assign(memories, 0);
    signals_[0].resize(size_t(setup.channel_count)), signals_[1].resize(size_t(setup.channel_count));
    pending_.resize(units);
    touched_.bits.assign(2 * memories, 0);
    touched_.collects = setup.synchronization != 2;
    int64_t slots = 0;
    for (const Memory &memory : run_.memories) {
      touched_.memory_base.push_back(slots);
      if (memory.setup.kind == kRows) slots += memory.setup.rows;
      if (memory.setup.kind == kRegister) slots++;
    }
    for (const TensorSetup &tensor : run_.tensors) {
      touched_.tensor_base.push_back(tensor.writable ? slots : -1);
      if (tensor.writable) slots += tensor.elements * tensor.element_bytes / Touched::kLineBytes + 1;
    }
    if (touched_.collects)
      for (int pass = 0; pass < 2; pass++)
        written_[pass].assign(size_t(slots), 0), read_[pass].assign(size_t(slots), 0);
  }

  void add(int64_t number, int32_t issue, const int64_t *record) {
    const InstructionSetup &instruction =
        run_.setup.instructions[run_.setup.issues[issue].instruction];
    const InstructionCode &code = machine_instructions[run_.setup.issues[issue].instruction];
    std::fill(touched_.bits.begin(), touched_.bits.end(), 0);
    size_t first = touched_.slots.size();
    touched_.begin = int64_t(first);
    code.touch(touched_, record);
    Entry entry;
    entry.number = number, entry.issue = issue;
    entry.unit = run_.setup.synchronization == 0 ? 0 : instruction.unit;
    entry.real_unit = instruction.unit;
    entry.first = first, entry.last = touched_.slots.size();
    entry.cycles = code.cycles(run_.setup.coefficients + instruction.coefficients, record);
    entry.latency = instruction.latency;
    entry.paths = paths_.size();
    size_t memories = run_.memories.size();
    for (size_t m = 0; m < memories; m++) {
      const MemorySetup &setup = run_.memories[m].setup;
      int64_t read = touched_.bits[2 * m], wrote = touched_.bits[2 * m + 1];
      moved_bits[2 * m] += read, moved_bits[2 * m + 1] += wrote;
      double path = double(read + wrote) / 8 / setup.bytes_per_cycle;
      memory_busy[m] += path;
      paths_.push_back(path);
      if (setup.kind == kMain && read > 0) entry.latency += setup.latency;
    }
    entries_.push_back(entry);
  }

  /* Times all executions whose signals are there; at the end, that is all. */
  void advance() {
    order_.clear();
    if (run_.setup.synchronization == 2) {
      order_channels();
    } else {
      for (size_t i = 0; i < entries_.size(); i++) order(i);
    }
    std::stable_sort(order_.begin(), order_.end(), [this](size_t a, size_t b) {
      const Entry &x = entries_[a], &y = entries_[b];
      return x.reference != y.reference ? x.reference < y.reference : x.number < y.number;
    });
    for (size_t i : order_) time(entries_[i]);
    drop_timed();
  }

 private:
  struct Entry {
    int64_t number;
    int32_t issue, unit, real_unit;
    bool timed = false;
    double cycles, latency, reference = 0;
    size_t first, last, paths;
  };

  double begin_of(const Entry &entry, int pass) const {
    double start = unit_free_[pass][size_t(entry.unit)];
    for (size_t s = entry.first; s < entry.last; s++) {
      const Slots &slots = touched_.slots[s];
      const double *written = &written_[pass][size_t(slots.first)];
      const double *read = &read_[pass][size_t(slots.first)];
      for (int64_t i = 0; i < slots.count; i++) {
        start = std::max(start, written[i]);
        if (slots.writes) start = std::max(start, read[i]);
      }
    }
    return start;
  }
  void end(const Entry &entry, int pass, double end, double ready) {
    for (size_t s = entry.first; s < entry.last; s++) {
      const Slots &slots = touched_.slots[s];
      double *times = slots.writes ? &written_[pass][size_t(slots.first)] : &read_[pass][size_t(slots.first)];
      double at = slots.writes ? ready : end;
      for (int64_t i = 0; i < slots.count; i++) times[i] = std::max(times[i], at);
    }
    unit_free_[pass][size_t(entry.unit)] = end;
  }

  void order(size_t i) {
    Entry &entry = entries_[i];
    entry.reference = begin_of(entry, 0);
    end(entry, 0, entry.reference + entry.cycles, entry.reference + entry.cycles);
    order_.push_back(i);
  }

  void order_channels() {
    for (size_t i = 0; i < entries_.size(); i++) pending_[size_t(entries_[i].unit)].push_back(i);
    for (bool moved = true; moved;) {
      moved = false;
      for (auto &queue : pending_)
        while (!queue.empty() && take(entries_[queue.front()], 0, entries_[queue.front()].reference)) {
          Entry &entry = entries_[queue.front()];
          entry.reference = std::max(entry.reference, unit_free_[0][size_t(entry.unit)]);
          unit_free_[0][size_t(entry.unit)] = entry.reference + entry.cycles;
          send(entry, 0, entry.reference + entry.cycles);
          order_.push_back(queue.front());
          queue.pop_front();
          moved = true;
        }
    }
    // Positions change when what was timed is dropped.
    for (auto &queue : pending_) queue.clear();
  }

  /* Takes the signals that an execution waits for; false if one is missing. */
  bool take(const Entry &entry, int pass, double &latest) {
    const IssueSetup &issue = run_.setup.issues[entry.issue];
    const int32_t *lists = run_.setup.lists;
    for (int w = issue.waits; w < issue.waits_end; w++) {
      size_t needed = 1;
      for (int v = issue.waits; v < w; v++) needed += lists[v] == lists[w];
      if (signals_[pass][size_t(lists[w])].size() < needed) return false;
    }
    for (int w = issue.waits; w < issue.waits_end; w++) {
      auto &channel = signals_[pass][size_t(lists[w])];
      latest = std::max(latest, channel.front());
      channel.pop_front();
    }
    return true;
  }
  void send(const Entry &entry, int pass, double at) {
    const IssueSetup &issue = run_.setup.issues[entry.issue];
    for (int s = issue.signals; s < issue.signals_end; s++)
      signals_[pass][size_t(run_.setup.lists[s])].push_back(at);
  }

  void time(Entry &entry) {
    double start = begin_of(entry, 1);
    if (run_.setup.synchronization == 2) take(entry, 1, start);
    const size_t memories = run_.memories.size();
    const double *paths = &paths_[entry.paths];
    double occupied = entry.cycles;
    for (size_t m = 0; m < memories; m++)
      if (paths[m] > 0) {
        start = std::max(start, path_free_[m]);
        occupied = std::max(occupied, paths[m]);
      }
    for (size_t m = 0; m < memories; m++)
      if (paths[m] > 0) path_free_[m] = start + paths[m];
    double ready = start + occupied + entry.latency;
    unit_busy[size_t(entry.real_unit)] += occupied;
    end(entry, 1, start + occupied, ready);
    if (run_.setup.synchronization == 2) send(entry, 1, ready);
    total = std::max(total, ready);
    entry.timed = true;
  }

  void drop_timed() {
    if (run_.setup.synchronization != 2) {
      entries_.clear(), paths_.clear(), touched_.slots.clear();
      return;
    }
    const size_t memories = run_.memories.size();
    size_t left = 0;
    std::vector<double> paths;
    for (Entry &entry : entries_) {
      if (entry.timed) continue;
      paths.insert(paths.end(), &paths_[entry.paths], &paths_[entry.paths] + memories);
      entry.paths = left * memories, entry.first = entry.last = 0;
      entries_[left++] = entry;
    }
    entries_.resize(left);
    paths_ = std::move(paths);
    touched_.slots.clear();
  }

  Touched touched_;
  Run &run_;
  std::vector<Entry> entries_;
  std::vector<double> paths_, path_free_;
  std::vector<size_t> order_;
  std::vector<double> unit_free_[2], written_[2], read_[2];
  std::vector<std::deque<double>> signals_[2];
  std::vector<std::deque<size_t>> pending_;
};
