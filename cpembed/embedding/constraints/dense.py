"""``dense``: stride 1 on every dimension of every operand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from cpembed.embedding.constraints.base import Constraint, along_index, can_feed, moved_dimensions
from cpembed.embedding.constraints.hyper_rectangle import index_digits
from cpembed.embedding.digit_model import DigitModel, DigitOption
from cpembed.embedding.node_map import NodeMap, profile_digit
from cpembed.embedding.problem import EmbeddingProblem
from cpembed.embedding.scalar_model import ScalarModel
from cpembed.hw.instruction import StrideRule


@dataclass(frozen=True)
class Dense(Constraint):
    """Images have no gaps.

    Each index of an instruction operand that moves along a dimension does so as one digit of
    stride 1, whichever axes make it up.

    ``stencil_stride = "memory"`` also allows a stride in a dimension that several iterators index
    (an image row under a strided convolution) where the instruction's memory side takes any
    stride along the instruction axes that walk it.
    """

    name: ClassVar[str] = "dense"
    stencil_stride: Literal["one", "memory"] = "one"

    def post(self, model: ScalarModel) -> None:
        for operand, dimensions in model.elements.items():
            for dimension in range(len(dimensions)):
                for choice in index_digits(model, operand, dimension):
                    if not self._free(model.problem, operand, dimension, choice.index):
                        model.builder.bound(np.array([choice.stride]), 0, 1)

    def holds(self, problem: EmbeddingProblem, node_map: NodeMap) -> bool:
        for operand, image in node_map.elements.items():
            for index in range(image.ndim - 1):
                line: list[int | slice] = [0] * (image.ndim - 1)
                line[index] = slice(None)
                for dimension, profile in enumerate(image[(slice(None), *line)]):
                    # By lines alone: dense is defined for images that are no boxes as well.
                    digit = profile_digit(profile - profile[0])
                    if digit is None:
                        return False
                    if digit[2] > 1 and not self._free(problem, operand, dimension, index):
                        return False
        return True

    def allows(self, problem: EmbeddingProblem, option: DigitOption) -> bool:
        # What a tile of a fused axis moves along is seen on nodes: such solutions are judged.
        return len(option.members) > 1 or all(
            step == 1
            or len(problem.window_groups[operand][option.instruction_axis]) > 1
            or (step > 0 and self._takes(problem, operand, dimension, option))
            or (step > 0 and self._continues(problem, operand, dimension, option))
            for operand, dimension, step in _steps(problem, option)
        )

    def post_digits(self, model: DigitModel) -> None:
        # A step above 1 must continue other digits of the instruction axis in the same dimension.
        # Whether these make one digit together is judged on nodes, as windows are.
        problem = model.problem
        for option in (o for o in model.options if len(o.members) == 1):
            for operand, dimension, step in _steps(problem, option):
                window = len(problem.window_groups[operand][option.instruction_axis]) > 1
                if step == 1 or window or self._takes(problem, operand, dimension, option):
                    continue
                along = self._neighbours(problem, operand, dimension, option)
                inner = [
                    inner_option
                    for inner_option in model.options
                    if inner_option.instruction_axis == option.instruction_axis
                    and inner_option.weight < option.weight
                    and along & set(inner_option.members)
                ]
                model.requires_other(option, inner)

    def _continues(
        self, problem: EmbeddingProblem, operand: str, dimension: int, option: DigitOption
    ) -> bool:
        """Return True if a digit may continue another one of its instruction axis."""
        return option.weight > 1 and bool(self._neighbours(problem, operand, dimension, option))

    def _neighbours(
        self, problem: EmbeddingProblem, operand: str, dimension: int, option: DigitOption
    ) -> set[str]:
        """Return the axes that move a dimension and can feed a digit's instruction axis."""
        index = problem.workload_indices[operand][dimension]
        neighbours = set(index.iterators) - set(option.members)
        return {axis for axis in neighbours if can_feed(problem, option.instruction_axis, axis)}

    @property
    def needs_boxes(self) -> bool:
        return True

    def words(self) -> str:
        return "dense: no operand is read or written with a stride"

    def _takes(
        self, problem: EmbeddingProblem, operand: str, dimension: int, option: DigitOption
    ) -> bool:
        """Return True if a digit may move a dimension in any steps."""
        return any(
            option.instruction_axis in axes and self._free(problem, operand, dimension, index)
            for index, axes in enumerate(problem.index_axes[operand])
        )

    def _free(self, problem: EmbeddingProblem, operand: str, dimension: int, index: int) -> bool:
        """Return True if an index of the instruction operand takes any stride in a dimension."""
        if self.stencil_stride == "one":
            return False
        # A dimension that one iterator walks could be laid out without gaps: it must be.
        several = len(problem.workload_indices[operand][dimension].iterators) > 1
        memory, extents = problem.instruction.memory[operand], problem.instruction.extents
        return several and all(
            extents[axis] == 1 or memory.stride_rule(axis) is StrideRule.ANY
            for axis in problem.index_axes[operand][index]
        )


def _steps(problem: EmbeddingProblem, option: DigitOption) -> Iterator[tuple[str, int, int]]:
    """Yield the dimensions that a digit moves, each with its step along the operand's index."""
    instruction_axis = option.instruction_axis
    for operand, dimension, step in moved_dimensions(problem, option):
        yield operand, dimension, along_index(problem, operand, instruction_axis, step)
