"""Executions that multiply nothing but padding: kernels leave them out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from cpembed.ir.expression import Operation
from cpembed.ir.index import IndexExpr
from cpembed.transform.program import DerivedProgram

_POSITIONS = 2**20
"""Of the iterators that decide, beyond which nothing is taken to be left out."""

Coordinate = tuple[IndexExpr, int]
"""A coordinate of an original dimension over the program's iterators, and the dimension's size."""


def executed_share(program: DerivedProgram) -> float:
    """Of a program's executions, those in which an element of each factor is no padding.

    Only of product-sums, in which padding adds nothing. Coordinates that share an iterator are
    looked at together; of factors that share a loop, one counts.
    """
    if len(program.workload.statements) != 1:
        return 1.0
    statement = program.workload.statement
    value = statement.value
    if statement.reduction != "add" or not isinstance(value, Operation) or value.op != "mul":
        return 1.0
    share, decided = 1.0, set[str]()
    loops = {loop.name for loop in program.loops}
    inputs = {operand.name for operand in program.workload.inputs}
    for operand in program.operands:
        if operand.name not in inputs:
            continue
        places = dict(zip((d.name for d in operand.dimensions), operand.access, strict=True))
        coordinates = [
            (source.substitute(places), size)
            for source, size in zip(operand.source, operand.original_shape, strict=True)
        ]
        for group in _groups([c for c in coordinates if _leaves(c, program)]):
            names = {name for index, _ in group for name in index.iterators}
            if not names & decided:
                share *= _inside(group, names, program)
                decided |= names & loops
    return share


def _leaves(coordinate: Coordinate, program: DerivedProgram) -> bool:
    index, size = coordinate
    low, high = index.bounds(program.extents)
    return low < 0 or high >= size


def _groups(coordinates: Sequence[Coordinate]) -> Iterator[list[Coordinate]]:
    """Coordinates that share iterators, directly or by others between them."""
    left = list(coordinates)
    while left:
        group, names = [left.pop()], set[str]()
        while True:
            names |= {name for index, _ in group for name in index.iterators}
            more = [c for c in left if names & set(c[0].iterators)]
            if not more:
                break
            group += more
            left = [c for c in left if c not in more]
        yield group


def _inside(group: Sequence[Coordinate], names: set[str], program: DerivedProgram) -> float:
    """Of the iterations of the loops, those with an element inside."""
    loops = [loop for loop in program.loops if loop.name in names]
    inner = [axis for axis in program.instruction_axes if axis.name in names]
    extents = [iterator.extent for iterator in itertools.chain(loops, inner)]
    if math.prod(extents) > _POSITIONS:
        return 1.0
    grid = np.ogrid[tuple(slice(extent) for extent in extents)]
    values = dict(zip((i.name for i in itertools.chain(loops, inner)), grid, strict=True))
    inside = np.ones(extents, bool)
    for index, size in group:
        at = np.asarray(index.evaluate(values))
        inside &= (at >= 0) & (at < size)
    axes = tuple(range(len(loops), len(extents)))
    return float(inside.any(axis=axes).mean())
