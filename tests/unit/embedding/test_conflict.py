"""Explanations of infeasible problems: every claim is checked, exact sentences for known cases."""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from cpembed.embedding import projection
from cpembed.embedding.commute import Pairing
from cpembed.embedding.conflict import Conflict, explain_infeasible
from cpembed.embedding.constraint_set import ConstraintSet, load_constraint_set
from cpembed.embedding.constraints.domain import Padding
from cpembed.embedding.cpsat import SearchLimits, Status
from cpembed.embedding.domains import padded_extents
from cpembed.embedding.problem import EmbeddingProblem, pair_operands
from cpembed.embedding.projection import (
    ALWAYS,
    axis_subsets,
    dropping,
    feasible_without_boxes,
    project,
)
from cpembed.embedding.roles import Feed, candidates
from cpembed.embedding.search import find_embeddings, search
from cpembed.hw.instruction import Instruction
from cpembed.hw.loader import load_hardware_spec
from cpembed.ir.computation import Computation
from cpembed.ir.parser import parse_computation
from cpembed.workloads.naming import parse_workload
from cpembed.workloads.suites import suite
from tests.node_maps import TooLarge, solutions
from tests.unit.embedding.test_node_maps import make_problem

ONCE = SearchLimits(solutions=1, seconds=20.0)


def explain(workload: str, target: str, constraints: str = "strict") -> Conflict:
    instruction = load_hardware_spec(target).instruction
    dtypes = tuple(instruction.dtypes[o.name][0] for o in instruction.computation.operands)
    words = parse_workload(workload.split(), dtypes)
    return explain_infeasible(Pairing(words, instruction), load_constraint_set(constraints))


def is_feasible(problem: EmbeddingProblem, constraints: ConstraintSet) -> bool:
    """By the plain search, without the shortcuts of an explanation."""
    if constraints.get("hyper_rectangle") is None:
        axes = tuple(replace(a, maximum=a.minimum) for a in problem.instruction.axes)
        smallest = {a.name: a.minimum for a in problem.instruction.configurable_axes}
        computation = problem.instruction.with_extents(smallest)
        instruction = replace(problem.instruction, axes=axes, computation=computation)
        problem = replace(problem, instruction=instruction)
    status = search(problem, constraints, ONCE).status
    assert status is not Status.UNKNOWN
    return status is not Status.INFEASIBLE


def infeasible_problem(seed: int) -> tuple[EmbeddingProblem, ConstraintSet] | None:
    problem, constraints = make_problem(seed)
    return None if is_feasible(problem, constraints) else (problem, constraints)


def check_conflict(problem: EmbeddingProblem, constraints: ConstraintSet) -> Conflict:
    conflict = explain_infeasible(Pairing(problem.workload, problem.instruction), constraints)
    assert conflict.words
    assert conflict.constraints
    projected = replace(problem, instruction=project(problem.instruction, conflict.axes))
    names = {c.name for c in constraints.constraints}
    assert set(conflict.constraints) <= names
    others = names - set(conflict.constraints) - set(ALWAYS)
    assert not is_feasible(projected, dropping(constraints, others)), "they exclude each other"
    for name in set(conflict.constraints) - set(ALWAYS) if conflict.minimal else ():
        assert is_feasible(projected, dropping(constraints, {*others, name})), f"{name} is needed"
    for axes in (axes for some in axis_subsets(problem.instruction) for axes in some):
        if set(axes) < set(conflict.axes) and conflict.minimal:
            smaller = replace(problem, instruction=project(problem.instruction, axes))
            assert is_feasible(smaller, constraints), "fewer axes can be fed"
    return conflict


@pytest.mark.quick(1)
@pytest.mark.parametrize("block", range(8))
def test_conflicts_are_minimal_and_real(block: int) -> None:
    found = [infeasible_problem(seed) for seed in range(block * 25, block * 25 + 25)]
    kept = [check_conflict(*some) for some in found if some is not None]
    assert sum(conflict.minimal for conflict in kept) >= max(5, 0.8 * len(kept))


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_conflicts_are_minimal_and_real_at_length(block: int) -> None:
    for seed in range(1000 + block * 100, 1100 + block * 100):
        some = infeasible_problem(seed)
        if some is not None:
            check_conflict(*some)


@pytest.mark.slow
def test_what_has_an_embedding_has_one_in_every_projection() -> None:
    compared = 0
    for seed in range(120):
        problem, constraints = make_problem(seed)
        if not is_feasible(problem, constraints):
            continue
        for axes in (axes for some in axis_subsets(problem.instruction) for axes in some):
            projected = replace(problem, instruction=project(problem.instruction, axes))
            assert is_feasible(projected, constraints)
            compared += 1
    assert compared > 50


@pytest.mark.slow
def test_no_embedding_contradicts_what_is_said_about_workload_axes() -> None:
    compared = 0
    for seed in range(300):
        problem, constraints = make_problem(seed)
        if constraints.get("hyper_rectangle") is None:
            continue
        for embedding in search(problem, constraints, SearchLimits()).embeddings:
            for axis, digits in embedding.digits.items():
                for digit in (d for d in digits if d.axis in candidates(problem, axis)):
                    feed = Feed(problem, constraints, axis, digit.axis)
                    assert not feed.obstacles()
                    assert digit.count in feed.counts()
                    if feed.is_undivided:
                        assert digit.count == embedding.extents[axis]
                    compared += 1
    assert compared > 200


@pytest.mark.slow
def test_shortcuts_without_boxes_agree_with_brute_force() -> None:
    compared = {True: 0, False: 0}
    for seed in range(300):
        problem, constraints = make_problem(seed)
        if not all(axis.is_fixed for axis in problem.instruction.axes):
            continue
        dropped = [("hyper_rectangle",), ("hyper_rectangle", "fixed_origin")][seed % 2]
        boxless = dropping(constraints, dropped)
        if math.prod(padded_extents(problem, boxless).values()) > 24:
            continue
        found = feasible_without_boxes(problem, boxless, SearchLimits())
        try:
            expected = bool(solutions(problem, boxless))
        except TooLarge:
            continue
        assert found is expected
        compared[expected] += 1
    assert min(compared.values()) > 20


def test_places_are_counted_from_above() -> None:
    """Against every point of the domain, by the values of the indices that are constant."""
    random = Random(1)
    tight = 0
    for _ in range(500):
        extents = {name: random.randint(1, 5) for name in "abcd"}
        sums = [
            "+".join(f"{random.randint(1, 4)}*{name}" for name in random.sample("abcd", terms))
            for terms in random.choices((1, 2, 3), k=random.randint(1, 2))
        ]
        text = f"O[a,b,c,d] += I[{','.join(sums)}] * W[a,b,c,d]"
        constant = list(dict.fromkeys(parse_computation(text, extents).access("I").index))
        points = itertools.product(*map(range, extents.values()))
        images = (dict(zip(extents, point, strict=True)) for point in points)
        sizes = Counter(tuple(int(i.evaluate(image)) for i in constant) for image in images)
        bound = projection._places(extents, set(), constant)
        assert bound >= max(sizes.values()), (text, extents)
        tight += bound == max(sizes.values())
    assert tight > 250


def test_batch_one_does_not_feed_the_batch_axis() -> None:
    conflict = explain("conv2d n=1 c=64 h=56 w=56 k=64 r=3 s=3 pad=1", "vta_8x8x8")
    assert conflict.axes == ("x",)
    assert conflict.constraints == ("linear_access", "padding")
    assert conflict.words == (
        (
            "axis x (8, spatial) needs 8 from n=1, p=56 or q=56; "
            "`linear_access` and `padding` leave no way to get it"
        ),
        "n=1 gives no factor of 8 without padding",
        "p=56 is a stencil axis of I[p + r - 1] (linear_access)",
        "q=56 is a stencil axis of I[q + s - 1] (linear_access)",
    )
    assert conflict.relaxations == (
        "padding of n from 1 to 8: utilisation 0.12",
        "leaving out linear_access: x from 8 of p",
    )


def test_three_channels_do_not_feed_sixteen() -> None:
    conflict = explain("conv2d n=1 c=3 h=224 w=224 k=64 r=3 s=3 pad=1", "vta_1x16x16")
    assert conflict.axes == ("z",)
    assert conflict.words == (
        (
            "axis z (16, reduction) needs 16 from c=3, r=3 or s=3; "
            "`linear_access` and `padding` leave no way to get it"
        ),
        "c=3 gives no factor of 16 without padding",
        (
            "r=3 is a stencil axis of I[p + r - 1] (linear_access) "
            "and gives no factor of 16 without padding"
        ),
        (
            "s=3 is a stencil axis of I[q + s - 1] (linear_access) "
            "and gives no factor of 16 without padding"
        ),
    )
    assert conflict.relaxations == ("padding of c from 3 to 16: utilisation 0.19",)


def test_several_axes_at_fault_are_relaxed_together() -> None:
    conflict = explain("gemm m=7 n=24 k=63", "amx_int8")
    assert conflict.axes == ("y",)
    assert conflict.words == (
        (
            "axis y (16, spatial) needs 16 from n=24; "
            "`hyper_rectangle` and `padding` leave no way to get it"
        ),
        "n=24 gives at most 8 of 16 without padding",
        "axis z (64, reduction) needs 64 from k=63; `padding` leaves no way to get it",
    )
    assert conflict.relaxations == (
        "padding of n from 24 to 32 and k from 63 to 64: utilisation 0.74",
    )


def test_stencils_that_can_be_read_in_place_are_offered_first() -> None:
    conflict = explain("conv2d n=1 c=64 h=34 w=34 k=16 r=3 s=3 stride=2", "wmma_f16")
    assert conflict.relaxations[:2] == (
        'linear_access with stencil = "in_place": x from 16 of p',
        "padding of n from 1 to 16: utilisation 0.062",
    )


def test_factors_are_exchanged_where_the_labels_need_it() -> None:
    """Under a set that does not exchange them otherwise: roles follow the operations."""
    workload = "O[n,k,p] += W[k,c] * (I[n,c,p] - Z[c]) n=1 k=16 c=16 p=14"
    instruction = load_hardware_spec("vta_1x16x16").instruction
    computation = parse_workload(
        ["C[x,y] += (A[x,z] - D[z]) * B[y,z]", "x=1", "y=16", "z=16"], ("int8",) * 3 + ("int32",)
    )
    found = find_embeddings(
        parse_workload(workload.split()),
        with_offset(instruction, computation),
        load_constraint_set("strict"),
        ONCE,
    )
    (embedding,) = found.embeddings
    assert embedding.operands == {"A": "I", "D": "Z", "B": "W", "C": "O"}


def with_offset(instruction: Instruction, computation: Computation) -> Instruction:
    """The instruction with another operand D, a row as A has them."""
    row = replace(instruction.memory["A"], tile=instruction.memory["A"].tile[1:], strides={})
    return replace(
        instruction,
        computation=computation,
        dtypes={**instruction.dtypes, "D": instruction.dtypes["A"]},
        memory={**instruction.memory, "D": row},
    )


@pytest.mark.parametrize(
    "layer",
    [
        "depthwise n=1 c=64 h=56 w=56 r=3 s=3 pad=1",
        "depthwise n=1 c=64 h=112 w=112 r=5 s=5 pad=2 stride=2",
        "conv2d n=1 c=1 k=1 groups=64 h=28 w=28 r=3 s=3 pad=1",
    ],
)
def test_windows_on_one_pixel_are_too_few_for_an_axis(layer: str) -> None:
    """Without boxes and linear accesses 16 outputs could still read one pixel of a channel: a
    window of 3 x 3, or of 5 x 5 in steps of 2, has 9 positions there. The domain is too large to be
    searched."""
    conflict = explain(layer, "vta_1x16x16")
    assert (conflict.axes, conflict.constraints) == (("y",), ("padding",))
    assert conflict.minimal


def test_an_axis_without_counterpart() -> None:
    conflict = explain("O[m] += A[m,k] * B[k] m=64 k=64", "vta_8x8x8")
    assert conflict == Conflict(
        ("y",),
        ("dataflow",),
        (
            (
                "axis y (8, spatial) has no counterpart: "
                "no axis of the workload indexes B and O but not A"
            ),
        ),
    )


def test_labels_that_differ() -> None:
    conflict = explain("O[m,n] max= A[m,k] * B[n,k] m=64 k=64 n=64", "vta_8x8x8")
    assert conflict.constraints == ("dataflow",)
    assert conflict.words == ("vta_8x8x8 combines results by add, the workload by max",)
    assert conflict.to_json() == [
        {
            "axes": [],
            "constraints": ["dataflow"],
            "minimal": True,
            "words": ["vta_8x8x8 combines results by add, the workload by max"],
            "relaxations": [],
        }
    ]


def test_strides_and_partial_factors() -> None:
    strided = explain("O[m,n] += A[2*m,k] * B[n,k] m=64 k=64 n=64", "vta_8x8x8")
    assert strided.constraints == ("hyper_rectangle", "dense")
    assert strided.words[1:] == ("m=64 has stride 2 in A[2*m] (dense)",)
    parts = explain("O[m,n] += A[m,a,b] * B[n,a,b] m=64 a=4 b=3 n=64", "vta_8x8x8")
    assert parts.words[1:] == (
        "a=4 gives at most 4 of 8 without padding",
        "b=3 gives no factor of 8 without padding",
    )
    assert parts.relaxations[0] == "padding of b from 3 to 4: utilisation 0.75"


@pytest.mark.slow
def test_every_deepbench_layer_with_few_channels_names_the_channels() -> None:
    instruction = load_hardware_spec("vta_1x16x16").instruction
    layers = [layer for layer in suite("deepbench") if int(layer.parameters["c"]) < 16]
    assert len(layers) == 12
    slowest = 0.0
    for layer in layers:
        started = time.perf_counter()
        conflict = explain_infeasible(
            Pairing(layer.workload(), instruction), load_constraint_set("strict")
        )
        slowest = max(slowest, time.perf_counter() - started)
        assert conflict.axes == ("z",)
        assert "padding" in conflict.constraints
        channels = int(layer.parameters["c"])
        assert any(words.startswith(f"c={channels} ") for words in conflict.words)
        assert all("stencil axis" in w for w in conflict.words if w.startswith(("r=", "s=")))
        used = channels / 16
        padded = f"padding of c from {channels} to 16: utilisation {used:.2g}"
        assert padded in conflict.relaxations
    assert slowest < 5.0, "an explanation is read by somebody who waits"


def test_an_index_that_runs_backwards_embeds() -> None:
    """A flipped filter starts at the window's end; its origin is where the first point reads."""
    workload = parse_workload(
        ["O[k,q]", "+=", "I[c,q-s+2]", "*", "W[k,c,s]", "k=8", "q=8", "c=8", "s=3"]
    )
    instruction = load_hardware_spec("vta_8x8x8").instruction
    found = find_embeddings(workload, instruction, load_constraint_set("relaxed"))
    assert found.embeddings


def test_axes_that_exclude_each_other() -> None:
    """Rows of the image from the output's columns, and the reduction from the filter's, use the
    same dimension of the image twice."""
    problem, constraints = make_problem(2596)
    assert str(problem.workload) == "O[c, q] += (I[c, 2*q + s] * W[c, s])"
    conflict = check_conflict(problem, constraints)
    assert conflict.axes == ("x", "z")
    assert conflict.constraints == ("hyper_rectangle",)
    assert conflict.words == (
        (
            "axes x (2, spatial) and z (3, reduction) cannot be fed together, "
            "though each alone can: `hyper_rectangle` excludes it"
        ),
        "alone, x from 2 of q is possible",
        "alone, z from 3 of s is possible",
    )


def test_a_scalar_output() -> None:
    conflict = explain("O[] += A[k] * B[k] k=64", "vta_8x8x8")
    assert conflict.axes == ("x",)
    assert conflict.words[0].startswith("axis x (8, spatial) has no counterpart")


def test_out_of_time_is_said() -> None:
    instruction = load_hardware_spec("vta_1x16x16").instruction
    workload = suite("deepbench")[0].workload()
    strict = load_constraint_set("strict")
    conflict = explain_infeasible(Pairing(workload, instruction), strict, SearchLimits(seconds=0.0))
    assert not conflict.minimal
    assert "time ran out" in conflict.words[-1]


def test_what_is_too_large_is_not_out_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projection, "feasible_without_boxes", lambda *_: None)
    instruction = load_hardware_spec("vta_1x16x16").instruction
    workload = suite("deepbench")[0].workload()
    conflict = explain_infeasible(Pairing(workload, instruction), load_constraint_set("strict"))
    assert not conflict.minimal
    assert any("it would take too long to decide whether" in words for words in conflict.words)
    assert not any("time ran out" in words for words in conflict.words)


def test_relaxations_keep_their_promise() -> None:
    """The padding that an explanation names, written into the set, gives an embedding."""
    instruction = load_hardware_spec("vta_1x16x16").instruction
    layer = next(layer for layer in suite("deepbench") if layer.parameters["c"] == "3")
    padded = load_constraint_set("strict").replacing(Padding(("c",), growth=16 / 3))
    problem = pair_operands(layer.workload(), instruction)
    assert isinstance(problem, EmbeddingProblem)
    assert is_feasible(problem, padded)
    tighter = load_constraint_set("strict").replacing(Padding(("c",), growth=15 / 3))
    assert not is_feasible(problem, tighter)


def test_a_feasible_problem_has_no_explanation() -> None:
    with pytest.raises(ValueError, match="has an embedding"):
        explain("gemm m=8 n=8 k=8", "vta_8x8x8")
