"""Time networks of one process in turns, so that a disturbance falls on all of them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from cpembed.network.build import RunningNetwork


def turns(
    running: Mapping[str, RunningNetwork],
    arguments: Mapping[str, Any],
    rounds: int,
    round_ms: float,
) -> dict[str, list[float]]:
    """Return the seconds of a call of each network, in each round.

    Parameters
    ----------
    running : mapping of str to RunningNetwork
        Networks by name; every other round takes them backwards.
    arguments : mapping of str to arrays
        Inputs of each, in the order of its library.
    rounds : int
        Number of rounds.
    round_ms : float
        Milliseconds of a round for each network.
    """
    calls: dict[str, int] = {}
    for name, network in running.items():
        network.library.run(*arguments[name])
        started = time.perf_counter()
        network.library.run(*arguments[name])
        seconds = time.perf_counter() - started
        calls[name] = max(1, int(round_ms / 1e3 / seconds))
    times: dict[str, list[float]] = {name: [] for name in running}
    for number in range(rounds):
        names = list(running)
        for name in names if number % 2 else reversed(names):
            started = time.perf_counter()
            for _ in range(calls[name]):
                running[name].library.run(*arguments[name])
            times[name].append((time.perf_counter() - started) / calls[name])
    return times
