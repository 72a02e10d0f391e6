/* Barriers, shuffles, votes, atomic operations and memory fences of CUDA C++. */
#pragma once

#define __syncthreads() executor_syncthreads()
__CPEMBED_INLINE void __syncwarp(unsigned mask = 0xffffffffu) { executor_syncwarp(mask); }
__CPEMBED_INLINE unsigned __activemask() { return executor_activemask(); }
__CPEMBED_INLINE void __threadfence() { executor_thread_fence(2); }
__CPEMBED_INLINE void __threadfence_system() { executor_thread_fence(2); }
__CPEMBED_INLINE void __threadfence_block() { executor_thread_fence(0); }

/* Values travel as the low bits of 64. */
template <class T>
__CPEMBED_OWN T __cpembed_shuffle(int how, unsigned mask, T value, int operand, int width) {
  static_assert(sizeof(T) <= 8);
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof(T));
  bits = executor_shuffle(how, mask, bits, operand, width, __CPEMBED_HERE);
  memcpy(&value, &bits, sizeof(T));
  return value;
}
template <class T>
__CPEMBED_INLINE T __shfl_sync(unsigned mask, T value, int lane, int width = 32) {
  return __cpembed_shuffle(0, mask, value, lane, width);
}
template <class T>
__CPEMBED_INLINE T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  return __cpembed_shuffle(1, mask, value, int(delta), width);
}
template <class T>
__CPEMBED_INLINE T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  return __cpembed_shuffle(2, mask, value, int(delta), width);
}
template <class T>
__CPEMBED_INLINE T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32) {
  return __cpembed_shuffle(3, mask, value, lanes, width);
}

__CPEMBED_OWN unsigned __ballot_sync(unsigned mask, int predicate) {
  return executor_ballot(mask, predicate, __CPEMBED_HERE);
}
__CPEMBED_OWN int __any_sync(unsigned mask, int predicate) {
  return executor_ballot(mask, predicate, __CPEMBED_HERE) != 0;
}
__CPEMBED_OWN int __all_sync(unsigned mask, int predicate) {
  return executor_ballot(mask, !predicate, __CPEMBED_HERE) == 0;
}

#define REDUCE(name, type, operation, kind) \
  __CPEMBED_OWN type name(unsigned mask, type value) { \
    static ExecutorFunction function{#name}; \
    return type(executor_combine(function, executor::operation, executor::kind, mask, unsigned(value))); \
  }
REDUCE(__reduce_add_sync, unsigned, kAdd, kUnsigned32)
REDUCE(__reduce_min_sync, unsigned, kMin, kUnsigned32)
REDUCE(__reduce_max_sync, unsigned, kMax, kUnsigned32)
REDUCE(__reduce_add_sync, int, kAdd, kSigned32)
REDUCE(__reduce_min_sync, int, kMin, kSigned32)
REDUCE(__reduce_max_sync, int, kMax, kSigned32)
REDUCE(__reduce_and_sync, unsigned, kAnd, kUnsigned32)
REDUCE(__reduce_or_sync, unsigned, kOr, kUnsigned32)
REDUCE(__reduce_xor_sync, unsigned, kXor, kUnsigned32)
#undef REDUCE
template <class T>
__CPEMBED_OWN unsigned __match_any_sync(unsigned mask, T value) {
  static ExecutorFunction function{"__match_any_sync"};
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof value);
  return executor_match(function, mask, bits, false);
}
template <class T>
__CPEMBED_OWN unsigned __match_all_sync(unsigned mask, T value, int *all) {
  static ExecutorFunction function{"__match_all_sync"};
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof value);
  unsigned same = executor_match(function, mask, bits, true);
  *all = same != 0;
  return same;
}

template <class T>
__CPEMBED_INLINE T __ldg(const T *p) {
  return *p;
}

/* No other thread of the host runs, so an operation that is not interrupted is atomic. */
#define ATOMIC_OF(name, scope, expression) \
  template <class T> \
  __CPEMBED_OWN T name(T *p, std::common_type_t<T> value) { \
    executor_atomic(p, sizeof(T), scope, __CPEMBED_HERE); \
    T old = *p; \
    *p = expression; \
    return old; \
  }
#define ATOMIC(name, expression) \
  ATOMIC_OF(name, 2, expression) \
  ATOMIC_OF(name##_system, 2, expression) \
  ATOMIC_OF(name##_block, 0, expression)
ATOMIC(atomicAdd, T(old + value))
ATOMIC(atomicSub, T(old - value))
ATOMIC(atomicExch, value)
ATOMIC(atomicMin, old < value ? old : value)
ATOMIC(atomicMax, old > value ? old : value)
ATOMIC(atomicAnd, T(old & value))
ATOMIC(atomicOr, T(old | value))
ATOMIC(atomicXor, T(old ^ value))
#undef ATOMIC
#define ATOMIC(name, scope) \
  template <class T> \
  __CPEMBED_OWN T name(T *p, std::common_type_t<T> expected, std::common_type_t<T> value) { \
    executor_atomic(p, sizeof(T), scope, __CPEMBED_HERE); \
    T old = *p; \
    if (old == expected) *p = value; \
    return old; \
  }
ATOMIC(atomicCAS, 2)
ATOMIC(atomicCAS_block, 0)
#undef ATOMIC
#undef ATOMIC_OF

/* Addresses of shared memory as PTX has them: 32-bit numbers. */
__CPEMBED_INLINE size_t __cvta_generic_to_shared(const void *p) { return executor_shared_address(p); }
__CPEMBED_INLINE size_t __cvta_generic_to_global(const void *p) { return reinterpret_cast<size_t>(p); }
