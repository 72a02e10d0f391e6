"""Programs of scratchpad machines, executed on this machine's processor or saved for a port.

The executor counts transfers and checks for what a machine leaves undefined. Processing elements
are fibers with memories of their own; transfers arrive early or late, and elements run in an order
that the seed selects. Results are :attr:`~cpembed.provenance.Provenance.EMULATED`: numbers and
counts are right, and nothing is timed. ``native/scratchpad.h`` is the interface that texts are
written to; the rest of ``native/`` is the runtime, in C++.
"""

from __future__ import annotations

import ctypes
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from cpembed.errors import ExecutionFault, LoweringError
from cpembed.files import make_folder, write_whole
from cpembed.ir.dtypes import as_stored, numpy_dtype
from cpembed.targets.executor.program import ALIGNMENT, Arena, Array, LoadedText, TextCompiler
from cpembed.targets.scratchpad.boxes import Axis, Box
from cpembed.targets.scratchpad.emit import c_text
from cpembed.targets.scratchpad.machine import VECTOR_BYTES, ScratchpadMachine
from cpembed.targets.scratchpad.schedule import Plan, check, require_proven

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
        ("per_byte", ctypes.c_int32),
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

    def run(
        self,
        shape: Shape,
        arrays: Sequence[Array],
        *,
        seed: int = 0,
        per_byte: Sequence[int] = (),
    ) -> Counters:
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
        per_byte
            For each array, elements that share a byte of the machine, though each has one here:
            bytes and transactions are counted as the machine's. Default: 1.

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
            *(
                _Array(b.address, b.bytes, b.array.flags.writeable, shared)
                for b, shared in zip(arena.buffers, per_byte or [1] * len(arrays), strict=True)
            )
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
    """Compile C that includes ``scratchpad.h`` for this machine's processor.

    ``SCRATCHPAD_EXECUTOR`` is defined. Raises :class:`~cpembed.errors.BackendUnavailable` without a
    C++ compiler and :class:`~cpembed.errors.LoweringError` if the text does not compile.
    """
    # Without it the library would compile, and fail when it is loaded.
    if not _KERNEL.search(source):
        raise LoweringError(
            "the scratchpad text has no kernel: void kernel(const struct arguments *)"
        )
    return Program(source, COMPILER.compile(source))


FIFO_DEPTH = 4
"""Number of vectors in a queue of the mesh; programs that need fewer run on any machine."""

INSTRUCTIONS = (
    "kernel.c is run by every processing element; scratchpad.h says what it needs of the machine, "
    "and the names of SW26010's own functions beside each; plan.json says how operands lie in main "
    "memory"
)
"""Message to a user about the saved files."""


def shape_of(machine: ScratchpadMachine, element_bytes: int = 4) -> Shape:
    """Return the emulated shape of a machine; ``element_bytes`` are those of a vector's element."""
    return Shape(
        rows=machine.rows,
        columns=machine.columns,
        memories=tuple(
            size * scale for size, scale in zip(machine.capacities, machine.spread, strict=True)
        ),
        transaction_bytes=machine.engine.transaction_bytes,
        alignment_bytes=machine.alignment_bytes,
        fifo_depth=FIFO_DEPTH,
        # An instruction of fixed size is plain C and uses no vectors of the mesh.
        lanes=VECTOR_BYTES // element_bytes if machine.sized else 1,
    )


@dataclass
class ScratchpadProgram:
    """The text of a plan, with the counters of its last run."""

    plan: Plan
    text: str
    counters: Counters | None = None

    def run(self, inputs: Mapping[str, Array], seed: int = 0) -> Array:
        """Return the output.

        ``inputs`` are in their original layouts, by tensor; ``seed`` is that of the order in which
        PEs run and transfers end.
        """
        product = self.plan.product
        arrays: list[Array] = []
        for box in self.plan.form.boxes[:2]:
            operand = box.operand
            array = np.ascontiguousarray(inputs[operand.tensor], numpy_dtype(operand.dtype))
            array = in_tiles(self.plan, box, array) if box.tiled else array.reshape(-1)
            # The executor reports a kernel that writes a read-only array.
            array = as_stored(array)
            array.flags.writeable = False
            arrays.append(array)
        output = product.output
        result = np.zeros(output.shape, numpy_dtype(output.dtype))
        arrays.append(as_stored(result.reshape(-1)))
        shape = shape_of(product.machine, output.element_bytes)
        shared = [operand.per_byte for operand in product.operands]
        counters = compile_text(self.text).run(shape, arrays, seed=seed, per_byte=shared)
        peaks = zip(counters.peaks, product.machine.spread, strict=True)
        self.counters = replace(counters, peaks=tuple(-(-peak // scale) for peak, scale in peaks))
        return result


def program(plan: Plan) -> ScratchpadProgram:
    """Return the program of a plan.

    Raises :class:`~cpembed.errors.LoweringError` for a plan that the machine does not have, and
    :class:`~cpembed.errors.InvariantError` for one that cannot be proven.
    """
    # Before any text: a plan that covers a point twice would still be a program.
    require_proven(check(plan))
    return ScratchpadProgram(plan, c_text(plan))


def in_tiles(plan: Plan, box: Box, array: Array) -> Array:
    """Pack a constant operand.

    Parameters
    ----------
    plan
        Plan with the tiles.
    box
        Box of the operand.
    array
        Values in the original layout.

    Returns
    -------
    Array
        Box after box, in one dimension: by tile in the order of the workload's axes, then by PE.
        Each begins where a full box would; what lies outside of the operand is zero.
    """
    axes = [a for a in plan.product.axes.values() if a.name in box.operand.axes]
    machine, elements = plan.product.machine, box.elements(plan.pe_points)
    counts = [plan.count(axis) for axis in axes]
    # Each box has the room of a full one, so that its place follows from the number of the tile.
    packed = np.zeros((int(np.prod(counts)), machine.rows, machine.columns, elements), array.dtype)
    for number, tile in enumerate(itertools.product(*map(range, counts))):
        first = {a.name: t * plan.tile[a.name] for a, t in zip(axes, tile, strict=True)}
        points = {
            a.name: a.points_per_pe(min(plan.tile[a.name], a.extent - first[a.name])) for a in axes
        }
        for row, column in np.ndindex(machine.rows, machine.columns):
            starts = {
                a.name: first[a.name] + points[a.name] * part_of(box, a, row, column) for a in axes
            }
            values = _box_values(box, array, starts, box.places({**plan.pe_points, **points}))
            packed[number, row, column, : values.size] = values.reshape(-1)
    return packed.reshape(-1)


def part_of(box: Box, axis: Axis, row: int, column: int) -> int:
    """Return the part of an axis that the PE at ``row`` and ``column`` holds in a box.

    Parameters
    ----------
    box
        Box of an operand.
    axis
        Axis of the workload.
    row, column
        Place of the PE in the mesh.
    """
    cut = box.operand.cut
    # What the mesh does not cut, all PEs of a row or column hold alike.
    if axis.parts == 1 or cut is None or axis.lane not in cut:
        return 0
    place = row if cut[0] == axis.lane else column
    return place // axis.weight % axis.parts


def _box_values(box: Box, array: Array, first: Mapping[str, int], places: tuple[int, ...]) -> Array:
    """Return the values of a box each of whose dimensions one axis walks, in rows where it has."""
    offsets = [
        np.arange(count) * (dimension.blocked or 1)
        for dimension, count in zip(box.dimensions, places, strict=True)
    ]
    points: dict[str, Any] = dict(first)
    inside = np.ones(places, bool)
    # Of an axis that is cut, one dimension counts blocks and another one the points of a block.
    for dimension, grid in zip(box.dimensions, np.meshgrid(*offsets, indexing="ij"), strict=True):
        for name in dimension.starts:
            points[name] = points[name] + grid
    index: list[Any] = []
    for expression, size in zip(box.operand.index, box.operand.shape, strict=True):
        coordinate = np.asarray(expression.evaluate(points)) + np.zeros(places, np.int64)
        inside &= (coordinate >= 0) & (coordinate < size)
        # Any element will do outside of the operand, where the value becomes zero below.
        index.append(np.clip(coordinate, 0, size - 1))
    for dimension in box.dimensions:
        # Points that only complete the last granule are none of the axis.
        for name in dimension.starts:
            inside &= points[name] < dimension.size
    values = np.where(inside, array[tuple(index)], np.zeros((), array.dtype))
    room = box.dimensions[-1].room if box.dimensions else 0
    if not room:
        return values
    rows = np.zeros((*places[:-1], room), array.dtype)
    rows[..., : places[-1]] = values
    return rows


def save(artifact: ScratchpadProgram, path: Path) -> None:
    """Write ``kernel.c``, ``scratchpad.h`` and ``plan.json`` into a folder.

    Raises :class:`~cpembed.errors.LoweringError` where elements share a byte.
    """
    plan = artifact.plan
    shared = [o for o in plan.product.operands if o.per_byte > 1]
    if shared:
        raise LoweringError(
            f"{shared[0].name} is of {shared[0].dtype}, of which {shared[0].per_byte} share a "
            "byte: they are emulated with a byte each, and such a text is not saved"
        )
    machine = plan.product.machine
    document = {
        "workload": str(plan.product.program.unfused),
        "instruction": plan.product.program.instruction.name,
        "machine": machine.name,
        "mesh": [machine.rows, machine.columns],
        "schedule": msgspec.to_builtins(plan.schedule),
        "scratchpads": [
            {"name": name, "used_bytes": used, "bytes": room}
            for name, used, room in zip(
                machine.memories, plan.used, machine.capacities, strict=True
            )
        ],
        "operands": [
            {
                "name": box.operand.name,
                "role": box.operand.role,
                "dtype": box.operand.dtype,
                "shape": list(box.operand.shape),
                "in_tiles": box.tiled,
                "box_elements": box.elements(plan.pe_points),
            }
            for box in plan.form.boxes
        ],
        "tiles_are": "by tile, in the order of the workload's axes that move the operand, then by "
        "row and column of the mesh; each box begins where a whole one would",
    }
    make_folder(path)
    write_whole(path / "kernel.c", artifact.text)
    write_whole(path / "scratchpad.h", HEADER.read_text(encoding="utf-8"))
    text = msgspec.json.format(msgspec.json.encode(document), indent=2)
    write_whole(path / "plan.json", text.decode() + "\n")
