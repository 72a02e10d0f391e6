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

import numpy as np
from numpy.typing import NDArray

from cpembed.errors import InvariantError, LoweringError

_SECTION = np.dtype(
    {
        "names": ["kind", "flags", "offset", "size", "link", "info", "alignment"],
        "formats": ["<u4", "<u8", "<u8", "<u8", "<u4", "<u4", "<u8"],
        "offsets": [4, 8, 24, 32, 40, 44, 48],
        "itemsize": 64,
    }
)
_SYMBOL = np.dtype(
    {
        "names": ["name", "section", "value"],
        "formats": ["<u4", "<u2", "<u8"],
        "offsets": [0, 6, 8],
        "itemsize": 24,
    }
)
_RELOCATION = np.dtype([("offset", "<u8"), ("kind", "<u4"), ("symbol", "<u4"), ("addend", "<i8")])
"""Entries of an object's tables, without what is not read here."""

_SYMBOLS, _RELOCATIONS, _ZEROS = 2, 4, 8
"""Kinds of section."""
_WORD = 8
"""Bytes of an address."""
_KEPT = 2
"""The flag of a section that takes memory."""

_ABSOLUTE, _DISTANCE, _CALLS, _PAGE, _LOW = 257, 261, (282, 283), 275, 277
_ADDRESS_PAGE, _ADDRESS_LOW = 311, 312
_ACCESSES = {278: 0, 284: 1, 285: 2, 286: 3, 299: 4, _ADDRESS_LOW: 3}
"""Kinds of relocation: an address; how far it is, in 32 bits; a branch; the page of an address and
its low 12 bits, in an addition, or in a load or store of so many bytes, by their logarithm; the
same of a word that holds an address."""


class _Object:
    """The tables of one file, and where in the image its sections lie."""

    def __init__(self, contents: bytes) -> None:
        self._bytes = contents
        (start,) = struct.unpack_from("<Q", contents, 40)
        (count,) = struct.unpack_from("<H", contents, 60)
        self.sections = np.frombuffer(contents, _SECTION, count, start)
        self.kept = [n for n, section in enumerate(self.sections) if section["flags"] & _KEPT]
        table = next(section for section in self.sections if section["kind"] == _SYMBOLS)
        self.symbols = self._table(table, _SYMBOL)
        self._names = int(self.sections[table["link"]]["offset"])
        self.places: dict[int, int] = {}

    def _table(self, section: Any, entry: np.dtype[Any]) -> NDArray[Any]:
        size = int(section["size"]) // entry.itemsize
        return np.frombuffer(self._bytes, entry, size, int(section["offset"]))

    def contents(self, number: int) -> bytes:
        section = self.sections[number]
        size = int(section["size"])
        if section["kind"] == _ZEROS:
            return bytes(size)
        return self._bytes[int(section["offset"]) :][:size]

    def relocations(self) -> list[tuple[int, NDArray[Any]]]:
        """Of each section that takes memory, by its number."""
        found = [section for section in self.sections if section["kind"] == _RELOCATIONS]
        numbered = [(int(section["info"]), section) for section in found]
        return [(n, self._table(s, _RELOCATION)) for n, s in numbered if n in self.kept]

    def name(self, symbol: Any) -> str:
        start = self._names + int(symbol["name"])
        return self._bytes[start : self._bytes.index(b"\0", start)].decode()

    def address(self, symbol: Any) -> int | None:
        """None where it is defined elsewhere, or takes no memory."""
        place = self.places.get(int(symbol["section"]))
        return None if place is None else place + int(symbol["value"])

    def defined(self) -> dict[str, int]:
        """Addresses by name, of what has one."""
        found = ((self.name(symbol), self.address(symbol)) for symbol in self.symbols)
        return {name: address for name, address in found if name and address is not None}


def relocated(
    contents: bytes, base: int, others: Mapping[str, int]
) -> tuple[bytes, dict[str, int]]:
    """An object's sections, from an address on, and the addresses of its symbols; ``others`` are
    symbols that lie elsewhere.

    A variable ``__NAME`` holds the address of the function ``NAME``, where both are defined: so TVM
    finds its runtime. Raises :class:`LoweringError` for a symbol that nothing here defines.
    """
    file = _Object(contents)
    code = _placed(file, base)
    symbols = file.defined()
    for name, place in symbols.items():
        if f"__{name}" in symbols:
            struct.pack_into("<Q", code, symbols[f"__{name}"] - base, place)
    words: dict[int, int] = {}
    for number, entries in file.relocations():
        for entry in entries:
            symbol, kind = file.symbols[entry["symbol"]], int(entry["kind"])
            value = file.address(symbol)
            if value is None:
                value = others.get(file.name(symbol))
            if value is None:
                raise LoweringError(
                    f"the kernel needs {file.name(symbol)}, which an image does not provide"
                )
            value += int(entry["addend"])
            if kind in (_ADDRESS_PAGE, _ADDRESS_LOW):
                if value not in words:
                    words[value] = base + len(code)
                    code += struct.pack("<Q", value)
                value = words[value]
            place = file.places[number] + int(entry["offset"])
            _patch(code, place - base, kind, value, place)
    return bytes(code), symbols


def _placed(file: _Object, base: int) -> bytearray:
    """The sections that take memory, one after the other, and nothing filled in."""
    code = bytearray()
    for number in file.kept:
        code += bytes(-len(code) % max(_WORD, int(file.sections[number]["alignment"])))
        file.places[number] = base + len(code)
        code += file.contents(number)
    return code + bytes(-len(code) % _WORD)


def _patch(code: bytearray, at: int, kind: int, value: int, place: int) -> None:
    """Fill an address into the instruction or the word ``at``, which lies at ``place``."""
    if kind == _ABSOLUTE:
        struct.pack_into("<Q", code, at, value)
        return
    (word,) = struct.unpack_from("<I", code, at)
    if kind == _DISTANCE:
        word = value - place & 0xFFFFFFFF
    elif kind in _CALLS:
        word |= (value - place) >> 2 & 0x3FFFFFF
    elif kind in (_PAGE, _ADDRESS_PAGE):
        pages = (value >> 12) - (place >> 12)
        word |= (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5
    elif kind == _LOW:
        word |= (value & 0xFFF) << 10
    elif kind in _ACCESSES:
        word |= (value & 0xFFF) >> _ACCESSES[kind] << 10
    else:
        raise InvariantError(f"the compiler left a relocation of kind {kind}: please report it")
    struct.pack_into("<I", code, at, word)


Array = NDArray[Any]

_CODE, _DATA = 0x400000, 0x40000000
"""Addresses: code may take the gigabyte between."""
_PAGE_BYTES = 0x10000
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
    buffers.
    """
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
    behind = _PAGE_BYTES - len(code) % _PAGE_BYTES
    at = _PAGE_BYTES + len(code) + behind
    segments = (
        # Loaded; code is writable, for the variables that lie among it.
        segment.pack(1, 7, _PAGE_BYTES, _CODE, _CODE, len(code), len(code), _PAGE_BYTES),
        segment.pack(1, 6, at, _DATA, _DATA, len(data), len(data), _PAGE_BYTES),
    )
    return b"".join((head, *segments)).ljust(_PAGE_BYTES, b"\0") + code + bytes(behind) + data
