"""Run a compiled network: verify each operator against its definition, and time whole runs.

Operators are verified on the inputs that they had, so a difference is reported where it arises, and
what is within one operator's tolerance does not count against the next.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.export.loader import Library
from cpembed.graph import kinds
from cpembed.graph.graph import Array, Operator, check_inputs
from cpembed.graph.kinds import Product
from cpembed.graph.loop import nested_operators
from cpembed.ir.dtypes import as_stored, is_integer
from cpembed.network.build import CompiledNetwork, RunningNetwork
from cpembed.network.convolution_methods import WinogradMethod
from cpembed.network.inputs import special_inputs
from cpembed.network.method_error import (
    defined_in_float64,
    method_error,
    reached_by_special_values,
)
from cpembed.network.observation import NetworkObserver, Verdict, difference
from cpembed.network.plan import NetworkPlan
from cpembed.network.program import NetworkProgram
from cpembed.runtime import worker
from cpembed.steps import Progress, step
from cpembed.transform.methods.winograd import Winograd

# Tolerance of floats relative to the largest magnitude of the tensor, since kernels add in another
# order than numpy.
_RELATIVE = 2e-5


def verify_network(
    plan: NetworkPlan,
    network: NetworkProgram,
    library: Library,
    inputs: Mapping[str, Array],
    progress: Callable[[int], None],
) -> list[Verdict]:
    """Run a network and return the verdicts on all operators that were executed.

    Parameters
    ----------
    plan : NetworkPlan
    network : NetworkProgram
    library : Library
        Loaded library of the network.
    inputs : mapping from str to ndarray
    progress : callable
        Called with the number of verified operators.
    """
    observer = NetworkObserver(plan, network, library, inputs, (_planned_verdict, progress))
    library.run_observed(observer, *[as_stored(inputs[info.name]) for info in library.inputs])
    return [*observer.verdicts.values()]


def verify_rounds(
    compiled: CompiledNetwork,
    library: Library,
    inputs: Mapping[str, Array],
    progress: Callable[[str, int], None],
) -> tuple[list[Verdict], list[Verdict], tuple[str, ...]]:
    """Verify a network, and once more with special values in the inputs if any can have them.

    Parameters
    ----------
    compiled : CompiledNetwork
    library : Library
        Loaded library.
    inputs : mapping from str to ndarray
        Inputs by name.
    progress : callable
        Called with the phase and the number of operators that are compared.

    Returns
    -------
    tuple
        Verdicts of both rounds, and names of the inputs with special values.
    """
    special = special_inputs(compiled.graph, inputs)
    changed = tuple(name for name, array in special.items() if array is not inputs[name])
    verdicts: list[list[Verdict]] = [[], []]
    for number, values in enumerate([inputs, special] if changed else [inputs]):
        phase = "verifying with special values" if number else "verifying"
        progress(phase, 0)
        with step(f"{phase} of a network", 50 * compiled.plan.macs):
            verdicts[number] = verify_network(
                compiled.plan, compiled.network, library, values, partial(progress, phase)
            )
    return verdicts[0], verdicts[1], changed


def _planned_verdict(plan: NetworkPlan, operator: Operator, values: Mapping[str, Array]) -> Verdict:
    """Return the verdict on an operator, whose method may have a limit of its own."""
    execution = plan.execution(operator)
    if isinstance(execution.method, WinogradMethod) and not execution.method.winograd.is_exact:
        return _transformed_verdict(operator, values, execution.method.winograd)
    first = None if execution.pair is None else plan.graph.producers[operator.inputs[0]]
    return verdict_of(operator, values, first)


def verdict_of(
    operator: Operator, values: Mapping[str, Array], first: Operator | None = None
) -> Verdict:
    """Return the comparison of an operator's results with its definition.

    Parameters
    ----------
    operator : Operator
    values : mapping from str to ndarray
        Values of tensors by name.
    first : Operator, optional
        Operator that the same kernel computes before; its result in ``values`` is the defined one.
    """
    inputs = [values[name] for name in operator.inputs]
    expected_outputs = operator.kind.evaluate(inputs)
    bounds = _bounds(operator, inputs) if first is None else _pair_bounds(first, operator, values)
    error = tolerance = 0.0
    may_spread = _may_spread(operator, values)
    may_spread = may_spread or (first is not None and _may_spread(first, values))
    spreads_nan = False
    for name, definition in zip(operator.outputs, expected_outputs, strict=True):
        actual, expected = values[name], definition
        if may_spread and actual.shape == expected.shape:
            is_nan, may_be_nan = (np.isnan(a.astype(np.float64)) for a in (actual, expected))
            spreads_nan = spreads_nan or bool((is_nan & ~may_be_nan).any())
            # Reported, but no error: zeros that pad a sum are part of the kernel.
            actual = np.where(is_nan & ~may_be_nan, expected, actual)
        if bounds is not None and actual.shape == expected.shape:
            expected = _nearest_between(actual, expected, bounds)
        error = max(error, difference(actual, expected))
        tolerance = max(tolerance, tolerance_of(operator, expected))
    tolerance += _rounded_weights(operator, inputs)
    return Verdict(operator.name, error, tolerance, spreads_nan)


Bounds = tuple[Array, Array]
"""Least and largest results that are right."""


def _pair_bounds(first: Operator, second: Operator, values: Mapping[str, Array]) -> Bounds | None:
    """Return the bounds of the results of the second operator of a pair.

    Those of the first result follow from the roundings of its sums. A maximum or a mean of them
    has the maxima or means as bounds; sums of products differ by the magnitudes of the weights.
    """
    inputs, exact = [values[name] for name in second.inputs], values[first.output]
    if not is_rounded(first.kind):
        return _bounds(second, inputs)
    first_inputs = [values[name] for name in first.inputs]
    rounded = _bounds(first, first_inputs, inexact=np.zeros(()))
    assert rounded is not None
    margin = tolerance_of(first, exact) if exact.dtype == np.float32 else 0.0
    with np.errstate(invalid="ignore"):
        low = np.minimum(np.minimum(*rounded), exact) - exact.dtype.type(margin)
        high = np.maximum(np.maximum(*rounded), exact) + exact.dtype.type(margin)
        if isinstance(second.kind, kinds.Pool):
            return second.kind.evaluate([low])[0], second.kind.evaluate([high])[0]
        wide = exact.astype(np.float64)
        spread = np.maximum(high.astype(np.float64) - wide, wide - low.astype(np.float64))
    kind = second.kind
    assert isinstance(kind, Product)
    floats = {operand.name: "float64" for operand in kind.computation.operands}
    computation = kind.computation.with_dtypes(floats)
    magnitudes = replace(kind, computation=computation, zero_points=(0, 0), padding=0)
    weights = np.abs(values[second.inputs[1]].astype(np.float64) - kind.zero_points[1])
    inexact = magnitudes.sums(np.nan_to_num(spread, posinf=0.0), np.nan_to_num(weights))
    return _bounds(second, inputs, inexact)


def _rounded_weights(operator: Operator, inputs: list[Array]) -> float:
    """Return by how much weights of attention that are rounded to bfloat16 change a result."""
    kind = operator.kind
    if not isinstance(kind, kinds.Attention) or kind.factors != "bfloat16":
        return 0.0
    value = np.abs(inputs[2].astype(np.float64))
    return 2.0**-8 * float(value[np.isfinite(value)].max(initial=0.0))


def _transformed_verdict(
    operator: Operator, values: Mapping[str, Array], method: Winograd
) -> Verdict:
    """Return the verdict on a product by Winograd's method, which is compared with float64."""
    kind = operator.kind
    assert isinstance(kind, Product)
    inputs = [values[name] for name in operator.inputs]
    actual, expected = values[operator.output], defined_in_float64(kind, inputs)
    error, spreads_nan = None, False
    if not _may_spread(operator, values):
        error = method_error(kind, inputs, actual)
    elif actual.shape == expected.shape:
        # Where a tile has an infinity or a NaN, all its results may be special, and those that the
        # definition has special are.
        special = ~np.isfinite(actual) & reached_by_special_values(method, kind, inputs)
        spreads_nan = bool((special & np.isfinite(expected)).any())
        actual = np.where(special, expected, actual)
    return Verdict(
        operator.name,
        difference(actual, expected),
        tolerance_of(operator, expected),
        spreads_nan,
        error,
    )


def _may_spread(operator: Operator, values: Mapping[str, Array]) -> bool:
    """True if an input of a product of floats is infinite or NaN."""
    kind = operator.kind
    is_product = isinstance(kind, Product) and not is_integer(kind.computation.output.dtype)
    if not is_product and not isinstance(kind, kinds.Attention):
        return False
    return not all(np.isfinite(values[n].astype(np.float64)).all() for n in operator.inputs)


def _bounds(operator: Operator, inputs: list[Array], inexact: Array | None = None) -> Bounds | None:
    """Return the results of a product if all of its sums were less, or more.

    The distance is the tolerance of the sums of floats, and how ``inexact`` each sum is because of
    its inputs: a chain, a rounding above all, may enlarge it. None where neither is the case.
    """
    kind = operator.kind
    if not isinstance(kind, Product):
        return None
    has_chain = kind.epilogue is not None and kind.epilogue.chain is not None
    if inexact is None and not has_chain:
        return None
    sums = kind.sums(inputs[0], inputs[1])
    distance = np.zeros(()) if inexact is None else inexact
    if not is_integer(sums.dtype.name):
        finite = sums[np.isfinite(sums)]
        distance = distance + _RELATIVE * (float(np.abs(finite).max()) if finite.size else 0.0)
    elif inexact is None:
        return None
    distance = distance.astype(sums.dtype)
    low, high = (kind.finished(sums + each, inputs) for each in (-distance, distance))
    return low, high


def _nearest_between(actual: Array, expected: Array, bounds: Bounds) -> Array:
    """Return ``expected``, or where it differs, the number nearest to ``actual`` within bounds."""
    candidates = np.stack([array.astype(np.float64) for array in (expected, *bounds)])
    with np.errstate(invalid="ignore"):
        nearest = np.clip(actual.astype(np.float64), candidates.min(0), candidates.max(0))
    return np.where(np.isnan(nearest), expected, nearest.astype(expected.dtype))


def tolerance_of(operator: Operator, expected: Array) -> float:
    """Return the allowed difference from the definition, 0 for integers and single roundings."""
    if not is_rounded(operator.kind):
        return 0.0
    # Integers that are rounded from floats may be rounded the other way by the last bit.
    if expected.dtype.kind in "iub":
        return 1.0
    finite = expected.astype(np.float64)
    finite = finite[np.isfinite(finite)]
    size = float(np.abs(finite).max()) if finite.size else 0.0
    roundoff = 2.0**-8 if expected.dtype.name == "bfloat16" else _RELATIVE
    return roundoff * size


# Maximum number of timed runs, and number of runs after the caches were flushed.
_ROUNDS, _COLD_ROUNDS = 30, 5

# Time limit of the warm runs in seconds: a network may take longer than that for a single run.
_SECONDS = 5.0

# Number of bytes that are written to flush the caches.
_FLUSHED = 256 << 20


@dataclass(frozen=True)
class NetworkTimes:
    """Median microseconds of runs of a network.

    Attributes
    ----------
    warm_us : float
        Time of a run right after another one.
    cold_us : float
        Time of a run after the caches were flushed, so that weights come from memory.
    steps_us : tuple of float
        Time of each call of a warm run.
    rounds : int
        Number of warm runs.
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
    verdicts : tuple of Verdict
        Verdict on each operator; empty if nothing was verified.
    times : NetworkTimes or None
        None if nothing was timed.
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
        """Verdicts on operators outside their tolerance, in either run, once per operator."""
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
    verifies : bool, default True
        Compare each operator with its definition, once more with special values in the inputs.
    times : bool, default True
        Time whole runs and each operator's calls.
    progress : Progress

    Raises
    ------
    WorkloadError
        For other inputs than the network's.
    CrashError
        If a kernel crashes the worker.
    """
    check_inputs(compiled.graph, inputs)

    operators = sum(1 for _ in nested_operators(compiled.graph))

    def report(phase: str, count: int) -> None:
        progress(phase, count, operators)

    arguments = (compiled, dict(inputs), threads, verifies, times)
    return worker.call(_executed, *arguments, progress=report)


def _executed(
    compiled: CompiledNetwork,
    inputs: dict[str, Array],
    threads: int,
    verifies: bool,
    times: bool,
    *,
    progress: Callable[[str, int], None],
) -> NetworkRun:
    # Work of a run, from which the worker's parent derives how long a step may take.
    macs = compiled.plan.macs
    with compiled.open(threads) as running:
        verdicts, special_verdicts, changed = [], [], ()
        if verifies:
            verdicts, special_verdicts, changed = verify_rounds(
                compiled, running.library, inputs, progress
            )
        with step("running a network", macs):
            outputs = running.run(inputs)
        network_times = None
        if times:
            progress("timing", 0)
            with step("timing a network", 100 * macs):
                network_times = _timed(running, inputs)
    return NetworkRun(
        outputs=outputs,
        verdicts=tuple(verdicts),
        times=network_times,
        special_verdicts=tuple(special_verdicts),
        special_inputs=changed,
    )


def _timed(running: RunningNetwork, inputs: Mapping[str, Array]) -> NetworkTimes:
    library, inputs_in_order = running.library, running.in_order(inputs)
    # The first runs, which fill caches and touch the workspace, are not timed.
    for _ in range(3):
        library.run(*inputs_in_order)
    warm: list[float] = []
    steps: list[NDArray[Any]] = []
    end = time.perf_counter() + _SECONDS
    while len(warm) < _ROUNDS and (len(warm) < 3 or time.perf_counter() < end):
        warm.append(_seconds(lambda: library.run(*inputs_in_order)))
        steps.append(library.run_timed(*inputs_in_order)[1])
    cold: list[float] = []
    flushed = np.zeros(_FLUSHED, np.uint8)
    for number in range(_COLD_ROUNDS):
        # Writing more bytes than the caches hold evicts the weights and the workspace.
        flushed[:] = number
        cold.append(_seconds(lambda: library.run(*inputs_in_order)))
    return NetworkTimes(
        warm_us=1e6 * statistics.median(warm),
        cold_us=1e6 * statistics.median(cold),
        steps_us=tuple(float(ns) / 1e3 for ns in np.median(steps, axis=0)),
        rounds=len(warm),
    )


def _seconds(call: Callable[[], Any]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


# Operations whose last bits may differ from numpy's.
_ROUNDED = frozenset(
    {"exp", "log", "sqrt", "erf", "tanh", "sigmoid", "sin", "cos", "atan", "pow", "div"}
)


def is_rounded(kind: kinds.Kind) -> bool:
    """True if results depend on the order of roundings, or on a library's functions.

    >>> is_rounded(kinds.Softmax(1)), is_rounded(kinds.Reshape((4,)))
    (True, False)
    """
    if isinstance(kind, Product):
        chain = None if kind.epilogue is None else kind.epilogue.chain
        exact = kind.computation.output.dtype in ("int32", "int64") and kind.dtype != "float32"
        return not exact or (chain is not None and _calls(chain.expression, _ROUNDED))
    if isinstance(kind, kinds.Elementwise):
        return _calls(kind.expression, _ROUNDED) or not is_integer(kind.dtype)
    if isinstance(kind, kinds.Pool):
        return kind.operation == "mean"
    return isinstance(
        kind,
        kinds.Attention
        | kinds.QuantizedAttention
        | kinds.Softmax
        | kinds.LayerNorm
        | kinds.DynamicQuantize
        | kinds.GroupedProduct
        | kinds.Reduce
        | kinds.Resize
        | kinds.Scan,
    )


def _calls(expression: kinds.Scalar, operations: Collection[str]) -> bool:
    if not isinstance(expression, kinds.Apply):
        return False
    arguments = expression.arguments
    return expression.operation in operations or any(_calls(a, operations) for a in arguments)
