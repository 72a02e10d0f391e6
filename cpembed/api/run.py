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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import get_args

from cpembed import worker
from cpembed.api.beside import Beside, faster_beside
from cpembed.api.choice import pick, stand_in
from cpembed.api.run_cpu import (
    CpuChoice,
    Search,
    build_first,
    fused_candidates,
    model_choices,
    tuned_choice,
)
from cpembed.api.run_result import GENERIC, RunResult
from cpembed.api.run_vta import Choice, OutputForm, VtaRunResult, VtaSimulation, simulates
from cpembed.api.solve import (
    DEFAULT_CONSTRAINTS,
    Progress,
    SolveResult,
    hardware_spec,
    solve,
)
from cpembed.backends.added import is_added
from cpembed.backends.epilogue import Epilogue
from cpembed.backends.kernel import BackendChoice, CompiledKernel, build
from cpembed.backends.packing import packed_before
from cpembed.backends.x86.back_ends import EXECUTED
from cpembed.backends.x86.features import missing_features
from cpembed.cost.ranking import RankedCandidate
from cpembed.embedding.constraint_set import ConstraintSet, Weights, load_constraint_set
from cpembed.errors import (
    BackendUnavailable,
    InvariantError,
    LoweringError,
    WorkloadError,
)
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.ir.reference import random_inputs
from cpembed.measure.runner import measure
from cpembed.measure.verification import Expected
from cpembed.tune.cpu_choice import AMONG, contenders
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
    :data:`~cpembed.backends.epilogue.RESULT_TYPES`, integers rounded and saturated, with ``relu``
    negative ones as 0. ``bias`` adds a vector of the sums' type to them, ``scale`` then multiplies
    by one of float32, both random, with an element for each channel.

    ``constraints`` None takes :data:`~cpembed.api.solve.DEFAULT_CONSTRAINTS`. ``rank`` and
    ``weights`` ask for a place in the ranking. Without both, the candidate and its schedule are
    those that :func:`~cpembed.api.tune.tune` kept under the same set, or under any where it is
    None; where nothing is kept, or with ``untuned``, the best of the ranking, on a CPU the one
    among :func:`~cpembed.tune.cpu_choice.contenders` that a model of it says is the
    fastest; where ``constraints`` is None and these waste much of the instruction, also among
    embeddings on fused axes. Of a place in the ranking, tuning gives the schedule only.

    Where nothing is asked for and the search proves that the instruction cannot be embedded, the
    target that its specification names (``otherwise``) runs the workload; where it would leave
    the instruction mostly idle, the one that it names ``beside``, if the model says that this is
    faster.

    Raises :class:`BackendUnavailable` or :class:`LoweringError` where ``native`` is impossible,
    :class:`WorkloadError` for a rank that does not exist or a form that the output does not have,
    and :class:`InvariantError` where the kernel's numbers are wrong.
    """
    report: Progress = progress or _silent
    spec = hardware_spec(target)
    worker.prepare()
    missing = missing_for(spec)
    if backend == "native" and missing:
        raise BackendUnavailable(f"{spec.name}: {'; '.join(missing)}; use the generic back end")
    simulation = None
    epilogue = None
    if simulates(spec) and backend != GENERIC:
        steps = {"relu": relu, "a bias": bias, "a scale": scale}
        form = _output_form(spec, output, [step for step, asked in steps.items() if asked])
        simulation = VtaSimulation.of(spec, workload, form, shift)
    elif shift is not None:
        raise WorkloadError(
            "a shift is for targets that are simulated, "
            f"not for {spec.name} with the {backend} back end: leave it out"
        )
    elif output is not None or relu or bias or scale:
        epilogue = Epilogue(output or workload.output.dtype, scale, bias, relu)
    asked = _Asked(constraints, rank, weights, backend, untuned, epilogue)
    native = backend != GENERIC and not missing
    by_model = native and spec.backend in EXECUTED and asked.any_embedding
    data_seed = secrets.randbits(31) if seed is None else seed
    solved = solve(
        workload,
        spec,
        DEFAULT_CONSTRAINTS if constraints is None else constraints,
        top=AMONG if by_model else rank or 1,
        keep=contenders if by_model else None,
        weights=weights,
        timeout=timeout,
        seed=seed or 0,
        progress=progress,
    )
    anything = constraints is None and backend == "auto" and asked.any_embedding

    def instead(other: str, beside: Beside | None = None) -> RunResult | SolveResult:
        found = run(
            workload, other, seed=seed, timeout=timeout, progress=progress, output=output,
            relu=relu, bias=bias, scale=scale, untuned=untuned,
        )  # fmt: skip
        if not isinstance(found, RunResult):
            return solved
        return replace(found, instead_of=solved, beside=beside)

    if not solved.count:
        other = stand_in(solved)
        return instead(other) if other is not None and anything else solved
    if simulation is not None:
        try:
            return _simulated(simulation, solved, asked, data_seed, report)
        except LoweringError as error:
            if backend == "native":
                raise
            native, missing = False, (str(error),)

    def fused(named: str, top: int, scored: Weights) -> SolveResult:
        return solve(
            workload, spec, named, top=top, weights=scored, timeout=timeout, seed=seed or 0,
            progress=progress,
        )  # fmt: skip

    report("build", 0)
    others = fused if by_model and constraints is None else None

    def compared(choice: CpuChoice) -> Beside | None:
        return faster_beside(solved, choice, epilogue, timeout=timeout, seed=seed or 0)

    compares = compared if anything else None
    plan = _planned(solved, asked, missing, native=native, others=others, compares=compares)
    if isinstance(plan, Beside):
        return instead(plan.target, plan)
    return worker.call(_executed, solved, plan, data_seed, progress=report)


def missing_for(spec: HardwareSpec) -> tuple[str, ...]:
    """What executing or simulating a target's instruction on this machine lacks; empty where
    nothing does."""
    if simulates(spec):
        return ()
    if spec.backend not in EXECUTED and not is_added(spec):
        return (f"no back end executes {spec.name} yet",)
    features = missing_features(spec)
    return (f"this machine lacks {' and '.join(features)}",) if features else ()


def _output_form(spec: HardwareSpec, output: str | None, steps: Sequence[str]) -> OutputForm | None:
    """What a simulated target stores, checked."""
    forms: tuple[OutputForm, ...] = get_args(OutputForm)
    known: dict[str, OutputForm] = {form: form for form in forms}
    form = None if output is None else known.get(output)
    if steps or (form is None and output is not None):
        asked = steps[0] if steps else output
        raise WorkloadError(
            f"{spec.name} is simulated and stores {', '.join(forms)}, not {asked}: "
            "name one of these, or a target that a CPU executes"
        )
    return form


def _silent(phase: str, count: int) -> None:
    """Progress that nobody watches."""


@dataclass(frozen=True)
class _Asked:
    """What of a call decides the candidate and its schedule."""

    constraints: str | ConstraintSet | None
    rank: int | None
    weights: Weights | None
    backend: BackendChoice
    untuned: bool
    epilogue: Epilogue | None = None

    @property
    def any_embedding(self) -> bool:
        """Whether no place in the ranking was asked for."""
        return self.rank is None and self.weights is None


@dataclass(frozen=True)
class _Plan:
    """What to build: the first of ``choices`` that has a kernel; without any, ``candidate`` where
    that is ``native``. Where nothing has a kernel, portable code of ``candidate``, for what
    ``missing`` says, unless the call ``insists`` on a kernel."""

    candidate: RankedCandidate
    choices: Sequence[CpuChoice]
    native: bool
    missing: tuple[str, ...]
    epilogue: Epilogue | None
    insists: bool


def _simulated(
    simulation: VtaSimulation, solved: SolveResult, asked: _Asked, seed: int, report: Progress
) -> VtaRunResult:
    candidate = pick(solved, asked.rank or 1)
    chosen = Choice(candidate)
    if not asked.untuned:
        chosen = simulation.tuned(
            solved,
            candidate,
            any_set=asked.constraints is None,
            any_embedding=asked.any_embedding,
        )
    return worker.call(simulation.run, solved, chosen, seed, progress=report)


def _planned(
    solved: SolveResult,
    asked: _Asked,
    missing: tuple[str, ...],
    *,
    native: bool,
    others: Search | None,
    compares: Callable[[CpuChoice], Beside | None] | None,
) -> _Plan | Beside:
    """``others`` searches for more to choose from, ``compares`` a choice with the target beside
    this one."""
    candidate = pick(solved, asked.rank or 1)
    choices: Sequence[CpuChoice] = ()
    insists = asked.backend == "native"
    if native and solved.target.backend in EXECUTED:
        try:
            choices = _choices(solved, candidate, asked, others)
        except LoweringError as error:
            if insists:
                raise
            native, missing = False, (str(error),)
        else:
            beside = None if compares is None else compares(choices[0])
            if beside is not None:
                return beside
    return _Plan(candidate, choices, native, missing, asked.epilogue, insists)


def _executed(solved: SolveResult, plan: _Plan, seed: int, *, progress: Progress) -> RunResult:
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


def _choices(
    solved: SolveResult, candidate: RankedCandidate, asked: _Asked, others: Search | None
) -> Sequence[CpuChoice]:
    """What to build, the first that can be built."""
    if not asked.untuned:
        named = asked.constraints
        of = load_constraint_set(named) if isinstance(named, str) else named
        only = None if asked.any_embedding else candidate
        weights = solved.constraints.weights
        kept = tuned_choice(solved.workload, solved.target, of, weights, only)
        if kept is not None:
            return [kept]
    found = solved.embeddings if asked.any_embedding else (candidate,)
    if others is not None:
        found = (*found, *fused_candidates(found, solved.target, others))
    return model_choices(found, solved.target, asked.epilogue, fuses=others is not None)


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
            f"{candidate.candidate.embedding.identifier()} of {solved.target.name} in "
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
