/* What translated inline PTX consists of: values of registers, and the runtime's functions of
   instructions. The package `ptx` has the rows that use them. */
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "function.h"
#include "matrix_shapes.h"
#include "number_formats.h"

struct Warp;

/* What the last lane to come executes for its warp. */
using ExecutorRun = void (*)(Warp &, uint32_t lanes);

/* Registers of 32 bits, passed and returned by value: an array whose address is taken would be
   instrumented at each access. */
struct ExecutorWords {
  uint32_t word[4];
};
struct ExecutorPlaces {  // Of the variables that four registers were read from; null of others.
  const void *place[4];
};
struct ExecutorFragment {
  uint32_t word[8];
};

namespace executor {

/* State spaces of addresses; those of shared memory are offsets. */
enum Space : int { kGeneric, kGlobal, kShared, kSharedCluster };

enum Atomic : int { kAdd, kInc, kDec, kMin, kMax, kAnd, kOr, kXor, kExchange, kCas, kLoadOnly, kStoreOnly };
enum AtomicKind : int { kUnsigned32, kSigned32, kUnsigned64, kSigned64, kFloat32, kFloat16, kBfloat16 };

#define EXECUTOR_INLINE static inline __attribute__((always_inline))

template <class T, class V>
EXECUTOR_INLINE T bits(V value) {
  static_assert(sizeof(T) == sizeof(V));
  EXECUTOR_UNSET T made;
  memcpy(&made, &value, sizeof made);
  return made;
}

/* An operand of a statement as its register has it. */
template <class T, class V>
EXECUTOR_INLINE T operand(V value) {
  static_assert(sizeof(T) == sizeof(V),
                "an operand of inline PTX has not the size that its constraint says");
  return bits<T>(value);
}

template <class V, class T>
EXECUTOR_INLINE void assign(V &variable, T value) {
  static_assert(sizeof(T) == sizeof(V),
                "an operand of inline PTX has not the size that its constraint says");
  memcpy(&variable, &value, sizeof value);
}

/* What a register holds that nobody wrote: no number in any type of floats. */
template <class T>
EXECUTOR_INLINE T rubbish() {
  constexpr uint64_t pattern = 0x7ffb'adba'7ffb'adba;
  EXECUTOR_UNSET T made;
  memcpy(&made, &pattern, sizeof made);
  return made;
}

/* A variable of floats that nobody wrote is no number. */
template <class T>
EXECUTOR_INLINE bool unset(T &variable) {
  constexpr uint32_t pattern = 0x7fe57fe5;
  for (size_t at = 0; at < sizeof variable; at += sizeof pattern)
    memcpy(reinterpret_cast<char *>(&variable) + at, &pattern,
           sizeof variable - at < sizeof pattern ? sizeof variable - at : sizeof pattern);
  return true;
}

template <class T>
EXECUTOR_INLINE T element(const ExecutorWords &words, int number) {
  EXECUTOR_UNSET T made;
  memcpy(&made, reinterpret_cast<const char *>(words.word) + number * sizeof made, sizeof made);
  return made;
}

template <class T, class... V>
EXECUTOR_INLINE ExecutorWords words(V... values) {
  const T parts[] = {values...};
  ExecutorWords made = {};
  memcpy(made.word, parts, sizeof parts);
  return made;
}

EXECUTOR_INLINE uint32_t reversed(uint32_t value) {
  uint32_t made = 0;
  for (int bit = 0; bit < 32; bit++) made |= (value >> bit & 1) << (31 - bit);
  return made;
}

/* lop3: bit 4a + 2b + c of the table is the result of the bits a, b, c. */
EXECUTOR_INLINE uint32_t by_table(uint32_t a, uint32_t b, uint32_t c, uint32_t table) {
  uint32_t made = 0;
  for (int row = 0; row < 8; row++)
    if (table >> row & 1) made |= (row & 4 ? a : ~a) & (row & 2 ? b : ~b) & (row & 1 ? c : ~c);
  return made;
}

/* bfe: bits beyond the value are its sign, or the field's last one if that lies below it. */
EXECUTOR_INLINE uint32_t bit_field(uint32_t value, uint32_t first, uint32_t count, bool is_signed) {
  first &= 255, count &= 255;
  uint32_t last = first + count - 1 < 31 ? first + count - 1 : 31, made = 0;
  uint32_t sign = is_signed && count != 0 ? value >> last & 1 : 0;
  for (uint32_t bit = 0; bit < 32; bit++) {
    bool inside = bit < count && first + bit < 32;
    made |= (inside ? value >> (first + bit) & 1 : sign) << bit;
  }
  return made;
}

/* prmt: bytes of a and b by the digits of a selector, of which the highest bit takes a byte's sign instead. */
EXECUTOR_INLINE uint32_t bytes_of(uint32_t a, uint32_t b, uint32_t selector) {
  uint64_t pair = uint64_t(b) << 32 | a;
  uint32_t made = 0;
  for (int place = 0; place < 4; place++) {
    uint32_t digit = selector >> 4 * place & 15, byte = uint32_t(pair >> 8 * (digit & 7)) & 255;
    if (digit & 8) byte = byte & 128 ? 255 : 0;
    made |= byte << 8 * place;
  }
  return made;
}

/* Where an operand lies that is an lvalue. */
template <class Expression, class V>
EXECUTOR_INLINE const void *place(V &variable) {
  return std::is_lvalue_reference_v<Expression> ? &variable : nullptr;
}

#undef EXECUTOR_INLINE

}  // namespace executor

extern "C" {
__attribute__((const)) uint32_t executor_lane();
__attribute__((const)) uint32_t executor_warp();
uint64_t executor_address_in(int space, uint64_t generic);
uint64_t executor_generic_address(int space, uint64_t address);

ExecutorWords executor_load(ExecutorFunction &, int space, uint64_t address, int bytes, bool valid, bool constant);
void executor_store(ExecutorFunction &, int space, uint64_t address, ExecutorWords, int bytes,
                    bool valid);
void executor_copy_async(ExecutorFunction &, uint64_t shared, uint64_t global, int bytes,
                         uint32_t source_bytes, bool valid);
void executor_copy_commit(ExecutorFunction &);
void executor_copy_wait(ExecutorFunction &, int groups);
void executor_copy_wait_all(ExecutorFunction &);

uint64_t executor_atom(ExecutorFunction &, int operation, int kind, int space, uint64_t address,
                       uint64_t value, uint64_t other, int order, int scope);
void executor_fence(ExecutorFunction &, int scope);
void executor_trap(ExecutorFunction &);

uint64_t executor_exchange(ExecutorFunction &, int direction, uint32_t mask, uint32_t value, uint32_t operand,
                           uint32_t segments);
uint32_t executor_vote(ExecutorFunction &, uint32_t mask, bool predicate);
uint32_t executor_combine(ExecutorFunction &, int operation, int kind, uint32_t mask, uint32_t value);
uint32_t executor_match(ExecutorFunction &, uint32_t mask, uint64_t value, bool all);

ExecutorWords executor_load_matrices(ExecutorFunction &, int space, uint64_t address, int count,
                                     bool transposed);
void executor_store_matrices(ExecutorFunction &, int space, uint64_t address, ExecutorWords, int count,
                             bool transposed);
ExecutorWords executor_multiply(ExecutorFunction &, ExecutorRun, ExecutorWords a, ExecutorWords b,
                                ExecutorWords c);
#define X(shape, K, sums, C, a, A, b, B) void executor_mma_##shape##_##sums##_##a##_##b(Warp &, uint32_t);
EXECUTOR_PRODUCTS(X)
#undef X

/* A stride of 0 is that of a dense matrix. */
ExecutorFragment executor_load_fragment(ExecutorFunction &, ExecutorRun, int space, uint64_t address,
                                        int stride, bool by_columns);
void executor_store_fragment(ExecutorFunction &, ExecutorRun, int space, uint64_t address,
                             ExecutorFragment, int stride, bool by_columns);
ExecutorFragment executor_multiply_fragments(ExecutorFunction &, ExecutorRun, bool a_by_columns,
                                             bool b_by_columns, ExecutorFragment a,
                                             ExecutorFragment b, ExecutorFragment c);
#define X(shape, M, N, K, type, E) \
  void executor_wmma_load_a_##shape##_##type(Warp &, uint32_t); \
  void executor_wmma_load_b_##shape##_##type(Warp &, uint32_t);
EXECUTOR_WMMA_FACTORS(X)
#undef X
#define X(shape, M, N, K, type, E) \
  void executor_wmma_load_c_##shape##_##type(Warp &, uint32_t); \
  void executor_wmma_store_d_##shape##_##type(Warp &, uint32_t);
EXECUTOR_WMMA_SUMS(X)
#undef X
#define X(shape, M, N, K, sums, C, type, E) \
  void executor_wmma_mma_##shape##_##sums##_##type(Warp &, uint32_t);
EXECUTOR_WMMA_PRODUCTS(X)
#undef X

/* Addresses of shared memory are those of the cluster (cluster.h). */
uint32_t executor_cluster_rank();
uint32_t executor_cluster_blocks();
void executor_bar_sync(ExecutorFunction &, uint32_t number, uint32_t threads);
void executor_bar_arrive(ExecutorFunction &, uint32_t number, uint32_t threads);
uint32_t executor_mapa(ExecutorFunction &, uint32_t address, uint32_t rank);
void executor_cluster_arrive(ExecutorFunction &, bool releases);
void executor_cluster_wait(ExecutorFunction &);
uint32_t executor_elect(ExecutorFunction &, uint32_t mask);
void executor_setmaxnreg(ExecutorFunction &, uint32_t count, bool increases);

void executor_mbarrier_init(ExecutorFunction &, uint32_t address, uint32_t arrivals);
void executor_mbarrier_inval(ExecutorFunction &, uint32_t address);
uint64_t executor_mbarrier_arrive(ExecutorFunction &, uint32_t address, uint32_t arrivals, int64_t bytes,
                                  bool releases, bool drops, bool completes);
uint32_t executor_mbarrier_pending(ExecutorFunction &, uint64_t state);
void executor_mbarrier_complete_tx(ExecutorFunction &, uint32_t address, uint32_t bytes);
void executor_copy_arrive(ExecutorFunction &, uint32_t address, bool counted);
void executor_mbarrier_expect_tx(ExecutorFunction &, uint32_t address, uint32_t bytes);
bool executor_mbarrier_wait_parity(ExecutorFunction &, uint32_t address, uint32_t parity, bool acquires);
bool executor_mbarrier_wait(ExecutorFunction &, uint32_t address, uint64_t state, bool acquires);
void executor_fence_mbarrier_init(ExecutorFunction &);
void executor_fence_proxy_async(ExecutorFunction &, bool shared);

void executor_bulk_load_tensor(ExecutorFunction &, uint32_t to, const void *map, const int32_t *coordinates,
                               int rank, const uint16_t *offsets, uint32_t object, bool multicast,
                               uint32_t mask);
void executor_bulk_load(ExecutorFunction &, uint32_t to, const void *from, uint32_t bytes, uint32_t object,
                        bool multicast, uint32_t mask);
void executor_bulk_store_tensor(ExecutorFunction &, const void *map, const int32_t *coordinates, int rank,
                                uint32_t from, int operation, int kind);
void executor_bulk_store(ExecutorFunction &, const void *to, uint32_t from, uint32_t bytes, int operation,
                         int kind);
void executor_bulk_copy_shared(ExecutorFunction &, uint32_t to, uint32_t from, uint32_t bytes, uint32_t object);
void executor_bulk_prefetch(ExecutorFunction &, const void *from, uint32_t bytes);
void executor_fence_tensormap(ExecutorFunction &, const void *map, bool acquires);
void executor_wait_for_grid(ExecutorFunction &);
void executor_launch_dependents(ExecutorFunction &);
void executor_bulk_commit(ExecutorFunction &);
void executor_bulk_wait(ExecutorFunction &, uint32_t pending, bool reads);
void executor_prefetch_tensormap(ExecutorFunction &, const void *map);

/* `places` addresses follow: of each of the `registers`, or of the first one where they lie side by side. */
void executor_wgmma(ExecutorFunction &, ExecutorWords a_words, ExecutorPlaces a_places, bool from_registers,
                    uint64_t a, uint64_t b, bool adds, int scale_a, int scale_b, int transposed_a,
                    int transposed_b, int registers, int places, ...);
void executor_wgmma_fence(ExecutorFunction &);
void executor_wgmma_commit(ExecutorFunction &);
void executor_wgmma_wait(ExecutorFunction &, uint32_t pending);
}

namespace executor {

/* A product of a warp group; the addresses of the registers of its sums are pushed on the stack, since an
   array of them would be instrumented. Where the compiler sees that they are an array's, one is enough. */
template <class... Places>
static inline __attribute__((always_inline)) void multiply_group(
    ExecutorFunction &function, ExecutorWords a_words, ExecutorPlaces a_places, bool from_registers, uint64_t a,
    uint64_t b, bool adds, int scale_a, int scale_b, int transposed_a, int transposed_b, void *first,
    Places... others) {
  constexpr int registers = 1 + sizeof...(others);
  int number = 0;
  bool side_by_side = ((static_cast<char *>(others) == static_cast<char *>(first) + 4 * ++number) && ...);
  if (side_by_side)
    executor_wgmma(function, a_words, a_places, from_registers, a, b, adds, scale_a, scale_b, transposed_a,
                   transposed_b, registers, 1, first);
  else
    executor_wgmma(function, a_words, a_places, from_registers, a, b, adds, scale_a, scale_b, transposed_a,
                   transposed_b, registers, registers, first, others...);
}

}  // namespace executor
