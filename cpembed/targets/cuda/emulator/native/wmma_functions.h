/* WMMA. How lanes hold its fragments is unspecified, so here they hold them in a way that no GPU
   does: what depends on a layout fails.

   Its traffic is not documented either; counted is what a GPU's compiler makes of it: pieces of 16
   bytes of 8 lines for 8- and 16-bit elements (ldmatrix, and stores of 4 bytes a lane), of 32 bytes
   of 4 lines for 32-bit ones (8 bytes a lane, half a warp at a time). */
#pragma once

#include "matrix_functions.h"

/* How a matrix is held: by how many copies of its elements, and turned by what else decides it. */
struct Holding {
  int slots, copies, turn;
};

/* Which element of a matrix, counted along its rows, slot `slot` of a lane holds. */
static inline int wmma_element(Holding how, int lane, int slot) {
  int number = slot % how.slots, copy = slot / how.slots;
  return number * 32 + (lane * 5 + number * 7 + how.turn + copy * 11) % 32;
}

enum class Role { kA, kB, kSums };

/* Factors of float16 have eight registers in every shape, some elements twice or four times (PTX
   ISA). Fragments of different shapes, of A and of B, and those of memory by rows and by columns
   differ. */
template <class E>
static Holding holding(int rows, int columns, Role role, bool by_columns) {
  int slots = rows * columns / 32;
  bool repeated = role != Role::kSums && std::is_same_v<E, F16>;
  int turn = rows % 13 + (by_columns ? 17 : 0) + (role == Role::kB ? 9 : 0);
  return {slots, repeated ? 16 / slots : 1, turn};
}

/* The dense matrix of the lanes' fragments. Of copies, each is the source of some elements. */
template <class E, int rows, int columns>
static void gather_wmma(typename E::Value (&matrix)[rows][columns], Warp &w, Holding how,
                        const void *(*fragment)(const Request &)) {
  typename E::Stored held[32 / sizeof(typename E::Stored)];
  for (int l = 0; l < 32; l++) {
    memcpy(held, fragment(w.request(l)), sizeof held);
    for (int s = 0; s < how.slots * how.copies; s++) {
      int element = wmma_element(how, l, s);
      if (element % how.copies == s / how.slots)
        matrix[element / columns][element % columns] = E::load(held[s]);
    }
  }
}

/* What Request::number has beside the leading dimension. */
static constexpr int64_t kByColumns = int64_t{1} << 40, kSecondByColumns = int64_t{1} << 41,
                         kInSharedMemory = int64_t{1} << 42;

struct Tile {
  const Request &request;
  int rows, columns;
  bool by_columns;
  int64_t pitch;

  Tile(Warp &w, int rows, int columns)
      : request(w.request(0)), rows(rows), columns(columns),
        by_columns(request.number & kByColumns), pitch(int32_t(request.number)) {
    if (pitch == 0) pitch = by_columns ? rows : columns;
  }
  int64_t place(int element) const {
    int row = element / columns, column = element % columns;
    return by_columns ? column * pitch + row : row * pitch + column;
  }
};

/* What the lines of a matrix in memory cost, and whether they may be touched. */
static bool touch_lines(const Tile &tile, int element, bool writes) {
  const Request &r = tile.request;
  int lines = tile.by_columns ? tile.columns : tile.rows;
  int bytes = (tile.by_columns ? tile.rows : tile.columns) * element;
  size_t pitch = size_t(tile.pitch) * size_t(element);
  auto base = static_cast<const unsigned char *>(r.first);
  bool shared = r.number & kInSharedMemory;
  size_t alignment = size_t(std::min(32, bytes));
  const char *name = r.function->name;
  if (pitch % 16) {
    set_fault("%s at {at:%u} needs lines that begin 16 bytes apart or a multiple; they are %zu apart",
              name, r.site, pitch);
    return false;
  }
  if (tile.pitch * element < bytes) {
    set_fault("%s at {at:%u} has lines of %d bytes that begin %zu apart", name, r.site, bytes, pitch);
    return false;
  }
  if (!writes) warp->clock.reads_together = true;
  for (int line = 0; line < lines; line++) {
    const unsigned char *start = base + pitch * size_t(line);
    size_t aligned = line ? 1 : alignment;
    if (shared) {
      if (!shared_memory.valid(start, size_t(bytes), aligned, name, r.site)) return false;
      Stamp stamp = now(writes ? kCollectiveWrite : kCollective);
      if (!(writes ? shared_memory.write(start, size_t(bytes), stamp, kWritten, r.site)
                   : shared_memory.read(start, size_t(bytes), stamp, r.site)))
        return false;
    } else if (!global_access(start, size_t(bytes), aligned, writes ? kWritten : kUnset, name, r.site,
                              actor_of(now(writes ? kCollectiveWrite : kCollective)))) {
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

template <class E, int rows, int columns, Role role>
static void wmma_load(Warp &w, uint32_t) {
  constexpr int size = int(sizeof(typename E::Stored));
  Tile tile(w, rows, columns);
  if (!same_arguments(w) || !touch_lines(tile, size, false)) return;
  Holding how = holding<E>(rows, columns, role, role != Role::kSums && tile.by_columns);
  auto memory = static_cast<const typename E::Stored *>(tile.request.first);
  for (int l = 0; l < 32; l++)
    for (int s = 0; s < how.slots * how.copies; s++)
      memcpy(static_cast<char *>(w.request(l).registers) + s * size,
             memory + tile.place(wmma_element(how, l, s)), size);
}

template <class E, int rows, int columns>
static void wmma_store(Warp &w, uint32_t) {
  constexpr int size = int(sizeof(typename E::Stored));
  Tile tile(w, rows, columns);
  if (!same_arguments(w) || !touch_lines(tile, size, true)) return;
  Holding how = holding<E>(rows, columns, Role::kSums, false);
  auto memory = static_cast<typename E::Stored *>(const_cast<void *>(tile.request.first));
  for (int l = 0; l < 32; l++)
    for (int s = 0; s < how.slots; s++)
      memcpy(memory + tile.place(wmma_element(how, l, s)),
             static_cast<const char *>(w.request(l).registers) + s * size, size);
}

template <class C, class AB, int M, int N, int K>
static void wmma_multiply(Warp &w, uint32_t) {
  if (!computes) return;
  typename C::Value a[M][K], b[K][N], c[M][N];
  int64_t layouts = w.request(0).number;
  gather_wmma<AB>(a, w, holding<AB>(M, K, Role::kA, layouts & kByColumns),
                  [](const Request &r) { return r.first; });
  gather_wmma<AB>(b, w, holding<AB>(K, N, Role::kB, layouts & kSecondByColumns),
                  [](const Request &r) { return r.second; });
  Holding how = holding<C>(M, N, Role::kSums, false);
  gather_wmma<C>(c, w, how, [](const Request &r) -> const void * { return r.registers; });
  multiply_add(c, a, b);
  for (int l = 0; l < 32; l++)
    for (int s = 0; s < how.slots; s++) {
      int element = wmma_element(how, l, s);
      typename C::Stored held = C::store(c[element / N][element % N]);
      memcpy(static_cast<char *>(w.request(l).registers) + s * sizeof held, &held, sizeof held);
    }
}

#define X(shape, M, N, K, type, E) \
  extern "C" void executor_wmma_load_a_##shape##_##type(Warp &w, uint32_t lanes) { \
    wmma_load<E, M, K, Role::kA>(w, lanes); \
  } \
  extern "C" void executor_wmma_load_b_##shape##_##type(Warp &w, uint32_t lanes) { \
    wmma_load<E, K, N, Role::kB>(w, lanes); \
  }
EXECUTOR_WMMA_FACTORS(X)
#undef X
#define X(shape, M, N, K, type, E) \
  extern "C" void executor_wmma_load_c_##shape##_##type(Warp &w, uint32_t lanes) { \
    wmma_load<E, M, N, Role::kSums>(w, lanes); \
  } \
  extern "C" void executor_wmma_store_d_##shape##_##type(Warp &w, uint32_t lanes) { \
    wmma_store<E, M, N>(w, lanes); \
  }
EXECUTOR_WMMA_SUMS(X)
#undef X
#define X(shape, M, N, K, sums, C, type, E) \
  extern "C" void executor_wmma_mma_##shape##_##sums##_##type(Warp &w, uint32_t lanes) { \
    wmma_multiply<C, E, M, N, K>(w, lanes); \
  }
EXECUTOR_WMMA_PRODUCTS(X)
#undef X

static int64_t tile_number(int space, const void *memory, int stride, bool by_columns) {
  return int64_t(uint32_t(stride)) | (by_columns ? kByColumns : 0) |
         (in_shared(space, memory) ? kInSharedMemory : 0);
}

extern "C" ExecutorFragment executor_load_fragment(ExecutorFunction &function, ExecutorRun run,
                                                   int space, uint64_t address, int stride,
                                                   bool by_columns) {
  Site site = CALLER;
  REQUIRE(whole_warp(function.name, site));
  ExecutorFragment made = {};
  const void *memory = pointer_to(space, address);
  Request r{&function, run, site, ~0u, made.word, memory, nullptr,
            tile_number(space, memory, stride, by_columns)};
  collective(r);
  return made;
}

extern "C" void executor_store_fragment(ExecutorFunction &function, ExecutorRun run, int space,
                                        uint64_t address, ExecutorFragment fragment, int stride,
                                        bool by_columns) {
  Site site = CALLER;
  REQUIRE(whole_warp(function.name, site));
  const void *memory = pointer_to(space, address);
  Request r{&function, run, site, ~0u, fragment.word, memory, nullptr,
            tile_number(space, memory, stride, by_columns)};
  collective(r);
}

extern "C" ExecutorFragment executor_multiply_fragments(ExecutorFunction &function, ExecutorRun run,
                                                        bool a_by_columns, bool b_by_columns,
                                                        ExecutorFragment a, ExecutorFragment b,
                                                        ExecutorFragment c) {
  Site site = CALLER;
  REQUIRE(whole_warp(function.name, site));
  Request r{&function, run, site, ~0u, c.word, a.word, b.word,
            (a_by_columns ? kByColumns : 0) | (b_by_columns ? kSecondByColumns : 0)};
  collective(r);
  return c;
}
