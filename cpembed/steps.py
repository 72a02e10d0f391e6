"""Steps of long work, and progress on it.

A worker announces steps to its parent, which ends those that take too long, and commands announce
progress to whoever shows it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Protocol

# Running a kernel may take as many seconds more as its work needs: see `time_limit`.
LIMIT_VARIABLE = "CPEMBED_STEP_LIMIT"
"""Environment variable with the maximum number of seconds of compiling a kernel."""

# The largest shipped layers compile in a few seconds.
DEFAULT_LIMIT = 120.0
"""Maximum number of seconds of compiling a kernel, by default."""

# Portable code of types that a processor has to emulate does some 30 million (measured on Zen 5),
# and is timed by a few calls.
SLOWEST = 2e6
"""Multiply-accumulates a second below which a kernel is taken to hang."""


class Progress(Protocol):
    """Function that is called as work proceeds: ``progress("layer 3", 2, 10)``."""

    def __call__(self, step: str, completed: int, total: int, /) -> None:
        """Show that ``completed`` of ``total`` parts are complete.

        Parameters
        ----------
        step
            The part that begins or has just ended, for a person.
        completed
            Number of parts that are complete.
        total
            Number of all parts.
        """
        ...


class PhaseProgress(Protocol):
    """Function that is called as a search proceeds, whose length nobody knows beforehand."""

    def __call__(self, phase: str, count: int, /) -> None:
        """Show a phase (``model``, ``search``, ``derive``, ``prove`` …) with a running count.

        Parameters
        ----------
        phase
            The phase.
        count
            Number of solutions, or of other results of the phase, so far.
        """
        ...


def silent(*_: object) -> None:
    """Show nothing: the :class:`Progress`, or :class:`PhaseProgress`, of a quiet caller."""


Listener = Callable[[str | None, float | None], None]
"""Function that is called with each step and its limit in seconds, and with None at its end."""

_listeners: list[Listener] = []
"""The parent's connection in a worker; empty elsewhere."""


def listen(listener: Listener) -> None:
    """Announce every step of this process, a worker, to ``listener``."""
    _listeners[:] = [listener]


def in_worker() -> bool:
    """True in a worker process."""
    return bool(_listeners)


def time_limit(macs: float = 0) -> float:
    """Return the limit in seconds of a step with so many multiply-accumulates."""
    try:
        base = float(os.environ.get(LIMIT_VARIABLE, ""))
    except ValueError:
        base = DEFAULT_LIMIT
    return base + macs / SLOWEST


@contextmanager
def step(doing: str, macs: float = 0) -> Generator[None]:
    """Announce the body as a step, whose process ends if it takes longer than :func:`time_limit`.

    Outside a worker nothing is announced and nothing ends. Steps within a step belong to it.

    Parameters
    ----------
    doing
        The step in words, for messages about crashes: ``compiling a kernel of x86.amx``.
    macs
        Number of multiply-accumulates that are executed.
    """
    if not _listeners:
        yield
        return
    # Without a listener the steps within this one announce nothing.
    listener = _listeners.pop()
    try:
        listener(doing, time_limit(macs))
        yield
    finally:
        _listeners[:] = [listener]
    listener(None, None)
