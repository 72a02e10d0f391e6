"""Result of a search: its embeddings, as sequences and products, and the solver's effort.

Axes that no constraint couples combine freely, so a space of half a million embeddings is a few
hundred axis maps. It is counted, sampled and ranked without being written out, and is a sequence
of embeddings for whoever wants them one by one.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import reduce
from typing import Any, overload

from cpembed.embedding.cpsat import SearchStatistics, Status
from cpembed.embedding.digit_model import AxisMaps, combine
from cpembed.embedding.embedding import Embedding
from cpembed.embedding.flatten import members_of
from cpembed.embedding.node_map import NodeMap
from cpembed.embedding.problem import EmbeddingProblem, LabelMismatch

Family = tuple[tuple[str, frozenset[str]], ...]
"""Set of workload axes that feed each of some instruction axes, sorted by the latter's names."""

Box = list[tuple[tuple[str, ...], set[Family]]]
"""The families of a product: those of each component, with its instruction axes."""


@dataclass(frozen=True)
class Component:
    """Instruction axes whose digits no constraint couples to those of other axes.

    ``maps`` are the axis maps that they have; ``complete`` says that they have no more.
    """

    axes: tuple[str, ...]
    maps: tuple[AxisMaps, ...]
    complete: bool = True

    def families(self, axes: Sequence[str]) -> set[Family]:
        """Return the families of some of the axes."""
        return {_family(axis_maps, axes) for axis_maps in self.maps}


class _LazyEmbeddings(Sequence[Embedding], ABC):
    """A sequence of embeddings that are made when they are read."""

    @abstractmethod
    def at(self, place: int) -> Embedding:
        """Return the embedding at a place from 0 to below the length."""

    @overload
    def __getitem__(self, index: int) -> Embedding: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Embedding, ...]: ...
    def __getitem__(self, index: int | slice) -> Embedding | tuple[Embedding, ...]:
        places = range(len(self))[index]
        return self.at(places) if isinstance(places, int) else tuple(map(self.at, places))


@dataclass(frozen=True)
class EmbeddingSpace(_LazyEmbeddings):
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
        # The place is a mixed-radix number: its lowest digit is the place in the last component.
        for component in reversed(self.components):
            place, rest = divmod(place, len(component.maps))
            parts.append(component.maps[rest])
        return combine(self.problem, parts)


@dataclass(frozen=True)
class Spaces(_LazyEmbeddings):
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
    """Return the parts of a sequence of embeddings that are products or plain sequences."""
    return list(embeddings.members) if isinstance(embeddings, Spaces) else [embeddings]


def _count_families(embeddings: Sequence[Embedding]) -> int:
    """Return the number of families of the embeddings, counted on the components of products."""
    boxes: list[Box] = []
    listed: set[Family] = set()
    for space in spaces_of(embeddings):
        if not isinstance(space, EmbeddingSpace):
            listed |= {_family(embedding, list(embedding.digits)) for embedding in space}
        elif len(space):
            boxes.append([(c.axes, c.families(c.axes)) for c in space.components])
    total = sum(1 for family in listed if not any(_within(family, box) for box in boxes))
    # Inclusion and exclusion: alternative problems may have families in common.
    for size in range(1, len(boxes) + 1):
        for subset in itertools.combinations(boxes, size):
            total -= (-1) ** size * _shared(subset)
    return total


def _within(family: Family, box: Box) -> bool:
    return all(
        tuple(part for part in family if part[0] in axes) in families for axes, families in box
    )


def _shared(boxes: Sequence[Box]) -> int:
    """Return the number of families that all of the products have."""
    # The products may fall apart into different components: only in the finest partition that
    # coarsens all of them are the families of a part comparable, and independent of the rest.
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
    """Return the finest partition in which each of the groups lies in one part."""
    parts: list[set[str]] = []
    for group in groups:
        touching = [part for part in parts if part & set(group)]
        parts = [part for part in parts if part not in touching]
        parts.append(set(group).union(*touching))
    return parts


def _family(mapping: AxisMaps | Embedding, axes: Sequence[str]) -> Family:
    groups: Mapping[str, tuple[str, ...]] = mapping.flattened
    return tuple(
        sorted(
            (
                axis,
                frozenset(m for d in mapping.digits[axis] for m in members_of(groups, d.axis)),
            )
            for axis in axes
        )
    )


class Formulation(StrEnum):
    """The model to post, and its decision orders.

    ``auto`` is the digit model wherever it applies, otherwise the scalar model with as many orders
    as are worth it. ``scalar`` is the scalar model in the order of the workload's axes alone,
    ``portfolio`` the scalar model with every order. A result's formulation is the model:
    ``digits`` or ``scalar``.
    """

    AUTO = "auto"
    DIGITS = "digits"
    SCALAR = "scalar"
    PORTFOLIO = "portfolio"


@dataclass(frozen=True)
class OrderEffort:
    """Cost of one decision order of a portfolio, an *asset* in Rieber et al. 2021.

    ``status`` is what it established by itself: ``unknown`` or ``feasible`` where another order,
    or a limit, ended it.
    """

    name: str
    status: Status
    statistics: SearchStatistics


@dataclass(frozen=True)
class SearchEffort:
    """Effort behind an answer.

    Attributes
    ----------
    formulation : Formulation, optional
        The model; None where nothing had to be posted.
    winner : str, optional
        Name of the decision order that had the answer; None where a limit came first.
    orders : tuple of OrderEffort
        Cost of every order that was started.
    """

    formulation: Formulation | None
    winner: str | None
    orders: tuple[OrderEffort, ...]

    @property
    def total(self) -> SearchStatistics:
        """Sum over all orders."""
        return _sum_of(self.orders)

    def to_json(self) -> dict[str, Any]:
        """Return the ``search`` of the ``solve`` document."""
        return {
            "formulation": self.formulation and self.formulation.value,
            "branches": self.total.branches,
            "conflicts": self.total.conflicts,
            "asset": self.winner,
            "assets": [
                {
                    "name": effort.name,
                    "status": effort.status.value,
                    "branches": effort.statistics.branches,
                    "conflicts": effort.statistics.conflicts,
                }
                for effort in self.orders
            ],
        }


def _sum_of(orders: Iterable[OrderEffort]) -> SearchStatistics:
    return reduce(SearchStatistics.plus, (a.statistics for a in orders), SearchStatistics())


@dataclass(frozen=True)
class Seconds:
    """Wall time in seconds for building the model and for searching it."""

    model: float
    solve: float


@dataclass(frozen=True)
class SearchResult:
    """Embeddings that a search found, and how far it came.

    Attributes
    ----------
    status, complete : Status, bool
        Outcome; ``complete`` if there are no other embeddings under the constraint set.
    embeddings : sequence of Embedding
        The embeddings.
    irregular : tuple of NodeMap
        Solutions that are not axis maps (only without ``hyper_rectangle``).
    seconds, effort : Seconds, SearchEffort
        Time and work that the search took.
    problem : EmbeddingProblem, optional
        Problem of the first assignment of roles.
    mismatch : LabelMismatch, optional
        Difference in labels of the graphs, for which nothing was posted.
    unsearched : tuple of str
        Parts of the set's space that no model was posted for. Where there are any, a result is
        neither complete nor a proof that nothing fits.
    """

    status: Status
    complete: bool
    embeddings: Sequence[Embedding]
    irregular: tuple[NodeMap, ...]
    seconds: Seconds
    effort: SearchEffort
    problem: EmbeddingProblem | None = None
    mismatch: LabelMismatch | None = None
    unsearched: tuple[str, ...] = ()

    def with_unsearched(self, unsearched: tuple[str, ...]) -> SearchResult:
        """Return the result where those parts of the space were not searched."""
        if not unsearched:
            return self
        weaker = {Status.OPTIMAL: Status.FEASIBLE, Status.INFEASIBLE: Status.UNKNOWN}
        status = weaker.get(self.status, self.status)
        return replace(self, status=status, complete=False, unsearched=unsearched)

    @property
    def families(self) -> int:
        """Number of families of the embeddings (docs/embedding.md, "Axis maps")."""
        return _count_families(self.embeddings)

    def cut(self, usable: int) -> SearchResult:
        """Return the result where only ``usable`` embeddings had programs when time was over."""
        if not usable:
            return replace(self, status=Status.UNKNOWN, complete=False, embeddings=(), irregular=())
        return replace(self, status=Status.FEASIBLE, complete=False)


def nothing_found(seconds: float) -> SearchResult:
    """Return the result of a search whose time in seconds was over before anything was posted."""
    return SearchResult(
        status=Status.UNKNOWN,
        complete=False,
        embeddings=(),
        irregular=(),
        seconds=Seconds(seconds, 0.0),
        effort=SearchEffort(None, None, ()),
    )


def merged(results: list[SearchResult]) -> SearchResult:
    """Return the union of searches over alternative problems."""
    complete = all(result.complete for result in results)
    return SearchResult(
        status=alternatives([result.status for result in results]),
        complete=complete,
        embeddings=Spaces(tuple(result.embeddings for result in results)),
        irregular=tuple(m for result in results for m in result.irregular),
        seconds=Seconds(
            sum(result.seconds.model for result in results),
            sum(result.seconds.solve for result in results),
        ),
        effort=_merged_effort([result.effort for result in results], complete=complete),
        problem=results[0].problem,
        unsearched=tuple(dict.fromkeys(part for r in results for part in r.unsearched)),
    )


def _merged_effort(efforts: list[SearchEffort], *, complete: bool) -> SearchEffort:
    """Sum efforts over the problems, by order; the winner is that of the hardest problem."""
    by_name: dict[str, list[OrderEffort]] = {}
    for effort in efforts:
        for order in effort.orders:
            by_name.setdefault(order.name, []).append(order)
    hardest = max(efforts, key=lambda effort: effort.total.branches)
    return SearchEffort(
        hardest.formulation,
        hardest.winner if complete else None,
        tuple(
            OrderEffort(
                name, alternatives([a.status for a in efforts_of_name]), _sum_of(efforts_of_name)
            )
            for name, efforts_of_name in by_name.items()
        ),
    )


def alternatives(statuses: Sequence[Status]) -> Status:
    """Return the status of a search whose solutions are those of several posted models."""
    if all(status is Status.INFEASIBLE for status in statuses):
        return Status.INFEASIBLE
    if all(status in (Status.INFEASIBLE, Status.OPTIMAL) for status in statuses):
        return Status.OPTIMAL
    any_solution = any(status in (Status.FEASIBLE, Status.OPTIMAL) for status in statuses)
    return Status.FEASIBLE if any_solution else Status.UNKNOWN
