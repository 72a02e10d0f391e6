"""Where an output, or a residual, lies in a buffer that holds more than its elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray


@dataclass(frozen=True)
class Placement:
    """``strides``: elements of the buffer from one index of each original dimension to the next;
    ``offset``: the place of the first element; ``elements``: of the buffer.

    >>> Placement.inside((4, 4, 8), (1, 1, 0), (2, 2, 8))
    Placement(strides=(32, 8, 1), offset=40, elements=128)
    """

    strides: tuple[int, ...]
    offset: int
    elements: int

    @classmethod
    def inside(cls, whole: Sequence[int], before: Sequence[int], shape: Sequence[int]) -> Placement:
        """A box of a row-major buffer of shape ``whole``, that begins ``before`` elements along
        each dimension."""
        if any(b + s > w for w, b, s in zip(whole, before, shape, strict=True)):
            raise ValueError(f"a box of {list(shape)} at {list(before)} of {list(whole)}")
        strides = tuple(math.prod(whole[k + 1 :]) for k in range(len(whole)))
        offset = sum(b * stride for b, stride in zip(before, strides, strict=True))
        return cls(strides, offset, math.prod(whole))

    def view(self, buffer: NDArray[Any], shape: Sequence[int]) -> NDArray[Any]:
        """The elements, of a flat buffer."""
        strides = [stride * buffer.itemsize for stride in self.strides]
        return as_strided(buffer[self.offset :], tuple(shape), strides)

    def placed(self, array: NDArray[Any], fill: int = 0) -> NDArray[Any]:
        """A flat buffer with an array's elements in their places, the rest filled."""
        buffer = np.full(self.elements, fill, array.dtype)
        self.view(buffer, array.shape)[...] = array
        return buffer
