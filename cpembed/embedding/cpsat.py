"""The constraint model under construction, and the only place that talks to OR-tools.

Constraints record what they mean (variables, equalities, bounds, linear rows, Boolean clauses) in
arrays; :meth:`ModelBuilder.build` merges variables that were equated, drops rows that became
trivial or duplicate, and writes the CP-SAT protocol buffer. Merging before posting is what lets
every scalar operation keep a variable tuple of its own while CP-SAT sees each equality class once.

The protocol buffer classes come from ``cp_model_helper``, the layer below ``cp_model``: importing
that one instead saves half a second of start-up, which ``cp_model`` spends on importing pandas.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportAttributeAccessIssue=false
from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray
from ortools.sat.python import cp_model_helper as cmh

Ids = NDArray[np.int64]
INFINITY = 2**62


class Status(StrEnum):
    """What the solver established, in the words of the command line's JSON."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class _Rows:
    """Linear rows ``low <= coefficients . variables <= high`` with equally many terms each."""

    variables: Ids
    coefficients: Ids
    low: Ids
    high: Ids


@dataclass(frozen=True)
class SearchStatistics:
    branches: int
    conflicts: int
    seconds: float


@dataclass(frozen=True)
class CompiledModel:
    """A CP-SAT model with the map from recorded variables to its variables or constants."""

    proto: Any
    representative: Ids
    fixed: NDArray[np.bool_]
    value: Ids
    proto_index: Ids
    contradiction: bool

    def values(self, solution: Ids) -> Ids:
        """Value of every recorded variable from a CP-SAT solution vector."""
        result = self.value.copy()
        free = ~self.fixed
        if solution.size:
            result[free] = solution[self.proto_index[free]]
        return result


@dataclass
class ModelBuilder:
    """Records variables and constraints; variables are integers numbered from 0."""

    _starts: list[int] = field(default_factory=list[int])
    _low: list[Ids] = field(default_factory=list[Ids])
    _high: list[Ids] = field(default_factory=list[Ids])
    _count: int = 0
    _equal: list[tuple[Ids, Ids]] = field(default_factory=list[tuple[Ids, Ids]])
    _bounds: list[tuple[Ids, int, int]] = field(default_factory=list[tuple[Ids, int, int]])
    _domains: dict[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])
    _rows: list[_Rows] = field(default_factory=list[_Rows])
    _exactly_one: list[list[int]] = field(default_factory=list[list[int]])
    _at_most_one: list[list[int]] = field(default_factory=list[list[int]])
    _implied_zero: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    _different: list[tuple[Ids, Ids]] = field(default_factory=list[tuple[Ids, Ids]])
    _not_equal: list[tuple[Ids, Ids, Ids]] = field(default_factory=list[tuple[Ids, Ids, Ids]])
    decisions: list[Ids] = field(default_factory=list[Ids])
    """Groups of variables in the order in which the search assigns them (section 4.3)."""

    def variables(self, shape: Sequence[int], low: int, high: int) -> Ids:
        """New integer variables ``low <= v <= high`` as an array of ids of the given shape."""
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
        allowed = set(values)
        if variable in self._domains:
            allowed &= set(self._domains[variable])
        self._domains[variable] = tuple(sorted(allowed))

    def linear(
        self,
        terms: Sequence[tuple[int, Ids]],
        low: int,
        high: int | None = None,
    ) -> None:
        """``low <= sum coefficient * variable <= high`` elementwise over broadcast id arrays."""
        arrays = np.broadcast_arrays(*(ids for _, ids in terms))
        variables = np.stack([a.ravel() for a in arrays], axis=1)
        coefficients = np.broadcast_to(
            np.array([c for c, _ in terms], np.int64), variables.shape
        ).copy()
        rows = len(variables)
        self._rows.append(
            _Rows(
                variables,
                coefficients,
                np.full(rows, low, np.int64),
                np.full(rows, low if high is None else high, np.int64),
            )
        )

    def exactly_one(self, literals: Sequence[int]) -> None:
        self._exactly_one.append(list(literals))

    def at_most_one(self, literals: Sequence[int]) -> None:
        if len(literals) > 1:
            self._at_most_one.append(list(literals))

    def active_iff_positive(self, literal: int, variable: int) -> None:
        """``variable >= 1`` where the literal is true, ``variable == 0`` where it is false."""
        self._implied_zero.append((literal, variable))

    def all_different(self, tuples: Ids, weights: Ids) -> None:
        """Rows of ``tuples`` (ids) pairwise different, compared by their weighted sums."""
        self._different.append((tuples, weights))

    def differ(self, left: Ids, right: Ids, weights: Ids) -> None:
        """Two tuples of variables that must not be equal, compared by their weighted sums."""
        self._not_equal.append((left, right, weights))

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
        writer = _ProtoWriter(representative, low, high, self._domains)
        for rows in self._rows:
            writer.rows(rows)
        for literals in self._exactly_one:
            writer.exactly_one(literals)
        for literals in self._at_most_one:
            writer.at_most_one(literals)
        for literal, variable in self._implied_zero:
            writer.active_iff_positive(literal, variable)
        for tuples, weights in self._different:
            writer.all_different(tuples, weights)
        for left, right, weights in self._not_equal:
            writer.differ(left, right, weights)
        for group in self.decisions:
            writer.decision(group)
        return writer.finish()


def _merge(count: int, equalities: list[tuple[Ids, Ids]]) -> Ids:
    """Smallest member of each equality class, by min-label propagation with pointer jumping."""
    label = np.arange(count, dtype=np.int64)
    if not equalities:
        return label
    a = np.concatenate([pair[0] for pair in equalities])
    b = np.concatenate([pair[1] for pair in equalities])
    while True:
        smaller = np.minimum(label[a], label[b])
        updated = label.copy()
        np.minimum.at(updated, label[a], smaller)
        np.minimum.at(updated, label[b], smaller)
        updated = updated[updated]
        if np.array_equal(updated, label):
            return label
        label = updated


class _ProtoWriter:
    """Writes classes and rows into a ``CpModelProto``; a variable appears once it is used."""

    def __init__(
        self, representative: Ids, low: Ids, high: Ids, domains: dict[int, tuple[int, ...]]
    ) -> None:
        self.representative, self.low, self.high = representative, low, high
        self.fixed = low == high
        self.contradiction = bool(np.any(low > high))
        self.proto = cmh.CpModelProto()
        self.index = np.full(len(representative), -1, np.int64)
        self.domains: dict[int, tuple[int, ...]] = {}
        for variable, values in domains.items():
            root = int(representative[variable])
            known = self.domains.get(root)
            self.domains[root] = values if known is None else tuple(set(known) & set(values))
            reachable = [v for v in self.domains[root] if low[root] <= v <= high[root]]
            self.contradiction |= not reachable

    def variable(self, root: int) -> int:
        index = int(self.index[root])
        if index < 0:
            domain = self.proto.variables.add().domain
            values = self.domains.get(root)
            if values is None:
                domain.extend([int(self.low[root]), int(self.high[root])])
            else:
                domain.extend(_intervals(values, int(self.low[root]), int(self.high[root])))
            index = len(self.proto.variables) - 1
            self.index[root] = index
        return index

    def rows(self, rows: _Rows) -> None:
        roots = self.representative[rows.variables]
        fixed = self.fixed[roots]
        shift = np.sum(np.where(fixed, rows.coefficients * self.low[roots], 0), axis=1)
        low, high = rows.low - shift, rows.high - shift
        coefficients = np.where(fixed, 0, rows.coefficients)
        roots = np.where(fixed, -1, roots)
        table = np.concatenate([roots, coefficients, low[:, None], high[:, None]], axis=1)
        width = roots.shape[1]
        # Hashing rows beats sorting them by far: most models repeat each row many times.
        for row in dict.fromkeys(map(tuple, table.tolist())):
            terms: dict[int, int] = {}
            for root, coefficient in zip(row[:width], row[width : 2 * width], strict=True):
                if root >= 0:
                    terms[root] = terms.get(root, 0) + coefficient
            self._row({root: c for root, c in terms.items() if c}, row[-2], row[-1])

    def _row(self, terms: dict[int, int], low: int, high: int) -> None:
        if not terms:
            self.contradiction |= not low <= 0 <= high
            return
        linear = self.proto.constraints.add().linear
        linear.vars.extend([self.variable(root) for root in terms])
        linear.coeffs.extend(list(terms.values()))
        linear.domain.extend([low, high])

    def _literals(self, variables: list[int]) -> tuple[list[int], int]:
        """Free literals, and how many of the variables are already fixed to true."""
        roots = [int(self.representative[v]) for v in variables]
        true = sum(1 for root in roots if self.fixed[root] and self.low[root] == 1)
        return [self.variable(root) for root in roots if not self.fixed[root]], true

    def exactly_one(self, variables: list[int]) -> None:
        literals, true = self._literals(variables)
        if true > 1 or (true == 0 and not literals):
            self.contradiction = True
        elif true == 1:
            self._all_false(literals)
        else:
            self.proto.constraints.add().exactly_one.literals.extend(literals)

    def at_most_one(self, variables: list[int]) -> None:
        literals, true = self._literals(variables)
        if true > 1:
            self.contradiction = True
        elif true == 1:
            self._all_false(literals)
        elif len(literals) > 1:
            self.proto.constraints.add().at_most_one.literals.extend(literals)

    def _all_false(self, literals: list[int]) -> None:
        for literal in literals:
            linear = self.proto.constraints.add().linear
            linear.vars.extend([literal])
            linear.coeffs.extend([1])
            linear.domain.extend([0, 0])

    def active_iff_positive(self, literal: int, variable: int) -> None:
        root, active = int(self.representative[variable]), int(self.representative[literal])
        if self.fixed[active]:
            positive = bool(self.low[active])
            self._row_or_check(root, 1 if positive else 0, INFINITY if positive else 0)
            return
        index = self.variable(active)
        for enforced, low, high in ((index, 1, INFINITY), (-index - 1, 0, 0)):
            if self.fixed[root]:
                if not low <= int(self.low[root]) <= high:
                    self.proto.constraints.add().bool_or.literals.extend([-enforced - 1])
                continue
            constraint = self.proto.constraints.add()
            constraint.enforcement_literal.extend([enforced])
            constraint.linear.vars.extend([self.variable(root)])
            constraint.linear.coeffs.extend([1])
            constraint.linear.domain.extend([low, high])

    def _row_or_check(self, root: int, low: int, high: int) -> None:
        if self.fixed[root]:
            self.contradiction |= not low <= int(self.low[root]) <= high
        else:
            self._row({root: 1}, low, high)

    def _weighted(self, tuple_ids: Ids, weights: Ids) -> tuple[dict[int, int], int]:
        terms: dict[int, int] = {}
        offset = 0
        for root, weight in zip(
            self.representative[tuple_ids].tolist(), weights.tolist(), strict=True
        ):
            if self.fixed[root]:
                offset += weight * int(self.low[root])
            else:
                terms[root] = terms.get(root, 0) + weight
        return terms, offset

    def all_different(self, tuples: Ids, weights: Ids) -> None:
        constraint = self.proto.constraints.add().all_diff
        for row in tuples:
            terms, offset = self._weighted(row, weights)
            expression = constraint.exprs.add()
            expression.vars.extend([self.variable(root) for root in terms])
            expression.coeffs.extend(list(terms.values()))
            expression.offset = offset

    def differ(self, left: Ids, right: Ids, weights: Ids) -> None:
        terms, offset = self._weighted(left, weights)
        other, other_offset = self._weighted(right, weights)
        for root, weight in other.items():
            terms[root] = terms.get(root, 0) - weight
        terms = {root: weight for root, weight in terms.items() if weight}
        gap = other_offset - offset
        if not terms:
            self.contradiction |= gap == 0
            return
        linear = self.proto.constraints.add().linear
        linear.vars.extend([self.variable(root) for root in terms])
        linear.coeffs.extend(list(terms.values()))
        linear.domain.extend([-INFINITY, gap - 1, gap + 1, INFINITY])

    def decision(self, ids: Ids) -> None:
        roots = dict.fromkeys(self.representative[ids.ravel()].tolist())
        used = [int(self.index[r]) for r in roots if not self.fixed[r] and self.index[r] >= 0]
        if not used:
            return
        strategy = self.proto.search_strategy.add()
        strategy.variables.extend(used)

    def finish(self) -> CompiledModel:
        roots = self.representative
        # Every class that no constraint mentions is still part of the solution.
        for root in np.unique(roots[~self.fixed[roots]]).tolist():
            self.variable(root)
        return CompiledModel(
            self.proto,
            roots,
            self.fixed[roots],
            self.low[roots].copy(),
            self.index[roots],
            self.contradiction,
        )


def _intervals(values: Sequence[int], low: int, high: int) -> list[int]:
    """Sorted values within bounds as CP-SAT's flattened closed intervals."""
    result: list[int] = []
    for value in sorted(v for v in set(values) if low <= v <= high):
        if result and result[-1] == value - 1:
            result[-1] = value
        else:
            result += [value, value]
    return result or [1, 0]


class _Collector(cmh.SolutionCallback):
    """Passes each solution on as a vector; stops the search when the receiver returns False."""

    def __init__(self, receive: Callable[[Ids], bool]) -> None:
        super().__init__()
        self.receive = receive
        self.error: BaseException | None = None
        self.stopped = False

    def OnSolutionCallback(self) -> None:
        try:
            solution = np.array(list(self.Response().solution), np.int64)
            if not self.receive(solution):
                self.stopped = True
                self.StopSearch()
        except BaseException as error:  # an exception must not unwind through C++
            self.error = error
            self.StopSearch()


@dataclass(frozen=True)
class SearchLimits:
    """``seconds`` bounds the search's wall time; ``solutions`` how many are collected."""

    seconds: float | None = None
    solutions: int | None = None
    seed: int = 0


def enumerate_solutions(
    model: CompiledModel, receive: Callable[[Ids], None], limits: SearchLimits
) -> tuple[Status, bool, SearchStatistics]:
    """Every solution of the model, once each, to ``receive`` (values of all recorded variables).

    Returns the status, whether the enumeration was complete, and the search effort.
    """
    if model.contradiction:
        return Status.INFEASIBLE, True, SearchStatistics(0, 0, 0.0)
    found = 0

    def accept(solution: Ids) -> bool:
        nonlocal found
        found += 1
        receive(model.values(solution))
        return limits.solutions is None or found < limits.solutions

    collector = _Collector(accept)
    wrapper = cmh.SolveWrapper()
    parameters = cmh.SatParameters()
    parameters.enumerate_all_solutions = True
    parameters.num_workers = 1
    parameters.random_seed = limits.seed
    parameters.symmetry_level = 0
    parameters.search_branching = cmh.SatParameters.SearchBranching.FIXED_SEARCH
    if limits.seconds is not None:
        parameters.max_time_in_seconds = limits.seconds
    wrapper.set_parameters(parameters)
    wrapper.add_solution_callback(collector)
    response = wrapper.solve(model.proto)
    wrapper.clear_solution_callback(collector)
    if collector.error is not None:
        raise collector.error
    statistics = SearchStatistics(
        int(response.num_branches), int(response.num_conflicts), float(response.wall_time)
    )
    name = response.status.name
    if name == "MODEL_INVALID":
        raise ValueError(cmh.CpSatHelper.validate_model(model.proto))
    if name == "INFEASIBLE":
        return Status.INFEASIBLE, True, statistics
    if name == "UNKNOWN":
        return Status.UNKNOWN, False, statistics
    complete = name == "OPTIMAL" and not collector.stopped
    return (Status.OPTIMAL if complete else Status.FEASIBLE), complete, statistics
