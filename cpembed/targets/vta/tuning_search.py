"""The search on a VTA: the timed simulator measures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from cpembed import worker
from cpembed.errors import CrashError, LoweringError
from cpembed.targets.vta.lower import lower
from cpembed.targets.vta.planner import default_schedule
from cpembed.targets.vta.schedule import Schedule
from cpembed.targets.vta.timing import time_program
from cpembed.targets.vta.tuning_space import (
    Design,
    Machine,
    Proposal,
    canonical,
    estimated,
    neighbour,
    screened,
)
from cpembed.targets.vta.tuning_trials import VtaTrial
from cpembed.transform.program import DerivedProgram
from cpembed.tuning.search import Search
from cpembed.worker import step

SCREENED = 64
"""Schedules that estimates choose alone."""


class VtaSearch(Search[Proposal]):
    """The first proposal is the default schedule of the first design."""

    def __init__(self, designs: Sequence[Design], machine: Machine, seed: int) -> None:
        super().__init__(seed)
        self._designs = designs
        self._machine = machine

    def _chosen(self) -> Iterator[Proposal]:
        first, machine = self._designs[0], self._machine
        schedule = default_schedule(first.nest, machine.tail, machine.memory)
        schedule = canonical(first.nest, schedule)
        yield Proposal(estimated(first, schedule, machine), first, schedule)
        yield from screened(self._designs, machine, SCREENED)

    def _neighbour(self, parent: Proposal, random: Random) -> Proposal:
        schedule = neighbour(parent.design.nest, parent.schedule, random)
        estimate = estimated(parent.design, schedule, self._machine)
        return Proposal(estimate, parent.design, schedule)


def measure(proposal: Proposal, machine: Machine) -> VtaTrial:
    """Lower a proposal and count its cycles; a schedule that cannot be lowered is a result."""
    design = proposal.design
    cycles, error = None, None
    try:
        cycles = worker.call(_cycles, design.candidate.program, proposal.schedule, machine)
    except (LoweringError, CrashError) as refused:
        error = str(refused)
    return VtaTrial(
        design.candidate.embedding.to_json(),
        design.identifier,
        design.rank,
        design.constraints,
        error,
        proposal.schedule,
        proposal.estimate,
        cycles,
        design.bounds.gemm_or_dma,
        design.bounds.busiest_module,
    )


def _cycles(program: DerivedProgram, schedule: Schedule, machine: Machine) -> int:
    with step("simulating a schedule", program.workload.macs):
        lowered = lower(program, machine.config, schedule, machine.tail)
        return time_program(lowered.empty_image(), machine.memory).cycles
