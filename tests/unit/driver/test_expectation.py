"""A run says where its model was far off."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from cpembed.driver import run
from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.run_result import Expectation, RunResult
from cpembed.driver.solve import solve
from cpembed.provenance import Provenance
from cpembed.report.run import report
from cpembed.runtime.measurement.runner import Quantiles, Timing
from cpembed.runtime.measurement.verification import Verification
from cpembed.targets.base import Details
from cpembed.targets.choice import choices
from cpembed.targets.cpu import target as module
from cpembed.targets.cpu.calibration import default_calibration
from cpembed.targets.registry import open_target
from cpembed.targets.vta import tuning
from tests.unit.targets.cpu.tuning import GEMM, TARGET, layer

VTA = "vta_1x16x16"


@pytest.mark.parametrize(
    "measured, off", [(30.0, False), (31.0, True), (3.4, False), (3.3, True), (10.0, False)]
)
def test_a_factor_of_three_is_off(measured: float, off: bool) -> None:
    found = Expectation("us", 10.0, measured, ("why",))
    assert found.is_off is off
    assert found.to_json()["reasons"] == (["why"] if off else [])
    assert found.to_json()["ratio"] == pytest.approx(measured / 10)


def ran(times: float, *, noisy: bool = False) -> RunResult:
    """A run that took so many times its estimate."""
    solved = solve(layer(GEMM), TARGET, constraints="in_place_padded", top=2)
    target = open_target(hardware_spec(TARGET))
    choice = choices(target, solved.embeddings)[0]
    assert choice.scored is not None
    us = times * choice.scored.cost
    quantiles = Quantiles(us, us, us)
    timing = Timing(Provenance.MEASURED, 1000, quantiles, noisy=noisy, whole_us=quantiles)
    expectation = Expectation.of_choice(target, choice, timing)
    right = Verification(0.0, True, 0.0)
    return RunResult(
        solved=solved,
        target=target,
        candidate=choice.ranked,
        backend="x86.amx",
        missing=(),
        verification=right,
        timing=timing,
        seed=0,
        choice=choice,
        epilogue=None,
        stored="int32",
        details=Details(),
        expectation=expectation,
        seconds={},
    )


def printed(result: RunResult) -> list[str]:
    page = io.StringIO()
    for part in report(result):
        Console(file=page, width=400).print(part)
    return [line.strip() for line in page.getvalue().splitlines()]


def unexpected(result: RunResult) -> list[str]:
    return [line for line in printed(result) if line.startswith("unexpected")]


def test_a_run_says_what_was_expected_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "calibration", default_calibration)
    (line,) = unexpected(ran(9.0))
    assert "packing and unpacking included, but for B, which is packed ahead, 9.0 times as" in line
    assert "published figures of another machine: run `cpembed calibrate`" in line
    assert ran(9.0).to_json()["expectation"]["off"]
    (line,) = unexpected(ran(1 / 4))
    assert "1/4.0 of the" in line
    assert not unexpected(ran(1.1))
    assert not ran(1.1).to_json()["expectation"]["off"]
    (line,) = unexpected(ran(9.0, noisy=True))
    assert "perhaps other work on the machine disturbed the times" in line
    monkeypatch.setattr(module, "calibration", lambda: replace(default_calibration(), measured="x"))
    (line,) = unexpected(ran(9.0))
    assert "not as it was when it was calibrated: run `cpembed calibrate` again" in line


def test_a_simulated_run_compares_cycles(monkeypatch: pytest.MonkeyPatch) -> None:
    found = run.run(workload("gemm m=8 n=32 k=32", target=VTA), VTA, seed=0)
    assert isinstance(found, RunResult)
    cycles, expected = found.timing.cycles, found.expectation
    assert cycles is not None
    assert expected is not None
    assert (expected.unit, expected.measured) == ("cycles", cycles)
    assert found.to_json()["expectation"]["off"] is expected.is_off
    ranked = tuning.ranked_schedules

    def low(*arguments: Any) -> Any:
        return [(cycles / 9, schedule) for _, schedule in ranked(*arguments)]

    monkeypatch.setattr(tuning, "ranked_schedules", low)
    again = run.run(workload("gemm m=8 n=32 k=32", target=VTA), VTA, seed=0)
    assert isinstance(again, RunResult)
    (line,) = unexpected(again)
    assert f"{cycles:,} cycles, 9.0 times as long as the" in line
    assert "waits for loads or stores that the model overlaps" in line
