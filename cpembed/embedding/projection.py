"""Feasibility of smaller and weaker variants of an infeasible problem.

An explanation cuts the instruction down to a few of its axes, and drops constraints from the set.
Both only ever admit more embeddings: a variant that is still infeasible is a reason for the
problem itself.

Without ``hyper_rectangle`` an embedding is any injective node map, and the solver decides by trying
values of many all-different tuples. Two short arguments settle nearly all such variants: too few
places for the operations (the pigeonhole principle), and an embedding written down at once, in
lexicographic order, that every constraint's own check accepts.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.embedding.constraints.base import Constraint, stencil_axes
from cpembed.embedding.constraints.domain import Padding
from cpembed.embedding.constraints.memory_access import LinearAccess
from cpembed.embedding.cpsat import SearchLimits, Status
from cpembed.embedding.domains import TooManyDigitsError, padded_extents
from cpembed.embedding.embedding import Embedding
from cpembed.embedding.model_writer import TooLargeDomainError
from cpembed.embedding.node_map import Coordinates, NodeMap, from_points
from cpembed.embedding.problem import EmbeddingProblem, point_grid
from cpembed.embedding.roles import candidates
from cpembed.embedding.scalar_model import ScalarModel
from cpembed.embedding.search import search
from cpembed.hw.instruction import Instruction, InstructionAxis
from cpembed.ir.index import IndexExpr

ALWAYS = ("dataflow", "all_different")
"""Constraints that define an embedding; never dropped while looking for a conflict."""


def project(instruction: Instruction, axes: Iterable[str]) -> Instruction:
    """Return the instruction with every axis but the named ones at extent 1.

    An embedding of the instruction, cut to the first element of the other axes, is one of the
    projection; so no embedding of the projection means none of the instruction.
    """
    retained = set(axes)
    if retained >= set(instruction.extents):
        return instruction
    free = tuple(replace(axis, minimum=1, step=1) for axis in instruction.axes)
    ones = {axis.name: 1 for axis in instruction.axes if axis.name not in retained}
    projected = tuple(
        axis if axis.name in retained else InstructionAxis(axis.name, 1, 1)
        for axis in instruction.axes
    )
    computation = replace(instruction, axes=free).with_extents(ones)
    return replace(instruction, axes=projected, computation=computation)


def axis_groups(instruction: Instruction) -> tuple[tuple[str, ...], ...]:
    """Return the instruction axes that a projection keeps or drops together, in their order."""
    # Axes that share an index (A[x + z]) go together: cutting one of them leaves part of a
    # dimension, and part of a regular box need not be a regular box.
    group = {axis.name: {axis.name} for axis in instruction.axes}
    computation = instruction.computation
    for access in (*computation.reads, *computation.stores):
        for index in access.index:
            merged = set[str]().union(*(group[name] for name in index.iterators))
            for name in merged:
                group[name] = merged
    names = [axis.name for axis in instruction.axes]
    groups = (tuple(name for name in names if name in group[first]) for first in names)
    return tuple(dict.fromkeys(groups))


def axis_subsets(instruction: Instruction) -> Iterator[list[tuple[str, ...]]]:
    """Yield the sets of axis groups, from none to all, those of equally many groups together."""
    groups = axis_groups(instruction)
    for size in range(len(groups) + 1):
        subsets = itertools.combinations(groups, size)
        yield [tuple(name for group in some for name in group) for some in subsets]


@dataclass(frozen=True)
class _PaddingDomain(Padding):
    """The part of ``padding`` that has a meaning without boxes: how far the domain reaches."""

    def post(self, model: ScalarModel) -> None:
        """Post nothing: the model's variables have this domain."""

    def holds(self, problem: EmbeddingProblem, node_map: NodeMap) -> bool:
        padded = padded_extents(problem, ConstraintSet("", "", (self,)))
        return all(
            int(image.max()) < padded[axis.name]
            for axis, image in zip(problem.workload.axes, node_map.points, strict=True)
        )

    @property
    def needs_boxes(self) -> bool:
        return False


def dropping(constraints: ConstraintSet, names: Iterable[str]) -> ConstraintSet:
    """Return the set with the named constraints dropped.

    Dropping ``hyper_rectangle`` also drops what is about its boxes: ``dense``, ``linear_access``
    with stencils in place, and of ``padding`` the rule that tiles cover an axis; the domain's
    bounds stay.
    """
    dropped = set(names)
    boxes = constraints.get("hyper_rectangle") is not None and "hyper_rectangle" not in dropped
    retained: list[Constraint] = []
    for constraint in constraints.constraints:
        if isinstance(constraint, Padding):
            # Its absence lets every axis be padded. Leaving it out would pin the domain to the
            # extents instead.
            rule = Padding("all") if constraint.name in dropped else constraint
            retained.append(rule if boxes else _PaddingDomain(rule.axes, rule.below, rule.growth))
        elif constraint.name not in dropped and (boxes or not constraint.needs_boxes):
            retained.append(constraint)
    return replace(constraints, constraints=tuple(retained))


@dataclass(frozen=True)
class Answer:
    """Feasibility of a variant (None: stopped by a limit), and its first embedding if any."""

    feasible: bool | None
    embedding: Embedding | None = None


def solve_once(
    problem: EmbeddingProblem, constraints: ConstraintSet, limits: SearchLimits
) -> Answer:
    """Search for one embedding of a variant of the problem.

    Parameters
    ----------
    problem : EmbeddingProblem
        Problem, or a projection of it.
    constraints : ConstraintSet
        Set, or a weaker one.
    limits : SearchLimits
        Time limit; the number of solutions is ignored.
    """
    try:
        if constraints.get("hyper_rectangle") is None:
            return Answer(feasible_without_boxes(problem, constraints, limits))
        result = search(problem, constraints, replace(limits, solutions=1))
    except (TooManyDigitsError, TooLargeDomainError):
        return Answer(None)
    if result.status is Status.UNKNOWN:
        return Answer(None)
    return Answer(
        result.status is not Status.INFEASIBLE,
        result.embeddings[0] if result.embeddings else None,
    )


_SEARCHED_POINTS = 4096
"""Maximum number of points of a domain given to the solver.

All-different over larger ones is not bounded in time.
"""


def feasible_without_boxes(
    problem: EmbeddingProblem, constraints: ConstraintSet, limits: SearchLimits
) -> bool | None:
    """Decide whether a node map satisfies a set that has no ``hyper_rectangle``.

    Parameters
    ----------
    problem : EmbeddingProblem
        Problem, or a projection of it.
    constraints : ConstraintSet
        Set without ``hyper_rectangle``.
    limits : SearchLimits
        Time limit of the search that is left where both arguments fail.

    Returns
    -------
    bool or None
        None if undecided.
    """
    # Every instruction element needs an image, so a configurable axis is taken at its smallest
    # extent: part of an embedding at a larger one is an embedding as well.
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
    """Return the indices with one value in all operations: those of one-element operands."""
    return list(
        dict.fromkeys(
            index
            for pair in problem.pairs
            if problem.instruction.computation.operand(pair.instruction.operand).elements == 1
            for index in pair.workload.index
        )
    )


def _places(domain: Mapping[str, int], fixed: set[str], constant: Sequence[IndexExpr]) -> int:
    """Return an upper bound on the number of operations that can differ."""
    # What a constant index leaves to the iterators that no other constant index has, times the
    # extents of all others.
    owners = Counter(name for index in constant for name in index.iterators)
    places, bound = 1, set(fixed)
    for index in constant:
        exclusive = [name for name in index.iterators if name not in fixed and owners[name] == 1]
        places *= _solutions(index, {name: domain[name] for name in exclusive})
        bound |= set(exclusive)
    return places * math.prod(extent for axis, extent in domain.items() if axis not in bound)


def _solutions(index: IndexExpr, extents: Mapping[str, int]) -> int:
    """Return the maximum number of values of iterators whose part of an index has a given sum."""
    # One iterator follows from the others, and its coefficient says in which steps another one can
    # move: in 2*a + 3*b = n, a moves by 3.
    least = math.prod(extents.values())
    for last in extents:
        independent = {name: extent for name, extent in extents.items() if name != last}
        least = min(least, math.prod(independent.values()))
        for name, extent in independent.items():
            coefficient = index.coefficient(last)
            step = abs(coefficient) // math.gcd(coefficient, index.coefficient(name))
            rest = math.prod(independent.values()) // extent
            least = min(least, rest * -(-extent // step))
    return least


def _immovable(
    problem: EmbeddingProblem, constraints: ConstraintSet, constant: Sequence[IndexExpr]
) -> set[str]:
    """Return the workload axes with one coordinate in all operations."""
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
    # A constant index fixes an iterator that is its only movable one, and so further ones.
    while True:
        movable = [[name for name in index.iterators if name not in fixed] for index in constant]
        single = {names[0] for names in movable if len(names) == 1}
        if not single:
            return fixed
        fixed |= single


_Move = tuple[int, dict[str, tuple[int, int]]]
"""Number of times that a move can be made, and (start, step) on the workload axes it moves."""


def _has_lexicographic(
    problem: EmbeddingProblem, constraints: ConstraintSet, domain: dict[str, int], fixed: set[str]
) -> bool:
    """Return True if images in lexicographic order are an embedding.

    Each instruction axis counts through the workload axes of its role, the last one fastest; the
    first instruction axis may go on along diagonals.
    """
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
    """Return moves along two axes that leave an index constant: ``p`` up, ``r`` down in ``p + r``.

    The axes are taken out of ``free``.
    """
    moves: list[_Move] = []
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
                moves.append((count, {up.iterator: (0, 1), down.iterator: (high, -step)}))
    return moves
