"""``linear_access``: no stencils among the mapped axes (Rieber et al. 2021, section 4.2.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from cpembed.embedding.constraints.base import Constraint, moved_dimensions, stencil_axes
from cpembed.embedding.digit_model import DigitModel, DigitOption
from cpembed.embedding.model import DigitChoice, ScalarModel
from cpembed.embedding.node_map import NodeMap, box_digits
from cpembed.embedding.problem import EmbeddingProblem
from cpembed.hw.instruction import StrideRule
from cpembed.ir.dtypes import size_bytes


@dataclass(frozen=True)
class LinearAccess(Constraint):
    """Only workload axes that reach each operand through a single iterator are mapped.

    ``stencil = "in_place"`` weakens it: a dimension that several iterators index may be walked by
    one instruction axis as a single digit where the instruction's memory side can read it without
    a copy: any axis that takes a row stride, or the innermost, contiguous one at stride 1 when no
    alignment is asked and every other axis of the tile takes a row stride.
    """

    name: ClassVar[str] = "linear_access"
    stencil: Literal["none", "in_place"] = "none"

    def post(self, model: ScalarModel) -> None:
        if self.stencil == "none":
            for axis in stencil_axes(model.problem):
                ids = model.points[axis]
                model.builder.equate(ids, ids[(0,) * ids.ndim].reshape((1,) * ids.ndim))
        for pair in model.problem.pairs:
            operand = pair.instruction.operand
            for dimension, index in enumerate(pair.workload.index):
                if len(index.iterators) < 2:
                    continue
                ids = model.elements[operand][dimension]
                if self.stencil == "none":
                    model.builder.equate(ids, ids[(0,) * ids.ndim].reshape((1,) * ids.ndim))
                    continue
                for choice in model.boxes.get((operand, dimension), []):
                    self._post_choice(model, operand, choice)

    def _post_choice(self, model: ScalarModel, operand: str, choice: DigitChoice) -> None:
        name = model.problem.index_names[operand][choice.index]
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
            model.builder.bound(np.array([choice.stride]), 0, largest)

    def holds(self, problem: EmbeddingProblem, node_map: NodeMap) -> bool:
        if self.stencil == "none":
            axes = [axis.name for axis in problem.workload.axes]
            stencils = stencil_axes(problem)
            moved = [a for a, image in zip(axes, node_map.points, strict=True) if np.ptp(image)]
            return not any(axis in stencils for axis in moved)
        return all(
            self._readable(problem, pair.instruction.operand, node_map) for pair in problem.pairs
        )

    def _readable(self, problem: EmbeddingProblem, operand: str, node_map: NodeMap) -> bool:
        indices = problem.workload_indices[operand]
        image = node_map.elements[operand]
        stencils = [d for d, index in enumerate(indices) if len(index.iterators) > 1]
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
            if len(problem.workload_indices[operand][dimension].iterators) > 1:
                largest = stride_in_place(problem, operand, option.lane)
                if option.weight != 1 or (largest is not None and step > largest):
                    return False
        return True

    def post_digits(self, model: DigitModel) -> None:
        """Whatever walks a stencil dimension is the only digit of its instruction axis."""
        if self.stencil == "none":
            return
        for option in model.options:
            if any(
                len(model.problem.workload_indices[operand][dimension].iterators) > 1
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
