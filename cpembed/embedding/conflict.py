"""Explanations of infeasibility: axes and constraints that exclude each other, and remedies.

The culprit axes are found by projecting the instruction on few axes, the constraints by a deletion
filter on that projection; both are established by the solver, not guessed. Sentences about single
workload axes are arithmetic on extents and access functions (see ``roles``). Remedies are changes
of the constraint set, each one solved before it is proposed.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cpembed.embedding.commute import Pairing
from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.embedding.constraints.domain import Padding
from cpembed.embedding.constraints.memory_access import Dense, LinearAccess
from cpembed.embedding.cpsat import SearchLimits
from cpembed.embedding.embedding import Embedding
from cpembed.embedding.problem import EmbeddingProblem, LabelMismatch
from cpembed.embedding.projection import (
    ALWAYS,
    Answer,
    axis_groups,
    axis_subsets,
    dropping,
    project,
    solve_once,
)
from cpembed.embedding.roles import Feed, axis_text, candidates, join, role_text, sized
from cpembed.time_limit import check_time

_Solve = Callable[[EmbeddingProblem, ConstraintSet], Answer]
"""Decides feasibility of a problem under a set, within the time of the explanation."""

_TRIED_PADDINGS = 4
"""Maximum number of padding plans given to the solver."""
_NAMED_PADDINGS = 2
"""Maximum number of feasible padding plans reported."""
_OPTIONS_PER_AXIS = 8
"""Maximum number of padded extents considered for each axis at fault."""
_DROPPABLE = ("dense", "linear_access", "fixed_origin")
"""Constraints whose omission is a remedy.

Without ``hyper_rectangle`` an embedding has no program, so that its omission is none.
"""


@dataclass(frozen=True)
class _PaddedTo(Padding):
    """The set's padding rule, with the extents in ``room`` allowed as well."""

    rule: Padding = field(default_factory=Padding)
    room: Mapping[str, int] = field(default_factory=dict[str, int])

    def limit(self, axis: str, extent: int) -> int | None:
        limit = self.rule.limit(axis, extent)
        return None if limit is None else max(limit, self.room.get(axis, extent))


def _relaxations(
    problem: EmbeddingProblem,
    constraints: ConstraintSet,
    core: Collection[str],
    axes: Sequence[str],
    solve: _Solve,
) -> tuple[str, ...]:
    """Propose changes of the set under which the whole instruction fits, smallest first.

    ``core`` names the constraints that exclude the ``axes``, the instruction axes at fault.
    """
    remedies: list[str] = []

    def offer(change: str, changed: ConstraintSet) -> None:
        answer = solve(problem, changed)
        if answer.feasible:
            remedies.append(change + _feeds(answer.embedding, axes))

    # Stencils in place come first, since they cost nothing; then padding, by falling utilisation.
    # All constraints are left out at once only if nothing else has helped.
    boxes = constraints.get("hyper_rectangle") is not None
    linear = constraints.get("linear_access")
    if boxes and "linear_access" in core and linear == LinearAccess("none"):
        in_place = constraints.replacing(LinearAccess("in_place")).replacing(Dense("memory"))
        offer('linear_access with stencil = "in_place"', in_place)
    remedies += _paddings(problem, constraints, axes, solve) if boxes else []
    for name in (n for n in _DROPPABLE if n in core):
        offer(f"leaving out {name}", dropping(constraints, [name]))
    if not remedies:
        names = [n for n in (*_DROPPABLE, "padding") if constraints.get(n) and n in core]
        omitted = join([n for n in names if n != "padding"])
        if len(names) > 1:
            padded = " and padding any axis" if "padding" in names else ""
            offer(f"leaving out {omitted}{padded}", dropping(constraints, names))
    return tuple(remedies)


def _feeds(embedding: Embedding | None, axes: Sequence[str]) -> str:
    """Return how the axes at fault are fed now: ``: x from 8 of q``."""
    if embedding is None or not axes:
        return ""
    return f": {join([_feed_text(embedding, axis) for axis in axes])}"


def _feed_text(embedding: Embedding, axis: str) -> str:
    """Return how an axis is fed: ``z from 4 of c and 4 of s``."""
    digits = [f"{digit.count} of {digit.axis}" for digit in embedding.digits[axis]]
    return f"{axis} from {join(digits)}" if digits else f"{axis} at extent 1"


def _paddings(
    problem: EmbeddingProblem, constraints: ConstraintSet, axes: Sequence[str], solve: _Solve
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
    # A plan pads each workload axis once, and at least one of them beyond what the set allows.
    plans: list[dict[str, int]] = []
    for combination in itertools.product(*per_axis):
        check_time()
        merged = {name: to for option in combination for name, to in option.items()}
        disjoint = len(merged) == sum(len(option) for option in combination)
        room = {name: to for name, to in merged.items() if to > extents[name]}
        beyond = any(
            limit is not None and to > limit
            for name, to in room.items()
            for limit in [rule.limit(name, extents[name])]
        )
        if disjoint and beyond and room not in plans:
            plans.append(room)
    plans.sort(key=lambda room: (-_utilisation(extents, room), len(room)))
    paddings: list[str] = []
    for room in plans[:_TRIED_PADDINGS]:
        padded = constraints.replacing(
            _PaddedTo(rule.axes, rule.below, rule.growth, rule=rule, room=room)
        )
        if len(paddings) < _NAMED_PADDINGS and solve(problem, padded).feasible:
            steps = join([f"{name} from {extents[name]} to {to}" for name, to in room.items()])
            paddings.append(f"padding of {steps}: utilisation {_utilisation(extents, room):.2g}")
    return paddings


def _utilisation(extents: Mapping[str, int], padded: Mapping[str, int]) -> float:
    """Return the useful share of the executed points."""
    return math.prod(extents[name] / to for name, to in padded.items())


def _options(
    problem: EmbeddingProblem, constraints: ConstraintSet, axis: str
) -> Iterator[dict[str, int]]:
    """Yield the ways to feed an instruction axis by padding, as workload axis -> padded extent."""
    feeds = [Feed(problem, constraints, axis, name) for name in candidates(problem, axis)]
    undivided = {f.workload_axis: f.is_undivided for f in feeds if not f.obstacles()}
    for extent in problem.instruction.axis(axis).allowed:
        for shares in _factorisations(extent, len(undivided)):
            check_time()
            by_axis = dict(zip(undivided, shares, strict=True))
            if any(undivided[name] and share not in (1, extent) for name, share in by_axis.items()):
                continue
            yield {
                name: -(-problem.workload.extents[name] // share) * share
                for name, share in by_axis.items()
                if share > 1
            }


def _factorisations(product: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Yield the ordered factorisations of an integer into ``parts`` factors, 1 included."""
    if parts == 0:
        if product == 1:
            yield ()
        return
    for first in (d for d in range(1, product + 1) if product % d == 0):
        for rest in _factorisations(product // first, parts - 1):
            yield (first, *rest)


_DELETION_ORDER = (
    "fixed_origin",
    "extents",
    "digits",
    "strides",
    "hyper_rectangle",
    "dense",
    "linear_access",
    "padding",
)
"""Order in which the deletion filter drops constraints: those that mean most to a person last.

Others, those of plugins too, are dropped before them.
"""

_SECONDS = 10.0
"""Seconds for an explanation where the limits set none."""


@dataclass(frozen=True)
class Conflict:
    """Reason why an instruction has no embedding in a workload.

    Attributes
    ----------
    axes : tuple of str
        Instruction axes that cannot be fed (together), as few as possible. Empty when the graphs
        differ in labels or not even one operation can be placed.
    constraints : tuple of str
        Constraints that exclude each other on the instruction projected on these axes, by
        themselves beside ``dataflow`` and ``all_different``, which always hold and are named only
        where nothing else is needed.
    words : tuple of str
        Sentences for a hardware engineer, the summary first.
    relaxations : tuple of str
        Changes of the set that make the whole instruction fit, each found feasible by the solver,
        smallest first.
    minimal : bool
        True if dropping any of the constraints
        (:func:`~cpembed.embedding.projection.dropping`) leaves a feasible problem; False where a
        limit left that open.
    """

    axes: tuple[str, ...]
    constraints: tuple[str, ...]
    words: tuple[str, ...]
    relaxations: tuple[str, ...] = ()
    minimal: bool = True

    def to_json(self) -> list[dict[str, Any]]:
        """Return the ``conflict`` of the ``solve`` document, a list with an entry per conflict."""
        return [
            {
                "axes": list(self.axes),
                "constraints": list(self.constraints),
                "minimal": self.minimal,
                "words": list(self.words),
                "relaxations": list(self.relaxations),
            }
        ]


def explain_infeasible(
    pairing: Pairing, constraints: ConstraintSet, limits: SearchLimits | None = None
) -> Conflict:
    """Explain why :func:`~cpembed.embedding.search.search_pairing` has no result.

    Parameters
    ----------
    pairing : Pairing
        Workload and instruction with their operands paired; the first problem is explained.
    constraints : ConstraintSet
        Set under which the instruction does not fit.
    limits : SearchLimits, optional
        ``seconds`` bounds the searches of the explanation, 10 by default.

    Raises
    ------
    ValueError
        If the problem has an embedding after all.
    """
    problem = pairing.problem
    if isinstance(problem, LabelMismatch):
        return Conflict((), ("dataflow",), (problem.reason,))
    return _Explanation(problem, constraints, limits or SearchLimits()).conflict()


class _Explanation:
    """One explanation under construction: the problem, the set, and the time left."""

    def __init__(
        self, problem: EmbeddingProblem, constraints: ConstraintSet, limits: SearchLimits
    ) -> None:
        self.problem, self.constraints, self.limits = problem, constraints, limits
        seconds = _SECONDS if limits.seconds is None else limits.seconds
        self.deadline = time.perf_counter() + seconds

    def conflict(self) -> Conflict:
        failing, settled = self._failing()
        cores = [self._core(self._projected(axes)) for axes in failing]
        (names, minimal), axes = cores[0], failing[0]
        words = [self._summary(axes, names, settled)]
        words += self._details(axes)
        # Other axes that fail as well are the next thing a person would run into.
        words += [
            self._summary(also_failing, core, settled)
            for also_failing, (core, _) in zip(failing[1:], cores[1:], strict=True)
        ]
        minimal &= settled
        if not minimal:
            left_open = (
                "time ran out before it was known"
                if time.perf_counter() >= self.deadline
                else "it would take too long to decide"
            )
            words.append(
                f"{left_open} whether each of these constraints is needed: fewer may be at fault"
            )
        at_fault = dict.fromkeys(name for some in failing for name in some)
        excluding = {name for core, _ in cores for name in core}
        fixes = _relaxations(
            self.problem, self.constraints, excluding, tuple(at_fault), self._solve
        )
        return Conflict(axes, names, tuple(words), fixes, minimal)

    def _solve(self, problem: EmbeddingProblem, constraints: ConstraintSet) -> Answer:
        check_time()
        left = self.deadline - time.perf_counter()
        if left <= 0:
            # Out of time, a question stays open.
            return Answer(None)
        return solve_once(problem, constraints, replace(self.limits, seconds=left))

    def _projected(self, axes: tuple[str, ...]) -> EmbeddingProblem:
        return replace(self.problem, instruction=project(self.problem.instruction, axes))

    def _failing(self) -> tuple[list[tuple[str, ...]], bool]:
        """Return the infeasible projections on the fewest axes; True if all smaller ones fit."""
        settled = True
        everything = tuple(self.problem.instruction.extents)
        # Few axes first: the fewest that fail are the clearest reason.
        for subsets in axis_subsets(self.problem.instruction):
            answers = {
                axes: self._solve(self._projected(axes), self.constraints).feasible
                for axes in subsets
            }
            failing = [axes for axes, feasible in answers.items() if feasible is False]
            if failing:
                return failing, settled
            settled &= all(answers.values())
        if settled:
            raise ValueError("the problem to be explained has an embedding")
        # Every variant was left open; that all axes together fail is known from the search.
        return [everything], False

    def _core(self, problem: EmbeddingProblem) -> tuple[tuple[str, ...], bool]:
        """Return the constraints that a deletion filter leaves, and True if they are minimal."""
        present = [constraint.name for constraint in self.constraints.constraints]
        dropped: list[str] = []
        minimal = True
        unordered = [n for n in present if n not in (*_DELETION_ORDER, *ALWAYS)]
        for name in (*unordered, *(n for n in _DELETION_ORDER if n in present)):
            feasible = self._solve(problem, dropping(self.constraints, [*dropped, name])).feasible
            # Infeasible without it, the constraint is not needed, and stays dropped.
            if feasible is False:
                dropped.append(name)
            minimal &= feasible is not None
        core = tuple(name for name in present if name not in (*dropped, *ALWAYS))
        if core:
            return core, minimal
        # Nothing but what defines an embedding is left: is it the labels and edges alone?
        bare = dropping(self.constraints, dropped)
        distinct = bare.get("all_different") is not None
        if distinct and self._solve(problem, bare.removing("all_different")).feasible:
            return ALWAYS, minimal
        return ("dataflow",), minimal

    def _summary(self, axes: tuple[str, ...], core: tuple[str, ...], settled: bool) -> str:
        problem = self.problem
        quoted = join([f"`{name}`" for name in core])
        exclude = f"{quoted} exclude{'' if len(core) > 1 else 's'}"
        if len(axes) > 1:
            # Axes of one group cannot be cut from each other: of them there is no "fewer".
            groups = [g for g in axis_groups(problem.instruction) if set(g) <= set(axes)]
            fewer = "each alone" if len(groups) == 2 else "any fewer of them"
            though = f", though {fewer} can" if settled and len(groups) > 1 else ""
            listed = join([axis_text(problem, axis) for axis in axes])
            return f"axes {listed} cannot be fed together{though}: {exclude} it"
        axis = next(iter(axes))
        able = candidates(problem, axis)
        if not able:
            beyond = "" if set(core) <= set(ALWAYS) else f"; {exclude} any other way to feed it"
            return (
                f"axis {axis_text(problem, axis)} has no counterpart: no axis of the workload "
                f"indexes {role_text(problem, axis)}{beyond}"
            )
        listed = join([sized(problem, workload_axis) for workload_axis in able], "or")
        leave = f"{quoted} leave{'' if len(core) > 1 else 's'}"
        goal = problem.instruction.axis(axis).describe_allowed()
        return (
            f"axis {axis_text(problem, axis)} needs {goal} from {listed}; {leave} no way to get it"
        )

    def _details(self, axes: tuple[str, ...]) -> list[str]:
        """Return one sentence per workload axis that has the role of a culprit axis."""
        projected = self._projected(axes)
        if len(axes) == 1:
            reasons = (
                Feed(projected, self.constraints, axes[0], workload_axis).rejection()
                for workload_axis in candidates(projected, axes[0])
            )
            return [reason for reason in reasons if reason is not None]
        words: list[str] = []
        for group in axis_groups(self.problem.instruction):
            if len(group) == len(axes) or not set(group) <= set(axes):
                continue
            embedding = self._solve(self._projected(group), self.constraints).embedding
            if embedding is not None:
                words += [f"alone, {_feed_text(embedding, axis)} is possible" for axis in group]
        return words
