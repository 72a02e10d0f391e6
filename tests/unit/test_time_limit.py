from __future__ import annotations

import itertools
import threading
import time
import weakref

import pytest

from cpembed.time_limit import Clock, OutOfTime, within


def _for_ever() -> None:
    for _ in itertools.count():
        pass


def test_work_that_ends_in_time_gives_its_result() -> None:
    assert within(60, lambda: 3) == 3
    assert within(None, lambda: 4) == 4


def test_a_loop_without_end_is_left() -> None:
    started = time.perf_counter()
    with pytest.raises(OutOfTime):
        within(0.05, _for_ever)
    assert time.perf_counter() - started < 5


def test_no_time_is_no_work() -> None:
    with pytest.raises(OutOfTime):
        within(-1, _for_ever)


def test_a_swallowed_exception_comes_again() -> None:
    def swallows() -> None:
        while True:
            try:
                _for_ever()
            except OutOfTime:
                break
        _for_ever()

    with pytest.raises(OutOfTime):
        within(0.05, swallows)


@pytest.mark.parametrize("busy", [0.0, 0.3, 0.6])
def test_nothing_is_raised_after_work_that_took_long_to_end(busy: float) -> None:
    """While the thread is in one long call, the exception is raised again and waits."""

    def ends_late() -> str:
        try:
            _for_ever()
        except OutOfTime:
            time.sleep(busy)
        return "late"

    try:
        assert within(0.01, ends_late) == "late"
    except OutOfTime:
        assert busy
    end = time.perf_counter() + 0.6
    while time.perf_counter() < end:
        pass


def test_the_limit_is_of_the_thread_that_has_it() -> None:
    left: list[str] = []

    def limited() -> None:
        try:
            within(0.05, _for_ever)
        except OutOfTime:
            left.append("other thread")

    thread = threading.Thread(target=limited)
    thread.start()
    thread.join(10)
    assert left == ["other thread"]


def test_an_inner_limit_leaves_the_outer_one() -> None:
    def inner() -> str:
        try:
            within(0.05, _for_ever)
        except OutOfTime:
            return "inner"
        return "none"

    assert within(60, inner) == "inner"


def test_nothing_is_raised_after_the_work() -> None:
    """The limit ends at about the time at which the work does, every time a little differently."""
    late = 0
    for n in range(200):
        try:
            within(0.001, lambda n=n: time.sleep(n * 1e-5))
        except OutOfTime:
            late += 1
        sum(range(1000))
    assert late > 0


def test_what_a_callback_swallows_is_raised_again_and_not_printed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As the callback of a weak reference does."""

    class Dying:
        pass

    def collect_for_ever() -> None:
        while True:
            dying = Dying()
            kept = weakref.ref(dying, lambda _: [n for n in range(10) if n < 0])
            del dying
            assert kept() is None

    printed: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", printed.append)
    for _ in range(8):
        with pytest.raises(OutOfTime):
            within(0.02, collect_for_ever)
    assert printed == []


def test_a_clock_without_a_limit_has_no_end() -> None:
    assert Clock(None).left(3) is None
    left = Clock(10).left(2)
    assert left is not None
    assert 11 < left <= 12
