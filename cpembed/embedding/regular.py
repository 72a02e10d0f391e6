"""Which problems the digit model can take, and the digits it chooses from."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.embedding.constraints.all_different import AllDifferent
from cpembed.embedding.constraints.hyper_rectangle import HyperRectangle
from cpembed.embedding.constraints.strides import Strides
from cpembed.embedding.digit_model import DigitOption, possible_digits
from cpembed.embedding.problem import EmbeddingProblem
from cpembed.errors import SpecError

MOST_DIGITS = 200_000
"""Of a model, a thousand bytes and more each; the widest set that is shipped leaves some thousands.
Where neither ``strides`` nor ``dense`` limits them, each step along an axis is a stride."""


class TooManyDigits(SpecError):
    """A set leaves more than ``MOST_DIGITS`` to a workload."""


def padded_extents(problem: EmbeddingProblem, constraints: ConstraintSet) -> dict[str, int]:
    """Extent of each workload axis in the model's domain: its own, or the largest that a tile of
    the whole instruction could pad it to."""
    largest = math.prod(axis.maximum for axis in problem.instruction.axes)
    padded: dict[str, int] = {}
    rule = constraints.padding.on(problem)
    for axis in problem.workload.axes:
        limit = rule.limit(axis.name, axis.extent)
        full = axis.extent + largest - 1
        padded[axis.name] = full if limit is None else min(limit, full)
    return padded


def digit_model_obstacle(problem: EmbeddingProblem, constraints: ConstraintSet) -> str | None:
    """Why embeddings are not exactly choices of digits; None where they are: boxes at a fixed
    origin, on operands that the instruction walks by single axes, each once."""
    for operand, names in problem.index_names.items():
        if None in names or len(set(names)) < len(names):
            return f"it does not walk {operand} by single axes, each once"
    shapes = {o.name: o.shape for o in problem.instruction.computation.operands}
    if problem.shared_elements(shapes):
        return "an element of its operands is reached in two ways"
    needed = ("hyper_rectangle", "fixed_origin", "dataflow")
    missing = [name for name in needed if constraints.get(name) is None]
    if missing:
        return f"the set lacks {', '.join(missing)}"
    boxes, different = constraints.get("hyper_rectangle"), constraints.get("all_different")
    if boxes == HyperRectangle("operands"):
        return None
    # Without operand boxes, elements differ digit by digit only where digits do not meet in one
    # dimension: outputs of single-axis indices, and no instruction axis feeding a sum of axes
    # that have the same role.
    if not isinstance(different, AllDifferent):
        return "the set lacks all_different"
    if different.elements == "all":
        return "all elements are to differ, of operands that need not be boxes"
    stored = [index for pair in problem.store_pairs for index in pair.workload.index]
    single = all(index.single_iterator is not None or not index.terms for index in stored)
    if not single:
        return "an output of the workload is written at a sum of axes"
    if _shared_sums(problem):
        return "two axes that could feed the same instruction axis meet in one index"
    return None


def _shared_sums(problem: EmbeddingProblem) -> bool:
    """Whether two axes that could feed the same instruction axis meet in one index."""
    signatures = {
        axis.name: frozenset(
            pair.instruction.operand
            for pair in problem.pairs
            if any(axis.name in index.iterators for index in pair.workload.index)
        )
        for axis in problem.workload.axes
    }
    return any(
        signatures[a] == signatures[b]
        for pair in problem.pairs
        for index in pair.workload.index
        for a, b in itertools.combinations(index.iterators, 2)
    )


def allowed_digits(problem: EmbeddingProblem, constraints: ConstraintSet) -> list[DigitOption]:
    """The digits that every constraint allows by itself.

    Raises :class:`TooManyDigits` where they are more than any memory is for.
    """
    allowed = (o for o in _digits(problem, constraints) if _allowed(problem, constraints, o))
    found = list(itertools.islice(allowed, MOST_DIGITS + 1))
    if len(found) > MOST_DIGITS:
        raise TooManyDigits(
            f"{constraints.name} leaves more than {MOST_DIGITS:,} digits for "
            f"{problem.instruction.name} in {problem.workload.name}: allow fewer strides, such as "
            'allowed = ["one"] in [strides]'
        )
    return found


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
    digit may have, ascending, as far as the axis alone decides it."""
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
    whole = {axis: extent - 1 for axis, extent in padded.items()}
    if constraints.get("hyper_rectangle") is None or constraints.get("fixed_origin") is None:
        return whole
    # The counts of an axis's digits multiply to its extent.
    sizes = {extent for axis in problem.instruction.axes for extent in axis.allowed}
    counts = [n for n in range(2, max(sizes, default=1) + 1) if any(e % n == 0 for e in sizes)]
    strides = possible_strides(problem, constraints)

    def longest(axis: str) -> int:
        # The strides ascend, and can be very many.
        return max(((n - 1) * max(strides(axis, n)[-1:], default=0) for n in counts), default=0)

    return {axis: min(last, longest(axis)) for axis, last in whole.items()}
