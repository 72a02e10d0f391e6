"""A compiled kernel of a scratchpad machine, run on arrays of this machine."""

from __future__ import annotations

import ctypes
import re
import threading
import weakref
from _ctypes import dlclose
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from cpembed.errors import ExecutionFault, LoweringError
from cpembed.targets.executor.locations import Locations
from cpembed.targets.executor.memory import ALIGNMENT, Arena, Array
from cpembed.targets.scratchpad.executor.compiler import TEXTS
from cpembed.targets.scratchpad.executor.counters import Counters, decoded

MOST_OPERANDS = 8
"""Of ``struct arguments``."""
MOST_ELEMENTS = 4096
"""Processing elements, each with a stack of this process."""

_KERNEL = re.compile(r"^\s*void\s+kernel\s*\(", re.MULTILINE)


@dataclass(frozen=True)
class Shape:
    """A machine: ``rows`` x ``columns`` processing elements, with ``memories`` of so many bytes.

    ``transaction_bytes``: what main memory moves at once; ``alignment_bytes``: of the addresses and
    sizes of transfers; ``fifo_depth``: vectors that a queue of the mesh holds; ``lanes``: elements
    of a vector.
    """

    rows: int
    columns: int
    memories: tuple[int, ...]
    transaction_bytes: int
    alignment_bytes: int
    fifo_depth: int
    lanes: int = 1

    def __post_init__(self) -> None:
        numbers = (
            self.rows,
            self.columns,
            *self.memories,
            self.transaction_bytes,
            self.alignment_bytes,
            self.fifo_depth,
            self.lanes,
        )
        if not self.memories or min(numbers) < 1 or self.rows * self.columns > MOST_ELEMENTS:
            raise ExecutionFault(
                f"no machine has a shape of {self}: all of it is positive, and there are at most "
                f"{MOST_ELEMENTS} processing elements"
            )
        if ALIGNMENT % self.alignment_bytes or ALIGNMENT % self.transaction_bytes:
            raise ExecutionFault(
                f"transactions of {self.transaction_bytes} bytes, aligned to "
                f"{self.alignment_bytes}, cannot be executed: both have to divide {ALIGNMENT}"
            )


class _Shape(ctypes.Structure):
    _fields_ = (
        ("rows", ctypes.c_int32),
        ("columns", ctypes.c_int32),
        ("memories", ctypes.c_int32),
        ("fifo_depth", ctypes.c_int32),
        ("lanes", ctypes.c_int32),
        ("transaction_bytes", ctypes.c_int64),
        ("alignment_bytes", ctypes.c_int64),
        ("memory_bytes", ctypes.c_void_p),
    )


class _Array(ctypes.Structure):
    _fields_ = (
        ("base", ctypes.c_void_p),
        ("bytes", ctypes.c_int64),
        ("writable", ctypes.c_int32),
    )


class _Run(ctypes.Structure):
    _fields_ = (
        ("shape", _Shape),
        ("arrays", ctypes.c_void_p),
        ("array_count", ctypes.c_int32),
        ("seed", ctypes.c_uint64),
    )


class Program:
    """A compiled text. One run at a time is made in it."""

    def __init__(self, source: str, library: Path) -> None:
        self.library = library
        self._locations = Locations(library, TEXTS.file, source.split("\n"))
        self._library = ctypes.CDLL(str(library))
        weakref.finalize(
            self, dlclose, self._library._handle
        )  # Its stacks and memories go with it.
        self._library.executor_run.restype = ctypes.c_char_p
        self._library.executor_counters.restype = ctypes.c_char_p
        self._lock = threading.Lock()

    def run(self, shape: Shape, arrays: Sequence[Array], *, seed: int = 0) -> Counters:
        """Run the kernel on a machine; ``arrays`` are the operands of ``struct arguments``, which
        it may change where they are not read-only.

        ``seed``: of the order in which processing elements go on, and of when transfers arrive. The
        arrays lie in memory of their own at multiples of 256 bytes, apart from each other. Raises
        :class:`ExecutionFault` where the kernel does what the machine does not define.
        """
        if len(arrays) > MOST_OPERANDS:
            raise ExecutionFault(
                f"a kernel takes at most {MOST_OPERANDS} operands, and {len(arrays)} are given"
            )
        arena = Arena.of("the kernel", list(enumerate(arrays)))
        given = (_Array * max(1, len(arrays)))(
            *(_Array(b.address, b.bytes, b.array.flags.writeable) for b in arena.buffers)
        )
        memories = (ctypes.c_int64 * len(shape.memories))(*shape.memories)
        request = _Run(
            shape=_Shape(
                shape.rows,
                shape.columns,
                len(shape.memories),
                shape.fifo_depth,
                shape.lanes,
                shape.transaction_bytes,
                shape.alignment_bytes,
                ctypes.addressof(memories),
            ),
            arrays=ctypes.addressof(given),
            array_count=len(arrays),
            seed=seed % 2**64,
        )
        with self._lock:
            fault: bytes | None = self._library.executor_run(ctypes.byref(request))
            if fault is not None:
                raise ExecutionFault(self._locations.said(fault.decode()))
            counters = decoded(self._library.executor_counters().decode())
        arena.copy_back()
        return counters


@lru_cache(maxsize=32)
def compile_text(source: str) -> Program:
    """A text in C that includes ``scratchpad.h``, compiled for this machine's processor with
    ``SCRATCHPAD_EXECUTOR`` defined, and kept by its content.

    Raises :class:`~cpembed.errors.BackendUnavailable` without a C++ compiler,
    :class:`~cpembed.errors.LoweringError` where the text does not compile.
    """
    if not _KERNEL.search(source):
        raise LoweringError(
            "the scratchpad text has no kernel: void kernel(const struct arguments *)"
        )
    return Program(source, TEXTS.compiled(source))
