"""Build a candidate, verify its numbers, time it.

>>> from cpembed.driver.named import workload
>>> layer = workload("gemm m=8 n=16 k=16", target="vta_1x16x16")
>>> result = run(layer, "vta_1x16x16", backend="generic")
>>> result.verification.verified, result.backend
(True, 'generic')
>>> result = run(layer, "vta_1x16x16")
>>> str(result.provenance), result.details.timing.gemm_cycles
('simulated', 8)
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from cpembed.driver.methods import chosen_method
from cpembed.driver.options import RunOptions, merged
from cpembed.driver.pipeline import Files, execute
from cpembed.driver.plan import Compared, MethodChoice, MethodError, Request
from cpembed.driver.result import SolveResult
from cpembed.driver.run_result import Expectation, RunResult
from cpembed.driver.solve import Progress
from cpembed.driver.tune import measure_schedules
from cpembed.errors import WorkloadError
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.ir.reference import random_inputs, reference
from cpembed.runtime import worker
from cpembed.runtime.measurement.verification import Expected, Verification
from cpembed.steps import silent, step
from cpembed.targets.capabilities import details
from cpembed.targets.choice import Choice, built_first
from cpembed.targets.methods import MethodArtifact, methods_of
from cpembed.targets.outputs import written_files
from cpembed.targets.verification import worst_judged
from cpembed.transform.methods.convolution import Array, Rewritten
from cpembed.transform.methods.error_growth import UNIT_ROUNDOFF, bound, roundings, running_bound
from cpembed.transform.methods.winograd import Winograd

_TIMED_CALLS = 10
"""Number of calls that time a method so slow that each round is one call of its parts or all."""


def built(method: MethodChoice) -> tuple[MethodArtifact, Choice]:
    """Build the kernel of a method in the worker.

    Returns it with the choice that its product was built from. Raises
    :class:`~cpembed.errors.LoweringError` if the product has no program.
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
    """Verify an output of a method.

    im2col sums the same products in another order and is judged like a kernel; Winograd's method
    must stay within its running error bound; integers must be equal.
    """
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
        candidate=choice.ranked,
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
        substitution=method.product.substitution,
        method=compared,
        error=error,
    )


def run(
    workload: Computation,
    target: str | HardwareSpec,
    options: RunOptions | None = None,
    *,
    progress: Progress | None = None,
    **keywords: Any,
) -> RunResult | SolveResult:
    """Search, choose a candidate, build it, verify it on random data, and time it.

    With ``measure`` schedules are tuned first, as many as
    :func:`~cpembed.driver.tune.tune` measures by default, on a GPU the first three by the model.
    Without a candidate in the options, what :func:`~cpembed.driver.tune.tune` kept is run; where
    nothing is kept, or with ``untuned``, the one among the best of the ranking that the target's
    model says is the fastest (:mod:`cpembed.targets.choice`). Of a place in the ranking, tuning
    gives the schedule only. Where neither set, candidate nor back end is asked for and the
    instruction cannot be embedded, or would be mostly idle, one of the ``alternatives`` that the
    specification names may run instead.

    Parameters
    ----------
    workload, target, progress
        As for :func:`~cpembed.driver.solve.solve`.
    options : RunOptions, optional
        What to run and how; its fields may also be given as keywords.

    Returns
    -------
    RunResult or SolveResult
        The search's result if it found nothing that runs.

    Raises
    ------
    BackendUnavailable, LoweringError
        If ``backend="native"`` is impossible, or the target writes no such file.
    WorkloadError
        If the rank, the id or the output does not exist.
    InvariantError
        If the numbers are wrong.
    """
    options = merged(RunOptions, options, keywords)
    if options.measure:
        options = measure_schedules(workload, target, options, progress)
    request = Request(workload, target, options, progress=progress)
    report: Progress = progress or silent
    # Fresh data in every run: a defect that one seed hides is found by another, which is printed.
    seed = secrets.randbits(31) if options.seed is None else options.seed
    _require_files(request, options)
    # The worker process starts, and loads the compiler, while the search runs here.
    worker.prepare()
    files = Files(options.save, options.trace)
    # A method has no one program to write: files are of the implicit one.
    method = "implicit" if options.method == "auto" and files != Files() else options.method
    result = chosen_method(request, method)
    if isinstance(result, SolveResult):
        return result
    selection, compared = result
    if compared is not None and compared.rewritten is not None:
        return _by_method(compared, seed, files, report)
    executed = worker.call(execute, selection.solved, selection.plan, seed, files, progress=report)
    return replace(
        executed,
        substitution=selection.substitution or executed.substitution,
        method=compared,
        # What ran in the place of a failed build has no estimate yet.
        estimate=None if executed.substitution else selection.described,
    )


def _by_method(compared: Compared, seed: int, files: Files, report: Progress) -> RunResult:
    if files != Files():
        raise WorkloadError(
            f"{compared.name} is several programs, and --save and --trace write one: take --method "
            "implicit, or leave the file out"
        )
    report("build", 0)
    return worker.call(executed_method, compared, seed)


def _require_files(request: Request, options: RunOptions) -> None:
    """Reject files that the target does not write, before anything is searched for."""
    requested = {"--trace": options.trace, "--save": options.save}
    if not any(requested.values()):
        return
    writes = written_files(request.execution.target)
    rejected = [name for name, path in requested.items() if path is not None and name not in writes]
    if rejected:
        raise WorkloadError(
            f"{' and '.join(rejected)}: {request.execution.target.spec.name} with the "
            f"{options.backend} back end has nothing of the kind to write: leave it out, or name a "
            "target that has"
        )
