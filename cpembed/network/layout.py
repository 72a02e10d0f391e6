"""Where the elements of a network's tensor lie in memory.

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

_IMAGE_AXES = {3: "NCW", 4: "NCHW", 5: "NCDHW"}
"""Letters of the axes of tensors that are images: channels are axis 1."""


@dataclass(frozen=True)
class Layout:
    """``order``: the axes of ``shape``, the outermost first. ``block``: axis 1, the channels, is in
    blocks of so many: its place in ``order`` is that of the blocks, and what is within one lies
    innermost; 1 where there are none. ``halo``: on both sides of each axis, so many elements lie in
    memory that are no elements of the tensor and hold its zero point."""

    shape: tuple[int, ...]
    order: tuple[int, ...]
    block: int = 1
    halo: tuple[int, ...] = ()

    @classmethod
    def plain(cls, shape: Sequence[int]) -> Layout:
        """Row-major, in the order of the axes."""
        return cls(tuple(shape), tuple(range(len(shape))), 1, (0,) * len(shape))

    def channels_last(self) -> Layout:
        """The channels innermost."""
        rank = len(self.shape)
        return replace(self, order=(0, *range(2, rank), 1), block=1)

    def blocked(self, block: int) -> Layout:
        """The channels in blocks, which have to be whole."""
        if self.shape[1] % block:
            raise ValueError(f"{self.shape[1]} channels are no multiple of {block}")
        return replace(self, order=tuple(range(len(self.shape))), block=block)

    def with_halo(self, widths: Sequence[int]) -> Layout:
        """So many elements on both sides of each of the axes after the channels."""
        return replace(self, halo=(0, 0, *widths))

    @property
    def without_halo(self) -> Layout:
        return replace(self, halo=(0,) * len(self.shape))

    @property
    def has_halo(self) -> bool:
        return any(self.halo)

    @property
    def image_halo(self) -> tuple[int, ...]:
        """The halo of the axes after the channels."""
        return self.halo[2:]

    @cached_property
    def physical_shape(self) -> tuple[int, ...]:
        """The extents in memory, the outermost first."""
        sizes = [size + 2 * halo for size, halo in zip(self.shape, self.halo, strict=True)]
        if self.block == 1:
            return tuple(sizes[axis] for axis in self.order)
        sizes[1] //= self.block
        return (*(sizes[axis] for axis in self.order), self.block)

    @property
    def elements(self) -> int:
        """In memory, the halo included."""
        return math.prod(self.physical_shape)

    def physical_index(self, index: Sequence[str]) -> list[str]:
        """Texts of an element's index in memory, from those of its index in the tensor."""
        moved = [f"{i} + {h}" if h else i for i, h in zip(index, self.halo, strict=True)]
        if self.block == 1:
            return [moved[axis] for axis in self.order]
        channel = moved[1]
        moved[1] = f"({channel}) // {self.block}"
        return [*(moved[axis] for axis in self.order), f"({channel}) % {self.block}"]

    def strides(self) -> tuple[int, ...]:
        """Elements in memory from one index of each axis to the next; of channels in blocks within
        a block."""
        physical = self.physical_shape
        steps = [math.prod(physical[k + 1 :]) for k in range(len(physical))]
        places = {axis: k for k, axis in enumerate(self.order)}
        found = [steps[places[axis]] for axis in range(len(self.shape))]
        if self.block > 1:
            found[1] = 1
        return tuple(found)

    def elements_of(self, buffer: NDArray[Any]) -> NDArray[Any]:
        """The tensor, of a flat buffer: a copy in the order of its axes."""
        array = buffer.reshape(self.physical_shape)
        if self.block > 1:
            # The blocks of the channels and what is within one, as one axis.
            at = self.order.index(1)
            array = np.moveaxis(array, -1, at + 1)
            array = array.reshape((*array.shape[:at], -1, *array.shape[at + 2 :]))
        places = {axis: place for place, axis in enumerate(self.order)}
        array = array.transpose([places[axis] for axis in range(len(self.shape))])
        cut = tuple(slice(h, h + s) for h, s in zip(self.halo, self.shape, strict=True))
        return np.ascontiguousarray(array[cut]).reshape(self.shape)

    @cached_property
    def map_text(self) -> str:
        """The isl map from an element's index to its place in memory."""
        names = [f"i{axis}" for axis in range(len(self.shape))]
        texts = self.physical_index(names)
        total = "0"
        for text, extent in zip(texts, self.physical_shape, strict=True):
            total = f"({total}) * {extent} + {_isl(text)}"
        bounds = " and ".join(
            f"0 <= {name} < {size}" for name, size in zip(names, self.shape, strict=True)
        )
        return f"{{ [{', '.join(names)}] -> [{total}] : {bounds or 'true'} }}"

    def same_memory(self, other: Layout) -> bool:
        """Whether both say the same of every element and of the bytes around them."""
        if self == other:
            return True
        if self.elements != other.elements or self.shape != other.shape:
            return False
        return _same(self.map_text, other.map_text)

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
    """Division and remainder as isl writes them."""
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
