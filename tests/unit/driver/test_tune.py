"""Tuning as a library: better than untuned, kept, resumed, and used by what runs layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cpembed.driver.bench import open_bench
from cpembed.driver.named import workload
from cpembed.driver.run import run
from cpembed.driver.run_result import RunResult
from cpembed.driver.tune import TuneResult, tune
from cpembed.errors import BackendUnavailable
from cpembed.ir.computation import Computation
from cpembed.runtime.tuning.database import DIRECTORY_VARIABLE
from cpembed.runtime.tuning.space import Proposal
from cpembed.targets.vta.schedule import Schedule
from cpembed.targets.vta.target import VtaTuner
from cpembed.targets.vta.tuning import VtaTrial

TARGET = "vta_1x16x16"


def layer() -> Computation:
    """One channel: in place, an instruction uses a sixteenth of its multipliers."""
    return workload("conv2d n=1 c=1 h=16 w=16 k=16 r=5 s=5", target=TARGET)


def tuned(folder: Path, trials: int = 12, constraints: str | None = None) -> TuneResult:
    result = tune(layer(), TARGET, trials=trials, constraints=constraints, database=folder)
    assert isinstance(result, TuneResult)
    return result


def ran(
    *, constraints: str | None = None, rank: int | None = None, untuned: bool = False
) -> RunResult:
    result = run(layer(), TARGET, constraints=constraints, rank=rank, seed=1, untuned=untuned)
    assert isinstance(result, RunResult)
    assert result.verification.verified
    return result


@pytest.mark.slow
def test_other_embeddings_are_found_for_few_channels(tmp_path: Path) -> None:
    result = tuned(tmp_path)
    assert result.untuned.cycles == ran().timing.cycles
    assert result.untuned.constraints == "fused"
    # 25 products a result: in place each is an execution, fused they are two.
    assert result.best.cycles is not None
    in_place = ran(constraints="in_place_padded").timing.cycles
    assert in_place is not None
    assert in_place > 3 * result.best.cycles
    assert result.best.cycles >= result.best.busiest_module >= result.best.lower_bound


@pytest.mark.slow
def test_the_same_call_measures_nothing_twice(tmp_path: Path) -> None:
    first, again, more = tuned(tmp_path), tuned(tmp_path), tuned(tmp_path, 16)
    assert (first.measured, again.measured) == (12, 0)
    assert again.trials == first.trials
    assert more.trials[:12] == first.trials
    assert (more.measured, more.stored) == (4, 16)


def test_what_was_interrupted_continues_as_if_it_had_not_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    constraints = "in_place_padded"
    whole = tuned(tmp_path / "whole", 8, constraints)
    count, tried = 0, VtaTuner.run_trial

    def breaks(self: VtaTuner, proposal: Proposal[Schedule], *of: Any) -> VtaTrial:
        nonlocal count
        count += 1
        if count > 5:
            raise KeyboardInterrupt
        return tried(self, proposal, *of)

    with monkeypatch.context() as patch:
        patch.setattr(VtaTuner, "run_trial", breaks)
        with pytest.raises(KeyboardInterrupt):
            tuned(tmp_path / "broken", 8, constraints)
    resumed = tuned(tmp_path / "broken", 8, constraints)
    assert resumed.measured == 3
    assert resumed.trials == whole.trials


@pytest.mark.slow
def test_a_time_limit_keeps_what_was_measured(tmp_path: Path) -> None:
    result = tune(layer(), TARGET, trials=100_000, timeout=3.0, database=tmp_path)
    assert isinstance(result, TuneResult)
    assert result.stopped
    assert 0 < result.measured == len(result.trials) < 100_000


@pytest.mark.slow
def test_runs_use_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    result = tuned(tmp_path)
    found, plain = ran(), ran(untuned=True)
    assert found.choice.tuned is not None
    assert found.timing.cycles == result.best.cycles
    assert found.candidate.embedding.identifier() == result.best.identifier
    assert plain.choice.tuned is None
    assert plain.timing.cycles == result.untuned.cycles
    # Of a set that is asked for, only what was tuned under it; of a rank, only its schedule.
    assert ran(constraints="in_place_padded").choice.tuned is None
    second = ran(constraints="relaxed", rank=2)
    assert second.choice.tuned is None
    under = tuned(tmp_path, 12, "relaxed")
    assert ran(constraints="relaxed").timing.cycles == under.best.cycles


@pytest.mark.slow
def test_rows_of_a_suite_are_of_what_tuning_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "tuned"))

    def bench(*, untuned: bool = False) -> tuple[int, int | None]:
        suite = open_bench(
            "deepbench", TARGET, layers="107", results=tmp_path / "rows", untuned=untuned
        )
        taken = suite.taken
        list(suite.run())
        (row,) = suite.finished()
        assert row.error is None
        assert row.run is not None
        assert row.run.verified
        assert (row.run.tuned is None) == (untuned or not (tmp_path / "tuned").exists())
        return taken, row.run.cycles

    before = bench()
    assert before[0] == 0
    assert bench() == (1, before[1])
    plain = bench(untuned=True)
    (first,) = open_bench("deepbench", TARGET, layers="107", results=tmp_path / "rows").layers
    layer_107 = first.workload(("int8", "int8", "int32"), "NCHW")
    result = tune(layer_107, TARGET, trials=6, candidates=1)
    assert isinstance(result, TuneResult)
    assert bench() == (0, result.best.cycles)
    assert bench() == (1, result.best.cycles)
    more = tune(layer_107, TARGET, trials=8, candidates=1)
    assert isinstance(more, TuneResult)
    assert bench() == (0, more.best.cycles)
    assert bench(untuned=True) == (1, plain[1])


def test_targets_that_nothing_executes_are_refused_before_a_search(tmp_path: Path) -> None:
    with pytest.raises(BackendUnavailable, match=r"gemm_16x16x16: no back end executes"):
        tune(workload("gemm m=8 n=16 k=16", target="gemm_16x16x16"), "gemm_16x16x16")
    assert not list(tmp_path.iterdir())
