/* Values of the products of warp groups: element types, operands in shared memory, sums in registers.

   warp_group.h has when they are issued and complete. */
#pragma once

#include <array>
#include <map>
#include <unordered_map>

#include "elements.h"
#include "fragments.h"
#include "matrix_descriptor.h"
#include "traffic.h"

enum class Element : uint8_t { kF32, kF16, kS32, kBf16, kE4m3, kE5m2, kS8, kU8 };

struct ProductShape {
  int n, k;
  Element d, a, b;
  const char *name;

  int bytes() const { return k == 16 ? 2 : 1; }  // Of an element of the factors.
  bool integers() const { return d == Element::kS32; }
  int registers() const { return d == Element::kF16 ? n / 4 : n / 2; }
};

static Element element_named(const std::string &name) {
  static const struct {
    const char *name;
    Element element;
  } names[] = {{"f32", Element::kF32}, {"f16", Element::kF16}, {"s32", Element::kS32}, {"bf16", Element::kBf16},
               {"e4m3", Element::kE4m3}, {"e5m2", Element::kE5m2}, {"s8", Element::kS8}, {"u8", Element::kU8}};
  for (auto &entry : names)
    if (name == entry.name) return entry.element;
  return Element::kF32;
}

static const ProductShape &shape_named(const char *name) {
  static std::map<std::string, ProductShape> shapes;
  auto [place, is_new] = shapes.try_emplace(name);
  ProductShape &s = place->second;
  if (!is_new) return s;
  char d[8] = "", a[8] = "", b[8] = "";
  const char *modifiers = strstr(name, ".m64n");
  sscanf(modifiers ? modifiers : "", ".m64n%dk%d.%7[a-z0-9].%7[a-z0-9].%7[a-z0-9]", &s.n, &s.k, d, a, b);
  s.d = element_named(d), s.a = element_named(a), s.b = element_named(b);
  s.name = place->first.c_str();
  return s;
}

/* Of an instruction, whose opcode ends in .m64n128k16.f32.f16.f16. */
static const ProductShape &product_shape(const ExecutorFunction &function) {
  // By address, since each of the 32 lanes asks at each call; equal names have one shape.
  static std::unordered_map<const char *, const ProductShape *> of_names;
  const ProductShape *&its = of_names[function.name];
  if (its == nullptr) its = &shape_named(function.name);
  return *its;
}

/* ------------------------------------------------------------------------------------ elements */

static const float *table_of(Element element) {
  static float e4m3[256], e5m2[256];
  static bool made = false;
  for (int i = 0; !made && i < 256; i++)
    e4m3[i] = E4m3::load(uint8_t(i)), e5m2[i] = E5m2::load(uint8_t(i));
  made = true;
  return element == Element::kE4m3 ? e4m3 : e5m2;
}

/* Values of the elements in 16 bytes: floats, or integers, which are exact as are sums of 2^16 products. */
static inline void decode_elements(Element element, const unsigned char *from, float scale, float *to) {
  uint16_t wide[8];
  memcpy(wide, from, 16);
  switch (element) {
    case Element::kF16:
      for (int i = 0; i < 8; i++) to[i] = scale * F16::load(wide[i]);
      break;
    case Element::kBf16:
      for (int i = 0; i < 8; i++) to[i] = scale * Bf16::load(wide[i]);
      break;
    case Element::kS8:
      for (int i = 0; i < 16; i++) to[i] = float(int8_t(from[i]));
      break;
    case Element::kU8:
      for (int i = 0; i < 16; i++) to[i] = float(from[i]);
      break;
    default: {
      const float *table = table_of(element);
      for (int i = 0; i < 16; i++) to[i] = scale * table[from[i]];
    }
  }
}

/* ----------------------------------------------------------------------------------- products */

/* Registers of the lanes of a warp, one lane after the other: those that lie side by side are one span. */
struct Registers {
  struct Span {
    uint32_t *first;
    int count;
    bool operator==(const Span &other) const { return first == other.first && count == other.count; }
  };
  std::vector<Span> spans;

  /* `count` registers of a lane at as many places, or from one place on. */
  void add_lane(uint32_t *const *its, int places, int count) {
    spans.push_back({its[0], places == 1 ? count : 1});
    for (int n = 1; n < places; n++)
      if (spans.back().first + spans.back().count == its[n])
        spans.back().count++;
      else
        spans.push_back({its[n], 1});
  }

  bool operator==(const Registers &other) const { return spans == other.spans; }

  bool overlaps(const Span &other) const {
    for (const Span &span : spans)
      if (span.first < other.first + other.count && other.first < span.first + span.count) return true;
    return false;
  }

  bool all_equal(uint32_t value) const {
    for (const Span &span : spans) {
      uint32_t different = 0;
      for (int n = 0; n < span.count; n++) different |= span.first[n] ^ value;
      if (different) return false;
    }
    return true;
  }

  bool hold(const uint32_t *values) const {
    for (const Span &span : spans) {
      if (memcmp(span.first, values, 4 * size_t(span.count)) != 0) return false;
      values += span.count;
    }
    return true;
  }

  void fill(uint32_t value) const {
    for (const Span &span : spans) std::fill(span.first, span.first + span.count, value);
  }
  void load(uint32_t *values) const {
    for (const Span &span : spans) values = std::copy(span.first, span.first + span.count, values);
  }
  void store(const uint32_t *values) const {
    for (const Span &span : spans) {
      memcpy(span.first, values, 4 * size_t(span.count));
      values += span.count;
    }
  }
};

/* Registers that sums are added up in, of the lanes of one warp, while products are in flight. */
struct Accumulator {
  const ProductShape *shape;
  Registers registers;
  std::vector<float> sums;  // 16 rows of n; integers as int32_t.
  uint32_t last_group;      // In which a product adds to them.
  Site site;
};

struct Product {
  const ProductShape *shape;
  uint64_t a, b;
  bool from_registers, adds, transposed[2];
  float scale[2];
  uint32_t group, issued = 0, computed = 0;
  Site site;
  std::vector<uint32_t> a_registers[4];
  std::shared_ptr<Accumulator> accumulators[4];
  std::vector<float> b_values;  // k rows of n.
};

/* Registers of a factor that a product in flight reads. */
struct FactorRegisters {
  std::vector<const uint32_t *> places;  // Of each lane, one after the other; null where unknown.
  std::vector<uint32_t> values;
  uint32_t group;
  const ProductShape *shape;
  Site site;
};

struct WarpProducts {
  bool fenced = false;
  uint32_t committed = 0, waited = 0, next = 0;  // Groups; number of the next product.
  std::vector<std::shared_ptr<Accumulator>> accumulators;
  std::vector<FactorRegisters> factors;
  std::vector<unsigned char> stacks[32];  // At the last fence, from the end of each lane's stack down.
  std::map<uint32_t *, std::vector<uint32_t>> results;  // Values last written, by the first register.
};

struct WarpGroup {
  uint32_t agent = 0;
  uint32_t first = 0;  // Number of the first product of the queue.
  std::deque<Product> products;
  WarpProducts warps[4];
};

static std::vector<WarpGroup> warp_groups;

static void begin_warp_groups() { warp_groups.assign(blocks_a_cluster * ((warps_a_block + 3) / 4), {}); }

static WarpGroup &group_of(const Warp &w) {
  return warp_groups[w.block->rank * ((warps_a_block + 3) / 4) + uint32_t(w.number) / 4];
}

constexpr uint32_t kPoison = 0x7fe57fe5;  // A NaN as one float and as two halves.

/* Addresses of an operand's chunks: of rows from `first` to `last`. */
template <class Visit>
static bool visit_chunks(const Descriptor &d, bool transposed, int first, int last, int k, Visit visit) {
  if (!transposed) {
    for (int row = first; row < last; row++)
      for (int chunk = 0; chunk < 2; chunk++)
        if (!visit(chunk_of_row(d, uint32_t(row), uint32_t(chunk)), row, chunk)) return false;
    return true;
  }
  for (int unit = first; unit < last; unit += 8)
    for (int depth = 0; depth < k; depth++)
      if (!visit(chunk_of_depth(d, uint32_t(unit), uint32_t(depth)), unit, depth)) return false;
  return true;
}

/* Rows of an operand in shared memory. */
struct Operand {
  std::vector<uint32_t> chunks;  // Addresses of 16 bytes, as they are visited.
  std::vector<std::pair<uint32_t, uint32_t>> ranges;  // Bytes that lie side by side: address, number.
  Wavefronts cost;               // Read core by core.
};

static Operand make_operand(const Descriptor &d, bool transposed, int first, int last, int k) {
  Operand made;
  std::map<std::pair<int, int>, std::vector<uint32_t>> cores;
  visit_chunks(d, transposed, first, last, k, [&](uint32_t address, int row, int chunk) {
    made.chunks.push_back(address);
    auto &words = transposed ? cores[{row, chunk / 8}] : cores[{row / 8, chunk}];
    for (uint32_t word = 0; word < 4; word++) words.push_back(address / 4 + word);
    return true;
  });
  for (auto &[key, words] : cores) {
    Wavefronts cost = serve(words.data(), int(words.size()));
    made.cost.taken += cost.taken, made.cost.least += cost.least;
  }
  std::vector<uint32_t> sorted = made.chunks;
  std::sort(sorted.begin(), sorted.end());
  for (uint32_t address : sorted) {
    if (made.ranges.empty() || made.ranges.back().first + made.ranges.back().second < address)
      made.ranges.push_back({address, 0});
    made.ranges.back().second = address + 16 - made.ranges.back().first;
  }
  return made;
}

/* The same of a descriptor's bits. Loops come to the same stages again and again. */
static const Operand &operand_of(uint64_t bits, bool transposed, int first, int last, int k) {
  static std::map<std::array<uint64_t, 2>, Operand> operands;
  static constexpr size_t kMost = 4096;
  std::array<uint64_t, 2> key{
      bits, uint64_t(transposed) << 48 | uint64_t(first) << 32 | uint64_t(last) << 16 | uint64_t(k)};
  auto known = operands.find(key);
  if (known != operands.end()) return known->second;
  if (operands.size() >= kMost) operands.clear();
  return operands.emplace(key, make_operand(descriptor_of(bits), transposed, first, last, k)).first->second;
}

static void count_operand(const Operand &operand) {
  tally.wgmma_wavefronts += operand.cost.taken;
  tally.wgmma_wavefronts_least += operand.cost.least;
}

/* Where lane l holds element i of the sums of its warp. */
static inline Position sum_position(int l, int i) {
  return {l / 4 + (i % 4 < 2 ? 0 : 8), i / 4 * 8 + l % 4 * 2 + i % 2};
}

/* Call `move` with each sum of a warp, and where its lane holds it: the number of a register, and of a half. */
template <class Move>
static void each_sum(const ProductShape &s, float *sums, Move move) {
  int halves = s.d == Element::kF16 ? 2 : 1, each = s.registers();
  for (int l = 0; l < 32; l++)
    for (int i = 0; i < s.n / 2; i++) {
      Position at = sum_position(l, i);
      move(sums[size_t(at.row * s.n + at.column)], size_t(l * each + i / halves), i % halves);
    }
}

static void load_sums(Accumulator &acc) {
  const ProductShape &s = *acc.shape;
  acc.sums.resize(size_t(16 * s.n));
  uint32_t held[32 * 128];
  acc.registers.load(held);
  if (s.d == Element::kF16)
    each_sum(s, acc.sums.data(), [&](float &sum, size_t r, int half) {
      sum = F16::load(uint16_t(held[r] >> 16 * half));
    });
  else
    each_sum(s, acc.sums.data(), [&](float &sum, size_t r, int) { memcpy(&sum, &held[r], 4); });
}

/* Returns what the registers hold from now on. */
static std::vector<uint32_t> store_sums(Accumulator &acc) {
  const ProductShape &s = *acc.shape;
  std::vector<uint32_t> held(size_t(32 * s.registers()));
  if (s.d == Element::kF16)
    each_sum(s, acc.sums.data(), [&](const float &sum, size_t r, int half) {
      held[r] |= uint32_t(F16::store(sum)) << 16 * half;
    });
  else
    each_sum(s, acc.sums.data(), [&](const float &sum, size_t r, int) { memcpy(&held[r], &sum, 4); });
  acc.registers.store(held.data());
  return held;
}

/* ------------------------------------------------------------------------- what a warp computes */

/* Write values of an operand's rows, each of k; element (row, depth) is at row * row_step + depth * depth_step. */
static void load_operand(const Product &p, int which, int first, int last, uint32_t rank, float *to,
                         int row_step, int depth_step) {
  const ProductShape &s = *p.shape;
  Element element = which ? s.b : s.a;
  bool transposed = p.transposed[which];
  const Operand &operand = operand_of(which ? p.b : p.a, transposed, first, last, s.k);
  int count = 16 / s.bytes(), chunks_a_row = s.k / count;
  // A chunk is of a row, or transposed of a depth.
  int step = transposed ? row_step : depth_step;
  for (size_t n = 0; n < operand.chunks.size(); n++) {
    float values[16];
    decode_elements(element, shared_memory.at(operand.chunks[n], rank), p.scale[which], values);
    int number = int(n);
    float *place = transposed ? to + number / s.k * 8 * row_step + number % s.k * depth_step
                              : to + number / chunks_a_row * row_step + number % chunks_a_row * count * depth_step;
    for (int i = 0; i < count; i++) place[i * step] = values[i];
  }
}

/* The 16 rows of sums of one warp. */
static void compute(Product &p, int position, uint32_t rank) {
  p.computed |= 1u << position;
  if (!computes) return;
  const ProductShape &s = *p.shape;
  float a[16 * 32];
  if (p.from_registers) {
    for (int l = 0; l < 32; l++) {
      const unsigned char *held =
          reinterpret_cast<const unsigned char *>(p.a_registers[position].data() + 4 * l);
      int count = 16 / s.bytes();
      float values[16];
      decode_elements(s.a, held, p.scale[0], values);
      for (int i = 0; i < count; i++) {
        Position at = s.bytes() == 2 ? a_position<2>(l, i) : a_position<4>(l, i);
        a[at.row * s.k + at.column] = values[i];
      }
    }
  } else {
    load_operand(p, 0, 16 * position, 16 * position + 16, rank, a, s.k, 1);
  }
  if (p.b_values.empty()) {
    p.b_values.resize(size_t(s.n * s.k));
    load_operand(p, 1, 0, s.n, rank, p.b_values.data(), 1, s.n);
  }
  std::vector<float> &sums = p.accumulators[position]->sums;
  if (!p.adds) sums.assign(sums.size(), 0.0f);
  if (s.integers()) {
    for (int row = 0; row < 16; row++) {
      std::vector<float> products(size_t(s.n));
      for (int n = 0; n < s.n; n += 8)
        add_products<8>(&products[size_t(n)], a + row * s.k, &p.b_values[size_t(n)], s.k, s.n);
      for (int n = 0; n < s.n; n++) {
        uint32_t sum;
        memcpy(&sum, &sums[size_t(row * s.n + n)], 4);
        sum += uint32_t(int32_t(products[size_t(n)]));
        memcpy(&sums[size_t(row * s.n + n)], &sum, 4);
      }
    }
    return;
  }
  for (int row = 0; row < 16; row++) {
    int n = 0;
    float *its = &sums[size_t(row * s.n)];
    for (; n + 64 <= s.n; n += 64) add_products<64>(its + n, a + row * s.k, &p.b_values[size_t(n)], s.k, s.n);
    for (; n < s.n; n += 8) add_products<8>(its + n, a + row * s.k, &p.b_values[size_t(n)], s.k, s.n);
  }
  if (s.d == Element::kF16)
    for (float &sum : sums) sum = F16::load(F16::store(sum));
}
