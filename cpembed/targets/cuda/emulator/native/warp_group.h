/* Matrix products of warp groups (wgmma).

   A product is asynchronous: its sums are poison from its issue until a wait, and are computed then.
   It is one of all four warps, so none can have waited for it before each has issued it. */
#pragma once

#include <cstdarg>

#include "products.h"

struct ProductCall {
  const ProductShape *shape;
  uint32_t *const *d;
  int places;  // Of which `d` has the addresses: of each register of the sums, or of the first one.
  const uint32_t *a_registers;
  const void *const *a_places;
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

/* Check that a product can read an operand. */
static bool read_operand(const Warp &w, const Operand &operand, Stamp reader, const char *what, Site site) {
  Actor actor{w.clock, kCollective, make_stamp(w.clock.component, kCollective, w.clock.time)};
  for (auto [address, bytes] : operand.ranges) {
    unsigned char *p = address + bytes <= kMostShared ? shared_memory.at(address, w.block->rank) : nullptr;
    if (!shared_memory.valid(p, bytes, 16, what, site) ||
        !shared_memory.read_by_proxy(p, bytes, actor, reader, what, site))
      return false;
  }
  return true;
}

/* The accumulator of a product that a warp issues; null with a fault. */
static std::shared_ptr<Accumulator> accumulator_of(Warp &w, WarpProducts &mine, const ProductCall &call,
                                                   uint32_t group, Site site) {
  Registers registers;
  size_t of_first_lane = 0;
  for (int l = 0; l < 32; l++) {
    registers.add_lane(call_of(w, l).d, call_of(w, l).places, call.shape->registers());
    if (l == 0) of_first_lane = registers.spans.size();
  }
  const char *name = call.shape->name;
  for (auto &acc : mine.accumulators) {
    if (acc->shape->d != call.shape->d || !(acc->registers == registers)) {
      // Lanes have the same variables, so the first lane's tell.
      for (size_t n = 0; n < of_first_lane; n++)
        if (acc->registers.overlaps(registers.spans[n])) {
          set_fault("%s at {at:%u}: some of its sums are those of a product in flight, and not all", name, site);
          return nullptr;
        }
      continue;
    }
    if (!acc->registers.all_equal(kPoison)) {
      set_fault("%s at {at:%u}: warp %d has written registers of its sums while products that add to them are "
                "in flight: no wgmma.wait_group between them", name, site, w.number);
      return nullptr;
    }
    acc->last_group = group;
    return acc;
  }
  if (!mine.fenced) {
    // Sums that nobody has touched since they were computed need no fence.
    auto results = mine.results.find(registers.spans[0].first);
    if (results == mine.results.end() || results->second.size() != 32 * size_t(call.shape->registers()) ||
        !registers.hold(results->second.data())) {
      set_fault("missing wgmma.fence: warp %d issues %s at {at:%u} and has accessed the registers of its sums "
                "since the last one", w.number, name, site);
      return nullptr;
    }
  }
  std::shared_ptr<Accumulator> acc(new Accumulator{call.shape, std::move(registers), {}, group, site});
  load_sums(*acc);
  acc->registers.fill(kPoison);
  mine.accumulators.push_back(acc);
  return acc;
}

/* Whether a variable still is on its lane's stack: above what the lane, which runs or waits, uses. */
static bool on_stack(const Lane &its, int number, const void *variable) {
  auto p = static_cast<const char *>(variable);
  auto low = number == lane_number ? static_cast<const char *>(__builtin_frame_address(0))
                                   : static_cast<const char *>(its.stack);
  return p >= low && p < its.stack_high;
}

/* Registers of A that a product reads while it is in flight: nothing may have written them since the last
   fence, which is known of variables that were on the stack then. */
static bool note_factors(Warp &w, WarpProducts &mine, uint32_t group, Site site) {
  FactorRegisters made{{}, {}, group, call_of(w, 0).shape, site};
  for (int l = 0; l < 32; l++)
    for (int r = 0; r < 4; r++) {
      auto place = static_cast<const uint32_t *>(call_of(w, l).a_places[r]);
      if (place && !on_stack(w.lanes[l], l, place)) place = nullptr;
      made.places.push_back(place);
      made.values.push_back(call_of(w, l).a_registers[r]);
      auto end = reinterpret_cast<const char *>(place) + 4;
      size_t above = place ? size_t(w.lanes[l].stack_high - reinterpret_cast<const char *>(place)) : 0;
      if (place == nullptr || end > w.lanes[l].stack_high || above > mine.stacks[l].size()) continue;
      if (memcmp(mine.stacks[l].data() + mine.stacks[l].size() - above, &made.values.back(), 4) == 0) continue;
      set_fault("missing wgmma.fence: warp %d issues %s at {at:%u} and has written registers of A since the "
                "last one", w.number, made.shape->name, site);
      return false;
    }
  mine.factors.push_back(std::move(made));
  return true;
}

/* The registers of A that products up to a group read are what they were. */
static bool check_factors(Warp &w, WarpProducts &mine, uint32_t last, Site site) {
  size_t kept = 0;
  for (size_t n = 0; n < mine.factors.size(); n++) {
    FactorRegisters &factors = mine.factors[n];
    for (size_t r = 0; r < factors.places.size() && factors.group <= last; r++) {
      const uint32_t *place = factors.places[r];
      if (place == nullptr || !on_stack(w.lanes[r / 4], int(r / 4), place) || *place == factors.values[r])
        continue;
      set_fault("wgmma.wait_group at {at:%u}: warp %d has written registers of A that %s, issued at {at:%u}, "
                "reads while it is in flight", site, w.number, factors.shape->name, factors.site);
      return false;
    }
    if (factors.group > last) std::swap(mine.factors[kept++], factors);
  }
  mine.factors.resize(kept);
  return true;
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
  ProductCall first{product.shape, nullptr, 0, product.from_registers ? call.a_registers : nullptr, nullptr,
                    product.a, product.b, product.adds, int(product.scale[0]), int(product.scale[1]),
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
  if (!product.from_registers && !valid_descriptor(product.a, name, site)) return;
  if (!valid_descriptor(product.b, name, site)) return;
  Stamp reader = make_stamp(group.agent, 0, product.group);
  auto rows_of_a = [&](int first, int last) -> const Operand & {
    return operand_of(product.a, product.transposed[0], first, last, call.shape->k);
  };
  // Each warp computes 16 rows of the sums.
  if (!product.from_registers &&
      !read_operand(w, rows_of_a(16 * position, 16 * position + 16), reader, name, site))
    return;
  const Operand &b = operand_of(product.b, product.transposed[1], 0, call.shape->n, call.shape->k);
  if (!read_operand(w, b, reader, name, site)) return;
  if (product.issued == 0) {
    count_operand(b);
    if (!product.from_registers) count_operand(rows_of_a(0, 64));
  }
  product.accumulators[position] = accumulator_of(w, mine, call, product.group, site);
  if (faulted) return;
  if (product.from_registers && !note_factors(w, mine, product.group, site)) return;
  if (product.from_registers) w.clock.use_registers();
  if (product.from_registers)
    for (int l = 0; l < 32; l++)
      product.a_registers[position].insert(product.a_registers[position].end(), call_of(w, l).a_registers,
                                           call_of(w, l).a_registers + 4);
  product.issued |= 1u << position;
  progress++;
  (void)lanes;
}

extern "C" void executor_wgmma(ExecutorFunction &function, ExecutorWords a_words, ExecutorPlaces a_places,
                               bool from_registers, uint64_t a, uint64_t b, bool adds, int scale_a, int scale_b,
                               int transposed_a, int transposed_b, int, int places, ...) {
  Site site = CALLER;
  const ProductShape &its = product_shape(function);
  if (warp->live != ~0u) {
    set_fault("%s at {at:%u} needs all 32 lanes of a warp", function.name, site);
    abandon();
  }
  uint32_t *d[128];
  va_list pointers;
  va_start(pointers, places);
  for (int n = 0; n < places && n < 128; n++) d[n] = static_cast<uint32_t *>(va_arg(pointers, void *));
  va_end(pointers);
  ProductCall call{&its, d, places, from_registers ? a_words.word : nullptr, a_places.place, a, b, adds, scale_a,
                   scale_b, transposed_a, transposed_b};
  Request r{&function, issue_product, site, ~0u};
  r.first = &call;
  collective(r);
}

/* ------------------------------------------------------------------------ fence, commit, wait */

static bool multiplies_registers;  // Whether the text has products of factors in registers.

static void fence_products(Warp &w, uint32_t) {
  WarpProducts &mine = group_of(w).warps[w.number % 4];
  mine.fenced = true;
  if (!multiplies_registers) return;
  for (int l = 0; l < 32; l++) {
    const Lane &its = w.lanes[l];
    auto low = l == lane_number ? static_cast<const char *>(__builtin_frame_address(0))
                                : static_cast<const char *>(its.stack);
    mine.stacks[l].assign(low, its.stack_high);
  }
}
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
  int lane = 0, registers = 0;
  for (const Registers::Span &span : acc.registers.spans) {
    const Lane &its = w.lanes[lane];
    auto p = reinterpret_cast<const char *>(span.first);
    if (p >= its.stack_low && p < its.stack_high && !on_stack(its, lane, p)) return false;
    registers += span.count;
    if (registers == acc.shape->registers()) lane++, registers = 0;
  }
  return true;
}

/* The products of a warp up to a group are complete: their sums are in its registers. */
static void retire_products(Warp &w, uint32_t last, Site site) {
  WarpGroup &group = group_of(w);
  int position = w.number % 4;
  WarpProducts &mine = group.warps[position];
  if (!check_factors(w, mine, last, site)) return;
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
    if (!acc->registers.all_equal(kPoison)) {
      set_fault("wgmma.wait_group at {at:%u}: warp %d has written registers of sums while products that add to "
                "them are in flight", site, w.number);
      return;
    }
    mine.results[acc->registers.spans[0].first] = store_sums(*acc);
  }
  mine.accumulators.resize(kept);
  mine.waited = std::max(mine.waited, last);
  mine.fenced = false;
  Knowledge made;
  made.order.raise(group.agent, last);
  w.clock.learn_all(made);
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
