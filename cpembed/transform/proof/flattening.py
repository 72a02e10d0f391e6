"""The obligation of fused axes: the workload over them is the original workload."""

from __future__ import annotations

from functools import lru_cache

import islpy as isl

from cpembed.ir.computation import Computation
from cpembed.ir.index import IndexExpr
from cpembed.ir.polyhedral import index_text
from cpembed.transform.program import DerivedProgram


def flattening(program: DerivedProgram) -> list[str]:
    """What fails of: fused points number the original points, each once, with equal accesses.

    Points in the gaps of a fused axis (:attr:`Embedding.pitches`) are none of them.
    """
    original, flat = program.unfused, program.workload
    coordinates = tuple(
        program.member_digits.get(axis.name, IndexExpr.iterator(axis.name))
        for axis in original.axes
    )
    return list(_decide(original, flat, coordinates, gaps=bool(program.embedding.pitches)))


@lru_cache(maxsize=1 << 10)
def _decide(
    original: Computation, flat: Computation, coordinates: tuple[IndexExpr, ...], *, gaps: bool
) -> tuple[str, ...]:
    points = _relation(flat, coordinates)
    failed: list[str] = []
    box = isl.Set(f"{{ [{_names(original)}] : {_bounds(original)} }}")
    if gaps:
        points = points.intersect_range(box)
    if not (points.is_bijective() and points.range().is_equal(box)):
        failed.append("flatten: fused points do not number the original ones")
    for mine, theirs in zip(
        (*flat.reads, *flat.stores), (*original.reads, *original.stores), strict=True
    ):
        through = points.apply_range(_relation(original, theirs.index))
        found = _relation(flat, mine.index).intersect_domain(points.domain())
        if mine.operand != theirs.operand or not through.is_equal(found):
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
