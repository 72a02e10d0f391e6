"""``extents``: which extents of a configurable instruction axis are worth an embedding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cpembed.embedding.constraints.base import Constraint
from cpembed.embedding.digit_model import DigitModel
from cpembed.embedding.embedding import Digit
from cpembed.embedding.node_map import NodeMap, decode
from cpembed.embedding.problem import EmbeddingProblem
from cpembed.embedding.scalar_model import ScalarModel


@dataclass(frozen=True)
class Extents(Constraint):
    """A configurable axis is used at its largest extent, or at one that needs no padding.

    An axis shorter than the instruction allows is worth it where it divides the workload exactly;
    to shorten it and pad as well only wastes more.
    """

    name: ClassVar[str] = "extents"

    def post(self, model: ScalarModel) -> None:
        for axis in model.problem.workload.axes:
            for instruction_axis, choice in model.axis_choices(axis.name):
                largest = model.extent_literals[instruction_axis][
                    model.problem.instruction.axis(instruction_axis).maximum
                ]
                strides = range(model.builder.range_of(choice.stride)[1] + 1)
                exact = [s for s in strides if axis.extent % (choice.count * max(s, 1)) == 0]
                # Where the extent is not the largest, the stride divides the axis (0: no digit).
                model.builder.restrict_unless(largest, choice.stride, sorted({0, *exact}))

    def holds(self, problem: EmbeddingProblem, node_map: NodeMap) -> bool:
        embedding = decode(problem, node_map)
        if embedding is None:
            return False
        return all(
            node_map.extents[axis.name] == axis.maximum
            or all(divides(problem, digit) for digit in embedding.digits[axis.name])
            for axis in problem.instruction.axes
        )

    def post_digits(self, model: DigitModel) -> None:
        for option in model.options:
            if option.extent % (option.digit.count * option.digit.stride):
                axis = model.problem.instruction.axis(option.instruction_axis)
                model.requires_extent(option, axis.maximum)

    @property
    def needs_boxes(self) -> bool:
        return True

    def words(self) -> str:
        return "extents: a configurable axis is whole, or divides the workload exactly"


def divides(problem: EmbeddingProblem, digit: Digit) -> bool:
    """Whether the digit covers its workload axis without padding."""
    return problem.workload.extents[digit.axis] % (digit.count * digit.stride) == 0
