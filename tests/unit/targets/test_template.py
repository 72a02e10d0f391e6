"""The target to be copied: it executes any program, and its estimates are its cycles."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cpembed.codegen.epilogue_request import EpilogueRequest
from cpembed.driver.named import workload
from cpembed.driver.result import SolveResult
from cpembed.driver.run import run
from cpembed.driver.solve import solve
from cpembed.driver.tune import TuneResult, tune
from cpembed.errors import LoweringError, SpecError, WorkloadError
from cpembed.hw.loader import load_hardware_spec
from cpembed.ir.reference import random_inputs, reference
from cpembed.targets import TEMPLATE
from cpembed.targets.registry import open_target
from cpembed.targets.TEMPLATE.schedule import Order
from cpembed.targets.TEMPLATE.target import TemplateTarget

UNIT = Path(TEMPLATE.__path__[0]) / "unit.toml"
SPEC = load_hardware_spec(str(UNIT))

LAYERS = (
    "gemm m=3 n=5 k=7",
    "gemm m=1 n=8 k=8",
    "conv2d n=1 c=5 h=6 w=5 k=6 r=3 s=2 pad=1 stride=2",
    "conv2d n=2 c=4 h=5 w=5 k=4 r=2 s=2 dilation=2 groups=2",
    "conv1d n=1 c=3 w=9 k=5 s=3",
)


def target() -> TemplateTarget:
    found = open_target(SPEC)
    assert isinstance(found, TemplateTarget)
    return found


@pytest.mark.quick(10)
@pytest.mark.parametrize("words", LAYERS)
@pytest.mark.parametrize("constraints", ["strict_padded", "in_place_padded", "complete"])
def test_every_candidate_is_right_and_takes_its_estimate(words: str, constraints: str) -> None:
    layer, machine = workload(words, SPEC), target()
    inputs = random_inputs(layer, 3)
    expected = reference(layer, inputs)
    for ranked in solve(layer, SPEC, constraints=constraints, top=3).embeddings:
        lowered = machine.lower(ranked.candidate.program)
        best = machine.space(lowered).best()
        unit = machine.build(lowered, best.schedule)
        (found,) = machine.execute(unit, inputs).outputs
        assert np.array_equal(found, expected)
        assert unit.cycles == best.cost


def test_every_order_is_right_and_the_best_is_the_best() -> None:
    layer, machine = workload(LAYERS[0], SPEC), target()
    inputs = random_inputs(layer, 4)
    expected = reference(layer, inputs)
    program = solve(layer, SPEC, top=1).embeddings[0].candidate.program
    lowered = machine.lower(program)
    space = machine.space(lowered)
    counted: list[int] = []
    for loops in itertools.permutations(lowered.extents):
        unit = machine.build(lowered, Order(loops))
        assert np.array_equal(machine.execute(unit, inputs).outputs[0], expected)
        assert unit.cycles == space.scored(Order(loops)).cost
        counted.append(unit.cycles)
    assert min(counted) == space.best().cost < max(counted)


@pytest.mark.slow
def test_it_is_run_and_tuned_as_any_other(tmp_path: Path) -> None:
    layer = workload(LAYERS[2], SPEC)
    result = run(layer, SPEC, seed=5)
    assert not isinstance(result, SolveResult)
    assert (result.backend, str(result.provenance)) == ("template", "simulated")
    assert result.verification.verified
    document: dict[str, Any] = result.to_json()
    assert document["time"]["cycles"] == document["simulated_cycles"] == result.timing.cycles
    tuned = tune(layer, SPEC, trials=12, database=tmp_path)
    assert isinstance(tuned, TuneResult)
    assert tuned.best.cost <= tuned.untuned.cost <= (result.timing.cycles or 0)
    again = tune(layer, SPEC, trials=12, database=tmp_path)
    assert isinstance(again, TuneResult)
    assert (again.measured, again.best) == (0, tuned.best)


def test_what_is_kept_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CPEMBED_TUNE_DIR", str(tmp_path))
    layer = workload(LAYERS[0], SPEC)
    tuned = tune(layer, SPEC, trials=6)
    result = run(layer, SPEC, seed=6)
    assert isinstance(tuned, TuneResult)
    assert not isinstance(result, SolveResult)
    assert result.choice.tuned is not None
    assert result.timing.cycles == tuned.best.cost


def test_what_it_refuses_is_said(tmp_path: Path) -> None:
    layer, machine = workload(LAYERS[0], SPEC), target()
    with pytest.raises(WorkloadError, match="template_unit stores the sums"):
        machine.epilogue(layer, EpilogueRequest("int8"))
    program = solve(layer, SPEC, top=1).embeddings[0].candidate.program
    with pytest.raises(LoweringError, match="are not the program's loops"):
        machine.space(machine.lower(program)).scored(Order(("m",)))
    bare = tmp_path / "bare.toml"
    bare.write_text(UNIT.read_text().partition("[machine]")[0])
    with pytest.raises(SpecError, match=r"bare\.toml: machine: is missing"):
        open_target(load_hardware_spec(str(bare)))
