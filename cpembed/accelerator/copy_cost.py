"""Cycles of the copies of all boxes of a tensor, from their sizes and the walks of the copies."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cpembed.accelerator.buffer_specs import BufferSpec
from cpembed.accelerator.template import Template
from cpembed.accelerator.transfers import copy_instructions
from cpembed.hw.isa import IsaInstruction
from cpembed.ir.index import IndexExpr


@dataclass(frozen=True)
class CopyCost:
    """Cycles of copying a buffer's boxes: which dimension each axis of the copy walks."""

    instruction: IsaInstruction
    walks: Mapping[str, tuple[int, int]]


@dataclass(frozen=True)
class Lengths:
    """Sizes of all boxes along one dimension, each with the number of boxes that have it."""

    sizes: tuple[tuple[Any, Any], ...]

    @staticmethod
    def of_index(index: IndexExpr, parts: Mapping[str, Sequence[tuple[Any, Any]]]) -> Lengths:
        """Return the lengths of an index whose axes have tiles of these sizes and counts."""
        sizes: list[tuple[Any, Any]] = []
        for combination in itertools.product(*(parts[t.iterator] for t in index.terms)):
            reach = [
                t.coefficient * (size - 1)
                for t, (size, _) in zip(index.terms, combination, strict=True)
            ]
            sizes.append((1 + sum(reach), math.prod(count for _, count in combination)))
        return Lengths(tuple(sizes))

    @property
    def total(self) -> Any:
        """Sum of the lengths of all boxes."""
        return sum(size * count for size, count in self.sizes)

    def chunks(self, chunk: int, step: int = 1) -> Any:
        """Return the number of chunks of all boxes, of elements a step in_steps or neighbours."""
        if step == 1:
            return sum(-(-size // chunk) * count for size, count in self.sizes)
        in_steps = sum(
            -(-np.maximum(0, size - first) // (step * chunk)) * count
            for size, count in self.sizes
            for first in range(step)
        )
        return np.minimum(in_steps, self.chunks(min(chunk, step)))


def copy_costs(template: Template, spec: BufferSpec, memories: tuple[str, str]) -> list[CopyCost]:
    """List the copies that can move a buffer, with the dimensions that their axes walk.

    The one with the fewest cycles for all of the tensor is first.

    Parameters
    ----------
    template : Template
    spec : BufferSpec
        The buffer.
    memories : (str, str)
        Names of the memories of the source and the destination; of a fill, the first one is empty.
    """
    lanes = [dimension for dimension, _ in reversed(spec.lanes)]
    box = [1 + e.bounds(template.extents)[1] - e.bounds(template.extents)[0] for e in spec.index]
    rows = [dimension for dimension in range(len(box)) if dimension not in lanes]
    options: list[tuple[float, int, CopyCost]] = []
    for copy in copy_instructions(template.machine):
        if copy.memories != memories or copy.dtype != spec.dtype:
            continue
        place = copy.instruction.places[
            copy.destination
            if memories[1] != template.machine.main.name
            else copy.source or copy.destination
        ]
        lane_axes = [a for a in copy.instruction.axes if a.name in {d.axis for d in place.lanes}]
        row_axes = [a for a in copy.instruction.axes if a not in lane_axes]
        lane_walks = dict(zip((a.name for a in reversed(lane_axes)), lanes, strict=False))
        count = min(len(rows), len(row_axes))
        for order in itertools.permutations(rows, count):
            axes = {a.name: d for a, d in zip(reversed(row_axes), order, strict=False)} | lane_walks
            extents = copy.instruction.extents
            cost = CopyCost(copy.instruction, {a: (d, extents[a]) for a, d in axes.items()})
            cycles = float(copy_cycles(cost, [Lengths(((size, 1),)) for size in box], spec.steps))
            options.append((cycles, len(options), cost))
    return [cost for _, _, cost in sorted(options, key=lambda option: option[:2])]


def copy_cycles(cost: CopyCost, lengths: Sequence[Lengths], steps: Mapping[int, int]) -> Any:
    """Return the cycles of all copies of boxes.

    Parameters
    ----------
    cost : CopyCost
    lengths : sequence of Lengths
        Sizes of the boxes along each dimension.
    steps : mapping of int to int
        Distance of elements in neighbouring rows, of dimensions where it is not 1.
    """
    total: Any = 0.0
    by_dimension = {dimension: (a, chunk) for a, (dimension, chunk) in cost.walks.items()}
    fixed = {a.name for a in cost.instruction.axes if a.is_fixed}
    for axes, coefficient in cost.instruction.cycles:
        product: Any = coefficient
        for dimension, length in enumerate(lengths):
            axis, chunk = by_dimension.get(dimension, ("", 1))
            if axis in axes and axis not in fixed:
                product = product * length.total
            else:
                parts = length.chunks(chunk, steps.get(dimension, 1) if chunk > 1 else 1)
                product = product * parts * (chunk if axis in axes else 1)
        total = total + product
    return total
