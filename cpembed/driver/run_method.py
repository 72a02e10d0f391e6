"""Run a convolution by a method: build its parts and its product, verify and time it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np

from cpembed.driver.plan import Compared, MethodChoice, MethodError
from cpembed.driver.run_result import Expectation, RunResult
from cpembed.ir.reference import random_inputs, reference
from cpembed.runtime.measurement.verification import Expected, Verification
from cpembed.steps import step
from cpembed.targets.capabilities import details
from cpembed.targets.choice import Choice, built_first
from cpembed.targets.methods import MethodArtifact, methods_of
from cpembed.targets.verification import worst_judged
from cpembed.transform.methods.accuracy import UNIT_ROUNDOFF, bound, roundings, running_bound
from cpembed.transform.methods.convolution import Array
from cpembed.transform.methods.rewritten import Rewritten
from cpembed.transform.methods.winograd import Winograd

_TIMED_CALLS = 10
"""Number of calls that time a method so slow that each round is one call of its parts or all."""


def built(method: MethodChoice) -> tuple[MethodArtifact, Choice]:
    """Build the kernel of a method, and return it with the choice that its product was built from;
    in the worker.

    Raises :class:`~cpembed.errors.LoweringError` if the product has no program.
    """
    plan = method.product.plan
    product, choice = built_first(plan.target, plan.choices)
    methods = methods_of(plan.target)
    assert methods is not None
    with step(f"building the parts of {method.method.name}", method.workload.macs):
        return methods.build(method.plan, product), choice


def judged(
    method: Rewritten,
    inputs: Mapping[str, Array],
    seed: int,
    run: Callable[[Mapping[str, Array]], Array],
) -> tuple[Verification, MethodError | None]:
    """Verify a method against the convolution, on data with and without special values.

    Winograd's method sums whole tiles: a NaN or an infinity would turn all results of its tile into
    NaN, so its special values are finite.

    Parameters
    ----------
    method : Rewritten
        Convolution that is rewritten by a method.
    inputs : dict of str to array
        Data by the name of the input.
    seed : int
        Seed of the special values.
    run : callable
        Computes the convolution of given inputs by the method.

    Returns
    -------
    Verification, MethodError or None
        The worse verification of both, and the rounding error on ``inputs`` for methods that have
        one.
    """
    errors: list[MethodError | None] = []

    def judged_on(data: Mapping[str, Array]) -> list[Verification]:
        verification, error = _judged(method, data, run(data))
        errors.append(error)
        return [verification]

    workload, finite = method.convolution.workload, isinstance(method, Winograd)
    return worst_judged(workload, inputs, seed, judged_on, finite=finite), errors[0]


def _judged(
    method: Rewritten, inputs: Mapping[str, Array], output: Array
) -> tuple[Verification, MethodError | None]:
    """Verify an output: im2col sums the same products in another order and is judged like a kernel;
    Winograd's method must stay within its running error bound; integers must be equal."""
    workload = method.convolution.workload
    if not isinstance(method, Winograd) or method.is_exact:
        return Expected(workload, inputs).judge(output), None
    wide = workload.with_dtypes({operand.name: "float64" for operand in workload.operands})
    exact = reference(wide, {name: array.astype(np.float64) for name, array in inputs.items()})
    off = np.abs(output.astype(np.float64) - exact)
    error = MethodError(
        float(off.max()),
        float(np.sqrt((off**2).mean())),
        float(np.abs(exact).max()),
        float(bound(method, inputs).max()),
    )
    # `<=` is False for a NaN, which therefore fails.
    verified = bool((off <= running_bound(method, inputs)).all())
    tolerance = roundings(method) * UNIT_ROUNDOFF[workload.output.dtype]
    return Verification(error.largest, verified, tolerance), error


def executed_method(compared: Compared, seed: int) -> RunResult:
    """Build a method, verify it on random data of a seed, and time it; in the worker.

    Raises :class:`~cpembed.errors.InvariantError` if its results are wrong.
    """
    method = compared.rewritten
    assert method is not None
    plan, workload, seconds = method.product.plan, method.workload, dict[str, float]()
    started = time.perf_counter()
    artifact, choice = built(method)
    seconds["build"] = time.perf_counter() - started
    started = time.perf_counter()
    inputs = random_inputs(workload, seed)

    def run(data: Mapping[str, Array]) -> Array:
        with step(f"running {method.method.name}", workload.macs):
            return artifact.run(data)

    verification, error = judged(method.method, inputs, seed, run)
    verification.require(f"{method.method.name} of {workload.name}", seed)
    seconds["verify"] = time.perf_counter() - started
    started = time.perf_counter()
    with step(f"timing {method.method.name}", _TIMED_CALLS * workload.macs):
        timing = artifact.time(inputs)
    seconds["measure"] = time.perf_counter() - started
    expected = Expectation.of_times(plan.target, method.estimated, timing)
    return RunResult(
        solved=method.product.solved,
        target=plan.target,
        candidate=choice.candidate,
        backend=artifact.backend,
        missing=(),
        verification=verification,
        timing=timing,
        seed=seed,
        choice=choice,
        epilogue=None,
        stored=workload.output.dtype,
        details=details(plan.target, artifact, timing),
        expectation=expected,
        seconds=seconds,
        artifact=artifact,
        instead=method.product.instead,
        method=compared,
        error=error,
    )
