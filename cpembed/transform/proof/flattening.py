"""The obligation of fused axes: the workload over them is the original workload."""

from __future__ import annotations

from functools import lru_cache

import islpy as isl

from cpembed.embedding.flatten import Groups, member_digits
from cpembed.ir.computation import Computation
from cpembed.ir.index import IndexExpr
from cpembed.ir.polyhedral import index_text


def flattening(original: Computation, flat: Computation, groups: Groups) -> list[str]:
    """What fails of: fused points number the original points, each once, with equal accesses."""
    return list(_decide(original, flat, tuple(sorted(groups.items()))))


@lru_cache(maxsize=1 << 10)
def _decide(
    original: Computation, flat: Computation, groups: tuple[tuple[str, tuple[str, ...]], ...]
) -> tuple[str, ...]:
    digits = member_digits(original, dict(groups))
    coordinates = [digits.get(a.name, IndexExpr.iterator(a.name)) for a in original.axes]
    points = _relation(flat, tuple(coordinates))
    failed: list[str] = []
    box = isl.Set(f"{{ [{_names(original)}] : {_bounds(original)} }}")
    if not (points.is_bijective() and points.range().is_equal(box)):
        failed.append("flatten: fused points do not number the original ones")
    for mine, theirs in zip(
        (*flat.reads, *flat.stores), (*original.reads, *original.stores), strict=True
    ):
        through = points.apply_range(_relation(original, theirs.index))
        if mine.operand != theirs.operand or not through.is_equal(_relation(flat, mine.index)):
            failed.append(f"flatten: {mine.operand} is accessed elsewhere")
    return tuple(failed)


def _names(computation: Computation) -> str:
    return ", ".join(f"i{n}" for n in range(len(computation.axes)))


def _bounds(computation: Computation) -> str:
    bounds = [f"0 <= i{n} < {axis.extent}" for n, axis in enumerate(computation.axes)]
    return " and ".join(bounds) or "true"


def _relation(computation: Computation, indices: tuple[IndexExpr, ...]) -> isl.Map:
    """``{ [axes] -> [indices] }`` on the iteration domain."""
    names = {axis.name: f"i{n}" for n, axis in enumerate(computation.axes)}
    target = ", ".join(index_text(index, names) for index in indices)
    return isl.Map(f"{{ [{_names(computation)}] -> [{target}] : {_bounds(computation)} }}")
