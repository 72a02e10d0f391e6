"""``linear_access``: no stencils among the mapped axes (Rieber et al. 2021, section 4.2.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from cpembed.embedding.constraints.base import (
    Constraint,
    moved_dimensions,
    slides,
    stencil_axes,
    walker,
)
from cpembed.embedding.digit_model import DigitModel, DigitOption
from cpembed.embedding.model import DigitChoice, ScalarModel
from cpembed.embedding.node_map import NodeMap, box_digits
from cpembed.embedding.problem import EmbeddingProblem
from cpembed.embedding.proto_writer import Ids
from cpembed.hw.instruction import StrideRule
from cpembed.ir.dtypes import size_bytes


@dataclass(frozen=True)
class LinearAccess(Constraint):
    """Only workload axes that walk each index of the operands alone are mapped
    (:func:`~cpembed.embedding.constraints.base.walker`): an axis of one step beside them makes no
    window.

    ``stencil = "in_place"`` weakens it: a dimension that several iterators index may be walked by
    one instruction axis as a single digit where the instruction's memory side can read it without
    a copy: any axis that takes a row stride, or the innermost, contiguous one at stride 1 when no
    alignment is asked and every other axis of the tile takes a row stride.
    """

    name: ClassVar[str] = "linear_access"
    stencil: Literal["none", "in_place"] = "none"

    def post(self, model: ScalarModel) -> None:
        problem = model.problem
        if self.stencil == "none":
            for axis in stencil_axes(problem):
                _stand_still(model, model.points[axis])
        for pair in problem.pairs:
            operand = pair.instruction.operand
            for dimension, index in enumerate(pair.workload.index):
                alone = walker(problem, index)
                if self.stencil == "in_place":
                    # A box moves along a dimension once: by what the walker does or the others do.
                    for axis in (name for name in index.iterators if alone and name != alone):
                        for ours, choice in model.axis_choices(axis):
                            step = abs(index.coefficient(axis))
                            self._post_choice(model, operand, ours, choice, step)
                if alone is not None or len(index.iterators) < 2:
                    continue
                if self.stencil == "none":
                    _stand_still(model, model.elements[operand][dimension])
                for choice in model.boxes.get((operand, dimension), []):
                    name = problem.index_names[operand][choice.index]
                    if self.stencil == "in_place":
                        self._post_choice(model, operand, name, choice)

    def _post_choice(
        self,
        model: ScalarModel,
        operand: str,
        name: str | None,
        choice: DigitChoice,
        step: int = 1,
    ) -> None:
        """The digit, if chosen, walks a window in place; ``step`` is what one of its steps is
        there."""
        largest = stride_in_place(model.problem, operand, name)
        if name is None or choice.weight != 1 or largest == 0:
            model.forbid(choice.literal)
            return
        end = model.extent_literals[name].get(choice.count)
        if end is None:
            model.forbid(choice.literal)
            return
        model.builder.linear([(1, np.array([choice.literal])), (-1, np.array([end]))], -1, 0)
        if largest is not None:
            model.builder.bound(np.array([choice.stride]), 0, largest // step)

    def holds(self, problem: EmbeddingProblem, node_map: NodeMap) -> bool:
        if self.stencil == "none":
            return not set(_moved(problem, node_map)) & set(stencil_axes(problem))
        return all(
            self._readable(problem, pair.instruction.operand, node_map) for pair in problem.pairs
        )

    def _readable(self, problem: EmbeddingProblem, operand: str, node_map: NodeMap) -> bool:
        indices = problem.workload_indices[operand]
        image = node_map.elements[operand]
        moved = _moved(problem, node_map)
        stencils = [d for d, index in enumerate(indices) if slides(problem, index, moved)]
        if not any(np.ptp(image[dimension]) for dimension in stencils):
            return True
        digits = box_digits(image)
        if digits is None:
            return False
        for digit in digits:
            if digit.dimension not in stencils:
                continue
            name = problem.index_names[operand][digit.index]
            largest = stride_in_place(problem, operand, name)
            if name is None or digit.count != node_map.extents[name]:
                return False
            if largest is not None and digit.stride > largest:
                return False
        return True

    def allows(self, problem: EmbeddingProblem, option: DigitOption) -> bool:
        if self.stencil == "none":
            return not set(option.members) & set(stencil_axes(problem))
        for operand, dimension, step in moved_dimensions(problem, option):
            if slides(problem, problem.workload_indices[operand][dimension], option.members):
                largest = stride_in_place(problem, operand, option.instruction_axis)
                if option.weight != 1 or (largest is not None and step > largest):
                    return False
        return True

    def post_digits(self, model: DigitModel) -> None:
        """What moves a dimension as a window is the only digit of its instruction axis."""
        if self.stencil == "none":
            return
        for option in model.options:
            if any(
                slides(
                    model.problem,
                    model.problem.workload_indices[operand][dimension],
                    option.members,
                )
                for operand, dimension, _ in moved_dimensions(model.problem, option)
            ):
                model.requires_extent(option, option.digit.count)

    @property
    def needs_boxes(self) -> bool:
        return self.stencil != "none"

    def words(self) -> str:
        if self.stencil == "none":
            return "linear_access: no axis of a sliding window is mapped"
        return "linear_access: a sliding window is mapped only where it can be read in place"


def _stand_still(model: ScalarModel, ids: Ids) -> None:
    model.builder.equate(ids, ids[(0,) * ids.ndim].reshape((1,) * ids.ndim))


def _moved(problem: EmbeddingProblem, node_map: NodeMap) -> list[str]:
    """Workload axes that the tile moves along."""
    axes = [axis.name for axis in problem.workload.axes]
    return [axis for axis, image in zip(axes, node_map.points, strict=True) if np.ptp(image)]


def stride_in_place(problem: EmbeddingProblem, operand: str, name: str | None) -> int | None:
    """Largest stride at which an instruction axis can walk a stencil dimension without a copy.

    None for any stride, 0 when it cannot: the axis must take a row stride, or be the contiguous
    one of an unaligned tile whose other axes take row strides.
    """
    if name is None:
        return 0
    memory = problem.instruction.memory[operand]
    if memory.stride_rule(name) is StrideRule.ANY:
        return None
    dtype = problem.instruction.computation.operand(operand).dtype
    extents = problem.instruction.extents
    return int(memory.reads_contiguously(name, size_bytes(dtype), extents))
