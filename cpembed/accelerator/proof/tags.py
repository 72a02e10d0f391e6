"""Tags: names of the values that places of memories hold."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from cpembed.accelerator.proof.result import UndecidedError
from cpembed.accelerator.proof.tensors import Tensors

Integers = NDArray[np.int64]
Number = int | float

UNWRITTEN = 0
"""Tag of a place that nothing has written."""
UNCLAIMED = -1
"""Tag of a value that no claim describes."""
FIRST_ELEMENT = 1 << 24
"""Least tag of an element; less are numbers."""
PART = 1 << 56
"""Distance of the tags of the parts of an element that occupies several units of a memory."""


class Tags:
    """Tags of elements and of numbers, by the type in which a memory holds them."""

    def __init__(self, tensors: Tensors) -> None:
        self._tensors = tensors
        self._numbers: dict[tuple[Number, str], int] = {}
        self._values: list[tuple[Number, str]] = []
        self._first: dict[tuple[str, str], int] = {}
        self._ranges: list[tuple[int, str, str]] = []
        self._next = FIRST_ELEMENT

    def number(self, value: Number, dtype: str) -> int:
        """Return the tag of a number held in a type."""
        key = (value, dtype)
        if key not in self._numbers:
            self._values.append(key)
            self._numbers[key] = len(self._values)
        return self._numbers[key]

    def value(self, tag: int, dtype: str) -> Number | None:
        """Return the number that a tag names in a type; None for anything else."""
        if not 0 < tag < FIRST_ELEMENT:
            return None
        value, stored_dtype = self._values[tag - 1]
        return value if stored_dtype == dtype else None

    def first(self, tensor: str, dtype: str) -> int:
        """Return the tag of a tensor's first element, held in a type."""
        key = (tensor, dtype)
        if key not in self._first:
            self._first[key] = self._next
            self._ranges.append((self._next, tensor, dtype))
            self._next += math.prod(self._tensors.shape(tensor))
            if self._next >= PART:
                raise UndecidedError("the tensors have more elements than tags can name")
        return self._first[key]

    def uniform(self, tensor: str, dtype: str) -> int | None:
        """Return the tag of every element of a constant whose elements are equal."""
        value = self._tensors.uniform.get(tensor)
        return None if value is None else self.number(value, dtype)

    def elements(self, tensor: str, dtype: str, flat: Integers) -> Integers:
        """Return the tags of elements by their row-major number."""
        uniform = self.uniform(tensor, dtype)
        if uniform is not None:
            return np.full(flat.shape, uniform, np.int64)
        return flat + self.first(tensor, dtype)

    def text(self, tag: int) -> str:
        """Describe a tag."""
        if tag == UNWRITTEN:
            return "nothing"
        if tag < 0:
            return "a value that no claim describes"
        if tag < FIRST_ELEMENT:
            return f"the number {self._values[tag - 1][0]}"
        first, tensor, _ = next(r for r in reversed(self._ranges) if r[0] <= tag % PART)
        shape = self._tensors.shape(tensor)
        index = np.unravel_index(tag % PART - first, shape) if shape else ()
        return f"{tensor}[{', '.join(str(int(i)) for i in index)}]"
