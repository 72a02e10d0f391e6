"""Kinds of work take turns, and what disturbed them is known."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain, cycle, repeat
from pathlib import Path

import pytest

from cpembed.runtime.measurement import interleaved
from cpembed.runtime.measurement.interleaved import (
    ATTEMPTS,
    BUSY,
    Interleaved,
    Work,
    time_interleaved,
)

ROUNDS = 4


@dataclass
class Log:
    """Samplers that say when they were asked; each takes what is scripted, a call at a time."""

    asked: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])

    def side(self, name: str, times: Iterator[float], pool: str = "one") -> Work:
        def sample(calls: int) -> float:
            self.asked.append((name, calls))
            return next(times)

        return Work(sample, pool)


@pytest.fixture(autouse=True)
def idle(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Nothing else runs; the pauses that are made."""
    pauses: list[str] = []

    def wait() -> bool:
        pauses.append("pause")
        return True

    monkeypatch.setattr(interleaved, "wait_for_idle_threads", wait)
    monkeypatch.setattr(interleaved, "_elsewhere", lambda: 0.0)
    return pauses


def test_rounds_alternate_their_order_and_warm_up(idle: list[str]) -> None:
    log = Log()
    sides = {
        "a": log.side("a", repeat(100.0), "ours"),
        "b": log.side("b", repeat(200.0), "ours"),
        "c": log.side("c", repeat(400.0), "theirs"),
    }
    found = time_interleaved(sides, rounds=2, round_ms=2.0)
    # One call before the one that is looked at, for each, then as many as fill 2 ms.
    assert log.asked[:6] == [(name, 1) for name in "aabbcc"]
    rounds = [("a", 20), ("b", 10), ("c", 5)], [("c", 5), ("b", 10), ("a", 20)]
    warm = {"a": 3, "b": 2, "c": 1}
    expected = [[(name, warm[name]), (name, calls)] for order in rounds for name, calls in order]
    assert log.asked[6:] == list(chain(*expected))
    # Before each counting of calls; then where the pool changes, which it does not between rounds.
    assert len(idle) == 3 + 3
    assert found.times("c").median == 400
    assert (found.ratio("c", "a").median, found.is_noisy) == (4.0, False)


def test_ratios_are_of_the_same_round() -> None:
    """A machine that is four times slower for a while is so for both sides."""
    slow_then_fast = [400.0, 100.0, 400.0, 100.0]
    found = Interleaved({"a": slow_then_fast, "b": [2 * us for us in slow_then_fast]}, 0.0, True)
    assert found.times("a").is_noisy
    ratio = found.ratio("b", "a")
    assert (ratio.p10, ratio.median, ratio.p90) == (2.0, 2.0, 2.0)
    assert found.ratio("b", "a", added=100.0).median == (2.25 + 3.0) / 2
    assert not found.is_noisy


@pytest.mark.parametrize(
    "elsewhere, rested, noisy",
    [(0.0, True, False), (BUSY * 1.01, True, True), (0.0, False, True)],
)
def test_a_busy_machine_is_noisy_however_steady(
    elsewhere: float, rested: bool, noisy: bool
) -> None:
    assert Interleaved({"a": [1.0, 1.0], "b": [2.0, 2.0]}, elsewhere, rested).is_noisy is noisy


def test_a_median_stands_a_few_odd_rounds() -> None:
    steady, odd = [10.0] * 8, [40.0, 2.0, 30.0]
    assert not Interleaved({"a": [10.0] * 11, "b": [*steady, *odd]}, 0.0, True).is_noisy
    assert Interleaved({"a": [10.0] * 11, "b": [*steady[:5], *odd, *odd]}, 0.0, True).is_noisy
    assert Interleaved({"a": [10.0] * 12, "b": [10.0, 13.0] * 6}, 0.0, True).is_noisy


def one_side(b: Iterator[float]) -> dict[str, Work]:
    log = Log()
    return {"a": log.side("a", repeat(1e4)), "b": log.side("b", b)}


def rounds_of(*times: float) -> Iterator[float]:
    """What is timed, each after a warm-up of the same."""
    return chain.from_iterable((us, us) for us in times)


def test_disturbed_rounds_are_repeated_and_the_steadiest_counts() -> None:
    counting = (1e4, 1e4)
    wild, mild = (1e4, 9e4, 1e4, 9e4), (1e4, 2e4, 1e4, 2e4)
    steady = (3e4,) * 4
    script = chain(counting, rounds_of(*wild), rounds_of(*steady))
    found = time_interleaved(one_side(script), rounds=ROUNDS, round_ms=1.0)
    assert (found.ratio("b", "a").median, found.is_noisy) == (3.0, False)
    script = chain(counting, rounds_of(*wild), rounds_of(*mild), rounds_of(*wild))
    found = time_interleaved(one_side(script), rounds=ROUNDS, round_ms=1.0)
    assert found.is_noisy
    assert found.times("b").p90 == pytest.approx(2e4)
    assert next(script, None) is None, f"{ATTEMPTS} attempts"


def test_an_attempt_on_a_quiet_machine_beats_a_steadier_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = cycle([0.0])
    # Two readings a timed block, two sides: the first attempt shares the machine.
    readings = chain(*([0.0, 1e6] for _ in range(2 * ROUNDS)), clock)
    monkeypatch.setattr(interleaved, "_elsewhere", lambda: next(readings))
    script = chain(repeat(1e4, 2), rounds_of(*(5e4,) * 4), cycle(list(rounds_of(1e4, 2e4))))
    found = time_interleaved(one_side(script), rounds=ROUNDS, round_ms=1.0)
    assert found.elsewhere == 0
    assert found.times("b").median == pytest.approx(1.5e4)


# -------------------------------------------------------------------------- the real machine


SPINNING = """
import hashlib, sys, threading, time
from cpembed.runtime.measurement import interleaved
data, stop = bytes(1 << 24), threading.Event()
def spin():
    while not stop.is_set():
        hashlib.sha256(data).digest()  # without the interpreter's lock
thread = threading.Thread(target=spin)
thread.start()
interleaved._IDLE_SECONDS = 0.3
busy = interleaved.wait_for_idle_threads()
stop.set()
thread.join()
print(busy, interleaved.wait_for_idle_threads())
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="the system has no /proc")
def test_a_spinning_thread_is_seen() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SPINNING], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["False", "True"]


@pytest.fixture
def processors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    monkeypatch.undo()
    monkeypatch.setattr(interleaved, "_STAT", tmp_path / "stat")
    return lambda text: (tmp_path / "stat").write_text(text) and None


def test_time_of_others_is_all_but_idle_waiting_and_our_own(
    processors: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock:
        def __init__(self) -> None:
            self.passed, self.own = 0.0, 0.0

        def perf_counter(self) -> float:
            return self.passed

        def process_time(self) -> float:
            return self.own

    clock = Clock()
    monkeypatch.setattr(interleaved, "time", clock)
    monkeypatch.setattr(interleaved.os, "sysconf", lambda name: 100)
    elsewhere = interleaved.Elsewhere()
    assert elsewhere.cores == 0
    processors("cpu  100 200 300 9999 999 0 0 40 7 7\ncpu0 1 1 1 1\n")
    with elsewhere:
        # 2 s pass; 3 s of processors are used, 1.5 s of them ours; 0.1 s are stolen.
        clock.passed, clock.own = 2.0, 1.5
        processors("cpu  300 250 350 9999 999 0 0 50 7 7\ncpu0 1 1 1 1\n")
    assert elsewhere.cores == pytest.approx((3.1 - 1.5) / 2)
    clock.passed, clock.own = 9.0, 1.5  # between two visits
    with elsewhere:
        clock.passed, clock.own = 11.0, 5.5
    # Four threads' worth of our own time while the system's clock stood still: only sums count.
    assert elsewhere.cores == 0


def test_rounds_of_a_slow_machine_are_repeated_and_left_out() -> None:
    """The third turn of the machine is slow for one kind of work."""
    log = Log()
    sides = {"a": log.side("a", repeat(100.0), "tvm"), "b": log.side("b", repeat(200.0), "tvm")}
    answers = chain([True, True, False, True], repeat(True))
    found = time_interleaved(sides, rounds=ROUNDS, round_ms=1.0, unthrottled=lambda: next(answers))
    assert (found.slow, found.enough) == (1, True)
    assert [len(samples) for samples in found.samples.values()] == [ROUNDS, ROUNDS]
    assert not found.is_noisy


def test_a_machine_that_is_never_itself_is_noisy() -> None:
    log = Log()
    sides = {"a": log.side("a", repeat(100.0), "tvm"), "b": log.side("b", repeat(200.0), "tvm")}
    found = time_interleaved(
        sides, rounds=ROUNDS, round_ms=1.0, attempts=1, unthrottled=lambda: False
    )
    assert not found.enough
    assert found.is_noisy
    assert len(found.samples["a"]) == found.slow == ROUNDS * interleaved.PATIENCE
