"""Feasibility without ``hyper_rectangle``, by argument where search is slow.

Without boxes an embedding is any injective node map, and the solver decides by trying values of
many all-different tuples. Two short arguments settle nearly all such problems that an explanation
asks about: too few places for the operations (the pigeonhole principle), and an embedding written
down at once, in lexicographic order, that every constraint's own check accepts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.embedding.constraints.base import stencil_axes
from cpembed.embedding.constraints.linear_access import LinearAccess
from cpembed.embedding.cpsat import SearchLimits, Status
from cpembed.embedding.node_map import Coordinates, from_points
from cpembed.embedding.problem import EmbeddingProblem, point_grid
from cpembed.embedding.regular import padded_extents
from cpembed.embedding.roles import candidates
from cpembed.embedding.search import search
from cpembed.ir.index import IndexExpr

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
    computation = problem.instruction.with_extents(smallest)
    instruction = replace(problem.instruction, axes=axes, computation=computation)
    problem = replace(problem, instruction=instruction)
    domain = padded_extents(problem, constraints)
    constant = _constant_indices(problem)
    fixed = _immovable(problem, constraints, constant)
    places = _places(domain, fixed, constant)
    if constraints.get("all_different") is not None and places < instruction.macs:
        return False
    if _has_lexicographic(problem, constraints, domain, fixed):
        return True
    if math.prod(domain.values()) > _SEARCHED_POINTS:
        return None
    status = search(problem, constraints, replace(limits, solutions=1)).status
    return None if status is Status.UNKNOWN else status is not Status.INFEASIBLE


def _constant_indices(problem: EmbeddingProblem) -> list[IndexExpr]:
    """Indices with one value in all operations: those of operands that are one element."""
    return list(
        dict.fromkeys(
            index
            for pair in problem.pairs
            if problem.instruction.computation.operand(pair.instruction.operand).elements == 1
            for index in pair.workload.index
        )
    )


def _places(domain: Mapping[str, int], fixed: set[str], constant: Sequence[IndexExpr]) -> int:
    """Upper bound on the operations that can differ: what a constant index leaves to the iterators
    that no other constant index has, times the extents of all others."""
    owners = Counter(name for index in constant for name in index.iterators)
    places, bound = 1, set(fixed)
    for index in constant:
        own = [name for name in index.iterators if name not in fixed and owners[name] == 1]
        places *= _solutions(index, {name: domain[name] for name in own})
        bound |= set(own)
    return places * math.prod(extent for axis, extent in domain.items() if axis not in bound)


def _solutions(index: IndexExpr, extents: Mapping[str, int]) -> int:
    """Values that iterators can have at most where their part of an index has a given sum: one of
    them follows from the others, and its coefficient says in which steps another can move."""
    least = math.prod(extents.values())
    for last in extents:
        others = {name: extent for name, extent in extents.items() if name != last}
        least = min(least, math.prod(others.values()))
        for name, extent in others.items():
            coefficient = index.coefficient(last)
            step = abs(coefficient) // math.gcd(coefficient, index.coefficient(name))
            rest = math.prod(others.values()) // extent
            least = min(least, rest * -(-extent // step))
    return least


def _immovable(
    problem: EmbeddingProblem, constraints: ConstraintSet, constant: Sequence[IndexExpr]
) -> set[str]:
    """Workload axes with one coordinate in all operations: stencil axes under ``linear_access``,
    and what an operand of one element fixes through an index with no other movable iterator."""
    linear = constraints.get("linear_access")
    fixed: set[str] = set()
    if isinstance(linear, LinearAccess) and linear.stencil == "none":
        fixed |= set(stencil_axes(problem))
    if constraints.get("fixed_origin") is not None:
        # The one element is the smallest index there is: every iterator stays at its first value.
        fixed |= {
            term.iterator
            for index in constant
            if all(term.coefficient > 0 for term in index.terms)
            for term in index.terms
        }
    while True:
        movable = [[name for name in index.iterators if name not in fixed] for index in constant]
        single = {names[0] for names in movable if len(names) == 1}
        if not single:
            return fixed
        fixed |= single


_Move = tuple[int, dict[str, tuple[int, int]]]
"""How often it can be made, and (start, step) on the workload axes it moves."""


def _has_lexicographic(
    problem: EmbeddingProblem, constraints: ConstraintSet, domain: dict[str, int], fixed: set[str]
) -> bool:
    """Whether counting each instruction axis through the workload axes of its role, last axis
    fastest, is an embedding; the first counted axis may go on along diagonals."""
    grid = point_grid(problem.instruction)
    shape = tuple(axis.maximum for axis in problem.instruction.axes)
    points: dict[str, Coordinates] = {
        axis.name: np.zeros(shape, np.int64) for axis in problem.workload.axes
    }
    free = {name: extent for name, extent in domain.items() if name not in fixed}
    for axis in (a for a in problem.instruction.axes if a.maximum > 1):
        able = [name for name in candidates(problem, axis.name) if name in free]
        moves: list[_Move] = [(free.pop(name), {name: (0, 1)}) for name in reversed(able)]
        rest = grid[axis.name]
        for count, steps in [*moves, *_diagonals(problem, free)]:
            if not rest.any():
                break
            for name, (start, step) in steps.items():
                points[name] = start + step * (rest % count)
            rest = rest // count
        if rest.any():
            return False
    node_map = from_points(problem, problem.instruction.extents, np.stack(list(points.values())))
    return node_map is not None and all(c.holds(problem, node_map) for c in constraints.constraints)


def _diagonals(problem: EmbeddingProblem, free: dict[str, int]) -> list[_Move]:
    """Moves along two axes that leave an index constant: ``p`` up and ``r`` down in ``p + r``.
    The axes are taken out of ``free``."""
    found: list[_Move] = []
    for pair in problem.pairs:
        for index in pair.workload.index:
            terms = [term for term in index.terms if term.iterator in free]
            if len(terms) != 2 or any(term.coefficient < 1 for term in terms):
                continue
            up, down = sorted(terms, key=lambda term: -term.coefficient)
            high = free[down.iterator] - 1
            step, uneven = divmod(up.coefficient, down.coefficient)
            count = min(free[up.iterator], high // step + 1)
            if not uneven and count > 1:
                del free[up.iterator], free[down.iterator]
                found.append((count, {up.iterator: (0, 1), down.iterator: (high, -step)}))
    return found
