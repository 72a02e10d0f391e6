"""Domains that a constraint set leaves to both models: padded extents, strides, digits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.embedding.constraints.digits import Strides
from cpembed.embedding.digit_model import DigitOption
from cpembed.embedding.embedding import Digit
from cpembed.embedding.flatten import adds_tiles, candidate_groups
from cpembed.embedding.problem import EmbeddingProblem
from cpembed.errors import SpecError
from cpembed.time_limit import check_time

MOST_DIGITS = 200_000
"""Maximum number of digits in a model, at a thousand bytes and more each.

The largest shipped set leaves some thousands. Without ``strides`` and ``dense``, each step along an
axis is a stride.
"""


class TooManyDigitsError(SpecError):
    """A set leaves more digits to a workload than any memory is for."""


def padded_extents(problem: EmbeddingProblem, constraints: ConstraintSet) -> dict[str, int]:
    """Return the extent of each workload axis in a model's domain, padding included."""
    # No embedding reaches further than a tile of the whole instruction that begins at the last
    # point, or than a digit of a listed stride.
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
    """Return the counts that a digit can have: they divide an extent of the instruction."""
    sizes = {extent for axis in problem.instruction.axes for extent in axis.allowed}
    return [n for n in range(2, max(sizes, default=1) + 1) if any(e % n == 0 for e in sizes)]


def _possible_strides(
    problem: EmbeddingProblem, constraints: ConstraintSet
) -> Callable[[str, int], Sequence[int]]:
    """Return a function from a workload axis and a digit's count (at least 2) to its strides.

    The strides ascend; they are those that the axis alone, without other digits, leaves.
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
    """Return the largest coordinate along each workload axis that an embedding can have.

    Equation 11 of Rieber et al. 2021 with the largest stride that the constraints leave to each
    axis, so that it excludes no embedding.
    """
    padded = padded_extents(problem, constraints)
    last_coordinates = {axis: extent - 1 for axis, extent in padded.items()}
    # Under boxes one digit at most walks an axis, and at a fixed origin it begins at 0. Without
    # these two constraints only the domain's own bound holds.
    if constraints.get("hyper_rectangle") is None or constraints.get("fixed_origin") is None:
        return last_coordinates
    counts = _counts(problem)
    strides = _possible_strides(problem, constraints)

    def longest(axis: str) -> int:
        # The strides ascend, and can be very many.
        return max(((n - 1) * max(strides(axis, n)[-1:], default=0) for n in counts), default=0)

    return {axis: min(last, longest(axis)) for axis, last in last_coordinates.items()}


# -- digits ---------------------------------------------------------------------------------------


def allowed_digits(problem: EmbeddingProblem, constraints: ConstraintSet) -> list[DigitOption]:
    """Return the digits that every constraint allows by itself.

    Raises :class:`TooManyDigitsError` where they are more than any memory is for.
    """
    allowed = (o for o in _digits(problem, constraints) if _allowed(problem, constraints, o))
    options = list(itertools.islice(allowed, MOST_DIGITS + 1))
    if len(options) > MOST_DIGITS:
        raise TooManyDigitsError(
            f"{constraints.name} leaves more than {MOST_DIGITS:,} digits for "
            f"{problem.instruction.name} in {problem.workload.name}: allow fewer strides, such as "
            'allowed = ["one"] in [strides]'
        )
    return options


def full_digits(problem: EmbeddingProblem, constraints: ConstraintSet) -> list[DigitOption]:
    """Return the allowed digits that feed all of an instruction axis."""
    allowed = {axis.name: axis.allowed for axis in problem.instruction.axes}
    return [
        option
        for option in _digits(problem, constraints)
        if option.weight == 1
        and option.digit.count in allowed[option.instruction_axis]
        and _allowed(problem, constraints, option)
    ]


def _allowed(problem: EmbeddingProblem, constraints: ConstraintSet, option: DigitOption) -> bool:
    return all(constraint.allows(problem, option) for constraint in constraints.constraints)


def _digits(problem: EmbeddingProblem, constraints: ConstraintSet) -> Iterator[DigitOption]:
    """Yield every digit that fits a number system of one of its instruction axis's extents."""
    workload, fused = problem.workload, constraints.flatten
    strides = _possible_strides(problem, constraints)
    groups = candidate_groups(workload, fused.max_axes, fused.min_extent)
    for instruction_axis in problem.instruction.axes:
        for weight in range(1, instruction_axis.maximum + 1):
            # Large counts first: few digits make simple embeddings.
            for count in range(instruction_axis.maximum // weight, 1, -1):
                if not any(extent % (weight * count) == 0 for extent in instruction_axis.allowed):
                    continue
                for axis in workload.axes:
                    for stride in strides(axis.name, count):
                        check_time()
                        digit = Digit(axis.name, count, stride)
                        yield DigitOption(
                            instruction_axis.name, weight, digit, (axis.name,), axis.extent
                        )
                for name, members in groups.items():
                    check_time()
                    # What digits on the members give already would be found twice.
                    if adds_tiles(workload, members, count, plain=fused.plain):
                        digit = Digit(name, count)
                        extent = math.prod(workload.extents[member] for member in members)
                        yield DigitOption(instruction_axis.name, weight, digit, members, extent)
