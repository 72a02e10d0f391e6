"""How a target is tuned that has no way of its own: what :class:`~cpembed.targets.base.Target` does
by default."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cpembed.cost.candidate import Candidate
from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.errors import CrashError, LoweringError
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.runtime.measurement.environment import versions
from cpembed.runtime.tuning.database import PlainTrial, module_digest, problem_key, trial_store
from cpembed.runtime.tuning.session import CandidatePool, Task, Tuning
from cpembed.runtime.tuning.space import Proposal, S
from cpembed.steps import step
from cpembed.targets.verification import verified

if TYPE_CHECKING:
    from cpembed.targets.base import Target


def trial_key(
    target: Target[Any, Any, Any],
    workload: Computation,
    constraints: ConstraintSet,
    epilogue: Any,
    objective: str | None,
) -> dict[str, Any]:
    """Everything that the trials of a file depend on, the target's code included."""
    module = type(target).__module__
    return {
        **problem_key(workload, target.spec, constraints),
        "kind": target.trial.kind,
        "executor": target.spec.backend,
        "objective": objective,
        "module": module,
        "source": module_digest(module),
        "stored": None if epilogue is None else str(epilogue),
        "figures": target.figures(),
        "version": versions()["cpembed"],
    }


def open_tuning(
    target: Target[Any, S, Any],
    task: Task,
    field: CandidatePool[S],
    epilogue: Any,
    folder: Path,
    call: Callable[..., Any],
) -> Tuning[Any, S]:
    """A search that keeps its trials in a folder."""
    key = target.trial_key(task.workload, task.constraints, epilogue, target.objective)
    store = trial_store(folder, key, target.trial)

    def measure(proposal: Proposal[S]) -> Any:
        return target.tried(proposal, epilogue, call)

    about = target.tuned_about(task.workload, epilogue)
    return Tuning(task, field, store, target.trial, measure, target.spread, about)


def tried(
    target: Target[Any, S, Any],
    proposal: Proposal[S],
    epilogue: Any,
    call: Callable[..., Any],
) -> Any:
    """A trial of a proposal, whose error is why it has no figure."""
    function, arguments = target.trial_call(proposal, epilogue)
    try:
        figure = call(function, *arguments)
    except (LoweringError, CrashError) as refused:
        return target.trial_of(proposal, None, str(refused))
    return target.trial_of(proposal, figure, None)


def trial_call(
    target: Target[Any, S, Any], proposal: Proposal[S], epilogue: Any
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """What gives the time of a proposal."""
    return _time_of, (
        type(target), target.spec, target.objective,
        proposal.design.candidate, proposal.schedule, epilogue,
    )  # fmt: skip


def trial_of(
    target: Target[Any, S, Any], proposal: Proposal[S], time_taken: float | None, error: str | None
) -> PlainTrial:
    """The trial of a proposal."""
    design = proposal.design
    finite = proposal.estimate < float("inf")
    return PlainTrial(
        design.candidate.embedding.to_json(),
        design.identifier,
        design.ranked.rank,
        design.ranked.constraints,
        error,
        target.schedule_json(proposal.schedule),
        design.space.key(proposal.schedule),
        target.unit,
        target.provenance,
        proposal.estimate if finite else None,
        time_taken,
    )


def _time_of(
    kind: type[Target[Any, Any, Any]],
    spec: HardwareSpec,
    objective: str | None,
    candidate: Candidate,
    schedule: Any,
    epilogue: Any,
) -> float:
    """What a schedule takes, in the target's unit, after its numbers were verified.

    Raises :class:`LoweringError` for a target that gives no time here.
    """
    target, workload = kind(spec), candidate.program.workload
    if objective is not None:
        target = target.minimising(objective)
    with step("building a schedule", workload.macs):
        artifact = target.build(target.lower(candidate.program, epilogue), schedule)
    found, inputs = verified(target, artifact, candidate.program.unfused, epilogue, seed=0)
    kernel = f"the {target.executed_by(artifact)} kernel of embedding {candidate.identifier}"
    found.require(f"{kernel} of {spec.name} in {workload.name} with {schedule}", seed=0)
    with step("timing a schedule", 10 * workload.macs):
        timing = target.time(artifact, inputs)
    latency = None if timing.latency_us is None else timing.latency_us.median
    found_time = timing.cycles if target.unit == "cycles" else latency
    if found_time is None:
        raise LoweringError(f"{spec.name} gives no {target.unit} here: nothing to compare")
    return found_time
