"""Calls in a child process, which may die in the parent's place."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cpembed import steps
from cpembed.errors import CrashError, DamagedStore, LoweringError
from cpembed.runtime import worker
from cpembed.runtime.worker_child import available_bytes
from tests.unit.runtime.worker import misbehaving


@pytest.fixture(autouse=True)
def _in_a_worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A worker that loads nothing ahead: none of these calls needs the compiler."""
    monkeypatch.delenv(worker.IN_PROCESS_VARIABLE)
    monkeypatch.setattr("cpembed.runtime.worker.PRELOAD", ())
    yield
    worker.retire()


def test_calls_share_a_child_and_nest_in_it() -> None:
    child = worker.call(misbehaving.identity)
    assert child != os.getpid()
    assert worker.call(misbehaving.nested) == (child, child)


def test_progress_and_results_come_back() -> None:
    heard: list[tuple[str, int]] = []
    result = worker.call(misbehaving.counted, 3, progress=lambda *what: heard.append(what))
    assert (result, heard) == (3, [("counting", 0), ("counting", 1), ("counting", 2)])


def test_what_it_raises_is_raised_here_with_its_traceback() -> None:
    child = worker.call(misbehaving.identity)
    with pytest.raises(LoweringError, match="cannot be expressed"):
        worker.call(misbehaving.refuse)
    assert worker.call(misbehaving.identity) == child
    with pytest.raises(KeyError, match="a bug") as caught:
        worker.call(misbehaving.fail)
    assert "in fail" in "".join(caught.value.__notes__)


@pytest.mark.parametrize(
    "function, arguments, code, words",
    [
        (
            misbehaving.abort_as_llvm_does,
            (),
            1,
            "compiling a kernel of test ended in SIGABRT: LLVM ERROR: Do not know how to split",
        ),
        (
            misbehaving.raise_signal,
            ("SIGILL",),
            5,
            "the test kernel ended in SIGILL: the",
        ),
        (misbehaving.read_nowhere, (), 1, "running the test kernel ended in SIGSEGV: "),
        (misbehaving.raise_signal, ("SIGKILL",), 1, "ended in SIGKILL: out of memory, or killed"),
        (misbehaving.exit_now, (), 1, "running the test kernel ended in exit code 3"),
        (misbehaving.take_memory, (), 1, "running the test kernel ran out of memory"),
    ],
)
def test_a_dead_child_is_one_line_and_is_replaced(
    function: Callable[..., object], arguments: tuple[object, ...], code: int, words: str
) -> None:
    with pytest.raises(CrashError) as caught:
        worker.call(function, *arguments)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == code
    assert worker.call(misbehaving.identity) != os.getpid()


def test_a_step_without_an_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(steps.LIMIT_VARIABLE, "0.3")
    started = time.monotonic()
    with pytest.raises(CrashError, match="running the test kernel took too long") as caught:
        worker.call(misbehaving.sleep_in_a_step, 60)
    assert time.monotonic() - started < 20
    assert steps.LIMIT_VARIABLE in str(caught.value)
    assert worker.call(misbehaving.sleep_outside, 0.5) == "awake"


@pytest.mark.parametrize("limit", ["1e9", "1e300", "inf"])
def test_a_step_may_be_allowed_more_than_one_wait(
    monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """Operating systems wait for 24 days at most."""
    monkeypatch.setenv(steps.LIMIT_VARIABLE, limit)
    worker.call(misbehaving.sleep_in_a_step, 0.01)
    assert worker.call(misbehaving.sleep_outside, 0.01) == "awake"


@pytest.mark.parametrize("limit, ends", [("0.4", True), ("20", False)])
def test_several_waits_are_one_limit(
    monkeypatch: pytest.MonkeyPatch, limit: str, ends: bool
) -> None:
    monkeypatch.setenv(steps.LIMIT_VARIABLE, limit)
    monkeypatch.setattr(worker, "_LONGEST_WAIT", 0.1)
    if ends:
        with pytest.raises(CrashError, match="took too long"):
            worker.call(misbehaving.sleep_in_a_step, 60)
    else:
        worker.call(misbehaving.sleep_in_a_step, 0.8)


def test_the_limit_grows_with_the_work() -> None:
    assert steps.time_limit(10**12) > steps.time_limit() > 0


def test_another_environment_is_another_child(monkeypatch: pytest.MonkeyPatch) -> None:
    child = worker.call(misbehaving.identity)
    monkeypatch.setenv("TVM_NUM_THREADS", "1")
    assert worker.call(misbehaving.identity) != child


def test_what_a_child_prints_is_not_shown(capfd: pytest.CaptureFixture[str]) -> None:
    worker.call(misbehaving.print_something)
    assert capfd.readouterr() == ("", "")


def test_a_warning_is_given_here() -> None:
    with pytest.warns(DamagedStore, match="a row is damaged"):
        worker.call(misbehaving.warn)


def test_an_interrupted_call_ends_the_child() -> None:
    child = worker.call(misbehaving.identity)
    # Libraries that other tests load take Python's own handler away.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        worker.call(misbehaving.sleep_outside, 60)
    assert not Path(f"/proc/{child}").exists()


def test_what_cannot_be_sent_is_called_here() -> None:
    here = [os.getpid()]
    with pytest.warns(RuntimeWarning, match="runs in this process, which a crash"):
        assert worker.call(lambda: here) is here


def test_available_memory_is_the_least_that_is_said(tmp_path: Path) -> None:
    system = tmp_path / "meminfo"
    system.write_text("MemTotal: 8000 kB\nMemAvailable:    4000 kB\n")
    assert available_bytes(system, tmp_path) == 4000 * 1024
    (tmp_path / "memory.max").write_text("3000000\n")
    (tmp_path / "memory.current").write_text("1000000\n")
    assert available_bytes(system, tmp_path) == 2000000
    (tmp_path / "memory.max").write_text("max\n")
    assert available_bytes(system, tmp_path) == 4000 * 1024
    assert available_bytes(tmp_path / "nothing", tmp_path / "nothing") is None
