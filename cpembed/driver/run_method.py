"""Run a convolution by a method: build its parts and its product, verify its numbers, time it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np

from cpembed.driver.plan import Compared, MethodChoice, MethodError
from cpembed.driver.run_result import Expectation, RunResult
from cpembed.ir.reference import random_inputs, reference
from cpembed.measure.verification import Expected, Verification
from cpembed.methods.accuracy import UNIT_ROUNDOFF, bound, roundings, running_bound
from cpembed.methods.convolution import Array
from cpembed.methods.rewritten import Rewritten
from cpembed.methods.winograd import Winograd
from cpembed.targets.choice import Choice, built_first
from cpembed.targets.methods import MethodArtifact
from cpembed.targets.verification import worst_judged
from cpembed.worker import step

_TIMED_CALLS = 10
"""Of a method so slow that a round is one call: those of its parts and of the whole."""


def built(chosen: MethodChoice) -> tuple[MethodArtifact, Choice]:
    """The kernel of a method, and the choice that made the kernel of its product; in the worker.

    Raises :class:`~cpembed.errors.LoweringError` where its product has none.
    """
    plan = chosen.product.plan
    product, choice = built_first(plan.target, plan.choices)
    methods = plan.target.methods
    assert methods is not None
    with step(f"building the parts of {chosen.method.name}", chosen.workload.macs):
        return methods.build(chosen.plan, product), choice


def judged(
    method: Rewritten,
    inputs: Mapping[str, Array],
    seed: int,
    run: Callable[[Mapping[str, Array]], Array],
) -> tuple[Verification, MethodError | None]:
    """What a method computes on data, and on the same with special values, beside the convolution.

    Winograd's method sums up whole tiles: of floats, a NaN or an infinity would make NaN of all
    results of its tile, so that its special values are finite.

    Returns
    -------
    Verification, MethodError or None
        The worst of both, and the error on the data as they are, of methods that have one.
    """
    errors: list[MethodError | None] = []

    def judged_on(data: Mapping[str, Array]) -> list[Verification]:
        verification, error = _judged(method, data, run(data))
        errors.append(error)
        return [verification]

    workload, finite = method.convolution.workload, isinstance(method, Winograd)
    return worst_judged(workload, inputs, seed, judged_on, finite=finite), errors[0]


def _judged(
    method: Rewritten, inputs: Mapping[str, Array], found: Array
) -> tuple[Verification, MethodError | None]:
    """An output beside the convolution: im2col sums the same products, in another order, and is
    judged as a kernel is; Winograd's method within its running error bound; integers bit for
    bit."""
    workload = method.convolution.workload
    if not isinstance(method, Winograd) or method.is_exact:
        return Expected(workload, inputs).judge(found), None
    wide = workload.with_dtypes({operand.name: "float64" for operand in workload.operands})
    exact = reference(wide, {name: array.astype(np.float64) for name, array in inputs.items()})
    off = np.abs(found.astype(np.float64) - exact)
    error = MethodError(
        float(off.max()),
        float(np.sqrt((off**2).mean())),
        float(np.abs(exact).max()),
        float(bound(method, inputs).max()),
    )
    # A NaN is not below anything: it fails.
    verified = bool((off <= running_bound(method, inputs)).all())
    tolerance = roundings(method) * UNIT_ROUNDOFF[workload.output.dtype]
    return Verification(error.largest, verified, tolerance), error


def executed_method(compared: Compared, seed: int) -> RunResult:
    """Build a method, verify it on random data of a seed, and time it: in the worker.

    Raises :class:`~cpembed.errors.InvariantError` where its numbers are wrong.
    """
    chosen = compared.rewritten
    assert chosen is not None
    plan, workload, seconds = chosen.product.plan, chosen.workload, dict[str, float]()
    started = time.perf_counter()
    artifact, choice = built(chosen)
    seconds["build"] = time.perf_counter() - started
    started = time.perf_counter()
    inputs = random_inputs(workload, seed)

    def run(data: Mapping[str, Array]) -> Array:
        with step(f"running {chosen.method.name}", workload.macs):
            return artifact.run(data)

    verification, error = judged(chosen.method, inputs, seed, run)
    verification.require(f"{chosen.method.name} of {workload.name}", seed)
    seconds["verify"] = time.perf_counter() - started
    started = time.perf_counter()
    with step(f"timing {chosen.method.name}", _TIMED_CALLS * workload.macs):
        timing = artifact.time(inputs)
    seconds["measure"] = time.perf_counter() - started
    expected = Expectation.of_times(plan.target, chosen.estimated, timing)
    return RunResult(
        solved=chosen.product.solved,
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
        details=plan.target.describe(artifact, timing),
        expectation=expected,
        seconds=seconds,
        artifact=artifact,
        instead=chosen.product.instead,
        method=compared,
        error=error,
    )
