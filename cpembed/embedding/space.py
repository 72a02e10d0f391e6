"""The embeddings of a search as products: axes that no constraint couples combine freely.

A space of half a million embeddings is a few hundred axis maps. It is counted, sampled and ranked
without being written out, and is a sequence of embeddings for whoever wants them one by one.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import overload

from cpembed.embedding.digit_model import AxisMaps, combine
from cpembed.embedding.embedding import Embedding
from cpembed.embedding.flatten import members_of
from cpembed.embedding.problem import EmbeddingProblem

Family = tuple[tuple[str, frozenset[str]], ...]
"""Which workload axes feed each of some instruction axes, by the axes' names."""

Box = list[tuple[tuple[str, ...], set[Family]]]
"""The families of a product: those of each component, with its instruction axes."""


@dataclass(frozen=True)
class Component:
    """Instruction axes whose digits no constraint couples to those of the others, with the axis
    maps that they have. ``complete``: they have no other."""

    axes: tuple[str, ...]
    maps: tuple[AxisMaps, ...]
    complete: bool = True

    def families(self, axes: Sequence[str]) -> set[Family]:
        """The families of some of the axes."""
        return {_family(found, axes) for found in self.maps}


class _Made(Sequence[Embedding], ABC):
    """Embeddings that are made as they are asked for."""

    @abstractmethod
    def at(self, place: int) -> Embedding:
        """The embedding at a place, which there is."""

    @overload
    def __getitem__(self, index: int) -> Embedding: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Embedding, ...]: ...
    def __getitem__(self, index: int | slice) -> Embedding | tuple[Embedding, ...]:
        places = range(len(self))[index]
        return self.at(places) if isinstance(places, int) else tuple(map(self.at, places))


@dataclass(frozen=True)
class EmbeddingSpace(_Made):
    """One embedding for each choice of a map per component; the last component varies fastest."""

    problem: EmbeddingProblem
    components: tuple[Component, ...]

    def __len__(self) -> int:
        return math.prod(len(component.maps) for component in self.components)

    def __iter__(self) -> Iterator[Embedding]:
        # A product over no maps would still begin by reading all others.
        if len(self):
            for parts in itertools.product(*(c.maps for c in self.components)):
                yield combine(self.problem, parts)

    def at(self, place: int) -> Embedding:
        parts: list[AxisMaps] = []
        for component in reversed(self.components):
            place, rest = divmod(place, len(component.maps))
            parts.append(component.maps[rest])
        return combine(self.problem, parts)


@dataclass(frozen=True)
class Spaces(_Made):
    """The embeddings of several spaces, one after the other: those of alternative problems."""

    members: tuple[Sequence[Embedding], ...]

    def __len__(self) -> int:
        return sum(map(len, self.members))

    def __iter__(self) -> Iterator[Embedding]:
        return itertools.chain.from_iterable(self.members)

    def at(self, place: int) -> Embedding:
        for member in self.members:
            if place < len(member):
                return member[place]
            place -= len(member)
        raise IndexError(place)


def spaces_of(embeddings: Sequence[Embedding]) -> list[Sequence[Embedding]]:
    """The parts of a sequence of embeddings that are products or plain sequences."""
    return list(embeddings.members) if isinstance(embeddings, Spaces) else [embeddings]


def count_families(embeddings: Sequence[Embedding]) -> int:
    """Number of families of the embeddings: counted on the components, by inclusion and exclusion
    where several products may share some."""
    boxes: list[Box] = []
    listed: set[Family] = set()
    for space in spaces_of(embeddings):
        if not isinstance(space, EmbeddingSpace):
            listed |= {_family(embedding, list(embedding.digits)) for embedding in space}
        elif len(space):
            boxes.append([(c.axes, c.families(c.axes)) for c in space.components])
    total = sum(1 for family in listed if not any(_within(family, box) for box in boxes))
    for size in range(1, len(boxes) + 1):
        for chosen in itertools.combinations(boxes, size):
            total -= (-1) ** size * _shared(chosen)
    return total


def _within(family: Family, box: Box) -> bool:
    return all(
        tuple(part for part in family if part[0] in axes) in families for axes, families in box
    )


def _shared(boxes: Sequence[Box]) -> int:
    """Number of families that all of the products have."""
    groups = _coarsened([axes for box in boxes for axes, _ in box])
    count = 1
    for group in groups:
        common: set[Family] | None = None
        for box in boxes:
            within = [families for axes, families in box if axes[0] in group]
            joined = {
                tuple(sorted(itertools.chain.from_iterable(parts)))
                for parts in itertools.product(*within)
            }
            common = joined if common is None else common & joined
        count *= len(common or ())
    return count


def _coarsened(groups: Sequence[tuple[str, ...]]) -> list[set[str]]:
    """The finest partition in which each of the groups lies in one part."""
    parts: list[set[str]] = []
    for group in groups:
        touching = [part for part in parts if part & set(group)]
        parts = [part for part in parts if part not in touching]
        parts.append(set(group).union(*touching))
    return parts


def _family(found: AxisMaps | Embedding, axes: Sequence[str]) -> Family:
    groups: Mapping[str, tuple[str, ...]] = found.flattened
    return tuple(
        sorted(
            (
                axis,
                frozenset(m for d in found.digits[axis] for m in members_of(groups, d.axis)),
            )
            for axis in axes
        )
    )
