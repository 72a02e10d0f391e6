"""Index expressions as integer sets and relations (Rieber et al. 2021, section 3.2).

Inside isl, dimensions are called ``i0``, ``i1`` ...: an axis may be named like a keyword of isl.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ParamSpec, TypeVar

import islpy as isl

from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.time_limit import OutOfTime, check_time, seconds_left

P = ParamSpec("P")
T = TypeVar("T")

_OPERATIONS = 500_000
"""Of isl's own count in a second: measured 0.4 to 1 million."""


def box(extents: Iterable[int]) -> isl.Set:
    """``{ [i0, i1 ...] : 0 <= i < extent }``."""
    sizes = list(extents)
    return isl.Set(f"{{ [{', '.join(_names(len(sizes)))}] : {_bounds(sizes)} }}")


def relation(
    indices: Sequence[IndexExpr], extents: Mapping[str, int], *, bounded: bool = True
) -> isl.Map:
    """``{ [iterators] -> [indices] }`` on the box of the iterators, or on all integers."""
    dims = dict(zip(extents, _names(len(extents)), strict=True))
    target = ", ".join(index_text(index, dims) for index in indices)
    where = _bounds(list(extents.values())) if bounded else "true"
    return isl.Map(f"{{ [{', '.join(dims.values())}] -> [{target}] : {where} }}")


def in_time(decide: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
    """What a function that calls isl returns, within the surrounding time limit.

    isl ends a computation by the number of its operations, not by time: where they are fewer in a
    second or more than supposed, it begins anew with as many as the time that is left allows.
    """
    left, operations_per_second = seconds_left(), float(_OPERATIONS)
    if math.isinf(left):
        return decide(*arguments, **keywords)
    context = isl.DEFAULT_CONTEXT
    while True:
        check_time()
        operations, started = max(1, int(operations_per_second * left)), time.perf_counter()
        context.reset_operations()
        context.set_max_operations(operations)
        try:
            return decide(*arguments, **keywords)
        except isl.Error:
            if not _is_spent():
                raise
        finally:
            context.set_max_operations(0)
        operations_per_second = operations / max(1e-9, time.perf_counter() - started)
        left = seconds_left()
        if operations_per_second * left <= operations:
            raise OutOfTime


def _is_spent() -> bool:
    """Whether isl has used up its operations: an error itself says so only of some functions."""
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
    """An index in isl's syntax, floor and mod included."""
    return " + ".join((*(_term_text(term, dims) for term in index.terms), str(index.constant)))


def _term_text(term: IndexTerm, dims: Mapping[str, str]) -> str:
    body = dims[term.iterator] if term.inner is None else index_text(term.inner, dims)
    if term.divisor != 1:
        body = f"floor(({body})/{term.divisor})"
    if term.modulus is not None:
        body = f"(({body}) mod {term.modulus})"
    return f"({term.coefficient} * ({body}))"


def same_map(first: str, second: str) -> bool:
    """Whether two relations, as isl writes them, are the same.

    >>> same_map("{ [i] -> [i + i] }", "{ [i] -> [2i] }")
    True
    """
    return bool(isl.Map(first).is_equal(isl.Map(second)))
