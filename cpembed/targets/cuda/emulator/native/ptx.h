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
}
