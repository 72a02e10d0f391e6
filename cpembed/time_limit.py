"""Time limits that are kept by asking: long loops call :func:`check_time`.

A search is bounded by the solver itself. What surrounds it (building a model, deriving and proving
programs, looking for a reason) are loops in many places: each asks, once per step, whether the time
of :func:`within` is over. Nothing is raised in a thread by another one: under a profiler or a
debugger that never arrives, and a callback may swallow it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")

_deadline: ContextVar[float] = ContextVar("deadline", default=math.inf)
"""When the work at hand has to end, by ``time.perf_counter``: of nested limits the first. A thread
begins without one, unless it runs in a copy of the context of the thread that started it."""


class OutOfTime(BaseException):
    """The time of :func:`within` is over: as an interrupt, no error that is handled on the way."""


def within(seconds: float | None, work: Callable[[], T]) -> T:
    """What ``work`` returns; without a limit of its own where ``seconds`` is None.

    Raises :class:`OutOfTime` at the first :func:`check_time` of ``work`` after its time. What
    ``work`` had changed by then stays changed. Calls may be nested: the shortest limit counts.
    """
    if seconds is None:
        return work()
    outer = _deadline.set(min(_deadline.get(), time.perf_counter() + seconds))
    try:
        check_time()
        return work()
    finally:
        _deadline.reset(outer)


def check_time() -> None:
    """Raise :class:`OutOfTime` where the time of the surrounding :func:`within` is over."""
    if time.perf_counter() >= _deadline.get():
        raise OutOfTime


def seconds_left() -> float:
    """Seconds until the surrounding :func:`within` ends; infinite without one."""
    return max(0.0, _deadline.get() - time.perf_counter())


class Clock:
    """A limit in seconds, if there is one, and when it began."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds, self._started = seconds, time.perf_counter()

    @property
    def passed(self) -> float:
        """Seconds since the beginning."""
        return time.perf_counter() - self._started

    def left(self, after: float = 0.0) -> float | None:
        """Seconds until ``after`` the limit; None without one."""
        return None if self._seconds is None else self._seconds + after - self.passed
