"""Sets and relations of isl against plain enumeration of points."""

import itertools
from dataclasses import replace

import islpy as isl
import pytest

from cpembed.ir.expression import Access
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.ir.parser import parse_computation
from cpembed.ir.polyhedral import (
    access_relation,
    access_relations,
    dataflow_relations,
    instance_set,
    operand_set,
    statements,
)
from cpembed.operators.convolutions import conv2d
from cpembed.operators.einsum import gemm

GEMM = gemm(m=2, n=3, k=4)
CONV = conv2d(n=1, c=2, h=4, w=3, k=2, r=3, s=2, pad=1, stride=2)
MAXIMUM = parse_computation("O[i] max= abs(A[i,j] - 3)", {"i": 3, "j": 4})
COPY = parse_computation("O[i,j] = A[j,i]", {"i": 3, "j": 2})
CHAIN = parse_computation("O[i] = max(A[i] * 2, 0) >> 1", {"i": 3})
ALL = [GEMM, CONV, MAXIMUM, COPY, CHAIN]


def set_points(a_set: isl.Set) -> set[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []

    def keep(point: isl.Point) -> None:
        dims = a_set.dim(isl.dim_type.set)
        found.append(
            tuple(point.get_coordinate_val(isl.dim_type.set, i).to_python() for i in range(dims))
        )

    a_set.foreach_point(keep)
    return set(found)


def pairs(relation: isl.Map) -> set[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(source, target) of every element of a relation."""
    split = relation.dim(isl.dim_type.in_)
    flat = relation.wrap().flatten()
    return {(point[:split], point[split:]) for point in set_points(flat)}


def domain(computation):
    return list(itertools.product(*(range(e) for e in computation.extents.values())))


@pytest.mark.parametrize("computation", ALL, ids=str)
def test_instances_are_the_points_of_the_domain_for_every_statement(computation):
    count = len(statements(computation))
    expected = {(*point, t) for point in domain(computation) for t in range(count)}
    assert set_points(instance_set(computation)) == expected
    assert set_points(instance_set(computation, 0)) == {e for e in expected if e[-1] == 0}
    assert instance_set(computation).get_tuple_name() == "S"
    with pytest.raises(IndexError, match=f"has statements 0 to {count - 1}, not {count}"):
        instance_set(computation, count)


@pytest.mark.parametrize("computation", ALL, ids=str)
def test_operand_sets_hold_the_elements(computation):
    for operand in computation.operands:
        elements = operand_set(computation, operand.name)
        assert elements.get_tuple_name() == operand.name
        expected = set(itertools.product(*(range(size) for size in operand.shape)))
        assert set_points(elements) == expected


@pytest.mark.parametrize("computation", ALL, ids=str)
def test_access_relations_give_the_element_of_each_instance(computation):
    for (number, access), relation in access_relations(computation).items():
        expected = set()
        shape = computation.operand(access.operand).shape
        for point in domain(computation):
            values = dict(zip(computation.extents, point, strict=True))
            element = tuple(index.evaluate(values) for index in access.index)
            if all(0 <= i < size for i, size in zip(element, shape, strict=True)):
                expected.add(((*point, number), element))
        assert pairs(relation) == expected


def test_padding_of_the_image_has_no_element():
    relation = access_relation(CONV, CONV.access("I"), 0)
    assert 0 < relation.domain().count_val().to_python() < CONV.macs


def test_who_reads_and_writes():
    mul, add = statements(GEMM)
    assert (mul.op, [a.operand for a in mul.reads], mul.writes) == ("mul", ["A", "B"], None)
    assert (add.op, add.producers, add.writes, add.reduces) == (
        "add",
        (0,),
        GEMM.statement.store,
        True,
    )
    assert [s.op for s in statements(MAXIMUM)] == ["sub", "abs", "max"]
    assert [s.op for s in statements(CHAIN)] == ["mul", "max", "shr"]
    assert statements(CHAIN)[-1].writes == CHAIN.statement.store
    (copy,) = statements(COPY)
    assert (copy.op, copy.reads, copy.writes) == ("copy", COPY.reads, COPY.statement.store)


@pytest.mark.parametrize("computation", [GEMM, CONV, MAXIMUM], ids=str)
def test_dataflow_of_a_reduction(computation):
    flows = dataflow_relations(computation)
    last = len(statements(computation)) - 1
    assert set(flows) == {*((t, t + 1) for t in range(last)), (last, last)}
    for t in range(last):
        assert pairs(flows[t, t + 1]) == {((*p, t), (*p, t + 1)) for p in domain(computation)}

    def stored(point):
        values = dict(zip(computation.extents, point, strict=True))
        return tuple(index.evaluate(values) for index in computation.statement.store.index)

    points = domain(computation)
    together = {
        ((*a, last), (*b, last))
        for a in points
        for b in points
        if a != b and stored(a) == stored(b)
    }
    assert pairs(flows[last, last]) == together
    ordered = dataflow_relations(computation, ordered=True)
    following = set()
    for a in points:
        later = [b for b in points if b > a and stored(a) == stored(b)]
        if later:
            following.add(((*a, last), (*min(later), last)))
    assert pairs(ordered[last, last]) == following


def test_dataflow_without_a_reduction_has_no_self_edge():
    assert dataflow_relations(COPY) == {}
    assert set(dataflow_relations(CHAIN)) == {(0, 1), (1, 2)}
    single = parse_computation("O[i] += A[i]", {"i": 4})
    assert dataflow_relations(single) == {}


def test_indices_may_have_floor_and_mod():
    digits = Access("A", (IndexExpr.of([IndexTerm("i", 2, 3, 2), IndexTerm("i", -1, 1, 2)], 1),))
    plain = parse_computation("O[i] = A[i]", {"i": 12})
    computation = replace(plain, statements=(replace(plain.statement, value=digits),))
    relation = access_relation(computation, digits, 0)
    assert pairs(relation) == {((i, 0), (2 * ((i // 3) % 2) - i % 2 + 1,)) for i in range(12)}


def test_names_may_be_keywords_of_isl():
    computation = parse_computation("exists[mod] += floor[mod,and]", {"mod": 2, "and": 3})
    assert operand_set(computation, "floor").get_tuple_name() == "floor"
    relation = access_relation(computation, computation.access("floor"), 0)
    assert len(pairs(relation)) == 6
