"""Machines with scratchpads as targets: what runs, what is refused, what is written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cpembed.codegen.epilogue_request import EpilogueRequest
from cpembed.driver.named import workload
from cpembed.driver.run import run
from cpembed.driver.solve import solve
from cpembed.errors import LoweringError, WorkloadError
from cpembed.provenance import Provenance
from cpembed.targets.scratchpad.boxes import lower
from cpembed.targets.scratchpad.executor import HEADER, ScratchpadProgram, in_tiles, program
from cpembed.targets.scratchpad.schedule import Plan, check
from cpembed.targets.scratchpad.target import ScratchpadTarget
from cpembed.targets.tuner import why_untunable
from tests.unit.targets.scratchpad.executor.running import needs_compiler
from tests.unit.targets.scratchpad.plans import (
    TARGETS,
    machine,
    plan_of,
    small_inputs,
    spec,
)

GEMM = "gemm m=20 n=40 k=24"


def made(*, ahead: bool = False) -> ScratchpadProgram:
    lanes = {"n": "x", "m": "y", "k": "z"}
    return program(plan_of("sw26010", GEMM, lanes, {"m": 16}, ahead=ahead))


@needs_compiler
@pytest.mark.parametrize("target", TARGETS)
def test_numbers_are_emulated_and_times_estimated(target: str) -> None:
    document = run(workload(GEMM, spec(target)), target, seed=1, untuned=True).to_json()
    assert document["verified"]
    assert document["provenance"] == Provenance.EMULATED
    assert document["estimated_us"] > 0
    parts = (document[f"estimated_{name}_us"] for name in ("transferring", "executing", "exposed"))
    assert all(0 < part <= document["estimated_us"] * (1 + 1e-9) for part in parts)
    moved = {(m["operand"], m["direction"]): m["bytes"] for m in document["counters"]["moved"]}
    assert sorted(moved) == [(0, "get"), (1, "get"), (2, "put")]
    assert moved[2, "put"] == 4 * 20 * 40
    for used in document["scratchpads"].values():
        assert 0 < used["used_bytes"] <= used["bytes"]


def test_sums_are_stored_as_they_are() -> None:
    target = ScratchpadTarget(spec("sw26010"))
    target.epilogue(workload(GEMM, spec("sw26010")), EpilogueRequest())
    with pytest.raises(WorkloadError, match="sw26010 stores the sums: leave out what is to be"):
        target.epilogue(workload(GEMM, spec("sw26010")), EpilogueRequest(relu=True))
    assert "there is no time to tune by" in (why_untunable(target) or "")


def test_the_peak_is_that_of_the_described_machine() -> None:
    assert ScratchpadTarget(spec("sw26010")).peak_gops() == pytest.approx(742.4)
    assert ScratchpadTarget(spec("nvdla_small")).peak_gops() == pytest.approx(128)


@needs_compiler
def test_what_is_saved_is_enough_to_port(tmp_path: Path) -> None:
    """The plan says where the boxes of an operand in tiles are, and the kernel compiles with the
    interface beside it."""
    artifact = made(ahead=False)
    ScratchpadTarget(spec("sw26010")).save(artifact, tmp_path / "out")
    assert (tmp_path / "out" / "kernel.c").read_text() == artifact.text
    assert (tmp_path / "out" / "scratchpad.h").read_text() == HEADER.read_text()
    document = json.loads((tmp_path / "out" / "plan.json").read_text())
    assert document["machine"] == "core_group"
    assert document["mesh"] == [8, 8]
    assert [each["name"] for each in document["operands"]] == ["B", "A", "C"]
    assert document["schedule"]["buffers"] == 2
    (memory,) = document["scratchpads"]
    assert (memory["used_bytes"], memory["bytes"]) == (artifact.plan.used[0], 65_536)


@pytest.mark.parametrize(
    "change, problem",
    [
        ({"tile": (("m", 16), ("n", 32), ("k", 7))}, "k is tiled in multiples of 8"),
        ({"tile": (("m", 0), ("n", 32), ("k", 8))}, "m is tiled in multiples of 8"),
        ({"tile": (("m", 16), ("n", 32))}, "tiles and loops are of m n k"),
        ({"order": ("m", "n")}, "tiles and loops are of m n k"),
        ({"order": ("k", "m", "n")}, "inside all spatial loops"),
        ({"buffers": 3}, "one buffer or two"),
    ],
)
def test_a_schedule_that_the_product_has_not_is_refused(
    change: dict[str, Any], problem: str
) -> None:
    plan = made().plan
    with pytest.raises(LoweringError, match=problem):
        check(Plan(plan.product, replace(plan.schedule, **change)))


@pytest.mark.parametrize(
    "words, constraints, problem",
    [
        (
            "conv2d n=1 c=8 h=6 w=6 k=32 r=3 s=3 layout=NHWC",
            "fused",
            "fused axes are no boxes; use --constraints boxes",
        ),
        ("gemm m=64 n=64 k=64", "relaxed", "in steps of"),
    ],
)
def test_what_is_no_box_says_why(words: str, constraints: str, problem: str) -> None:
    reasons: list[str] = []
    given = workload(words, spec("sw26010"))
    for each in solve(given, spec("sw26010"), constraints=constraints, top=30).embeddings:
        try:
            lower(each.candidate.program, machine("sw26010"))
        except LoweringError as error:
            reasons.append(str(error))
    assert any(problem in reason for reason in reasons), set(reasons)
    assert all("\n" not in reason for reason in reasons)


@needs_compiler
def test_tiles_ahead_hold_every_element_where_the_kernel_looks() -> None:
    """An operand in tiles has room for whole boxes, and zeros beyond the operand."""
    plan = made(ahead=True).plan
    box = plan.form.boxes[0]
    assert box.tiled
    array = small_inputs(plan.product.program.unfused, 1)[box.operand.name]
    found = in_tiles(plan, box, array + 10)
    assert np.count_nonzero(found) == array.size
    assert found.sum() == (array + 10).sum()
