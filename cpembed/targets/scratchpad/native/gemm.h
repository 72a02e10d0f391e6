/* gemm: the product of all PEs together, as swATOP's appendix describes it (Gao et al., ICPP 2019,
   section 9): in each step the PEs of one column broadcast blocks of A along their rows, those
   of one row broadcast blocks of B along their columns, and every PE adds a product to its C.

   The last PE to come computes for all: what one PE does inside of a step can be seen by no other.
   Vectors of the broadcasts are counted as the machine sends them. */
#pragma once

#include <cstdint>
#include <numeric>

#include "mesh.h"

enum Variant { kAColumnMajor = 1, kBColumnMajor = 2, kOverN = 4 };

/* One PE's call. */
struct Gemm {
  std::array<long, 10> same;  // m, n, k, lda, ldb, ldc, variant, types of A, B, C.
  const unsigned char *a, *b;
  unsigned char *c;
  Site site;
};

static std::vector<Gemm> gemms;

/* A matrix of one PE: `outer` vectors of `inner` contiguous elements. */
struct Block {
  long inner, outer, ld, size;
};

static Block block_of(long rows, long columns, long ld, bool column_major, long type) {
  return column_major ? Block{rows, columns, ld, type % 256} : Block{columns, rows, ld, type % 256};
}

static void require_block(const Block &b, const char *name, Site site) {
  if (b.ld < b.inner)
    fail("gemm at {at:%u} has a leading dimension of %s of %ld, less than %ld", site, name, b.ld,
         b.inner);
}

static void touch_block(const Block &b, const void *p, bool writes, const char *what, Site site) {
  auto at = static_cast<const unsigned char *>(p);
  for (long o = 0; o < b.outer; o++, at += b.ld * b.size) {
    scratchpads.read(at, b.inner * b.size, what, site);
    if (writes) scratchpads.write(at, b.inner * b.size, what, site);
  }
}

/* Floats that C++ has no type for; elements.h has the same for texts. Widening is exact. */
namespace narrow {
#include "elements.h"
}

/* Elements of `from`, rows (of the vectorised or the other dimension) by depth, as type T with the
   rows contiguous. `step` and `across`: elements between rows, and between depths. */
template <class T, class From, class Value>
static void pack_as(T *to, const unsigned char *from, long rows, long depth, long step, long across,
                    Value value) {
  auto source = reinterpret_cast<const From *>(from);
  for (long d = 0; d < depth; d++)
    for (long r = 0; r < rows; r++) to[d * rows + r] = T(value(source[r * step + d * across]));
}

/* The same of elements of a type by its code; false where there is no such type. */
template <class T>
static bool pack(T *to, long type, const unsigned char *from, long rows, long depth, long step,
                 long across) {
  auto plain = [](auto x) { return x; };
#define PACK(kind, bytes, From, value)                                         \
  case kind * 256 + bytes:                                                     \
    pack_as<T, From>(to, from, rows, depth, step, across, value);              \
    return true;
  switch (type) {
    PACK('f', 4, float, plain)
    PACK('f', 8, double, plain)
    PACK('i', 1, int8_t, plain)
    PACK('i', 2, int16_t, plain)
    PACK('i', 4, int32_t, plain)
    PACK('i', 8, int64_t, plain)
    PACK('u', 1, uint8_t, plain)
    PACK('u', 2, uint16_t, plain)
    PACK('h', 2, narrow::float16, narrow::value_of_float16)
    PACK('b', 2, narrow::bfloat16, narrow::value_of_bfloat16)
    PACK('e', 1, narrow::float8_e4m3fn, narrow::value_of_float8_e4m3fn)
    PACK('d', 1, narrow::float8_e5m2, narrow::value_of_float8_e5m2)
  }
#undef PACK
  return false;
}

/* W elements that lie anywhere. */
template <class T, int W>
struct Lanes {
  typedef T type __attribute__((vector_size(W * sizeof(T)), aligned(sizeof(T)), may_alias));
};

/* C += V * E for a block of W x J elements that stays in registers: vectors of W along C's
   contiguous dimension (swATOP's register blocking). */
template <int W, int J, class T>
static void registers(const T *v, long nv, const T *e, long ne, long depth, T *c, long ldc) {
  using Row = typename Lanes<T, W>::type;
  Row sums[J];
#pragma GCC unroll 8
  for (int j = 0; j < J; j++) sums[j] = *reinterpret_cast<const Row *>(c + j * ldc);
  for (long d = 0; d < depth; d++) {
    Row along = *reinterpret_cast<const Row *>(v + d * nv);
#pragma GCC unroll 8
    for (int j = 0; j < J; j++) sums[j] += along * e[d * ne + j];
  }
#pragma GCC unroll 8
  for (int j = 0; j < J; j++) *reinterpret_cast<Row *>(c + j * ldc) = sums[j];
}

template <int W, class T>
static long columns_of(long i, const T *v, long nv, const T *e, long ne, long depth, T *c, long ldc) {
  for (; i + W <= nv; i += W) {
    long j = 0;
    for (; j + 8 <= ne; j += 8) registers<W, 8>(v + i, nv, e + j, ne, depth, c + j * ldc + i, ldc);
    for (; j + 4 <= ne; j += 4) registers<W, 4>(v + i, nv, e + j, ne, depth, c + j * ldc + i, ldc);
    for (; j < ne; j++) registers<W, 1>(v + i, nv, e + j, ne, depth, c + j * ldc + i, ldc);
  }
  return i;
}

template <class T>
static void product(const T *v, long nv, const T *e, long ne, long depth, T *c, long ldc) {
  long i = columns_of<16>(0, v, nv, e, ne, depth, c, ldc);
  i = columns_of<4>(i, v, nv, e, ne, depth, c, ldc);
  columns_of<1>(i, v, nv, e, ne, depth, c, ldc);
}

/* False where an operand has a type that there is no conversion of. */
template <class C>
static bool multiply(const Gemm &call) {
  auto [m, n, k, lda, ldb, ldc, variant, ta, tb, tc] = call.same;
  long rows = shape.rows, columns = shape.columns;
  long mb = m / rows, nb = n / columns, steps = std::lcm(rows, columns), depth = k / steps;
  std::vector<C> a(size_t(mb * depth * rows)), b(size_t(nb * depth * columns));
  long a_row = variant & kAColumnMajor ? 1 : lda, a_k = variant & kAColumnMajor ? lda : 1;
  long b_column = variant & kBColumnMajor ? ldb : 1, b_k = variant & kBColumnMajor ? 1 : ldb;
  for (long step = 0; step < steps; step++) {
    long from_column = step * columns / steps, from_row = step * rows / steps;
    long a_first = step % (steps / columns) * depth, b_first = step % (steps / rows) * depth;
    for (long r = 0; r < rows; r++) {
      auto from = gemms[size_t(r * columns + from_column)].a + a_first * a_k * (ta % 256);
      if (!pack(&a[size_t(r * mb * depth)], ta, from, mb, depth, a_row, a_k)) return false;
    }
    for (long s = 0; s < columns; s++) {
      auto from = gemms[size_t(from_row * columns + s)].b + b_first * b_k * (tb % 256);
      if (!pack(&b[size_t(s * nb * depth)], tb, from, nb, depth, b_column, b_k)) return false;
    }
    for (long i = 0; i < rows * columns; i++) {
      auto to = reinterpret_cast<C *>(gemms[size_t(i)].c);
      const C *own_a = &a[size_t(i / columns * mb * depth)], *own_b = &b[size_t(i % columns * nb * depth)];
      if (variant & kOverN)
        product(own_b, nb, own_a, mb, depth, to, ldc);
      else
        product(own_a, mb, own_b, nb, depth, to, ldc);
    }
  }
  return true;
}

/* The vectorised operand is sent in vectors of several elements, the other one in vectors that hold
   one element in all lanes. */
static void count_gemm(const Gemm &call) {
  auto [m, n, k, lda, ldb, ldc, variant, ta, tb, tc] = call.same;
  long lanes = shape.lanes;
  tally.gemms[{m, n, k, variant}]++;
  if (shape.columns > 1)
    tally.others[kRowVectors] += uint64_t(m * k / (variant & kOverN ? 1 : lanes));
  if (shape.rows > 1)
    tally.others[kColumnVectors] += uint64_t(n * k / (variant & kOverN ? lanes : 1));
}

static void require_gemm(const Gemm &call) {
  auto [m, n, k, lda, ldb, ldc, variant, ta, tb, tc] = call.same;
  long rows = shape.rows, columns = shape.columns;
  if (m <= 0 || n <= 0 || k <= 0 || m % rows || n % columns || k % std::lcm(rows, columns))
    fail("gemm at {at:%u} has sizes of %ld x %ld x %ld, which cannot be divided among %ld x %ld PEs",
         call.site, m, n, k, rows, columns);
  if (variant & ~7L) fail("gemm at {at:%u} has no variant %ld", call.site, variant);
  long vectorised = variant & kOverN ? n / columns : m / rows;
  if (vectorised % shape.lanes)
    fail("gemm at {at:%u} is vectorised over %ld elements of %s a PE, which is no multiple of %d lanes",
         call.site, vectorised, variant & kOverN ? "N" : "M", shape.lanes);
  Block a = block_of(m / rows, k / columns, lda, variant & kAColumnMajor, ta);
  Block b = block_of(k / rows, n / columns, ldb, variant & kBColumnMajor, tb);
  Block c = block_of(m / rows, n / columns, ldc, !(variant & kOverN), tc);
  require_block(a, "A", call.site), require_block(b, "B", call.site), require_block(c, "C", call.site);
  touch_block(a, call.a, false, "gemm's A", call.site);
  touch_block(b, call.b, false, "gemm's B", call.site);
  touch_block(c, call.c, true, "gemm's C", call.site);
}

static void require_same(const Gemm &call) {
  static const char *const names[] = {"m",  "n",      "k",         "lda",       "ldb",
                                      "ldc", "variant", "type of A", "type of B", "type of C"};
  for (const Pe &p : pes) {
    if (p.state != kInGemm) continue;
    const Gemm &other = gemms[size_t(p.number)];
    for (size_t i = 0; i < call.same.size(); i++)
      if (call.same[i] != other.same[i])
        fail("gemm at {at:%u} has %s = %ld, while PE (%d, %d) calls it at {at:%u} with %ld", call.site,
             names[i], call.same[i], p.row, p.column, other.site, other.same[i]);
    return;
  }
}

extern "C" void scratchpad_gemm(int m, int n, int k, const void *a, long lda, const void *b, long ldb,
                                void *c, long ldc, int variant, int type_a, int type_b, int type_c) {
  Gemm call{{m, n, k, lda, ldb, ldc, variant, type_a, type_b, type_c},
            static_cast<const unsigned char *>(a), static_cast<const unsigned char *>(b),
            static_cast<unsigned char *>(c), CALLER};
  require_same(call);
  require_gemm(call);
  gemms[size_t(pe->number)] = call;
  if (!meet(kInGemm, call.site)) return;
  if (!check_queues("at a gemm")) executor_switch(&pe->stack, scheduler);
  bool done = false;
  switch (type_c) {
    case 'f' * 256 + 4: done = multiply<float>(call); break;
    case 'f' * 256 + 8: done = multiply<double>(call); break;
    case 'i' * 256 + 4: done = multiply<int32_t>(call); break;
    case 'i' * 256 + 8: done = multiply<int64_t>(call); break;
  }
  if (!done) fail("gemm at {at:%u} has types that there is no product of", call.site);
  count_gemm(call);
  release();
}
