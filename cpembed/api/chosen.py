"""Which candidate runs on this machine, and how.

>>> from cpembed.api.solve import workload
>>> layer = workload("gemm m=8 n=16 k=16", target="vta_1x16x16")
>>> found = choose(Request(layer, "vta_1x16x16"))
>>> found.candidate.rank, found.plan.missing
(1, ())
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, get_args

from cpembed.api.beside import Beside, faster_beside, is_forced
from cpembed.api.choice import pick, stand_in
from cpembed.api.identified import identified
from cpembed.api.run_cpu import (
    CpuChoice,
    given_choice,
    model_choices,
    tuned_choice,
    weights_here,
)
from cpembed.api.run_result import GENERIC
from cpembed.api.run_vta import Choice, OutputForm, VtaSimulation, simulates
from cpembed.api.solve import Progress, SolveResult, explained, hardware_spec, searches
from cpembed.api.widening import best_of
from cpembed.embedding.constraint_set import ConstraintSet, Weights, load_constraint_set
from cpembed.errors import BackendUnavailable, LoweringError, WorkloadError
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.kernel.epilogue import Epilogue
from cpembed.selection.ranking import RankedCandidate
from cpembed.targets.added import is_added
from cpembed.targets.cpu.build import BackendChoice
from cpembed.targets.cpu.choice import AMONG, CONSIDERED, contenders
from cpembed.targets.cpu.variants import with_variants
from cpembed.targets.x86.back_ends import EXECUTED, no_back_end, shapes_taken
from cpembed.targets.x86.features import missing_features
from cpembed.time_limit import Clock
from cpembed.tuning.kept import TunedChoice


@dataclass(frozen=True)
class Request:
    """What is to run, in the words of :func:`~cpembed.api.run.run`."""

    workload: Computation
    target: str | HardwareSpec
    constraints: str | ConstraintSet | None = None
    rank: int | None = None
    identifier: str | None = None
    backend: BackendChoice = "auto"
    seed: int = 0
    weights: Weights | None = None
    timeout: float | None = None
    progress: Progress | None = None
    output: str | None = None
    shift: int | None = None
    relu: bool = False
    bias: bool = False
    scale: bool = False
    untuned: bool = False

    @property
    def any_embedding(self) -> bool:
        """Whether no candidate was asked for."""
        return self.rank is None and self.weights is None and self.identifier is None

    def searches(self, *, by_model: bool, simulated: bool = False) -> tuple[SolveResult, ...]:
        """Of each set that is searched, with so many of the best as what runs is chosen from: by
        the model of a CPU, or by simulation."""
        by_model = by_model and self.any_embedding
        several = CONSIDERED if simulated else 1
        return searches(
            self.workload,
            self.target,
            self.constraints,
            top=AMONG if by_model else self.rank or several,
            keep=contenders if by_model else None,
            weights=self.weights,
            timeout=self.timeout,
            seed=self.seed,
            progress=self.progress,
            rescored=partial(weights_here, spec=hardware_spec(self.target)) if by_model else None,
        )


@dataclass(frozen=True)
class Plan:
    """What to build: the first of ``choices`` that has a kernel; without any, ``candidate`` where
    that is ``native``. Where nothing has a kernel, portable code of ``candidate``, for what
    ``missing`` says, unless the call ``insists`` on a kernel."""

    candidate: RankedCandidate
    choices: Sequence[CpuChoice]
    native: bool
    missing: tuple[str, ...]
    epilogue: Epilogue | None
    insists: bool

    def portable(self, missing: str) -> Plan:
        """The same candidate as portable code."""
        return replace(self, choices=(), native=False, missing=(missing,))


@dataclass(frozen=True)
class Chosen:
    """The candidate that runs, of the search ``solved``, and how: as ``plan`` says, or simulated.

    ``vta`` is where the candidate of a ``simulation`` comes from; the plan is then what runs where
    it has no program. ``instead_of`` is the search for the target that was asked for, where another
    one runs, and ``beside`` why it does.
    """

    solved: SolveResult
    plan: Plan
    simulation: VtaSimulation | None = None
    vta: Choice | None = None
    instead_of: SolveResult | None = None
    beside: Beside | None = None

    @property
    def cpu(self) -> CpuChoice | None:
        """Where a CPU's candidate and schedule come from: the first that is built."""
        return self.plan.choices[0] if self.plan.choices else None

    @property
    def candidate(self) -> RankedCandidate:
        if self.vta is not None:
            return self.vta.candidate
        return self.plan.candidate if self.cpu is None else self.cpu.candidate

    @property
    def tuned(self) -> TunedChoice[Any] | None:
        """The trial that was kept, where that made the choice."""
        if self.vta is not None:
            return self.vta.tuned
        return None if self.cpu is None else self.cpu.tuned

    def to_json(self) -> dict[str, Any]:
        """Why it runs, in the document of ``explain --chosen --json``."""
        asked = self.solved if self.instead_of is None else self.instead_of
        document: dict[str, Any] = {
            "target": asked.target.name,
            "executed": self.solved.target.name,
            "missing": list(self.plan.missing),
            "tuned": None if self.tuned is None else self.tuned.to_json(),
        }
        return document if self.cpu is None else document | self.cpu.to_json()


def choose(asked: Request) -> Chosen | SolveResult:
    """The candidate that runs; the :class:`SolveResult` where the search found nothing.

    Raises as :func:`~cpembed.api.run.run` does before anything is built.
    """
    spec = hardware_spec(asked.target)
    missing = missing_for(spec)
    if asked.backend == "native" and missing:
        raise BackendUnavailable(f"{spec.name}: {'; '.join(missing)}; use the generic back end")
    simulation, epilogue = _results(asked, spec)
    native = asked.backend != GENERIC and not missing
    by_model = native and spec.backend in EXECUTED
    candidate = None
    found: Sequence[SolveResult] = ()
    if asked.identifier is None:
        clock = Clock(asked.timeout)
        found = asked.searches(by_model=by_model, simulated=simulation is not None)
        own = by_model and asked.any_embedding and found[0].count
        solved = found[0] if own else explained(best_of(found), clock, asked.progress)
    else:
        solved, candidate = identified(
            asked.workload,
            spec,
            asked.identifier,
            constraints=asked.constraints,
            timeout=asked.timeout,
            progress=asked.progress,
        )
    anything = asked.constraints is None and asked.backend == "auto" and asked.any_embedding
    if not solved.count:
        other = stand_in(solved)
        return _instead(asked, solved, other) if other is not None and anything else solved
    candidate = candidate or pick(solved, asked.rank or 1)
    plan = Plan(candidate, (), native, missing, epilogue, asked.backend == "native")
    if simulation is not None:
        if asked.any_embedding and len(found) > 1:
            solved, candidate = simulation.fastest(found)
            plan = replace(plan, candidate=candidate)
        vta = _simulated(asked, simulation, solved, candidate)
        return Chosen(solved, plan, simulation, vta)
    if asked.progress is not None:
        asked.progress("build", 0)
    if not by_model:
        if anything and spec.otherwise is not None and is_forced(solved):
            return _instead(asked, solved, spec.otherwise)
        return Chosen(solved, plan)
    try:
        choices = _choices(asked, solved, candidate, _all(found), epilogue)
    except LoweringError as error:
        reason = f"{error}{shapes_taken(spec)}"
        if plan.insists:
            raise LoweringError(reason) from error
        return Chosen(solved, plan.portable(reason))
    if anything:
        beside = faster_beside(solved, choices[0], epilogue, timeout=asked.timeout, seed=asked.seed)
        if beside is not None:
            return _instead(asked, solved, beside.target, beside)
    return Chosen(solved, replace(plan, choices=choices))


def missing_for(spec: HardwareSpec) -> tuple[str, ...]:
    """What executing or simulating a target's instruction on this machine lacks; empty where
    nothing does."""
    if simulates(spec):
        return ()
    lacking = None if is_added(spec) else no_back_end(spec)
    if lacking is not None:
        return (lacking,)
    features = missing_features(spec)
    return (f"this machine lacks {' and '.join(features)}",) if features else ()


def _results(asked: Request, spec: HardwareSpec) -> tuple[VtaSimulation | None, Epilogue | None]:
    """What a simulated target makes of the sums, or another one, checked before a search."""
    steps = {"relu": asked.relu, "a bias": asked.bias, "a scale": asked.scale}
    if simulates(spec) and asked.backend != GENERIC:
        form = _output_form(spec, asked.output, [step for step, wanted in steps.items() if wanted])
        return VtaSimulation.of(spec, asked.workload, form, asked.shift), None
    if asked.shift is not None:
        raise WorkloadError(
            "a shift is for targets that are simulated, "
            f"not for {spec.name} with the {asked.backend} back end: leave it out"
        )
    if asked.output is None and not any(steps.values()):
        return None, None
    dtype = asked.output or asked.workload.output.dtype
    return None, Epilogue(dtype, asked.scale, asked.bias, asked.relu)


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


def _instead(
    asked: Request, solved: SolveResult, other: str, beside: Beside | None = None
) -> Chosen | SolveResult:
    """What another target runs in the place of the one that was searched for."""
    found = choose(replace(asked, target=other))
    if not isinstance(found, Chosen) or found.simulation is not None:
        return solved
    return replace(found, instead_of=solved, beside=beside)


def _simulated(
    asked: Request, simulation: VtaSimulation, solved: SolveResult, candidate: RankedCandidate
) -> Choice:
    if asked.untuned:
        return Choice(candidate)
    return simulation.tuned(
        solved,
        candidate,
        any_set=asked.constraints is None,
        any_embedding=asked.any_embedding,
    )


def _choices(
    asked: Request,
    solved: SolveResult,
    candidate: RankedCandidate,
    candidates: Sequence[RankedCandidate],
    epilogue: Epilogue | None,
) -> Sequence[CpuChoice]:
    """What to build, the first that can be built; the model chooses among ``candidates``."""
    spec, named = solved.target, asked.constraints
    if not asked.untuned:
        of = load_constraint_set(named) if isinstance(named, str) else named
        only = None if asked.any_embedding else candidate
        kept = tuned_choice(solved.workload, spec, of, solved.constraints.weights, only)
        if kept is not None:
            return [kept]
    if asked.identifier is not None:
        return given_choice(candidate, spec, epilogue)
    if not asked.any_embedding:
        return model_choices((candidate,), spec, epilogue, fuses=False)
    return model_choices(candidates, spec, epilogue, fuses=named is None)


def considered(asked: Request) -> tuple[RankedCandidate, ...]:
    """What the model chooses among, variants too; none where no CPU executes the target."""
    spec = hardware_spec(asked.target)
    if spec.backend not in EXECUTED or missing_for(spec):
        return ()
    return with_variants(_all(asked.searches(by_model=True)), spec)


def _all(found: Sequence[SolveResult]) -> list[RankedCandidate]:
    return [item for result in found for item in result.embeddings]
