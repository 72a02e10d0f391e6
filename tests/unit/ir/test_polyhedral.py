"""Sets and relations of isl against plain enumeration of points."""

import itertools

import islpy as isl
import pytest

from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.ir.parser import parse_computation
from cpembed.ir.polyhedral import box, relation
from cpembed.workloads.convolutions import conv2d
from cpembed.workloads.einsum import dot, gemm

COMPUTATIONS = [
    gemm(m=2, n=3, k=4),
    conv2d(n=1, c=2, h=4, w=3, k=2, r=3, s=2, pad=1, stride=2),
    parse_computation("O[i,j] = A[j,i]", {"i": 3, "j": 2}),
    dot(k=3),
    parse_computation("exists[mod] += floor[mod,and]", {"mod": 2, "and": 3}),
]
"""The last one has names that are keywords of isl."""


def set_points(a_set: isl.Set) -> set[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []

    def keep(point: isl.Point) -> None:
        dims = a_set.dim(isl.dim_type.set)
        found.append(
            tuple(point.get_coordinate_val(isl.dim_type.set, i).to_python() for i in range(dims))
        )

    a_set.foreach_point(keep)
    return set(found)


def pairs(a_map: isl.Map) -> set[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(source, target) of every element of a relation."""
    split = a_map.dim(isl.dim_type.in_)
    flat = a_map.wrap().flatten()
    return {(point[:split], point[split:]) for point in set_points(flat)}


def domain(computation):
    return list(itertools.product(*(range(e) for e in computation.extents.values())))


@pytest.mark.parametrize("computation", COMPUTATIONS, ids=str)
def test_boxes_hold_the_points(computation):
    assert set_points(box(computation.extents.values())) == set(domain(computation))
    for operand in computation.operands:
        expected = set(itertools.product(*(range(size) for size in operand.shape)))
        assert set_points(box(operand.shape)) == expected


@pytest.mark.parametrize("computation", COMPUTATIONS, ids=str)
def test_relations_give_the_element_of_each_point(computation):
    for access in (*computation.reads, *computation.stores):
        expected = {
            (point, tuple(index.evaluate(values) for index in access.index))
            for point in domain(computation)
            for values in [dict(zip(computation.extents, point, strict=True))]
        }
        assert pairs(relation(access.index, computation.extents)) == expected
        everywhere = relation(access.index, computation.extents, bounded=False)
        inside = everywhere.intersect_domain(box(computation.extents.values()))
        assert pairs(inside) == expected


def test_indices_may_have_floor_and_mod():
    digits = IndexExpr.of([IndexTerm("i", 2, 3, 2), IndexTerm("i", -1, 1, 2)], 1)
    found = relation([digits], {"i": 12})
    assert pairs(found) == {((i,), (2 * ((i // 3) % 2) - i % 2 + 1,)) for i in range(12)}
