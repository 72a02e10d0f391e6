"""What bringing an operand into the layout of a program takes, or an output out of it."""

from __future__ import annotations

import itertools
import math

import numpy as np

from cpembed.hw.machine import Hierarchy
from cpembed.ir.dtypes import size_bytes
from cpembed.transform.program import PackedOperand

_LOOKED_AT = 2048
"""Consecutive packed elements, in the middle of an operand, whose pieces stand for all."""


def packing_cycles(operand: PackedOperand, scope: str, machine: Hierarchy) -> float:
    """Cycles of copying an operand between its own layout and the program's, in main memory.

    All units copy, each on the way that the operand takes to its ``scope``. What is contiguous in
    both layouts is a piece; on the innermost part of the way pieces are moved one by one, in whole
    granules. Farther out, caches put them together.
    """
    size = size_bytes(operand.dtype)
    original, packed = math.prod(operand.original_shape) * size, operand.elements * size
    piece = contiguous_elements(operand) * size
    path, longest = machine.path(scope), 0.0
    for below, memory in itertools.pairwise(path):
        reading = min(memory.read_bytes * memory.units, memory.child_read_bytes * below.units)
        writing = min(memory.write_bytes * memory.units, memory.child_write_bytes * below.units)
        granules = 1.0
        if below is path[0]:
            granules = math.ceil(piece / below.granule_bytes) * below.granule_bytes / piece
        # An output is read packed and written as it was, which is as much but for padding.
        read, write = granules * original / reading, granules * packed / writing
        longest = max(longest, read + write if memory.half_duplex else max(read, write))
    return longest


def contiguous_elements(operand: PackedOperand) -> float:
    """Elements of a piece that lies together in both layouts, on average."""
    count = min(operand.elements, _LOOKED_AT)
    first = (operand.elements - count) // 2
    places = np.unravel_index(np.arange(first, first + count), operand.shape)
    values = dict(zip((d.name for d in operand.dimensions), places, strict=True))
    address = np.zeros(count, np.int64)
    for index, extent in zip(operand.source, operand.original_shape, strict=True):
        address = address * extent + np.asarray(index.evaluate(values))
    return count / (1 + int(np.count_nonzero(np.diff(address) != 1)))
