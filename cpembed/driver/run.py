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
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cpembed import worker
from cpembed.driver.choose import Plan
from cpembed.driver.expectation import Expectation
from cpembed.driver.methods import Compared, chosen_method
from cpembed.driver.options import RunOptions, merged
from cpembed.driver.request import Request
from cpembed.driver.result import SolveResult
from cpembed.driver.run_method import executed_method
from cpembed.driver.run_result import RunResult
from cpembed.driver.solve import Progress
from cpembed.errors import LoweringError, WorkloadError
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.targets.choice import built_first
from cpembed.targets.verification import verified
from cpembed.worker import step

_TIMED_CALLS = 10
"""Of a kernel so slow that a round is one call: those of the contraction and of the whole."""


@dataclass(frozen=True)
class Files:
    """Files to write of what ran; None for those that are not wanted."""

    save: Path | None = None
    trace: Path | None = None


def run(
    workload: Computation,
    target: str | HardwareSpec,
    options: RunOptions | None = None,
    *,
    progress: Progress | None = None,
    **keywords: Any,
) -> RunResult | SolveResult:
    """Search, choose a candidate, build it, verify it on random data, and time it.

    Without a candidate in the options, what :func:`~cpembed.driver.tune.tune` kept is run; where
    nothing is kept, or with ``untuned``, the one among the best of the ranking that the target's
    model says is the fastest (:mod:`cpembed.targets.choice`). Of a place in the ranking, tuning
    gives the schedule only. Where neither set, candidate nor back end is asked for and the
    instruction cannot be embedded, or would be mostly idle, one of the ``alternatives`` that the
    specification names may run instead.

    Parameters
    ----------
    workload : Computation
        Operator, from :func:`~cpembed.driver.named.workload`.
    target : str or HardwareSpec
        Target by name, file or value.
    options : RunOptions, optional
        What to run and how; its fields may also be given as keywords.
    progress : callable, optional
        Called at each step with the stage and a count.

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
    request = Request(workload, target, options, progress=progress)
    report: Progress = progress or _silent
    seed = secrets.randbits(31) if options.seed is None else options.seed
    worker.prepare()
    files = Files(options.save, options.trace)
    # A method has no one program to write: files are of the implicit one.
    method = "implicit" if options.method == "auto" and files != Files() else options.method
    selection = chosen_method(request, method)
    if isinstance(selection, SolveResult):
        return selection
    chosen, compared = selection
    if compared is not None and compared.rewritten is not None:
        return _by_method(compared, seed, files, report)
    result = worker.call(executed, chosen.solved, chosen.plan, seed, files, progress=report)
    return replace(result, instead=chosen.instead or result.instead, method=compared)


def _by_method(compared: Compared, seed: int, files: Files, report: Progress) -> RunResult:
    if files != Files():
        raise WorkloadError(
            f"{compared.name} is several programs, and --save and --trace write one: take --method "
            "implicit, or leave the file out"
        )
    report("build", 0)
    return worker.call(executed_method, compared, seed)


def _silent(phase: str, count: int) -> None:
    """Progress that nobody watches."""


@dataclass
class _Phases:
    """Wall time of each phase, which is announced when it begins."""

    progress: Progress
    seconds: dict[str, float] = field(default_factory=dict[str, float])

    @contextmanager
    def __call__(self, name: str) -> Generator[None]:
        self.progress(name, 0)
        started = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - started


def executed(
    solved: SolveResult,
    plan: Plan,
    seed: int,
    files: Files = Files(),
    *,
    progress: Progress = _silent,
) -> RunResult:
    """Build what a plan says, verify it on random data of a seed, and time it: in the worker.

    Raises :class:`InvariantError` where its numbers are wrong, and as :func:`run` does.
    """
    phases = _Phases(progress)
    try:
        with phases("build"):
            artifact, choice = built_first(plan.target, plan.choices, plan.epilogue)
    except LoweringError as error:
        if plan.insists or not plan.native:
            raise
        return executed(solved, plan.portable(str(error)), seed, files, progress=progress)
    target, workload = plan.target, solved.workload
    by = target.executed_by(artifact)
    with phases("verify"):
        verification, inputs = verified(target, artifact, workload, plan.epilogue, seed)
    embedding = choice.candidate.candidate.identifier
    what = f"the {by} kernel of embedding {embedding} of {solved.target.name} in {workload.name}"
    verification.require(what, seed)
    with phases("measure"), step(f"timing the {by} kernel", _TIMED_CALLS * workload.macs):
        timing = target.time(artifact, inputs)
    if files.save is not None:
        target.save(artifact, files.save)
    if files.trace is not None:
        target.save_trace(artifact, files.trace)
    return RunResult(
        solved=solved,
        target=target,
        candidate=choice.candidate,
        backend=by,
        missing=plan.missing,
        verification=verification,
        timing=timing,
        seed=seed,
        choice=choice,
        epilogue=plan.epilogue,
        stored=target.stored_type(workload, plan.epilogue),
        details=target.describe(artifact, timing),
        expectation=Expectation.of(target, choice, timing) if plan.native else None,
        seconds=phases.seconds,
        artifact=artifact,
    )
