/* Memories of an emulated accelerator, and how an instruction's operands are read and written.

   The text of an instruction set (cpembed/accelerator/machine_text.py) includes this file. For each
   operand it has a walk: a function that visits the operand's elements in spans of one row, or of
   main memory. A visitor reads them, writes them, or collects what they touch. */
#pragma once

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "numbers.h"

enum MemoryKind { kMain, kRows, kRegister };

enum FaultCode {
  kNoFault,
  kNeverWritten,
  kRowOutside,
  kLaneOutside,
  kLaneFixed,
  kElementOutside,
  kReadOnly,
  kElementNeverWritten,
  kBanksEqual,
  kRegisterUnset,
  kSize,
  kOverlap,
  kRace,
  kDeadlock,
  kFullChannel,
  kImmediate,
  kTwice,
};

struct MemorySetup {
  int64_t rows, row_bytes, bank_rows;
  double bytes_per_cycle, latency;
  int32_t kind, whole_rows;  // whole_rows: all operands begin at lane 0.
};

struct TensorSetup {
  uint8_t *bytes, *written;
  int64_t elements;
  int32_t element_bytes, writable;
};

struct InstructionSetup {
  double latency;
  int64_t coefficients;
  int32_t unit, padding;
};

/* A list of channels is a range of `Setup::lists`. */
struct IssueSetup {
  int32_t instruction, waits, waits_end, signals, signals_end;
};

struct Setup {
  const MemorySetup *memories;
  const TensorSetup *tensors;
  const InstructionSetup *instructions;
  const double *coefficients;
  const IssueSetup *issues;
  const int32_t *lists;
  const int64_t *depths;
  uint64_t seed;
  int32_t memory_count, tensor_count, instruction_count, issue_count, unit_count, channel_count;
  int32_t synchronization, width;
};

struct Fault {
  int32_t code, issue, operand, memory, other_issue, detail;
  int64_t number, row, lane, first, second, other_number;
};

/* Zeros that take memory only where they are touched. */
template <class T>
class Zeros {
 public:
  explicit Zeros(size_t count) : values_(static_cast<T *>(calloc(count + 1, sizeof(T)))) {
    if (values_ == nullptr) abort();
  }
  Zeros(Zeros &&other) noexcept : values_(other.values_) { other.values_ = nullptr; }
  Zeros(const Zeros &) = delete;
  ~Zeros() { free(values_); }
  T &operator[](size_t i) { return values_[i]; }

 private:
  T *values_;
};

/* For each granule of a memory or tensor, the execution that wrote it last, by its unit and its
   number there from 1, and of each unit the last one that read it. */
struct Accesses {
  Zeros<uint32_t> write, reads;
  Zeros<uint8_t> writer;
  Accesses(size_t granules, size_t units)
      : write(granules), reads(granules * units), writer(granules) {}
};

/* Vector clocks of the units. */
class Clocks {
 public:
  bool enabled = false;
  size_t units = 0, unit = 0;
  std::vector<std::vector<uint32_t>> now;  // By unit: of each unit, what happened before.
  std::vector<Accesses> places;            // By memory, then by tensor.

  /* The execution that is not ordered with this access, as a unit and its number; unit -1: none. */
  std::pair<int, uint32_t> conflict(Accesses &place, size_t granule, bool writes) {
    const std::vector<uint32_t> &seen = now[unit];
    size_t writer = place.writer[granule];
    if (seen[writer] < place.write[granule]) return {int(writer), place.write[granule]};
    uint32_t *reads = &place.reads[granule * units];
    if (writes) {
      for (size_t v = 0; v < units; v++)
        if (seen[v] < reads[v]) return {int(v), reads[v]};
      place.write[granule] = seen[unit], place.writer[granule] = uint8_t(unit);
    } else {
      reads[unit] = seen[unit];
    }
    return {-1, 0};
  }
};

struct Memory {
  MemorySetup setup;
  std::vector<uint8_t> bytes, written;
  // A register.
  int64_t integer = 0;
  double real = 0;
  bool is_set = false;
};

struct Run {
  Setup setup;
  std::vector<Memory> memories;
  std::vector<TensorSetup> tensors;
  Fault fault{};
  int64_t number = 0;
  int32_t issue = 0;
  int64_t saturations = 0, wraps = 0;
  Clocks clocks;
  std::vector<std::vector<std::pair<int64_t, int32_t>>> history;  // Executions of each unit.

  __attribute__((noinline, cold)) bool fail(int code, int operand, int memory, int64_t row,
                                            int64_t lane, int64_t first = 0, int64_t second = 0) {
    if (fault.code == kNoFault)
      fault = {code, issue, operand, memory, -1, 0, number, row, lane, first, second, -1};
    return false;
  }
  bool ordered(int place, int64_t first, int64_t last, int operand, int memory, bool writes,
               bool rows) {
    for (int64_t g = first; g <= last; g++) {
      auto other = clocks.conflict(clocks.places[size_t(place)], size_t(g), writes);
      if (other.first >= 0) return race(other, operand, memory, rows, place, g, writes);
    }
    return true;
  }
  __attribute__((noinline, cold)) bool race(std::pair<int, uint32_t> other, int operand, int memory,
                                            bool rows, int place, int64_t granule, bool writes) {
    auto &record = history[size_t(other.first)][other.second - 1];
    int64_t row = granule, lane = 0;
    if (rows && !memories[size_t(place)].setup.whole_rows) {
      row = granule / memories[size_t(place)].setup.row_bytes;
      lane = granule % memories[size_t(place)].setup.row_bytes;
    }
    fail(kRace, operand, memory, row, lane, writes, place - int64_t(memories.size()));
    fault.other_number = record.first, fault.other_issue = record.second;
    return false;
  }
};

/* Growing storage of a local array. */
template <class T>
static ALWAYS_INLINE T *local(std::vector<T> &storage, int64_t elements) {
  if (int64_t(storage.size()) < elements) storage.resize(size_t(elements));
  return storage.data();
}

/* Sums that left their type in one execution. Those of 32 bits wrapped around in the local array, and
   change by less than 31 bits; those of 64 bits are exact there. */
static ALWAYS_INLINE int64_t wrapped_sums(const int32_t *before, const int32_t *after, int64_t count,
                                          int64_t low, int64_t high) {
  int64_t wraps = 0;
  for (int64_t i = 0; i < count; i++) {
    int64_t exact = int64_t(before[i]) + int32_t(uint32_t(after[i]) - uint32_t(before[i]));
    wraps += exact < low || exact > high;
  }
  return wraps;
}
static ALWAYS_INLINE int64_t wrapped_sums(const int64_t *, const int64_t *after, int64_t count,
                                          int64_t low, int64_t high) {
  int64_t wraps = 0;
  for (int64_t i = 0; i < count; i++) wraps += after[i] < low || after[i] > high;
  return wraps;
}

/* Positions that were seen in this walk, for accesses that name an element repeatedly. */
struct Marks {
  std::vector<int64_t> stamps;
  int64_t stamp = 0;
  void begin(int64_t elements) {
    if (int64_t(stamps.size()) < elements) stamps.resize(size_t(elements));
    stamp++;
  }
  bool seen(int64_t position) {
    if (stamps[size_t(position)] == stamp) return true;
    stamps[size_t(position)] = stamp;
    return false;
  }
};

// ------------------------------------------------------------------------------- visitors

static ALWAYS_INLINE bool all_written(const uint8_t *written, int64_t first, int64_t bytes) {
  uint8_t all = 3;
  for (int64_t i = 0; i < bytes; i++) all &= written[first + i];
  return all == 3;
}

/* Checks a span of a row; the first byte, or nibble, of it is at `lane`. */
template <class C>
static ALWAYS_INLINE bool in_row(Run &run, Memory &memory, int operand, int index, int64_t row,
                                 int64_t lane, int64_t count) {
  if (row < 0 || row >= memory.setup.rows) return run.fail(kRowOutside, operand, index, row, lane);
  int64_t lanes = 8 * memory.setup.row_bytes / C::kBits;
  if (lane < 0 || lane + count > lanes)
    return run.fail(kLaneOutside, operand, index, row, lane < 0 ? lane : lane + count - 1, lanes);
  return true;
}

template <class C>
static ALWAYS_INLINE bool row_ordered(Run &run, const Memory &memory, int operand, int index,
                                      int64_t row, int64_t lane, int64_t count, bool writes) {
  if (!run.clocks.enabled) return true;
  int64_t first = row, last = row;
  if (!memory.setup.whole_rows) {
    first = row * memory.setup.row_bytes + lane * C::kBits / 8;
    last = row * memory.setup.row_bytes + ((lane + count) * C::kBits - 1) / 8;
  }
  return run.ordered(index, first, last, operand, index, writes, true);
}

/* Reads elements into a local array. */
template <class C, class T>
struct Reader {
  Run &run;
  int operand, index;
  T *values;

  ALWAYS_INLINE bool rows(int64_t row, int64_t lane, int64_t count, int64_t at, int64_t step) {
    Memory &memory = run.memories[size_t(index)];
    if (!in_row<C>(run, memory, operand, index, row, lane, count)) return false;
    if (!row_ordered<C>(run, memory, operand, index, row, lane, count, false)) return false;
    int64_t first = row * memory.setup.row_bytes;
    const uint8_t *written = memory.written.data();
    if constexpr (C::kBits >= 8) {
      constexpr int64_t size = C::kBits / 8;
      if (__builtin_expect(!all_written(written, first + lane * size, count * size), 0))
        return never_written(first, row, lane, count);
    } else {
      for (int64_t i = lane; i < lane + count; i++)
        if (!(written[first + (i >> 1)] >> (i & 1) & 1))
          return run.fail(kNeverWritten, operand, index, row, i);
    }
    const uint8_t *from = memory.bytes.data() + first;
    for (int64_t i = 0; i < count; i++) values[at + i * step] = T(C::get(from, lane + i));
    return true;
  }
  __attribute__((noinline, cold)) bool never_written(int64_t first, int64_t row, int64_t lane,
                                                     int64_t count) {
    constexpr int64_t size = C::kBits / 8;
    for (int64_t i = lane; i < lane + count; i++)
      if (!all_written(run.memories[size_t(index)].written.data(), first + i * size, size))
        return run.fail(kNeverWritten, operand, index, row, i);
    return false;
  }
  ALWAYS_INLINE bool main(int64_t number, int64_t element, int64_t count, int64_t stride,
                          int64_t at, int64_t step) {
    const TensorSetup &tensor = run.tensors[size_t(number)];
    int64_t last = element + (count - 1) * stride;
    if (element < 0 || last < 0 || element >= tensor.elements || last >= tensor.elements)
      return run.fail(kElementOutside, operand, index,
                      element < 0 || element >= tensor.elements ? element : last, 0,
                      tensor.elements, number);
    for (int64_t i = 0; i < count; i++) {
      int64_t e = element + i * stride;
      if (__builtin_expect(!tensor.written[e], 0))
        return run.fail(kElementNeverWritten, operand, index, e, 0, 0, number);
      values[at + i * step] = T(C::get(tensor.bytes, e));
    }
    if (run.clocks.enabled && tensor.writable)
      for (int64_t i = 0; i < count; i++) {
        int64_t e = element + i * stride;
        if (!run.ordered(int(run.memories.size()) + int(number), e, e, operand, index, false, false))
          return false;
      }
    return true;
  }
};

/* Writes elements from a local array. */
template <class C, class T>
struct Writer {
  Run &run;
  int operand, index;
  const T *values;

  ALWAYS_INLINE bool rows(int64_t row, int64_t lane, int64_t count, int64_t at, int64_t step) {
    Memory &memory = run.memories[size_t(index)];
    if (!in_row<C>(run, memory, operand, index, row, lane, count)) return false;
    if (!row_ordered<C>(run, memory, operand, index, row, lane, count, true)) return false;
    int64_t first = row * memory.setup.row_bytes;
    uint8_t *to = memory.bytes.data() + first, *written = memory.written.data() + first;
    for (int64_t i = 0; i < count; i++) C::put(to, lane + i, values[at + i * step]);
    if constexpr (C::kBits >= 8) {
      memset(written + lane * (C::kBits / 8), 3, size_t(count * (C::kBits / 8)));
    } else {
      for (int64_t i = lane; i < lane + count; i++) written[i >> 1] |= uint8_t(1 << (i & 1));
    }
    return true;
  }
  ALWAYS_INLINE bool main(int64_t number, int64_t element, int64_t count, int64_t stride,
                          int64_t at, int64_t step) {
    const TensorSetup &tensor = run.tensors[size_t(number)];
    int64_t last = element + (count - 1) * stride;
    if (!tensor.writable) return run.fail(kReadOnly, operand, index, element, 0, 0, number);
    if (element < 0 || last < 0 || element >= tensor.elements || last >= tensor.elements)
      return run.fail(kElementOutside, operand, index,
                      element < 0 || element >= tensor.elements ? element : last, 0,
                      tensor.elements, number);
    for (int64_t i = 0; i < count; i++) {
      int64_t e = element + i * stride;
      C::put(tensor.bytes, e, values[at + i * step]);
      tensor.written[e] = 1;
    }
    if (run.clocks.enabled)
      for (int64_t i = 0; i < count; i++) {
        int64_t e = element + i * stride;
        if (!run.ordered(int(run.memories.size()) + int(number), e, e, operand, index, true, false))
          return false;
      }
    return true;
  }
};

/* Collects the spans of a walk: to find inputs that lie where the output lies. */
struct Span {
  int64_t place, first, last;  // Bits, both included.
  bool operator<(const Span &other) const { return first < other.first; }
  bool operator==(const Span &other) const {
    return place == other.place && first == other.first && last == other.last;
  }
};

struct Spans {
  int64_t row_bits;
  int bits, index;
  std::vector<Span> &spans;
  ALWAYS_INLINE bool rows(int64_t row, int64_t lane, int64_t count, int64_t, int64_t) {
    int64_t first = row * row_bits + lane * bits;
    spans.push_back({index, first, first + count * bits - 1});
    return true;
  }
  ALWAYS_INLINE bool main(int64_t number, int64_t element, int64_t count, int64_t stride, int64_t,
                          int64_t) {
    for (int64_t i = 0; i < count; i++) {
      int64_t e = element + i * stride;
      spans.push_back({-1 - number, e, e});
    }
    return true;
  }
};

/* True if no span of an input is one of the output, except, if allowed, all of them in order. */
static inline bool apart(std::vector<Span> &input, std::vector<Span> &output, bool in_place) {
  auto range = [](const std::vector<Span> &spans) {
    Span all{0, INT64_MAX, INT64_MIN};
    for (const Span &s : spans) all.first = std::min(all.first, s.first), all.last = std::max(all.last, s.last);
    return all;
  };
  if (input.empty() || output.empty() || input[0].place != output[0].place) return true;
  Span a = range(input), b = range(output);
  if (a.last < b.first || b.last < a.first) return true;
  if (in_place && input == output) return true;
  std::sort(input.begin(), input.end());
  std::sort(output.begin(), output.end());
  for (size_t i = 0, o = 0; i < input.size() && o < output.size();) {
    if (input[i].last < output[o].first) i++;
    else if (output[o].last < input[i].first) o++;
    else return false;
  }
  return true;
}

/* True if strides certainly keep all elements apart: each exceeds what the smaller ones reach. */
struct Step {
  int64_t stride, size;
};
template <size_t kCount>
static ALWAYS_INLINE bool spread(Step (&&steps)[kCount]) {
  for (Step &s : steps) s.stride = s.size == 1 ? INT64_MAX : std::abs(s.stride);
  std::sort(steps, steps + kCount, [](const Step &a, const Step &b) { return a.stride < b.stride; });
  int64_t reach = 0;
  for (const Step &s : steps) {
    if (s.size == 1) break;
    if (s.stride <= reach) return false;
    reach += s.stride * (s.size - 1);
  }
  return true;
}

/* The first place that two spans share; null if there is none. */
static inline const Span *shared(std::vector<Span> &spans) {
  std::sort(spans.begin(), spans.end());
  for (size_t i = 1; i < spans.size(); i++)
    if (spans[i].first <= spans[i - 1].last) return &spans[i];
  return nullptr;
}

// ---------------------------------------------------------------------- what is touched

/* Rows, registers and lines of main memory by number, for the times at which they are ready. */
struct Slots {
  int64_t first, count;
  bool writes;
};

struct Touched {
  static constexpr int64_t kLineBytes = 64;
  Run &run;
  std::vector<int64_t> memory_base, tensor_base;  // First slot; -1: nothing ever waits for it.
  std::vector<Slots> slots;
  std::vector<int64_t> bits;  // Moved by this execution, by memory and direction.
  bool collects = true;
  int64_t begin = 0;

  void add(int64_t slot, int64_t count, bool writes) {
    // Slots before `begin` are those of earlier executions.
    if (size_t(begin) < slots.size()) {
      Slots &last = slots.back();
      if (last.writes == writes && last.first + last.count == slot) {
        last.count += count;
        return;
      }
      if (last.writes == writes && slot >= last.first && slot + count <= last.first + last.count)
        return;
    }
    slots.push_back({slot, count, writes});
  }
};

struct Toucher {
  Touched &touched;
  int index, storage_bits;
  bool writes;
  ALWAYS_INLINE bool rows(int64_t row, int64_t, int64_t count, int64_t, int64_t) {
    touched.bits[size_t(2 * index + writes)] += count * storage_bits;
    const MemorySetup &setup = touched.run.memories[size_t(index)].setup;
    if (touched.collects && row >= 0 && row < setup.rows)
      touched.add(touched.memory_base[size_t(index)] + row, 1, writes);
    return true;
  }
  ALWAYS_INLINE bool main(int64_t number, int64_t element, int64_t count, int64_t stride, int64_t,
                          int64_t) {
    touched.bits[size_t(2 * index + writes)] += count * storage_bits;
    int64_t base = touched.tensor_base[size_t(number)];
    const TensorSetup &tensor = touched.run.tensors[size_t(number)];
    if (!touched.collects || base < 0) return true;
    if (stride == 1) return line(base, tensor, element, element + count - 1);
    for (int64_t i = 0; i < count; i++)
      line(base, tensor, element + i * stride, element + i * stride);
    return true;
  }

 private:
  bool line(int64_t base, const TensorSetup &tensor, int64_t first, int64_t last) {
    if (first < 0 || last >= tensor.elements) return true;  // The execution is a fault.
    first = first * tensor.element_bytes / Touched::kLineBytes;
    last = last * tensor.element_bytes / Touched::kLineBytes;
    touched.add(base + first, last - first + 1, writes);
    return true;
  }
};

struct InstructionCode {
  bool (*execute)(Run &, const int64_t *record);
  void (*touch)(Touched &, const int64_t *record);
  double (*cycles)(const double *coefficients, const int64_t *record);
};

extern "C" const InstructionCode machine_instructions[];

/* A register as a stride; unset ones were reported before. */
static ALWAYS_INLINE int64_t register_value(const Run &run, int index) {
  return run.memories[size_t(index)].integer;
}
