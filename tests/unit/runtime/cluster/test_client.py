"""Tasks on a Dask cluster of real processes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cpembed.codegen.host_cpu import cpu_model
from cpembed.errors import BackendUnavailable, CrashError
from cpembed.runtime.cluster import Task, client, open_workers
from cpembed.runtime.cluster.executors import Workers
from cpembed.runtime.cluster.member import Identity, OtherVersion, identity
from tests.clusters import Scheduler, scheduling, surroundings
from tests.unit.runtime.cluster import outcomes, tasks


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scheduler]:
    """With two workers; a task may end two of them."""
    folder = tmp_path_factory.mktemp("run")
    with scheduling(folder, **{"allowed-failures": 1}) as found:
        found.start("--slots", "2")
        yield found


@pytest.fixture
def workers(scheduler: Scheduler) -> Iterator[Workers]:
    scheduler.wait_for(2)
    with open_workers(cluster=scheduler.address) as found:
        yield found


def test_every_task_has_one_outcome_and_all_workers_work(workers: Workers) -> None:
    outcomes.assert_all_work(workers, 0.1)


def test_errors_are_outcomes_and_bugs_are_raised(workers: Workers) -> None:
    outcomes.assert_errors_are_outcomes(workers)
    with pytest.raises(FileNotFoundError, match="nothing there"):
        list(workers.outcomes([Task("e", tasks.open_nothing, (), "opening")]))


def test_tasks_may_start_processes(workers: Workers) -> None:
    (outcome,) = workers.outcomes([Task("a", tasks.start_a_process, (), "starting")])
    assert (outcome.error, outcome.result) == (None, 0)


@pytest.mark.parametrize("whole_worker", [False, True])
def test_who_is_killed_once_is_replaced_and_its_task_is_done(
    workers: Workers, tmp_path: Path, whole_worker: bool
) -> None:
    def killed(name: str) -> Task:
        function = _kill_worker_once if whole_worker else _kill_process_once
        return Task(name, function, (tmp_path, name), f"doing {name}")

    outcomes = list(workers.outcomes([killed("a"), *tasks.squares(range(5), 0.2)]))
    assert sorted(outcome.task.key for outcome in outcomes) == ["0", "1", "2", "3", "4", "a"]
    assert all(outcome.error is None for outcome in outcomes)
    assert (tmp_path / "a").stat().st_size == 2


def test_what_kills_its_workers_is_an_error_of_that_task_only(
    workers: Workers, tmp_path: Path
) -> None:
    bad = Task("bad", _poison_workers, (tmp_path, "bad"), "doing what is bad")
    found = {
        outcome.task.key: outcome
        for outcome in workers.outcomes([bad, *tasks.squares(range(6), 0.3)])
    }
    error = found.pop("bad").error
    assert isinstance(error, CrashError)
    assert error.exit_code == 1
    assert "doing what is bad ended each of the 2 workers that tried it" in str(error)
    # Beside others, which are not to blame, and alone.
    assert (tmp_path / "bad").stat().st_size == 4
    assert sorted(found) == [str(number) for number in range(6)]
    assert all(outcome.error is None for outcome in found.values())


def _kill_process_once(folder: Path, name: str) -> str:
    return tasks.killed_at_first(folder, name, whole_worker=False)


def _kill_worker_once(folder: Path, name: str) -> str:
    return tasks.killed_at_first(folder, name, whole_worker=True)


def _poison_workers(folder: Path, name: str) -> None:
    tasks.poison(folder, name, whole_worker=True)


@pytest.mark.parametrize("seconds, ahead", [(0.02, 2), (0.7, 1)])
def test_tasks_are_taken_as_there_is_room(workers: Workers, seconds: float, ahead: int) -> None:
    taken: list[str] = []

    def endless() -> Iterator[Task]:
        for task in tasks.squares(range(1000), seconds):
            taken.append(task.key)
            yield task

    run = workers.outcomes(endless())
    for _ in range(6):
        next(run)
    assert len(taken) <= 6 + ahead * workers.count
    run.close()


@pytest.mark.slow
def test_a_worker_that_joins_late_gets_work(workers: Workers, scheduler: Scheduler) -> None:
    run = workers.outcomes(tasks.squares(range(30), 0.6))
    early = {next(run).result[1] for _ in range(2)}
    late = scheduler.start("--slots", "1")
    rest = [outcome.result[1] for outcome in run]
    assert len(rest) == 28
    assert set(rest) - early
    late.terminate()
    assert late.wait(timeout=20) == 130
    scheduler.workers.remove(late)


def test_another_version_is_refused(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Identity({**identity().versions, "ortools": "9.14"}, identity().source)
    monkeypatch.setattr(client, "identity", lambda: other)
    with pytest.raises(OtherVersion, match=r"has ortools 9\.15\S*, not 9\.14: install the same"):
        list(workers.outcomes(tasks.squares(range(2))))


def test_nobody_measures_is_said_at_once(workers: Workers, scheduler: Scheduler) -> None:
    started = time.monotonic()
    with pytest.raises(BackendUnavailable) as caught:
        open_workers(cluster=scheduler.address, measures=True)
    assert time.monotonic() - started < 5
    assert f"can measure on {cpu_model()}: of its 2 workers none measures" in str(caught.value)
    assert "--measure" in str(caught.value)


def test_an_address_where_nobody_answers() -> None:
    started = time.monotonic()
    with pytest.raises(BackendUnavailable, match=r"no Dask scheduler answers at tcp://127.0.0.1:9"):
        open_workers(cluster="127.0.0.1:9")
    # Dask tries for half a minute by default; a busy machine takes seconds to load Dask alone.
    assert time.monotonic() - started < 20


@pytest.mark.slow
def test_measuring_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*names: str) -> list[Task]:
        return [Task(name, tasks.variable, (name,), "timing", measures=True) for name in names]

    for name in ("TVM_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    timed = asked("TVM_NUM_THREADS", "OMP_NUM_THREADS")
    with scheduling(tmp_path) as scheduler:
        with pytest.raises(BackendUnavailable, match="has no workers: start some by"):
            open_workers(cluster=scheduler.address)
        scheduler.start("--measure")
        second = scheduler.begin("--measure")
        _, said = second.communicate(timeout=30)
        assert second.returncode == 5
        assert "other workers are running, beside which nothing can be measured" in said
        beside = scheduler.begin("--slots", "1")
        _, said = beside.communicate(timeout=30)
        assert (beside.returncode, said.count("\n")) == (5, 1)
        assert "a worker measures, beside which nothing else may run" in said
        monkeypatch.setenv("TVM_NUM_THREADS", "1")
        with open_workers(cluster=scheduler.address, measures=True) as found:
            mixed = [*timed, *tasks.squares(range(3))]
            results = {one.task.key + one.task.doing: one.result for one in found.outcomes(mixed)}
        assert results["TVM_NUM_THREADStiming"] == "1"
        # What Dask sets for its workers would change what is measured.
        assert results["OMP_NUM_THREADStiming"] is None
        assert results["2squaring 2"][0] == 4
        monkeypatch.setattr(client, "cpu_model", lambda: "Another, family 1 model 2")
        with pytest.raises(BackendUnavailable) as caught:
            open_workers(cluster=scheduler.address, measures=True)
        assert "can measure on Another, family 1 model 2" in str(caught.value)
        assert f"its measuring workers have {cpu_model()}" in str(caught.value)


@pytest.mark.slow
def test_who_holds_python_s_lock_for_long_is_not_taken_for_dead(tmp_path: Path) -> None:
    with scheduling(tmp_path, **{"worker-ttl": "1s", "allowed-failures": 0}) as scheduler:
        scheduler.start("--slots", "1")
        with open_workers(cluster=scheduler.address) as found:
            (outcome,) = found.outcomes([Task("a", tasks.hold_the_lock, (20.0,), "holding")])
    assert outcome.error is None


@pytest.mark.slow
def test_dask_s_own_workers_do_what_is_not_measured(tmp_path: Path) -> None:
    with scheduling(tmp_path) as scheduler:
        worker = subprocess.Popen(
            [
                sys.executable, "-m", "dask", "worker", scheduler.address, "--no-dashboard",
                "--nworkers", "1", "--nthreads", "2", "--local-directory", str(tmp_path),
            ],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=surroundings(tmp_path),
        )  # fmt: skip
        try:
            scheduler.wait_for(1)
            with open_workers(cluster=scheduler.address) as found:
                outcomes = list(found.outcomes(tasks.squares(range(6), 0.3)))
                assert len({outcome.result[1] for outcome in outcomes}) == 2
                with pytest.raises(BackendUnavailable, match="none measures"):
                    found.require_measuring()
        finally:
            worker.terminate()
            worker.wait(timeout=30)


@pytest.mark.slow
def test_a_scheduler_that_ends_is_said(tmp_path: Path) -> None:
    with scheduling(tmp_path) as scheduler:
        worker = scheduler.start("--slots", "1")
        with open_workers(cluster=scheduler.address) as found:
            run = found.outcomes(tasks.squares(range(20), 0.2))
            next(run)
            scheduler.cluster.close()
            with pytest.raises(BackendUnavailable, match="does not answer any more"):
                list(run)
        _, said = worker.communicate(timeout=30)
        assert said.endswith("the scheduler has ended\n")
        assert worker.returncode == 0
