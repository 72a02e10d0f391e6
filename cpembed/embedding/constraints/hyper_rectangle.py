"""``hyper_rectangle``: all images are regular boxes (Rieber et al. 2021, section 4.2.2)."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from cpembed.embedding.constraints.base import (
    Constraint,
    along_index,
    displacements,
    moved_dimensions,
)
from cpembed.embedding.digit_model import DigitModel, DigitOption
from cpembed.embedding.model_writer import Ids
from cpembed.embedding.node_map import NodeMap, operand_boxes, operation_box
from cpembed.embedding.problem import EmbeddingProblem
from cpembed.embedding.scalar_model import DigitChoice, ScalarModel


@dataclass(frozen=True)
class HyperRectangle(Constraint):
    """Elements of each operand, and the operations, form axis-parallel boxes.

    In their operand's own index order, elements form a box with one stride per dimension, in any
    rotation, each dimension used at most once; so do the operations in the iteration domain. The
    latter rules out diagonals, where one instruction axis moves along two workload axes at a
    time: each operand of ``O[q] += I[q+s] * W[s]`` is a box under ``q = s = x``, but the loops
    that translate it are not loops over axes.

    ``images = "operations"`` asks the box of the operations only: an operand may then be read with
    overlaps (a stencil that layout has to unroll).
    """

    name: ClassVar[str] = "hyper_rectangle"
    images: Literal["operands", "operations"] = "operands"

    def post(self, model: ScalarModel) -> None:
        problem = model.problem
        if self.images == "operations":
            self._post_operations(model, [axis.name for axis in problem.workload.axes])
            return
        for operand, dimensions in model.elements.items():
            names = problem.index_names[operand]
            shape = problem.instruction.computation.operand(operand).shape
            keys: list[tuple[str, int | str]] = [(operand, k) for k in range(len(dimensions))]
            _post_box(model, keys, dimensions, names, shape)
        # An axis that no operand indexes alone has no box of its own; its coordinate must still
        # be a digit sequence so that the solution is a set of axis maps.
        unindexed = [
            a.name for a in problem.workload.axes if a.name not in problem.direct_dimension
        ]
        self._post_operations(model, unindexed)
        # A number system has each element once: `dataflow` and `all_different` post nothing more.
        model.injective = True

    def _post_operations(self, model: ScalarModel, axes: list[str]) -> None:
        """Post that the operations' images are a box; ``axes`` are those without an operand's."""
        names = tuple(axis.name for axis in model.problem.instruction.axes)
        box = tuple(axis.maximum for axis in model.problem.instruction.axes)
        for axis in axes:
            # Other workload axes feed the instruction axes as well: only all digits cover them.
            _post_box(model, [("", axis)], [model.points[axis]], names, box, cover=False)
        _post_iteration_box(model)
        model.boxed = True

    def holds(self, problem: EmbeddingProblem, node_map: NodeMap) -> bool:
        if operation_box(node_map) is None:
            return False
        return self.images == "operations" or operand_boxes(node_map) is not None

    def allows(self, problem: EmbeddingProblem, option: DigitOption) -> bool:
        if self.images == "operations":
            return True
        indexed = {o for o, axes in problem.operand_axes.items() if option.instruction_axis in axes}
        moved = list(moved_dimensions(problem, option))
        if {operand for operand, _, _ in moved} != indexed:
            return False
        # Each operand is moved forwards in one dimension. What a tile of a fused axis, or a window,
        # moves along is seen on nodes.
        instruction_axis, groups = option.instruction_axis, problem.window_groups
        return len(option.members) > 1 or (
            len(moved) == len(indexed)
            and all(
                len(groups[operand][instruction_axis]) > 1
                or along_index(problem, operand, instruction_axis, step) > 0
                for operand, _, step in moved
            )
        )

    def post_digits(self, model: DigitModel) -> None:
        if self.images == "operations":
            return
        problem = model.problem
        movers: dict[tuple[str, int], dict[frozenset[str], dict[str, list[DigitOption]]]] = {}
        for option in model.options:
            for operand, dimension, _ in displacements(problem, option):
                group = problem.window_groups[operand][option.instruction_axis]
                groups = movers.setdefault((operand, dimension), {}).setdefault(group, {})
                # The digits of a fused axis and those of its members exclude each other anyway.
                groups.setdefault(option.digit.axis, []).append(option)
        # A dimension is moved along one index of the instruction's operand. Digits of one index may
        # be a single digit there together: such solutions are judged on nodes.
        for groups in movers.values():
            if all(len(by_axis) == 1 for by_axis in groups.values()):
                model.at_most_one(
                    [o for by_axis in groups.values() for o in next(iter(by_axis.values()))]
                )
                continue
            for first, second in itertools.combinations(groups.values(), 2):
                for left, right in itertools.product(first.values(), second.values()):
                    model.at_most_one([*left, *right])

    def words(self) -> str:
        images = "the operations" if self.images == "operations" else "each operand's elements"
        return f"hyper_rectangle: {images} form a regular box"


def index_digits(model: ScalarModel, operand: str, dimension: int) -> list[DigitChoice]:
    """Return the digits by which an operand's indices move along a dimension, posting missing ones.

    They are those of the operand's box, or one for each index where operands need not be boxes.

    Parameters
    ----------
    model : ScalarModel
        Model under construction.
    operand : str
        Instruction operand.
    dimension : int
        Dimension of the workload operand.
    """
    key = (operand, dimension)
    if key not in model.boxes:
        model.boxes[key] = []
        ids = model.elements[operand][dimension]
        for index, name in enumerate(model.problem.index_names[operand]):
            extents = {ids.shape[index]} if name is None else model.extent_literals[name].keys()
            choices = _choices(model, ids, index, max(extents), tuple(extents))
            _post_line(model, ids, index, choices)
            model.builder.at_most_one([choice.literal for choice in choices])
            model.boxes[key] += choices
    return model.boxes[key]


def _post_iteration_box(model: ScalarModel) -> None:
    """Post that the digits of each instruction axis over all workload axes number its extent."""
    choices: dict[str, list[DigitChoice]] = {name: [] for name in model.extent_literals}
    for axis in model.problem.workload.axes:
        for name, choice in model.axis_choices(axis.name):
            choices[name].append(choice)
    for name, extents in model.extent_literals.items():
        _post_number_system(model, extents, choices[name])


def _post_box(
    model: ScalarModel,
    keys: list[tuple[str, int | str]],
    dimensions: list[Ids],
    names: tuple[str | None, ...],
    shape: tuple[int, ...],
    *,
    cover: bool = True,
) -> None:
    """Post that coordinates are the sum over indices of digit sequences.

    With ``cover`` the digits of each index are a number system of its extent, so that no two
    elements coincide.
    """
    for key in keys:
        model.boxes[key] = []
    for index, name in enumerate(names):
        if name is None:
            # The size of a window, or of an index that is no axis, is no choice.
            fixed = model.builder.boolean()
            model.builder.bound(np.array([fixed]), 1, 1)
            extents = {shape[index]: fixed}
        else:
            extents = model.extent_literals[name]
        every: list[DigitChoice] = []
        for key, ids in zip(keys, dimensions, strict=True):
            choices = _choices(model, ids, index, max(extents), tuple(extents))
            model.boxes[key] += choices
            every += choices
            _post_line(model, ids, index, choices)
        if cover:
            _post_number_system(model, extents, every)
    for key, ids in zip(keys, dimensions, strict=True):
        model.builder.at_most_one([choice.literal for choice in model.boxes[key]])
        _post_separable(model, ids)


def _choices(
    model: ScalarModel, ids: Ids, index: int, extent: int, extents: tuple[int, ...]
) -> list[DigitChoice]:
    """Return digits that can be part of a number system of one of the extents."""
    choices: list[DigitChoice] = []
    low, high = model.builder.range_of(int(ids.flat[0]))
    for weight in range(1, extent + 1):
        for count in range(2, extent // weight + 1):
            # The last step of the smallest stride, 1, must lie in the domain.
            if count - 1 > high - low or not any(e % (weight * count) == 0 for e in extents):
                continue
            stride = int(model.builder.variables((1,), 0, (high - low) // (count - 1))[0])
            literal = model.builder.boolean()
            model.builder.active_iff_positive(literal, stride)
            choices.append(DigitChoice(index, weight, count, literal, stride))
    return choices


def _post_line(model: ScalarModel, ids: Ids, index: int, choices: list[DigitChoice]) -> None:
    """Post that a coordinate along one index is the first one plus the digits times strides."""
    line: list[int | slice] = [0] * ids.ndim
    line[index] = slice(None)
    along = ids[tuple(line)]
    for position in range(1, along.size):
        terms = [(1, along[position : position + 1]), (-1, along[:1])]
        for choice in choices:
            digit = (position // choice.weight) % choice.count
            if digit:
                terms.append((-digit, np.array([choice.stride])))
        model.builder.linear(terms, 0)


def _post_separable(model: ScalarModel, ids: Ids) -> None:
    """Post that a move along one index changes a coordinate equally wherever the others stand."""
    if ids.ndim < 2:
        return
    origin = ids[(0,) * ids.ndim]
    # Elements on the lines through the first one need no row: they define the moves.
    inner = np.nonzero(np.sum(np.indices(ids.shape) > 0, axis=0) >= 2)
    if not inner[0].size:
        return
    # x[i,j] = x[i,0] + x[0,j] - x[0,0], and likewise for more indices.
    terms = [
        (-1, ids[tuple(at * (position == index) for position, at in enumerate(inner))])
        for index in range(ids.ndim)
    ]
    model.builder.linear([(1, ids[inner]), *terms, (ids.ndim - 1, np.array([origin]))], 0)


def _post_number_system(
    model: ScalarModel, extents: dict[int, int], choices: list[DigitChoice]
) -> None:
    """Post that the digits form one path of weights from 1 to the extent."""
    flows: dict[int, list[tuple[int, Ids]]] = {weight: [] for weight in (1, *extents)}
    for choice in choices:
        flows.setdefault(choice.weight, []).append((1, np.array([choice.literal])))
    for choice in choices:
        end = choice.weight * choice.count
        flows.setdefault(end, []).append((-1, np.array([choice.literal])))
    for extent, literal in extents.items():
        flows[extent].append((1, np.array([literal])))
    # A digit is an edge from its weight to weight * count. Flow is conserved at each weight: a unit
    # enters at 1 and leaves at the chosen extent, so that the counts multiply to that extent.
    for weight in sorted(flows):
        terms = flows[weight]
        if weight == 1 and not terms:
            # No digit and no extent of 1: the axis cannot be fed at all.
            model.builder.exactly_one([])
        elif terms:
            model.builder.linear(terms, 1 if weight == 1 else 0)
