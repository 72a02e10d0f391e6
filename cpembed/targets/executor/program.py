"""A compiled text in this process: the memory of its arrays, its runs, the locations of faults."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import threading
import weakref
from _ctypes import dlclose
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from cpembed.errors import ExecutionFault
from cpembed.targets.executor.compiler import TextCompiler

Array = NDArray[Any]
T = TypeVar("T")

ALIGNMENT = 256
"""Alignment of arrays in bytes: that of a GPU's allocator, and a multiple of the transactions of
DMA engines."""

_GAP = 4096
"""Number of bytes between arrays, so that running off one does not end in another."""

_PLACE = re.compile(r"\{at:(\d+)\}")
_VARIABLE = re.compile(r"\{variable:(\d+):(\d+)\}")
_MAX_CODE_LENGTH = 60
"""Maximum number of characters of a source line in a message."""


@dataclass(frozen=True)
class Buffer:
    """An array in a kernel's memory, with the number of its argument."""

    argument: int
    address: int
    bytes: int
    array: Array


@dataclass(frozen=True, eq=False)
class Arena:
    """Memory of a run: copies of its arrays, aligned and with gaps between them."""

    kernel: str
    """Name of the kernel in messages."""
    bytes: NDArray[np.uint8]
    buffers: tuple[Buffer, ...]

    @staticmethod
    def with_copies(kernel: str, arrays: Sequence[tuple[int, Array]]) -> Arena:
        """Copy arrays, each with the number of its argument, into new memory."""
        offsets, end = list[int](), _GAP
        for _, array in arrays:
            offsets.append(end)
            end += -(-(array.nbytes + _GAP) // ALIGNMENT) * ALIGNMENT
        memory = np.empty(end + ALIGNMENT, np.uint8)
        base = -(-memory.ctypes.data // ALIGNMENT) * ALIGNMENT
        buffers = tuple(
            Buffer(number, base + offset, array.nbytes, array)
            for (number, array), offset in zip(arrays, offsets, strict=True)
        )
        arena = Arena(kernel, memory, buffers)
        for buffer in buffers:
            arena._bytes_of(buffer)[...] = np.frombuffer(buffer.array.tobytes(), np.uint8)
        return arena

    def copy_back(self) -> None:
        """Copy what the kernel wrote back into the arrays.

        Raises :class:`ExecutionFault` if it changed a read-only array.
        """
        for buffer in self.buffers:
            array = buffer.array
            values = self._bytes_of(buffer).view(array.dtype).reshape(array.shape)
            if array.flags.writeable:
                array[...] = values
            elif values.tobytes() != array.tobytes():
                raise ExecutionFault(
                    f"{self.kernel} writes argument {buffer.argument}, which is a read-only array"
                )

    def _bytes_of(self, buffer: Buffer) -> NDArray[np.uint8]:
        start = buffer.address - self.bytes.ctypes.data
        return self.bytes[start : start + buffer.bytes]


class LoadedText:
    """A compiled text, loaded into this process; it executes one run at a time."""

    def __init__(self, compiler: TextCompiler, source: str, library: Path) -> None:
        self.library = library
        self._file, self._source = compiler.file, source.split("\n")
        self._functions = ctypes.CDLL(str(library))
        # The runtime's stacks and memories are variables of the library: closing it frees them.
        weakref.finalize(self, dlclose, self._functions._handle)
        self._functions.executor_run.restype = ctypes.c_char_p
        self._lock = threading.Lock()

    def _execute(
        self,
        request: ctypes.Structure,
        arena: Arena,
        read_counters: Callable[[], T],
        fault_origin: Callable[[], str] = lambda: "",
    ) -> T:
        """Run a request of the runtime on the arrays of ``arena``, and return its counters.

        ``fault_origin`` tells after a fault which kernel and block it is from.
        """
        with self._lock:
            fault: bytes | None = self._functions.executor_run(ctypes.byref(request))
            if fault is not None:
                raise ExecutionFault(fault_origin() + self._located(fault.decode()))
            counters = read_counters()
        arena.copy_back()
        return counters

    def _located(self, fault: str) -> str:
        """Replace return addresses in a fault's message by source lines, and addresses of static
        memory by names of variables (``native/fault.h``).
        """
        return _VARIABLE.sub(self._variable, _PLACE.sub(self._line, fault))

    def _line(self, match: re.Match[str]) -> str:
        numbers = [
            n for n in _lines(self.library, self._file, int(match[1])) if n <= len(self._source)
        ]
        if not numbers:
            return "an unknown line"
        code = self._source[numbers[0] - 1].strip()
        if len(code) > _MAX_CODE_LENGTH:
            code = f"{code[: _MAX_CODE_LENGTH - 3]}..."
        caller = f"; from line {numbers[-1]}" if numbers[-1] != numbers[0] else ""
        return f"line {numbers[0]} ({code}{caller})"

    def _variable(self, match: re.Match[str]) -> str:
        first, last = map(int, match.groups())
        for start, size, name in _symbols(self.library):
            if start <= first < start + size:
                return f"bytes {first - start} to {last - start} of {name}"
        return "a static variable"


@lru_cache(maxsize=4096)
def _lines(library: Path, file: str, address: int) -> tuple[int, ...]:
    """Return the line of a call, then those of the inlined callers up to the kernel; empty without
    line tables.
    """
    numbers = list[int]()
    # The instruction before the return address is the call.
    for line in _tool_output("addr2line", "-i", "-e", str(library), hex(max(address - 1, 0))):
        name, _, rest = line.partition(":")
        digits = rest.split(" ")[0]
        if Path(name).name == file and digits.isdecimal() and int(digits):
            numbers.append(int(digits))
    return tuple(numbers)


@lru_cache(maxsize=64)
def _symbols(library: Path) -> tuple[tuple[int, int, str], ...]:
    """Return address, size in bytes and unqualified name of each variable."""
    variables = list[tuple[int, int, str]]()
    for line in _tool_output("nm", "-C", "-S", "--defined-only", str(library)):
        fields = line.split(" ", 3)
        if len(fields) == 4 and len(fields[1]) == len(fields[0]):
            name = fields[3].rpartition("::")[2]
            variables.append((int(fields[0], 16), int(fields[1], 16), name))
    return tuple(variables)


def _tool_output(name: str, *arguments: str) -> list[str]:
    """Return the lines that a tool of binutils or LLVM prints; empty if it is not installed."""
    tool = shutil.which(name) or shutil.which(f"llvm-{name}")
    if tool is None:
        return []
    command = [tool, *arguments]
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=False, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return process.stdout.splitlines()
