"""``strides``: the strides a digit may have on a workload axis (a finite list by declaration)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from cpembed.embedding.constraints.base import Constraint
from cpembed.embedding.digit_model import DigitModel, DigitOption
from cpembed.embedding.model import ScalarModel
from cpembed.embedding.node_map import NodeMap, decode
from cpembed.embedding.problem import EmbeddingProblem

StrideKind = Literal["one", "spread", "step"]


@dataclass(frozen=True)
class Strides(Constraint):
    """Digits move by one of the listed strides.

    "one" is consecutive iterations; "spread" divides the axis into as many parts as the digit has
    counts, extent / count rounded up (independent sub-images); "step" is where the next window of
    a strided or dilated stencil that shares no element begins: for ``a*p + b*r``, ``b / gcd(a, b)``
    along p. With ``alone`` a stride above 1 is only for the single digit of an instruction axis:
    sub-images are not mixed with other axes.
    """

    name: ClassVar[str] = "strides"
    allowed: tuple[StrideKind, ...] = ("one",)
    alone: bool = False

    def values(self, problem: EmbeddingProblem, axis: str, count: int) -> tuple[int, ...]:
        """Ascending strides allowed to a digit of this count on a workload axis."""
        found: set[int] = set()
        if "one" in self.allowed:
            found.add(1)
        if "spread" in self.allowed:
            found.add(-(-problem.workload.extents[axis] // count))
        if "step" in self.allowed:
            found |= stencil_steps(problem, axis)
        return tuple(sorted(found))

    def post(self, model: ScalarModel) -> None:
        for axis in model.problem.workload.axes:
            for lane, choice in model.axis_choices(axis.name):
                allowed = self.values(model.problem, axis.name, choice.count)
                model.builder.restrict(choice.stride, [0, *allowed])
                end = model.extent_literals[lane].get(choice.count)
                if self.alone and (choice.weight != 1 or end is None):
                    model.builder.restrict(choice.stride, [0, 1])
                elif self.alone and end is not None:
                    model.builder.restrict_unless(end, choice.stride, [0, 1])

    def holds(self, problem: EmbeddingProblem, node_map: NodeMap) -> bool:
        embedding = decode(problem, node_map)
        return embedding is not None and all(
            digit.stride in self.values(problem, digit.axis, digit.count)
            and (digit.stride == 1 or len(digits) == 1 or not self.alone)
            for digits in embedding.digits.values()
            for digit in digits
        )

    def allows(self, problem: EmbeddingProblem, option: DigitOption) -> bool:
        digit = option.digit
        if self.alone and digit.stride > 1 and option.weight > 1:
            return False
        if len(option.members) > 1:
            return "one" in self.allowed and digit.stride == 1
        return digit.stride in self.values(problem, digit.axis, digit.count)

    def post_digits(self, model: DigitModel) -> None:
        if self.alone:
            for option in model.options:
                if option.digit.stride > 1:
                    model.requires_extent(option, option.digit.count)

    @property
    def needs_boxes(self) -> bool:
        return True

    def words(self) -> str:
        return f"strides: a digit moves by {', '.join(self.allowed)} only"


def stencil_steps(problem: EmbeddingProblem, axis: str) -> set[int]:
    """Strides above 1 along an axis after which a window of its stencils starts anew."""
    steps: set[int] = set()
    for pair in problem.pairs:
        for index in pair.workload.index:
            own = abs(index.coefficient(axis))
            for term in index.terms:
                if own and term.iterator != axis:
                    steps.add(abs(term.coefficient) // math.gcd(own, term.coefficient))
    return {step for step in steps if step > 1}
