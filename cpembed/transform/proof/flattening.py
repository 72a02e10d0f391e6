"""The obligation of fused axes: the workload over them is the original workload."""

from __future__ import annotations

from functools import lru_cache

from cpembed.ir.computation import Computation
from cpembed.ir.index import IndexExpr
from cpembed.ir.polyhedral import box, relation
from cpembed.transform.program import DerivedProgram


def flattening(program: DerivedProgram) -> list[str]:
    """Failures of the obligation: fused points number the original points once each, with the same
    accesses.

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
    points = relation(coordinates, flat.extents)
    failed: list[str] = []
    domain = box(original.extents.values())
    if gaps:
        points = points.intersect_range(domain)
    if not (points.is_bijective() and points.range().is_equal(domain)):
        failed.append("flatten: fused points do not number the original ones")
    for mine, theirs in zip(
        (*flat.reads, *flat.stores), (*original.reads, *original.stores), strict=True
    ):
        through = points.apply_range(relation(theirs.index, original.extents))
        found = relation(mine.index, flat.extents).intersect_domain(points.domain())
        if mine.operand != theirs.operand or not through.is_equal(found):
            failed.append(f"flatten: {mine.operand} is accessed elsewhere")
    return tuple(failed)
