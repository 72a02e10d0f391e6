/* Values of the products of warp groups: element types, operands in shared memory, sums in registers.

   warp_group.h has when they are issued and complete. */
#pragma once

#include <map>

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

/* Of an instruction, whose opcode ends in .m64n128k16.f32.f16.f16. */
static const ProductShape &product_shape(const ExecutorFunction &function) {
  static std::map<std::string, ProductShape> shapes;
  auto known = shapes.find(function.name);
  if (known != shapes.end()) return known->second;
  ProductShape s{};
  char d[8] = "", a[8] = "", b[8] = "";
  const char *modifiers = strstr(function.name, ".m64n");
  sscanf(modifiers ? modifiers : "", ".m64n%dk%d.%7[a-z0-9].%7[a-z0-9].%7[a-z0-9]", &s.n, &s.k, d, a, b);
  s.d = element_named(d), s.a = element_named(a), s.b = element_named(b);
  s.name = strdup(function.name);
  return shapes.emplace(function.name, s).first->second;
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

/* Values of elements: floats, or integers as their bits. */
static void decode_elements(Element element, const unsigned char *from, int count, float scale, float *to) {
  for (int i = 0; i < count; i++) {
    uint16_t wide;
    switch (element) {
      case Element::kF16: memcpy(&wide, from + 2 * i, 2), to[i] = scale * F16::load(wide); break;
      case Element::kBf16: memcpy(&wide, from + 2 * i, 2), to[i] = scale * Bf16::load(wide); break;
      case Element::kS8: to[i] = float(int8_t(from[i])); break;  // Exact, as are sums of 2^16 products.
      case Element::kU8: to[i] = float(from[i]); break;
      default: to[i] = scale * table_of(element)[from[i]];
    }
  }
}

/* ----------------------------------------------------------------------------------- products */

/* Registers that sums are added up in, of the lanes of one warp, while products are in flight. */
struct Accumulator {
  const ProductShape *shape;
  std::vector<uint32_t *> registers;  // Of each lane, one after the other.
  std::vector<float> sums;            // 16 rows of n; integers as int32_t.
  uint32_t last_group;                // In which a product adds to them.
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
  std::map<uint32_t *, std::vector<uint32_t>> results;  // What was last written, by the first register.
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

/* Wavefronts of an operand that is read core by core. */
static void count_operand(const Descriptor &d, bool transposed, int rows, int k) {
  std::map<std::pair<int, int>, std::vector<uint32_t>> cores;
  visit_chunks(d, transposed, 0, rows, k, [&](uint32_t address, int row, int chunk) {
    auto &words = transposed ? cores[{row, chunk / 8}] : cores[{row / 8, chunk}];
    for (uint32_t word = 0; word < 4; word++) words.push_back(address / 4 + word);
    return true;
  });
  for (auto &[key, words] : cores) {
    Wavefronts cost = serve(words.data(), int(words.size()));
    tally.wgmma_wavefronts += cost.taken;
    tally.wgmma_wavefronts_least += cost.least;
  }
}

/* Where lane l holds element i of the sums of its warp. */
static inline Position sum_position(int l, int i) {
  return {l / 4 + (i % 4 < 2 ? 0 : 8), i / 4 * 8 + l % 4 * 2 + i % 2};
}

static void load_sums(Accumulator &acc) {
  const ProductShape &s = *acc.shape;
  acc.sums.resize(size_t(16 * s.n));
  for (int l = 0; l < 32; l++)
    for (int i = 0; i < s.n / 2; i++) {
      Position at = sum_position(l, i);
      float &sum = acc.sums[size_t(at.row * s.n + at.column)];
      if (s.d == Element::kF16) {
        uint32_t pair = *acc.registers[size_t(l * s.registers() + i / 2)];
        sum = F16::load(uint16_t(pair >> 16 * (i % 2)));
      } else {
        memcpy(&sum, acc.registers[size_t(l * s.registers() + i)], 4);
      }
    }
}

static void store_sums(const Accumulator &acc) {
  const ProductShape &s = *acc.shape;
  for (int l = 0; l < 32; l++)
    for (int i = 0; i < s.n / 2; i++) {
      Position at = sum_position(l, i);
      const float &sum = acc.sums[size_t(at.row * s.n + at.column)];
      if (s.d == Element::kF16) {
        uint32_t *pair = acc.registers[size_t(l * s.registers() + i / 2)];
        int shift = 16 * (i % 2);
        *pair = (*pair & ~(0xffffu << shift)) | uint32_t(F16::store(sum)) << shift;
      } else {
        memcpy(acc.registers[size_t(l * s.registers() + i)], &sum, 4);
      }
    }
}

/* ------------------------------------------------------------------------- what a warp computes */

static void load_operand(const Product &p, int which, int first, int last, uint32_t rank, float *to) {
  // `to` has a row for each of the operand's rows, of k values.
  const ProductShape &s = *p.shape;
  Descriptor d{};
  decode(which ? p.b : p.a, d, "", 0);
  Element element = which ? s.b : s.a;
  float scale = p.scale[which];
  visit_chunks(d, p.transposed[which], first, last, s.k, [&](uint32_t address, int row, int chunk) {
    const unsigned char *from = shared_memory.at(address, rank);
    int count = 16 / s.bytes();
    if (!p.transposed[which]) {
      decode_elements(element, from, count, scale, to + (row - first) * s.k + chunk * count);
    } else {
      float values[8];
      decode_elements(element, from, 8, scale, values);
      for (int i = 0; i < 8; i++) to[(row - first + i) * s.k + chunk] = values[i];
    }
    return true;
  });
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
      decode_elements(s.a, held, count, p.scale[0], values);
      for (int i = 0; i < count; i++) {
        Position at = s.bytes() == 2 ? a_position<2>(l, i) : a_position<4>(l, i);
        a[at.row * s.k + at.column] = values[i];
      }
    }
  } else {
    load_operand(p, 0, 16 * position, 16 * position + 16, rank, a);
  }
  if (p.b_values.empty()) {
    std::vector<float> rows(size_t(s.n * s.k));
    load_operand(p, 1, 0, s.n, rank, rows.data());
    p.b_values.resize(rows.size());
    for (int n = 0; n < s.n; n++)
      for (int k = 0; k < s.k; k++) p.b_values[size_t(k * s.n + n)] = rows[size_t(n * s.k + k)];
  }
  std::vector<float> &sums = p.accumulators[position]->sums;
  if (!p.adds) sums.assign(sums.size(), 0.0f);
  if (s.integers()) {
    for (int row = 0; row < 16; row++)
      for (int n = 0; n < s.n; n++) {
        float product = 0.0f;
        for (int k = 0; k < s.k; k++) product += a[row * s.k + k] * p.b_values[size_t(k * s.n + n)];
        uint32_t sum;
        memcpy(&sum, &sums[size_t(row * s.n + n)], 4);
        sum += uint32_t(int32_t(product));
        memcpy(&sums[size_t(row * s.n + n)], &sum, 4);
      }
  } else {
    for (int row = 0; row < 16; row++)
      for (int k = 0; k < s.k; k++) {
        float factor = a[row * s.k + k];
        const float *values = &p.b_values[size_t(k * s.n)];
        float *sum = &sums[size_t(row * s.n)];
        for (int n = 0; n < s.n; n++) sum[n] += factor * values[n];
      }
    if (s.d == Element::kF16)
      for (float &sum : sums) sum = F16::load(F16::store(sum));
  }
}
