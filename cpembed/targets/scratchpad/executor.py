"""Execution of kernels of scratchpad machines on this machine's processor: results, counters, and
checks of what the machine leaves undefined.

Processing elements are fibers with memories of their own; transfers arrive early or late, and
elements run in an order that the seed selects. Results are
:attr:`~cpembed.provenance.Provenance.EMULATED`: numbers and counts are right, and nothing is timed.
``native/scratchpad.h`` is the interface that texts are written to; the rest of ``native/`` is the
runtime, in C++.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from cpembed.errors import ExecutionFault, LoweringError
from cpembed.targets.executor.program import ALIGNMENT, Arena, Array, LoadedText, TextCompiler

NATIVE = Path(__file__).parent / "native"
HEADER = NATIVE / "scratchpad.h"
"""Interface of texts, for those who port them."""

COMPILER = TextCompiler(
    kind="scratchpad",
    name="scratchpad_executor",
    folder_variable="CPEMBED_SCRATCHPAD_EXECUTOR_CACHE",
    file="kernel.c",
    language="c",
    native=NATIVE,
    options=(
        "-std=gnu11",
        "-fno-optimize-sibling-calls",  # A call's return address tells its line.
        "-DSCRATCHPAD_EXECUTOR=1",
        f"-I{NATIVE}",
    ),
)

MAX_OPERANDS = 8
"""Length of the array in ``struct arguments``."""
MAX_ELEMENTS = 4096
"""Maximum number of processing elements, each of which has a stack in this process."""

Direction = Literal["get", "put"]
"""Direction of a transfer: "get" is from main memory, "put" to it."""

_KERNEL = re.compile(r"^\s*void\s+kernel\s*\(", re.MULTILINE)


@dataclass(frozen=True)
class TransferCounts:
    """Counts of the transfers of one operand in one direction, over all processing elements.

    ``transactions`` are those of main memory that the blocks touch at their real addresses
    (swATOP, equation 1).
    """

    transfers: int = 0
    bytes: int = 0
    transactions: int = 0


@dataclass(frozen=True)
class Counters:
    """Counts of one run, over all processing elements."""

    moved: Mapping[tuple[int, Direction], TransferCounts]
    """Transfers by the operand's number and the direction."""
    gemms: Mapping[tuple[int, int, int, int], int]
    """Calls of ``gemm`` by m, n, k and variant; one for the whole mesh."""
    instructions: Mapping[tuple[str, int, int, int], int]
    """Calls of ``touch_call`` by its arguments; one for each processing element."""
    zeroed_bytes: int
    row_vectors: int
    """Vectors sent along rows, including those of ``gemm``; a broadcast is one."""
    column_vectors: int
    barriers: int
    peaks: tuple[int, ...]
    """Largest end of the used bytes in any processing element, by memory."""

    @property
    def bytes(self) -> int:
        return sum(counts.bytes for counts in self.moved.values())

    @property
    def transactions(self) -> int:
        return sum(counts.transactions for counts in self.moved.values())

    def to_json(self) -> dict[str, Any]:
        return {
            "moved": [
                {"operand": operand, "direction": direction, **vars(counts)}
                for (operand, direction), counts in self.moved.items()
            ],
            "gemms": [[*sizes, calls] for sizes, calls in self.gemms.items()],
            "instructions": [[*call, calls] for call, calls in self.instructions.items()],
            "zeroed_bytes": self.zeroed_bytes,
            "row_vectors": self.row_vectors,
            "column_vectors": self.column_vectors,
            "barriers": self.barriers,
            "peaks": list(self.peaks),
        }


def _read_counters(text: str) -> Counters:
    """Parse the runtime's lines (``native/counters.h``)."""
    moved: dict[tuple[int, Direction], TransferCounts] = {}
    gemms: dict[tuple[int, int, int, int], int] = {}
    instructions: dict[tuple[str, int, int, int], int] = {}
    totals: dict[str, int] = {}
    peaks: list[int] = []
    for line in text.splitlines():
        match line.split():
            case ["get" | "put" as direction, operand, *counts]:
                moved[int(operand), direction] = TransferCounts(*map(int, counts))
            case ["gemm", m, n, k, variant, calls]:
                gemms[int(m), int(n), int(k), int(variant)] = int(calls)
            case ["instruction", name, m, n, k, calls]:
                instructions[name, int(m), int(n), int(k)] = int(calls)
            case ["peak", end]:
                peaks.append(int(end))
            case [name, count]:
                totals[name] = int(count)
            case _:
                raise ValueError(line)
    return Counters(moved, gemms, instructions, **totals, peaks=tuple(peaks))


@dataclass(frozen=True)
class Shape:
    """A machine of ``rows`` x ``columns`` processing elements."""

    rows: int
    columns: int
    memories: tuple[int, ...]
    """Bytes of each memory of a processing element."""
    transaction_bytes: int
    """Bytes that main memory transfers at once."""
    alignment_bytes: int
    """Alignment of the addresses and sizes of transfers."""
    fifo_depth: int
    """Number of vectors that a queue of the mesh holds."""
    lanes: int = 1
    """Number of elements of a vector."""

    def __post_init__(self) -> None:
        numbers = (*self.memories, *(n for n in astuple(self) if isinstance(n, int)))
        if not self.memories or min(numbers) < 1 or self.rows * self.columns > MAX_ELEMENTS:
            raise ExecutionFault(
                f"no machine has a shape of {self}: all of it is positive, and there are at most "
                f"{MAX_ELEMENTS} processing elements"
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


class Program(LoadedText):
    """A compiled kernel."""

    def __init__(self, source: str, library: Path) -> None:
        super().__init__(COMPILER, source, library)
        self._functions.executor_counters.restype = ctypes.c_char_p

    def run(self, shape: Shape, arrays: Sequence[Array], *, seed: int = 0) -> Counters:
        """Run the kernel.

        Parameters
        ----------
        shape
            Machine to emulate.
        arrays
            Operands of ``struct arguments``, in its order; the kernel may change those that are
            not read-only. They are placed at multiples of 256 bytes with gaps between them.
        seed
            Seed of the order in which processing elements run and transfers arrive.

        Returns
        -------
        Counters
            Counts of this run.

        Raises
        ------
        ExecutionFault
            If the kernel does what the machine leaves undefined.
        """
        if len(arrays) > MAX_OPERANDS:
            raise ExecutionFault(
                f"a kernel takes at most {MAX_OPERANDS} operands, and {len(arrays)} are given"
            )
        arena = Arena.with_copies("the kernel", list(enumerate(arrays)))
        operands = (_Array * max(1, len(arrays)))(
            *(_Array(b.address, b.bytes, b.array.flags.writeable) for b in arena.buffers)
        )
        memories = (ctypes.c_int64 * len(shape.memories))(*shape.memories)
        request = _Run(
            shape=_Shape(
                rows=shape.rows,
                columns=shape.columns,
                memories=len(shape.memories),
                fifo_depth=shape.fifo_depth,
                lanes=shape.lanes,
                transaction_bytes=shape.transaction_bytes,
                alignment_bytes=shape.alignment_bytes,
                memory_bytes=ctypes.addressof(memories),
            ),
            arrays=ctypes.addressof(operands),
            array_count=len(arrays),
            seed=seed % 2**64,
        )
        return self._execute(
            request,
            arena,
            lambda: _read_counters(self._functions.executor_counters().decode()),
        )


@lru_cache(maxsize=32)
def compile_text(source: str) -> Program:
    """Compile C that includes ``scratchpad.h`` for this machine's processor, with
    ``SCRATCHPAD_EXECUTOR`` defined.

    Raises :class:`~cpembed.errors.BackendUnavailable` without a C++ compiler and
    :class:`~cpembed.errors.LoweringError` if the text does not compile.
    """
    if not _KERNEL.search(source):
        raise LoweringError(
            "the scratchpad text has no kernel: void kernel(const struct arguments *)"
        )
    return Program(source, COMPILER.compile(source))
