# Start of an image, and the functions that kernels call. System calls: 64 write, 93 exit, 222 mmap,
# 215 munmap. Behind cpembed_call lie four words: address and number of the arguments, address and
# bytes of the buffers.
  .globl _start
_start:
  sub sp, sp, #16
  adrp x19, cpembed_call
  add x19, x19, :lo12:cpembed_call
  ldp x1, x2, [x19]
  ldp x20, x21, [x19, #16]
  mov x0, xzr
  mov x3, sp
  bl __tvm_ffi_main
  cbnz w0, .Lfail
.Lwrite:
  mov x0, #1
  mov x1, x20
  mov x2, x21
  mov x8, #64
  svc #0
  cmp x0, #0
  b.le .Lfail
  add x20, x20, x0
  subs x21, x21, x0
  b.ne .Lwrite
  mov x0, xzr
.Lexit:
  mov x8, #93
  svc #0
.Lfail:
  mov x0, #1
  b .Lexit

# Called by a kernel before it rejects its arguments with a result other than 0.
  .globl TVMFFIErrorSetRaisedFromCStrParts
TVMFFIErrorSetRaisedFromCStrParts:
  ret

# The number of bytes, which munmap needs, is stored in a line in front of a workspace.
  .globl TVMBackendAllocWorkspace
TVMBackendAllocWorkspace:
  mov x0, xzr
  add x1, x2, #64
  mov x2, #3
  mov x3, #34
  mov x4, #-1
  mov x5, xzr
  mov x8, #222
  svc #0
  cmn x0, #4095
  b.hs .Lnone
  str x1, [x0], #64
  ret
.Lnone:
  mov x0, xzr
  ret

  .globl TVMBackendFreeWorkspace
TVMBackendFreeWorkspace:
  sub x0, x2, #64
  ldr x1, [x0]
  mov x8, #215
  svc #0
  mov x0, xzr
  ret

# The compiler calls the functions of memory.
  .globl memmove
memmove:
  cmp x0, x1
  b.ls .Lforward
  cbz x2, .Lmoved
  add x3, x0, x2
  add x1, x1, x2
.Lback:
  ldrb w4, [x1, #-1]!
  strb w4, [x3, #-1]!
  subs x2, x2, #1
  b.ne .Lback
.Lmoved:
  ret

  .globl memcpy
memcpy:
.Lforward:
  cbz x2, .Lcopied
  mov x3, x0
.Lcopy:
  ldrb w4, [x1], #1
  strb w4, [x3], #1
  subs x2, x2, #1
  b.ne .Lcopy
.Lcopied:
  ret

  .globl memset
memset:
  cbz x2, .Lset
  mov x3, x0
.Lbyte:
  strb w1, [x3], #1
  subs x2, x2, #1
  b.ne .Lbyte
.Lset:
  ret
