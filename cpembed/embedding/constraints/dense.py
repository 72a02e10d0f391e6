"""``dense``: stride 1 on every dimension of every operand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from cpembed.embedding.constraints.base import Constraint, moved_dimensions
from cpembed.embedding.digit_model import DigitOption
from cpembed.embedding.model import ScalarModel
from cpembed.embedding.node_map import NodeMap, operand_boxes
from cpembed.embedding.problem import EmbeddingProblem
from cpembed.hw.instruction import StrideRule


@dataclass(frozen=True)
class Dense(Constraint):
    """Images have no gaps.

    ``stencil_stride = "memory"`` also allows a stride in a dimension that several iterators index
    (an image row under a strided convolution) where the instruction's memory side takes any
    stride along the instruction axis that walks it.
    """

    name: ClassVar[str] = "dense"
    stencil_stride: Literal["one", "memory"] = "one"

    def post(self, model: ScalarModel) -> None:
        for (operand, dimension), choices in model.boxes.items():
            if not operand:
                continue
            for choice in choices:
                free = isinstance(dimension, int) and self._free(
                    model.problem, operand, dimension, choice.index
                )
                if not free:
                    model.builder.bound(np.array([choice.stride]), 0, 1)

    def holds(self, problem: EmbeddingProblem, node_map: NodeMap) -> bool:
        boxes = operand_boxes(node_map)
        if boxes is None:
            return all(_has_no_gap(image) for image in node_map.elements.values())
        return all(
            digit.stride == 1 or self._free(problem, operand, digit.dimension, digit.index)
            for operand, digits in boxes.items()
            for digit in digits
        )

    def allows(self, problem: EmbeddingProblem, option: DigitOption) -> bool:
        ours, names = option.instruction_axis, problem.index_names
        return all(
            step == 1 or self._free(problem, operand, dimension, names[operand].index(ours))
            for operand, dimension, step in moved_dimensions(problem, option)
        )

    @property
    def needs_boxes(self) -> bool:
        return True

    def words(self) -> str:
        return "dense: no operand is read or written with a stride"

    def _free(self, problem: EmbeddingProblem, operand: str, dimension: int, index: int) -> bool:
        if self.stencil_stride == "one":
            return False
        name = problem.index_names[operand][index]
        several = len(problem.workload_indices[operand][dimension].iterators) > 1
        memory = problem.instruction.memory[operand]
        return several and name is not None and memory.stride_rule(name) is StrideRule.ANY


def _has_no_gap(image: np.ndarray) -> bool:
    return all(
        len(np.unique(coordinates)) == coordinates.max() - coordinates.min() + 1
        for coordinates in image
    )
