"""Feasibility without ``hyper_rectangle``, by argument where search is slow.

Without boxes an embedding is any injective node map, and the solver decides by trying values of
many all-different tuples. Two short arguments settle nearly all such problems that an explanation
asks about: too few places for the operations (the pigeonhole principle), and an embedding written
down at once, in lexicographic order, that every constraint's own check accepts.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.embedding.constraints.base import stencil_axes
from cpembed.embedding.constraints.linear_access import LinearAccess
from cpembed.embedding.cpsat import SearchLimits, Status
from cpembed.embedding.node_map import Coordinates, from_points
from cpembed.embedding.problem import EmbeddingProblem, point_grid
from cpembed.embedding.roles import candidates
from cpembed.embedding.search import padded_extents, search

_SEARCHED_POINTS = 4096
"""Largest domain given to the solver; all-different over larger ones is not bounded in time."""


def feasible_without_boxes(
    problem: EmbeddingProblem, constraints: ConstraintSet, limits: SearchLimits
) -> bool | None:
    """Whether a node map satisfies a set that has no ``hyper_rectangle``; None if undecided.

    Every instruction element needs an image here, so a configurable axis is taken at its smallest
    extent: part of an embedding at a larger one is an embedding as well.
    """
    smallest = {axis.name: axis.minimum for axis in problem.instruction.configurable_axes}
    axes = tuple(replace(axis, maximum=axis.minimum) for axis in problem.instruction.axes)
    computation = problem.instruction.at(smallest)
    instruction = replace(problem.instruction, axes=axes, computation=computation)
    problem = replace(problem, instruction=instruction)
    domain = padded_extents(problem, constraints)
    fixed = _immovable(problem, constraints)
    places = math.prod(extent for axis, extent in domain.items() if axis not in fixed)
    if constraints.get("all_different") is not None and places < instruction.macs:
        return False
    if _has_lexicographic(problem, constraints, domain, fixed):
        return True
    if math.prod(domain.values()) > _SEARCHED_POINTS:
        return None
    status = search(problem, constraints, replace(limits, solutions=1)).status
    return None if status is Status.UNKNOWN else status is not Status.INFEASIBLE


def _immovable(problem: EmbeddingProblem, constraints: ConstraintSet) -> set[str]:
    """Workload axes with one coordinate in all operations: stencil axes under ``linear_access``,
    and what an operand of one element fixes through an index with no other movable iterator."""
    linear = constraints.get("linear_access")
    fixed: set[str] = set()
    if isinstance(linear, LinearAccess) and linear.stencil == "none":
        fixed |= set(stencil_axes(problem))
    constant = [
        index
        for pair in problem.pairs
        if problem.instruction.computation.operand(pair.instruction.operand).elements == 1
        for index in pair.workload.index
    ]
    while True:
        movable = [[name for name in index.iterators if name not in fixed] for index in constant]
        single = {names[0] for names in movable if len(names) == 1}
        if not single:
            return fixed
        fixed |= single


def _has_lexicographic(
    problem: EmbeddingProblem, constraints: ConstraintSet, domain: dict[str, int], fixed: set[str]
) -> bool:
    """Whether counting each instruction axis through the workload axes of its role, last axis
    fastest, is an embedding."""
    grid = point_grid(problem.instruction)
    shape = next(iter(grid.values())).shape if grid else ()
    points: dict[str, Coordinates] = {
        axis.name: np.zeros(shape, np.int64) for axis in problem.workload.axes
    }
    used: set[str] = set()
    for axis in problem.instruction.axes:
        able = [name for name in candidates(problem, axis.name) if name not in fixed]
        rest = grid[axis.name]
        for name in reversed([] if used & set(able) else able):
            points[name], rest = rest % domain[name], rest // domain[name]
        used |= set(able)
        if rest.any():
            return False
    node_map = from_points(problem, problem.instruction.extents, np.stack(list(points.values())))
    return node_map is not None and all(c.holds(problem, node_map) for c in constraints.constraints)
