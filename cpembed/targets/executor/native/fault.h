/* What a run ends with when it does what its machine does not define: one line.

   A place in the kernel is the offset of a call's return address in this library; locations.py
   replaces {at:OFFSET} in the line by the line of the text. */
#pragma once

#include <cstdarg>
#include <cstdint>
#include <cstdio>

extern "C" const char __ehdr_start __attribute__((visibility("hidden")));

using Site = uint32_t;

static inline Site site_of(const void *return_address) {
  return static_cast<Site>(static_cast<const char *>(return_address) - &__ehdr_start);
}

#define CALLER site_of(__builtin_return_address(0))

static char fault_text[2048];
static bool faulted;

/* Keep the first fault. */
__attribute__((format(printf, 1, 2))) static void set_fault(const char *format, ...) {
  if (faulted) return;
  faulted = true;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(fault_text, sizeof fault_text, format, arguments);
  va_end(arguments);
}
