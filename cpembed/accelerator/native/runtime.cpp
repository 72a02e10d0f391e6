/* Executes the records of a program: values in program order, or for machines with channels in a
   random order that their signals allow; then the times (timing.h). */
#include <deque>
#include <memory>

#include "machine.h"
#include "timing.h"

enum Synchronization { kInOrder, kInterlocked, kChannels };

struct Outcome {
  Fault fault;
  double cycles;
  int64_t saturations, wraps;
};

struct Queued {
  int64_t number;
  int32_t issue;
};

class Executor {
 public:
  explicit Executor(const Setup &setup)
      : lists_(setup.lists), timing_(run_), state_(setup.seed) {
    run_.setup = setup;
    for (int i = 0; i < setup.memory_count; i++) {
      Memory memory;
      memory.setup = setup.memories[i];
      if (memory.setup.kind == kRows) {
        size_t bytes = size_t(memory.setup.rows * memory.setup.row_bytes);
        memory.bytes.assign(bytes, 0xa5);
        memory.written.assign(bytes, 0);
      }
      run_.memories.push_back(std::move(memory));
    }
    run_.tensors.assign(setup.tensors, setup.tensors + setup.tensor_count);
    if (setup.synchronization == kChannels) begin_channels();
    timing_.begin();
  }

  /* Executes records, or queues them; false after a fault. */
  bool feed(const int64_t *records, const int32_t *issues, int64_t count, bool is_last) {
    const size_t width = size_t(run_.setup.width);
    if (run_.setup.synchronization != kChannels) {
      for (int64_t i = 0; i < count; i++) {
        run_.number = executed_ + i, run_.issue = issues[i];
        int instruction = run_.setup.issues[issues[i]].instruction;
        if (!machine_instructions[instruction].execute(run_, records + size_t(i) * width))
          return false;
        // Only now, since what was executed has sizes that are allowed.
        timing_.add(run_.number, issues[i], records + size_t(i) * width);
      }
      executed_ += count;
    } else {
      for (int64_t i = 0; i < count; i++) {
        int unit = unit_of(issues[i]);
        queues_[size_t(unit)].push_back({executed_ + i, issues[i]});
        auto &data = data_[size_t(unit)];
        data.insert(data.end(), records + size_t(i) * width, records + size_t(i + 1) * width);
      }
      if (!run_channels(is_last)) return false;
      // In the order of the text, not of this run: times do not depend on the seed.
      for (int64_t i = 0; i < count; i++)
        timing_.add(executed_ + i, issues[i], records + size_t(i) * width);
      executed_ += count;
    }
    timing_.advance();
    return true;
  }

  Outcome outcome() const { return {run_.fault, timing_.total, run_.saturations, run_.wraps}; }
  const Timing &timing() const { return timing_; }
  int64_t signals_left(int channel) const { return int64_t(signals_[size_t(channel)].size()); }

 private:
  int unit_of(int issue) const {
    return run_.setup.instructions[run_.setup.issues[issue].instruction].unit;
  }

  void begin_channels() {
    const Setup &setup = run_.setup;
    size_t units = size_t(setup.unit_count);
    queues_.resize(units), data_.resize(units);
    signals_.resize(size_t(setup.channel_count));
    sent_.assign(size_t(setup.channel_count), 0);
    received_.resize(size_t(setup.channel_count));
    run_.history.resize(units);
    Clocks &clocks = run_.clocks;
    clocks.enabled = true, clocks.units = units;
    clocks.now.assign(units, std::vector<uint32_t>(units));
    for (const Memory &memory : run_.memories) {
      const MemorySetup &s = memory.setup;
      int64_t granules = s.kind == kRegister ? 1 : 0;
      if (s.kind == kRows) granules = s.whole_rows ? s.rows : s.rows * s.row_bytes;
      clocks.places.emplace_back(size_t(granules), units);
    }
    for (const TensorSetup &tensor : run_.tensors)
      clocks.places.emplace_back(size_t(tensor.writable ? tensor.elements : 0), units);
  }

  bool is_ready(size_t unit) const {
    if (queues_[unit].empty()) return false;
    const IssueSetup &issue = run_.setup.issues[queues_[unit].front().issue];
    for (int w = issue.waits; w < issue.waits_end; w++) {
      int64_t needed = 1;
      for (int v = issue.waits; v < w; v++) needed += lists_[v] == lists_[w];
      if (int64_t(signals_[size_t(lists_[w])].size()) < needed) return false;
    }
    return true;
  }

  bool run_channels(bool is_last) {
    std::vector<size_t> ready;
    for (;;) {
      ready.clear();
      bool empty = false;
      for (size_t unit = 0; unit < queues_.size(); unit++) {
        empty = empty || queues_[unit].empty();
        if (is_ready(unit)) ready.push_back(unit);
      }
      // What a unit would do next may come with the next records.
      if (!is_last && empty) return true;
      if (ready.empty()) {
        if (!is_last) return true;
        return check_ended();
      }
      size_t unit = ready[random_number() % ready.size()];
      // Runs of random lengths let units lead and lag.
      for (uint64_t burst = 1 + random_number() % 8; burst > 0 && is_ready(unit); burst--)
        if (!step(unit)) return false;
    }
  }

  bool step(size_t unit) {
    Queued head = queues_[unit].front();
    queues_[unit].pop_front();
    const IssueSetup &issue = run_.setup.issues[head.issue];
    run_.number = head.number, run_.issue = head.issue;
    std::vector<uint32_t> &now = run_.clocks.now[unit];
    run_.clocks.unit = unit;
    now[unit]++;
    run_.history[unit].push_back({head.number, head.issue});
    for (int w = issue.waits; w < issue.waits_end; w++) {
      size_t channel = size_t(lists_[w]);
      std::vector<uint32_t> sent = std::move(signals_[channel].front());
      signals_[channel].pop_front();
      for (size_t v = 0; v < now.size(); v++) now[v] = std::max(now[v], sent[v]);
      received_[channel].push_back({unit, now[unit]});
    }
    const size_t width = size_t(run_.setup.width);
    auto &data = data_[unit];
    std::vector<int64_t> record(data.begin(), data.begin() + long(width));
    data.erase(data.begin(), data.begin() + long(width));
    if (!machine_instructions[issue.instruction].execute(run_, record.data())) return false;
    for (int s = issue.signals; s < issue.signals_end; s++) {
      size_t channel = size_t(lists_[s]);
      int64_t freed = sent_[channel] - run_.setup.depths[channel];
      // In no order may it be sent before there is room.
      if (freed >= 0) {
        bool known = freed < int64_t(received_[channel].size());
        if (!known || now[received_[channel][size_t(freed)].first] < received_[channel][size_t(freed)].second) {
          run_.fail(kFullChannel, -1, int(channel), 0, 0, run_.setup.depths[channel]);
          return false;
        }
      }
      sent_[channel]++;
      signals_[channel].push_back(now);
    }
    return true;
  }

  bool check_ended() {
    for (size_t unit = 0; unit < queues_.size(); unit++) {
      if (queues_[unit].empty()) continue;
      run_.number = queues_[unit].front().number, run_.issue = queues_[unit].front().issue;
      const IssueSetup &issue = run_.setup.issues[run_.issue];
      int channel = issue.waits < issue.waits_end ? lists_[issue.waits] : 0;
      for (int w = issue.waits; w < issue.waits_end; w++)
        if (signals_[size_t(lists_[w])].empty()) {
          channel = lists_[w];
          break;
        }
      return run_.fail(kDeadlock, -1, channel, int64_t(unit), 0);
    }
    return true;
  }

  /* splitmix64 */
  uint64_t random_number() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
  }

  Run run_;
  const int32_t *lists_;
  Timing timing_;
  uint64_t state_;
  int64_t executed_ = 0;
  std::vector<std::deque<Queued>> queues_;
  std::vector<std::deque<int64_t>> data_;
  std::vector<std::deque<std::vector<uint32_t>>> signals_;
  std::vector<int64_t> sent_;
  std::vector<std::vector<std::pair<size_t, uint32_t>>> received_;
};

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED Executor *executor_new(const Setup *setup) { return new Executor(*setup); }
EXPORTED void executor_free(Executor *executor) { delete executor; }
EXPORTED int executor_feed(Executor *executor, const int64_t *records, const int32_t *issues,
                           int64_t count, int is_last) {
  return executor->feed(records, issues, count, is_last != 0);
}
EXPORTED void executor_outcome(const Executor *executor, Outcome *outcome, double *unit_busy,
                               double *memory_busy, int64_t *moved_bits, int64_t *signals_left,
                               int units, int memories, int channels) {
  *outcome = executor->outcome();
  const Timing &timing = executor->timing();
  std::copy_n(timing.unit_busy.begin(), units, unit_busy);
  std::copy_n(timing.memory_busy.begin(), memories, memory_busy);
  std::copy_n(timing.moved_bits.begin(), 2 * memories, moved_bits);
  for (int c = 0; c < channels; c++) signals_left[c] = executor->signals_left(c);
}
