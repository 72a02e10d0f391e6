"""Steps: what a worker process does, announced to its parent, which ends steps that take too
long."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager

LIMIT_VARIABLE = "CPEMBED_STEP_LIMIT"
"""Seconds that compiling a kernel may take; running one may take as many and what its work asks
for."""

DEFAULT_LIMIT = 120.0
"""Seconds. The largest shipped layers compile in a few."""

SLOWEST = 2e6
"""Multiply-accumulates a second below which a kernel is believed to hang. Portable code of types
that a processor has to emulate does some 30 million (measured on Zen 5), and is timed by a few
calls."""

Told = Callable[[str | None, float | None], None]

_told: list[Told] = []
"""Who is told of a step: the parent's connection, in a worker; nobody elsewhere."""


def listen(told: Told) -> None:
    """In a worker: tell of every step, with its limit in seconds, and with None of its end."""
    _told[:] = [told]


def in_worker() -> bool:
    return bool(_told)


def time_limit(macs: float = 0) -> float:
    """Seconds that a step with so many multiply-accumulates may take."""
    told = os.environ.get(LIMIT_VARIABLE, "")
    try:
        base = float(told)
    except ValueError:
        base = DEFAULT_LIMIT
    return base + macs / SLOWEST


@contextmanager
def step(doing: str, macs: float = 0) -> Generator[None]:
    """What the body does, for the line about a crash (``compiling a kernel of x86.amx``), and how
    much work it is; a body longer than :func:`time_limit` ends with its process.

    Outside a worker nothing is told and nothing ends. Steps within a step are the outer one.
    """
    if not _told:
        yield
        return
    tell = _told.pop()
    try:
        tell(doing, time_limit(macs))
        yield
    finally:
        _told[:] = [tell]
    tell(None, None)
