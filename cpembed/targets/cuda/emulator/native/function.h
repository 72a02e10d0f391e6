/* A function or PTX instruction that lanes call, by the name under which its calls are counted. */
#pragma once

#include <cstdint>

/* A variable that is written as a whole next, in texts whose other variables are filled first. */
#if defined(__clang__) || __GNUC__ >= 12
#define EXECUTOR_UNSET __attribute__((uninitialized))
#else
#define EXECUTOR_UNSET
#endif

struct ExecutorFunction {
  const char *name;
  uint64_t calls = 0;
  ExecutorFunction *next = nullptr;  // In the runtime's list, which it enters at its first call.
  bool listed = false;
  uint32_t number = 0;  // Of its accesses in a warp's log, from 1.
};
