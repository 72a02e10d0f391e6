"""Tasks in worker processes of this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cpembed.errors import CpembedError, CrashError
from cpembed.runtime.cluster import Task, open_workers
from cpembed.runtime.cluster.executors import ThisProcess, Workers
from tests.unit.runtime.cluster import outcomes, tasks


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    """Two, which load nothing ahead."""
    monkeypatch.setattr("cpembed.runtime.worker.PRELOAD", ())
    with open_workers(2) as found:
        yield found


def test_neither_workers_nor_a_cluster_is_this_process() -> None:
    with open_workers() as found:
        assert isinstance(found, ThisProcess)
        found.require_measuring()
        outcomes = list(found.outcomes(tasks.squares(range(3))))
    assert [outcome.result[0] for outcome in outcomes] == [0, 1, 4]
    assert {outcome.result[1] for outcome in outcomes} == {os.getpid()}


def test_every_task_has_one_outcome_and_all_processes_work(workers: Workers) -> None:
    outcomes.assert_all_work(workers, 0.05)


def test_tasks_are_taken_as_there_is_room_and_processes_stay(workers: Workers) -> None:
    taken: list[str] = []

    def endless() -> Iterator[Task]:
        for task in tasks.squares(range(1000)):
            taken.append(task.key)
            yield task

    run = workers.outcomes(endless())
    first = {next(run).result[1] for _ in range(6)}
    assert len(taken) <= 6 + workers.count
    run.close()
    # What was abandoned ended with its process; the run after it has all its outcomes.
    assert len(list(workers.outcomes(tasks.squares(range(4))))) == 4
    assert first


def test_errors_are_outcomes_and_bugs_are_raised(workers: Workers) -> None:
    outcomes.assert_errors_are_outcomes(workers)


@pytest.mark.slow
def test_who_is_killed_once_is_replaced_and_its_task_is_done(
    workers: Workers, tmp_path: Path
) -> None:
    def killed(name: str) -> Task:
        return Task(name, _killed_at_first, (tmp_path, name), f"doing {name}")

    outcomes = list(workers.outcomes([killed("a"), *tasks.squares(range(3)), killed("b")]))
    assert sorted(outcome.task.key for outcome in outcomes) == ["0", "1", "2", "a", "b"]
    assert all(outcome.error is None for outcome in outcomes)
    assert (tmp_path / "a").stat().st_size == (tmp_path / "b").stat().st_size == 2


def _killed_at_first(folder: Path, name: str) -> str:
    return tasks.killed_at_first(folder, name, whole_worker=False)


def _poison(folder: Path, name: str) -> None:
    tasks.poison(folder, name, whole_worker=False)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "function, attempts, signal_name", [(_poison, 2, "SIGKILL"), (tasks.read_nowhere, 1, "SIGSEGV")]
)
def test_what_ends_its_processes_is_an_error_of_that_task_only(
    workers: Workers, tmp_path: Path, function: Any, attempts: int, signal_name: str
) -> None:
    bad = Task("bad", function, (tmp_path, "bad"), "doing what is bad")
    found = {
        outcome.task.key: outcome for outcome in workers.outcomes([bad, *tasks.squares(range(4))])
    }
    error = found.pop("bad").error
    assert isinstance(error, CrashError)
    assert error.exit_code == 1
    assert str(error).startswith(f"doing what is bad ended in {signal_name}")
    assert (tmp_path / "bad").stat().st_size == attempts
    assert sorted(found) == ["0", "1", "2", "3"]
    assert all(outcome.error is None for outcome in found.values())


def test_processes_that_share_the_cores_take_a_thread_each_unless_told(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [Task("a", tasks.variable, ("OMP_NUM_THREADS",), "asking")]
    if "OMP_NUM_THREADS" not in os.environ:
        assert [outcome.result for outcome in workers.outcomes(given)] == ["1"]
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert [outcome.result for outcome in workers.outcomes(given)] == ["3"]


def test_nothing_is_measured_beside_others(workers: Workers) -> None:
    task = Task("timed", tasks.square, (1,), "timing", measures=True)
    with pytest.raises(CpembedError, match="times that are measured beside other workers"):
        list(workers.outcomes([task]))
    with pytest.raises(CpembedError, match="measured beside") as caught:
        open_workers(2, measures=True)
    assert caught.value.exit_code == 2


@pytest.mark.slow
def test_who_stops_waiting_ends_what_is_executed(workers: Workers) -> None:
    run = workers.outcomes([*tasks.squares(range(1)), *tasks.squares(range(1, 3), 60.0)])
    assert next(run).result[0] == 0
    before = time.monotonic()
    run.close()
    assert time.monotonic() - before < 5
    later = [outcome.result for outcome in workers.outcomes(tasks.squares(range(5, 9), 0.2))]
    assert sorted(number for number, _ in later) == [25, 36, 49, 64]
    assert len({process for _, process in later}) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked at in /proc")
def test_workers_do_not_outlive_a_client_that_is_killed() -> None:
    script = """
import os, sys
from pathlib import Path
from typing import Any
from cpembed.runtime.cluster import open_workers
from tests.unit.runtime.cluster import outcomes, tasks
found = open_workers(2)
for outcome in found.outcomes(tasks.squares(range(1000), 0.3)):
    print(outcome.result[1], flush=True)
"""
    path = os.pathsep.join(part for part in sys.path if part)
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert process.stdout is not None
    # One may have done many tasks before the other has started.
    working: set[int] = set()
    while len(working) < 2:
        working.add(int(process.stdout.readline()))
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=10)
    deadline = time.monotonic() + 60
    while any(map(_lives, working)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(_lives, working))


def _lives(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False
