"""A plan with its C text, executed on this machine's processor."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.errors import BackendUnavailable
from cpembed.ir.dtypes import numpy_dtype
from cpembed.targets.scratchpad.boxes import Box
from cpembed.targets.scratchpad.emit import c_text
from cpembed.targets.scratchpad.executor import Counters, Shape, compile_text
from cpembed.targets.scratchpad.executor.compiler import TEXTS
from cpembed.targets.scratchpad.lower import Axis
from cpembed.targets.scratchpad.machine import ScratchpadMachine
from cpembed.targets.scratchpad.proof import require
from cpembed.targets.scratchpad.requirements import LANES_BYTES
from cpembed.targets.scratchpad.schedule import Plan, check

Array = NDArray[Any]

FIFO_DEPTH = 4
"""Vectors in a queue of the mesh; programs that need fewer run on any machine."""


def missing() -> tuple[str, ...]:
    """What this machine lacks, in words."""
    try:
        TEXTS.command()
    except BackendUnavailable as error:
        return (str(error),)
    return ()


def shape_of(machine: ScratchpadMachine, element_bytes: int = 4) -> Shape:
    """A machine, as it is executed."""
    return Shape(
        machine.rows,
        machine.columns,
        machine.capacities,
        machine.engine.transaction_bytes,
        machine.alignment_bytes,
        FIFO_DEPTH,
        LANES_BYTES // element_bytes if machine.sized else 1,
    )


@dataclass
class ScratchpadProgram:
    """The text of a plan; ``counters`` are those of its last run."""

    plan: Plan
    text: str
    counters: Counters | None = field(default=None)

    def run(self, inputs: Mapping[str, Array], seed: int = 0) -> Array:
        """The output, from inputs in their original layouts, by operand; ``seed``: in which order
        PEs run and transfers end."""
        product = self.plan.product
        arrays: list[Array] = []
        for box in self.plan.form.boxes[:2]:
            operand = box.operand
            array = np.ascontiguousarray(inputs[operand.tensor], numpy_dtype(operand.dtype))
            array = tiled(self.plan, box, array) if box.tiled else array.reshape(-1)
            array.flags.writeable = False
            arrays.append(array)
        output = product.output
        result = np.zeros(output.shape, numpy_dtype(output.dtype))
        arrays.append(result.reshape(-1))
        shape = shape_of(product.machine, output.element_bytes)
        self.counters = compile_text(self.text).run(shape, arrays, seed=seed)
        return arrays[-1].reshape(output.shape)


def program(plan: Plan) -> ScratchpadProgram:
    """Raises :class:`~cpembed.errors.LoweringError` for a plan that the machine has not, and
    :class:`~cpembed.errors.InvariantError` for one that cannot be proven."""
    require(check(plan))
    return ScratchpadProgram(plan, c_text(plan))


def tiled(plan: Plan, box: Box, array: Array) -> Array:
    """A constant operand, box after box: by tile in the order of the workload's axes, then by PE.

    Each begins where a whole box would; what lies outside of the operand is zero.
    """
    axes = [a for a in plan.product.axes.values() if a.name in box.operand.axes]
    machine, whole = plan.product.machine, box.elements(plan.held)
    counts = [plan.count(axis) for axis in axes]
    found = np.zeros((int(np.prod(counts)), machine.rows, machine.columns, whole), array.dtype)
    for number, tile in enumerate(itertools.product(*map(range, counts))):
        first = {a.name: t * plan.tile[a.name] for a, t in zip(axes, tile, strict=True)}
        held = {a.name: a.held(min(plan.tile[a.name], a.extent - first[a.name])) for a in axes}
        for row, column in np.ndindex(machine.rows, machine.columns):
            part = {
                a.name: first[a.name] + held[a.name] * part_of(box, plan, a, row, column)
                for a in axes
            }
            places = box.places({**plan.held, **held})
            values = _gathered(box, array, part, places)
            found[number, row, column, : values.size] = values.reshape(-1)
    return found.reshape(-1)


def part_of(box: Box, plan: Plan, axis: Axis, row: int, column: int) -> int:
    """Which part of an axis a PE holds of a box."""
    cut = box.operand.cut
    if axis.parts == 1 or cut is None or axis.lane not in cut:
        return 0
    place = row if cut[0] == axis.lane else column
    return place // axis.weight % axis.parts


def _gathered(box: Box, array: Array, first: Mapping[str, int], places: tuple[int, ...]) -> Array:
    """A box of an operand whose dimensions walk one axis each."""
    starts = {
        name: first[name] + np.arange(count)
        for name, count in zip(_walked(box), places, strict=True)
    }
    names = list(starts)
    grid = dict(zip(names, np.meshgrid(*starts.values(), indexing="ij"), strict=True))
    inside = np.ones(places, bool)
    index: list[Any] = []
    for expression, size in zip(box.operand.index, box.operand.shape, strict=True):
        at = np.asarray(expression.evaluate(grid)) + np.zeros(places, np.int64)
        inside &= (at >= 0) & (at < size)
        index.append(np.clip(at, 0, size - 1))
    for name, values in grid.items():
        inside &= values < next(d.size for d in box.dimensions if name in d.starts)
    return np.where(inside, array[tuple(index)], array.dtype.type(0))


def _walked(box: Box) -> Iterator[str]:
    for dimension in box.dimensions:
        yield next(iter(dimension.starts))
