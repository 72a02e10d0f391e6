"""Operands in place: views of the original layouts, tiles that overlap where nothing is padded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpembed.cost.ranking import Candidate, derive_candidate
from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.solve import solve
from cpembed.errors import TransformError
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import AxisKind
from cpembed.ir.index import IndexExpr
from cpembed.ir.reference import random_inputs, reference
from cpembed.targets.cpu.variants import in_place, in_windows
from cpembed.transform.program import DerivedProgram, Overlap
from cpembed.transform.proof import prove
from cpembed.transform.rewrites import Overlapped
from tests.executed import execute
from tests.unit.transform.moved_data import forward, inverse
from tests.unit.transform.small_tiles import small_amx

IMAGE = ("I", "O")


def candidates(
    layer: str, spec: HardwareSpec, constraints: str = "in_place_padded", top: int = 6
) -> Any:
    """The workload, and the best candidates with data in place where that can be."""
    found = workload(layer.split(), target=spec)
    for ranked in solve(found, spec, constraints=constraints, top=top).embeddings:
        try:
            embedding = ranked.candidate.embedding
            yield found, derive_candidate(found, spec.instruction, embedding, in_place=IMAGE)
        except TransformError:
            continue


@given(block=st.integers(1, 9), extent=st.integers(1, 60), data=st.data())
def test_blocks_of_an_overlap_stay_inside_and_cover(
    block: int, extent: int, data: st.DataObject
) -> None:
    """Against plain arithmetic: where blocks begin, and what the one before has too."""
    if extent <= block:
        return
    count = -(-extent // block)
    overlap = Overlap("c", "c.o", block, count, extent, AxisKind.REDUCTION)
    seen: set[int] = set()
    for number in range(count):
        start = overlap.start().evaluate({"c.o": number})
        assert start == min(number * block, extent - block)
        for position in range(block):
            values = {"c.o": number, "z": position}
            again = overlap.repeated("c.o", IndexExpr.iterator("z")).evaluate(values)
            assert again == int(start + position in seen)
        seen |= set(range(start, start + block))
    assert seen == set(range(extent))


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("extent, block", [(7, 4), (9, 8), (17, 5)])
def test_the_rewrite_and_its_inverse(extent: int, block: int, zeros: bool) -> None:
    count = -(-extent // block)
    overlap = Overlap("c", "c.o", block, count, extent, AxisKind.REDUCTION)
    rewrite = Overlapped("W", 1, overlap, "c.o", "c.i", zeros=zeros)
    data = np.arange(1, 2 * extent + 1).reshape(2, extent)
    moved = forward(rewrite, data)
    assert moved.shape == (2, count, block)
    assert np.array_equal(inverse(rewrite, moved), data)
    assert np.array_equal(moved[:, -1, overlap.back :], data[:, extent - block + overlap.back :])
    shared = moved[:, -1, : overlap.back]
    expected = 0 if zeros else data[:, extent - block : extent - block + overlap.back]
    assert np.array_equal(shared, np.broadcast_to(expected, shared.shape))


@pytest.mark.parametrize(
    "layer, axes",
    [
        ("conv2d n=1 c=6 h=7 w=7 k=4 r=1 s=1 layout=NHWC", {"c"}),
        ("conv2d n=1 c=10 h=5 w=6 k=4 r=3 s=2 layout=NHWC", {"c"}),
        ("conv2d n=1 c=8 h=11 w=7 k=8 r=1 s=1 stride=2 layout=NHWC", set[str]()),
        ("gemm m=7 n=4 k=11", {"m", "k"}),
    ],
)
def test_programs_on_data_in_place_compute_the_workload(layer: str, axes: set[str]) -> None:
    """Executed operation by operation, and proven."""
    spec = small_amx()
    overlapping: set[str] = set()
    inputs_in_place = 0
    names = ("A", "C") if layer.startswith("gemm") else IMAGE
    found = workload(layer.split(), target=spec)
    for ranked in solve(found, spec, constraints="in_place_padded", top=6).embeddings:
        embedding = ranked.candidate.embedding
        try:
            candidate = derive_candidate(found, spec.instruction, embedding, in_place=names)
        except TransformError:
            continue
        assert prove(candidate.program).failed == ()
        data = random_inputs(found, 3)
        assert np.array_equal(execute(candidate.program, data), reference(found, data))
        overlapping |= {overlap.axis for overlap in candidate.program.overlaps}
        inputs_in_place += candidate.program.operand(names[0]).is_identity
    assert axes <= overlapping
    assert inputs_in_place


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "layer",
    [
        "conv2d n=1 c=3 h=7 w=9 k=4 r=3 s=3 layout=NHWC",
        "conv2d n=1 c=1 h=9 w=15 k=8 r=3 s=2 pad=1 stride=2 layout=NHWC",
        "conv2d n=1 c=6 h=7 w=9 k=4 r=2 s=2 layout=NHWC",
    ],
)
def test_the_output_alone_may_be_in_place(layer: str) -> None:
    """Tiles overlap in a packed image whose rows may begin anywhere, on either kind of layout."""
    spec = small_amx()
    found = workload(layer.split(), target=spec)
    overlapping: set[str] = set()
    windows = 0
    for ranked in solve(found, spec, constraints="in_place_padded", top=8).embeddings:
        twins = [*in_place(ranked, spec), *in_windows(ranked, spec)]
        for candidate in (twin.candidate for twin in twins):
            program = candidate.program
            if program.in_place != ("O",) or not program.overlaps:
                continue
            assert not program.operand("I").is_identity
            assert program.operand("O").is_identity
            assert prove(program).failed == ()
            data = random_inputs(found, 5)
            assert np.array_equal(execute(program, data), reference(found, data))
            overlapping |= {overlap.axis for overlap in program.overlaps}
            windows += bool(candidate.variant)
    assert overlapping & {"p", "q"}
    # Weights are packed in blocks, and all reductions are padded where nothing needs them whole.
    assert overlapping <= {"p", "q"}
    assert windows or layer.split()[2] == "c=6"


def test_a_margin_is_all_that_is_added() -> None:
    layer = "conv2d n=1 c=6 h=8 w=8 k=4 r=3 s=3 pad=1 layout=NHWC"
    for _, candidate in candidates(layer, small_amx()):
        image = candidate.program.operand("I")
        assert image.shape[1:] == (10, 10, 6)
        assert prove(candidate.program).holds
        break
    else:
        pytest.fail("no candidate in place")


def damaged(candidate: Candidate, **changed: Any) -> DerivedProgram:
    return replace(candidate.program, **changed)


def test_the_proof_sees_what_would_be_added_twice() -> None:
    """Weights without the zeros, and a tile that begins too early."""
    layer, candidate = next(
        iter(candidates("conv2d n=1 c=6 h=4 w=4 k=4 r=1 s=1 layout=NHWC", small_amx()))
    )
    program = candidate.program
    (overlap,) = program.overlaps
    weights = program.operand("W")
    plain = [
        IndexExpr.sum([t for t in index.terms if t.coefficient != overlap.extent], index.constant)
        for index in weights.source
    ]
    assert plain != list(weights.source)
    others = [
        replace(weights, source=tuple(plain)) if o is weights else o for o in program.operands
    ]
    wrong = damaged(candidate, operands=tuple(others))
    assert "neutral: a padded point changes the result" in prove(wrong).failed
    data = random_inputs(layer, 1)
    assert not np.array_equal(execute(wrong, data), reference(layer, data))
    # The axis map without the step back: the last block leaves the axis.
    index = program.axis_map[overlap.axis]
    forwards = IndexExpr.sum([t for t in index.terms if t.coefficient >= 0], index.constant)
    assert not prove(damaged(candidate, axis_map={**program.axis_map, "c": forwards})).holds


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    channels=st.integers(4, 13),
    height=st.integers(3, 8),
    width=st.integers(3, 8),
    filters=st.sampled_from([4, 8]),
    window=st.integers(1, 3),
    stride=st.integers(1, 2),
    pad=st.integers(0, 1),
)
def test_random_convolutions_in_place(
    channels: int, height: int, width: int, filters: int, window: int, stride: int, pad: int
) -> None:
    layer = (
        f"conv2d n=1 c={channels} h={height} w={width} k={filters} r={window} s={window} "
        f"stride={stride} pad={pad} layout=NHWC"
    )
    for found, candidate in candidates(layer, SMALL):
        assert prove(candidate.program).failed == ()
        data = random_inputs(found, 5)
        assert np.array_equal(execute(candidate.program, data), reference(found, data))


SMALL = small_amx()


@pytest.mark.quick(1)
@pytest.mark.parametrize("target, axes", [("amx_int8", {"c", "q"}), ("amx_bf16", {"q"})])
def test_floats_are_padded_where_zeros_would_have_to_absorb(target: str, axes: set[str]) -> None:
    """A zero times an infinity is no zero."""
    spec = hardware_spec(target)
    layer = "conv2d n=1 c=80 h=5 w=18 k=16 r=1 s=1 layout=NHWC"
    found = {o.axis for _, c in candidates(layer, spec, top=40) for o in c.program.overlaps}
    assert found & {"c", "q"} == axes


def test_what_the_instruction_cannot_walk_is_refused() -> None:
    """Channels of a channels-first image are no neighbours."""
    spec = hardware_spec("amx_int8")
    layer = workload("conv2d n=1 c=96 h=14 w=14 k=32 r=1 s=1", target=spec)
    embedding = (
        solve(layer, spec, constraints="in_place_padded", top=1).embeddings[0].candidate.embedding
    )
    with pytest.raises(TransformError, match="I lies in another order"):
        derive_candidate(layer, spec.instruction, embedding, in_place=IMAGE)
