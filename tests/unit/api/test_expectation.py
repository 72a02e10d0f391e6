"""A run says where its model was far off."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from cpembed.api.run_cpu import model_choices
from cpembed.api.run_vta import VtaRunResult
from rich.console import Console

from cpembed.api import expectation as module
from cpembed.api import run
from cpembed.api.expectation import Expectation
from cpembed.api.run_result import RunResult
from cpembed.api.solve import hardware_spec, solve, workload
from cpembed.measure.runner import Measurement, Quantiles
from cpembed.measure.verification import Verification
from cpembed.report.run import report
from cpembed.targets.cpu.calibration import default_calibration
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
    solved = solve(layer(GEMM), TARGET, "in_place_padded", top=2)
    choice = model_choices(solved.embeddings, hardware_spec(TARGET))[0]
    assert choice.estimate is not None
    us = times * choice.estimate.total_us
    measured = Measurement(Quantiles(us, us, us), 0.0, 0.0, Quantiles(us, us, us), 1.0, (), noisy)
    right = Verification(0.0, True, 0.0)
    return RunResult(solved, choice.candidate, "x86.amx", (), right, measured, 0, choice)


def printed(result: RunResult | VtaRunResult) -> list[str]:
    page = io.StringIO()
    for part in report(result):
        Console(file=page, width=400).print(part)
    return [line.strip() for line in page.getvalue().splitlines()]


def unexpected(result: RunResult | VtaRunResult) -> list[str]:
    return [line for line in printed(result) if line.startswith("unexpected")]


def test_a_run_says_what_was_expected_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "calibration", default_calibration)
    (line,) = unexpected(ran(9.0))
    assert "packing and unpacking included, 9.0 times as long as the " in line
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
    assert isinstance(found, VtaRunResult)
    expected = found.expectation
    assert expected is not None
    assert (expected.unit, expected.measured) == ("cycles", found.timing.cycles)
    assert found.to_json()["expectation"]["off"] is expected.is_off
    monkeypatch.setattr(module, "estimate_schedule", lambda *_: found.timing.cycles / 9)
    (line,) = unexpected(found)
    assert f"{found.timing.cycles:,} cycles, 9.0 times as long as the" in line
