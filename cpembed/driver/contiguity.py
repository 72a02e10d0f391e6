"""How much of what one execution of an instruction reads lies together in memory."""

from __future__ import annotations

import itertools
import math

from cpembed.ir.dtypes import size_bytes
from cpembed.transform.program import DerivedProgram

_LARGEST = 1 << 14
"""Elements of a tile that are looked at one by one."""


def run_bytes(program: DerivedProgram, name: str) -> float | None:
    """Bytes of an operand's own layout that one execution reads next to each other, in the mean
    over its runs; None where the program has no such operand, or a tile of it is very large.

    The execution is one in the middle of the operand, away from the padding around it.
    """
    operand = next((o for o in program.operands if o.name == name), None)
    if operand is None:
        return None
    tiles = [d for d in operand.dimensions if d.walked_by is not None]
    if math.prod(d.extent for d in tiles) > _LARGEST:
        return None
    middle = {d.name: d.extent // 2 for d in operand.dimensions if d.walked_by is None}
    shape = operand.original_shape
    steps = [math.prod(shape[k + 1 :]) for k in range(len(shape))]
    found: set[int] = set()
    for point in itertools.product(*(range(d.extent) for d in tiles)):
        values = {**middle, **{d.name: at for d, at in zip(tiles, point, strict=True)}}
        index = [source.evaluate(values) for source in operand.source]
        if all(0 <= at < size for at, size in zip(index, shape, strict=True)):
            found.add(sum(at * step for at, step in zip(index, steps, strict=True)))
    if not found:
        return None
    runs = sum(place - 1 not in found for place in found)
    return len(found) * size_bytes(operand.dtype) / runs
