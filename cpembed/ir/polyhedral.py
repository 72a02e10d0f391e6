"""Index expressions as integer sets and relations (Rieber et al. 2021, section 3.2).

Inside isl, dimensions are called ``i0``, ``i1`` ..., because an axis may have the name of a keyword
of isl.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import ParamSpec, TypeVar

import islpy as isl

from cpembed.errors import WorkloadError
from cpembed.ir.computation import Computation, Operand
from cpembed.ir.expression import Access
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.time_limit import OutOfTime, check_time, seconds_left

P = ParamSpec("P")
T = TypeVar("T")

# Measured 0.4 to 1 million.
_OPERATIONS_PER_SECOND = 500_000
"""Initial estimate of isl's operations per second, by its own count."""


def box(extents: Iterable[int]) -> isl.Set:
    """Return the set ``{ [i0, i1 ...] : 0 <= i < extent }``."""
    sizes = list(extents)
    return isl.Set(f"{{ [{', '.join(_names(len(sizes)))}] : {_bounds(sizes)} }}")


def relation(
    indices: Sequence[IndexExpr], extents: Mapping[str, int], *, bounded: bool = True
) -> isl.Map:
    """Return the relation ``{ [iterators] -> [indices] }``.

    >>> print(relation([IndexExpr.sum([IndexTerm("p", 2), IndexTerm("r")])], {"p": 4, "r": 3}))
    { [i0, i1] -> [2i0 + i1] : 0 <= i0 <= 3 and 0 <= i1 <= 2 }

    Parameters
    ----------
    indices : sequence of IndexExpr
        One expression per dimension of the range.
    extents : mapping of str to int
        Extent of each iterator, in the order of the domain's dimensions.
    bounded : bool
        True for the box of the iterators as domain, False for all integers.
    """
    dims = dict(zip(extents, _names(len(extents)), strict=True))
    target = ", ".join(index_text(index, dims) for index in indices)
    condition = _bounds(list(extents.values())) if bounded else "true"
    return isl.Map(f"{{ [{', '.join(dims.values())}] -> [{target}] : {condition} }}")


def in_time(decide: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
    """Call a function that uses isl, within the surrounding time limit.

    Raises :class:`~cpembed.time_limit.OutOfTime` when the limit is reached.
    """
    # isl can be stopped after a number of operations, not after a time. If it was stopped early
    # because its operations are faster than estimated, the function is called again with the number
    # that the remaining time allows at the measured speed.
    left, operations_per_second = seconds_left(), float(_OPERATIONS_PER_SECOND)
    if math.isinf(left):
        return decide(*arguments, **keywords)
    # The limit is a property of the context, which all of this process shares: it is reset below.
    context = isl.DEFAULT_CONTEXT
    while True:
        check_time()
        operations, started = max(1, int(operations_per_second * left)), time.perf_counter()
        context.reset_operations()
        context.set_max_operations(operations)
        try:
            return decide(*arguments, **keywords)
        except isl.Error:
            if not _operations_used_up():
                raise
        finally:
            context.set_max_operations(0)
        operations_per_second = operations / max(1e-9, time.perf_counter() - started)
        left = seconds_left()
        if operations_per_second * left <= operations:
            raise OutOfTime


def _operations_used_up() -> bool:
    """True if isl has used up its operations, which only some of its functions' errors say."""
    # A question that isl answers in a few operations fails only if none are left.
    try:
        isl.Set("{ [i] : exists j : 2j <= i < 4 and i = 3j }").is_empty()
    except isl.Error:
        return True
    return False


def _names(count: int) -> list[str]:
    return [f"i{position}" for position in range(count)]


def _bounds(extents: Sequence[int]) -> str:
    return " and ".join(f"0 <= i{n} < {extent}" for n, extent in enumerate(extents)) or "true"


def index_text(index: IndexExpr, dims: Mapping[str, str]) -> str:
    """Write an index in isl's syntax, including floor and mod."""
    return " + ".join((*(_term_text(term, dims) for term in index.terms), str(index.constant)))


def _term_text(term: IndexTerm, dims: Mapping[str, str]) -> str:
    body = dims[term.iterator] if term.inner is None else index_text(term.inner, dims)
    if term.divisor != 1:
        body = f"floor(({body})/{term.divisor})"
    if term.modulus is not None:
        body = f"(({body}) mod {term.modulus})"
    return f"({term.coefficient} * ({body}))"


def same_map(first: str, second: str) -> bool:
    """True if two relations in isl's notation are equal.

    >>> same_map("{ [i] -> [i + i] }", "{ [i] -> [2i] }")
    True
    """
    return bool(isl.Map(first).is_equal(isl.Map(second)))


def require_written(computation: Computation) -> None:
    """Check that every element of every output is written.

    Raises :class:`WorkloadError` for an output with gaps: nothing defines their contents, so a
    program could not be verified.
    """
    for output in computation.outputs:
        stores = [store for store in computation.stores if store.operand == output.name]
        if not _all_written(computation, output, stores):
            raise WorkloadError(
                f"{computation.name}: {stores[0]} leaves elements of {output.name} unwritten: "
                "index an output without gaps, such as O[i] in place of O[2*i]"
            )


def _all_written(computation: Computation, output: Operand, stores: list[Access]) -> bool:
    iterators = [name for index in stores[0].index for name in index.iterators]
    if len(stores) == 1 and len(stores[0].iterators) == len(iterators):
        # No axis couples two dimensions, so each one can be decided without isl.
        return all(
            _reaches_all(index, size, computation.extents)
            for index, size in zip(stores[0].index, output.shape, strict=True)
        )
    ranges = (relation(store.index, computation.extents).range() for store in stores)
    return box(output.shape).is_subset(reduce(isl.Set.union, ranges))


def _reaches_all(index: IndexExpr, size: int, extents: Mapping[str, int]) -> bool:
    """True if an affine index takes every value below ``size``."""
    # In ascending order, no step may exceed by more than one what the shorter steps reach.
    low, high = index.bounds(extents)
    steps = sorted((abs(term.coefficient), extents[term.iterator] - 1) for term in index.terms)
    reached = 0
    for step, count in steps:
        if count and step > reached + 1:
            return False
        reached += step * count
    return low <= 0 and high >= size - 1
