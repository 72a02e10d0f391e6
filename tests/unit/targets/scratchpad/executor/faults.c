/* What a machine does not define, each with what it does define beside it: `bad` chooses. The line
   that a message names first is marked. */
#include "scratchpad.h"

#define CASE(name) static __attribute__((noinline)) void name(struct given g)
#define TARGET(at) dma_get(at, g.in, 256, 256, 0, &r)
#define PICK(wrong, right) (g.bad ? (wrong) : (right))

struct given {
  int bad, own;            // `own`: the number of this PE, of one or two.
  float *x, *y;            // In memory 0, which has 4096 bytes.
  const float *in;         // Operand 0, of 4096 numbers, which is read-only.
  float *out;              // Operand 1, of as many.
};

/* ------------------------------------------------------------------------------ one PE: bounds */

CASE(scratchpad_beyond) {
  scratchpad(0, PICK(4097, 4096));  // fault
}
CASE(no_memory) {
  scratchpad(PICK(2, 1), 0);  // fault
}
CASE(get_beyond) {
  dma_reply r = 0;
  long size = PICK(128, 96);
  dma_get(g.x + 1000, g.in, size, size, 0, &r);  // fault
  dma_wait(&r, 1);
}
CASE(store_beyond) {
  g.x[PICK(1024, 1023)] = 1;  // fault
}
CASE(zero_beyond) {
  zero(g.x, PICK(4100, 4096));  // fault
}
CASE(wild_store) {
  g.x[PICK(1L << 28, 0)] = 1;  // fault
}
CASE(main_beyond) {
  dma_reply r = 0;
  dma_get(g.x, g.in + PICK(4064, 4048), 128, 64, 128, &r);  // fault
  dma_wait(&r, 1);
}
CASE(main_before) {
  dma_reply r = 0;
  dma_get(g.x, g.in - PICK(1, 0), 128, 64, 128, &r);  // fault
  dma_wait(&r, 1);
}
CASE(no_operand) {
  dma_reply r = 0;
  dma_get(g.x, PICK((const void *)&g, g.in), 64, 64, 0, &r);  // fault
  dma_wait(&r, 1);
}
CASE(read_only) {
  dma_reply r = 0;
  zero(g.x, 64);
  dma_put(PICK((void *)g.in, g.out), g.x, 64, 64, 0, &r);  // fault
  dma_wait(&r, 1);
}

/* --------------------------------------------------------------------------- one PE: alignment */

CASE(misaligned_size) {
  dma_reply r = 0;
  long size = PICK(6, 8);
  dma_get(g.x, g.in, size, size, 0, &r);  // fault
  dma_wait(&r, 1);
}
CASE(misaligned_block) {
  dma_reply r = 0;
  dma_get(g.x, g.in, 12, PICK(6, 4), 64, &r);  // fault
  dma_wait(&r, 1);
}
CASE(misaligned_stride) {
  dma_reply r = 0;
  dma_get(g.x, g.in, 8, 4, PICK(10, 12), &r);  // fault
  dma_wait(&r, 1);
}
CASE(misaligned_near) {
  dma_reply r = 0;
  dma_get((char *)g.x + PICK(2, 4), g.in, 8, 8, 0, &r);  // fault
  dma_wait(&r, 1);
}
CASE(misaligned_far) {
  dma_reply r = 0;
  dma_get(g.x, (char *)g.in + PICK(2, 4), 8, 8, 0, &r);  // fault
  dma_wait(&r, 1);
}
CASE(broken_block) {
  dma_reply r = 0;
  dma_get(g.x, g.in, 64, PICK(24, 32), 64, &r);  // fault
  dma_wait(&r, 1);
}
CASE(short_stride) {
  dma_reply r = 0;
  dma_get(g.x, g.in, 64, 32, PICK(16, 32), &r);  // fault
  dma_wait(&r, 1);
}

/* --------------------------------------------------------- one PE: transfers that are under way */

CASE(zero_of_target) {
  dma_reply r = 0;
  TARGET(g.x);
  zero(g.x + PICK(63, 64), 4);  // fault
  dma_wait(&r, 1);
}
CASE(zero_into_target) {
  dma_reply r = 0;
  TARGET(g.x + 16);
  zero(g.x, PICK(68, 64));  // fault
  dma_wait(&r, 1);
}
CASE(load_of_target) {
  dma_reply r = 0;
  zero(g.y, 64);
  TARGET(g.x);
  volatile float got = *PICK(g.x + 3, g.y);  // fault
  dma_wait(&r, 1);
}
CASE(hook_on_target) {
  dma_reply r = 0;
  TARGET(g.x);
  if (g.bad) touch_read(g.x, 8);  // fault
  dma_wait(&r, 1);
}
CASE(put_of_target) {
  dma_reply r = 0, s = 0;
  TARGET(g.x);
  if (!g.bad) dma_wait(&r, 1);
  dma_put(g.out, g.x, 64, 64, 0, &s);  // fault
  dma_wait(&s, 1);
}
CASE(gemm_on_target) {
  dma_reply r = 0;
  zero(g.y, 64);
  TARGET(g.x);
  gemm(4, 4, 4, g.y, 4, PICK(g.x, g.y), 4, g.y, 4, 0);  // fault
  dma_wait(&r, 1);
}
CASE(two_gets_to_one_target) {
  dma_reply r = 0;
  TARGET(g.x);
  dma_get(g.x + PICK(63, 64), g.in, 64, 64, 0, &r);  // fault
  dma_wait(&r, 2);
}
CASE(get_to_source) {
  dma_reply r = 0;
  zero(g.x, 64);
  dma_put(g.out, g.x, 64, 64, 0, &r);
  dma_get(g.x + PICK(15, 16), g.in, 64, 64, 0, &r);  // fault
  dma_wait(&r, 2);
}
CASE(source_is_changed) {
  dma_reply r = 0;
  zero(g.x, 64);
  dma_put(g.out, g.x, 64, 64, 0, &r);
  g.x[PICK(15, 16)] = 1;  // fault
  dma_wait(&r, 1);
}
CASE(source_is_set) {
  dma_reply r = 0;
  zero(g.x, 64);
  dma_put(g.out, g.x, 64, 64, 0, &r);
  memset(g.x + PICK(15, 16), 0, 4);  // fault
  dma_wait(&r, 1);
}
static INSTRUCTION void secretly(float *x) { *x = 1; }
CASE(source_is_changed_secretly) {
  dma_reply r = 0;
  zero(g.x, 64);
  dma_put(g.out, g.x, 64, 64, 0, &r);  // fault
  secretly(g.x + PICK(15, 16));
  dma_wait(&r, 1);
}

CASE(secretly_beyond) {
  secretly(g.x + PICK(1024, 1023));
}
CASE(secretly_before) {
  secretly((float *)scratchpad(1, 0) - PICK(1, 0));
}

/* ----------------------------------------------------------- one PE: bytes that were not written */

CASE(put_never_written) {
  dma_reply r = 0;
  zero(g.x, 64);
  long size = PICK(68, 64);
  dma_put(g.out, g.x, size, size, 0, &r);  // fault
  dma_wait(&r, 1);
}
CASE(load_never_written) {
  zero(g.x, 64);
  volatile float got = g.x[PICK(16, 15)];  // fault
}
CASE(hook_never_written) {
  touch_write(g.x, 8);
  touch_read(g.x, PICK(9, 8));  // fault
}
CASE(gemm_never_written) {
  zero(g.x, PICK(60, 64));
  gemm(4, 4, 4, g.x, 4, g.x, 4, g.x, 4, 0);  // fault
}

/* -------------------------------------------------------------------------- one PE: reply words */

CASE(waits_for_more) {
  dma_reply r = 0;
  TARGET(g.x);
  dma_wait(&r, PICK(2, 1));  // fault
}
CASE(waits_again) {
  dma_reply r = 0;
  TARGET(g.x);
  dma_wait(&r, 1);
  if (g.bad) dma_wait(&r, 1);  // fault
}
CASE(waits_for_fewer) {
  dma_reply r = 0;
  TARGET(g.x);
  TARGET(g.y);
  dma_wait(&r, PICK(1, 2));  // fault
}
CASE(swapped_reply_words) {
  dma_reply r = 0, s = 0;
  TARGET(g.x);
  dma_wait(PICK(&s, &r), 1);  // fault
}
CASE(never_waited_for) {
  dma_reply r = 0;
  TARGET(g.x);  // fault
  if (!g.bad) dma_wait(&r, 1);
}
CASE(not_initialised) {
  dma_reply r = PICK(7, 0);
  TARGET(g.x);  // fault
  dma_wait(&r, 1);
}
CASE(shared_reply_word) {
  static dma_reply shared;
  dma_reply own = 0, *r = PICK(&shared, &own);
  dma_get(g.x, g.in, 64, 64, 0, r);  // fault
  dma_wait(r, 1);
}

/* ---------------------------------------------- one PE: two of its own transfers in main memory */

CASE(own_puts) {
  dma_reply r = 0;
  zero(g.x, 64);
  dma_put(g.out, g.x, 64, 64, 0, &r);
  dma_put(g.out + PICK(15, 16), g.x, 64, 64, 0, &r);  // fault
  dma_wait(&r, 2);
}
CASE(get_of_own_put) {
  dma_reply r = 0, s = 0;
  zero(g.x, 64);
  dma_put(g.out, g.x, 64, 64, 0, &r);
  if (!g.bad) dma_wait(&r, 1);
  dma_get(g.y, g.out, 64, 64, 0, &s);  // fault
  dma_wait(&s, 1);
}
CASE(put_over_own_get) {
  dma_reply r = 0;
  zero(g.x, 64);
  dma_get(g.y, g.out + 8, 64, 64, 0, &r);
  long size = PICK(64, 32);
  dma_put(g.out, g.x, size, size, 0, &r);  // fault
  dma_wait(&r, 2);
}
CASE(put_over_own_get_in_gaps) {
  dma_reply r = 0;
  zero(g.x, 64);
  dma_get(g.y, g.out + 4, 64, 16, 32, &r);
  dma_put(g.out + PICK(7, 0), g.x, 64, 16, 32, &r);  // fault
  dma_wait(&r, 2);
}

/* ------------------------------------------------------------ one PE: without the interface; gemm */

CASE(plain_load) {
  float own = 1;
  volatile float got = *PICK(g.in, &own);  // fault
}
CASE(plain_store) {
  float own;
  *(volatile float *)PICK(g.out, &own) = 1;  // fault
}
CASE(copy) {
  float own[16] = {0};
  memcpy(g.x, PICK(g.in, own), 64);  // fault
}
CASE(static_variable) {
  static int shared;
  int own;
  *(volatile int *)PICK(&shared, &own) = 1;  // fault
}
CASE(gemm_leading_dimension) {
  zero(g.x, 64);
  gemm(4, 4, 4, g.x, PICK(3, 4), g.x, 4, g.x, 4, 0);  // fault
}
CASE(gemm_variant) {
  zero(g.x, 64);
  gemm(4, 4, 4, g.x, 4, g.x, 4, g.x, 4, PICK(8, 7));  // fault
}
CASE(gemm_lanes) {
  zero(g.x, 256);
  gemm(PICK(6, 8), 4, 4, g.x, 4, g.x, 4, g.x, 8, 0);  // fault
}
CASE(gemm_sizes) {
  zero(g.x, 64);
  gemm(4, 4, PICK(0, 4), g.x, 4, g.x, 4, g.x, 4, 0);  // fault
}
CASE(gemm_beyond) {
  zero(g.x, 4096);
  gemm(4, 4, 4, g.x, 4, g.x, 4, g.x + PICK(1009, 1008), 4, 0);  // fault
}

/* ------------------------------------------------------------------ two PEs: order in main memory */

CASE(two_puts) {
  dma_reply r = 0;
  zero(g.x, 64);
  dma_put(g.out + g.own * PICK(8, 16), g.x, 64, 64, 0, &r);  // fault
  dma_wait(&r, 1);
}
CASE(get_of_another_put) {
  dma_reply r = 0;
  zero(g.x, 64);
  if (g.own) dma_put(g.out, g.x, 64, 64, 0, &r);
  dma_wait(&r, g.own);
  if (!g.bad) sync_all();
  if (!g.own) dma_get(g.x, g.out, 64, 64, 0, &r);
  dma_wait(&r, !g.own);
}
CASE(put_is_under_way_when_all_meet) {
  dma_reply r = 0, s = 0;
  zero(g.x, 64);
  if (g.own) dma_put(g.out, g.x, 64, 64, 0, &r);
  if (!g.bad) dma_wait(&r, g.own);
  sync_all();
  if (!g.own) dma_get(g.x, g.out, 64, 64, 0, &s);
  dma_wait(&s, !g.own);
  sync_all();
  if (g.bad) dma_wait(&r, g.own);
}
CASE(memory_of_another) {
  float *other = g.x;
  if (g.own == 0) row_put(&other, 8, 1);
  if (g.own == 1) row_get(&other, 8);
  zero(PICK(other, g.x), 4);  // fault
}

/* -------------------------------------------------------------------------------- two PEs: mesh */

CASE(nobody_puts) {
  float v[4] = {0};
  if (g.own == 0) row_get(v, 16);  // fault
  if (g.own == 1 && !g.bad) row_put(v, 16, 0);
}
CASE(nobody_gets) {
  float v[4] = {0};
  for (int i = 0; i < 3; i++) {
    if (g.own == 0) row_put(v, 16, 1);  // fault
    if (g.own == 1 && !g.bad) row_get(v, 16);
  }
}
CASE(queue_is_not_empty) {
  float v[4] = {0};
  if (g.own == 0) row_put(v, 16, ALL_OTHERS);  // fault
  if (g.own == 1 && !g.bad) row_get(v, 16);
}
CASE(queue_is_not_empty_at_a_gemm) {
  float v[4] = {0};
  zero(g.x, 1024);
  if (g.own == 0) row_put(v, 16, 1);  // fault
  if (g.own == 1 && !g.bad) row_get(v, 16);
  gemm(8, 8, 8, g.x, 8, g.x, 8, g.x, 8, 0);
  if (g.own == 1 && g.bad) row_get(v, 16);
}
CASE(other_lengths) {
  float v[4] = {0};
  if (g.own == 0) row_put(v, 16, 1);
  if (g.own == 1) row_get(v, PICK(8, 16));  // fault
}
CASE(to_itself) {
  float v[4] = {0};
  if (g.own == 0) row_put(v, 16, PICK(0, 1));  // fault
  if (g.own == 1) row_get(v, 16);
}
CASE(to_nobody) {
  float v[4] = {0};
  if (g.own == 0) row_put(v, 16, PICK(2, 1));  // fault
  if (g.own == 1) row_get(v, 16);
}
CASE(long_vector) {
  float v[9] = {0};
  if (g.own == 0) row_put(v, PICK(36, 32), 1);  // fault
  if (g.own == 1) row_get(v, 32);
}
CASE(vector_never_written) {
  if (!g.bad) zero(g.x, 8);
  if (g.own == 0) row_put(g.x, 8, 1);  // fault
  if (g.own == 1) row_get(g.x, 8);
}
CASE(not_all_meet) {
  if (g.own || !g.bad) sync_all();  // fault
}
CASE(meet_in_other_places) {
  zero(g.x, 1024);
  if (g.own && g.bad) sync_all();
  else gemm(8, 8, 8, g.x, 8, g.x, 8, g.x, 8, 0);  // fault
}
CASE(other_gemms) {
  zero(g.x, 1024);
  gemm(8, 8, PICK(8 + 8 * g.own, 8), g.x, 16, g.x, 16, g.x, 8, 0);  // fault
}

typedef void (*run)(struct given);
static const run cases[] = {CASES};

/* Operand 2: the number of a case, and whether it is the bad one. */
void kernel(const struct arguments *a) {
  int *told = scratchpad(1, 0);
  dma_reply r = 0;
  dma_get(told, a->operand[2], 8, 8, 0, &r);
  dma_wait(&r, 1);
  struct given g = {told[1], PE_ROW + PE_COLUMN, scratchpad(0, 0), scratchpad(0, 1024),
                    a->operand[0], a->operand[1]};
  cases[told[0]](g);
}
