"""A plan with its C text: executed on this machine's processor, or saved for a port."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from cpembed.files import make_folder, write_whole
from cpembed.ir.dtypes import numpy_dtype
from cpembed.targets.scratchpad.boxes import Box
from cpembed.targets.scratchpad.emit import c_text
from cpembed.targets.scratchpad.executor import HEADER, Counters, Shape, compile_text
from cpembed.targets.scratchpad.lower import Axis
from cpembed.targets.scratchpad.machine import VECTOR_BYTES, ScratchpadMachine
from cpembed.targets.scratchpad.proof import require_proven
from cpembed.targets.scratchpad.schedule import Plan, check

Array = NDArray[Any]

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
        memories=machine.capacities,
        transaction_bytes=machine.engine.transaction_bytes,
        alignment_bytes=machine.alignment_bytes,
        fifo_depth=FIFO_DEPTH,
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
            array.flags.writeable = False
            arrays.append(array)
        output = product.output
        result = np.zeros(output.shape, numpy_dtype(output.dtype))
        arrays.append(result.reshape(-1))
        shape = shape_of(product.machine, output.element_bytes)
        self.counters = compile_text(self.text).run(shape, arrays, seed=seed)
        return result


def program(plan: Plan) -> ScratchpadProgram:
    """Return the program of a plan.

    Raises :class:`~cpembed.errors.LoweringError` for a plan that the machine does not have, and
    :class:`~cpembed.errors.InvariantError` for one that cannot be proven.
    """
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
    machine, elements = plan.product.machine, box.elements(plan.held)
    counts = [plan.count(axis) for axis in axes]
    packed = np.zeros((int(np.prod(counts)), machine.rows, machine.columns, elements), array.dtype)
    for number, tile in enumerate(itertools.product(*map(range, counts))):
        first = {a.name: t * plan.tile[a.name] for a, t in zip(axes, tile, strict=True)}
        held = {a.name: a.held(min(plan.tile[a.name], a.extent - first[a.name])) for a in axes}
        for row, column in np.ndindex(machine.rows, machine.columns):
            starts = {
                a.name: first[a.name] + held[a.name] * part_of(box, a, row, column) for a in axes
            }
            values = _box_values(box, array, starts, box.places({**plan.held, **held}))
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
    if axis.parts == 1 or cut is None or axis.lane not in cut:
        return 0
    place = row if cut[0] == axis.lane else column
    return place // axis.weight % axis.parts


def _box_values(box: Box, array: Array, first: Mapping[str, int], places: tuple[int, ...]) -> Array:
    """Return the values of a box each of whose dimensions one axis walks."""
    names = [next(iter(dimension.starts)) for dimension in box.dimensions]
    starts = [first[name] + np.arange(count) for name, count in zip(names, places, strict=True)]
    grid = dict(zip(names, np.meshgrid(*starts, indexing="ij"), strict=True))
    inside = np.ones(places, bool)
    index: list[Any] = []
    for expression, size in zip(box.operand.index, box.operand.shape, strict=True):
        coordinate = np.asarray(expression.evaluate(grid)) + np.zeros(places, np.int64)
        inside &= (coordinate >= 0) & (coordinate < size)
        index.append(np.clip(coordinate, 0, size - 1))
    for dimension, values in zip(box.dimensions, grid.values(), strict=True):
        inside &= values < dimension.size
    return np.where(inside, array[tuple(index)], array.dtype.type(0))


def save(artifact: ScratchpadProgram, path: Path) -> None:
    """Write ``kernel.c``, ``scratchpad.h`` and ``plan.json`` into a folder."""
    plan = artifact.plan
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
                "box_elements": box.elements(plan.held),
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
