"""Generate a candidate's kernel, verify its numbers, time it.

>>> from cpembed.api.solve import workload
>>> layer = workload("gemm m=8 n=16 k=16", target="vta_1x16x16")
>>> result = run(layer, "vta_1x16x16", backend="generic")
>>> result.verification.verified, result.backend
(True, 'generic')

A target that is simulated gives another result, of :mod:`cpembed.api.run_vta`:

>>> run(layer, "vta_1x16x16").timing.gemm_cycles
8
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from functools import partial

from cpembed import worker
from cpembed.api.chosen import Plan, Request, choose
from cpembed.api.run_cpu import CpuChoice, build_first
from cpembed.api.run_result import GENERIC, RunResult
from cpembed.api.run_vta import VtaRunResult
from cpembed.api.solve import Progress, SolveResult
from cpembed.embedding.constraint_set import ConstraintSet, Weights
from cpembed.errors import InvariantError, LoweringError
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.ir.reference import random_inputs
from cpembed.kernel.compiled import CompiledKernel
from cpembed.kernel.packing import packed_before
from cpembed.measure.runner import measure
from cpembed.measure.verification import Expected
from cpembed.selection.ranking import RankedCandidate
from cpembed.targets.cpu.build import BackendChoice, build
from cpembed.worker import step

_NATIVE_ROUNDS, _GENERIC_ROUNDS = 15, 3
"""Portable code is slow, and its time is not what a measurement is for."""

_TIMED_CALLS = 10
"""Of a kernel so slow that a round is one call: those of the contraction and of the whole."""


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
) -> RunResult | VtaRunResult | SolveResult:
    """Solve, build a candidate, verify it on random data, measure it.

    Returns the :class:`SolveResult` where the search found nothing, a :class:`VtaRunResult` where
    the target is simulated. ``seed`` None takes fresh data. ``auto`` uses the target's instruction
    where this machine can execute or simulate it, else portable code; ``native`` insists on the
    instruction.

    ``output`` is what is stored of the sums: of a simulated target one of
    :data:`~cpembed.api.run_vta.OutputForm`, which may have a ``shift``
    (:func:`~cpembed.api.run_vta.tail_for`); of others one of
    :data:`~cpembed.kernel.epilogue.RESULT_TYPES`, integers rounded and saturated, with ``relu``
    negative ones as 0. ``bias`` adds a vector of the sums' type to them, ``scale`` then multiplies
    by one of float32, both random, with an element for each channel.

    ``constraints`` None takes the sets that :func:`~cpembed.api.solve.solve` does. ``rank`` and
    ``weights`` ask for a place in the ranking. Without both, the candidate and its schedule are
    those that :func:`~cpembed.api.tune.tune` kept under the same set, or under any where it is
    None; where nothing is kept, or with ``untuned``, the best of the ranking. On a CPU it is the
    one among :func:`~cpembed.targets.cpu.choice.contenders` that its model says is the fastest, on
    a VTA, where two sets were searched, the one whose schedule has the least estimate. Of a place
    in the ranking, tuning gives the schedule only.

    ``identifier`` asks for one candidate, wherever its id was printed
    (:func:`~cpembed.api.identified.identified`).

    Where nothing is asked for and the search proves that the instruction cannot be embedded, the
    target that its specification names (``otherwise``) runs the workload; where it would leave
    the instruction mostly idle, the one that it names ``beside``, if the model says that this is
    faster.

    Raises :class:`BackendUnavailable` or :class:`LoweringError` where ``native`` is impossible,
    :class:`WorkloadError` for a rank or an id that does not exist or a form that the output does
    not have, and :class:`InvariantError` where the kernel's numbers are wrong.
    """
    asked = Request(
        workload, target, constraints, rank, identifier, backend, seed or 0, weights, timeout,
        progress, output, shift, relu, bias, scale, untuned,
    )  # fmt: skip
    report: Progress = progress or _silent
    data_seed = secrets.randbits(31) if seed is None else seed
    worker.prepare()
    chosen = choose(asked)
    if isinstance(chosen, SolveResult):
        return chosen
    solved, plan = chosen.solved, chosen.plan
    if chosen.simulation is not None and chosen.vta is not None:
        try:
            simulate = chosen.simulation.run
            return worker.call(simulate, solved, chosen.vta, data_seed, progress=report)
        except LoweringError as error:
            if plan.insists:
                raise
            plan = plan.portable(str(error))
    found = worker.call(_executed, solved, plan, data_seed, progress=report)
    if chosen.instead_of is None:
        return found
    return replace(found, instead_of=chosen.instead_of, beside=chosen.beside)


def _silent(phase: str, count: int) -> None:
    """Progress that nobody watches."""


def _executed(solved: SolveResult, plan: Plan, seed: int, *, progress: Progress) -> RunResult:
    """Build a kernel, verify it on random data of a seed, and time it: in the worker."""
    missing, program = plan.missing, plan.candidate.candidate.program
    if plan.native:
        try:
            if not plan.choices:
                kernel = build(program, solved.target, backend="native", epilogue=plan.epilogue)
                return _measured(solved, plan.candidate, kernel, seed, progress)
            kernel, choice = build_first(plan.choices, solved.target, plan.epilogue)
            return _measured(solved, choice.candidate, kernel, seed, progress, choice=choice)
        except LoweringError as error:
            if plan.insists:
                raise
            missing = (str(error),)
    kernel = build(program, solved.target, backend=GENERIC, epilogue=plan.epilogue)
    return _measured(solved, plan.candidate, kernel, seed, progress, missing=missing)


def _measured(
    solved: SolveResult,
    candidate: RankedCandidate,
    kernel: CompiledKernel,
    seed: int,
    report: Progress,
    *,
    missing: tuple[str, ...] = (),
    choice: CpuChoice | None = None,
) -> RunResult:
    """Raises :class:`InvariantError` where the kernel's numbers are wrong."""
    report("verify", 0)
    inputs = random_inputs(solved.workload, seed)
    expected = Expected(solved.workload, inputs)
    vectors = expected.vectors(kernel.epilogue, seed)
    inputs |= vectors
    judged = partial(expected.judge_stored, epilogue=kernel.epilogue, vectors=vectors)
    doing = f"running the {kernel.backend} kernel"
    with step(doing, solved.workload.macs):
        found = kernel.run(inputs)
    verification = judged(found)
    if verification.verified and kernel.has_inner_packing:
        with step(doing, solved.workload.macs):
            found = kernel.run_whole(inputs, packed_before(solved.workload))
        verification = judged(found)
    if not verification.verified:
        raise InvariantError(
            f"the {kernel.backend} kernel of embedding "
            f"{candidate.candidate.identifier} of {solved.target.name} in "
            f"{solved.workload.name} is wrong by up to {verification.max_error:g} on data of seed "
            f"{seed}: please report this command line"
        )
    report("measure", 0)
    rounds = _GENERIC_ROUNDS if kernel.backend == GENERIC else _NATIVE_ROUNDS
    with step(f"timing the {kernel.backend} kernel", _TIMED_CALLS * solved.workload.macs):
        times = measure(kernel, inputs, rounds=rounds)
    return RunResult(
        solved,
        candidate,
        kernel.backend,
        missing,
        verification,
        times,
        seed,
        choice,
        kernel.epilogue,
        kernel,
    )
