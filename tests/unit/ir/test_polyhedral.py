"""Sets and relations of isl against plain enumeration of points."""

import itertools
import random

import islpy as isl
import pytest

from cpembed.errors import WorkloadError
from cpembed.ir.computation import Computation
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.ir.parser import parse_computation
from cpembed.ir.polyhedral import box, relation, require_written
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
    digits = IndexExpr.sum([IndexTerm("i", 2, 3, 2), IndexTerm("i", -1, 1, 2)], 1)
    found = relation([digits], {"i": 12})
    assert pairs(found) == {((i,), (2 * ((i // 3) % 2) - i % 2 + 1,)) for i in range(12)}


def _is_written(computation: Computation) -> bool:
    try:
        require_written(computation)
    except WorkloadError:
        return False
    return True


def _written_by_counting(computation: Computation) -> bool:
    """Every point of the axes writes what its stores name."""
    found: set[tuple[str, tuple[int, ...]]] = set()
    for point in itertools.product(*(range(axis.extent) for axis in computation.axes)):
        at = dict(zip(computation.extents, point, strict=True))
        for store in computation.stores:
            found.add((store.operand, tuple(index.evaluate(at) for index in store.index)))
    return len(found) == sum(output.elements for output in computation.outputs)


@pytest.mark.parametrize(
    "text, extents",
    [
        ("O[2*i] += A[i]", {"i": 4}),
        ("O[i+1] += A[i]", {"i": 4}),
        ("O[i,i] += A[i]", {"i": 4}),
        ("O[i,0] += A[i]; O[i,2] += A[i]", {"i": 4}),
        ("O[4*i+j] += A[i,j]", {"i": 3, "j": 3}),
    ],
)
def test_an_output_with_gaps_is_the_workloads_fault(text: str, extents: dict[str, int]) -> None:
    with pytest.raises(WorkloadError, match="unwritten: index an output without gaps"):
        require_written(parse_computation(text, extents))


def test_what_is_written_is_what_counting_finds() -> None:
    rng = random.Random(5)
    seen: set[bool] = set()
    for _ in range(150):
        axes = {name: rng.randint(1, 4) for name in "ijk"}
        first, second = (
            "+".join(f"{rng.randint(1, 4)}*{axis}" for axis in rng.sample("ijk", rng.randint(1, 2)))
            for _ in range(2)
        )
        store = rng.choice((f"O[{first}]", f"O[{first},{second}]"))
        computation = parse_computation(f"{store} += A[i,j,k]", axes)
        assert _is_written(computation) == _written_by_counting(computation), computation
        seen.add(_is_written(computation))
    assert seen == {True, False}


def test_results_that_interleave_are_whole() -> None:
    require_written(parse_computation("R[2*m] += A[m,k]; R[2*m+1] += B[m,k]", {"m": 4, "k": 4}))
