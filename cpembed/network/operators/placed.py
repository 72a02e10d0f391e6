"""Tensors as generated kernels see them: a type, a place in memory, and the spelling of elements.

A Boolean is stored as a byte that is 0 or 1, bfloat16 as its bits in uint16; a scalar of shape ()
is one element.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cpembed.codegen.script import read, storage_dtype
from cpembed.errors import LoweringError
from cpembed.graph.kinds.base import Array, TensorType
from cpembed.network.layout import Layout


@dataclass(frozen=True)
class Placed:
    """A tensor of a ``type`` whose elements lie as ``layout`` says; ``fill``: what the elements of
    its halo hold. Kernels neither write nor read the halo."""

    type: TensorType
    layout: Layout
    fill: int | float = 0

    @classmethod
    def plain(cls, type: TensorType) -> Placed:
        """Row-major."""
        return cls(type, Layout.plain(type.shape))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def dtype(self) -> str:
        return self.type.dtype

    @property
    def stored(self) -> str:
        """The element type in memory."""
        return stored(self.dtype)

    @property
    def bytes(self) -> int:
        """Of the elements, without the halo."""
        return self.type.elements * np.dtype(self.stored).itemsize

    @property
    def is_row_major(self) -> bool:
        """Whether elements lie in the order of their indices with nothing between them."""
        layout = self.layout
        return layout.same_memory(Layout.plain(layout.shape))

    def parameter(self, name: str) -> str:
        """A flat buffer of the kernel."""
        return f'{name}: T.Buffer(({max(1, self.layout.elements)},), "{self.stored}")'


def stored(dtype: str) -> str:
    """The element type in memory.

    >>> stored("bool"), stored("bfloat16"), stored("int8")
    ('uint8', 'uint16', 'int8')

    Raises :class:`LoweringError` for a type that kernels do not hold.
    """
    return "uint8" if dtype == "bool" else storage_dtype(dtype)


def memory_of(values: Array) -> Array:
    """A flat array as memory holds it."""
    values = np.ascontiguousarray(values).reshape(-1)
    if values.dtype == np.bool_:
        return values.astype(np.uint8)
    return values.view(np.uint16) if values.dtype.name == "bfloat16" else values


def numbers(values: Sequence[float | int], dtype: str) -> Array:
    """An array of a type, bfloat16 included."""
    if dtype != "bfloat16":
        return np.asarray(values, dtype)
    import ml_dtypes

    return np.asarray(values, ml_dtypes.bfloat16)


def loaded(element: str, dtype: str, into: str) -> str:
    """An element in memory, as a value of another type (``bool``: a condition).

    >>> loaded("A[i]", "bool", "bool"), loaded("A[i]", "uint8", "int32")
    ('(A[i] != T.uint8(0))', 'T.cast(A[i], "int32")')
    """
    if into == "bool":
        if dtype != "bool":
            raise LoweringError(f"an element of {dtype} is no Boolean: convert it first")
        return f"({element} != T.uint8(0))"
    if dtype == "bool":
        return f'T.cast({element}, "{into}")'
    return read(element, dtype, into)


def row_major_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Elements from one index of each axis to the next.

    >>> row_major_strides((2, 3, 4))
    (12, 4, 1)
    """
    return tuple(math.prod(shape[k + 1 :]) for k in range(len(shape)))
