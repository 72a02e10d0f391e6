"""Trials and rows as tasks: the same as one after the other, whoever executes them."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from pathlib import Path

import msgspec
import pytest

from cpembed.driver import bench_maker
from cpembed.driver.bench import Bench, open_bench
from cpembed.driver.named import workload
from cpembed.driver.tune import OpenTuning, open_tuning
from cpembed.errors import BackendUnavailable, CrashError, InvariantError
from cpembed.runtime.cluster import Outcome, Task, Workers
from cpembed.runtime.measurement import runner
from cpembed.runtime.tuning.database import DIRECTORY_VARIABLE
from cpembed.runtime.worker import IN_PROCESS_VARIABLE

TARGET = "vta_1x16x16"


class Backwards(Workers):
    """Executes all tasks, and is done with the last one first; those of some keys end in an
    error, those of others are lost."""

    def __init__(
        self, errors: dict[int, Exception] | None = None, lost: frozenset[int] = frozenset()
    ) -> None:
        self.errors = errors or {}
        self.lost = lost
        self.begun = 0

    def outcomes(self, tasks: Iterable[Task]) -> Generator[Outcome, None, None]:
        for task in reversed(list(tasks)):
            number, self.begun = self.begun, self.begun + 1
            if number in self.errors:
                yield Outcome(task, error=self.errors[number])  # pyright: ignore[reportArgumentType]
            elif number not in self.lost:
                yield Outcome(task, task.function(*task.arguments))


def tuning(folder: Path, workers: Workers | None = None, trials: int = 20) -> OpenTuning:
    given = workload("gemm m=16 n=32 k=48", target=TARGET)
    opened = open_tuning(given, TARGET, trials=trials, database=folder, workers=workers)
    assert isinstance(opened, OpenTuning)
    return opened


def lines(opened: OpenTuning) -> list[str]:
    return opened.tuning.store.path.read_text().splitlines()


@pytest.mark.slow
def test_trials_that_come_backwards_are_kept_and_told_in_their_order(tmp_path: Path) -> None:
    one, two = tuning(tmp_path / "one"), tuning(tmp_path / "two", Backwards())
    assert list(two.run()) == list(one.run())
    assert lines(two) == lines(one)
    assert two.tuning.measured == 20


@pytest.mark.slow
def test_what_is_lost_ends_the_run_and_is_made_by_the_next_one(tmp_path: Path) -> None:
    whole = tuning(tmp_path / "whole")
    trials = list(whole.run())
    # Of the second eight, number 3: the fifth that is executed backwards.
    broken = tuning(tmp_path / "broken", Backwards(lost=frozenset({8 + 4})))
    assert list(broken.run()) == trials[: 8 + 3]
    resumed = tuning(tmp_path / "broken", Backwards())
    assert list(resumed.run()) == trials
    assert resumed.tuning.measured == 20 - 11
    assert lines(resumed) == lines(whole)


def test_no_trial_is_begun_after_a_stop(tmp_path: Path) -> None:
    workers = Backwards()
    opened = tuning(tmp_path, workers)
    done = list(opened.run(lambda: len(opened.tuning.done) >= 10))
    # The second generation was under way.
    assert (len(done), workers.begun) == (16, 16)


def test_a_crash_is_a_trial_without_a_figure_and_a_failed_check_is_raised(tmp_path: Path) -> None:
    errors: dict[int, Exception] = {6: CrashError("simulating ended in SIGSEGV")}
    opened = tuning(tmp_path / "crash", Backwards(errors), trials=8)
    trials = list(opened.run())
    assert trials[1].error == "simulating ended in SIGSEGV"
    assert [trial.error for trial in trials].count(None) == 7
    wrong = tuning(tmp_path / "wrong", Backwards({0: InvariantError("wrong numbers")}), trials=8)
    with pytest.raises(InvariantError, match="wrong numbers"):
        list(wrong.run())


# ------------------------------------------------------------------------------------------- rows


def bench(folder: Path, *, execute: bool = False, layers: str = "12,48,107") -> Bench:
    return open_bench("deepbench", TARGET, layers=layers, execute=execute, results=folder)


def test_an_error_of_a_task_is_an_error_row_and_the_others_go_on(tmp_path: Path) -> None:
    opened = bench(tmp_path)
    error = CrashError("making the row ended each of the 2 workers that tried it")
    rows = list(opened.run(workers=Backwards({1: error})))
    assert [row.index for row in rows] == [107, 48, 12]
    assert [row.index for row in opened.finished()] == [12, 48, 107]
    failed = rows[1]
    assert failed.error is not None
    assert (failed.error.type, failed.error.exit_code) == ("CrashError", 1)
    assert (failed.label, opened.exit_code()) == (opened.layers[1].label, 1)
    # It is worth another try.
    again = bench(tmp_path)
    assert [layer.index for layer in again.pending] == [48]


def test_no_row_is_begun_after_a_stop(tmp_path: Path) -> None:
    opened = bench(tmp_path)
    assert list(opened.run(workers=Backwards(), stop=lambda: True)) == []
    stopped = list(opened.run(stop=lambda: len(opened.rows) == 2))
    assert [row.index for row in stopped] == [12, 48]


def test_which_rows_are_timed(tmp_path: Path) -> None:
    assert not bench(tmp_path).measures
    assert not bench(tmp_path, execute=True).measures
    portable = open_bench("gemm", TARGET, backend="generic", layers="0", results=tmp_path)
    assert portable.measures
    # A processor's instruction: where it is not executed, rows are only solved.
    native = open_bench("gemm", "avx512_vnni", layers="0", results=tmp_path)
    assert native.measures == (not native.missing)


@pytest.mark.quick(1)
@pytest.mark.parametrize("noise", [0.0, 1e9], ids=["disturbed", "quiet"])
def test_a_simulated_row_has_no_time_of_the_worker_s_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noise: float
) -> None:
    monkeypatch.setattr(runner, "NOISE", noise)
    monkeypatch.setenv(IN_PROCESS_VARIABLE, "1")
    opened = bench(tmp_path, execute=True, layers="107")
    (layer,) = opened.layers
    here = opened.maker.row(layer, progress=lambda phase, count: None).run
    digest = bench_maker.inputs_digest(opened.maker, layer)
    there = bench_maker.make_row(opened.maker, layer, digest).run
    assert here is not None
    assert there is not None
    assert here.packing_us is not None
    assert here.cycles is not None
    assert here.noisy == (noise == 0)
    assert not there.noisy
    assert there == msgspec.structs.replace(here, packing_us=None, unpacking_us=None, noisy=False)


@pytest.mark.slow
def test_a_worker_that_knows_other_trials_makes_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "client"))
    opened = bench(tmp_path, execute=True, layers="107")
    (layer,) = opened.layers
    before = bench_maker.inputs_digest(opened.maker, layer)
    task = bench_maker.make_row, (opened.maker, layer, before)
    assert task[0](*task[1]).error is None
    given = opened.maker.workload(layer)
    tuned = open_tuning(given, TARGET, trials=2, candidates=1, database=tmp_path / "worker")
    assert isinstance(tuned, OpenTuning)
    list(tuned.run())
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "worker"))
    assert bench_maker.inputs_digest(opened.maker, layer) != before
    with pytest.raises(BackendUnavailable, match="both read the same CPEMBED_TUNE_DIR"):
        task[0](*task[1])
