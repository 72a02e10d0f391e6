"""Which layouts each tensor of a network may lie in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import (
    Concat,
    Dequantize,
    Elementwise,
    Expand,
    Pad,
    Pool,
    Product,
    Quantize,
    Resize,
    Table,
    TensorType,
)
from cpembed.network.layout import Layout
from cpembed.network.physical_product import dimensions_of

CONVOLUTIONS = ("conv", "depthwise")
"""Parts of the names of computations whose operands are images: channels, then the image's axes."""

ALONG = (Elementwise, Table, Pool, Quantize, Dequantize, Concat, Resize, Pad, Expand)
"""Kinds that take the layouts of their inputs along: what they read and write are images alike."""

BLOCK = 16
"""Channels in a block, as many as a vector register has lanes of 32 bits."""


@dataclass(frozen=True)
class Layouts:
    """Of every tensor of a graph that is no constant: the layouts that it may lie in, each another
    memory, and what its halo holds (the value that readers' padding has)."""

    graph: Graph

    @cached_property
    def activations(self) -> list[str]:
        return [name for name in self.graph.types if not self.graph.is_constant(name)]

    @cached_property
    def images(self) -> frozenset[str]:
        """Tensors with channels as their second axis that convolutions read or write, and those
        that such are made of or into."""
        found: set[str] = set()
        for operator in self.graph.operators:
            if is_convolution(operator):
                found |= {operator.inputs[0], *operator.outputs, *residual_of(operator)}
        while True:
            before = len(found)
            for operator in self.graph.operators:
                touched = [n for n in (*operator.inputs, *operator.outputs) if self._may(n)]
                if isinstance(operator.kind, ALONG) and found & {*touched}:
                    rank = len(self.graph.types[operator.outputs[0]].shape)
                    found |= {n for n in touched if len(self.graph.types[n].shape) == rank}
            if len(found) == before:
                return frozenset(found)

    def _may(self, name: str) -> bool:
        return not self.graph.is_constant(name) and len(self.graph.types[name].shape) >= 3

    @cached_property
    def halos(self) -> dict[str, tuple[int, ...]]:
        """Of the images that some convolution reads with padding: the width of it on each axis, the
        widest that one reads."""
        found: dict[str, tuple[int, ...]] = {}
        for operator in self.graph.operators:
            kind = operator.kind
            if isinstance(kind, Product) and is_convolution(operator):
                name = operator.inputs[0]
                widths = padding_of(kind, self.graph.types[name])
                if any(widths):
                    known = found.get(name, (0,) * len(widths))
                    found[name] = tuple(map(max, known, widths))
        return found

    @cached_property
    def fills(self) -> dict[str, int]:
        """What a tensor's halo holds: the padding of the first convolution that reads it."""
        found: dict[str, int] = {}
        for operator in self.graph.operators:
            if isinstance(operator.kind, Product) and self.reads_padding(operator, operator.kind):
                found.setdefault(operator.inputs[0], operator.kind.padding)
        return found

    def reads_padding(self, operator: Operator, kind: Product) -> bool:
        if operator.inputs[0] not in self.halos or not is_convolution(operator):
            return False
        return any(padding_of(kind, self.graph.types[operator.inputs[0]]))

    @cached_property
    def of(self) -> Mapping[str, tuple[Layout, ...]]:
        """Each tensor's layouts."""
        return {name: self._of(name) for name in self.activations}

    def _of(self, name: str) -> tuple[Layout, ...]:
        plain = Layout.plain(self.graph.types[name].shape)
        if name not in self.images:
            return (plain,)
        found = [plain] if self._is_outside(name) else []
        found.append(plain.channels_last())
        channels = plain.shape[1]
        if channels % BLOCK == 0 and channels > BLOCK:
            found.append(plain.blocked(BLOCK))
        if name in self.halos and name not in self.graph.outputs:
            found += [layout.with_halo(self.halos[name]) for layout in found if layout != plain]
        return distinct(found)

    def _is_outside(self, name: str) -> bool:
        """Whether somebody reads or writes a tensor in the order of its axes."""
        if name in self.graph.inputs or name in self.graph.outputs:
            return True
        touching = [*self.graph.readers[name]]
        touching += [self.graph.producers[name]] if name in self.graph.producers else []
        return any(not (is_convolution(o) or isinstance(o.kind, ALONG)) for o in touching)


def distinct(layouts: Sequence[Layout]) -> tuple[Layout, ...]:
    """Those that are different memories."""
    found: list[Layout] = []
    for layout in layouts:
        if not any(layout.same_memory(other) for other in found):
            found.append(layout)
    return tuple(found)


def is_convolution(operator: Operator) -> bool:
    kind = operator.kind
    return isinstance(kind, Product) and any(part in kind.computation.name for part in CONVOLUTIONS)


def residual_of(operator: Operator) -> tuple[str, ...]:
    """The tensor that a product adds to its result, if any."""
    kind = operator.kind
    if isinstance(kind, Product) and kind.epilogue is not None and kind.epilogue.residual:
        return operator.inputs[-1:]
    return ()


def padding_of(kind: Product, first: TensorType) -> tuple[int, ...]:
    """How far the first factor is read beyond its image, on each axis after the channels: the
    larger of both sides."""
    workload = kind.computation
    operand = workload.inputs[0]
    groups = dimensions_of(first.shape, operand.shape)
    index = workload.access(operand.name).index
    widths: list[int] = []
    for dimensions in groups[2:]:
        reach = 0
        for dimension in dimensions:
            low, high = index[dimension].bounds(workload.extents)
            reach = max(reach, -low, high - operand.shape[dimension] + 1)
        widths.append(reach)
    return tuple(widths)
