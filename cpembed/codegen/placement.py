"""Places of outputs and residuals inside buffers that hold more than their elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from cpembed.ir.index import row_major_strides


@dataclass(frozen=True)
class Placement:
    """Place of an output or a residual in a buffer that holds more than its elements.

    ``strides`` are the distances in the buffer from one index of each original dimension to the
    next, ``offset`` is the position of the first element and ``elements`` the size of the buffer.

    >>> Placement.inside((4, 4, 8), (1, 1, 0), (2, 2, 8))
    Placement(strides=(32, 8, 1), offset=40, elements=128)
    """

    strides: tuple[int, ...]
    offset: int
    elements: int

    @classmethod
    def inside(cls, outer: Sequence[int], before: Sequence[int], shape: Sequence[int]) -> Placement:
        """Return the place of a box of a row-major buffer.

        Parameters
        ----------
        outer, shape : sequence of int
            Shapes of the buffer and of the box.
        before : sequence of int
            Elements of the buffer before the box, by dimension.
        """
        if any(b + s > o for o, b, s in zip(outer, before, shape, strict=True)):
            raise ValueError(f"a box of {list(shape)} at {list(before)} of {list(outer)}")
        strides = row_major_strides(outer)
        offset = sum(b * stride for b, stride in zip(before, strides, strict=True))
        return cls(strides, offset, math.prod(outer))

    def view(self, buffer: NDArray[Any], shape: Sequence[int]) -> NDArray[Any]:
        """Return the elements as a view of a flat buffer."""
        strides = [stride * buffer.itemsize for stride in self.strides]
        return as_strided(buffer[self.offset :], tuple(shape), strides)

    def placed(self, array: NDArray[Any], fill: int = 0) -> NDArray[Any]:
        """Return a flat buffer with an array's elements in their places, and ``fill`` elsewhere."""
        buffer = np.full(self.elements, fill, array.dtype)
        self.view(buffer, array.shape)[...] = array
        return buffer
