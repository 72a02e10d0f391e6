"""Commands with ``--workers`` and ``--cluster``, and ``cpembed worker``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cpembed.runtime.cluster import connection
from tests.cli.calling import Caller
from tests.clusters import Scheduler, scheduling, surroundings

NO_RUN = ("--target", "vta_1x16x16", "--no-run")
GEMM = ("gemm", "m=16", "n=32", "k=48", "--target", "vta_1x16x16")


def without_times(value: Any) -> Any:
    """A document without what differs from run to run."""
    if isinstance(value, dict):
        return {
            key: without_times(item)
            for key, item in value.items()
            if key not in ("seconds", "date", "store", "database", "taken_from_store")
        }
    return [without_times(item) for item in value] if isinstance(value, list) else value


@pytest.fixture
def bench(cpembed: Caller, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """The document of a suite's bench, its rows kept in a folder of a name."""

    def call(folder: str, *options: str) -> dict[str, Any]:
        results = ("--results", str(tmp_path / folder))
        called = cpembed("bench", "deepbench", *NO_RUN, *results, "--json", *options)
        assert called.code == 0, called.err
        return called.json

    return call


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scheduler]:
    with scheduling(tmp_path_factory.mktemp("run")) as found:
        yield found


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """Complete rows of the store in a folder, in its order; a process may be writing another."""
    (path,) = folder.glob("*.jsonl")
    *lines, _unfinished = path.read_text().split("\n")
    return [json.loads(line) for line in lines[1:]]


@pytest.mark.slow
def test_rows_of_several_processes_are_those_of_one(
    bench: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    layers = ("--layers", "0,12,48-51")
    one, two = bench("one", *layers), bench("two", *layers, "--workers", "2")
    assert without_times(two) == without_times(one)
    assert sorted(row["index"] for row in rows_of(tmp_path / "two")) == [0, 12, 48, 49, 50, 51]
    again = bench("two", *layers, "--workers", "2")
    assert again["taken_from_store"] == 6
    assert [row["index"] for row in again["rows"]] == [0, 12, 48, 49, 50, 51]


def test_rows_of_a_cluster_are_those_of_one_process(
    bench: Callable[..., dict[str, Any]], cpembed: Caller, scheduler: Scheduler, tmp_path: Path
) -> None:
    layers = ("--layers", "0,12,48-51")
    one = bench("one", *layers)
    worker = scheduler.start("--slots", "1")
    (tmp_path / "scheduler.json").write_text(json.dumps({"address": scheduler.address}))
    two = bench("two", *layers, "--cluster", str(tmp_path / "scheduler.json"))
    assert without_times(two) == without_times(one)
    # A worker that does not measure is nobody for rows that are timed.
    started = time.monotonic()
    called = cpembed(
        "bench", "deepbench", "--target", "vta_1x16x16", "--backend", "generic", "--layers", "12",
        "--results", str(tmp_path / "timed"), "--cluster", scheduler.address,
    )  # fmt: skip
    called.is_one_line_error(5, "can measure on", "of its 1 workers none measures")
    assert time.monotonic() - started < 5
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(timeout=20) == 130


@pytest.mark.slow
def test_rows_that_are_timed_are_made_by_a_worker_that_measures(
    cpembed: Caller, scheduler: Scheduler, tmp_path: Path
) -> None:
    scheduler.end()
    scheduler.wait_for(0)
    scheduler.start("--measure")
    called = cpembed(
        "bench", "gemm", "--target", "vta_1x16x16", "--backend", "generic", "--layers", "0",
        "--threads", "1", "--results", str(tmp_path), "--json", "--cluster", scheduler.address,
    )  # fmt: skip
    assert called.code == 0, called
    (row,) = called.json["rows"]
    assert row["error"] is None
    assert row["run"]["provenance"] == "measured"
    assert row["run"]["generic_latency_us"]["median"] > 0
    scheduler.end()
    scheduler.wait_for(0)


@pytest.mark.slow
def test_trials_of_several_processes_are_those_of_one(cpembed: Caller, tmp_path: Path) -> None:
    documents = []
    for name, options in (("one", ()), ("two", ("--workers", "2"))):
        folder = ("--database", str(tmp_path / name))
        called = cpembed("tune", *GEMM, "--trials", "20", "--json", *folder, *options)
        assert called.code == 0, called.err
        documents.append(without_times(called.json))
    assert documents[0] == documents[1]
    assert documents[1]["measured"] == 20
    assert rows_of(tmp_path / "one") == rows_of(tmp_path / "two")


@pytest.mark.parametrize(
    "arguments, parts",
    [
        (("--workers", "0"), ("--workers",)),
        (("--workers", "2", "--cluster", "head:8786"), ("--workers and --cluster only one",)),
        (("--cluster", "head"), ("'head' is neither HOST:PORT",)),
        (("--workers", "2", "--backend", "generic"), ("beside other workers", "--measure")),
    ],
)
def test_wrong_calls_are_one_line(
    cpembed: Caller, tmp_path: Path, arguments: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    suite = ("bench", "deepbench", "--target", "vta_1x16x16", "--layers", "12")
    called = cpembed(*suite, "--results", str(tmp_path), *arguments)
    called.is_one_line_error(2, *parts)


@pytest.mark.parametrize("command", [("bench", "deepbench", *NO_RUN, "--cluster"), ("worker",)])
def test_nobody_there_is_said_within_seconds(cpembed: Caller, command: tuple[str, ...]) -> None:
    started = time.monotonic()
    called = cpembed(*command, "127.0.0.1:9")
    called.is_one_line_error(5, "no Dask scheduler answers at tcp://127.0.0.1:9")
    # Dask itself takes some seconds to load on a busy machine; its own limit would be 30.
    assert time.monotonic() - started < 15


def test_no_workers_is_said(cpembed: Caller, scheduler: Scheduler) -> None:
    scheduler.wait_for(0)
    called = cpembed("bench", "deepbench", *NO_RUN, "--cluster", scheduler.address)
    called.is_one_line_error(5, "has no workers: start some by `cpembed worker")


def test_without_the_extra(cpembed: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "find_spec", lambda _: None)
    for command in (("worker",), ("bench", "deepbench", *NO_RUN, "--cluster")):
        cpembed(*command, "head:8786").is_one_line_error(5, "pip install 'cpembed[cluster]'")


def test_who_measures_does_one_thing(cpembed: Caller) -> None:
    cpembed("worker", "head:8786", "--measure", "--slots", "2").is_one_line_error(2, "--slots")


# ------------------------------------------------------------------------ a client that is ended


def begun(folder: Path, *options: str) -> subprocess.Popen[str]:
    """The whole of deepbench, in a process of its own."""
    command = ["bench", "deepbench", *NO_RUN, "--results", str(folder), *options]
    return subprocess.Popen(
        [sys.executable, "-m", "cpembed", *command],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=surroundings(folder),
    )  # fmt: skip


def wait_for_rows(folder: Path, count: int) -> None:
    deadline = time.monotonic() + 60
    while not list(folder.glob("*.jsonl")) or len(rows_of(folder)) < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("on_cluster", [False, True])
def test_a_client_that_is_killed_resumes_without_losing_or_doubling_a_row(
    tmp_path: Path, scheduler: Scheduler, on_cluster: bool
) -> None:
    if on_cluster:
        scheduler.start("--slots", "2")
    where = ("--cluster", scheduler.address) if on_cluster else ("--workers", "2")
    for rows in (5, 40):
        process = begun(tmp_path, *where)
        wait_for_rows(tmp_path, rows)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=30)
    kept = len(rows_of(tmp_path))
    assert 40 <= kept < 108
    process = begun(tmp_path, *where)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert f"{kept} of 108 rows taken" in err
    assert sorted(row["index"] for row in rows_of(tmp_path)) == list(range(108))
    scheduler.end()
    scheduler.wait_for(0)


@pytest.mark.slow
def test_workers_that_are_killed_lose_and_double_no_row(
    tmp_path: Path, scheduler: Scheduler
) -> None:
    """While they make rows; it is no row's doing."""
    scheduler.start("--slots", "3")
    process = begun(tmp_path, "--cluster", scheduler.address)
    for rows in (10, 50):
        wait_for_rows(tmp_path, rows)
        os.kill(scheduler.processes()[0], signal.SIGKILL)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    rows = rows_of(tmp_path)
    assert sorted(row["index"] for row in rows) == list(range(108))
    assert all(row["error"] is None for row in rows)
    scheduler.end()
    scheduler.wait_for(0)


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_under_way(tmp_path: Path) -> None:
    process = begun(tmp_path, "--workers", "2")
    wait_for_rows(tmp_path, 10)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    kept = len(rows_of(tmp_path))
    assert f"interrupted: {kept} of 108 rows are kept" in err
    assert 10 <= kept < 108
