/* Whether this processor, and the operating system, have what kernels need.

   Features by the names of /proc/cpuinfo, with their CPUID bits (Intel SDM volume 2A, CPUID; AMD
   APM volume 3, appendix E), or those that Linux gives each process of an Arm core
   (arch/arm64/include/uapi/asm/hwcap.h). The permission of AMX's tile data: Linux's
   arch/x86/include/uapi/asm/prctl.h. */

#if defined(__x86_64__)
#include <cpuid.h>

enum { EAX, EBX, ECX, EDX };

static const struct { const char *name; uint32_t leaf, subleaf, word, bit; } known_features[] = {
  {"pni", 1, 0, ECX, 0}, {"pclmulqdq", 1, 0, ECX, 1}, {"ssse3", 1, 0, ECX, 9},
  {"fma", 1, 0, ECX, 12}, {"sse4_1", 1, 0, ECX, 19}, {"sse4_2", 1, 0, ECX, 20},
  {"movbe", 1, 0, ECX, 22}, {"popcnt", 1, 0, ECX, 23}, {"aes", 1, 0, ECX, 25},
  {"avx", 1, 0, ECX, 28}, {"f16c", 1, 0, ECX, 29},
  {"bmi1", 7, 0, EBX, 3}, {"avx2", 7, 0, EBX, 5}, {"bmi2", 7, 0, EBX, 8},
  {"avx512f", 7, 0, EBX, 16}, {"avx512dq", 7, 0, EBX, 17}, {"avx512ifma", 7, 0, EBX, 21},
  {"avx512cd", 7, 0, EBX, 28}, {"sha_ni", 7, 0, EBX, 29}, {"avx512bw", 7, 0, EBX, 30},
  {"avx512vl", 7, 0, EBX, 31},
  {"avx512vbmi", 7, 0, ECX, 1}, {"avx512_vbmi2", 7, 0, ECX, 6}, {"gfni", 7, 0, ECX, 8},
  {"vaes", 7, 0, ECX, 9}, {"vpclmulqdq", 7, 0, ECX, 10}, {"avx512_vnni", 7, 0, ECX, 11},
  {"avx512_bitalg", 7, 0, ECX, 12}, {"avx512_vpopcntdq", 7, 0, ECX, 14},
  {"avx512_vp2intersect", 7, 0, EDX, 8}, {"amx_bf16", 7, 0, EDX, 22},
  {"avx512_fp16", 7, 0, EDX, 23}, {"amx_tile", 7, 0, EDX, 24}, {"amx_int8", 7, 0, EDX, 25},
  {"avx_vnni", 7, 1, EAX, 4}, {"avx512_bf16", 7, 1, EAX, 5}, {"amx_fp16", 7, 1, EAX, 21},
  {"avx_ifma", 7, 1, EAX, 23}, {"avx_vnni_int8", 7, 1, EDX, 4},
  {"avx_ne_convert", 7, 1, EDX, 5}, {"amx_complex", 7, 1, EDX, 8},
  {"avx_vnni_int16", 7, 1, EDX, 10},
  {"abm", 0x80000001, 0, ECX, 5}, {"sse4a", 0x80000001, 0, ECX, 6},
  {"xop", 0x80000001, 0, ECX, 11}, {"fma4", 0x80000001, 0, ECX, 16},
  {"tbm", 0x80000001, 0, ECX, 21},
};

static int has_feature(const char *name) {
  for (size_t k = 0; k < sizeof known_features / sizeof *known_features; k++) {
    uint32_t words[4] = {0, 0, 0, 0};
    if (strcmp(known_features[k].name, name) != 0) continue;
    return __get_cpuid_count(known_features[k].leaf, known_features[k].subleaf, &words[0],
                             &words[1], &words[2], &words[3]) &&
           (words[known_features[k].word] >> known_features[k].bit & 1);
  }
  return 0;
}

/* Bits of XCR0: what a context switch has to save of the registers that features use. */
static uint32_t registers_of(const char *name) {
  if (strncmp(name, "amx", 3) == 0) return 0x60000;
  if (strncmp(name, "avx512", 6) == 0) return 0xe6;
  return strncmp(name, "avx", 3) == 0 || strncmp(name, "fma", 3) == 0 ? 0x6 : 0;
}

static int saves_registers(uint32_t wanted) {
  uint32_t a, b, c, d, low, high;
  if (wanted == 0) return 1;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 27 & 1)) return 0;
  __asm__ __volatile__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  if ((low & wanted) != wanted) return 0;
  /* Tile data is a process's by ARCH_REQ_XCOMP_PERM only. */
  return !(wanted & 0x40000) || syscall(SYS_arch_prctl, 0x1023, 18) == 0;
}

/* The status: the first of so many features that is lacking. */
static int lacking_of(const char *const names[], int count) {
  uint32_t registers = 0;
  for (int k = 0; k < count; k++) {
    if (!has_feature(names[k])) return CPEMBED_LACKS_FEATURE + k;
    registers |= registers_of(names[k]);
  }
  return saves_registers(registers) ? CPEMBED_OK : CPEMBED_REGISTERS_REFUSED;
}
#elif defined(__aarch64__)
#include <sys/auxv.h>

/* `word`: 0 for AT_HWCAP, 1 for AT_HWCAP2. */
static const struct { const char *name; uint32_t word, bit; } known_features[] = {
  {"fp", 0, 0}, {"asimd", 0, 1}, {"crc32", 0, 7}, {"atomics", 0, 8}, {"asimdhp", 0, 10},
  {"asimdrdm", 0, 12}, {"jscvt", 0, 13}, {"fcma", 0, 14}, {"lrcpc", 0, 15}, {"sha3", 0, 17},
  {"asimddp", 0, 20}, {"asimdfhm", 0, 23}, {"ilrcpc", 0, 26}, {"flagm", 0, 27},
  {"i8mm", 1, 13}, {"bf16", 1, 14}, {"cssc", 1, 34}, {"mops", 1, 43},
};

static int lacking_of(const char *const names[], int count) {
  const unsigned long words[2] = {getauxval(AT_HWCAP), getauxval(AT_HWCAP2)};
  for (int k = 0; k < count; k++) {
    int has = 0;
    for (size_t n = 0; n < sizeof known_features / sizeof *known_features; n++)
      if (strcmp(known_features[n].name, names[k]) == 0)
        has = (int)(words[known_features[n].word] >> known_features[n].bit & 1);
    if (!has) return CPEMBED_LACKS_FEATURE + k;
  }
  return CPEMBED_OK;
}
#else
static int lacking_of(const char *const names[], int count) {
  (void)names, (void)count;
  return CPEMBED_OK;
}
#endif

#ifdef FEATURE_COUNT
static int lacking_feature(void) { return lacking_of(feature_names, FEATURE_COUNT); }
#endif
