"""Best of many rounds: on a simulated clock, with disturbances that are known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, cycle, repeat

import pytest

from cpembed.errors import MeasurementError
from cpembed.targets.x86 import microbenchmarks as probes
from cpembed.targets.x86.microbenchmarks import BEST, Probe, time_in_rounds

CALL_NS, STEP_NS = 700, 5


class Clock:
    """Nanoseconds that pass only as work is done."""

    def __init__(self) -> None:
        self.now = 0

    def perf_counter_ns(self) -> int:
        return self.now

    def perf_counter(self) -> float:
        return self.now / 1e9

    def work(self, delays: Iterator[int], counts: Callable[[], bool] = lambda: True) -> probes.Run:
        def run(steps: int) -> bool:
            self.now += CALL_NS + STEP_NS * steps + next(delays)
            return counts()

        return run


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(probes, "time", clock)
    return clock


def test_what_a_call_costs_is_not_in_a_figure(clock: Clock) -> None:
    probe = Probe("x", clock.work(repeat(0)), 100, 1100, units=2)
    series = time_in_rounds([probe], 3, 1.0)["x"]
    assert series.ns == STEP_NS / 2
    assert len(series.long) == 3


def test_disturbed_rounds_do_not_count(clock: Clock) -> None:
    # Three calls a round: four rounds of five are disturbed, each by another time.
    quiet, loud = [0, 0, 0], range(10_000, 100_000, 7_500)
    probe = Probe("x", clock.work(cycle([*quiet, *loud])), 10, 1000)
    series = time_in_rounds([probe], 60, 1.0)["x"]
    assert series.ns == STEP_NS
    assert series.is_steady


def test_a_figure_that_has_not_settled_gets_more_rounds(clock: Clock) -> None:
    steady = Probe("steady", clock.work(repeat(0)), 10, 1000)
    late = Probe("late", clock.work(chain(range(0, 300_000, 1000), repeat(0))), 10, 1000)
    said: list[tuple[int, int]] = []
    found = time_in_rounds([steady, late], 10, 1.0, lambda *what: said.append(what))
    assert len(found["steady"].long) == 10
    assert found["late"].ns == STEP_NS
    assert found["late"].is_steady
    assert said[0] == (1, 2)
    assert said[9] == (10, 1)
    assert said[-1] == (len(found["late"].long), 0)


def test_time_ends_what_never_settles(clock: Clock) -> None:
    probe = Probe("x", clock.work(cycle(range(0, 900_000, 1000))), 10, 1000)
    series = time_in_rounds([probe], 5, 0.003)["x"]
    assert not series.is_steady
    assert clock.now < 10_000_000


def test_a_slow_machine_does_not_make_all_the_rounds(clock: Clock) -> None:
    probe = Probe("x", clock.work(repeat(10_000_000)), 10, 1000)
    assert len(time_in_rounds([probe], 60, 0.01)["x"].long) == BEST


def test_rounds_that_must_not_count_are_left_out(clock: Clock) -> None:
    # The second of three calls of every other round says so.
    answers = cycle([True, False, True, True, True, True])
    probe = Probe("x", clock.work(repeat(0), lambda: next(answers)), 10, 1000)
    series = time_in_rounds([probe], 20, 1.0)["x"]
    assert len(series.long) == len(series.short) == 10
    never = Probe("never", clock.work(repeat(0), lambda: False), 10, 1000)
    nothing = time_in_rounds([never], 3, 1e-6)["never"]
    assert not nothing.has_result
    with pytest.raises(MeasurementError, match="never could not be timed in 0 rounds"):
        _ = nothing.ns


def test_a_longer_length_that_takes_no_longer_is_no_figure(clock: Clock) -> None:
    def run(steps: int) -> bool:
        clock.now += 1_000_000 - steps
        return True

    series = time_in_rounds([Probe("x", run, 10, 1000)], 5, 1.0)["x"]
    assert not series.has_result, "a calibration takes one thread's"
    assert not series.is_steady
    with pytest.raises(MeasurementError, match="too busy"):
        _ = series.ns


def test_what_is_done_before_a_round_is_not_timed(clock: Clock) -> None:
    def before() -> None:
        clock.now += 10_000

    probe = Probe("x", clock.work(repeat(0)), 10, 1000, before=before)
    assert time_in_rounds([probe], 5, 1.0)["x"].ns == STEP_NS
