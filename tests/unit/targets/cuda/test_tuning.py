"""Tuning on a GPU, with a driver that executes launches by the emulator."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cpembed.driver.named import workload
from cpembed.driver.run import run
from cpembed.driver.run_result import RunResult
from cpembed.driver.tune import TuneResult, tune
from cpembed.errors import BackendUnavailable, WorkloadError
from cpembed.runtime.tuning.database import DIRECTORY_VARIABLE
from cpembed.runtime.worker import IN_PROCESS_VARIABLE
from cpembed.targets.cuda import measurement
from cpembed.targets.cuda.remote.load import read_manifest
from cpembed.targets.cuda.tuning import MEASURED
from tests.unit.targets.cuda.emulator.running import needs_compiler, needs_nvcc
from tests.unit.targets.cuda.saved import fake_driver

pytestmark = [
    needs_nvcc,
    needs_compiler,
]

WORDS = "gemm m=64 n=48 k=64"


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_driver.build(tmp_path_factory.mktemp("driver"))


class FakeGpu:
    """A driver in this process's environment, whose kernels are executed by their texts."""

    def __init__(self, driver: Path, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.patch, self.measured = patch, 0
        programs = folder / "programs"
        programs.write_text("")
        save_variant = measurement.save_variant

        def saving(kernel: Any, at: Path, *rest: Any) -> None:
            save_variant(kernel, at, *rest)
            self.measured += 1
            manifest = read_manifest(at)
            library = fake_driver.emulated(at / manifest["source"])
            lines = [f"{at / image['file']} {library}\n" for image in manifest["images"]]
            programs.write_text("".join(lines))

        patch.setattr(measurement, "save_variant", saving)
        patch.setattr(measurement, "SECONDS", 0.0)
        patch.setenv(IN_PROCESS_VARIABLE, "1")
        patch.setenv(DIRECTORY_VARIABLE, str(folder / "trials"))
        self.set(
            LD_LIBRARY_PATH=driver, FAKE_CUDA="run", FAKE_CUDA_PROGRAMS=programs,
            FAKE_CUDA_THREADS_US="0.001",
        )  # fmt: skip

    def set(self, **variables: Any) -> None:
        for name, value in variables.items():
            self.patch.setenv(name, str(value))
        self.restart()

    def restart(self) -> None:
        """End the process that has the driver, which reads the environment once."""
        measurement.close()
        measurement.device_facts.cache_clear()


@pytest.fixture
def fake(driver: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGpu]:
    gpu = FakeGpu(driver, tmp_path, monkeypatch)
    yield gpu
    gpu.restart()


def tuned(target: str = "mma_f16", **options: Any) -> TuneResult:
    result = tune(workload(WORDS, target=target), target, candidates=3, **options)
    assert isinstance(result, TuneResult)
    return result


def test_the_fastest_of_three_is_kept_and_runs(fake: FakeGpu) -> None:
    result = tuned(output="float16")
    assert len(result.trials) == result.measured == fake.measured == MEASURED
    schedules = [trial.schedule for trial in result.trials]
    blocks = {
        (*(w * t for w, t in zip(s["warps"], s["tile"], strict=True)), s["splits"])
        for s in schedules
    }
    assert len(blocks) == MEASURED
    assert result.best.time == min(trial.time for trial in result.trials)
    assert result.to_json()["device"] == "fake GPU"
    assert result.to_json()["provenance"] == "measured"
    # The same call measures nothing, and a run takes the schedule, whatever steps it has.
    assert tuned(output="float16").measured == 0
    for relu in (False, True):
        ran = run(workload(WORDS, target="mma_f16"), "mma_f16", output="float16", relu=relu)
        assert isinstance(ran, RunResult)
        assert ran.choice.tuned is not None
        assert ran.choice.tuned.trial == result.best
    other = run(workload(WORDS, target="mma_f16"), "mma_f16")
    assert isinstance(other, RunResult)
    assert other.choice.tuned is None


def test_a_run_measures_the_first_three_and_runs_the_fastest(fake: FakeGpu) -> None:
    for _ in range(2):
        # A second run measures nothing anew.
        ran = run(workload(WORDS, target="mma_f16"), "mma_f16", output="float16", measure=True)
        assert fake.measured == MEASURED
        assert isinstance(ran, RunResult)
        assert ran.choice.tuned is not None
        tuning = tuned(constraints="fused", output="float16")
        assert ran.choice.tuned.trial == tuning.best
        assert ran.choice.schedule == ran.target.schedule_of(tuning.best)


def test_a_run_cannot_measure_without_a_gpu_or_a_choice(fake: FakeGpu) -> None:
    operator = workload(WORDS, target="mma_f16")
    with pytest.raises(WorkloadError, match="--measure chooses by times: leave out --rank"):
        run(operator, "mma_f16", measure=True, rank=1)
    fake.set(FAKE_CUDA="none")
    with pytest.raises(BackendUnavailable, match=r"mma_f16: .*`cpembed bench … --pack"):
        run(operator, "mma_f16", measure=True)
    assert fake.measured == 0


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["FAKE_CUDA_CRASH", "FAKE_CUDA_HANG"])
def test_a_schedule_that_ends_its_process_is_a_failed_trial(
    fake: FakeGpu, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = tuned()
    schedules = [trial.schedule["warps"] for trial in first.trials]
    threads = 32 * schedules[0][0] * schedules[0][1]
    assert any(32 * a * b != threads for a, b in schedules)
    shutil.rmtree(first.database.parent)
    monkeypatch.setattr(measurement, "PATIENCE", 2.0)
    fake.set(**{fault: threads})
    result = tuned()
    for trial, (rows, columns) in zip(result.trials, schedules, strict=True):
        assert (trial.time is None) == (32 * rows * columns == threads)
        reason = "no answer in 2 s" if fault == "FAKE_CUDA_HANG" else "ended by signal 6"
        assert trial.error is None or reason in trial.error
    assert result.best.time is not None


@pytest.mark.slow
def test_wrong_results_end_the_search(fake: FakeGpu) -> None:
    fake.set(FAKE_CUDA="idle")
    with pytest.raises(Exception, match="wrong on the GPU"):
        tuned()


@pytest.mark.slow
def test_the_machine_is_the_one_that_the_gpu_is(fake: FakeGpu) -> None:
    fake.set(FAKE_CUDA_CAPABILITY=90)
    assert tuned().target.described_machine == "h100"
    ran = run(workload(WORDS, target="mma_f16"), "mma_f16", measure=True)
    assert isinstance(ran, RunResult)
    assert ran.target.described_machine == "h100"
    assert ran.choice.tuned is not None
    fake.set(FAKE_CUDA_CAPABILITY=100)
    with pytest.raises(BackendUnavailable, match=r"fake GPU is of sm_100.*a100.*--machine"):
        tuned()
    assert tuned(machine="a100").target.described_machine == "a100"


def test_without_a_gpu_one_line_says_what_to_do(
    fake: FakeGpu, capsys: pytest.CaptureFixture[str]
) -> None:
    from cpembed.cli import main

    for behaviour in ("none", "memory"):
        fake.set(FAKE_CUDA=behaviour)
        assert main(["tune", *WORDS.split(), "--target", "mma_f16"]) == 5
        (line,) = capsys.readouterr().err.splitlines()
        assert "bench … --pack" in line
