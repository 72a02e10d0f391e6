"""The search: estimates choose the first trials, neighbours of the best measured follow."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from random import Random
from typing import Generic, Protocol, TypeVar

GENERATION, FROM_ESTIMATES = 8, 2
"""Trials from one look at what was measured, and how many of them estimates choose alone; of the
first generation all."""

PARENTS, CHILDREN = 4, 64
"""The best schedules, whose neighbours are made; neighbours made of them, of which those with the
best estimates are measured."""


class Proposed(Protocol):
    """A schedule of an embedding with its estimate, in a unit that all proposals share."""

    @property
    def key(self) -> str: ...

    @property
    def estimate(self) -> float: ...


P = TypeVar("P", bound=Proposed)


class Search(ABC, Generic[P]):
    """Proposes schedules in an order that depends only on what is searched, the seed, and what was
    measured before: repeated with the same measurements, it proposes the same."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._seen: set[str] = set()
        self._measured: list[tuple[float, P]] = []

    @abstractmethod
    def _chosen(self) -> Iterator[P]:
        """By estimates alone, the best first, after what runs untuned."""

    @abstractmethod
    def _neighbour(self, parent: P, random: Random) -> P | None:
        """A schedule that differs from the parent's a little; None, or an infinite estimate, where
        it does not fit."""

    def proposals(self, trials: int) -> Iterator[P]:
        """At most ``trials`` proposals; each is to be measured, and told, before the next.

        The first is what runs untuned. More trials begin with the same ones.
        """
        return itertools.islice(self._endless(), trials)

    def tell(self, proposal: P, cost: float | None) -> None:
        """What a proposal measured, less being better; None where it has no program."""
        if cost is not None:
            self._measured.append((cost, proposal))

    def _endless(self) -> Iterator[P]:
        random = Random(self._seed)
        chosen = filter(self._is_new, self._chosen())
        generation = list(itertools.islice(chosen, GENERATION))
        while generation:
            yield from generation
            generation = list(itertools.islice(chosen, FROM_ESTIMATES))
            generation += self._neighbours(GENERATION - len(generation), random)

    def _neighbours(self, count: int, random: Random) -> list[P]:
        """Neighbours of the best, those of smallest estimates; an estimate is corrected by how far
        off its parent's was."""
        parents = sorted(self._measured, key=lambda item: item[0])[:PARENTS]
        children: list[tuple[float, P]] = []
        for _ in range(CHILDREN if parents else 0):
            cost, parent = random.choice(parents)
            child = self._neighbour(parent, random)
            if child is not None and child.estimate < float("inf") and self._is_new(child):
                children.append((child.estimate * cost / parent.estimate, child))
        children.sort(key=lambda item: item[0])
        for _, child in children[count:]:
            self._seen.remove(child.key)
        return [child for _, child in children[:count]]

    def _is_new(self, proposal: P) -> bool:
        new = proposal.key not in self._seen
        self._seen.add(proposal.key)
        return new
