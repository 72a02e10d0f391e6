"""Compiled CUDA text: its kernels are launched on arrays of this machine."""

from __future__ import annotations

import ctypes
import threading
import weakref
from _ctypes import dlclose
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from pathlib import Path

import numpy as np

from cpembed.errors import ExecutionFault
from cpembed.targets.cuda.executor.compiler import compiled
from cpembed.targets.cuda.executor.counters import Counters
from cpembed.targets.cuda.executor.memory import Argument, DeviceMemory
from cpembed.targets.cuda.executor.text import FILE, Text, prepared
from cpembed.targets.executor.locations import Locations

MOST_THREADS = 1024
MOST_SHARED_BYTES = 227 * 1024
"""Of a block, on the largest machine (compute capability 9.0)."""
MOST_BLOCKS = (2**31 - 1, 65535, 65535)


class Order(Enum):
    """In which order blocks, warps and lanes run wherever CUDA leaves it open. A seed, instead, is
    another order of blocks, and of warps and lanes between every two barriers."""

    FORWARD = 0
    REVERSE = 1


@dataclass(frozen=True)
class Launch:
    """A kernel, how many blocks of how many threads, and the bytes of dynamic shared memory."""

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int = 0


class _Buffer(ctypes.Structure):
    _fields_ = (
        ("base", ctypes.c_void_p),
        ("bytes", ctypes.c_uint64),
        ("argument", ctypes.c_int32),
    )


class _Launch(ctypes.Structure):
    _fields_ = (
        ("invoke", ctypes.c_void_p),
        ("arguments", ctypes.c_void_p),
        ("buffers", ctypes.c_void_p),
        ("buffer_count", ctypes.c_int32),
        ("order", ctypes.c_int32),
        ("seed", ctypes.c_uint64),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared_bytes", ctypes.c_uint32),
    )


class Program:
    """A compiled text. One launch at a time runs in it."""

    def __init__(self, source: str, text: Text, library: Path) -> None:
        self._text = text
        self.library = library
        self._locations = Locations(library, FILE, source.split("\n"))
        self._library = ctypes.CDLL(str(library))
        # Its stacks and what it knows of shared memory go with it.
        weakref.finalize(self, dlclose, self._library._handle)
        self._library.executor_run.restype = ctypes.c_char_p
        self._library.executor_block_of_fault.restype = ctypes.POINTER(ctypes.c_uint32 * 3)
        for name in ("executor_counter", "executor_function"):
            getattr(self._library, name).restype = ctypes.c_char_p
        self._lock = threading.Lock()

    @property
    def kernels(self) -> tuple[str, ...]:
        return tuple(self._text.kernels)

    def run(
        self, launch: Launch, arguments: Sequence[Argument], *, order: Order | int = Order.FORWARD
    ) -> Counters:
        """Launch a kernel on its arguments, in their order: an array for each pointer, which the
        kernel may change, and numbers. ``order``: of threads, or a seed of one.

        Arrays lie in the kernel's memory at multiples of 256 bytes, as a GPU's allocator puts them,
        and apart from each other. Raises :class:`ExecutionFault` where the launch cannot be made,
        or does what CUDA does not define.
        """
        self._require(launch)
        memory = DeviceMemory.of(launch.kernel, self._parameters(launch.kernel), arguments)
        buffers = (_Buffer * max(1, len(memory.arena.buffers)))(
            *(_Buffer(b.address, b.bytes, b.argument) for b in memory.arena.buffers)
        )
        request = _Launch(
            invoke=self._address(f"executor_invoke_{launch.kernel}"),
            arguments=memory.pointers,
            buffers=ctypes.addressof(buffers),
            buffer_count=len(memory.arena.buffers),
            order=order.value if isinstance(order, Order) else 2,
            seed=0 if isinstance(order, Order) else order % 2**64,
            grid=(ctypes.c_uint32 * 3)(*launch.grid),
            block=(ctypes.c_uint32 * 3)(*launch.block),
            shared_bytes=launch.shared_bytes,
        )
        with self._lock:
            fault: bytes | None = self._library.executor_run(ctypes.byref(request))
            if fault is not None:
                block = tuple(self._library.executor_block_of_fault().contents)
                where = f"{launch.kernel}, block {block}"
                raise ExecutionFault(f"{where}: {self._locations.said(fault.decode())}")
            counters = self._counters()
        memory.arena.copy_back()
        return counters

    def _require(self, launch: Launch) -> None:
        """Raise where a GPU would not launch it."""
        name, threads = launch.kernel, int(np.prod(launch.block))
        if name not in self._text.kernels:
            raise ExecutionFault(
                f"there is no kernel {name} in the text; it has {', '.join(self.kernels)}"
            )
        most = self._text.kernels[name] or MOST_THREADS
        if not 1 <= threads <= min(most, MOST_THREADS) or min(launch.block) < 1:
            raise ExecutionFault(
                f"{name} cannot be launched with blocks of {launch.block} threads: at most "
                f"{min(most, MOST_THREADS)}"
            )
        if any(not 1 <= n <= most for n, most in zip(launch.grid, MOST_BLOCKS, strict=True)):
            raise ExecutionFault(f"{name} cannot be launched with a grid of {launch.grid} blocks")
        if not 0 <= launch.shared_bytes <= MOST_SHARED_BYTES:
            raise ExecutionFault(
                f"{name} cannot be launched with {launch.shared_bytes} bytes of dynamic shared "
                f"memory: at most {MOST_SHARED_BYTES}"
            )

    def _address(self, function: str) -> int | None:
        return ctypes.cast(getattr(self._library, function), ctypes.c_void_p).value

    def _parameters(self, kernel: str) -> list[tuple[str, int]]:
        """Kinds and sizes of a kernel's parameters."""
        kinds = getattr(self._library, f"executor_kinds_{kernel}")
        sizes = getattr(self._library, f"executor_sizes_{kernel}")
        kinds.restype, sizes.restype = ctypes.c_char_p, ctypes.POINTER(ctypes.c_int)
        return [(kind, sizes()[n]) for n, kind in enumerate(kinds().decode()[1:])]

    def _counters(self) -> Counters:
        calls = {name: n for name, n in self._counts("executor_function").items() if n}
        return Counters(calls, **self._counts("executor_counter"))

    def _counts(self, function: str) -> dict[str, int]:
        ask, found, value = getattr(self._library, function), dict[str, int](), ctypes.c_uint64()
        while name := ask(len(found), ctypes.byref(value)):
            found[name.decode()] = value.value
        return found


@lru_cache(maxsize=32)
def compile_text(source: str) -> Program:
    """A text of CUDA C++, compiled for this machine's processor with ``CPEMBED_EXECUTOR`` defined,
    and kept by its content.

    Raises :class:`~cpembed.errors.BackendUnavailable` without a C++ compiler,
    :class:`~cpembed.errors.LoweringError` where the text does not compile.
    """
    text = prepared(source)
    return Program(source, text, compiled(text.source))
