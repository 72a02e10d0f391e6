"""Fused axes: the digit model against brute force on the flattened workload."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from cpembed.driver.named import workload
from cpembed.driver.solve import solve
from cpembed.embedding.constraint_set import ConstraintSet, Flatten, load_constraint_set
from cpembed.embedding.constraints import (
    AllDifferent,
    Dataflow,
    Digits,
    FixedOrigin,
    HyperRectangle,
    Padding,
    Strides,
)
from cpembed.embedding.cpsat import SearchLimits
from cpembed.embedding.domains import padded_extents
from cpembed.embedding.flatten import adds_tiles, candidate_groups, flatten, flattened_problem
from cpembed.embedding.node_map import decode, expand
from cpembed.embedding.problem import EmbeddingProblem, pair_operands
from cpembed.embedding.search import search
from cpembed.ir.interpreter import interpret
from cpembed.ir.parser import parse_computation
from cpembed.ir.reference import random_inputs
from tests.node_maps import TooLarge, node_maps
from tests.unit.embedding.test_node_maps import make_instruction

CASES = [
    ("O[k] += I[c,s] * W[k,c,s]", {"k": 2, "c": 3, "s": 2}),
    ("O[k,q] += I[c,q+s] * W[k,c,s]", {"k": 2, "q": 2, "c": 2, "s": 3}),
    ("O[n,q] += I[n,q,c] * W[c]", {"n": 2, "q": 3, "c": 2}),
    ("O[p,q] += I[p+r,q+s] * W[r,s]", {"p": 2, "q": 2, "r": 2, "s": 2}),
]
CONSTRAINTS = ConstraintSet(
    "flat",
    "",
    (
        HyperRectangle("operations"),
        Dataflow(),
        AllDifferent("along_axes"),
        FixedOrigin(),
        Strides(("one",)),
        Digits(2),
        Padding("all", growth=2.0),
    ),
    flatten=Flatten(3),
)
SUB_IMAGES = CONSTRAINTS.replacing(Strides(("one", "spread"), "sub_images"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_a_flattened_workload_computes_the_same(case: tuple[str, dict[str, int]]) -> None:
    workload = parse_computation(*case)
    inputs = random_inputs(workload, 3)
    for name, members in candidate_groups(workload, 3).items():
        flat = flatten(workload, {name: members})
        assert len(flat.axes) == len(workload.axes) - len(members) + 1
        assert (interpret(flat, inputs) == interpret(workload, inputs)).all()


@pytest.mark.quick(1)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
@pytest.mark.parametrize(
    "seed, constraints",
    [
        (0, CONSTRAINTS),
        # Two minutes.
        pytest.param(1, CONSTRAINTS, marks=pytest.mark.slow),
        (2, CONSTRAINTS),
        (0, SUB_IMAGES),
    ],
    ids=["0", "1", "2", "sub_images"],
)
def test_fused_digits_are_those_of_the_flattened_workload(
    case: tuple[str, dict[str, int]], seed: int, constraints: ConstraintSet
) -> None:
    """One fused axis at a time: all embeddings of the flattened workload that use it and are not
    digits of a member anyway."""
    workload = parse_computation(*case)
    rng = random.Random(seed)
    problem = pair_operands(workload, make_instruction(rng))
    while not isinstance(problem, EmbeddingProblem) or any(
        None in names for names in problem.index_names.values()
    ):
        problem = pair_operands(workload, make_instruction(rng))
    found = search(problem, constraints, SearchLimits()).embeddings
    for name, members in candidate_groups(workload, 3).items():
        flat = flattened_problem(problem, {name: members})
        ours = {
            expand(flat, e).key()  # type: ignore[union-attr]
            for e in found
            if e.flattened == {name: members}
        }
        try:
            expected = brute_force(flat, name, members, problem, constraints)
        except TooLarge:
            continue
        assert ours == expected, (str(workload), members)


@pytest.mark.quick(1)
@pytest.mark.parametrize("plain", [False, True])
def test_a_digit_of_whole_members_is_fused_where_it_is_asked_for(plain: bool) -> None:
    """Four channels with 16 steps of a window's row of 7: two digits, one of them padded."""
    layer = "conv2d n=1 c=4 h=7 w=22 k=16 r=1 s=7 layout=NHWC"
    fused = replace(load_constraint_set("fused"), flatten=Flatten(2, 2, plain=plain))
    found = solve(
        workload(layer, target="amx_int8"), "amx_int8", constraints=fused, top=500
    ).embeddings
    groups = {
        e.candidate.embedding.flattened[digit.axis]
        for e in found
        for digit in e.candidate.embedding.digits["z"]
        if digit.axis in e.candidate.embedding.flattened
    }
    assert (("s", "c") in groups) is plain
    assert ("c", "s") in groups


def test_axes_of_one_point_are_in_no_group_that_must_be_longer() -> None:
    workload = parse_computation("O[n,p,q] += I[n,p,q,c] * W[c]", {"n": 1, "p": 2, "q": 3, "c": 2})
    assert {("p", "q"), ("n", "p"), ("n", "p", "q")} < set(candidate_groups(workload, 3).values())
    assert set(candidate_groups(workload, 3, 2).values()) == {("p", "q"), ("q", "p")}


def test_a_fused_axis_has_a_name_of_its_own() -> None:
    extents = {"i": 2, "a": 2, "b": 3, "a_b": 2}
    workload = parse_computation("C[i] += A[i, a, b, a_b] * B[a, b, a_b]", extents)
    groups = candidate_groups(workload, 3)
    assert len(groups) == len(set(groups.values())) == 12
    assert not groups.keys() & workload.extents.keys()
    assert flatten(workload, {"a_b_": groups["a_b_"]}).extents == {"i": 2, "a_b_": 6, "a_b": 2}


def brute_force(
    flat: EmbeddingProblem,
    name: str,
    members: tuple[str, ...],
    problem: EmbeddingProblem,
    constraints: ConstraintSet,
) -> set[object]:
    keys: set[object] = set()
    axes = flat.instruction.axes
    domain = padded_extents(flat, constraints)
    for sizes in itertools.product(*(axis.allowed for axis in axes)):
        extents = dict(zip((axis.name for axis in axes), sizes, strict=True))
        for node_map in node_maps(flat, domain, extents, budget=4_000):
            if not all(c.holds(flat, node_map) for c in constraints.constraints):
                continue
            embedding = decode(flat, node_map)
            assert embedding is not None
            digits = [d for ds in embedding.digits.values() for d in ds if d.axis == name]
            # Fused axes are walked at stride 1 only.
            if not digits or digits[0].stride > 1:
                continue
            if adds_tiles(problem.workload, members, digits[0].count, plain=False):
                keys.add(node_map.key())
    return keys
