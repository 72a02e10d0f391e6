"""What else the machine does while something is measured."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

_TASKS, _STAT = Path("/proc/self/task"), Path("/proc/stat")
_POLL, _PATIENCE = 2e-3, 1.0
_FIXED_PAUSE = 0.2
"""Seconds: between two looks at the threads, until giving up, where threads cannot be seen."""


def wait_for_idle_threads() -> bool:
    """Pause until every other thread of the process sleeps; False where one never does.

    Pools of threads spin after their last task; a spinning thread has a core that another pool
    needs. Where threads cannot be looked at (not Linux), a pause that is long enough for the pools
    known.
    """
    if not _TASKS.is_dir():
        time.sleep(_FIXED_PAUSE)
        return True
    deadline = time.perf_counter() + _PATIENCE
    while _others_run():
        if time.perf_counter() > deadline:
            return False
        time.sleep(_POLL)
    return True


def _others_run() -> bool:
    """Whether a thread of this process other than the calling one is running or wants to."""
    own = str(threading.get_native_id())
    for task in os.listdir(_TASKS):
        if task == own:
            continue
        try:
            # "id (name) state ...": the name may hold anything, a parenthesis too.
            state = (_TASKS / task / "stat").read_text().rpartition(") ")[2][:1]
        except OSError:  # the thread has ended
            continue
        if state == "R":
            return True
    return False


class Elsewhere:
    """The processor time that other processes, and other guests of the host, take while the context
    is entered; it may be entered many times."""

    def __init__(self) -> None:
        self._passed = self._taken = 0.0
        self._started = self._before = 0.0

    def __enter__(self) -> None:
        self._started, self._before = time.perf_counter(), _elsewhere()

    def __exit__(self, *error: object) -> None:
        # One visit may be shorter than the system's clock is fine: only the sums mean something.
        self._passed += time.perf_counter() - self._started
        self._taken += _elsewhere() - self._before

    @property
    def cores(self) -> float:
        """As a number of cores, on average; 0 where the system does not say."""
        return max(0.0, self._taken) / self._passed if self._passed else 0.0


def _elsewhere() -> float:
    """Seconds so far of all processors, those of this process left out."""
    try:
        fields = _STAT.read_text().split("\n", 1)[0].split()[1:]
    except OSError:
        return 0.0
    user, nice, system, _idle, _waiting, interrupts, soft_interrupts, stolen = map(int, fields[:8])
    ticks = user + nice + system + interrupts + soft_interrupts + stolen
    return ticks / os.sysconf("SC_CLK_TCK") - time.process_time()
