/* What a kernel of a scratchpad machine may use. One text is run by every processing element (PE)
   of a mesh; each has memories of its own and reaches main memory by DMA only.

   The text defines

       void kernel(const struct arguments *a);

   Who ports it to a machine writes these functions in terms of that machine's own. The names beside
   them are those of SW26010: of its library athread, and of swATOP's primitives (Gao et al., ICPP
   2019, section 4.1 and appendix). A PE's memories are numbered from 0; SW26010 has one of
   64 KB, its SPM or LDM. All sizes are in bytes where nothing else is said. */
#ifndef SCRATCHPAD_H
#define SCRATCHPAD_H

#ifdef SCRATCHPAD_EXECUTOR
#include "on_this_host.h"
#else
#define INSTRUCTION
#endif

/* Element types of `gemm`; a text may name others before it includes this file. */
#ifndef ELEMENT_A
#define ELEMENT_A float
#endif
#ifndef ELEMENT_B
#define ELEMENT_B float
#endif
#ifndef ELEMENT_C
#define ELEMENT_C float
#endif

/* Base addresses in main memory: inputs, the output, then auxiliary buffers. */
struct arguments {
  void *operand[8];
};

#ifdef __cplusplus
extern "C" {
#endif

void kernel(const struct arguments *a);

/* The place of this PE in the mesh, from 0 (_ROW, _COL), and how many rows and columns there are. */
#define PE_ROW (scratchpad_place(0))
#define PE_COLUMN (scratchpad_place(1))
#define PE_ROWS (scratchpad_place(2))
#define PE_COLUMNS (scratchpad_place(3))
int scratchpad_place(int which);

/* Byte `offset` of this PE's memory `memory` (an array declared __thread_local). */
void *scratchpad(int memory, long offset);

/* DMA.

   A reply word counts the transfers that have ended (swReplyWord). It is a local variable of the
   kernel, 0 at first, and is only used through these functions. */
typedef volatile int dma_reply;

/* Start a transfer of `size` bytes, contiguous in the scratchpad; in main memory they are blocks of
   `block` bytes that begin `stride` bytes after each other. `block` divides `size`; addresses,
   sizes, and strides of more than one block are multiples of the machine's alignment
   (swDMA; athread_get and athread_put with bsize and stride, whose stride is the gap between blocks:
   `stride - block`).
   Until the transfer has been waited for, the target of a get must not be used, and the source of a
   put must not be changed; nor may another transfer use the same bytes of main memory unless both
   read them. */
void dma_get(void *to, const void *from, long size, long block, long stride, dma_reply *reply);
void dma_put(void *to, const void *from, long size, long block, long stride, dma_reply *reply);

/* Wait until `count` transfers have ended since the word was last waited for; then it is 0 again
   (swDMAWait). `count` is the number of all transfers that were started with the word: which of
   more have ended would not be known. */
void dma_wait(dma_reply *reply, int count);

/* Computing in scratchpads. */

/* Fill with zeros. */
void zero(void *at, long bytes);

/* C += A * B by all PEs together (spm_gemm with alpha = beta = 1); all of them call it with the same
   m, n, k, leading dimensions and variant.

   The sizes are those of the product of the whole mesh, of R rows and S columns. The PE in row r and
   column s holds block (r, s) of each matrix: m/R x k/S of A, k/R x n/S of B, m/R x n/S of C.
   Leading dimensions count elements of the PE's own block: between columns of a column-major block,
   between rows of a row-major one. In each step, the PEs of one column broadcast their A along
   their rows and the PEs of one row broadcast their B along their columns, by register
   communication, and every PE adds a product to its C.

   `variant` is a sum of the following; C is stored with the vectorised dimension contiguous, so
   column-major by default. The vectorised dimension of a PE's block is a multiple of the lanes. */
#define A_COLUMN_MAJOR 1
#define B_COLUMN_MAJOR 2
#define VECTORISED_OVER_N 4
#ifdef SCRATCHPAD_EXECUTOR
/* Of types that are structures, the text says the code itself. */
#ifndef ELEMENT_CODE_A
#define ELEMENT_CODE_A ELEMENT_CODE(ELEMENT_A)
#endif
#ifndef ELEMENT_CODE_B
#define ELEMENT_CODE_B ELEMENT_CODE(ELEMENT_B)
#endif
#define gemm(...) \
  scratchpad_gemm(__VA_ARGS__, ELEMENT_CODE_A, ELEMENT_CODE_B, ELEMENT_CODE(ELEMENT_C))
#else
void gemm(int m, int n, int k, const void *a, long lda, const void *b, long ldb, void *c, long ldc,
          int variant);
#endif

/* Where the machine has another instruction, the text defines it as a function

       static INSTRUCTION void NAME(...)

   that computes in plain C what the instruction does (a port puts the instruction there). It says
   what it reads and writes by calling the following before it does so; on a machine they are
   nothing. `touch_call` gives the call a name, and up to three sizes, for counters. */
#ifdef SCRATCHPAD_EXECUTOR
void touch_read(const void *at, long bytes);
void touch_write(void *at, long bytes);
void touch_call(const char *name, long m, long n, long k);
#else
static inline void touch_read(const void *at, long bytes) { (void)at, (void)bytes; }
static inline void touch_write(void *at, long bytes) { (void)at, (void)bytes; }
static inline void touch_call(const char *name, long m, long n, long k) {
  (void)name, (void)m, (void)n, (void)k;
}
#endif

/* The mesh.

   Register communication: a vector of `bytes` bytes, at most one of the machine's, goes to one PE of
   this row or column, or to all others of it (REG_PUTR, REG_PUTC; vlddr, vlddc). Each PE has a queue
   for its row and one for its column. A put waits while a receiver's queue is full; a get waits for
   a vector (REG_GETR, REG_GETC), which has to be of the same length. Vectors of one sender come in
   their order, those of several senders in any. */
#define ALL_OTHERS (-1)
void row_put(const void *vector, long bytes, int column);
void row_get(void *vector, long bytes);
void column_put(const void *vector, long bytes, int row);
void column_get(void *vector, long bytes);

/* Wait until all PEs are here (athread_syn). It does not wait for transfers. */
void sync_all(void);

#ifdef __cplusplus
}
#endif

#endif
