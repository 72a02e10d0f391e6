/* Plain loads and stores of a text.

   The text is compiled with the instrumentation of -fsanitize=thread, which calls one of the
   functions below before each access to memory that others may see; no library of the sanitizer is
   linked. What an access means, the runtime says in `plain_access`. */
#pragma once

#include <cstring>

#include "fault.h"

static void plain_access(const void *p, size_t bytes, size_t alignment, bool writes, Site site);

extern "C" const char _end __attribute__((visibility("hidden")));

/* Constants and variables of the library itself. */
static inline bool in_library(const void *p) {
  auto address = static_cast<const char *>(p);
  return address >= &__ehdr_start && address < &_end;
}

#define INSTRUMENTED(bytes) \
  extern "C" void __tsan_read##bytes(void *p) { plain_access(p, bytes, bytes, false, CALLER); } \
  extern "C" void __tsan_write##bytes(void *p) { plain_access(p, bytes, bytes, true, CALLER); } \
  extern "C" void __tsan_unaligned_read##bytes(void *p) { plain_access(p, bytes, 1, false, CALLER); } \
  extern "C" void __tsan_unaligned_write##bytes(void *p) { plain_access(p, bytes, 1, true, CALLER); } \
  extern "C" void __tsan_volatile_read##bytes(void *p) { plain_access(p, bytes, bytes, false, CALLER); } \
  extern "C" void __tsan_volatile_write##bytes(void *p) { plain_access(p, bytes, bytes, true, CALLER); }

INSTRUMENTED(1)
INSTRUMENTED(2)
INSTRUMENTED(4)
INSTRUMENTED(8)
INSTRUMENTED(16)
#undef INSTRUMENTED

extern "C" void __tsan_read_range(void *p, size_t n) { plain_access(p, n, 1, false, CALLER); }
extern "C" void __tsan_write_range(void *p, size_t n) { plain_access(p, n, 1, true, CALLER); }
extern "C" void __tsan_vptr_update(void **, void *) {}
extern "C" void __tsan_vptr_read(void **) {}
extern "C" void __tsan_func_entry(void *) {}
extern "C" void __tsan_func_exit(void *) {}
extern "C" void __tsan_init() {}

/* The instrumentation makes these of memcpy and the like, which a compiler makes of assignments. */
extern "C" void *__tsan_memcpy(void *to, const void *from, size_t n) {
  plain_access(from, n, 1, false, CALLER);
  plain_access(to, n, 1, true, CALLER);
  return memcpy(to, from, n);
}
extern "C" void *__tsan_memset(void *to, int value, size_t n) {
  plain_access(to, n, 1, true, CALLER);
  return memset(to, value, n);
}
