"""Index expressions as integer sets and relations (Rieber et al. 2021, section 3.2).

Inside isl, dimensions are called ``i0``, ``i1`` ...: an axis may be named like a keyword of isl.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import islpy as isl

from cpembed.ir.index import IndexExpr, IndexTerm


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
