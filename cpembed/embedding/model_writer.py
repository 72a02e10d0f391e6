"""CP-SAT's protocol buffer of a constraint model, written row by row.

Its classes come from ``cp_model_helper``, the layer below ``cp_model``: importing that one instead
saves half a second of start-up, which ``cp_model`` spends on importing pandas.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportAttributeAccessIssue=false
from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cpembed.errors import SpecError
from cpembed.time_limit import check_time

if TYPE_CHECKING:
    from ortools.util.python.sorted_interval_list import Domain

Ids = NDArray[np.int64]


@cache
def cp_sat() -> ModuleType:
    """Return the interface of CP-SAT, imported on first use, which takes a third of a second."""
    from ortools.sat.python import cp_model_helper

    return cp_model_helper


_INFINITY = 2**62
"""Bound of what is unbounded: CP-SAT rejects models whose sums could leave 64 bits."""
_COMPARED = 256
"""Maximum number of tuples that are compared two by two where their numbers would not fit."""


class TooLargeDomainError(SpecError):
    """A set makes the scalar model compare more points than can be numbered."""


@dataclass(frozen=True)
class CompiledModel:
    """A CP-SAT model with the map from recorded variables to its variables or constants.

    Attributes
    ----------
    proto : CpModelProto
        The model.
    representative : array
        Smallest variable of each recorded variable's class of equal ones.
    fixed, value : array
        Whether a recorded variable is constant, and its value if it is.
    proto_index : array
        Variable of the model for each recorded variable that is not fixed.
    contradiction : bool
        True if the model was found to have no solution while it was written.
    """

    proto: Any
    representative: Ids
    fixed: NDArray[np.bool_]
    value: Ids
    proto_index: Ids
    contradiction: bool

    def values(self, solution: Ids) -> Ids:
        """Return the value of every recorded variable from a CP-SAT solution vector."""
        result = self.value.copy()
        free = ~self.fixed
        if solution.size:
            result[free] = solution[self.proto_index[free]]
        return result


class ModelWriter:
    """Writer of classes of equal variables and constraints into a ``CpModelProto``.

    A variable appears in it when a constraint first uses its class. Constraints on constants are
    decided at once: they become a ``contradiction`` or nothing.
    """

    def __init__(
        self, representative: Ids, low: Ids, high: Ids, domains: dict[int, Domain]
    ) -> None:
        self.representative, self.low, self.high = representative, low, high
        self.fixed = low == high
        self.contradiction = bool(np.any(low > high))
        self.proto = cp_sat().CpModelProto()
        self.index = np.full(len(representative), -1, np.int64)
        self.domains: dict[int, Domain] = {}
        for variable, domain in domains.items():
            root = int(representative[variable])
            bounds = domain_of([range(int(low[root]), int(high[root]) + 1)])
            reachable = domain.intersection_with(self.domains.get(root, bounds))
            self.domains[root] = reachable
            self.contradiction |= reachable.is_empty()

    def variable(self, root: int) -> int:
        """Return the model's variable for a class, given by its representative."""
        index = int(self.index[root])
        if index < 0:
            domain = self.proto.variables.add().domain
            if root in self.domains:
                domain.extend(_intervals(self.domains[root]))
            else:
                domain.extend([int(self.low[root]), int(self.high[root])])
            index = len(self.proto.variables) - 1
            self.index[root] = index
        return index

    def rows(self, variables: Ids, weights: Ids, low: int, high: int) -> None:
        """Write a linear row for each row of ``variables``; ``weights`` has one number a column."""
        roots = self.representative[variables]
        fixed = self.fixed[roots]
        # Constants move to the bounds; what is left is compared and written as tuples of numbers.
        shift = np.sum(np.where(fixed, weights * self.low[roots], 0), axis=1)
        ends = np.stack([low - shift, high - shift], axis=1)
        table = np.concatenate([np.where(fixed, -1, roots), ends], axis=1)
        coefficients = weights.tolist()
        # Hashing rows beats sorting them by far: most models repeat each row many times.
        for row in dict.fromkeys(map(tuple, table.tolist())):
            check_time()
            terms: dict[int, int] = {}
            for root, coefficient in zip(row[:-2], coefficients, strict=True):
                if root >= 0:
                    terms[root] = terms.get(root, 0) + coefficient
            self._row({root: c for root, c in terms.items() if c}, row[-2], row[-1])

    def _row(self, terms: dict[int, int], low: int, high: int) -> None:
        if terms:
            self._linear(terms, [low, high])
        else:
            self.contradiction |= not low <= 0 <= high

    def _linear(
        self, terms: dict[int, int], domain: list[int], enforced_by: int | None = None
    ) -> None:
        """Write that a sum lies within intervals, if given only where a literal is true."""
        constraint = self.proto.constraints.add()
        if enforced_by is not None:
            constraint.enforcement_literal.extend([enforced_by])
        constraint.linear.vars.extend([self.variable(root) for root in terms])
        constraint.linear.coeffs.extend(list(terms.values()))
        constraint.linear.domain.extend(domain)

    def exactly_one(self, variables: list[int]) -> None:
        check_time()
        literals = self._free_literals(variables)
        if literals is not None:
            self.contradiction |= not literals
            self.proto.constraints.add().exactly_one.literals.extend(literals)

    def at_most_one(self, variables: list[int]) -> None:
        check_time()
        literals = self._free_literals(variables)
        if literals is not None and len(literals) > 1:
            self.proto.constraints.add().at_most_one.literals.extend(literals)

    def _free_literals(self, variables: list[int]) -> list[int] | None:
        """Return the literals of which one can be true, or make all others of a true one false.

        None where a literal is true already.
        """
        roots = [int(self.representative[v]) for v in variables]
        free = [root for root in roots if not self.fixed[root]]
        true = sum(1 for root in roots if self.fixed[root] and self.low[root] == 1)
        if not true:
            return [self.variable(root) for root in free]
        self.contradiction |= true > 1
        for root in free:
            self._linear({root: 1}, [0, 0])
        return None

    def active_iff_positive(self, literal: int, variable: int) -> None:
        root, active = int(self.representative[variable]), int(self.representative[literal])
        if self.fixed[active]:
            positive = bool(self.low[active])
            self._row_or_check(root, 1 if positive else 0, _INFINITY if positive else 0)
            return
        index = self.variable(active)
        # -index - 1 is CP-SAT's negation of a literal.
        for enforced, low, high in ((index, 1, _INFINITY), (-index - 1, 0, 0)):
            if self.fixed[root]:
                if not low <= int(self.low[root]) <= high:
                    # Enforced, it would be false: the literal cannot be true.
                    self.proto.constraints.add().bool_or.literals.extend([-enforced - 1])
                continue
            self._linear({root: 1}, [low, high], enforced)

    def restrict_unless(self, literal: int, variable: int, domain: Domain) -> None:
        check_time()
        root, excuse = int(self.representative[variable]), int(self.representative[literal])
        if self.fixed[excuse] and self.low[excuse] == 1:
            return
        if self.fixed[root]:
            if not domain.contains(int(self.low[root])):
                self._row_or_check(excuse, 1, 1)
            return
        enforced = None if self.fixed[excuse] else -self.variable(excuse) - 1
        self._linear({root: 1}, _intervals(domain), enforced)

    def _row_or_check(self, root: int, low: int, high: int) -> None:
        if self.fixed[root]:
            self.contradiction |= not low <= int(self.low[root]) <= high
        else:
            self._row({root: 1}, low, high)

    def _tuple_weights(self, tuples: Ids) -> Ids | None:
        """Return mixed-radix weights that make the weighted sum of a row unique.

        None where 64 bits do not hold the sums of all rows together, as CP-SAT requires of the
        domains of a model.
        """
        roots = self.representative[tuples]
        spans = self.high[roots].max(axis=0) - self.low[roots].min(axis=0) + 1
        weights = [1]
        for span in reversed(spans.tolist()):
            weights.append(weights[-1] * max(1, span))
        if weights.pop() * len(tuples) >= _INFINITY:
            return None
        return np.array(weights[::-1], np.int64)

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

    def all_different(self, tuples: Ids) -> None:
        weights = self._tuple_weights(tuples)
        if weights is None:
            if len(tuples) > _COMPARED:
                raise _too_large()
            for left, right in itertools.combinations(tuples, 2):
                check_time()
                self.differ(left, right)
            return
        constraint = self.proto.constraints.add().all_diff
        for row in tuples:
            check_time()
            terms, offset = self._weighted(row, weights)
            expression = constraint.exprs.add()
            expression.offset = offset
            if len(terms) > 1:
                # Of a sum within an expression, presolve would list the values one by one: for
                # several small domains more than fit in memory.
                expression.vars.append(self._sum(terms))
                expression.coeffs.append(1)
            else:
                expression.vars.extend([self.variable(root) for root in terms])
                expression.coeffs.extend(list(terms.values()))

    def _sum(self, terms: dict[int, int]) -> int:
        """Return a variable that is the weighted sum; weights are positive."""
        low = sum(weight * int(self.low[root]) for root, weight in terms.items())
        high = sum(weight * int(self.high[root]) for root, weight in terms.items())
        self.proto.variables.add().domain.extend([low, high])
        total = len(self.proto.variables) - 1
        linear = self.proto.constraints.add().linear
        linear.vars.extend([*(self.variable(root) for root in terms), total])
        linear.coeffs.extend([*terms.values(), -1])
        linear.domain.extend([0, 0])
        return total

    def differ(self, left: Ids, right: Ids) -> None:
        weights = self._tuple_weights(np.stack([left, right]))
        if weights is None:
            raise _too_large()
        terms, offset = self._weighted(left, weights)
        right_terms, right_offset = self._weighted(right, weights)
        for root, weight in right_terms.items():
            terms[root] = terms.get(root, 0) - weight
        terms = {root: weight for root, weight in terms.items() if weight}
        gap = right_offset - offset
        if not terms:
            self.contradiction |= gap == 0
            return
        self._linear(terms, [-_INFINITY, gap - 1, gap + 1, _INFINITY])

    def decision(self, ids: Ids, largest_first: bool) -> None:
        roots = dict.fromkeys(self.representative[ids.ravel()].tolist())
        used = [int(self.index[r]) for r in roots if not self.fixed[r] and self.index[r] >= 0]
        if not used:
            return
        strategy = self.proto.search_strategy.add()
        strategy.variables.extend(used)
        if largest_first:
            order = cp_sat().DecisionStrategyProto.DomainReductionStrategy
            strategy.domain_reduction_strategy = order.SELECT_MAX_VALUE

    def finish(self) -> CompiledModel:
        roots = self.representative
        # Every class that no constraint mentions is still part of the solution.
        for root in np.unique(roots[~self.fixed[roots]]).tolist():
            check_time()
            self.variable(root)
        return CompiledModel(
            self.proto,
            roots,
            self.fixed[roots],
            self.low[roots].copy(),
            self.index[roots],
            self.contradiction,
        )


def domain_of(values: Iterable[int | range]) -> Domain:
    """Return CP-SAT's set of the integers and of the integers in the ranges, whose step is 1."""
    from ortools.util.python.sorted_interval_list import Domain

    parts = (v if isinstance(v, range) else range(v, v + 1) for v in values)
    return Domain.from_intervals([[part[0], part[-1]] for part in parts if part])


def _intervals(domain: Domain) -> list[int]:
    """Return CP-SAT's flattened closed intervals of a set."""
    # CP-SAT has no empty domain; no value lies between 1 and 0.
    return domain.flattened_intervals() or [1, 0]


def _too_large() -> SpecError:
    return TooLargeDomainError("points of a domain beyond 64 bits would be compared one by one")
