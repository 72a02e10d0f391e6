"""Tune by simulated cycles: our schedules by the tuner's search, the reference over its knobs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from cpembed.cost.ranking import Candidate, RankedCandidate, overheads
from cpembed.errors import LoweringError
from cpembed.hw.instruction import HardwareSpec
from cpembed.hw.loader import load_hardware_spec
from cpembed.ir.computation import Computation
from cpembed.runtime.tuning.session import Search
from cpembed.runtime.tuning.space import Design
from cpembed.targets.vta.bounds import bounds
from cpembed.targets.vta.lower import LoweredVta, lower
from cpembed.targets.vta.schedule import Schedule
from cpembed.targets.vta.target import VtaTarget, VtaTuner
from cpembed.targets.vta.tiles import tile_nest
from cpembed.targets.vta.timing import time_program
from cpembed.targets.vta.tuning import Machine, Nest, VtaSpace
from cpembed.transform.program import DerivedProgram
from experiments.rieber2021.reference import (
    ranked_knobs,
    reference_program,
    reference_schedule,
)

SEED = 0
HOPELESS = 2.0
"""Knobs whose estimate is above this multiple of the best simulated cycles are not simulated: they
take long, and estimates of them are at most about 1.5 times the cycles (near the best knobs they
are within a few percent)."""


@dataclass(frozen=True, eq=False)
class Target:
    """A target with what its programs are simulated on."""

    spec: HardwareSpec
    machine: Machine
    clock_mhz: float

    @classmethod
    def open(cls, name: str, workload: Computation) -> Target:
        """Return the target; results are requantized to int8 by the default shift."""
        target = VtaTarget(_spec(name))
        return cls(target.spec, target.machine(workload), target.clock_mhz)


@cache
def _spec(name: str) -> HardwareSpec:
    return load_hardware_spec(name)


@dataclass(frozen=True, eq=False)
class Tuned:
    """The fastest of the programs of a mapping that were simulated.

    ``bound``: cycles that no schedule of the mapping can beat; ``executions`` of the instruction
    that multiply more than zeros of the image.
    """

    lowered: LoweredVta
    cycles: int
    simulated: int
    bound: int
    executions: int

    def to_json(self) -> dict[str, Any]:
        schedule = self.lowered.schedule
        return {
            "cycles": self.cycles,
            "bound": self.bound,
            "executions": self.executions,
            "simulated": self.simulated,
            "tiles": {name: schedule.tiles[name] for name in schedule.order},
            "threads": schedule.threads,
            "thread_loop": schedule.thread_loop,
            "slots": list(schedule.slots),
        }


def tune(candidate: Candidate, target: Target, trials: int) -> Tuned:
    """Tune a candidate under the search of ``cpembed tune``."""
    lowered = Nest.from_program(candidate.program, target.machine)
    ranked = RankedCandidate(1, candidate, overheads(candidate.program), 0.0, "")
    design = Design(ranked, lowered, VtaSpace(lowered))
    search = Search([design], design.space.best().schedule, SEED, VtaTuner.spread)
    best: tuple[int, Schedule] | None = None
    simulated = 0
    for proposal in search.proposals(trials):
        try:
            cycles = _cycles(candidate.program, proposal.schedule, target)
        except LoweringError:
            search.tell(proposal, None)
            continue
        simulated += 1
        search.tell(proposal, cycles)
        if best is None or cycles < best[0]:
            best = cycles, proposal.schedule
    return _tuned(candidate.program, best, simulated, target)


def tune_reference(
    workload: Computation, target: Target, trials: int, hopeless: float = HOPELESS
) -> Tuned:
    """Tune the reference strategy over the knobs of smallest estimates.

    Parameters
    ----------
    workload : Computation
        A convolution.
    target : Target
        Target to simulate.
    trials : int
        Maximum number of simulated programs.
    hopeless : float
        Limit of estimates, as :data:`HOPELESS`; infinite to simulate all.
    """
    program = reference_program(workload, target.spec.instruction)
    nest = tile_nest(program, target.machine.config)
    ranked = ranked_knobs(nest, target.machine.tail, trials, target.machine.memory)
    best: tuple[int, Schedule] | None = None
    simulated = 0
    for estimate, knobs in ranked:
        if best is not None and estimate > hopeless * best[0]:
            break
        schedule = reference_schedule(nest, knobs)
        cycles = _cycles(program, schedule, target)
        simulated += 1
        if best is None or cycles < best[0]:
            best = cycles, schedule
    return _tuned(program, best, simulated, target)


def _cycles(program: DerivedProgram, schedule: Schedule, target: Target) -> int:
    machine = target.machine
    lowered = lower(program, machine.config, schedule, machine.tail)
    return time_program(lowered.empty_image(), machine.memory, checked=False).cycles


def _tuned(
    program: DerivedProgram, best: tuple[int, Schedule] | None, simulated: int, target: Target
) -> Tuned:
    if best is None:
        raise LoweringError("no schedule of the mapping has a program")
    cycles, schedule = best
    lowered = lower(program, target.machine.config, schedule, target.machine.tail)
    lower_bounds = bounds(lowered.nest, target.machine.tail, target.machine.memory)
    return Tuned(lowered, cycles, simulated, lower_bounds.busiest_module, lower_bounds.gemm)
