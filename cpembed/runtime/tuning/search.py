"""The search: estimates choose the first trials, neighbours of the best measured follow."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from random import Random
from typing import Generic

from cpembed.errors import LoweringError
from cpembed.runtime.tuning.space import Design, Proposal, S, Scored

GENERATION, FROM_ESTIMATES = 8, 2
"""Trials from one look at what was measured, and how many of them estimates choose alone; of the
first generation all."""

PARENTS, CHILDREN = 4, 64
"""The best schedules, whose neighbours are made; neighbours made of them, of which those with the
best estimates are measured."""

SCREENED = 64
"""Schedules that estimates choose alone."""

FIRST = 5
"""Families of embeddings whose best schedules come before others: estimates compare schedules of
one embedding better than embeddings."""

_OTHER_EMBEDDING = 1 / 6
"""Probability that a neighbour is of another embedding, where a schedule has a meaning there."""


class Search(Generic[S]):
    """Proposes schedules in an order that depends only on what is searched, the seed, and what was
    measured before: repeated with the same measurements, it proposes the same.

    The first proposal is what runs untuned: ``untuned`` on the first design. Families of embeddings
    whose estimate is above ``spread`` times the least are not among the first.
    """

    def __init__(
        self, designs: Sequence[Design[S]], untuned: S, seed: int, spread: float = 1.0
    ) -> None:
        self._designs = designs
        self._untuned = untuned
        self._spread = spread
        self._seed = seed
        self._seen: set[str] = set()
        self._measured: list[tuple[float, Proposal[S]]] = []

    def proposals(self, trials: int) -> Iterator[Proposal[S]]:
        """At most ``trials`` proposals; each is to be measured, and told, before the next.

        More trials begin with the same ones.
        """
        return itertools.chain.from_iterable(self.generations(trials))

    def generations(self, trials: int) -> Iterator[list[Proposal[S]]]:
        """The same, as lists of :data:`GENERATION` at most, of which none depends on what the
        others measure: they are to be told, in their order, before the next list."""
        for generation in self._endless():
            if trials <= 0:
                return
            yield generation[:trials]
            trials -= len(generation)

    def tell(self, proposal: Proposal[S], cost: float | None) -> None:
        """What a proposal measured, less being better; None where it has no program."""
        if cost is not None:
            self._measured.append((cost, proposal))

    def _endless(self) -> Iterator[list[Proposal[S]]]:
        random = Random(self._seed)
        chosen = filter(self._is_new, self._chosen())
        generation = list(itertools.islice(chosen, GENERATION))
        while generation:
            yield generation
            generation = list(itertools.islice(chosen, FROM_ESTIMATES))
            generation += self._neighbours(GENERATION - len(generation), random)

    def _chosen(self) -> Iterator[Proposal[S]]:
        """By estimates alone, the best first, after what runs untuned."""
        untuned = _proposal(self._designs[0], self._untuned)
        if untuned is not None:
            yield untuned
        ranked = screened(self._designs)
        families: dict[str, Proposal[S]] = {}
        for item in ranked:
            families.setdefault(repr(item.design.candidate.embedding.family), item)
        best = list(families.values())[:FIRST]
        yield from (item for item in best if item.estimate <= self._spread * best[0].estimate)
        yield from ranked[:SCREENED]

    def _neighbours(self, count: int, random: Random) -> list[Proposal[S]]:
        """Neighbours of the best, those of smallest estimates; an estimate is corrected by how far
        off its parent's was."""
        parents = sorted(self._measured, key=lambda item: item[0])[:PARENTS]
        children: list[tuple[float, Proposal[S]]] = []
        for _ in range(CHILDREN if parents else 0):
            cost, parent = random.choice(parents)
            child = self._neighbour(parent, random)
            if child is not None and child.estimate < float("inf") and self._is_new(child):
                off = cost / parent.estimate if parent.estimate else 1.0
                children.append((child.estimate * off, child))
        children.sort(key=lambda item: item[0])
        for _, child in children[count:]:
            self._seen.remove(child.key)
        return [child for _, child in children[:count]]

    def _neighbour(self, parent: Proposal[S], random: Random) -> Proposal[S] | None:
        design, schedule = parent.design, parent.schedule
        if len(self._designs) > 1 and random.random() < _OTHER_EMBEDDING:
            other = random.choice(self._designs)
            moved = other.space.transferred(schedule, design.space)
            if moved is not None:
                return _proposal(other, moved)
        changed = design.space.neighbour(schedule, random)
        return None if changed is None else _proposal(design, changed)

    def _is_new(self, proposal: Proposal[S]) -> bool:
        new = proposal.key not in self._seen
        self._seen.add(proposal.key)
        return new


def _proposal(design: Design[S], schedule: S) -> Proposal[S] | None:
    """None where the schedule does not fit."""
    try:
        return Proposal(design, design.space.scored(design.space.canonical(schedule)))
    except LoweringError:
        return None


def screened(designs: Sequence[Design[S]], limit: int = SCREENED) -> list[Proposal[S]]:
    """The schedules of smallest estimates over all designs, best first, at most ``limit`` of each.

    Designs are looked at in the order of their lower bounds, until one's bound is above the best
    estimate: none of its schedules can be the fastest.
    """
    best = float("inf")
    found: list[Proposal[S]] = []
    for design in sorted(designs, key=lambda item: item.space.lower_bound):
        if design.space.lower_bound > best:
            break
        unique: dict[str, Proposal[S]] = {}
        for item in _worth_trying(design, limit):
            proposal = Proposal(design, item)
            unique.setdefault(proposal.key, proposal)
        best = min(best, *(item.estimate for item in unique.values()), float("inf"))
        found += list(unique.values())[:limit]
    return sorted(found, key=lambda proposal: proposal.estimate)


def _worth_trying(design: Design[S], limit: int) -> list[Scored[S]]:
    """Under their canonical names; none where no schedule fits."""
    space = design.space
    try:
        # Several enumerated schedules are one program; enough are left without them.
        ranked = space.ranked(8 * limit)
    except LoweringError:
        return []
    found: list[Scored[S]] = []
    for item in ranked:
        schedule = space.canonical(item.schedule)
        found.append(Scored(item.cost, schedule, item.parts))
    return found
