/* ldmatrix and mma.sync. */
#pragma once

#include "elements.h"
#include "fragments.h"
#include "memory_functions.h"
#include "ptx.h"
#include "warp.h"

static bool whole_warp(const char *name, Site site) {
  if (warp->live == 0xffffffffu) return true;
  set_fault("%s at {at:%u} needs all 32 lanes of a warp; the last warp of the block has %d", name, site,
            __builtin_popcount(warp->live));
  return false;
}

/* ---------------------------------------------------------------------------------- ldmatrix */

/* `count` matrices; lane i of 8 * count gives the address of row i % 8 of matrix i / 8. */
template <int count, bool transposed>
static void load_matrices(Warp &w, uint32_t) {
  uint16_t element[count][8][8];
  w.clock.reads_together = true;
  for (int matrix = 0; matrix < count; matrix++) {
    uint32_t words[32];
    for (int row = 0; row < 8; row++) {
      Request &r = w.request(matrix * 8 + row);
      if (!shared_memory.valid(r.first, 16, 16, r.function->name, r.site) ||
          !shared_memory.read(r.first, 16, now(kCollective), r.site))
        return;
      memcpy(element[matrix][row], r.first, 16);
      for (int word = 0; word < 4; word++)
        words[row * 4 + word] = uint32_t(shared_memory.offset(r.first) / 4) + uint32_t(word);
    }
    Wavefronts cost = serve(words, 32);
    count_shared(cost, false);
    tally.ldmatrix_wavefronts += cost.taken;
  }
  for (int l = 0; l < 32; l++)
    for (int matrix = 0; matrix < count; matrix++) {
      uint16_t pair[2];
      for (int i = 0; i < 2; i++) {
        Position at = matrix_8x8(l, i);
        pair[i] = transposed ? element[matrix][at.column][at.row] : element[matrix][at.row][at.column];
      }
      memcpy(static_cast<char *>(w.request(l).registers) + 4 * matrix, pair, 4);
    }
}

extern "C" ExecutorWords executor_load_matrices(ExecutorFunction &function, int space,
                                                uint64_t address, int count, bool transposed) {
  Site site = CALLER;
  REQUIRE(whole_warp(function.name, site));
  static const ExecutorRun runs[] = {load_matrices<1, false>, load_matrices<2, false>,
                                     load_matrices<4, false>, load_matrices<1, true>,
                                     load_matrices<2, true>, load_matrices<4, true>};
  ExecutorWords made = {};
  Request r{&function, runs[count / 2 + 3 * transposed], site, ~0u, made.word,
            pointer_to(space, address)};
  collective(r);
  return made;
}

/* ---------------------------------------------------------------------------------- stmatrix */

template <int count, bool transposed>
static void store_matrices(Warp &w, uint32_t) {
  for (int matrix = 0; matrix < count; matrix++) {
    uint16_t element[8][8];
    for (int l = 0; l < 32; l++) {
      uint16_t pair[2];
      memcpy(pair, static_cast<char *>(w.request(l).registers) + 4 * matrix, 4);
      for (int i = 0; i < 2; i++) {
        Position at = matrix_8x8(l, i);
        (transposed ? element[at.column][at.row] : element[at.row][at.column]) = pair[i];
      }
    }
    uint32_t words[32];
    for (int row = 0; row < 8; row++) {
      Request &r = w.request(matrix * 8 + row);
      if (!shared_memory.valid(r.first, 16, 16, r.function->name, r.site) ||
          !shared_memory.write(r.first, 16, now(kCollectiveWrite), kWritten, r.site))
        return;
      memcpy(const_cast<void *>(r.first), element[row], 16);
      for (int word = 0; word < 4; word++)
        words[row * 4 + word] = uint32_t(shared_memory.offset(r.first) / 4) + uint32_t(word);
    }
    count_shared(serve(words, 32), true);
  }
}

extern "C" void executor_store_matrices(ExecutorFunction &function, int space, uint64_t address,
                                        ExecutorWords words, int count, bool transposed) {
  Site site = CALLER;
  REQUIRE(whole_warp(function.name, site));
  static const ExecutorRun runs[] = {store_matrices<1, false>, store_matrices<2, false>,
                                     store_matrices<4, false>, store_matrices<1, true>,
                                     store_matrices<2, true>, store_matrices<4, true>};
  Request r{&function, runs[count / 2 + 3 * transposed], site, ~0u, words.word, pointer_to(space, address)};
  collective(r);
}

/* ---------------------------------------------------------------------------------- mma.sync */

using Map = Position (*)(int, int);

/* A matrix out of the lanes' registers. Of several products one copy: this is most of the runtime's code. */
template <class E, Map map, int M, int N>
__attribute__((noinline)) static void gather(typename E::Value (&matrix)[M][N], Warp &w, const void *Request::*member) {
  constexpr int per_lane = M * N / 32;
  for (int l = 0; l < 32; l++) {
    typename E::Stored held[per_lane];
    typename E::Value values[per_lane];
    memcpy(held, w.request(l).*member, sizeof held);
    for (int i = 0; i < per_lane; i++) values[i] = E::load(held[i]);
    for (int i = 0; i < per_lane; i++) {
      Position at = map(l, i);
      matrix[at.row][at.column] = values[i];
    }
  }
}

template <class C, class A, class B, int K>
static void multiply(Warp &w, uint32_t) {
  if (!computes) return;
  typename C::Value a[16][K], b[K][8], c[16][8];
  gather<A, a_position<4 / int(sizeof(typename A::Stored))>>(a, w, &Request::first);
  gather<B, b_position<4 / int(sizeof(typename B::Stored))>>(b, w, &Request::second);
  typename C::Stored held[4];
  for (int l = 0; l < 32; l++) {
    memcpy(held, w.request(l).registers, sizeof held);
    for (int i = 0; i < 4; i++) {
      Position at = c_16x8(l, i);
      c[at.row][at.column] = C::load(held[i]);
    }
  }
  multiply_add(c, a, b);
  for (int l = 0; l < 32; l++) {
    for (int i = 0; i < 4; i++) {
      Position at = c_16x8(l, i);
      held[i] = C::store(c[at.row][at.column]);
    }
    memcpy(w.request(l).registers, held, sizeof held);
  }
}

#define X(shape, K, sums, C, a, A, b, B) \
  extern "C" void executor_mma_##shape##_##sums##_##a##_##b(Warp &w, uint32_t lanes) { \
    multiply<C, A, B, K>(w, lanes); \
  }
EXECUTOR_PRODUCTS(X)
#undef X

extern "C" ExecutorWords executor_multiply(ExecutorFunction &function, ExecutorRun run,
                                           ExecutorWords a, ExecutorWords b, ExecutorWords c) {
  Site site = CALLER;
  REQUIRE(whole_warp(function.name, site));
  Request r{&function, run, site, ~0u, c.word, a.word, b.word};
  collective(r);
  return c;
}
