/* Whether this processor, and the operating system, have what the kernels need.

   Features by the names of /proc/cpuinfo, with their CPUID bits (Intel SDM volume 2A, CPUID; AMD
   APM volume 3, appendix E). The permission of AMX's tile data: Linux's
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

/* The status: the first feature that is lacking. */
static int lacking_feature(void) {
  uint32_t registers = 0;
  for (int k = 0; k < FEATURE_COUNT; k++) {
    if (!has_feature(feature_names[k])) return CPEMBED_LACKS_FEATURE + k;
    registers |= registers_of(feature_names[k]);
  }
  return saves_registers(registers) ? CPEMBED_OK : CPEMBED_REGISTERS_REFUSED;
}
#else
static int lacking_feature(void) { return CPEMBED_OK; }
#endif
