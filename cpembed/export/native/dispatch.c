/* The variants of a library for several processors, of which one runs: the first that this
   processor and the operating system support, the most demanding first, or the one that the
   environment variable CPEMBED_VARIANT names.

   Each variant is a library of its own whose names are hidden. The functions of the interface call
   those of the variant that runs, which is selected at the first call. */

#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "NAME.h"
HEADERS
#include "processor.h"

#define API __attribute__((visibility("default")))
#define VARIANT_COUNT COUNT

/* What kernels call, of which each variant has its own. */
typedef struct { void **launch, **barrier, **allocate, **release, **fail; } Runtime;
typedef void (*FailParts)(const char *kind, const char **parts, int32_t count);
typedef struct {
  const char *name;
  const char *const *features;
  int feature_count;
  Runtime runtime;
  FailParts fail_parts;
} Variant;

VARIANTS

void *__TVMBackendParallelLaunch, *__TVMBackendParallelBarrier, *__TVMBackendAllocWorkspace,
    *__TVMBackendFreeWorkspace, *__TVMFFIErrorSetRaisedFromCStr;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int selected = VARIANT_COUNT - 1, selection = CPEMBED_OK;
static char reason[512];

static void use(int number) {
  const Runtime *runtime = &variants[number].runtime;
  selected = number;
  __TVMBackendParallelLaunch = *runtime->launch;
  __TVMBackendParallelBarrier = *runtime->barrier;
  __TVMBackendAllocWorkspace = *runtime->allocate;
  __TVMBackendFreeWorkspace = *runtime->release;
  __TVMFFIErrorSetRaisedFromCStr = *runtime->fail;
}

static void select_variant(void) {
  const char *forced = getenv("CPEMBED_VARIANT");
  int is_forced = forced != NULL && *forced != 0;
  size_t used = 0;
  selection = CPEMBED_NO_VARIANT;
  for (int k = 0; k < VARIANT_COUNT; k++) {
    if (is_forced && strcmp(forced, variants[k].name) != 0) continue;
    selection = lacking_of(variants[k].features, variants[k].feature_count);
    use(k);
    if (selection == CPEMBED_OK) return;
  }
  if (selection == CPEMBED_NO_VARIANT) {
    used = (size_t)snprintf(reason, sizeof reason, "CPEMBED_VARIANT=%s is no variant of it:", forced);
    for (int k = 0; k < VARIANT_COUNT && used < sizeof reason; k++)
      used += (size_t)snprintf(reason + used, sizeof reason - used, "%s %s", k ? "," : "",
                               variants[k].name);
    return;
  }
  const Variant *last = &variants[selected];
  int feature = selection - CPEMBED_LACKS_FEATURE;
  snprintf(reason, sizeof reason, "no variant runs on this processor: %s%s, %s%s", last->name,
           is_forced ? "" : ", which needs the least",
           feature < 0 ? "uses registers that the operating system does not save" : "needs ",
           feature < 0 ? "" : last->features[feature]);
}

static int active(void) {
  pthread_once(&once, select_variant);
  return selected;
}

/* Called by kernels that do not use the pointers. */
int TVMBackendParallelLaunch(void *task, void *data, int tasks) {
  return ((int (*)(void *, void *, int))__TVMBackendParallelLaunch)(task, data, tasks);
}
int TVMBackendParallelBarrier(int number, void *group) {
  return ((int (*)(int, void *))__TVMBackendParallelBarrier)(number, group);
}
void *TVMBackendAllocWorkspace(int type, int id, uint64_t bytes, int code, int bits) {
  return ((void *(*)(int, int, uint64_t, int, int))__TVMBackendAllocWorkspace)(type, id, bytes,
                                                                               code, bits);
}
int TVMBackendFreeWorkspace(int type, int id, void *memory) {
  return ((int (*)(int, int, void *))__TVMBackendFreeWorkspace)(type, id, memory);
}
void TVMFFIErrorSetRaisedFromCStr(const char *kind, const char *message) {
  ((void (*)(const char *, const char *))__TVMFFIErrorSetRaisedFromCStr)(kind, message);
}
void TVMFFIErrorSetRaisedFromCStrParts(const char *kind, const char **parts, int32_t count) {
  variants[selected].fail_parts(kind, parts, count);
}

API int NAME_variant_count(void) { return VARIANT_COUNT; }

API const char *NAME_variant_name(int number) {
  return number < 0 || number >= VARIANT_COUNT ? NULL : variants[number].name;
}

API int NAME_variant(void) {
  int number = active();
  return selection == CPEMBED_OK ? number : -1;
}

API const char *NAME_status_text(int status) {
  int number = active();
  if (selection != CPEMBED_OK && status == selection) return reason;
  if (status == CPEMBED_NO_VARIANT) return "no variant runs on this processor";
  switch (number) {
STATUS_TEXTS
  }
}

API int NAME_open(int threads, const char *weights_file, NAME_handle **handle) {
  int number = active();
  if (handle == NULL) return CPEMBED_BAD_ARGUMENT;
  *handle = NULL;
  if (selection != CPEMBED_OK) return selection;
  switch (number) {
OPENS
  }
}
FORWARDS
