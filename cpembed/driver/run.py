"""Build a candidate, verify its numbers, time it.

>>> from cpembed.driver.solve import workload
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

from cpembed import worker
from cpembed.driver.chosen import BackendChoice, Plan, Request
from cpembed.driver.expectation import Expectation
from cpembed.driver.methods import Compared, MethodName, chosen_method
from cpembed.driver.run_method import executed_method
from cpembed.driver.run_result import RunResult
from cpembed.driver.solve import Progress, SolveResult
from cpembed.embedding.constraint_set import ConstraintSet, Weights
from cpembed.errors import LoweringError, WorkloadError
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.kernel.epilogue import Storing
from cpembed.targets.choice import built_first
from cpembed.targets.verification import verified
from cpembed.worker import step

_TIMED_CALLS = 10
"""Of a kernel so slow that a round is one call: those of the contraction and of the whole."""


@dataclass(frozen=True)
class Files:
    """What is to be written of what ran."""

    save: Path | None = None
    trace: Path | None = None


def run(
    workload: Computation,
    target: str | HardwareSpec,
    *,
    constraints: str | ConstraintSet | None = None,
    rank: int | None = None,
    identifier: str | None = None,
    backend: BackendChoice = "auto",
    seed: int | None = 0,
    weights: Weights | None = None,
    timeout: float | None = None,
    progress: Progress | None = None,
    output: str | None = None,
    shift: int | None = None,
    relu: bool = False,
    bias: bool = False,
    scale: bool = False,
    untuned: bool = False,
    save: Path | None = None,
    trace: Path | None = None,
    method: MethodName = "auto",
) -> RunResult | SolveResult:
    """Solve, build a candidate, verify it on random data, measure it.

    Returns the :class:`SolveResult` where the search found nothing. ``seed`` None takes fresh data.
    ``auto`` uses the target's instruction where this machine can execute or simulate it, else
    portable code; ``native`` insists on the instruction.

    ``output`` is what is stored of the sums, of what the target stores: kernels of CPUs one of
    :data:`~cpembed.kernel.epilogue.RESULT_TYPES`, integers rounded and saturated, with ``relu``
    negative ones as 0; other targets have forms of their own, with a ``shift`` where they take one
    (:meth:`~cpembed.targets.base.Target.epilogue`). ``bias`` adds a vector of the sums' type to
    them, ``scale`` then multiplies by one of float32, both random, with an element for each
    channel.

    ``constraints`` None takes the sets that :func:`~cpembed.driver.solve.solve` does. ``rank`` and
    ``weights`` ask for a place in the ranking. Without both, the candidate and its schedule are
    those that :func:`~cpembed.driver.tune.tune` kept under the same set, or under any where it is
    None; where nothing is kept, or with ``untuned``, the one among the best of the ranking that the
    target's model says is the fastest (:mod:`cpembed.targets.choice`). Of a place in the ranking,
    tuning gives the schedule only.

    ``identifier`` asks for one candidate, wherever its id was printed
    (:func:`~cpembed.driver.identified.identified`).

    Where nothing is asked for and the search proves that the instruction cannot be embedded, one of
    the ``alternatives`` that its specification names runs the workload; where it would leave the
    instruction mostly idle, too, if the model says that this is faster.

    ``save`` and ``trace`` are files to be written of what ran, where the target has such.

    ``method`` is how a convolution is computed (:mod:`~cpembed.driver.methods`): ``auto`` takes the
    fastest by estimate, for floating point; a name insists. What is searched for, and may be named,
    is then the kernel of the method's product.

    Raises :class:`BackendUnavailable` or :class:`LoweringError` where ``native`` is impossible or
    the target has no such file, :class:`WorkloadError` for a rank or an id that does not exist or a
    form that the output does not have, and :class:`InvariantError` where the numbers are wrong.
    """
    asked = Request(
        workload, target, constraints, rank, identifier, backend, seed or 0, weights, timeout,
        progress, Storing(output, shift, bias, scale, relu), untuned,
    )  # fmt: skip
    report: Progress = progress or _silent
    data_seed = secrets.randbits(31) if seed is None else seed
    worker.prepare()
    files = Files(save, trace)
    # A method has no one program to write: files are of the implicit one.
    wanted = "implicit" if method == "auto" and files != Files() else method
    found_method = chosen_method(asked, wanted)
    if isinstance(found_method, SolveResult):
        return found_method
    chosen, compared = found_method
    if compared is not None and compared.rewritten is not None:
        return _by_method(compared, data_seed, files, report)
    found = worker.call(executed, chosen.solved, chosen.plan, data_seed, files, progress=report)
    return replace(found, instead=chosen.instead or found.instead, method=compared)


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
        solved,
        target,
        choice.candidate,
        by,
        plan.missing,
        verification,
        timing,
        seed,
        choice,
        plan.epilogue,
        target.stored_type(workload, plan.epilogue),
        target.describe(artifact, timing),
        Expectation.of(target, choice, timing) if plan.native else None,
        phases.seconds,
        artifact,
    )
