"""Static AArch64 Linux executables that call a kernel once, made of an object file without a linker
or a C library.

An image holds the kernel's code, its arguments and the buffers that these are; its start
(:data:`START`) makes the call and writes the buffers to standard output, as the kernel left them.

Sources: ELF for the Arm 64-bit Architecture (Arm IHI 0056) and the System V ABI, for the file;
Linux's include/uapi/asm-generic/unistd.h, for the system calls; tvm/ffi/c_api.h and dlpack.h, for
the arguments of a compiled function.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from cpembed.targets.arm.relocations import relocated

Array = NDArray[Any]

_CODE, _DATA = 0x400000, 0x40000000
"""Addresses: code may take the gigabyte between."""
_PAGE = 0x10000
"""Bytes: the largest page of an AArch64 kernel."""
_ALIGNMENT = 64
"""Bytes: kernels are compiled for buffers that start at a multiple."""

_CALL = "cpembed_call"

_START = f"""
  .globl _start
_start:
  sub sp, sp, #16
  adrp x19, {_CALL}
  add x19, x19, :lo12:{_CALL}
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

  .globl TVMFFIErrorSetRaisedFromCStrParts
TVMFFIErrorSetRaisedFromCStrParts:
  ret

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
"""
"""Behind ``cpembed_call`` lie the arguments' address and number, the buffers' address and bytes.
System calls: 64 write, 93 exit, 222 mmap, 215 munmap. The compiler calls the functions of memory; a
kernel the one of errors before it refuses its arguments by another result than 0, and those of
workspaces, whose bytes are kept in front of them."""

START = "\n".join(f'module asm "{line}"' for line in _START.splitlines() if line.strip())
"""The start of an image and what kernels call, in LLVM's language; a kernel that becomes an image
is compiled with it."""

_POINTERS = struct.Struct("<4Q")
_ARGUMENT = struct.Struct("<iiQ")
_TENSOR_KIND = 7
"""``kTVMFFIDLTensorPtr``."""
_TENSOR = struct.Struct("<QiiiBBHQQQqq")
"""DLTensor: data, device type and number, dimensions, type code, bits and lanes, shape, strides,
offset; behind it the shape and the stride of one dimension."""
_SHAPE = _TENSOR.size - 16
_CPU = 1
_TYPE_CODES: Mapping[str, int] = {"i": 0, "u": 1, "f": 2}


def image(kernel: bytes, buffers: Sequence[Array]) -> bytes:
    """The executable that calls a kernel, an object file compiled with :data:`START`, on flat
    buffers."""
    code, symbols = relocated(kernel, _CODE, {_CALL: _DATA})
    return _executable(symbols["_start"], code, _data(buffers))


def _data(buffers: Sequence[Array]) -> bytes:
    """The call's pointers, its arguments, their tensors, the buffers."""
    count = len(buffers)
    arguments = _DATA + _POINTERS.size
    tensors = arguments + count * _ARGUMENT.size
    begin = _aligned(tensors + count * _TENSOR.size)
    places = places_of(buffers)
    parts = [_POINTERS.pack(arguments, count, begin, places[-1])]
    at = [tensors + number * _TENSOR.size for number in range(count)]
    parts += [_ARGUMENT.pack(_TENSOR_KIND, 0, place) for place in at]
    for buffer, place, tensor in zip(buffers, places, at, strict=False):
        shape = tensor + _SHAPE
        kind = _TYPE_CODES[buffer.dtype.kind], 8 * buffer.dtype.itemsize, 1
        parts.append(
            _TENSOR.pack(begin + place, _CPU, 0, 1, *kind, shape, shape + 8, 0, buffer.size, 1)
        )
    parts.append(bytes(begin - tensors - count * _TENSOR.size))
    for buffer, place, end in zip(buffers, places, places[1:], strict=False):
        parts.append(buffer.tobytes().ljust(end - place, b"\0"))
    return b"".join(parts)


def places_of(buffers: Sequence[Array]) -> list[int]:
    """Where each buffer begins among what an image writes, and the end."""
    found = [0]
    for buffer in buffers:
        found.append(_aligned(found[-1] + buffer.nbytes))
    return found


def _aligned(place: int) -> int:
    return -(-place // _ALIGNMENT) * _ALIGNMENT


def _executable(start: int, code: bytes, data: bytes) -> bytes:
    """The file: headers, code, data, each in pages of its own."""
    header = struct.Struct("<16sHHIQQQIHHHHHH")
    segment = struct.Struct("<IIQQQQQQ")
    identity = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    sizes = (header.size, segment.size, 2, 0, 0, 0)
    head = header.pack(identity, 2, 183, 1, start, header.size, 0, 0, *sizes)
    behind = _PAGE - len(code) % _PAGE
    at = _PAGE + len(code) + behind
    segments = (
        # Loaded; code is writable, for the variables that lie among it.
        segment.pack(1, 7, _PAGE, _CODE, _CODE, len(code), len(code), _PAGE),
        segment.pack(1, 6, at, _DATA, _DATA, len(data), len(data), _PAGE),
    )
    return b"".join((head, *segments)).ljust(_PAGE, b"\0") + code + bytes(behind) + data
