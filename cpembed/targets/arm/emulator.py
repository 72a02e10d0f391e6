"""Kernels of AArch64 on another machine: each call is an executable that qemu emulates.

qemu executes the instructions one by one as the architecture defines them, so numbers are right
and times mean nothing. It emulates a core with every feature, or the one that ``QEMU_CPU`` names in
the environment (``cortex-a57`` has none of the extensions of our targets).

An executable, or image, is made of the kernel's object file without a linker or a C library. It
holds the code, the arguments and their buffers; its start (``start.s``) calls the kernel once and
writes the buffers to standard output.

Sources: ELF for the Arm 64-bit Architecture (Arm IHI 0056) and the System V ABI, for the file;
Linux's include/uapi/asm-generic/unistd.h, for the system calls; tvm/ffi/c_api.h and dlpack.h, for
the arguments of a compiled function.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.codegen.plan import KernelPlan, storage_dtype
from cpembed.codegen.runtime import ObjectFile, bits, compile_object
from cpembed.errors import BackendUnavailable, CrashError, InvariantError, LoweringError
from cpembed.steps import LIMIT_VARIABLE, time_limit

Array = NDArray[Any]

# ------------------------------------------------------------------------------ qemu

_NAMES = ("qemu-aarch64", "qemu-aarch64-static")
"""Names of the program in Debian's packages qemu-user and qemu-user-static."""
_CPU_VARIABLE = "QEMU_CPU"

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


@cache
def emulator() -> str | None:
    """Return the path of qemu; None if it is not installed."""
    return next(filter(None, map(shutil.which, _NAMES)), None)


def missing() -> str:
    """Return a message that tells what to install."""
    return f"{_NAMES[0]} is not installed (Debian and Ubuntu: apt install qemu-user)"


def emulate(executable: bytes, activity: str) -> bytes:
    """Return the standard output of an executable.

    Raises :class:`BackendUnavailable` without qemu, :class:`CrashError`, which names the
    ``activity``, if a signal ends the program or :func:`~cpembed.steps.time_limit` passes, and
    :class:`InvariantError` if the kernel rejects its arguments.
    """
    program = emulator()
    if program is None:
        raise BackendUnavailable(missing())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel"
        path.write_bytes(executable)
        path.chmod(0o700)
        try:
            process = subprocess.run(
                [program, str(path)],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=time_limit(),
                check=False,
                preexec_fn=_end_with_parent,
            )
        except subprocess.TimeoutExpired:
            raise CrashError.too_long(activity, LIMIT_VARIABLE) from None
    code = process.returncode
    if code == 0:
        return process.stdout
    if code > 0:
        raise InvariantError(f"{activity} ended in exit code {code}: please report it")
    core = os.environ.get(_CPU_VARIABLE)
    reason = f"the emulated core {core or 'of qemu'} lacks an instruction of the kernel"
    raise CrashError.from_exit(activity, code, reason if code == -signal.SIGILL else "")


def _end_with_parent() -> None:
    # A worker that is killed cannot end its children itself.
    if sys.platform == "linux":
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


# ------------------------------------------------------------------------------ kernels

TRIPLE = "aarch64-linux-gnu"


class Function:
    """Compiled kernel over flat arrays."""

    def __init__(self, kernel: ObjectFile, name: str) -> None:
        self._kernel = kernel
        self._name = name

    def __call__(self, *buffers: Array) -> None:
        """Execute the kernel; raises the errors of :func:`emulate`."""
        activity = f"running the {self._name} kernel"
        contents = emulate(image(self._kernel.contents, buffers), activity)
        for buffer, offset in zip(buffers, _buffer_offsets(buffers), strict=False):
            buffer[:] = np.frombuffer(contents, buffer.dtype, buffer.size, offset)

    def bound(self, *buffers: Array) -> Callable[[], None]:
        return partial(self, *buffers)

    def assembly(self) -> str:
        return self._kernel.assembly()


class EmulatedProcessor:
    """Core with the extensions that each kernel needs (:attr:`KernelPlan.attributes`)."""

    def thread_count(self) -> int:
        """Return 1: an image has no threads."""
        return 1

    def compile_plan(self, plan: KernelPlan) -> Function:
        """Compile a kernel with the start of an image."""
        with_start = replace(plan, functions=plan.functions + _start_module())
        return Function(compile_object(with_start, TRIPLE), plan.backend)

    def from_array(self, array: Array) -> Array:
        return bits(array).reshape(-1).copy()

    def empty(self, elements: int, dtype: str) -> Array:
        return np.zeros(elements, storage_dtype(dtype))

    def to_array(self, buffer: Array, shape: Sequence[int]) -> Array:
        return buffer.reshape(tuple(shape))


@cache
def _start_module() -> str:
    """Return ``start.s`` as inline assembly of an LLVM module."""
    text = (Path(__file__).parent / "start.s").read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return "\n".join(f'module asm "{line}"' for line in lines)


# ------------------------------------------------------------------------------ object files

# Entries of an object's tables, without fields that are not used here.
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

_SYMBOLS, _RELOCATIONS, _ZEROS = 2, 4, 8
"""Kinds of sections."""
_ALLOCATED = 2
"""Flag of a section that occupies memory."""
_WORD = 8
"""Number of bytes of an address."""

# Kinds of relocations: an address; a distance of 32 bits; a branch; the page of an address; its low
# 12 bits in an addition, or in a load or store, scaled by the logarithm of the access's bytes; page
# and low bits of a word that holds the address (the global offset table).
_ABSOLUTE, _DISTANCE, _CALLS, _PAGE, _LOW = 257, 261, (282, 283), 275, 277
_ACCESSES = {278: 0, 284: 1, 285: 2, 286: 3, 299: 4, 312: 3}
_GOT_PAGE, _GOT_LOW = 311, 312


class _Object:
    """Tables of an object file, and the addresses of its sections in the image."""

    def __init__(self, contents: bytes) -> None:
        self._contents = contents
        # e_shoff and e_shnum of the ELF header.
        (start,) = struct.unpack_from("<Q", contents, 40)
        (count,) = struct.unpack_from("<H", contents, 60)
        self.sections = np.frombuffer(contents, _SECTION, count, start)
        self.allocated = [n for n, s in enumerate(self.sections) if s["flags"] & _ALLOCATED]
        table = next(section for section in self.sections if section["kind"] == _SYMBOLS)
        self.symbols = self._table(table, _SYMBOL)
        self._names = int(self.sections[table["link"]]["offset"])
        self.addresses: dict[int, int] = {}

    def _table(self, section: Any, entry: np.dtype[Any]) -> NDArray[Any]:
        count = int(section["size"]) // entry.itemsize
        return np.frombuffer(self._contents, entry, count, int(section["offset"]))

    def placed(self, base: int) -> bytearray:
        """Return the allocated sections from an address on, before any relocation."""
        code = bytearray()
        for number in self.allocated:
            section = self.sections[number]
            code += bytes(-len(code) % max(_WORD, int(section["alignment"])))
            self.addresses[number] = base + len(code)
            size, offset = int(section["size"]), int(section["offset"])
            is_zero = section["kind"] == _ZEROS
            code += bytes(size) if is_zero else self._contents[offset : offset + size]
        return code + bytes(-len(code) % _WORD)

    def relocations(self) -> list[tuple[int, NDArray[Any]]]:
        """Return the relocations of each allocated section, with its number."""
        tables = [section for section in self.sections if section["kind"] == _RELOCATIONS]
        numbered = [(int(section["info"]), section) for section in tables]
        return [(n, self._table(s, _RELOCATION)) for n, s in numbered if n in self.allocated]

    def name(self, symbol: Any) -> str:
        start = self._names + int(symbol["name"])
        return self._contents[start : self._contents.index(b"\0", start)].decode()

    def address(self, symbol: Any) -> int | None:
        """Return a symbol's address; None if it is undefined, or occupies no memory."""
        section = self.addresses.get(int(symbol["section"]))
        return None if section is None else section + int(symbol["value"])

    def defined(self) -> dict[str, int]:
        """Return the addresses of all symbols that have a name and one."""
        pairs = ((self.name(symbol), self.address(symbol)) for symbol in self.symbols)
        return {name: address for name, address in pairs if name and address is not None}


def _relocated(
    contents: bytes, base: int, external: Mapping[str, int]
) -> tuple[bytes, dict[str, int]]:
    """Return an object's sections from an address on, and the addresses of its symbols.

    ``external`` are the addresses of symbols outside the object. Raises :class:`LoweringError` for
    a symbol that is nowhere.
    """
    file = _Object(contents)
    code = file.placed(base)
    symbols = file.defined()
    # TVM finds the functions of its runtime by variables ``__NAME``, which a loader would set.
    for name, address in symbols.items():
        if f"__{name}" in symbols:
            struct.pack_into("<Q", code, symbols[f"__{name}"] - base, address)
    got: dict[int, int] = {}
    for number, entries in file.relocations():
        for entry in entries:
            symbol, kind = file.symbols[entry["symbol"]], int(entry["kind"])
            value = file.address(symbol)
            if value is None:
                value = external.get(file.name(symbol))
            if value is None:
                raise LoweringError(
                    f"the kernel needs {file.name(symbol)}, which an image does not provide"
                )
            value += int(entry["addend"])
            if kind in (_GOT_PAGE, _GOT_LOW):
                if value not in got:
                    got[value] = base + len(code)
                    code += struct.pack("<Q", value)
                value = got[value]
            place = file.addresses[number] + int(entry["offset"])
            _patch(code, place - base, kind, value, place)
    return bytes(code), symbols


def _patch(code: bytearray, offset: int, kind: int, value: int, place: int) -> None:
    """Insert an address into the instruction or word at an offset, which executes at ``place``."""
    if kind == _ABSOLUTE:
        struct.pack_into("<Q", code, offset, value)
        return
    (word,) = struct.unpack_from("<I", code, offset)
    if kind == _DISTANCE:
        word = value - place & 0xFFFFFFFF
    elif kind in _CALLS:
        word |= (value - place) >> 2 & 0x3FFFFFF
    elif kind in (_PAGE, _GOT_PAGE):
        # ADRP has the lowest two bits of the distance at bit 29, the others at bit 5.
        pages = (value >> 12) - (place >> 12)
        word |= (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5
    elif kind == _LOW:
        word |= (value & 0xFFF) << 10
    elif kind in _ACCESSES:
        word |= (value & 0xFFF) >> _ACCESSES[kind] << 10
    else:
        raise InvariantError(f"the compiler left a relocation of kind {kind}: please report it")
    struct.pack_into("<I", code, offset, word)


# ------------------------------------------------------------------------------ images

_CODE, _DATA = 0x400000, 0x40000000
"""Addresses of code and data: there is a gigabyte for code."""
_PAGE_BYTES = 0x10000
"""Number of bytes of the largest page of an AArch64 Linux."""
_ALIGNMENT = 64
"""Alignment of buffers in bytes, for which kernels are compiled."""

_CALL = "cpembed_call"
_POINTERS = struct.Struct("<4Q")
_ARGUMENT = struct.Struct("<iiQ")
_TENSOR_KIND = 7
"""Value of ``kTVMFFIDLTensorPtr``."""
# DLTensor: data, device type and number, dimensions, type code, bits and lanes, shape, strides,
# offset; behind it the shape and the stride of one dimension.
_TENSOR = struct.Struct("<QiiiBBHQQQqq")
_SHAPE_OFFSET = _TENSOR.size - 16
_CPU = 1
_TYPE_CODES: Mapping[str, int] = {"i": 0, "u": 1, "f": 2}


def image(kernel: bytes, buffers: Sequence[Array]) -> bytes:
    """Return the executable that calls a kernel, compiled with its start, on flat buffers."""
    code, symbols = _relocated(kernel, _CODE, {_CALL: _DATA})
    return _executable(symbols["_start"], code, _data(buffers))


def _data(buffers: Sequence[Array]) -> bytes:
    """Return the call's pointers, its arguments, their tensors and the buffers."""
    count = len(buffers)
    arguments = _DATA + _POINTERS.size
    tensors = arguments + count * _ARGUMENT.size
    first_buffer = _aligned(tensors + count * _TENSOR.size)
    offsets = _buffer_offsets(buffers)
    parts = [_POINTERS.pack(arguments, count, first_buffer, offsets[-1])]
    addresses = [tensors + number * _TENSOR.size for number in range(count)]
    parts += [_ARGUMENT.pack(_TENSOR_KIND, 0, address) for address in addresses]
    for buffer, offset, tensor in zip(buffers, offsets, addresses, strict=False):
        shape = tensor + _SHAPE_OFFSET
        dtype = _TYPE_CODES[buffer.dtype.kind], 8 * buffer.dtype.itemsize, 1
        data = first_buffer + offset
        parts.append(_TENSOR.pack(data, _CPU, 0, 1, *dtype, shape, shape + 8, 0, buffer.size, 1))
    parts.append(bytes(first_buffer - tensors - count * _TENSOR.size))
    for buffer, offset, end in zip(buffers, offsets, offsets[1:], strict=False):
        parts.append(buffer.tobytes().ljust(end - offset, b"\0"))
    return b"".join(parts)


def _buffer_offsets(buffers: Sequence[Array]) -> list[int]:
    """Return the offset of each buffer in an image's output, and the end."""
    # The same alignment as in memory, since the image writes the buffers as they lie there.
    offsets = [0]
    for buffer in buffers:
        offsets.append(_aligned(offsets[-1] + buffer.nbytes))
    return offsets


def _aligned(address: int) -> int:
    return -(-address // _ALIGNMENT) * _ALIGNMENT


def _executable(start: int, code: bytes, data: bytes) -> bytes:
    """Return the file: headers, code and data, each in pages of its own."""
    header = struct.Struct("<16sHHIQQQIHHHHHH")
    segment = struct.Struct("<IIQQQQQQ")
    identity = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    sizes = (header.size, segment.size, 2, 0, 0, 0)
    # Type 2 is an executable, machine 183 AArch64.
    head = header.pack(identity, 2, 183, 1, start, header.size, 0, 0, *sizes)
    padding = bytes(_PAGE_BYTES - len(code) % _PAGE_BYTES)
    data_offset = _PAGE_BYTES + len(code) + len(padding)

    def loaded(flags: int, offset: int, address: int, size: int) -> bytes:
        return segment.pack(1, flags, offset, address, address, size, size, _PAGE_BYTES)

    segments = (
        # Code is writable, for the variables that lie among it.
        loaded(7, _PAGE_BYTES, _CODE, len(code)),
        loaded(6, data_offset, _DATA, len(data)),
    )
    return b"".join((head, *segments)).ljust(_PAGE_BYTES, b"\0") + code + padding + data
