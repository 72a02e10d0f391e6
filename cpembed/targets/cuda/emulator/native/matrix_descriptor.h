/* Matrices in shared memory as wgmma's descriptors say.

   From the PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions: Shared Memory Matrix Layout" and
   "Matrix Descriptor". A matrix consists of cores, 8 rows of 16 bytes each; a row is one of the operand
   where it is major in K, or of K where it is major in M or N. Within the 128-byte lines of shared
   memory chunks of 16 bytes are permuted, by the bits of their addresses. */
#pragma once

#include "warp.h"

struct Descriptor {
  uint32_t start, leading, stride, base, mode;  // Bytes; mode 0 none, 1 128B, 2 64B, 3 32B.
};

static Descriptor descriptor_of(uint64_t bits) {
  Descriptor d;
  d.start = uint32_t(bits & 0x3fff) << 4;
  d.leading = uint32_t(bits >> 16 & 0x3fff) << 4;
  d.stride = uint32_t(bits >> 32 & 0x3fff) << 4;
  d.base = uint32_t(bits >> 49 & 7);
  d.mode = uint32_t(bits >> 62);
  return d;
}

static bool valid_descriptor(uint64_t bits, const char *what, Site site) {
  constexpr uint64_t kUsed = 0x3fff | uint64_t{0x3fff} << 16 | uint64_t{0x3fff} << 32 | uint64_t{7} << 49 |
                             uint64_t{3} << 62;
  if (!(bits & ~kUsed)) return true;
  set_fault("%s at {at:%u}: reserved bits of matrix descriptor %#llx are set", what, site,
            (unsigned long long)bits);
  return false;
}

/* Bytes of a row of cores that lie side by side. */
static inline uint32_t span_of(const Descriptor &d) {
  static const uint32_t spans[] = {16, 128, 64, 32};
  return spans[d.mode];
}

static inline uint32_t permuted(const Descriptor &d, uint32_t address) {
  uint32_t mask = span_of(d) / 16 - 1;
  uint32_t line = (address >> 7) - d.base;
  return address ^ (line & mask) << 4;
}

/* Address of 16 bytes of an operand that is major in K: chunk 0 or 1 of a row. */
static inline uint32_t chunk_of_row(const Descriptor &d, uint32_t row, uint32_t chunk) {
  uint32_t within = d.mode == 0 ? chunk * d.leading : chunk * 16;
  return permuted(d, d.start + row % 8 * span_of(d) + row / 8 * d.stride + within);
}

/* Of one that is major in M or N: 8 elements of 16 bits from `first` on, at depth k. */
static inline uint32_t chunk_of_depth(const Descriptor &d, uint32_t first, uint32_t k) {
  uint32_t unit = first / 8, units = span_of(d) / 16;
  uint32_t address = d.mode == 0 ? unit * d.stride + k % 8 * 16 + k / 8 * d.leading
                                 : unit % units * 16 + unit / units * d.leading + k % 8 * span_of(d) +
                                       k / 8 * d.stride;
  return permuted(d, d.start + address);
}
