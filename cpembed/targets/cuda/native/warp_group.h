/* Matrix products of warp groups (wgmma).

   A product is asynchronous: its sums are poison from its issue until a wait, and are computed then.
   It is one of all four warps, so none can have waited for it before each has issued it. */
#pragma once

#include <cmath>
#include <map>

#include <cstdarg>

#include "elements.h"
#include "fragments.h"
#include "matrix_descriptor.h"
#include "ptx_sm90.h"
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

struct WarpProducts {
  bool fenced = false;
  uint32_t committed = 0, waited = 0, next = 0;  // Groups; number of the next product.
  std::vector<std::shared_ptr<Accumulator>> accumulators;
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

struct ProductCall {
  const ProductShape *shape;
  void *const *d;
  const uint32_t *a_registers;
  uint64_t a, b;
  bool adds;
  int scale_a, scale_b, transposed_a, transposed_b;
};

static const ProductCall &call_of(Warp &w, int lane) {
  return *static_cast<const ProductCall *>(w.request(lane).first);
}

static bool same_call(const ProductCall &x, const ProductCall &y) {
  return x.shape == y.shape && (x.a_registers || x.a == y.a) && x.b == y.b && x.adds == y.adds &&
         !x.a_registers == !y.a_registers && x.scale_a == y.scale_a && x.scale_b == y.scale_b &&
         x.transposed_a == y.transposed_a && x.transposed_b == y.transposed_b;
}

/* Check that the operand's 16 bytes at each of some addresses can be read by a product. */
struct OperandReader {
  Warp &w;
  Stamp reader;
  const char *what;
  Site site;

  bool read(uint32_t address) {
    unsigned char *p = shared_memory.at(address, w.block->rank);
    Actor actor{w.clock, kCollective, make_stamp(w.clock.component, kCollective, w.clock.time)};
    return shared_memory.valid(p, 16, 16, what, site) &&
           shared_memory.read_by_proxy(p, 16, actor, reader, what, site);
  }
};

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

static bool poisoned(const Accumulator &acc) {
  for (const uint32_t *r : acc.registers)
    if (*r != kPoison) return false;
  return true;
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

/* The accumulator of a product that a warp issues; null with a fault. */
static std::shared_ptr<Accumulator> accumulator_of(Warp &w, WarpProducts &mine, const ProductCall &call,
                                                   uint32_t group, Site site) {
  std::vector<uint32_t *> registers;
  for (int l = 0; l < 32; l++)
    for (int r = 0; r < call.shape->registers(); r++)
      registers.push_back(static_cast<uint32_t *>(call_of(w, l).d[r]));
  const char *name = call.shape->name;
  for (auto &acc : mine.accumulators) {
    bool same = acc->registers == registers && acc->shape->d == call.shape->d;
    if (!same) {
      // Lanes have the same variables, so the first lane's tell.
      for (int r = 0; r < acc->shape->registers(); r++)
        for (int s = 0; s < call.shape->registers(); s++)
          if (acc->registers[size_t(r)] == registers[size_t(s)]) {
            set_fault("%s at {at:%u}: some of its sums are those of a product in flight, and not all", name, site);
            return nullptr;
          }
      continue;
    }
    if (!poisoned(*acc)) {
      set_fault("%s at {at:%u}: warp %d has written registers of its sums while products that add to them are "
                "in flight: no wgmma.wait_group between them", name, site, w.number);
      return nullptr;
    }
    acc->last_group = group;
    return acc;
  }
  auto results = mine.results.find(registers[0]);
  if (!mine.fenced) {
    // Sums that nobody has touched since they were computed need no fence.
    bool same = results != mine.results.end() && results->second.size() == registers.size();
    for (size_t n = 0; same && n < registers.size(); n++) same = *registers[n] == results->second[n];
    if (!same) {
      set_fault("missing wgmma.fence: warp %d issues %s at {at:%u} and has accessed the registers of its sums "
                "since the last one", w.number, name, site);
      return nullptr;
    }
  }
  std::shared_ptr<Accumulator> acc(new Accumulator{call.shape, std::move(registers), {}, group, site});
  load_sums(*acc);
  for (uint32_t *r : acc->registers) *r = kPoison;
  mine.accumulators.push_back(acc);
  return acc;
}

static void issue_product(Warp &w, uint32_t lanes) {
  Request &request = w.request(0);
  const ProductCall &call = call_of(w, 0);
  Site site = request.site;
  const char *name = call.shape->name;
  int position = w.number % 4;
  if (uint32_t(w.number / 4 * 4 + 4) > warps_a_block) {
    set_fault("%s at {at:%u} needs four warps from a multiple of 4 on; warp %d of %u has no such group", name,
              site, w.number, warps_a_block);
    return;
  }
  for (int l = 1; l < 32; l++)
    if (!same_call(call, call_of(w, l))) {
      set_fault("%s at {at:%u}: lanes 0 and %d of warp %d have different descriptors", name, site, l, w.number);
      return;
    }
  WarpGroup &group = group_of(w);
  WarpProducts &mine = group.warps[position];
  if (group.agent == 0)
    group.agent = make_agent("products of warp group " + decimal(w.number / 4) +
                             (blocks_a_cluster > 1 ? " of block " + decimal(w.block->rank) : ""));
  uint32_t number = mine.next++ - group.first;
  if (number == group.products.size()) {
    Product made{};
    made.shape = call.shape, made.a = call.a, made.b = call.b, made.site = site;
    made.from_registers = call.a_registers != nullptr, made.adds = call.adds;
    made.transposed[0] = call.transposed_a, made.transposed[1] = call.transposed_b;
    made.scale[0] = float(call.scale_a), made.scale[1] = float(call.scale_b);
    made.group = mine.committed + 1;
    group.products.push_back(std::move(made));
  }
  Product &product = group.products[number];
  ProductCall first{product.shape, nullptr, product.from_registers ? call.a_registers : nullptr, product.a,
                    product.b, product.adds, int(product.scale[0]), int(product.scale[1]),
                    product.transposed[0], product.transposed[1]};
  if (product.from_registers != (call.a_registers != nullptr) || !same_call(first, call) ||
      product.group != mine.committed + 1) {
    set_fault("%s at {at:%u}: warp %d issues it with other operands, or in another group, than another warp of "
              "its group at {at:%u}", name, site, w.number, product.site);
    return;
  }
  bool wide = call.shape->bytes() == 2;
  if (!wide && (call.transposed_a || call.transposed_b)) {
    set_fault("%s at {at:%u}: operands of bytes are major in K", name, site);
    return;
  }
  Descriptor a{}, b{};
  if (!product.from_registers && !decode(product.a, a, name, site)) return;
  if (!decode(product.b, b, name, site)) return;
  OperandReader reader{w, make_stamp(group.agent, 0, product.group), name, site};
  auto visit = [&](uint32_t address, int, int) { return reader.read(address); };
  // Each warp computes 16 rows of the sums.
  if (!product.from_registers &&
      !visit_chunks(a, product.transposed[0], 16 * position, 16 * position + 16, call.shape->k, visit))
    return;
  if (!visit_chunks(b, product.transposed[1], 0, call.shape->n, call.shape->k, visit)) return;
  if (product.issued == 0) {
    if (!product.from_registers) count_operand(a, product.transposed[0], 64, call.shape->k);
    count_operand(b, product.transposed[1], call.shape->n, call.shape->k);
  }
  product.accumulators[position] = accumulator_of(w, mine, call, product.group, site);
  if (faulted) return;
  if (product.from_registers)
    for (int l = 0; l < 32; l++)
      product.a_registers[position].insert(product.a_registers[position].end(), call_of(w, l).a_registers,
                                           call_of(w, l).a_registers + 4);
  product.issued |= 1u << position;
  progress++;
  (void)lanes;
}

/* The addresses of the `registers` of sums follow, which are pushed on the stack: an array of them
   would be instrumented. */
extern "C" void executor_wgmma(ExecutorFunction &function, ExecutorWords a_words, bool from_registers,
                               uint64_t a, uint64_t b, bool adds, int scale_a, int scale_b, int transposed_a,
                               int transposed_b, int registers, ...) {
  Site site = CALLER;
  const ProductShape &its = product_shape(function);
  if (warp->live != ~0u) {
    set_fault("%s at {at:%u} needs all 32 lanes of a warp", function.name, site);
    abandon();
  }
  void *d[128];
  va_list pointers;
  va_start(pointers, registers);
  for (int n = 0; n < registers && n < 128; n++) d[n] = va_arg(pointers, void *);
  va_end(pointers);
  ProductCall call{&its, d, from_registers ? a_words.word : nullptr, a, b, adds, scale_a, scale_b,
                   transposed_a, transposed_b};
  Request r{&function, issue_product, site, ~0u};
  r.first = &call;
  collective(r);
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
  p.computed |= 1u << position;
}

/* ------------------------------------------------------------------------ fence, commit, wait */

static void fence_products(Warp &w, uint32_t) { group_of(w).warps[w.number % 4].fenced = true; }
extern "C" void executor_wgmma_fence(ExecutorFunction &function) {
  Request r{&function, fence_products, CALLER, ~0u};
  collective(r);
}

static void commit_products(Warp &w, uint32_t) { group_of(w).warps[w.number % 4].committed++; }
extern "C" void executor_wgmma_commit(ExecutorFunction &function) {
  Request r{&function, commit_products, CALLER, ~0u};
  collective(r);
}

/* Whether all four warps have issued the products of the warp's groups up to `number`. */
static bool products_issued(Waiter &waiter) {
  WarpGroup &group = group_of(*waiter.warp);
  for (const Product &p : group.products)
    if (p.group <= waiter.number && p.issued != 15) return false;
  return true;
}
static std::string products_text(const Waiter &waiter) {
  for (const Product &p : group_of(*waiter.warp).products)
    if (p.group <= waiter.number && p.issued != 15)
      return std::string(p.shape->name) + ", issued at {at:" + decimal(p.site) + "} by " +
             decimal(__builtin_popcount(p.issued)) + " of the four warps of a group";
  return "products of its warp group";
}

/* Whether the variables of the sums still are on their lanes' stacks. */
static bool variables_live(Warp &w, const Accumulator &acc) {
  size_t each = size_t(acc.shape->registers());
  for (int l = 0; l < 32; l++) {
    const Lane &its = w.lanes[l];
    auto low = l == lane_number ? static_cast<const char *>(__builtin_frame_address(0))
                                : static_cast<const char *>(its.stack);
    for (size_t r = 0; r < each; r++) {
      auto p = reinterpret_cast<const char *>(acc.registers[size_t(l) * each + r]);
      if (p >= its.stack_low && p < low) return false;
    }
  }
  return true;
}

/* The products of a warp up to a group are complete: their sums are in its registers. */
static void retire_products(Warp &w, uint32_t last, Site site) {
  WarpGroup &group = group_of(w);
  int position = w.number % 4;
  WarpProducts &mine = group.warps[position];
  // Of all four warps, since one of them may let others overwrite the operands now.
  for (Product &p : group.products)
    for (int each = 0; each < 4; each++)
      if (p.group <= last && !(p.computed >> each & 1)) compute(p, each, w.block->rank);
  while (!group.products.empty() && group.products.front().computed == 15) {
    group.products.pop_front();
    group.first++;
  }
  size_t kept = 0;
  for (auto &acc : mine.accumulators) {
    if (acc->last_group > last) {
      mine.accumulators[kept++] = acc;
      continue;
    }
    if (!variables_live(w, *acc)) {
      set_fault("wgmma.wait_group at {at:%u}: the variables of the sums that %s, issued at {at:%u}, adds to do "
                "not exist any more: they have to last until the wait", site, acc->shape->name, acc->site);
      return;
    }
    if (!poisoned(*acc)) {
      set_fault("wgmma.wait_group at {at:%u}: warp %d has written registers of sums while products that add to "
                "them are in flight", site, w.number);
      return;
    }
    store_sums(*acc);
    std::vector<uint32_t> &results = mine.results[acc->registers[0]];
    results.clear();
    for (const uint32_t *r : acc->registers) results.push_back(*r);
  }
  mine.accumulators.resize(kept);
  mine.waited = std::max(mine.waited, last);
  mine.fenced = false;
  auto made = share();
  made->order.raise(group.agent, last);
  w.clock.acquire(w.live, made, nullptr, 0);
}

static void begin_product_wait(Warp &, uint32_t) {}

extern "C" void executor_wgmma_wait(ExecutorFunction &function, uint32_t pending) {
  Site site = CALLER;
  Request r{&function, begin_product_wait, site, ~0u};
  collective(r);
  WarpGroup &group = group_of(*warp);
  WarpProducts &mine = group.warps[warp->number % 4];
  uint32_t last = mine.committed > pending ? mine.committed - pending : 0;
  Waiter waiter{products_issued, products_text, site, nullptr, 0};
  waiter.number = last;
  wait_for(waiter);
  // The first lane to come here does it for all, which wait in this function.
  if (group.agent && mine.waited < last) retire_products(*warp, last, site);
  if (faulted) abandon();
}

/* A warp ends: its products have been waited for. */
static void end_products(const Warp &w) {
  const WarpProducts &mine = group_of(w).warps[w.number % 4];
  if (mine.accumulators.empty()) return;
  const Accumulator &acc = *mine.accumulators.front();
  set_fault("warp %d ends while %s, issued at {at:%u}, is in flight: no wgmma.wait_group follows", w.number,
            acc.shape->name, acc.site);
}
