"""Layouts that each tensor of a network may have."""

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
"""Parts of the names of computations whose operands are images: channels, then spatial axes."""

ALONG = (Elementwise, Table, Pool, Quantize, Dequantize, Concat, Resize, Pad, Expand)
"""Kinds that propagate layouts: what they read and write are images alike."""

BLOCK = 16
"""Channels per block: a vector register has this many lanes of 32 bits."""


@dataclass(frozen=True)
class CandidateLayouts:
    """Candidate layouts of every tensor that is no constant, and the values in their halos."""

    graph: Graph

    @cached_property
    def activations(self) -> list[str]:
        return [name for name in self.graph.types if not self.graph.is_constant(name)]

    @cached_property
    def images(self) -> frozenset[str]:
        """Tensors with channels on axis 1 that convolutions read or write, and those propagated
        from them.
        """
        images: set[str] = set()
        for operator in self.graph.operators:
            if is_convolution(operator):
                images |= {operator.inputs[0], *operator.outputs, *residual_of(operator)}
        while True:
            before = len(images)
            for operator in self.graph.operators:
                touched = [n for n in (*operator.inputs, *operator.outputs) if self._may(n)]
                if isinstance(operator.kind, ALONG) and images & {*touched}:
                    rank = len(self.graph.types[operator.outputs[0]].shape)
                    images |= {n for n in touched if len(self.graph.types[n].shape) == rank}
            if len(images) == before:
                return frozenset(images)

    def _may(self, name: str) -> bool:
        return not self.graph.is_constant(name) and len(self.graph.types[name].shape) >= 3

    @cached_property
    def halos(self) -> dict[str, tuple[int, ...]]:
        """Widest padding on each spatial axis, of the images that a convolution reads with
        padding.
        """
        halos: dict[str, tuple[int, ...]] = {}
        for operator in self.graph.operators:
            kind = operator.kind
            if isinstance(kind, Product) and is_convolution(operator):
                name = operator.inputs[0]
                widths = padding_of(kind, self.graph.types[name])
                if any(widths):
                    widest = halos.get(name, (0,) * len(widths))
                    halos[name] = tuple(map(max, widest, widths))
        return halos

    @cached_property
    def fills(self) -> dict[str, int]:
        """Value in each tensor's halo: the padding of the first convolution that reads it."""
        fills: dict[str, int] = {}
        for operator in self.graph.operators:
            if isinstance(operator.kind, Product) and self.reads_padding(operator, operator.kind):
                fills.setdefault(operator.inputs[0], operator.kind.padding)
        return fills

    def reads_padding(self, operator: Operator, kind: Product) -> bool:
        if operator.inputs[0] not in self.halos or not is_convolution(operator):
            return False
        return any(padding_of(kind, self.graph.types[operator.inputs[0]]))

    @cached_property
    def by_tensor(self) -> Mapping[str, tuple[Layout, ...]]:
        """Layouts of each tensor, no two of which are the same memory."""
        return {name: self._candidates(name) for name in self.activations}

    def _candidates(self, name: str) -> tuple[Layout, ...]:
        plain = Layout.plain(self.graph.types[name].shape)
        if name not in self.images:
            return (plain,)
        candidates = [plain] if self._is_outside(name) else []
        candidates.append(plain.channels_last())
        channels = plain.shape[1]
        # A single block of channels is the same memory as channels last.
        if channels % BLOCK == 0 and channels > BLOCK:
            candidates.append(plain.blocked(BLOCK))
        # The caller's memory has no halo.
        if name in self.halos and name not in self.graph.outputs:
            candidates += [
                layout.with_halo(self.halos[name]) for layout in candidates if layout != plain
            ]
        return distinct(candidates)

    def _is_outside(self, name: str) -> bool:
        """True if an operator or the caller accesses a tensor in the order of its axes."""
        if name in self.graph.inputs or name in self.graph.outputs:
            return True
        touching = [*self.graph.readers[name]]
        touching += [self.graph.producers[name]] if name in self.graph.producers else []
        return any(not (is_convolution(o) or isinstance(o.kind, ALONG)) for o in touching)


def distinct(layouts: Sequence[Layout]) -> tuple[Layout, ...]:
    """Drop layouts that are the same memory as an earlier one."""
    unique: list[Layout] = []
    for layout in layouts:
        if not any(layout.same_memory(earlier) for earlier in unique):
            unique.append(layout)
    return tuple(unique)


def is_convolution(operator: Operator) -> bool:
    kind = operator.kind
    return isinstance(kind, Product) and any(part in kind.computation.name for part in CONVOLUTIONS)


def residual_of(operator: Operator) -> tuple[str, ...]:
    """Return the tensor that a product adds to its result, if any."""
    kind = operator.kind
    if isinstance(kind, Product) and kind.epilogue is not None and kind.epilogue.residual:
        return operator.inputs[-1:]
    return ()


def padding_of(kind: Product, first: TensorType) -> tuple[int, ...]:
    """Return how far the first factor is read beyond each spatial axis, the larger of both
    sides.
    """
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
