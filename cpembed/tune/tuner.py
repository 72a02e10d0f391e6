"""The search: estimates screen, the timed simulator measures, the best ones' neighbours follow."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from cpembed.backends.vta.lower import lower
from cpembed.backends.vta.planner import default_schedule
from cpembed.backends.vta.timing import time_program
from cpembed.errors import LoweringError
from cpembed.tune.database import Trial
from cpembed.tune.space import (
    Design,
    Machine,
    Proposal,
    canonical,
    estimated,
    neighbour,
    screened,
)

SCREENED = 64
"""Schedules that estimates choose alone."""

GENERATION, FROM_SCREENED = 8, 2
"""Trials from one look at what was measured, and how many of them estimates choose alone; of the
first generation all."""

PARENTS, CHILDREN = 4, 64
"""The best schedules, whose neighbours are made; neighbours made of them, of which those with the
best estimates are measured."""


@dataclass
class Tuner:
    """Proposes schedules in an order that depends only on the designs, the seed, and what was
    measured before: repeated with the same measurements, it proposes the same."""

    designs: Sequence[Design]
    machine: Machine
    seed: int
    _seen: set[str] = field(default_factory=set[str])
    _measured: list[tuple[int, Proposal]] = field(default_factory=list[tuple[int, Proposal]])

    def proposals(self, trials: int) -> Iterator[Proposal]:
        """At most ``trials`` proposals; each is to be measured, and told, before the next.

        The first is the default schedule of the first design. More trials begin with the same
        ones.
        """
        return itertools.islice(self._endless(), trials)

    def tell(self, proposal: Proposal, cycles: int | None) -> None:
        """What a proposal measured; None where it has no program."""
        if cycles is not None:
            self._measured.append((cycles, proposal))

    def _endless(self) -> Iterator[Proposal]:
        random = Random(self.seed)
        chosen = self._chosen()
        generation = list(itertools.islice(chosen, GENERATION))
        while generation:
            yield from generation
            generation = list(itertools.islice(chosen, FROM_SCREENED))
            generation += self._neighbours(GENERATION - len(generation), random)

    def _chosen(self) -> Iterator[Proposal]:
        """By estimates alone, after what runs untuned."""
        first = self.designs[0]
        schedule = default_schedule(first.nest, self.machine.tail, self.machine.memory)
        schedule = canonical(first.nest, schedule)
        untuned = Proposal(estimated(first, schedule, self.machine), first, schedule)
        self._seen.add(untuned.key)
        yield untuned
        yield from filter(self._is_new, screened(self.designs, self.machine, SCREENED))

    def _neighbours(self, count: int, random: Random) -> list[Proposal]:
        """Neighbours of the best, those of smallest estimates; an estimate is corrected by how far
        off its parent's was."""
        parents = sorted(self._measured, key=lambda item: item[0])[:PARENTS]
        children: list[tuple[float, Proposal]] = []
        for _ in range(CHILDREN if parents else 0):
            cycles, parent = random.choice(parents)
            schedule = neighbour(parent.design.nest, parent.schedule, random)
            estimate = estimated(parent.design, schedule, self.machine)
            child = Proposal(estimate, parent.design, schedule)
            if estimate < float("inf") and self._is_new(child):
                children.append((estimate * cycles / parent.estimate, child))
        children.sort(key=lambda item: item[0])
        for _, child in children[count:]:
            self._seen.remove(child.key)
        return [child for _, child in children[:count]]

    def _is_new(self, proposal: Proposal) -> bool:
        new = proposal.key not in self._seen
        self._seen.add(proposal.key)
        return new


def measure(proposal: Proposal, machine: Machine) -> Trial:
    """Lower a proposal and count its cycles; a schedule that cannot be lowered is a result."""
    design = proposal.design
    cycles, error = None, None
    try:
        lowered = lower(design.candidate.program, machine.config, proposal.schedule, machine.tail)
        cycles = time_program(lowered.empty_image(), machine.memory).cycles
    except LoweringError as refused:
        error = str(refused)
    return Trial(
        design.candidate.embedding.to_json(),
        design.identifier,
        design.rank,
        design.constraints,
        proposal.schedule,
        proposal.estimate,
        cycles,
        error,
        design.bounds.gemm_or_dma,
        design.bounds.busiest_module,
    )
