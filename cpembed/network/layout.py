"""Layouts of tensors: where elements lie in memory, and which layouts a tensor may have.

>>> image = Layout.plain((1, 64, 56, 56))
>>> last = image.channels_last()
>>> last.physical_shape, str(last)
((1, 56, 56, 64), 'NHWC')
>>> last.with_halo((1, 1)).physical_shape, str(last.with_halo((1, 1)))
((1, 58, 58, 64), 'NHWC halo 1,1')
>>> str(image.blocked(16)), image.blocked(16).physical_shape
('NCHW16c', (1, 4, 56, 56, 16))
>>> Layout.plain((1, 16, 8, 8)).blocked(16).same_memory(Layout.plain((1, 16, 8, 8)).channels_last())
True
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.errors import LoweringError
from cpembed.graph import kinds
from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import Product, TensorType
from cpembed.ir.index import row_major_strides
from cpembed.ir.polyhedral import same_map

# Names of the axes of images by rank; channels are axis 1.
_IMAGE_AXES = {3: "NCW", 4: "NCHW", 5: "NCDHW"}


@dataclass(frozen=True)
class Layout:
    """Order, blocks and halo of a tensor in memory.

    Attributes
    ----------
    order : tuple of int
        Axes, the outermost first.
    block : int
        Number of channels (axis 1) per block: axis 1 in ``order`` is that of the blocks, and the
        channels of a block lie innermost. 1 for no blocks.
    halo : tuple of int
        Elements on both sides of each axis that are not the tensor's and hold its zero point.
    """

    shape: tuple[int, ...]
    order: tuple[int, ...]
    block: int = 1
    halo: tuple[int, ...] = ()

    @classmethod
    def plain(cls, shape: Sequence[int]) -> Layout:
        """Return the row-major layout."""
        return cls(tuple(shape), tuple(range(len(shape))), 1, (0,) * len(shape))

    def channels_last(self) -> Layout:
        """Return the layout with the channels innermost."""
        rank = len(self.shape)
        return replace(self, order=(0, *range(2, rank), 1), block=1)

    def blocked(self, block: int) -> Layout:
        """Return the layout with channels in blocks of a size that divides their number."""
        if self.shape[1] % block:
            raise ValueError(f"{self.shape[1]} channels are no multiple of {block}")
        return replace(self, order=tuple(range(len(self.shape))), block=block)

    def with_halo(self, widths: Sequence[int]) -> Layout:
        """Return the layout with a halo of some widths on the axes after the channels."""
        return replace(self, halo=(0, 0, *widths))

    @property
    def without_halo(self) -> Layout:
        return replace(self, halo=(0,) * len(self.shape))

    @property
    def has_halo(self) -> bool:
        return any(self.halo)

    @cached_property
    def physical_shape(self) -> tuple[int, ...]:
        """Extents in memory, the outermost first."""
        sizes = [size + 2 * halo for size, halo in zip(self.shape, self.halo, strict=True)]
        if self.block == 1:
            return tuple(sizes[axis] for axis in self.order)
        sizes[1] //= self.block
        return (*(sizes[axis] for axis in self.order), self.block)

    @property
    def elements(self) -> int:
        """Number of elements in memory, the halo included."""
        return math.prod(self.physical_shape)

    def physical_index(self, index: Sequence[str]) -> list[str]:
        """Translate an element's index in the tensor to its index in memory, both as texts."""
        shifted = [f"{i} + {h}" if h else i for i, h in zip(index, self.halo, strict=True)]
        if self.block == 1:
            return [shifted[axis] for axis in self.order]
        channel = shifted[1]
        shifted[1] = f"({channel}) // {self.block}"
        return [*(shifted[axis] for axis in self.order), f"({channel}) % {self.block}"]

    def strides(self) -> tuple[int, ...]:
        """Return the distance in memory between neighbours along each axis.

        Neighbouring channels are taken within one block.
        """
        steps = row_major_strides(self.physical_shape)
        positions = {axis: k for k, axis in enumerate(self.order)}
        strides = [steps[positions[axis]] for axis in range(len(self.shape))]
        if self.block > 1:
            strides[1] = 1
        return tuple(strides)

    def buffer_of(self, array: NDArray[Any], fill: int = 0) -> NDArray[Any]:
        """Return a tensor as it lies in memory, with a number in the halo.

        Parameters
        ----------
        array : ndarray
            The tensor in the order of its axes.
        fill : int, default 0
            Element of the halo.
        """
        padded = array.reshape(self.shape)
        if self.has_halo:
            margins = [(width, width) for width in self.halo]
            padded = np.pad(padded, margins, constant_values=fill)
        order = [*self.order]
        if self.block > 1:
            shape = padded.shape
            padded = padded.reshape(shape[0], -1, self.block, *shape[2:])
            # Axes behind the channels moved by one; the innermost is that inside a block.
            order = [*(axis + (axis > 1) for axis in order), 2]
        return np.ascontiguousarray(padded.transpose(order))

    def elements_of(self, buffer: NDArray[Any]) -> NDArray[Any]:
        """Copy the tensor out of a flat buffer into the order of its axes."""
        array = buffer.reshape(self.physical_shape)
        if self.block > 1:
            # The axis of the blocks and the innermost one inside a block are one axis of channels.
            position = self.order.index(1)
            array = np.moveaxis(array, -1, position + 1)
            array = array.reshape((*array.shape[:position], -1, *array.shape[position + 2 :]))
        positions = {axis: place for place, axis in enumerate(self.order)}
        array = array.transpose([positions[axis] for axis in range(len(self.shape))])
        cut = tuple(slice(h, h + s) for h, s in zip(self.halo, self.shape, strict=True))
        return np.ascontiguousarray(array[cut]).reshape(self.shape)

    @cached_property
    def map_text(self) -> str:
        """Map of isl from an element's index to its position in memory."""
        names = [f"i{axis}" for axis in range(len(self.shape))]
        texts = self.physical_index(names)
        total = "0"
        for text, extent in zip(texts, self.physical_shape, strict=True):
            total = f"({total}) * {extent} + ({text})"
        bounds = " and ".join(
            f"0 <= {name} < {size}" for name, size in zip(names, self.shape, strict=True)
        )
        return f"{{ [{', '.join(names)}] -> [{total}] : {bounds or 'true'} }}"

    def same_memory(self, layout: Layout) -> bool:
        """True if both layouts put every element, and the halo, at the same positions."""
        if self == layout:
            return True
        if self.elements != layout.elements or self.shape != layout.shape:
            return False
        # Different orders may be one memory: a single pixel, or a single block of channels.
        return _same_map(self.map_text, layout.map_text)

    def __str__(self) -> str:
        letters = _IMAGE_AXES.get(len(self.shape))
        if letters is None:
            plain = self.order == tuple(range(len(self.shape)))
            return "row-major" if plain else f"order {','.join(map(str, self.order))}"
        text = "".join(letters[axis] for axis in self.order)
        text += f"{self.block}c" if self.block > 1 else ""
        halo = ",".join(map(str, self.halo[2:]))
        return f"{text} halo {halo}" if self.has_halo else text


# Networks have few distinct layouts, which are compared again and again.
_same_map = cache(same_map)


# Parts of the names of computations whose operands are images: channels, then spatial axes.
_CONVOLUTIONS = ("conv", "depthwise")

PROPAGATING = (
    *(kinds.Elementwise, kinds.Table, kinds.Quantize, kinds.Dequantize),
    *(kinds.Pool, kinds.Concat, kinds.Resize, kinds.Pad, kinds.Expand),
)
"""Kinds that read and write images alike, so that a layout that suits a convolution reaches the
next one through them without a conversion."""

BLOCK = 16
"""Channels per block: a vector register has this many lanes of 32 bits."""


@dataclass(frozen=True)
class CandidateLayouts:
    """Candidate layouts of every tensor that is no constant, and the values in their halos."""

    graph: Graph

    @cached_property
    def activations(self) -> list[str]:
        """Tensors that are no constants."""
        return [name for name in self.graph.types if not self.graph.is_constant(name)]

    @cached_property
    def images(self) -> frozenset[str]:
        """Tensors of convolutions, and those that get their layouts from them.

        Their channels are axis 1.
        """
        images: set[str] = set()
        for operator in self.graph.operators:
            if is_convolution(operator):
                images |= {operator.inputs[0], *operator.outputs, *residual_of(operator)}
        # Layouts spread along edges in both directions, so one sweep in order is not enough.
        while True:
            before = len(images)
            for operator in self.graph.operators:
                ports = [n for n in (*operator.inputs, *operator.outputs) if self._may_be_image(n)]
                if isinstance(operator.kind, PROPAGATING) and images & {*ports}:
                    # Operands that broadcast with fewer axes have their channels elsewhere.
                    rank = len(self.graph.types[operator.outputs[0]].shape)
                    images |= {n for n in ports if len(self.graph.types[n].shape) == rank}
            if len(images) == before:
                return frozenset(images)

    def _may_be_image(self, name: str) -> bool:
        return not self.graph.is_constant(name) and len(self.graph.types[name].shape) >= 3

    @cached_property
    def halos(self) -> dict[str, tuple[int, ...]]:
        """Halo of each image that a convolution pads: the widest padding per spatial axis."""
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
        """True if a convolution reads its image beyond the borders."""
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
        candidates = [plain] if self._needs_row_major(name) else []
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
        unique: list[Layout] = []
        for layout in candidates:
            if not any(layout.same_memory(earlier) for earlier in unique):
                unique.append(layout)
        return tuple(unique)

    def _needs_row_major(self, name: str) -> bool:
        """True if an operator or the caller accesses a tensor in the order of its axes."""
        if name in self.graph.inputs or name in self.graph.outputs:
            return True
        users = [*self.graph.readers[name]]
        users += [self.graph.producers[name]] if name in self.graph.producers else []
        return any(not (is_convolution(o) or isinstance(o.kind, PROPAGATING)) for o in users)


def is_convolution(operator: Operator) -> bool:
    """True if an operator is a product whose first operand is an image."""
    kind = operator.kind
    return isinstance(kind, Product) and any(
        part in kind.computation.name for part in _CONVOLUTIONS
    )


def residual_of(operator: Operator) -> tuple[str, ...]:
    """Return the tensor that a product adds to its result, if any."""
    kind = operator.kind
    if isinstance(kind, Product) and kind.epilogue is not None and kind.epilogue.residual:
        return operator.inputs[-1:]
    return ()


def padding_of(kind: Product, first: TensorType) -> tuple[int, ...]:
    """Return the padding of the first operand on each spatial axis, the larger of both sides."""
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


def dimensions_of(shape: Sequence[int], split: Sequence[int]) -> list[list[int]]:
    """Return, for each axis of a tensor, the dimensions of an operand that is a reshape of it.

    Unit dimensions belong to an axis of one element, or to the axis after them; those at the end,
    to the last axis.

    >>> dimensions_of((1, 12, 8), (1, 3, 4, 8)), dimensions_of((1, 12, 8), (12, 8))
    ([[0], [1, 2], [3]], [[], [0], [1]])
    """
    groups: list[list[int]] = []
    position = 0
    for size in shape:
        dimensions: list[int] = []
        product = 1
        while position < len(split) and (
            product < size or (not dimensions and split[position] == size)
        ):
            product *= split[position]
            dimensions.append(position)
            position += 1
        if product != size:
            raise LoweringError(f"{list(split)} is no split of {list(shape)}")
        groups.append(dimensions)
    if any(size != 1 for size in split[position:]):
        raise LoweringError(f"{list(split)} is no split of {list(shape)}")
    if groups:
        groups[-1].extend(range(position, len(split)))
    return groups
