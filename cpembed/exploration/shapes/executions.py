"""Executions of all shapes in one layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.embedding.problem import LabelMismatch
from cpembed.embedding.search import alternative_problems
from cpembed.errors import WorkloadError
from cpembed.exploration.shapes.shape import Extents, representative, shapes_within
from cpembed.exploration.shapes.tables import layer_tables
from cpembed.exploration.shapes.units import KNOWN, UnitTables, tables_obstacle
from cpembed.ir.computation import Computation


@dataclass(frozen=True)
class Scope:
    """The shapes that are compared: those of at most ``macs`` multiply-accumulates; ``powers``: of
    powers of two only; ``smallest``: no extent is below."""

    macs: int
    powers: bool = False
    smallest: int = 1

    @property
    def shapes(self) -> Extents:
        return _shapes(self)

    @property
    def largest(self) -> int:
        """Of the extents."""
        return int(self.shapes.max())


@lru_cache(maxsize=2)
def _shapes(scope: Scope) -> Extents:
    return shapes_within(scope.macs, powers=scope.powers, smallest=scope.smallest)


@dataclass(frozen=True)
class LayerExecutions:
    """Executions by shape, infinite where there is no embedding; ``exchanged`` where only the
    factors in each other's roles have one. ``reason``: why no shape has one. ``obstacle``: why
    executions are not known from tables, so that ``executions`` are lower bounds."""

    executions: NDArray[np.float64]
    exchanged: NDArray[np.bool_]
    reason: str | None = None
    obstacle: str | None = None


def layer_executions(
    workload: Computation, constraints: ConstraintSet, scope: Scope
) -> LayerExecutions:
    """The fewest executions of each shape, as a search for each would find them: where nothing fits
    with the factors in the roles that their order gives them, they are tried in the others."""
    count = len(scope.shapes)
    never = np.zeros(count, np.bool_)
    found = _of_set(workload, constraints, scope)
    if isinstance(found, str):
        return LayerExecutions(np.full(count, np.inf), never, found)
    if isinstance(found, _Unknown):
        least = _at_least(workload, constraints, scope)
        if np.isinf(least).all():
            return LayerExecutions(least, never, f"no shape fits under {constraints.name}")
        return LayerExecutions(least, never, None, found.obstacle)
    exchanged = never
    if constraints.get("dataflow") and not constraints.exchanges_factors and np.isinf(found).any():
        other = _of_set(workload, constraints.with_exchanged_factors(), scope)
        if isinstance(other, np.ndarray):
            exchanged = np.isinf(found) & np.isfinite(other)
            found = np.where(exchanged, other, found)
    if np.isinf(found).all():
        reason = f"no shape fits under {constraints.name}"
        return LayerExecutions(found, exchanged, reason)
    return LayerExecutions(found, exchanged)


def _at_least(
    workload: Computation, constraints: ConstraintSet, scope: Scope
) -> NDArray[np.float64]:
    """Lower bounds: without the constraints that tables do not know there are more embeddings, with
    the factors in either role; and no execution is more than useful throughout."""
    least = np.ceil(workload.macs / scope.shapes.prod(axis=1))
    known = constraints.without(*(c.name for c in constraints.constraints if c.name not in KNOWN))
    either = known if known.get("dataflow") is None else known.with_exchanged_factors()
    wider = _of_set(workload, either, scope)
    return np.maximum(least, wider) if isinstance(wider, np.ndarray) else least


@dataclass(frozen=True)
class _Unknown:
    """Tables do not take the problem."""

    obstacle: str


def _of_set(
    workload: Computation, constraints: ConstraintSet, scope: Scope
) -> NDArray[np.float64] | str | _Unknown:
    """Executions under a set; why no embedding can exist, or why they are not known."""
    try:
        problems = alternative_problems(workload, representative(), constraints)
    except WorkloadError as error:
        return str(error)
    if isinstance(problems, LabelMismatch):
        return problems.reason
    for problem in problems:
        obstacle = tables_obstacle(problem, constraints)
        if obstacle is not None:
            return _Unknown(obstacle)
    makers = _unit_tables(constraints, scope.largest)
    tables = [layer_tables(p, makers.units(p), scope.largest) for p in problems]
    return np.minimum.reduce([table.executions(scope.shapes) for table in tables])


_unit_tables: Callable[[ConstraintSet, int], UnitTables] = lru_cache(maxsize=4)(UnitTables)
"""What depends on extents alone is shared by the layers of a suite."""
