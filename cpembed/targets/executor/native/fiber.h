/* Fibers on one thread of the host: a stack each, and a switch that saves what a call preserves.

   x86-64 (System V ABI): rbx, rbp, r12-r15. AArch64 (AAPCS64): x19-x30, d8-d15. The rounding modes
   are never changed here, so they are not saved. */
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

#if !defined(__x86_64__) && !defined(__aarch64__)
#include <ucontext.h>
#endif

using FiberStart = void (*)();

#if defined(__x86_64__)

extern "C" void executor_switch(void **save, void *load);
asm(R"(
.text
.hidden executor_switch
.globl executor_switch
.type executor_switch,@function
executor_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size executor_switch,.-executor_switch
)");

/* The state of a fiber that starts when it is switched to. */
static inline void *fiber_start(char *top, FiberStart start) {
  void **slot = reinterpret_cast<void **>(reinterpret_cast<uintptr_t>(top) & ~uintptr_t{63});
  *--slot = nullptr;  // Where a return address of `start` would be: it keeps the ABI's alignment.
  *--slot = reinterpret_cast<void *>(start);
  for (int saved = 0; saved < 6; saved++) *--slot = nullptr;
  return slot;
}

#elif defined(__aarch64__)

extern "C" void executor_switch(void **save, void *load);
asm(R"(
.text
.hidden executor_switch
.globl executor_switch
.type executor_switch,%function
executor_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size executor_switch,.-executor_switch
)");

static inline void *fiber_start(char *top, FiberStart start) {
  char *state = reinterpret_cast<char *>(reinterpret_cast<uintptr_t>(top) & ~uintptr_t{63}) - 160;
  for (int slot = 0; slot < 20; slot++) reinterpret_cast<void **>(state)[slot] = nullptr;
  reinterpret_cast<void **>(state)[11] = reinterpret_cast<void *>(start);  // x30
  return state;
}

#else

/* Elsewhere by the C library; contexts stay where they were made, one a fiber. */
static inline void executor_switch(void **save, void *load) {
  ucontext_t here;
  *save = &here;
  swapcontext(&here, static_cast<ucontext_t *>(load));
}

static inline void *fiber_start(char *top, FiberStart start) {
  char *place = top - 8192;
  auto *context = reinterpret_cast<ucontext_t *>(reinterpret_cast<uintptr_t>(place) & ~uintptr_t{63});
  getcontext(context);
  context->uc_stack.ss_sp = reinterpret_cast<char *>(context) - 200 * 1024;
  context->uc_stack.ss_size = 200 * 1024;
  context->uc_link = nullptr;
  makecontext(context, start, 0);
  return context;
}

#endif

/* Stacks that are kept between runs, each above a page that nothing may touch. */
class Stacks {
 public:
  static constexpr size_t kBytes = size_t{1} << 18;

  /* The end of stack `number`. They begin at different cache sets, or fibers that stand at
     the same place of the kernel would evict each other. */
  char *top(size_t number) {
    while (stacks_.size() <= number) {
      void *made = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (made == MAP_FAILED) return nullptr;
      mprotect(made, static_cast<size_t>(sysconf(_SC_PAGESIZE)), PROT_NONE);
      stacks_.push_back(static_cast<char *>(made));
    }
    return stacks_[number] + kBytes - number % 32 * 1088;
  }
  const char *bottom(size_t number) const { return stacks_[number]; }
  ~Stacks() {
    for (char *stack : stacks_) munmap(stack, kBytes);
  }

 private:
  std::vector<char *> stacks_;
};
