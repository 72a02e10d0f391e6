"""Layouts: positions of a tensor's elements in memory.

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
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.ir.polyhedral import same_map

# Letters of the axes of images by their number; channels are axis 1.
_IMAGE_AXES = {3: "NCW", 4: "NCHW", 5: "NCDHW"}


@dataclass(frozen=True)
class Layout:
    """Order, blocks and halo of a tensor in memory.

    Attributes
    ----------
    shape : tuple of int
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
        """Return the layout with channels in blocks, whose size has to divide them."""
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

    @property
    def image_halo(self) -> tuple[int, ...]:
        """Widths of the halo on the axes after the channels."""
        return self.halo[2:]

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
        """Return the texts of an element's index in memory, from those of its index in the
        tensor.
        """
        shifted = [f"{i} + {h}" if h else i for i, h in zip(index, self.halo, strict=True)]
        if self.block == 1:
            return [shifted[axis] for axis in self.order]
        channel = shifted[1]
        shifted[1] = f"({channel}) // {self.block}"
        return [*(shifted[axis] for axis in self.order), f"({channel}) % {self.block}"]

    def strides(self) -> tuple[int, ...]:
        """Return the distance in memory of consecutive indices per axis; for blocks, inside a
        block.
        """
        physical = self.physical_shape
        steps = [math.prod(physical[k + 1 :]) for k in range(len(physical))]
        positions = {axis: k for k, axis in enumerate(self.order)}
        strides = [steps[positions[axis]] for axis in range(len(self.shape))]
        if self.block > 1:
            strides[1] = 1
        return tuple(strides)

    def elements_of(self, buffer: NDArray[Any]) -> NDArray[Any]:
        """Return the tensor of a flat buffer, copied to the order of its axes."""
        array = buffer.reshape(self.physical_shape)
        if self.block > 1:
            # The blocks of the channels and what is within one, as one axis.
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
            total = f"({total}) * {extent} + {_isl(text)}"
        bounds = " and ".join(
            f"0 <= {name} < {size}" for name, size in zip(names, self.shape, strict=True)
        )
        return f"{{ [{', '.join(names)}] -> [{total}] : {bounds or 'true'} }}"

    def same_memory(self, layout: Layout) -> bool:
        """True if both layouts have every element, and the bytes around them, at the same
        positions.
        """
        if self == layout:
            return True
        if self.elements != layout.elements or self.shape != layout.shape:
            return False
        return _same(self.map_text, layout.map_text)

    def __str__(self) -> str:
        letters = _IMAGE_AXES.get(len(self.shape))
        if letters is None:
            plain = self.order == tuple(range(len(self.shape)))
            return "row-major" if plain else f"order {','.join(map(str, self.order))}"
        text = "".join(letters[axis] for axis in self.order)
        text += f"{self.block}c" if self.block > 1 else ""
        halo = ",".join(map(str, self.image_halo))
        return f"{text} halo {halo}" if self.has_halo else text


def _isl(text: str) -> str:
    """Return a division or remainder as isl writes it."""
    if " // " in text:
        value, divisor = text.rsplit(" // ", 1)
        return f"floor(({value})/{divisor})"
    if " % " in text:
        value, divisor = text.rsplit(" % ", 1)
        return f"(({value}) mod {divisor})"
    return f"({text})"


@cache
def _same(first: str, second: str) -> bool:
    return same_map(first, second)
