"""The constraint model under construction.

Constraints record what they mean (variables, equalities, bounds, linear rows, Boolean clauses) in
arrays; :meth:`ModelBuilder.build` merges variables that were equated, drops rows that became
trivial or duplicate, and has the CP-SAT model written. Merging before posting is what lets every
scalar operation keep a variable tuple of its own while CP-SAT sees each equality class once.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportAttributeAccessIssue=false
from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, auto
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from cpembed.embedding.model_writer import CompiledModel, Ids, ModelWriter, domain_of
from cpembed.time_limit import check_time

if TYPE_CHECKING:
    from ortools.util.python.sorted_interval_list import Domain


_Post = tuple["_Phase", Callable[..., None], tuple[Any, ...]]
"""Phase, method of the writer, and its arguments, of a recorded constraint."""


class _Phase(IntEnum):
    """Order in which recorded constraints are written; within a phase they stay in theirs."""

    ROWS = auto()
    EXACTLY_ONE = auto()
    AT_MOST_ONE = auto()
    ACTIVE = auto()
    UNLESS = auto()
    ALL_DIFFERENT = auto()
    DIFFER = auto()
    # A decision names only variables that a constraint has brought into the model.
    DECISION = auto()


@dataclass
class ModelBuilder:
    """Recorder of variables and constraints; variables are integers numbered from 0.

    Each is recorded within the surrounding time limit: whoever posts in a loop need not ask.
    """

    _starts: list[int] = field(default_factory=list[int])
    _low: list[Ids] = field(default_factory=list[Ids])
    _high: list[Ids] = field(default_factory=list[Ids])
    _count: int = 0
    _equal: list[tuple[Ids, Ids]] = field(default_factory=list[tuple[Ids, Ids]])
    _bounds: list[tuple[Ids, int, int]] = field(default_factory=list[tuple[Ids, int, int]])
    _domains: dict[int, Domain] = field(default_factory=dict[int, "Domain"])
    _posts: list[_Post] = field(default_factory=list[_Post])

    def variables(self, shape: Sequence[int], low: int, high: int) -> Ids:
        """Return new integer variables ``low <= v <= high``, as an array of ids of the shape."""
        check_time()
        size = int(np.prod(shape, dtype=np.int64))
        ids = np.arange(self._count, self._count + size, dtype=np.int64)
        self._starts.append(self._count)
        self._low.append(np.full(size, low, np.int64))
        self._high.append(np.full(size, high, np.int64))
        self._count += size
        return ids.reshape(tuple(shape))

    def range_of(self, variable: int) -> tuple[int, int]:
        """Return the bounds that a variable was created with."""
        block = bisect_right(self._starts, variable) - 1
        position = variable - self._starts[block]
        return int(self._low[block][position]), int(self._high[block][position])

    def boolean(self) -> int:
        """Return the id of a new Boolean variable."""
        return int(self.variables((1,), 0, 1)[0])

    def equate(self, left: Ids, right: Ids) -> None:
        """Post ``left == right`` elementwise (broadcast)."""
        a, b = np.broadcast_arrays(left, right)
        self._equal.append((a.ravel(), b.ravel()))

    def bound(self, ids: Ids, low: int, high: int) -> None:
        """Keep variables within ``low <= v <= high``."""
        self._bounds.append((np.asarray(ids).ravel(), low, high))

    def restrict(self, variable: int, values: Iterable[int | range]) -> None:
        """Admit only the listed values and those in listed ranges, whose step is 1.

        Several restrictions of one variable intersect.
        """
        check_time()
        domain = domain_of(values)
        if variable in self._domains:
            domain = domain.intersection_with(self._domains[variable])
        self._domains[variable] = domain

    def _post(self, phase: _Phase, write: Callable[..., None], *arguments: Any) -> None:
        check_time()
        self._posts.append((phase, write, arguments))

    def restrict_unless(self, literal: int, variable: int, values: Iterable[int | range]) -> None:
        """Admit only the values and ranges of :meth:`restrict`, unless the literal is true."""
        domain = domain_of(values)
        self._post(_Phase.UNLESS, ModelWriter.restrict_unless, literal, variable, domain)

    def linear(self, terms: Sequence[tuple[int, Ids]], low: int, high: int | None = None) -> None:
        """Post ``low <= sum coefficient * variable <= high`` over broadcast arrays of ids.

        ``high`` is ``low`` by default.
        """
        arrays = np.broadcast_arrays(*(ids for _, ids in terms))
        variables = np.stack([a.ravel() for a in arrays], axis=1)
        weights = np.array([c for c, _ in terms], np.int64)
        end = low if high is None else high
        self._post(_Phase.ROWS, ModelWriter.rows, variables, weights, low, end)

    def row(self, terms: Sequence[tuple[int, int]], low: int, high: int) -> None:
        """Post ``low <= sum coefficient * variable <= high`` for single variables."""
        self.linear([(c, np.array([variable])) for c, variable in terms], low, high)

    def exactly_one(self, literals: Sequence[int]) -> None:
        """Post that one of the literals is true; of none, that the model has no solution."""
        self._post(_Phase.EXACTLY_ONE, ModelWriter.exactly_one, list(literals))

    def at_most_one(self, literals: Sequence[int]) -> None:
        """Post that at most one of the literals is true."""
        if len(literals) > 1:
            self._post(_Phase.AT_MOST_ONE, ModelWriter.at_most_one, list(literals))

    def active_iff_positive(self, literal: int, variable: int) -> None:
        """Post ``variable >= 1`` where the literal is true, ``variable == 0`` where it is false."""
        self._post(_Phase.ACTIVE, ModelWriter.active_iff_positive, literal, variable)

    def all_different(self, tuples: Ids) -> None:
        """Post that rows of ``tuples`` (ids) are pairwise different."""
        self._post(_Phase.ALL_DIFFERENT, ModelWriter.all_different, tuples)

    def differ(self, left: Ids, right: Ids) -> None:
        """Post that two tuples of variables are not equal."""
        self._post(_Phase.DIFFER, ModelWriter.differ, left, right)

    def decide(self, ids: Ids, *, largest_first: bool = False) -> None:
        """Add the next group of variables that the search assigns (section 4.3 of the paper)."""
        self._post(_Phase.DECISION, ModelWriter.decision, ids, largest_first)

    def build(self) -> CompiledModel:
        """Merge equal variables and write the CP-SAT model."""
        low = np.concatenate(self._low) if self._low else np.zeros(0, np.int64)
        high = np.concatenate(self._high) if self._high else np.zeros(0, np.int64)
        for ids, bound_low, bound_high in self._bounds:
            np.maximum.at(low, ids, bound_low)
            np.minimum.at(high, ids, bound_high)
        for variable, domain in self._domains.items():
            # Of no values, the bounds cross: the model has no solution.
            low[variable] = max(low[variable], 1 if domain.is_empty() else domain.min())
            high[variable] = min(high[variable], 0 if domain.is_empty() else domain.max())
        representative = _merge(self._count, self._equal)
        np.maximum.at(low, representative, low)
        np.minimum.at(high, representative, high)
        low, high = low[representative], high[representative]
        writer = ModelWriter(representative, low, high, self._domains)
        for _, write, arguments in sorted(self._posts, key=itemgetter(0)):
            write(writer, *arguments)
        return writer.finish()


def _merge(count: int, equalities: list[tuple[Ids, Ids]]) -> Ids:
    """Return the smallest member of each equality class, by min-label propagation."""
    label = np.arange(count, dtype=np.int64)
    if not equalities:
        return label
    a = np.concatenate([pair[0] for pair in equalities])
    b = np.concatenate([pair[1] for pair in equalities])
    while True:
        check_time()
        smaller = np.minimum(label[a], label[b])
        updated = label.copy()
        np.minimum.at(updated, label[a], smaller)
        np.minimum.at(updated, label[b], smaller)
        # Pointer jumping: the number of passes grows with the logarithm of a chain's length.
        updated = updated[updated]
        if np.array_equal(updated, label):
            return label
        label = updated
