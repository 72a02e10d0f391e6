"""Outputs with elements that no point of a computation writes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

import islpy as isl

from cpembed.errors import WorkloadError
from cpembed.ir.computation import Computation, Operand
from cpembed.ir.expression import Access
from cpembed.ir.index import IndexExpr
from cpembed.ir.polyhedral import box, relation


def require_written(computation: Computation) -> None:
    """Raises :class:`WorkloadError` for an output with gaps: its program could not be verified,
    since nothing says what is in them."""
    for output in computation.outputs:
        stores = [store for store in computation.stores if store.operand == output.name]
        if not _all_written(computation, output, stores):
            raise WorkloadError(
                f"{computation.name}: {stores[0]} leaves elements of {output.name} unwritten: "
                "index an output without gaps, such as O[i] in place of O[2*i]"
            )


def _all_written(computation: Computation, output: Operand, stores: list[Access]) -> bool:
    iterators = [name for index in stores[0].index for name in index.iterators]
    if len(stores) == 1 and len(set(iterators)) == len(iterators):
        # Dimensions that no axis couples: each has its own sum of multiples.
        return all(
            _reaches_all(index, size, computation.extents)
            for index, size in zip(stores[0].index, output.shape, strict=True)
        )
    ranges = (relation(store.index, computation.extents).range() for store in stores)
    return box(output.shape).is_subset(reduce(isl.Set.union, ranges))


def _reaches_all(index: IndexExpr, size: int, extents: Mapping[str, int]) -> bool:
    """Whether an affine index takes every value below ``size``: in ascending order, no step is
    longer than what the shorter ones reach, and one."""
    low, high = index.bounds(extents)
    steps = sorted((abs(term.coefficient), extents[term.iterator] - 1) for term in index.terms)
    reached = 0
    for step, count in steps:
        if count and step > reached + 1:
            return False
        reached += step * count
    return low <= 0 and high >= size - 1
