"""Layouts of a graph's tensors in main memory, as the programs of a network find them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from cpembed.accelerator.operators.forms import GraphTensor
from cpembed.accelerator.program import MainTensor
from cpembed.graph.kinds.base import TensorType

LayoutKey = tuple[GraphTensor, tuple[int, ...], tuple[tuple[int, int], ...]]
"""Shape of a graph's tensor in a specification, with the order and the blocks of its layout."""


@dataclass(frozen=True)
class GraphLayout:
    """Tensor of a graph as a specification has it, in a layout in main memory."""

    tensor: GraphTensor
    layout: MainTensor

    @staticmethod
    def row_major(name: str, kind: TensorType) -> GraphLayout:
        """Return a graph's tensor as a caller's array has it."""
        layout = MainTensor.dense(name, kind.shape, kind.dtype, "temporary")
        return GraphLayout(GraphTensor.unchanged(name, kind.shape), layout)

    @property
    def key(self) -> LayoutKey:
        """Part of it that layouts share which differ in margins alone."""
        return self.tensor, self.layout.order, tuple(sorted(self.layout.blocks.items()))

    def numbers(self) -> NDArray[np.int64]:
        """Return the number, from 1, of the graph's element at each position; 0 in margins."""
        shape = self.tensor.graph_shape
        elements = np.arange(1, math.prod(shape) + 1).reshape(shape)
        return replace(self.layout, dtype="int64", fill=0).buffer(self.tensor.logical(elements))

    def has_bytes_of(self, needed: GraphLayout) -> bool:
        """True if its buffer is one of another layout of the same elements, margins included."""
        first, second = self.layout, needed.layout
        if (first.elements, first.dtype) != (second.elements, second.dtype):
            return False
        numbers = self.numbers()
        has_fill = first.fill == second.fill or bool(numbers.all())
        return has_fill and np.array_equal(numbers, needed.numbers())


def merged_layout(layouts: Sequence[MainTensor]) -> MainTensor:
    """Return a layout that serves all of some layouts of tensors of one shape.

    The order of the first is kept, with the largest margins of all.
    """
    first = layouts[0]
    return replace(
        first,
        before=tuple(map(max, *(layout.before for layout in layouts), first.before)),
        after=tuple(map(max, *(layout.after for layout in layouts), first.after)),
        fill=next((layout.fill for layout in layouts if layout.fill), first.fill),
    )
