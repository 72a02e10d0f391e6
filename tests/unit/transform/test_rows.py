"""The rows of an image as one axis: fused axes with a gap, in place, padded, and by phases."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpembed.cost.ranking import RankedCandidate
from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.solve import solve
from cpembed.embedding.embedding import Embedding
from cpembed.errors import InvariantError
from cpembed.ir.reference import random_inputs, reference
from cpembed.targets.cpu.variants import in_rows, require_variant
from cpembed.transform.program import DerivedProgram
from cpembed.transform.proof import prove
from cpembed.transform.rewrites import ImagePack
from tests.executed import execute
from tests.unit.transform.small_tiles import small_amx


def rows_of(layer: str, target: Any = None) -> list[RankedCandidate]:
    spec = target or small_amx()
    given = workload(layer.split(), target=spec)
    return in_rows(solve(given, spec, constraints="in_place_padded", top=1).embeddings[0], spec)


def program_of(found: list[RankedCandidate], *, in_place: bool) -> DerivedProgram:
    programs = [item.candidate.program for item in found]
    return next(p for p in programs if bool(p.in_place) is in_place)


def test_an_image_of_seven_columns_fills_tiles_of_sixteen_rows() -> None:
    layer = "conv2d n=1 c=64 h=9 w=9 k=32 r=3 s=3 layout=NHWC"
    found = rows_of(layer, hardware_spec("amx_int8"))
    program = program_of(found, in_place=True)
    assert program.embedding.pitches == {"q": 9}
    # 6 rows of 9 and one of 7; the last of four tiles moves back.
    assert program.workload.extents["p_q"] == 61
    assert program.operand("I").is_identity
    assert program.operand("O").shape[1] == 63
    # 7 tiles of one row each, with their 9 taps and 2 blocks of filters, become 4.
    assert program.calls == 4 * 9 * 2
    assert found[0].overheads.macs == 7 * 7 * 64 * 32 * 9


def test_rows_two_apart_are_those_of_phases() -> None:
    layer = "conv2d n=1 c=64 h=35 w=35 k=32 r=3 s=3 stride=2 layout=NHWC"
    (found,) = rows_of(layer, hardware_spec("amx_int8"))
    program = found.candidate.program
    # A row of 36 columns, two a step; 16 of these, one of 17, in 20 tiles; the row that r=2 adds.
    assert program.embedding.pitches == {"q": 18}
    assert program.workload.extents["p_q"] == 16 * 18 + 17
    assert program.operand("I").shape[1:3] == (2, 2 * (20 * 16 - 1) + 36 + 2 + 1)
    assert any(type(done) is ImagePack for done in program.rewrites)
    assert prove(program).holds


@pytest.mark.parametrize(
    "layer",
    [
        "conv2d n=1 c=64 h=16 w=16 k=32 r=3 s=3 layout=NHWC",
        "conv2d n=1 c=64 h=14 w=14 k=32 r=1 s=1 layout=NHWC",
        "gemm m=7 n=32 k=64",
    ],
)
def test_where_nothing_is_gained_there_are_none(layer: str) -> None:
    """14 columns of 16 in 14 rows: as many tiles; no windows; no image."""
    assert rows_of(layer, hardware_spec("amx_int8")) == []


@settings(max_examples=25, deadline=None)
@given(
    window=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    size=st.tuples(st.integers(5, 9), st.integers(5, 9)),
    channels=st.tuples(st.integers(1, 6), st.integers(1, 5)),
    step=st.tuples(st.integers(1, 3), st.integers(0, 2), st.integers(1, 2), st.integers(1, 2)),
    layout=st.sampled_from(["NHWC", "NCHW"]),
)
def test_random_convolutions_over_rows(
    window: tuple[int, int],
    size: tuple[int, int],
    channels: tuple[int, int],
    step: tuple[int, int, int, int],
    layout: str,
) -> None:
    """Executed operation by operation, and proven."""
    (r, s), (h, w), (c, k), (stride, pad, dilation, n) = window, size, channels, step
    layer = f"conv2d n={n} c={c} h={h} w={w} k={k} r={r} s={s} layout={layout}"
    layer += f" stride={stride} pad={pad} dilation={dilation}"
    for item in rows_of(layer):
        program = item.candidate.program
        require_variant(item.candidate)
        data = random_inputs(program.unfused, 3)
        assert np.array_equal(execute(program, data), reference(program.unfused, data))


def wrong(program: DerivedProgram, **changed: Any) -> DerivedProgram:
    return replace(program, embedding=replace(program.embedding, **changed))


def test_the_proof_sees_another_pitch() -> None:
    found = rows_of("conv2d n=1 c=4 h=7 w=7 k=4 r=3 s=3 layout=NHWC")
    program = program_of(found, in_place=True)
    assert prove(program).holds
    narrower = wrong(program, pitches={"q": 6})
    assert "flatten: I is accessed elsewhere" in prove(narrower).failed
    assert not prove(wrong(program, pitches={"q": 8})).holds
    assert not prove(wrong(program, pitches={})).holds
    item = replace(found[0].candidate, program=narrower)
    with pytest.raises(InvariantError, match="not proven"):
        require_variant(item)


def test_pitches_are_kept_with_the_embedding() -> None:
    (item, *_) = rows_of("conv2d n=1 c=4 h=7 w=7 k=4 r=3 s=3 layout=NHWC")
    embedding = item.candidate.embedding
    again = Embedding.from_json(embedding.to_json())
    assert again.pitches == embedding.pitches == {"q": 7}
    assert again.identifier() == embedding.identifier()
    assert again.identifier() != replace(embedding, pitches={}).identifier()
