"""Domains of both models: digits, strides, padded extents; which problems the digit model takes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.embedding.constraints.all_different import AllDifferent
from cpembed.embedding.constraints.hyper_rectangle import HyperRectangle
from cpembed.embedding.constraints.linear_access import LinearAccess
from cpembed.embedding.constraints.digits import Strides
from cpembed.embedding.digit_model import AxisMaps, DigitOption, possible_digits
from cpembed.embedding.flatten import candidate_groups, members_of
from cpembed.embedding.problem import EmbeddingProblem
from cpembed.embedding.roles import every_axis_has_a_role
from cpembed.errors import SpecError

MOST_DIGITS = 200_000
"""Maximum number of digits in a model, at a thousand bytes and more each.

The largest shipped set leaves some thousands. Without ``strides`` and ``dense``, each step along an
axis is a stride."""


class TooManyDigits(SpecError):
    """A set leaves more than ``MOST_DIGITS`` to a workload."""


def padded_extents(problem: EmbeddingProblem, constraints: ConstraintSet) -> dict[str, int]:
    """Extent of each workload axis in the model's domain: its own, or the largest that a tile of
    the whole instruction, or a digit of a listed stride, could pad it to.
    """
    largest = math.prod(axis.maximum for axis in problem.instruction.axes)
    padded: dict[str, int] = {}
    rule, listed = constraints.padding.on(problem), constraints.get("strides")
    counts = _counts(problem)
    for axis in problem.workload.axes:
        limit = rule.limit(axis.name, axis.extent)
        full = axis.extent + largest - 1
        if isinstance(listed, Strides):
            farthest = [
                (count - 1) * stride
                for count in counts
                for stride in listed.values(problem, axis.name, count)
            ]
            full = max([full, *(last + 1 for last in farthest)])
        padded[axis.name] = full if limit is None else min(limit, full)
    return padded


def _counts(problem: EmbeddingProblem) -> list[int]:
    """The counts that a digit can have: those of an instruction axis multiply to its extent."""
    sizes = {extent for axis in problem.instruction.axes for extent in axis.allowed}
    return [n for n in range(2, max(sizes, default=1) + 1) if any(e % n == 0 for e in sizes)]


def digit_model_obstacle(problem: EmbeddingProblem, constraints: ConstraintSet) -> str | None:
    """Why embeddings are not exactly choices of digits; None where they are: boxes at a fixed
    origin, of an instruction whose indices are affine.
    """
    for operand in problem.operand_axes:
        access = problem.instruction.computation.access(operand)
        if not all(index.is_affine for index in access.index):
            return f"an index of {operand} is no sum of axes"
    needed = ("hyper_rectangle", "fixed_origin", "dataflow")
    missing = [name for name in needed if constraints.get(name) is None]
    return f"the set lacks {', '.join(missing)}" if missing else None


def unfused_groups(problem: EmbeddingProblem, constraints: ConstraintSet) -> tuple[str, ...]:
    """Describe the embeddings with fused axes, which the scalar model does not search."""
    fused = constraints.flatten
    if _lacks_a_role(problem, constraints):
        return ()
    if not candidate_groups(problem.workload, fused.max_axes, fused.min_extent):
        return ()
    reason = digit_model_obstacle(problem, constraints) or "the scalar model was asked for"
    return (f"fused axes: {reason}",)


def _lacks_a_role(problem: EmbeddingProblem, constraints: ConstraintSet) -> bool:
    """Whether nothing can feed an instruction axis, fused or not: members of a fused axis index the
    same operands, so that it has their role.
    """
    deciding = ("hyper_rectangle", "dataflow", "all_different")
    if any(constraints.get(name) is None for name in deciding):
        return False
    affine = all(i.is_affine for pair in problem.pairs for i in pair.workload.index)
    return affine and not every_axis_has_a_role(
        problem.workload, problem.instruction, problem.pairs
    )


def joint_digits(problem: EmbeddingProblem, constraints: ConstraintSet) -> str | None:
    """Why digits that are allowed and exclude each other nowhere may still be no embedding; None
    where they always are one.
    """
    for operand, groups in problem.window_groups.items():
        if any(len(group) > 1 for group in groups.values()):
            return f"{operand} of the instruction is read by windows"
    shapes = {o.name: o.shape for o in problem.instruction.computation.operands}
    if problem.shared_elements(shapes):
        return "an element of the instruction's operands is reached in two ways"
    signatures = {
        axis.name: frozenset(
            pair.instruction.operand
            for pair in problem.pairs
            if any(axis.name in index.iterators for index in pair.workload.index)
        )
        for axis in problem.workload.axes
    }
    if any(
        signatures[a] == signatures[b]
        for pair in problem.pairs
        for index in pair.workload.index
        for a, b in itertools.combinations(index.iterators, 2)
    ):
        return "two axes that could feed the same instruction axis meet in one index"
    if constraints.get("hyper_rectangle") == HyperRectangle("operands"):
        return None
    different, linear = constraints.get("all_different"), constraints.get("linear_access")
    if not isinstance(different, AllDifferent):
        return "the set lacks all_different"
    if different.elements == "all":
        return "all elements are to differ, of operands that need not be boxes"
    if constraints.get("dense") or linear == LinearAccess("in_place"):
        return "what dense and linear_access ask of operands that need not be boxes"
    stored = [index for pair in problem.store_pairs for index in pair.workload.index]
    if not all(index.single_iterator is not None or not index.terms for index in stored):
        return "an output of the workload is written at a sum of axes"
    return None


class JointDigits:
    """Test for choices of digits that must be judged on nodes: those that move an index of the
    instruction or of the workload together.
    """

    def __init__(self, problem: EmbeddingProblem, constraints: ConstraintSet) -> None:
        shapes = {o.name: o.shape for o in problem.instruction.computation.operands}
        self._ports = bool(problem.shared_elements(shapes))
        self._windows = {
            axis
            for groups in problem.window_groups.values()
            for axis, group in groups.items()
            if len(group) > 1
        }
        self._meeting: dict[str, set[str]] = {}
        for indices in problem.workload_indices.values():
            for index in indices:
                for axis in index.iterators if len(index.iterators) > 1 else ():
                    self._meeting.setdefault(axis, set()).update(index.iterators)
        operands = constraints.get("hyper_rectangle") == HyperRectangle("operands")
        self._fused = operands or constraints.get("dense") is not None

    def met(self, maps: AxisMaps) -> bool:
        """Whether the digits are to be judged together."""
        if self._ports or any(maps.digits[axis] for axis in self._windows & maps.digits.keys()):
            return True
        if self._fused and maps.flattened:
            return True
        members = [
            member
            for digits in maps.digits.values()
            for digit in digits
            for member in members_of(maps.flattened, digit.axis)
        ]
        return any(
            len(self._meeting[member].intersection(members)) > 1
            for member in members
            if member in self._meeting
        )


def allowed_digits(problem: EmbeddingProblem, constraints: ConstraintSet) -> list[DigitOption]:
    """The digits that every constraint allows by itself.

    Raises :class:`TooManyDigits` where they are more than any memory is for.
    """
    allowed = (o for o in _digits(problem, constraints) if _allowed(problem, constraints, o))
    options = list(itertools.islice(allowed, MOST_DIGITS + 1))
    if len(options) > MOST_DIGITS:
        raise TooManyDigits(
            f"{constraints.name} leaves more than {MOST_DIGITS:,} digits for "
            f"{problem.instruction.name} in {problem.workload.name}: allow fewer strides, such as "
            'allowed = ["one"] in [strides]'
        )
    return options


def full_digits(problem: EmbeddingProblem, constraints: ConstraintSet) -> list[DigitOption]:
    """The allowed digits that feed all of an instruction axis."""
    allowed = {axis.name: axis.allowed for axis in problem.instruction.axes}
    return [
        option
        for option in _digits(problem, constraints)
        if option.weight == 1
        and option.digit.count in allowed[option.instruction_axis]
        and _allowed(problem, constraints, option)
    ]


def _digits(problem: EmbeddingProblem, constraints: ConstraintSet) -> Iterator[DigitOption]:
    strides, fused = possible_strides(problem, constraints), constraints.flatten
    return possible_digits(problem, strides, fused.max_axes, fused.min_extent, plain=fused.plain)


def _allowed(problem: EmbeddingProblem, constraints: ConstraintSet, option: DigitOption) -> bool:
    return all(constraint.allows(problem, option) for constraint in constraints.constraints)


def possible_strides(
    problem: EmbeddingProblem, constraints: ConstraintSet
) -> Callable[[str, int], Sequence[int]]:
    """A function from a workload axis and a digit's count (at least 2) to the strides that the
    digit may have, ascending, as far as the axis alone decides it.
    """
    padded = padded_extents(problem, constraints)
    dense = constraints.get("dense") is not None
    listed = constraints.get("strides")

    def strides(axis: str, count: int) -> Sequence[int]:
        if isinstance(listed, Strides):
            return listed.values(problem, axis, count)
        largest = (padded[axis] - 1) // (count - 1)
        # Without gaps an operand that the axis indexes alone leaves no other stride.
        if dense and axis in problem.direct_dimension:
            largest = min(largest, 1)
        return range(1, largest + 1)

    return strides


def coordinate_bounds(problem: EmbeddingProblem, constraints: ConstraintSet) -> dict[str, int]:
    """The largest coordinate along each workload axis that an embedding can have.

    Equation 11 of Rieber et al. 2021 with the largest stride that the constraints leave to each
    axis, so that it excludes no embedding: under boxes (``hyper_rectangle``) an axis is walked by
    one digit at most, whose count divides an extent of the instruction, and at a fixed origin it
    begins at 0. Without these two constraints only the domain's own bound holds.
    """
    padded = padded_extents(problem, constraints)
    last_coordinates = {axis: extent - 1 for axis, extent in padded.items()}
    if constraints.get("hyper_rectangle") is None or constraints.get("fixed_origin") is None:
        return last_coordinates
    counts = _counts(problem)
    strides = possible_strides(problem, constraints)

    def longest(axis: str) -> int:
        # The strides ascend, and can be very many.
        return max(((n - 1) * max(strides(axis, n)[-1:], default=0) for n in counts), default=0)

    return {axis: min(last, longest(axis)) for axis, last in last_coordinates.items()}
