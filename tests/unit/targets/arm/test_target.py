"""Arm's instructions as a target: what executes them, what is said of it."""

from __future__ import annotations

import platform
from dataclasses import replace

import pytest

from cpembed.codegen import runtime
from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.run import run
from cpembed.driver.run_result import RunResult
from cpembed.driver.tune import tune
from cpembed.errors import BackendUnavailable
from cpembed.provenance import Provenance
from cpembed.targets.arm import emulator, target
from cpembed.targets.arm.target import ArmTarget
from cpembed.targets.tuner import why_untunable
from tests.unit.targets.arm.emulation import needs_emulator

SMMLA = hardware_spec("arm_smmla")


@needs_emulator
def test_a_run_has_right_numbers_and_no_time() -> None:
    result = run(workload("gemm m=5 n=6 k=9", target=SMMLA), SMMLA, output="int8", scale=True)
    assert isinstance(result, RunResult)
    assert (result.provenance, result.backend) == (Provenance.EMULATED, "arm.smmla")
    assert result.verification.verified
    assert result.timing.latency_us is None
    assert result.to_json()["time"]["us"] is None


def test_without_an_emulator_portable_code_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    emulator.emulator.cache_clear()
    monkeypatch.setenv("PATH", "")
    try:
        result = run(workload("gemm m=5 n=6 k=9", target=SMMLA), SMMLA)
    finally:
        emulator.emulator.cache_clear()
    assert isinstance(result, RunResult)
    assert not result.is_native
    assert "apt install qemu-user" in result.missing[0]


@pytest.mark.parametrize("emulator", [None, "/usr/bin/qemu-aarch64"])
def test_what_is_emulated_is_not_tuned(
    monkeypatch: pytest.MonkeyPatch, emulator: str | None
) -> None:
    monkeypatch.setattr(target, "emulator", lambda: emulator)
    with pytest.raises(BackendUnavailable, match="emulated here: there is no time to tune by"):
        tune(workload("gemm m=5 n=6 k=9", target=SMMLA), SMMLA, trials=1)


def test_an_arm_core_executes_and_measures_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(target, "cpu_features", lambda: frozenset({"asimd", "i8mm"}))
    found = ArmTarget(SMMLA)
    assert (found.provenance, found.missing()) == (Provenance.MEASURED, ())
    assert found.processor is runtime
    assert why_untunable(found) is None
    monkeypatch.setattr(target, "cpu_features", lambda: frozenset({"asimd"}))
    assert found.missing() == ("this machine lacks CPU feature i8mm",)


def test_an_instruction_of_another_feature_has_no_kernels() -> None:
    other = replace(SMMLA, cpu_features=("sve",))
    with pytest.raises(BackendUnavailable, match="the back end arm has no kernel for arm_smmla"):
        _ = ArmTarget(other).back_end
    assert "by cpu_features and element types" in ArmTarget(other).missing()[0]


@needs_emulator
def test_a_depthwise_convolution_runs_on_lanes() -> None:
    layer = workload("depthwise n=1 c=7 h=8 w=9 r=3 s=3 stride=2 pad=1", target=SMMLA)
    result = run(layer, SMMLA)
    assert isinstance(result, RunResult)
    assert (result.backend, result.solved.target.name) == ("arm.vector", "arm_int8")
    assert result.verification.verified
