/* What one access of a warp costs shared memory and the caches.

   Shared memory has 32 banks of 4 bytes; a wavefront serves one word of each. The lanes of an access
   of 16 bytes are served 8 at a time, of 8 bytes 16 at a time, of fewer all at once; lanes that ask
   for one word share it. Global memory is moved in sectors of 32 bytes. */
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

struct Wavefronts {
  uint64_t taken = 0, least = 0;
};

/* Of words that are asked for together. */
static Wavefronts serve(const uint32_t *words, int count) {
  uint32_t seen[32][32];
  int in_bank[32] = {};
  int most = 0, distinct = 0;
  for (int i = 0; i < count; i++) {
    int bank = words[i] % 32;
    int n = 0;
    while (n < in_bank[bank] && seen[bank][n] != words[i]) n++;
    if (n < in_bank[bank]) continue;
    seen[bank][n] = words[i];
    in_bank[bank]++;
    distinct++;
    most = std::max(most, n + 1);
  }
  return {uint64_t(most), uint64_t(distinct + 31) / 32};
}

/* Of an access of `bytes` by the lanes of `mask`; `offsets`: in shared memory, by lane. */
static Wavefronts shared_cost(const uint32_t *offsets, uint32_t mask, int bytes) {
  int together = bytes == 16 ? 8 : bytes == 8 ? 16 : 32;
  Wavefronts sum;
  for (int first = 0; first < 32; first += together) {
    uint32_t words[32];
    int count = 0;
    for (int lane = first; lane < first + together; lane++)
      if (mask >> lane & 1)
        for (int word = 0; word < (bytes + 3) / 4; word++) words[count++] = offsets[lane] / 4 + word;
    Wavefronts part = serve(words, count);
    sum.taken += part.taken;
    sum.least += part.least;
  }
  return sum;
}

struct Sectors {
  uint64_t taken = 0, least = 0;
};

/* Of aligned pieces of `bytes` (at most 32) at `count` addresses, which are sorted in place. */
static Sectors global_cost(uint64_t *addresses, int count, int bytes) {
  if (count == 0) return {};
  if (!std::is_sorted(addresses, addresses + count)) std::sort(addresses, addresses + count);
  uint64_t sectors = 1, distinct = 1;
  for (int i = 1; i < count; i++) {
    distinct += addresses[i] != addresses[i - 1];
    sectors += addresses[i] / 32 != addresses[i - 1] / 32;
  }
  return {sectors, (distinct * uint64_t(bytes) + 31) / 32};
}
