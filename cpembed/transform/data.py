"""Packing and unpacking in numpy: what a layout means for data."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.transform.program import DerivedProgram, PackedOperand

Array = NDArray[Any]


def source_elements(operand: PackedOperand) -> tuple[list[NDArray[np.int64]], NDArray[np.bool_]]:
    """For every packed element, the original index (clipped) and whether it exists.

    Arrays have the packed shape.
    """
    grid = dict(zip((d.name for d in operand.dimensions), np.indices(operand.shape), strict=True))
    inside = np.ones(operand.shape, np.bool_)
    indices: list[NDArray[np.int64]] = []
    for index, size in zip(operand.source, operand.original_shape, strict=True):
        at = np.broadcast_to(np.asarray(index.evaluate(grid), np.int64), operand.shape)
        inside &= (at >= 0) & (at < size)
        indices.append(np.clip(at, 0, size - 1))
    return indices, inside


def pack(operand: PackedOperand, data: Array) -> Array:
    """Original data in the packed layout, zero where a packed element has no original."""
    indices, inside = source_elements(operand)
    return np.where(inside, data[tuple(indices)], np.zeros((), data.dtype))


def unpack(operand: PackedOperand, packed: Array, program: DerivedProgram) -> Array:
    """The original output from its packed form; only elements that the program writes count."""
    written = np.zeros(operand.shape, np.bool_)
    written[accessed(operand, program)] = True
    indices, inside = source_elements(operand)
    keep = inside & written
    result = np.zeros(operand.original_shape, packed.dtype)
    # The ellipsis lets a scalar, which has no index, take its one element.
    result[(*(index[keep] for index in indices), ...)] = packed[keep]
    return result


def accessed(operand: PackedOperand, program: DerivedProgram) -> tuple[Array, ...]:
    """The packed element that each point of the program's loops and axes accesses."""
    grid = iterators(program)
    shape = tuple(program.extents.values())
    return tuple(np.broadcast_to(index.evaluate(grid), shape) for index in operand.access)


def iterators(program: DerivedProgram) -> dict[str, NDArray[np.int64]]:
    """Each iterator's value, of shapes that broadcast to the program's box."""
    arrays = np.indices(tuple(program.extents.values()), sparse=True)
    return dict(zip(program.extents, arrays, strict=True))
