"""What would make an infeasible problem feasible: changes of the constraint set, tried out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.embedding.constraints.dense import Dense
from cpembed.embedding.constraints.linear_access import LinearAccess
from cpembed.embedding.constraints.padding import Padding
from cpembed.embedding.embedding import Embedding
from cpembed.embedding.problem import EmbeddingProblem
from cpembed.embedding.projection import Answer, dropping
from cpembed.embedding.roles import all_or_nothing, candidates, join, obstacles
from cpembed.time_limit import check_time

Solve = Callable[[EmbeddingProblem, ConstraintSet], Answer]

_TRIED_PADDINGS = 4
_NAMED_PADDINGS = 2
_OPTIONS_PER_AXIS = 8
_DROPPABLE = ("dense", "linear_access", "fixed_origin")
"""Without ``hyper_rectangle`` there is no axis map and no program, so that is no remedy."""


@dataclass(frozen=True)
class _PaddedTo(Padding):
    """The set's own rule with room for the extents named."""

    rule: Padding = field(default_factory=Padding)
    room: Mapping[str, int] = field(default_factory=dict[str, int])

    def limit(self, axis: str, extent: int) -> int | None:
        own = self.rule.limit(axis, extent)
        return None if own is None else max(own, self.room.get(axis, extent))


def relaxations(
    problem: EmbeddingProblem,
    constraints: ConstraintSet,
    core: Collection[str],
    axes: Sequence[str],
    solve: Solve,
) -> tuple[str, ...]:
    """Changes of the constraint set under which the whole instruction has an embedding.

    ``axes`` are all instruction axes at fault, ``core`` the constraints that exclude them. Tried
    in this order, each with the solver: stencils read in place, which costs nothing; padding, by
    falling utilisation; leaving out one constraint; and only if nothing has helped, all of them.
    """
    found: list[str] = []

    def offer(words: str, changed: ConstraintSet) -> None:
        answer = solve(problem, changed)
        if answer.feasible:
            found.append(words + _feeds(answer.embedding, axes))

    boxes = constraints.get("hyper_rectangle") is not None
    linear = constraints.get("linear_access")
    if boxes and "linear_access" in core and linear == LinearAccess("none"):
        in_place = constraints.replacing(LinearAccess("in_place")).replacing(Dense("memory"))
        offer('linear_access with stencil = "in_place"', in_place)
    found += _paddings(problem, constraints, axes, solve) if boxes else []
    for name in (n for n in _DROPPABLE if n in core):
        offer(f"leaving out {name}", dropping(constraints, [name]))
    if not found:
        names = [n for n in (*_DROPPABLE, "padding") if constraints.get(n) and n in core]
        words = [n for n in names if n != "padding"]
        if len(names) > 1:
            padded = " and padding any axis" if "padding" in names else ""
            offer(f"leaving out {join(words)}{padded}", dropping(constraints, names))
    return tuple(found)


def _feeds(embedding: Embedding | None, axes: Sequence[str]) -> str:
    """``: x from 8 of q``, for the axes that were at fault."""
    if embedding is None or not axes:
        return ""
    return f": {join([feed_words(embedding, axis) for axis in axes])}"


def feed_words(embedding: Embedding, axis: str) -> str:
    """``z from 4 of c and 4 of s``"""
    digits = [f"{digit.count} of {digit.axis}" for digit in embedding.digits[axis]]
    return f"{axis} from {join(digits)}" if digits else f"{axis} at extent 1"


def _paddings(
    problem: EmbeddingProblem, constraints: ConstraintSet, axes: Sequence[str], solve: Solve
) -> list[str]:
    rule = constraints.get("padding")
    if not isinstance(rule, Padding) or not axes:
        return []
    extents = problem.workload.extents
    per_axis = [
        sorted(
            _options(problem, constraints, axis),
            key=lambda option: -_utilisation(extents, option),
        )[:_OPTIONS_PER_AXIS]
        for axis in axes
    ]
    plans: list[dict[str, int]] = []
    for chosen in itertools.product(*per_axis):
        check_time()
        merged = {name: to for option in chosen for name, to in option.items()}
        disjoint = len(merged) == sum(len(option) for option in chosen)
        room = {name: to for name, to in merged.items() if to > extents[name]}
        beyond = any(
            limit is not None and to > limit
            for name, to in room.items()
            for limit in [rule.limit(name, extents[name])]
        )
        if disjoint and beyond and room not in plans:
            plans.append(room)
    plans.sort(key=lambda room: (-_utilisation(extents, room), len(room)))
    found: list[str] = []
    for room in plans[:_TRIED_PADDINGS]:
        padded = constraints.replacing(
            _PaddedTo(rule.axes, rule.below, rule.growth, rule=rule, room=room)
        )
        if len(found) < _NAMED_PADDINGS and solve(problem, padded).feasible:
            steps = join([f"{name} from {extents[name]} to {to}" for name, to in room.items()])
            found.append(f"padding of {steps}: utilisation {_utilisation(extents, room):.2g}")
    return found


def _utilisation(extents: Mapping[str, int], padded: Mapping[str, int]) -> float:
    """Useful share of what is executed."""
    return math.prod(extents[name] / to for name, to in padded.items())


def _options(
    problem: EmbeddingProblem, constraints: ConstraintSet, axis: str
) -> Iterator[dict[str, int]]:
    """Ways to feed an instruction axis by padding, as workload axis -> padded extent."""
    open_axes = [
        other
        for other in candidates(problem, axis)
        if not obstacles(problem, constraints, axis, other)
    ]
    whole = {other: all_or_nothing(problem, constraints, other) for other in open_axes}
    for extent in problem.instruction.axis(axis).allowed:
        for shares in _factorisations(extent, len(open_axes)):
            check_time()
            shared = zip(open_axes, shares, strict=True)
            if any(whole[other] and share not in (1, extent) for other, share in shared):
                continue
            yield {
                other: -(-problem.workload.extents[other] // share) * share
                for other, share in zip(open_axes, shares, strict=True)
                if share > 1
            }


def _factorisations(product: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Ordered factorisations of an integer into so many factors, 1 included."""
    if parts == 0:
        if product == 1:
            yield ()
        return
    for first in (d for d in range(1, product + 1) if product % d == 0):
        for rest in _factorisations(product // first, parts - 1):
            yield (first, *rest)
