"""Calls of one function in several processes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cpembed.errors import CrashError, LoweringError
from cpembed.runtime.worker import IN_PROCESS_VARIABLE, call, call_each, retire
from tests.unit.runtime.worker import misbehaving


@pytest.fixture(autouse=True)
def _in_workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Workers that load nothing ahead."""
    monkeypatch.delenv(IN_PROCESS_VARIABLE)
    monkeypatch.setattr("cpembed.runtime.worker.PRELOAD", ())
    yield
    retire()


def test_every_argument_once_in_several_processes() -> None:
    found = dict(call_each(misbehaving.slow_square, list(range(6)), 2))
    assert {number: square for number, (square, _) in found.items()} == {
        number: number * number for number in range(6)
    }
    assert len({process for _, process in found.values()} - {os.getpid()}) == 2


def test_an_error_of_one_is_raised() -> None:
    with pytest.raises(LoweringError, match="one is refused"):
        list(call_each(misbehaving.refused, [0, 1, 2], 2))


def test_the_end_of_a_process_is_a_crash() -> None:
    with pytest.raises(CrashError, match="exit code 7"):
        list(call_each(misbehaving.ended, [0, 1, 2], 2))


def test_who_stops_waiting_ends_the_processes() -> None:
    found = call_each(misbehaving.sleeping, [0.0, 60.0, 60.0], 2)
    assert next(found) == (0.0, 0.0)
    before = time.monotonic()
    found.close()
    assert time.monotonic() - before < 10
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    if children.exists():
        for child in children.read_text().split():
            assert (
                b"cpembed.runtime.worker_child" not in Path(f"/proc/{child}/cmdline").read_bytes()
            )


def test_in_this_process_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(IN_PROCESS_VARIABLE, "1")
    found = dict(call_each(misbehaving.slow_square, [2, 3], 2))
    assert {process for _, process in found.values()} == {os.getpid()}


def test_processes_stay_for_the_next_calls() -> None:
    first = {process for _, (_, process) in call_each(misbehaving.slow_square, [0, 1, 2], 2)}
    second = {process for _, (_, process) in call_each(misbehaving.slow_square, [0, 1, 2], 2)}
    assert first == second
    assert call(misbehaving.identity) in first


def test_a_call_between_results_has_a_worker_of_its_own() -> None:
    processes: set[int] = set()
    for _, (_, process) in call_each(misbehaving.slow_square, [0, 1, 2, 3], 2):
        processes.add(process)
        assert call(misbehaving.identity) not in processes
    assert len(processes) == 2


def test_after_an_error_others_are_started() -> None:
    first = {process for _, (_, process) in call_each(misbehaving.slow_square, [0, 1], 2)}
    with pytest.raises(LoweringError, match="one is refused"):
        list(call_each(misbehaving.refused, [0, 1, 2], 2))
    second = {process for _, (_, process) in call_each(misbehaving.slow_square, [0, 1], 2)}
    assert not first & second
