"""Which problems the digit model can take, and the digits it chooses from."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.embedding.constraints.all_different import AllDifferent
from cpembed.embedding.constraints.hyper_rectangle import HyperRectangle
from cpembed.embedding.constraints.strides import Strides
from cpembed.embedding.digit_model import DigitOption, possible_digits
from cpembed.embedding.problem import EmbeddingProblem


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


def has_digit_model(problem: EmbeddingProblem, constraints: ConstraintSet) -> bool:
    """Whether embeddings are exactly choices of digits: boxes at a fixed origin, on operands that
    the instruction walks by single axes, each once."""
    regular = all(
        None not in names and len(set(names)) == len(names)
        for names in problem.index_names.values()
    )
    regular &= not problem.shared_elements(
        {operand.name: operand.shape for operand in problem.instruction.computation.operands}
    )
    needed = ("hyper_rectangle", "fixed_origin", "dataflow")
    if not regular or any(constraints.get(name) is None for name in needed):
        return False
    boxes, different = constraints.get("hyper_rectangle"), constraints.get("all_different")
    if boxes == HyperRectangle("operands"):
        return True
    # Without operand boxes, elements differ digit by digit only where digits do not meet in one
    # dimension: outputs of single-axis indices, and no instruction axis feeding a sum of axes
    # that have the same role.
    if not isinstance(different, AllDifferent) or different.elements == "all":
        return False
    stored = [index for pair in problem.store_pairs for index in pair.workload.index]
    single = all(index.single_iterator is not None or not index.terms for index in stored)
    return single and not _shared_sums(problem)


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
    """The digits that every constraint allows by itself."""
    padded = padded_extents(problem, constraints)
    dense = constraints.get("dense") is not None
    listed = constraints.get("strides")

    def strides(axis: str, count: int) -> Iterable[int]:
        if isinstance(listed, Strides):
            return listed.values(problem, axis, count)
        largest = (padded[axis] - 1) // (count - 1)
        # Without gaps an operand that the axis indexes alone leaves no other stride.
        if dense and axis in problem.direct_dimension:
            largest = min(largest, 1)
        return range(1, largest + 1)

    return [
        option
        for option in possible_digits(problem, strides, constraints.flatten.max_axes)
        if all(constraint.allows(problem, option) for constraint in constraints.constraints)
    ]
