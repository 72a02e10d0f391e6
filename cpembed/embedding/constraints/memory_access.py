"""``dense`` and ``linear_access``: accesses that the instruction's memory side can make.

They exclude strides and sliding windows (Rieber et al. 2021, section 4.2.3), or admit those that
the memory side reads in place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from cpembed.embedding.constraints.base import (
    Constraint,
    along_index,
    can_feed,
    moved_dimensions,
    slides,
    stencil_axes,
    walker,
)
from cpembed.embedding.constraints.hyper_rectangle import index_digits
from cpembed.embedding.digit_model import DigitModel, DigitOption
from cpembed.embedding.embedding import Embedding
from cpembed.embedding.flatten import Groups, members_of
from cpembed.embedding.node_map import NodeMap, decode, profile_digit
from cpembed.embedding.problem import EmbeddingProblem
from cpembed.embedding.scalar_model import DigitChoice, ScalarModel
from cpembed.hw.instruction import StrideRule
from cpembed.ir.dtypes import size_bytes
from cpembed.ir.index import IndexExpr


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
            for operand, dimension, step in _index_steps(problem, option)
        )

    def post_digits(self, model: DigitModel) -> None:
        # A step above 1 must continue other digits of the instruction axis in the same dimension.
        # Whether these make one digit together is judged on nodes, as windows are.
        problem = model.problem
        for option in (o for o in model.options if len(o.members) == 1):
            for operand, dimension, step in _index_steps(problem, option):
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


def _index_steps(problem: EmbeddingProblem, option: DigitOption) -> Iterator[tuple[str, int, int]]:
    """Yield the dimensions that a digit moves, each with its step along the operand's index."""
    instruction_axis = option.instruction_axis
    for operand, dimension, step in moved_dimensions(problem, option):
        yield operand, dimension, along_index(problem, operand, instruction_axis, step)


@dataclass(frozen=True)
class LinearAccess(Constraint):
    """Only workload axes that walk each index of the operands alone are mapped.

    An axis of one step beside them makes no window
    (:func:`~cpembed.embedding.constraints.base.walker`).

    ``stencil = "in_place"`` weakens it: an axis that walks an index beside others may be mapped
    where the instruction's memory side reads the window as it lies. Each digit that moves the index
    is then all of its instruction axis, and a step of it in the operand is one that this axis can
    take: any, of an axis that takes a row stride, or 1 element, of the innermost, contiguous axis
    where no alignment is asked and every other axis of the tile takes a row stride. An instruction
    with a window of its own moves an index by several digits, one for each of its axes. A fused
    axis with such a member is not mapped.
    """

    name: ClassVar[str] = "linear_access"
    stencil: Literal["none", "in_place"] = "none"

    def post(self, model: ScalarModel) -> None:
        problem = model.problem
        if self.stencil == "none":
            for axis in stencil_axes(problem):
                # All operations have the first one's coordinate: the axis stays an outer loop.
                ids = model.points[axis]
                model.builder.equate(ids, ids[(0,) * ids.ndim].reshape((1,) * ids.ndim))
            return
        for operand, indices in problem.workload_indices.items():
            for index in indices:
                walking = walker(problem, index)
                sliding = [axis for axis in index.iterators if axis != walking]
                choices = {axis: model.axis_choices(axis) for axis in index.iterators}
                for axis in sliding:
                    for instruction_axis, choice in choices[axis]:
                        self._post_choice(model, operand, index, axis, instruction_axis, choice)
                for axis in sliding if walking else ():
                    # The walker makes a window where an axis of one step is padded beside it.
                    partners = [choice.literal for _, choice in choices[axis]]
                    for instruction_axis, choice in choices[walking or ""] if partners else ():
                        self._post_choice(
                            model, operand, index, walking or "", instruction_axis, choice, partners
                        )

    def _post_choice(
        self,
        model: ScalarModel,
        operand: str,
        index: IndexExpr,
        axis: str,
        instruction_axis: str,
        choice: DigitChoice,
        partners: Sequence[int] = (),
    ) -> None:
        """Post that the digit, if chosen, reads a window in place.

        With ``partners``, digits of one axis, only where one of these is chosen as well.
        """
        builder = model.builder
        largest = stride_in_place(model.problem, operand, instruction_axis)
        end = model.extent_literals[instruction_axis].get(choice.count)
        terms = [(1, np.array([literal])) for literal in (choice.literal, *partners)]
        if end is None or choice.weight != 1 or largest == 0:
            # Never in place: not chosen, or not together with any partner.
            builder.linear(terms, 0, 1 if partners else 0)
            return
        # Chosen only where the instruction axis ends after it: the digit is all of that axis.
        builder.linear([*terms, (-1, np.array([end]))], -1, 1 if partners else 0)
        if largest is None:
            return
        allowed = [range(max(largest // index.coefficient(axis), 0) + 1)]
        if not partners:
            builder.restrict(choice.stride, allowed)
            return
        # `free` is true where no partner is chosen; then any stride will do.
        free = builder.boolean()
        builder.exactly_one([free, *partners])
        builder.restrict_unless(free, choice.stride, allowed)

    def holds(self, problem: EmbeddingProblem, node_map: NodeMap) -> bool:
        base, groups = problem.unfused or problem, problem.groups
        axes = [axis.name for axis in problem.workload.axes]
        mapped = [a for a, image in zip(axes, node_map.points, strict=True) if np.ptp(image)]
        # Windows are those of the original axes: a fused one moves all of its members.
        moved = {member for axis in mapped for member in members_of(groups, axis)}
        if self.stencil == "none":
            return moved.isdisjoint(stencil_axes(base))
        embedding = decode(problem, node_map)
        return embedding is not None and all(
            _read_in_place(base, embedding, groups, operand, index)
            for operand, indices in base.workload_indices.items()
            for index in indices
            if slides(base, index, moved)
        )

    def allows(self, problem: EmbeddingProblem, option: DigitOption) -> bool:
        if self.stencil == "none":
            return not set(option.members) & set(stencil_axes(problem))
        return all(
            self._fits(problem, option, operand, step)
            for operand, dimension, step in moved_dimensions(problem, option)
            if slides(problem, problem.workload_indices[operand][dimension], option.members)
        )

    def _fits(
        self, problem: EmbeddingProblem, option: DigitOption, operand: str, step: int
    ) -> bool:
        """Return True if a digit reads a window in place as all of its instruction axis."""
        only_digit = len(option.members) == 1 and option.weight == 1
        return only_digit and _can_walk(problem, operand, option.instruction_axis, step)

    def post_digits(self, model: DigitModel) -> None:
        """Require that a digit which moves a window is the only one of its instruction axis."""
        if self.stencil == "none":
            return
        problem = model.problem
        windows: dict[tuple[str, int, str], list[DigitOption]] = {}
        for option in model.options:
            for operand, dimension, _ in moved_dimensions(problem, option):
                index = problem.workload_indices[operand][dimension]
                if slides(problem, index, option.members):
                    model.requires_extent(option, option.digit.count)
                    for member in {*option.members} & {*index.iterators}:
                        windows.setdefault((operand, dimension, member), []).append(option)
        for (operand, dimension, _), partners in windows.items():
            walking = walker(problem, problem.workload_indices[operand][dimension])
            # The walker makes a window where an axis of one step is padded beside it.
            for option in (o for o in model.options if walking in o.members):
                for moved, place, step in moved_dimensions(problem, option):
                    if (moved, place) == (operand, dimension):
                        if self._fits(problem, option, operand, step):
                            model.requires_extent(option, option.digit.count, partners)
                        else:
                            model.at_most_one([option, *partners])

    @property
    def needs_boxes(self) -> bool:
        return self.stencil != "none"

    def words(self) -> str:
        if self.stencil == "none":
            return "linear_access: no axis of a sliding window is mapped"
        return "linear_access: a sliding window is mapped only where it can be read in place"


def _read_in_place(
    problem: EmbeddingProblem,
    embedding: Embedding,
    groups: Groups,
    operand: str,
    index: IndexExpr,
) -> bool:
    """Return True if every digit that moves a window is all of its axis, in steps it can take."""
    for instruction_axis, digits in embedding.digits.items():
        for digit in digits:
            members = members_of(groups, digit.axis)
            if set(members).isdisjoint(index.iterators):
                continue
            step = digit.stride * index.coefficient(digit.axis)
            if (
                len(digits) > 1
                or len(members) > 1
                or not _can_walk(problem, operand, instruction_axis, step)
            ):
                return False
    return True


def _can_walk(problem: EmbeddingProblem, operand: str, axis: str, step: int) -> bool:
    """Return True if an instruction axis can walk a window in such steps."""
    largest = stride_in_place(problem, operand, axis)
    return largest is None or 0 < step <= largest


def stride_in_place(problem: EmbeddingProblem, operand: str, name: str) -> int | None:
    """Return the largest stride at which an instruction axis can walk a window without a copy.

    Parameters
    ----------
    problem : EmbeddingProblem
        Problem with the instruction's memory side.
    operand : str
        Instruction operand that reads the window.
    name : str
        Instruction axis.

    Returns
    -------
    int or None
        Stride in elements. None for any: the axis takes a row stride. 1 for the contiguous axis of
        an unaligned tile whose other axes take row strides, 0 for all others.
    """
    memory = problem.instruction.memory[operand]
    if memory.stride_rule(name) is StrideRule.ANY:
        return None
    dtype = problem.instruction.computation.operand(operand).dtype
    extents = problem.instruction.extents
    return int(memory.reads_contiguously(name, size_bytes(dtype), extents))
