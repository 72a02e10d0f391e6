/* ldmatrix and mma.sync. */
#pragma once

#include "elements.h"
#include "fragments.h"
#include "warp.h"

/* ---------------------------------------------------------------------------------- ldmatrix */

/* `count` matrices; lane i of 8 * count gives the address of row i % 8 of matrix i / 8. */
template <int count, bool transposed>
static void load_matrices(Warp &w, uint32_t) {
  uint16_t element[count][8][8];
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

static bool whole_warp(const char *name, Site site) {
  if (warp->live == 0xffffffffu) return true;
  set_fault("%s at {at:%u} needs all 32 lanes of a warp; the last warp of the block has %d", name, site,
            __builtin_popcount(warp->live));
  return false;
}

#define LDMATRIX(name, count, transposed) \
  static Function f_##name(#name); \
  extern "C" void name(void *registers, const void *shared) { \
    Site site = CALLER; \
    REQUIRE(whole_warp(#name, site)); \
    Request r{&f_##name, load_matrices<count, transposed>, site, ~0u, registers, shared}; \
    collective(r); \
  }

LDMATRIX(cpembed_ldmatrix_x1, 1, false)
LDMATRIX(cpembed_ldmatrix_x2, 2, false)
LDMATRIX(cpembed_ldmatrix_x4, 4, false)
LDMATRIX(cpembed_ldmatrix_x1_trans, 1, true)
LDMATRIX(cpembed_ldmatrix_x2_trans, 2, true)
LDMATRIX(cpembed_ldmatrix_x4_trans, 4, true)
#undef LDMATRIX

/* ---------------------------------------------------------------------------------- mma.sync */

using Map = Position (*)(int, int);

/* A matrix out of the lanes' registers, and back. */
template <class E, Map map, int per_lane, int M, int N>
static void gather(typename E::Value (&matrix)[M][N], Warp &w, const void *Request::*member) {
  for (int l = 0; l < 32; l++) {
    typename E::Stored held[per_lane];
    memcpy(held, w.request(l).*member, sizeof held);
    for (int i = 0; i < per_lane; i++) {
      Position at = map(l, i);
      matrix[at.row][at.column] = E::load(held[i]);
    }
  }
}

template <class C, class A, class B, int K, Map a_map, int a_per_lane, Map b_map, int b_per_lane>
static void multiply(Warp &w, uint32_t) {
  typename C::Value a[16][K], b[K][8], c[16][8];
  gather<A, a_map, a_per_lane>(a, w, &Request::first);
  gather<B, b_map, b_per_lane>(b, w, &Request::second);
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

#define MMA(name, ...) \
  static Function f_##name(#name); \
  extern "C" void name(void *c, const void *a, const void *b) { \
    Site site = CALLER; \
    REQUIRE(whole_warp(#name, site)); \
    Request r{&f_##name, multiply<__VA_ARGS__>, site, ~0u, c, a, b}; \
    collective(r); \
  }

MMA(cpembed_mma_m16n8k16_f32_f16_f16, F32, F16, F16, 16, a_16x16, 8, b_16x8, 4)
MMA(cpembed_mma_m16n8k16_f16_f16_f16, F16, F16, F16, 16, a_16x16, 8, b_16x8, 4)
MMA(cpembed_mma_m16n8k16_f32_bf16_bf16, F32, Bf16, Bf16, 16, a_16x16, 8, b_16x8, 4)
MMA(cpembed_mma_m16n8k32_s32_s8_s8, S32, S8, S8, 32, a_16x32, 16, b_32x8, 8)
MMA(cpembed_mma_m16n8k32_s32_u8_s8, S32, U8, S8, 32, a_16x32, 16, b_32x8, 8)
MMA(cpembed_mma_m16n8k32_s32_u8_u8, S32, U8, U8, 32, a_16x32, 16, b_32x8, 8)
MMA(cpembed_mma_m16n8k32_s32_s8_u8, S32, S8, U8, 32, a_16x32, 16, b_32x8, 8)
#undef MMA
