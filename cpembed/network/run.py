"""Run a compiled network: verified operator by operator, and timed."""

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
from cpembed.network.verification import Verdict, verify_network
from cpembed.runtime import worker
from cpembed.steps import step

ROUNDS, COLD_ROUNDS = 30, 5
"""Maximum number of timed runs, and number of runs after the caches were flushed."""

# Time limit of the warm runs, in seconds.
_SECONDS = 5.0

# Number of bytes that are written to flush the caches.
_FLUSHED = 256 << 20


@dataclass(frozen=True)
class NetworkTimes:
    """Median microseconds of whole runs.

    Attributes
    ----------
    warm_us, cold_us : float
        Runs one after the other, and after flushing the caches, so that weights come from memory.
    steps_us : tuple of float
        Time of each call of a warm run.
    rounds : int
    """

    warm_us: float
    cold_us: float
    steps_us: tuple[float, ...]
    rounds: int


@dataclass(frozen=True)
class NetworkRun:
    """Result of running a network.

    Attributes
    ----------
    outputs : mapping from str to ndarray
    verdicts : tuple of Verdict
        Empty if nothing was verified.
    times : NetworkTimes or None
    special_verdicts : tuple of Verdict
        Verdicts of a second run, on inputs with special values.
    special_inputs : tuple of str
        Inputs that have special values.
    """

    outputs: Mapping[str, Array]
    verdicts: tuple[Verdict, ...]
    times: NetworkTimes | None
    special_verdicts: tuple[Verdict, ...] = ()
    special_inputs: tuple[str, ...] = ()

    @property
    def failed(self) -> tuple[Verdict, ...]:
        both = (*self.verdicts, *self.special_verdicts)
        by_operator = {verdict.operator: verdict for verdict in both if not verdict.verified}
        return tuple(by_operator.values())


def run_network(
    compiled: CompiledNetwork,
    inputs: Mapping[str, Array],
    *,
    threads: int = 0,
    verifies: bool = True,
    times: bool = True,
    progress: Progress,
) -> NetworkRun:
    """Run a network in the worker, so that a crash does not end this process.

    Parameters
    ----------
    compiled : CompiledNetwork
    inputs : mapping from str to ndarray
    threads : int, default 0
        Number of threads; 0 for as many as the network was planned for.
    verifies, times : bool, default True
    progress : Progress

    Raises
    ------
    WorkloadError
        For other inputs than the network's.
    CrashError
        If a kernel crashes the worker.
    """
    check_inputs(compiled.graph, inputs)

    def report(phase: str, count: int) -> None:
        progress(phase, count, len(compiled.graph.operators))

    return worker.call(
        _executed, compiled, dict(inputs), threads, verifies, times, progress=report
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
        verdicts: list[list[Verdict]] = [[], []]
        special_arrays = special_inputs(compiled.graph, inputs) if verifies else {}
        changed = tuple(name for name, array in special_arrays.items() if array is not inputs[name])
        rounds = [inputs, *([special_arrays] if changed else [])] if verifies else []
        for number, values in enumerate(rounds):
            phase = "verifying with special values" if number else "verifying"
            progress(phase, 0)
            with step(f"{phase} of a network", 50 * macs):
                verdicts[number], _ = verify_network(
                    compiled.plan,
                    compiled.network,
                    running.library,
                    values,
                    partial(_report, progress, phase),
                )
        with step("running a network", macs):
            outputs = running.run(inputs)
        timed = None
        if times:
            progress("timing", 0)
            with step("timing a network", 100 * macs):
                timed = _timed(running, inputs)
    return NetworkRun(
        outputs=outputs,
        verdicts=tuple(verdicts[0]),
        times=timed,
        special_verdicts=tuple(verdicts[1]),
        special_inputs=changed,
    )


def _report(progress: Callable[[str, int], None], phase: str, count: int, total: int) -> None:
    progress(phase, count)


def _timed(running: RunningNetwork, inputs: Mapping[str, Array]) -> NetworkTimes:
    library, inputs_in_order = running.library, running.in_order(inputs)
    # Not timed: the first runs fill caches and touch the workspace.
    for _ in range(3):
        library.run(*inputs_in_order)
    warm: list[float] = []
    steps: list[NDArray[Any]] = []
    end = time.perf_counter() + _SECONDS
    while len(warm) < ROUNDS and (len(warm) < 3 or time.perf_counter() < end):
        warm.append(_seconds(lambda: library.run(*inputs_in_order)))
        steps.append(library.run_timed(*inputs_in_order)[1])
    cold: list[float] = []
    flushed = np.zeros(_FLUSHED, np.uint8)
    for number in range(COLD_ROUNDS):
        flushed[:] = number
        cold.append(_seconds(lambda: library.run(*inputs_in_order)))
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
