"""A compiled network executed: verified operator by operator, and timed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.graph.graph import Array, check_inputs
from cpembed.graph.kinds import Product
from cpembed.network.build import CompiledNetwork, RunningNetwork
from cpembed.network.inputs import special_inputs
from cpembed.network.kernel_cache import Progress
from cpembed.network.verification import Judged, judge_network
from cpembed.runtime import worker
from cpembed.steps import step

ROUNDS, COLD_ROUNDS = 30, 5
"""Runs that are timed; runs after all caches were filled with something else."""

_SECONDS = 5.0
"""Of timing, whatever the rounds."""

_FLUSHED = 256 << 20
"""Bytes that are written to fill the caches with something else."""


@dataclass(frozen=True)
class NetworkTimes:
    """Microseconds, medians of whole runs: ``warm`` one after the other, ``cold`` after the caches
    were filled with something else, so that weights come from memory; ``steps`` of each call of a
    warm run."""

    warm_us: float
    cold_us: float
    steps_us: tuple[float, ...]
    rounds: int


@dataclass(frozen=True)
class NetworkRun:
    """What a run of a network found; ``judged`` is empty where nothing was to be verified, of a
    second run, on inputs with special values, ``special``. ``special_inputs``: the inputs that have
    such."""

    outputs: Mapping[str, Array]
    judged: tuple[Judged, ...]
    times: NetworkTimes | None
    special: tuple[Judged, ...] = ()
    special_inputs: tuple[str, ...] = ()

    @property
    def failed(self) -> tuple[Judged, ...]:
        both = (*self.judged, *self.special)
        found = {one.operator: one for one in both if not one.verified}
        return tuple(found.values())


def run_network(
    compiled: CompiledNetwork,
    inputs: Mapping[str, Array],
    *,
    threads: int = 0,
    verifies: bool = True,
    times: bool = True,
    progress: Progress,
) -> NetworkRun:
    """Run a network in the worker, which may die in this process's place.

    Raises :class:`~cpembed.errors.WorkloadError` for other inputs than the network's, and
    :class:`~cpembed.errors.CrashError` where a kernel ends the worker.
    """
    check_inputs(compiled.graph, inputs)

    def shown(phase: str, done: int) -> None:
        progress(phase, done, len(compiled.graph.operators))

    return worker.call(
        _executed, compiled, dict(inputs), threads, verifies, times, progress=shown
    )  # fmt: skip


def _executed(
    compiled: CompiledNetwork,
    inputs: dict[str, Array],
    threads: int,
    verifies: bool,
    times: bool,
    *,
    progress: Callable[[str, int], None],
) -> NetworkRun:
    kinds = [operator.kind for operator in compiled.graph.operators]
    macs = sum(kind.computation.macs for kind in kinds if isinstance(kind, Product))
    with compiled.open(threads) as running:
        judged: list[list[Judged]] = [[], []]
        special = special_inputs(compiled.graph, inputs) if verifies else {}
        changed = tuple(name for name, array in special.items() if array is not inputs[name])
        rounds = [inputs, *([special] if changed else [])] if verifies else []
        for number, given in enumerate(rounds):
            phase = "verifying with special values" if number else "verifying"
            progress(phase, 0)
            with step(f"{phase} of a network", 50 * macs):
                judged[number], _ = judge_network(
                    compiled.plan,
                    compiled.network,
                    running.library,
                    given,
                    partial(_shown, progress, phase),
                )
        with step("running a network", macs):
            outputs = running.run(inputs)
        timed = None
        if times:
            progress("timing", 0)
            with step("timing a network", 100 * macs):
                timed = _timed(running, inputs)
    return NetworkRun(outputs, tuple(judged[0]), timed, tuple(judged[1]), changed)


def _shown(progress: Callable[[str, int], None], phase: str, done: int, of: int) -> None:
    progress(phase, done)


def _timed(running: RunningNetwork, inputs: Mapping[str, Array]) -> NetworkTimes:
    library, given = running.library, running.in_order(inputs)
    for _ in range(3):
        library.run(*given)
    warm: list[float] = []
    steps: list[NDArray[Any]] = []
    end = time.perf_counter() + _SECONDS
    while len(warm) < ROUNDS and (len(warm) < 3 or time.perf_counter() < end):
        warm.append(_seconds(lambda: library.run(*given)))
        steps.append(library.run_timed(*given)[1])
    cold: list[float] = []
    other = np.zeros(_FLUSHED, np.uint8)
    for number in range(COLD_ROUNDS):
        other[:] = number
        cold.append(_seconds(lambda: library.run(*given)))
    return NetworkTimes(
        1e6 * statistics.median(warm),
        1e6 * statistics.median(cold),
        tuple(float(ns) / 1e3 for ns in np.median(steps, axis=0)),
        len(warm),
    )


def _seconds(call: Callable[[], Any]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started
