"""Estimated time of a candidate, by the one function from which every command takes it.

What executes a candidate decides who estimates it: the model of the target's back end, for the
program that this would write, or the description of the machine, for the best of all programs. The
first is what ``run``, ``match``, ``layouts`` and ``solve --estimate`` state; the second stands
beside it, named, or alone where nothing executes the target.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cpembed.codegen.packing import packed_before
from cpembed.cost.machine.estimate import Estimate, estimate_program, machine_of, packing_times
from cpembed.cost.ranking import RankedCandidate
from cpembed.driver.plan import AnyTarget, Selection
from cpembed.errors import BackendUnavailable, LoweringError, SpecError, TransformError
from cpembed.hw.instruction import HardwareSpec
from cpembed.hw.machine import Hierarchy
from cpembed.runtime.tuning.space import Scored
from cpembed.targets.choice import choices
from cpembed.targets.registry import open_target
from cpembed.transform.program import DerivedProgram

BACK_END = "back end"
"""Origin of a time that is that of a back end's program, by its model."""

DESCRIPTION = "description"
"""Origin of a time that is that of the best program by the description of a machine."""


@dataclass(frozen=True)
class CandidateTime:
    """Estimated time of a candidate.

    Attributes
    ----------
    origin : str
        ``BACK_END`` or ``DESCRIPTION``.
    total_us : float
        Microseconds with packing and unpacking, but for what is packed ahead.
    us : float or None
        Microseconds of the contraction alone; None if the model only knows the total.
    moving_us : float or None
        Microseconds of packing and unpacking; None if the model only knows the total.
    packing_us : mapping of str to float
        Parts of ``moving_us`` by operand, where they are known.
    cycles : float or None
        Cycles of the contraction, where they are counted.
    machine : str or None
        Described machine that the time is for; None for this one.
    """

    origin: str
    total_us: float
    us: float | None
    moving_us: float | None
    packing_us: Mapping[str, float]
    cycles: float | None
    machine: str | None

    def to_json(self) -> dict[str, Any]:
        """Return the member ``time`` of the documents."""
        return {
            "origin": self.origin,
            "total_us": self.total_us,
            "us": self.us,
            "moving_us": self.moving_us,
            "packing_us": dict(self.packing_us),
            "cycles": self.cycles,
            "machine": self.machine,
        }


def described_time(estimate: Estimate) -> CandidateTime:
    """Return the time of the best program by the description of a machine."""
    return CandidateTime(
        origin=DESCRIPTION,
        total_us=estimate.total_us,
        us=estimate.us,
        moving_us=sum(estimate.packing_us.values()),
        packing_us=estimate.packing_us,
        cycles=estimate.cycles,
        machine=estimate.machine,
    )


def scheduled_time(
    target: AnyTarget, program: DerivedProgram, cost: float, parts: Mapping[str, float]
) -> CandidateTime | None:
    """Return the time of a program that a back end writes, by the target's model.

    None if the model counts cycles, and no clock is known.

    Parameters
    ----------
    target : Target
        Target that executes it.
    program : DerivedProgram
        Candidate's program.
    cost : float
        Estimate of the schedule in the target's unit.
    parts : mapping of str to float
        Parts of the estimate (:class:`~cpembed.runtime.tuning.space.Scored`).
    """
    spec = target.spec
    machine = target.described_machine
    if target.unit == "us":
        # Packing is in the cost, and some models have it by itself.
        return CandidateTime(
            BACK_END, cost, parts.get("us"), parts.get("moves_us"), {}, None, machine
        )
    clock = None if spec.machine is None else spec.machine.clock_mhz
    if clock is None:
        return None
    # Cycles are those of the device, and packing precedes them.
    packing: Mapping[str, float] = {}
    if spec.machines:
        described = machine_of(spec)
        packing = packing_times(program, described, packed_before(program.workload))
    moving, us = sum(packing.values()), cost / clock
    return CandidateTime(BACK_END, us + moving, us, moving, packing, cost, machine)


def description_estimate(
    program: DerivedProgram, machine: Hierarchy, objective: str = "cycles"
) -> Estimate | str:
    """Estimate a program by the description of a machine, or return why there is no estimate.

    Parameters
    ----------
    program : DerivedProgram
        Program whose tiling is searched; weights are packed ahead.
    machine : Hierarchy
        Machine with its memories.
    objective : str, default "cycles"
        What the tiling is to have the least of.
    """
    ahead = packed_before(program.workload)
    try:
        return estimate_program(program, machine, ahead=ahead, objective=objective)
    except TransformError as error:
        return str(error)


def described_estimate(program: DerivedProgram, spec: HardwareSpec) -> Estimate | None:
    """Estimate a program on the first machine that a specification describes.

    Returns None if it describes none, or one that cannot hold the program.
    """
    try:
        estimate = description_estimate(program, machine_of(spec))
    except SpecError:
        return None
    return estimate if isinstance(estimate, Estimate) else None


def selection_time(selection: Selection) -> CandidateTime | None:
    """Return the time of what was chosen to run; None if nothing describes it.

    The target's own model counts if it executes the selection, else the first machine that the
    specification describes. A candidate that the target rejects has no time.
    """
    plan, choice, program = selection.plan, selection.choice, selection.ranked.program
    amount = choice.estimated if plan.native else None
    if amount is not None and amount != float("inf"):
        scored: Scored[Any] | None = choice.scored
        return scheduled_time(plan.target, program, amount, scored.parts if scored else {})
    # Portable code in place of a target that executes here: the target rejected the candidate.
    if not plan.native and modelled_target(selection.solved.target) is not None:
        return None
    described = selection.described or described_estimate(program, selection.solved.target)
    return None if described is None else described_time(described)


def modelled_target(spec: HardwareSpec) -> AnyTarget | None:
    """Return the target that executes a specification and models the machine that it describes.

    None if nothing executes it here, or what does is a machine of its own, such as a processor.
    """
    try:
        target = open_target(spec)
    except (BackendUnavailable, SpecError):
        return None
    return None if target.described_machine is None or target.missing() else target


def back_end_time(target: AnyTarget, ranked: RankedCandidate, epilogue: Any) -> CandidateTime | str:
    """Return the time of a candidate with its fastest schedule, or why the back end rejects it.

    Parameters
    ----------
    target : Target
        Target that executes candidates.
    ranked : RankedCandidate
        Candidate of a search.
    epilogue : Any
        Epilogue in the target's own form.
    """
    try:
        scored = choices(target, (ranked,), epilogue)[0].scored
    except LoweringError as error:
        return str(error)
    assert scored is not None
    time = scheduled_time(target, ranked.program, scored.cost, scored.parts)
    return time or "no clock is known: machine.clock_mhz says it"
