/* WMMA. How lanes hold its fragments is unspecified, so here they hold them in a way that no GPU
   does: what depends on a layout fails.

   Its traffic is not documented either; counted is what a GPU's compiler makes of it: pieces of 16
   bytes of 8 lines for 8- and 16-bit elements (ldmatrix, and stores of 4 bytes a lane), of 32 bytes
   of 4 lines for 32-bit ones (8 bytes a lane, half a warp at a time). */
#pragma once

#include "matrix_functions.h"

/* Which element of a matrix, counted along its rows, slot `slot` of a lane holds. */
static inline int wmma_element(int lane, int slot) { return slot * 32 + (lane * 5 + slot * 7) % 32; }

/* The dense matrix of the lanes' fragments, and back. */
template <class E, int rows, int columns>
static void gather_wmma(typename E::Value (&matrix)[rows][columns], Warp &w,
                        const void *(*fragment)(const Request &)) {
  constexpr int slots = rows * columns / 32;
  typename E::Stored held[slots];
  for (int l = 0; l < 32; l++) {
    memcpy(held, fragment(w.request(l)), sizeof held);
    for (int s = 0; s < slots; s++) {
      int element = wmma_element(l, s);
      matrix[element / columns][element % columns] = E::load(held[s]);
    }
  }
}

/* What the lines of a matrix in memory cost, and whether they may be touched. */
static bool touch_lines(const Request &r, int lines, int bytes, int element, bool writes) {
  size_t pitch = size_t(r.number) * size_t(element);
  auto base = static_cast<const unsigned char *>(r.first);
  bool shared = shared_memory.holds(base);
  size_t alignment = size_t(std::min(32, bytes));
  const char *name = r.function->name;
  if (pitch % 16) {
    set_fault("%s at {at:%u} needs lines that begin 16 bytes apart or a multiple; they are %zu apart",
              name, r.site, pitch);
    return false;
  }
  if (r.number * element < bytes) {
    set_fault("%s at {at:%u} has lines of %d bytes that begin %zu apart", name, r.site, bytes, pitch);
    return false;
  }
  for (int line = 0; line < lines; line++) {
    const unsigned char *start = base + pitch * size_t(line);
    size_t aligned = line ? 1 : alignment;
    if (shared) {
      if (!shared_memory.valid(start, size_t(bytes), aligned, name, r.site)) return false;
      Stamp stamp = now(kCollective);
      if (!(writes ? shared_memory.write(start, size_t(bytes), stamp, kWritten, r.site)
                   : shared_memory.read(start, size_t(bytes), stamp, r.site)))
        return false;
    } else if (!global_memory.touch(start, size_t(bytes), aligned, writes, name, r.site)) {
      return false;
    }
  }
  int piece = element == 4 ? 32 : 16, together = element == 4 ? 4 : 8;
  for (int first = 0; first < lines; first += together)
    for (int offset = 0; offset < bytes; offset += piece) {
      uint64_t addresses[8];
      uint32_t words[32];
      int count = 0;
      for (int line = first; line < first + together; line++) {
        const unsigned char *start = base + pitch * size_t(line) + offset;
        addresses[line - first] = reinterpret_cast<uint64_t>(start);
        for (int word = 0; shared && word < piece / 4; word++)
          words[count++] = uint32_t(shared_memory.offset(start) / 4) + uint32_t(word);
      }
      if (shared)
        count_shared(serve(words, count), writes);
      else
        count_global(addresses, together, piece, writes);
    }
  return true;
}

static bool same_arguments(Warp &w) {
  const Request &first = w.request(0);
  for (int l = 1; l < 32; l++) {
    const Request &other = w.request(l);
    if (other.first == first.first && other.number == first.number) continue;
    set_fault("%s at {at:%u} is given different addresses by lanes 0 and %d", first.function->name,
              first.site, l);
    return false;
  }
  return true;
}

/* Fragments from memory; `by_columns`: lines in memory are columns. */
template <class E, int rows, int columns, bool by_columns>
static void wmma_load(Warp &w, uint32_t) {
  constexpr int size = int(sizeof(typename E::Stored)), slots = rows * columns / 32;
  constexpr int lines = by_columns ? columns : rows, length = by_columns ? rows : columns;
  const Request &r = w.request(0);
  if (!same_arguments(w) || !touch_lines(r, lines, length * size, size, false)) return;
  auto memory = static_cast<const typename E::Stored *>(r.first);
  for (int l = 0; l < 32; l++)
    for (int s = 0; s < slots; s++) {
      int element = wmma_element(l, s), row = element / columns, column = element % columns;
      int64_t place = by_columns ? column * r.number + row : row * r.number + column;
      memcpy(static_cast<char *>(w.request(l).registers) + s * size, memory + place, size);
    }
}

template <class E, int rows, int columns, bool by_columns>
static void wmma_store(Warp &w, uint32_t) {
  constexpr int size = int(sizeof(typename E::Stored)), slots = rows * columns / 32;
  constexpr int lines = by_columns ? columns : rows, length = by_columns ? rows : columns;
  const Request &r = w.request(0);
  if (!same_arguments(w) || !touch_lines(r, lines, length * size, size, true)) return;
  auto memory = static_cast<typename E::Stored *>(const_cast<void *>(r.first));
  for (int l = 0; l < 32; l++)
    for (int s = 0; s < slots; s++) {
      int element = wmma_element(l, s), row = element / columns, column = element % columns;
      int64_t place = by_columns ? column * r.number + row : row * r.number + column;
      memcpy(memory + place, static_cast<const char *>(w.request(l).registers) + s * size, size);
    }
}

template <class C, class AB, int M, int N, int K>
static void wmma_multiply(Warp &w, uint32_t) {
  typename C::Value a[M][K], b[K][N], c[M][N];
  gather_wmma<AB>(a, w, [](const Request &r) { return r.first; });
  gather_wmma<AB>(b, w, [](const Request &r) { return r.second; });
  gather_wmma<C>(c, w, [](const Request &r) -> const void * { return r.registers; });
  multiply_add(c, a, b);
  constexpr int slots = M * N / 32;
  typename C::Stored held[slots];
  for (int l = 0; l < 32; l++) {
    for (int s = 0; s < slots; s++) {
      int element = wmma_element(l, s);
      held[s] = C::store(c[element / N][element % N]);
    }
    memcpy(w.request(l).registers, held, sizeof held);
  }
}

#define WMMA_MEMORY(name, handler, ...) \
  static Function f_##name(#name); \
  static void call_##name(void *registers, const void *memory, int ld, Site site) { \
    REQUIRE(whole_warp(#name, site)); \
    Request r{&f_##name, handler<__VA_ARGS__>, site, ~0u, registers, memory, nullptr, ld}; \
    collective(r); \
  }

#define WMMA_LOAD(name, ...) \
  WMMA_MEMORY(name, wmma_load, __VA_ARGS__) \
  extern "C" void name(void *fragment, const void *memory, int ld) { \
    call_##name(fragment, memory, ld, CALLER); \
  }
#define WMMA_STORE(name, ...) \
  WMMA_MEMORY(name, wmma_store, __VA_ARGS__) \
  extern "C" void name(void *memory, const void *fragment, int ld) { \
    call_##name(const_cast<void *>(fragment), memory, ld, CALLER); \
  }
#define WMMA_MMA(name, ...) \
  static Function f_##name(#name); \
  extern "C" void name(void *c, const void *a, const void *b) { \
    Site site = CALLER; \
    REQUIRE(whole_warp(#name, site)); \
    Request r{&f_##name, wmma_multiply<__VA_ARGS__>, site, ~0u, c, a, b}; \
    collective(r); \
  }

/* The names that kernels call take A by rows, B by columns and the results by rows; `_row` and `_col`
   are for the others, of the C++ interface. */
#define WMMA_FACTORS(shape, M, N, K, type, E) \
  WMMA_LOAD(cpembed_wmma_load_a_##shape##_##type, E, M, K, false) \
  WMMA_LOAD(cpembed_wmma_load_b_##shape##_##type, E, K, N, true) \
  WMMA_LOAD(cpembed_wmma_load_a_##shape##_##type##_col, E, M, K, true) \
  WMMA_LOAD(cpembed_wmma_load_b_##shape##_##type##_row, E, K, N, false)
#define WMMA_SUMS(shape, M, N, K, type, E) \
  WMMA_LOAD(cpembed_wmma_load_c_##shape##_##type, E, M, N, false) \
  WMMA_LOAD(cpembed_wmma_load_c_##shape##_##type##_col, E, M, N, true) \
  WMMA_STORE(cpembed_wmma_store_##shape##_##type, E, M, N, false) \
  WMMA_STORE(cpembed_wmma_store_##shape##_##type##_col, E, M, N, true)
#define WMMA_SHAPE(shape, M, N, K) \
  WMMA_FACTORS(shape, M, N, K, f16, F16) \
  WMMA_FACTORS(shape, M, N, K, bf16, Bf16) \
  WMMA_FACTORS(shape, M, N, K, s8, S8) \
  WMMA_FACTORS(shape, M, N, K, u8, U8) \
  WMMA_SUMS(shape, M, N, K, f32, F32) \
  WMMA_SUMS(shape, M, N, K, f16, F16) \
  WMMA_SUMS(shape, M, N, K, s32, S32) \
  WMMA_MMA(cpembed_wmma_mma_##shape##_f32_f16_f16, F32, F16, M, N, K) \
  WMMA_MMA(cpembed_wmma_mma_##shape##_f16_f16_f16, F16, F16, M, N, K) \
  WMMA_MMA(cpembed_wmma_mma_##shape##_f32_bf16_bf16, F32, Bf16, M, N, K) \
  WMMA_MMA(cpembed_wmma_mma_##shape##_s32_s8_s8, S32, S8, M, N, K) \
  WMMA_MMA(cpembed_wmma_mma_##shape##_s32_u8_u8, S32, U8, M, N, K)

WMMA_SHAPE(m16n16k16, 16, 16, 16)
WMMA_SHAPE(m32n8k16, 32, 8, 16)
WMMA_SHAPE(m8n32k16, 8, 32, 16)
