from __future__ import annotations

import cProfile
import itertools
import re
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import copy_context
from pathlib import Path
from typing import Any

import islpy as isl
import pytest

from cpembed.driver.named import workload
from cpembed.driver.solve import solve
from cpembed.ir.polyhedral import in_time
from cpembed.time_limit import Clock, OutOfTime, check_time, seconds_left, within

_PACKAGE = Path(__file__).parents[2] / "cpembed"


def _for_ever() -> None:
    for _ in itertools.count():
        check_time()


@contextmanager
def _profiled() -> Generator[None]:
    with cProfile.Profile():
        yield


@contextmanager
def _traced() -> Generator[None]:
    def trace(frame: Any, event: str, argument: object) -> Any:
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    threading.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)
        threading.settrace(None)


@contextmanager
def _plain() -> Generator[None]:
    yield


_WATCHERS = [_plain, _profiled, _traced]


def test_processor_time_does_not_pass_while_the_process_waits() -> None:
    def wait() -> float:
        time.sleep(0.3)
        check_time()
        return seconds_left()

    with pytest.raises(OutOfTime):
        within(0.2, wait)
    assert 0 < within(0.2, wait, is_processor_time=True) <= 0.2


def test_processor_time_ends_work_that_computes() -> None:
    started = time.process_time()
    with pytest.raises(OutOfTime):
        within(0.1, _for_ever, is_processor_time=True)
    assert time.process_time() - started >= 0.1
    assert seconds_left() == float("inf")


def test_work_that_ends_in_time_gives_its_result() -> None:
    assert within(60, lambda: 3) == 3
    assert within(None, lambda: 4) == 4


@pytest.mark.parametrize("watched", _WATCHERS)
def test_a_loop_without_end_is_left(watched: Callable[[], Any]) -> None:
    started = time.perf_counter()
    with watched(), pytest.raises(OutOfTime):
        within(0.05, _for_ever)
    assert time.perf_counter() - started < 5


def test_no_time_is_no_work() -> None:
    began: list[int] = []
    with pytest.raises(OutOfTime):
        within(-1, lambda: began.append(1))
    assert began == []


def test_work_that_asks_nobody_is_not_cut() -> None:
    """What is done is done: nothing is raised in it, or after it."""
    assert within(0.01, lambda: time.sleep(0.03) or "late") == "late"
    check_time()


def test_the_limit_is_of_the_thread_that_has_it() -> None:
    left: dict[str, float] = {}

    def look(name: str) -> None:
        left[name] = seconds_left()

    def limited() -> None:
        for thread in (
            threading.Thread(target=look, args=("without",)),
            threading.Thread(target=copy_context().run, args=(look, "with")),
        ):
            thread.start()
            thread.join(10)

    within(60, limited)
    assert left["without"] == float("inf")
    assert 0 < left["with"] <= 60


def test_of_nested_limits_the_shortest_counts() -> None:
    def inner() -> str:
        with pytest.raises(OutOfTime):
            within(0.05, _for_ever)
        return "inner"

    assert within(60, inner) == "inner"
    with pytest.raises(OutOfTime):
        within(0.05, lambda: within(60, _for_ever))
    assert seconds_left() == float("inf")


def test_isl_is_ended_by_its_operations() -> None:
    """Within a bounded piece of work, also where it is stopped while it reads a text; what is wrong
    otherwise stays an error."""
    text = (
        "{ [i, j, k, l, m, n] -> [floor((7i + 3j + k)/5), ((4l + 3m + n) mod 7), "
        "floor((j + 2k + 3m)/11)] : 0 <= i < 17 and 0 <= j < 13 and 0 <= k < 9 and 0 <= l < 5 "
        "and 0 <= m < 6 and 0 <= n < 8 }"
    )

    def long() -> bool:
        while True:
            relation = isl.Map(text)
            if relation.apply_range(relation.reverse()).lexmin().is_empty():
                return False

    def wrong() -> isl.Map:
        return isl.Map("{ [i] -> [ }")

    for seconds in (0.001, 0.01, 0.1):
        with pytest.raises(OutOfTime):
            within(seconds, lambda: in_time(long))
    with pytest.raises(isl.Error):
        within(60, lambda: in_time(wrong))
    assert in_time(isl.Set, "{ [i] : 0 <= i < 4 }").is_equal(isl.Set("{ [i] : -1 < i <= 3 }"))


@pytest.mark.parametrize("watched", _WATCHERS)
def test_a_search_with_a_limit_ends_and_leaves_no_thread(watched: Callable[[], Any]) -> None:
    layer = workload(
        "conv3d n=2 c=24 d=14 h=14 w=14 k=24 t=3 r=3 s=3 pad=1", target="wmma_f16_f16_32x8x16"
    )
    before = set(threading.enumerate())
    started = time.perf_counter()
    with watched():
        found = solve(layer, "wmma_f16_f16_32x8x16", constraints="complete", timeout=0.3)
    assert time.perf_counter() - started < 60
    assert not found.complete
    assert set(threading.enumerate()) <= before


def test_nothing_is_raised_in_a_thread_from_outside() -> None:
    raising = re.compile("SetAsyncExc|pthread_kill|setitimer|signal\\.alarm|raise_signal")
    assert [str(p) for p in _PACKAGE.rglob("*.py") if raising.search(p.read_text("utf-8"))] == []


def test_a_clock_without_a_limit_has_no_end() -> None:
    assert Clock(None).left(3) is None
    left = Clock(10).left(2)
    assert left is not None
    assert 11 < left <= 12
