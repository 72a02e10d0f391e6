"""Tuning on a CPU with a measurer that times nothing: kept, resumed, rejected, decided at the end,
and used by what runs layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cpembed.driver.named import hardware_spec
from cpembed.driver.options import KernelOptions
from cpembed.driver.pipeline import choose
from cpembed.driver.plan import Request, Selection
from cpembed.driver.solve import solve
from cpembed.driver.tune import OpenTuning, TuneResult, open_tuning, tune
from cpembed.embedding.constraint_set import load_constraint_set
from cpembed.errors import LoweringError, WorkloadError
from cpembed.runtime.measurement.runner import Quantiles
from cpembed.runtime.tuning.database import trial_files
from cpembed.runtime.tuning.records import Lookup, Record
from cpembed.runtime.tuning.session import CandidatePool, Task
from cpembed.targets.choice import choices
from cpembed.targets.cpu import tuning as cpu_trials
from cpembed.targets.cpu.measure import CopyTimes, Timed
from cpembed.targets.cpu.space import Objective
from cpembed.targets.cpu.tuning import FINALISTS, CpuTrial, CpuTuning, key_of
from cpembed.targets.cpu.variants import OVER_ROWS
from cpembed.targets.registry import open_target
from cpembed.targets.tuner import stored_record
from cpembed.targets.x86.target import X86Target
from tests.unit.targets.cpu.tuning import (
    TARGET,
    CpuProposal,
    FakeMeasurer,
    Modelled,
    designs,
    kernels,
    layer,
    machine,
)

SPEC = hardware_spec(TARGET)


def bumpy(proposal: CpuProposal) -> float | None:
    """Blocks of three points are fast, those of five have no kernel."""
    sizes = list(proposal.schedule.register_tiles.values())
    return None if 5 in sizes else proposal.estimate * (2.0 - 0.2 * sizes.count(3))


def tuning(
    folder: Path,
    trials: int = 24,
    us: Callable[[CpuProposal], float | None] = bumpy,
    *,
    constraints: str = "complete",
    objective: Objective = "total",
    limit: int | None = None,
    untuned: int = 0,
) -> tuple[CpuTuning, FakeMeasurer]:
    """``untuned`` is the place of what runs untuned among the model's schedules."""
    every = designs(objective=objective)
    chosen = load_constraint_set(constraints)
    task = Task(
        workload=layer(),
        target=SPEC,
        constraints=chosen,
        trials=trials,
        seed=0,
        started=0.0,
        deadline=float("inf"),
    )
    measurer = FakeMeasurer(us, limit=limit)
    field = CandidatePool(tuple(every), kernels(every[0])[untuned], ("cannot",))
    return CpuTuning(task, field, measurer, objective, folder), measurer


def result_of(searched: CpuTuning) -> TuneResult:
    return TuneResult.of_tuning(Modelled(machine(), searched.objective), searched)


def tuned(folder: Path, trials: int = 24, **how: Any) -> tuple[TuneResult, FakeMeasurer]:
    searched, measurer = tuning(folder, trials, **how)
    list(searched.run())
    return result_of(searched), measurer


@pytest.mark.slow
def test_the_fastest_is_kept_with_its_ratio_to_what_runs_untuned(tmp_path: Path) -> None:
    result, measurer = tuned(tmp_path)
    times = {trial.key: trial.us("total") for trial in result.trials}
    measured = [us for us in times.values() if us is not None]
    assert len(result.trials) == len(times) == 24
    assert result.best.us("total") == min(measured) < measured[0]
    assert result.untuned.key == result.trials[0].key
    # 5 us of moves are in the medians; the fake's ratios are of its own times.
    by_ratio = (result.untuned.us("kernel") or 0) / (result.best.us("kernel") or 1)
    assert result.speedup == pytest.approx(by_ratio)
    assert result.about["not_expressed"] == 1
    assert measurer.beside[0] is None


@pytest.mark.slow
def test_each_trial_is_timed_beside_the_best_one_before_it(tmp_path: Path) -> None:
    result, measurer = tuned(tmp_path)
    best: CpuTrial | None = None
    for trial, beside in zip(result.trials, measurer.beside, strict=True):
        assert beside == (None if best is None else best.key)
        if trial.ratio is not None and (best is None or trial.ratio < (best.ratio or 0)):
            best = trial
    ratios = {trial.key: trial.ratio for trial in result.trials}
    first = result.trials[0].us("kernel") or 1
    for trial in result.trials:
        us = trial.us("kernel")
        assert ratios[trial.key] == (None if us is None else pytest.approx(us / first))


@pytest.mark.slow
def test_rejected_trials_and_those_without_a_kernel_are_never_the_best(tmp_path: Path) -> None:
    untuned = kernels(designs()[0])[0]

    def failing(proposal: CpuProposal) -> float | None:
        return (
            None
            if proposal.schedule.register_tiles == untuned.register_tiles
            else 3.0 * proposal.estimate
        )

    result, _ = tuned(tmp_path, us=failing)
    failed = [trial for trial in result.trials if trial.error]
    assert failed
    assert {trial.latency_us for trial in failed} == {None}
    assert result.best.knobs.register_tiles != untuned.register_tiles
    # What runs untuned has no kernel: what was found is compared with itself.
    assert result.trials[0].error == "no kernel"
    assert result.speedup == 1
    rejected = CpuTrial.best_of([*result.trials, _rejected(result.best)])
    assert rejected == result.trials[[t.key for t in result.trials].index(result.best.key)]

    nothing, _ = tuning(tmp_path / "none", us=lambda proposal: None)
    list(nothing.run())
    with pytest.raises(LoweringError, match="no kernel"):
        result_of(nothing)


def _rejected(trial: CpuTrial) -> CpuTrial:
    values = {name: getattr(trial, name) for name in trial.__struct_fields__}
    return CpuTrial(**{**values, "ratio": 0.01, "rejected": True, "final": 0})


@pytest.mark.slow
def test_the_same_call_measures_nothing_twice(tmp_path: Path) -> None:
    first, _ = tuned(tmp_path)
    again, measurer = tuned(tmp_path)
    assert (first.measured, again.measured, measurer.beside, measurer.finals) == (24, 0, [], [])
    assert again.trials == first.trials
    assert (again.best, again.speedup) == (first.best, first.speedup)
    more, measurer = tuned(tmp_path, 32)
    assert more.trials[:24] == first.trials
    assert (more.measured, more.stored, len(measurer.finals)) == (8, 32, 1)


def test_what_was_interrupted_continues_as_if_it_had_not_been(tmp_path: Path) -> None:
    whole, _ = tuned(tmp_path / "whole", 12)
    broken, _ = tuning(tmp_path / "broken", 12, limit=8)
    with pytest.raises(KeyboardInterrupt):
        list(broken.run())
    assert len(broken.done) == 8
    assert result_of(broken).best.final == 0
    resumed, measurer = tuned(tmp_path / "broken", 12)
    assert resumed.measured == 4
    # The champion and the moves of embeddings come from the file.
    assert measurer.beside[0] is not None
    assert measurer.copy_times
    assert resumed.trials == whole.trials
    assert resumed.best == whole.best


@pytest.mark.slow
def test_the_best_are_timed_again_and_that_decides(tmp_path: Path) -> None:
    class Lucky(FakeMeasurer):
        """One schedule had luck in its rounds."""

        def measure(self, proposal: CpuProposal, champion: CpuProposal | None) -> Timed:
            found = super().measure(proposal, champion)
            assert isinstance(found, Timed)
            if len(self.beside) != 6:
                return found
            return Timed(Quantiles(1.0, 1.0, 1.0), CopyTimes(2.0, 3.0), 0.1, False)

    searched, _ = tuning(tmp_path, us=lambda proposal: proposal.estimate)
    searched._measurer = lucky = Lucky(lambda proposal: proposal.estimate)
    list(searched.run())
    result = result_of(searched)
    unlucky = result.trials[5]
    # It was timed beside the best one before it. Later ratios are by way of it: all others of one
    # tenth too.
    assert unlucky.ratio == pytest.approx(0.1 * min(t.ratio or 1 for t in result.trials[:5]))
    ((first, *others),) = lucky.finals
    assert first == result.trials[0].key
    assert unlucky.key in others
    assert len(others) <= FINALISTS
    assert result.best.final == 1
    assert result.best.key != unlucky.key
    assert result.untuned.final == 1
    # Both are kept: what was measured first is what is replayed.
    again, measurer = tuned(tmp_path, us=lambda proposal: proposal.estimate)
    assert (again.trials, measurer.finals) == (result.trials, [])


@pytest.mark.slow
def test_later_trials_are_compared_with_the_last_final_ones(tmp_path: Path) -> None:
    first, _ = tuned(tmp_path, 8)
    searched, _ = tuning(tmp_path, 200, limit=60)
    with pytest.raises(KeyboardInterrupt):
        list(searched.run())
    best = result_of(searched).best
    assert best.ratio is not None
    assert first.best.ratio is not None
    assert best.ratio <= first.best.ratio


@pytest.mark.slow
def test_what_runs_untuned_may_change(tmp_path: Path) -> None:
    """A calibration changes the model's choice: ratios are still over the file's first trial."""
    first, _ = tuned(tmp_path, 8)
    result, measurer = tuned(tmp_path, 8, untuned=-1)
    assert result.untuned.key != first.untuned.key
    assert measurer.beside[0] is None
    ratio = (result.trials[0].total_us or 0) / (first.trials[0].total_us or 1)
    assert result.trials[0].ratio == pytest.approx(ratio)


@pytest.mark.slow
def test_runs_take_the_best_of_the_objective_and_set(tmp_path: Path) -> None:

    def best(**of: Any) -> Record[Any] | None:
        return stored_record(open_target(SPEC), Lookup(layer(), directory=tmp_path, **of))

    assert best() is None
    kernel, _ = tuned(tmp_path, 8, objective="kernel")
    kept = best()
    assert kept is not None
    assert kept.trial == kernel.best
    total, _ = tuned(tmp_path, 12)
    kept = best()
    assert kept is not None
    assert (kept.trial, kept.trials) == (total.best, 12)
    assert best(constraints=load_constraint_set("strict")) is None
    other = designs()[1].candidate.embedding
    of_other = best(identifier=other.identifier())
    assert of_other is not None
    assert of_other.trial.identifier == other.identifier()


def test_what_changes_times_changes_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    complete = load_constraint_set("complete")
    base = key_of(layer(), SPEC, complete, "total")
    assert CpuTrial.is_current(base)
    assert CpuTrial.describes(base)
    others = [
        key_of(layer("gemm m=96 n=64 k=128"), SPEC, complete, "total"),
        key_of(layer(), hardware_spec("amx_bf16"), complete, "total"),
        key_of(layer(), SPEC, load_constraint_set("strict"), "total"),
        key_of(layer(), SPEC, complete, "kernel"),
    ]
    changes: list[tuple[str, object]] = [
        ("cpu_model", lambda: "another"),
        ("thread_count", lambda: 99),
        ("versions", lambda: {"cpembed": "99", "apache-tvm": "1"}),
        ("versions", lambda: {**versions, "apache-tvm": "99"}),
        ("_sources_digest", lambda backend: "other"),
    ]
    versions = cpu_trials.versions()
    for name, value in changes:
        with monkeypatch.context() as patch:
            patch.setattr(cpu_trials, name, value)
            others.append(key_of(layer(), SPEC, complete, "total"))
            assert not CpuTrial.is_current(base)
    assert len({repr(key) for key in (base, *others)}) == len(others) + 1


@pytest.mark.slow
def test_kept_trials_are_read_as_they_were_written(tmp_path: Path) -> None:
    result, _ = tuned(tmp_path)
    (file,) = trial_files(tmp_path, CpuTrial)
    assert file.is_current
    assert file.count == 24
    assert file.best == result.best
    assert [trial for trial in file.trials if not trial.final] == list(result.trials)


@pytest.fixture
def executes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this machine lacks."""
    monkeypatch.setattr(X86Target, "missing", lambda self: ())


@pytest.mark.slow
@pytest.mark.usefixtures("executes")
def test_a_run_takes_what_was_tuned_before_the_model_s_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CPEMBED_TUNE_DIR", str(tmp_path))
    solved = solve(layer(), SPEC, top=3)
    second = solved.embeddings[1]

    def chosen(**of: Any) -> Selection:
        found = choose(Request(layer(), SPEC, **of))
        assert isinstance(found, Selection)
        return found

    assert chosen().tuned is None
    result, _ = tuned(tmp_path)
    found = chosen()
    assert found.tuned is not None
    assert found.choice.schedule == result.best.knobs
    assert found.ranked.embedding.identifier() == result.best.identifier
    assert found.to_json()["tuned"]["trials"] == 24
    assert found.choice.estimated == result.best.estimated
    of_second = chosen(identifier=second.candidate.identifier)
    assert of_second.tuned is not None
    assert of_second.ranked.identifier == second.candidate.identifier
    assert chosen(untuned=True).tuned is None
    modelled = choices(open_target(SPEC), solved.embeddings)
    assert [choice.tuned for choice in modelled] == [None] * 3
    assert modelled[0].to_json(open_target(SPEC))["model"]["considered"] == 3


@pytest.mark.slow
@pytest.mark.usefixtures("executes")
def test_what_takes_part_is_distinct_and_begins_with_what_runs_untuned(tmp_path: Path) -> None:
    opened = open_tuning(layer(), SPEC, candidates=4, database=tmp_path)
    assert isinstance(opened, OpenTuning)
    unthrottled = choose(Request(layer(), SPEC, KernelOptions(untuned=True)))
    assert isinstance(unthrottled, Selection)
    field = opened.tuning.field
    first = field.designs[0].ranked
    assert first.candidate.identifier == unthrottled.ranked.identifier
    assert field.untuned == unthrottled.choice.schedule
    assert first.constraints.startswith("in_place_padded")
    sets = {design.ranked.constraints for design in field.designs}
    assert {"in_place_padded", f"in_place_padded, {OVER_ROWS}", "complete"} <= sets
    assert len({design.space.form() for design in field.designs}) == len(field.designs)
    assert field.refused == ()


def test_options_of_other_targets_are_refused_before_a_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cpembed.driver.tune.missing_for", lambda spec: ())
    with pytest.raises(WorkloadError, match=r"output form .* not for amx_int8"):
        tune(layer(), TARGET, output="int32", database=tmp_path)
    with pytest.raises(WorkloadError, match=r"vta_1x16x16 has no objective kernel .* leave it out"):
        tune(layer(), "vta_1x16x16", objective="kernel", database=tmp_path)
    with pytest.raises(WorkloadError, match=r"no objective speed \(total, kernel\): leave it out"):
        tune(layer(), TARGET, objective="speed", database=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_disturbed_decision_is_repeated(tmp_path: Path) -> None:
    searched, measurer = tuning(tmp_path, 8)
    final = measurer.final

    def disturbed(proposals: Sequence[CpuProposal]) -> list[Timed]:
        return [replace(timed, noisy=True) for timed in final(proposals)]

    measurer.final = disturbed
    list(searched.run())
    assert result_of(searched).best.noisy
    result, measurer = tuned(tmp_path, 8)
    assert (result.measured, len(measurer.finals)) == (0, 1)
    assert (result.best.noisy, result.best.final) == (False, 2)
    _, measurer = tuned(tmp_path, 8)
    assert measurer.finals == []
