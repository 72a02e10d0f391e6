/* Random numbers (splitmix64); the state is the seed of the run. */
#pragma once

#include <cstdint>

static uint64_t random_state;
static inline uint64_t random_number() {
  uint64_t z = random_state += 0x9e3779b97f4a7c15;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
  z = (z ^ z >> 27) * 0x94d049bb133111eb;
  return z ^ z >> 31;
}
