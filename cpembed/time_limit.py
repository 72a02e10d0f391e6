"""Cooperative time limits: long loops call :func:`check_time`.

The solver bounds a search itself. The work around it (building a model, deriving and proving
programs, explaining infeasibility) consists of loops in many places: each checks, once per step,
whether the time of :func:`within` is over. No other thread raises an exception in this one: under a
profiler or a debugger it would never arrive, and a callback may swallow it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")

# End of the current work by ``time.perf_counter``: the earliest of nested limits. A thread begins
# without one, unless it runs in a copy of the context of the thread that started it.
_deadline: ContextVar[float] = ContextVar("deadline", default=math.inf)
# The same by ``time.process_time``, which does not pass while other programs have the processor.
_processor_deadline: ContextVar[float] = ContextVar("processor_deadline", default=math.inf)


class OutOfTime(BaseException):
    """The time of :func:`within` is over; like an interrupt, no error to handle on the way."""


def within(seconds: float | None, work: Callable[[], T], *, is_processor_time: bool = False) -> T:
    """Return the result of ``work``, with no limit of its own if ``seconds`` is None.

    The seconds are those of a clock, or with ``is_processor_time`` those that this process computes
    for, so that the result does not depend on what else the machine does. Calls may be nested: the
    shortest limit counts.

    Raises :class:`OutOfTime` at the first :func:`check_time` of ``work`` after its time. Its side
    effects remain.
    """
    if seconds is None:
        return work()
    deadline, clock = (
        (_processor_deadline, time.process_time)
        if is_processor_time
        else (_deadline, time.perf_counter)
    )
    # An inner limit must not extend the outer one.
    outer = deadline.set(min(deadline.get(), clock() + seconds))
    try:
        check_time()
        return work()
    finally:
        deadline.reset(outer)


def check_time() -> None:
    """Raise :class:`OutOfTime` if the time of the surrounding :func:`within` is over."""
    if seconds_left() <= 0.0:
        raise OutOfTime


def seconds_left() -> float:
    """Return the seconds until the surrounding :func:`within` ends; infinite without one."""
    left = _deadline.get() - time.perf_counter()
    # Asking for the time of the process is a system call, so it is only made where it matters.
    if not math.isinf(_processor_deadline.get()):
        left = min(left, _processor_deadline.get() - time.process_time())
    return max(0.0, left)


class Clock:
    """The time since its creation, with a limit in seconds or None."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds, self._started = seconds, time.perf_counter()

    @property
    def passed(self) -> float:
        """Seconds since the creation."""
        return time.perf_counter() - self._started

    def left(self, after: float = 0.0) -> float | None:
        """Return the seconds until ``after`` seconds past the limit; None without a limit."""
        return None if self._seconds is None else self._seconds + after - self.passed

    @property
    def is_over(self) -> bool:
        """True if there is a limit, and it has passed."""
        return self._seconds is not None and self.passed >= self._seconds
