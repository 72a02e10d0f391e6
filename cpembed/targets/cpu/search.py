"""The search on a CPU: kernels are timed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from random import Random

from cpembed.kernel.plan import Knobs
from cpembed.targets.cpu.choice import Objective
from cpembed.targets.cpu.space import CpuDesign, CpuProposal, canonical, neighbour, proposal
from cpembed.tuning.search import Search

SCREENED = 64
"""Schedules that estimates choose alone."""

FIRST = 5
"""Families of embeddings whose best schedules come before others: estimates compare schedules of
one embedding better than embeddings."""

HOPELESS = 2.0
"""Families whose estimate is above this multiple of the least are not among the first."""


class CpuSearch(Search[CpuProposal]):
    """The first proposal is what runs untuned: ``untuned`` on the first design."""

    def __init__(
        self, designs: Sequence[CpuDesign], untuned: Knobs, objective: Objective, seed: int
    ) -> None:
        super().__init__(seed)
        self._designs = designs
        self._untuned = untuned
        self._objective: Objective = objective

    def _chosen(self) -> Iterator[CpuProposal]:
        first = self._designs[0]
        untuned = proposal(first, canonical(first, self._untuned), self._objective)
        if untuned is not None:
            yield untuned
        by_design = [self._ranked(design) for design in self._designs]
        best = self._best_of_families(found[0] for found in by_design)
        hopeless = HOPELESS * best[0].estimate
        yield from (found for found in best[:FIRST] if found.estimate <= hopeless)
        every = sorted((item for found in by_design for item in found), key=_estimate)
        yield from every[:SCREENED]

    def _ranked(self, design: CpuDesign) -> list[CpuProposal]:
        found = (
            proposal(design, canonical(design, knobs), self._objective, kernel)
            for kernel, knobs in design.ranked
        )
        return sorted((item for item in found if item is not None), key=_estimate)

    @staticmethod
    def _best_of_families(found: Iterable[CpuProposal]) -> list[CpuProposal]:
        best: dict[str, CpuProposal] = {}
        for item in sorted(found, key=_estimate):
            best.setdefault(repr(item.design.candidate.embedding.family), item)
        return list(best.values())

    def _neighbour(self, parent: CpuProposal, random: Random) -> CpuProposal | None:
        return neighbour(parent, self._designs, self._objective, random)


def _estimate(item: CpuProposal) -> float:
    return item.estimate
