/* A function or PTX instruction that lanes call, by the name under which its calls are counted. */
#pragma once

#include <cstdint>

struct ExecutorFunction {
  const char *name;
  uint64_t calls = 0;
  ExecutorFunction *next = nullptr;  // In the runtime's list, which it enters at its first call.
  bool listed = false;
};
