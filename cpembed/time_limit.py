"""Work that ends when its time is over, wherever it is then.

A search is bounded by the solver itself. What surrounds it (building a model, deriving and proving
programs, looking for a reason) are loops in very many places, whose length no one of them knows
beforehand: they are left by an exception that another thread raises in them.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_Hook = Callable[[Any], Any]

_AGAIN = 0.25
"""Seconds after which the exception is raised again, should something have swallowed it."""

_raise_in_thread = ctypes.pythonapi.PyThreadState_SetAsyncExc
_raise_in_thread.argtypes = (ctypes.c_ulong, ctypes.c_void_p)


class OutOfTime(BaseException):
    """The time of :func:`within` is over: as an interrupt, no error that is handled on the way."""


_OUT_OF_TIME = id(OutOfTime)


def within(seconds: float | None, work: Callable[[], T]) -> T:
    """What ``work`` returns; without a limit where ``seconds`` is None.

    Raises :class:`OutOfTime` once the time is over, at the next step of Python code of this thread:
    a single call of a library is not interrupted. What ``work`` had changed by then stays changed.
    Calls may be nested, and each must expect the exception.
    """
    if seconds is None:
        return work()
    watch = _Watch(seconds)
    usual = sys.unraisablehook
    try:
        # A callback of the collector cannot end anything: there the exception is only raised again.
        sys.unraisablehook = _silent_beside(usual)
        watch.start()
        return work()
    finally:
        # In these two lines the interpreter raises nothing: it does so where a function begins, a
        # loop goes round, and after a call.
        watch.ended = True
        _raise_in_thread(watch.watched, None)
        watch.woken.set()
        sys.unraisablehook = usual


def _silent_beside(usual: _Hook) -> _Hook:
    def hook(unraisable: Any) -> None:
        if not issubclass(unraisable.exc_type, OutOfTime):
            usual(unraisable)

    return hook


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


class _Watch(threading.Thread):
    """Raises :class:`OutOfTime` in the thread that made it, until it is ``ended``."""

    def __init__(self, seconds: float) -> None:
        super().__init__(daemon=True)
        self.seconds, self.watched = seconds, threading.get_ident()
        self.ended, self.woken = False, threading.Event()

    def run(self) -> None:
        wait = self.seconds
        while not self.woken.wait(max(0.0, wait)):
            # Between these two lines no other thread gets its turn.
            if not self.ended:
                _raise_in_thread(self.watched, _OUT_OF_TIME)
            wait = _AGAIN
