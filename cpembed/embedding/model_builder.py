"""The constraint model under construction.

Constraints record what they mean (variables, equalities, bounds, linear rows, Boolean clauses) in
arrays; :meth:`ModelBuilder.build` merges variables that were equated, drops rows that became
trivial or duplicate, and has the CP-SAT model written. Merging before posting is what lets every
scalar operation keep a variable tuple of its own while CP-SAT sees each equality class once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from cpembed.embedding.proto_writer import CompiledModel, Ids, ProtoWriter, Rows
from cpembed.time_limit import check_time


@dataclass
class ModelBuilder:
    """Records variables and constraints; variables are integers numbered from 0.

    Each is recorded within the surrounding time limit: whoever posts in a loop need not ask.
    """

    _starts: list[int] = field(default_factory=list[int])
    _low: list[Ids] = field(default_factory=list[Ids])
    _high: list[Ids] = field(default_factory=list[Ids])
    _count: int = 0
    _equal: list[tuple[Ids, Ids]] = field(default_factory=list[tuple[Ids, Ids]])
    _bounds: list[tuple[Ids, int, int]] = field(default_factory=list[tuple[Ids, int, int]])
    _domains: dict[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])
    _conditional: list[tuple[int, int, tuple[int, ...]]] = field(
        default_factory=list[tuple[int, int, tuple[int, ...]]]
    )
    _rows: list[Rows] = field(default_factory=list[Rows])
    _exactly_one: list[list[int]] = field(default_factory=list[list[int]])
    _at_most_one: list[list[int]] = field(default_factory=list[list[int]])
    _implied_zero: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    _different: list[Ids] = field(default_factory=list[Ids])
    _not_equal: list[tuple[Ids, Ids]] = field(default_factory=list[tuple[Ids, Ids]])
    _decisions: list[tuple[Ids, bool]] = field(default_factory=list[tuple[Ids, bool]])

    def variables(self, shape: Sequence[int], low: int, high: int) -> Ids:
        """New integer variables ``low <= v <= high`` as an array of ids of the given shape."""
        check_time()
        size = int(np.prod(shape, dtype=np.int64))
        ids = np.arange(self._count, self._count + size, dtype=np.int64)
        self._starts.append(self._count)
        self._low.append(np.full(size, low, np.int64))
        self._high.append(np.full(size, high, np.int64))
        self._count += size
        return ids.reshape(tuple(shape))

    def range_of(self, variable: int) -> tuple[int, int]:
        """Bounds a variable was created with."""
        block = bisect_right(self._starts, variable) - 1
        position = variable - self._starts[block]
        return int(self._low[block][position]), int(self._high[block][position])

    def boolean(self) -> int:
        return int(self.variables((1,), 0, 1)[0])

    def equate(self, left: Ids, right: Ids) -> None:
        """``left == right`` elementwise (broadcast)."""
        a, b = np.broadcast_arrays(left, right)
        self._equal.append((a.ravel(), b.ravel()))

    def bound(self, ids: Ids, low: int, high: int) -> None:
        self._bounds.append((np.asarray(ids).ravel(), low, high))

    def restrict(self, variable: int, values: Sequence[int]) -> None:
        """Only the listed values; several restrictions of one variable intersect."""
        check_time()
        allowed = set(values)
        if variable in self._domains:
            allowed &= set(self._domains[variable])
        self._domains[variable] = tuple(sorted(allowed))

    def restrict_unless(self, literal: int, variable: int, values: Sequence[int]) -> None:
        """Only the listed values, unless the literal is true."""
        check_time()
        self._conditional.append((literal, variable, tuple(values)))

    def linear(
        self,
        terms: Sequence[tuple[int, Ids]],
        low: int,
        high: int | None = None,
    ) -> None:
        """``low <= sum coefficient * variable <= high`` elementwise over broadcast id arrays."""
        check_time()
        arrays = np.broadcast_arrays(*(ids for _, ids in terms))
        variables = np.stack([a.ravel() for a in arrays], axis=1)
        coefficients = np.broadcast_to(
            np.array([c for c, _ in terms], np.int64), variables.shape
        ).copy()
        rows = len(variables)
        self._rows.append(
            Rows(
                variables,
                coefficients,
                np.full(rows, low, np.int64),
                np.full(rows, low if high is None else high, np.int64),
            )
        )

    def row(self, terms: Sequence[tuple[int, int]], low: int, high: int) -> None:
        """``low <= sum coefficient * variable <= high`` for single variables."""
        self.linear([(c, np.array([variable])) for c, variable in terms], low, high)

    def exactly_one(self, literals: Sequence[int]) -> None:
        self._exactly_one.append(list(literals))

    def at_most_one(self, literals: Sequence[int]) -> None:
        check_time()
        if len(literals) > 1:
            self._at_most_one.append(list(literals))

    def active_iff_positive(self, literal: int, variable: int) -> None:
        """``variable >= 1`` where the literal is true, ``variable == 0`` where it is false."""
        self._implied_zero.append((literal, variable))

    def all_different(self, tuples: Ids) -> None:
        """Rows of ``tuples`` (ids) pairwise different."""
        check_time()
        self._different.append(tuples)

    def differ(self, left: Ids, right: Ids) -> None:
        """Two tuples of variables that must not be equal."""
        check_time()
        self._not_equal.append((left, right))

    def decide(self, ids: Ids, *, largest_first: bool = False) -> None:
        """The next group of variables that the search assigns, in order (section 4.3)."""
        self._decisions.append((ids, largest_first))

    def build(self) -> CompiledModel:
        low = np.concatenate(self._low) if self._low else np.zeros(0, np.int64)
        high = np.concatenate(self._high) if self._high else np.zeros(0, np.int64)
        for ids, bound_low, bound_high in self._bounds:
            np.maximum.at(low, ids, bound_low)
            np.minimum.at(high, ids, bound_high)
        for variable, values in self._domains.items():
            low[variable] = max(low[variable], values[0] if values else 1)
            high[variable] = min(high[variable], values[-1] if values else 0)
        representative = _merge(self._count, self._equal)
        np.maximum.at(low, representative, low)
        np.minimum.at(high, representative, high)
        low, high = low[representative], high[representative]
        writer = ProtoWriter(representative, low, high, self._domains)
        for rows in self._rows:
            writer.rows(rows)
        for literals in self._exactly_one:
            writer.exactly_one(literals)
        for literals in self._at_most_one:
            writer.at_most_one(literals)
        for literal, variable in self._implied_zero:
            writer.active_iff_positive(literal, variable)
        for literal, variable, values in self._conditional:
            writer.restrict_unless(literal, variable, values)
        for tuples in self._different:
            writer.all_different(tuples)
        for left, right in self._not_equal:
            writer.differ(left, right)
        for group, largest_first in self._decisions:
            writer.decision(group, largest_first=largest_first)
        return writer.finish()


def _merge(count: int, equalities: list[tuple[Ids, Ids]]) -> Ids:
    """Smallest member of each equality class, by min-label propagation with pointer jumping."""
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
        updated = updated[updated]
        if np.array_equal(updated, label):
            return label
        label = updated
