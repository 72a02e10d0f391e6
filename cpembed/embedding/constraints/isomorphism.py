"""``dataflow`` and ``all_different``: the constraints that make a node map an embedding.

Together they are subgraph isomorphism between both dataflow graphs (Rieber et al. 2021, section
4.2.1): edges map to edges, and different operations to different ones.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from cpembed.embedding.constraints.base import (
    Constraint,
    can_feed,
    displacements,
    moved_dimensions,
)
from cpembed.embedding.digit_model import DigitModel, DigitOption
from cpembed.embedding.model_writer import Ids
from cpembed.embedding.node_map import Coordinates, NodeMap
from cpembed.embedding.problem import EmbeddingProblem
from cpembed.embedding.scalar_model import ScalarModel


@dataclass(frozen=True)
class Dataflow(Constraint):
    """Labels agree and every edge of the instruction's graph is an edge of the workload's.

    Labels were paired when the problem was made. Sequential edges are in every model (see
    :class:`~cpembed.embedding.scalar_model.ScalarModel`); spatial edges, pruned to a star around
    the first output, say that another output of the instruction is another output of the workload.
    ``commute`` also pairs the operands of commutative operations in the other order (a search per
    order; it changes which problems are posted, not what holds in one).
    """

    name: ClassVar[str] = "dataflow"
    commute: bool = False

    def post(self, model: ScalarModel) -> None:
        if model.injective:
            return
        for output in model.problem.outputs:
            dimensions = model.present_elements(output)
            if dimensions:
                tuples = np.stack([ids.ravel() for ids in dimensions], axis=1)
                for output_element in tuples[1:]:
                    model.builder.differ(tuples[0], output_element)
            elif model.problem.instruction.computation.operand(output).elements > 1:
                # All outputs of the instruction would be the workload's only one.
                model.builder.exactly_one([])

    def holds(self, problem: EmbeddingProblem, node_map: NodeMap) -> bool:
        point = {axis.name: node_map.points[i] for i, axis in enumerate(problem.workload.axes)}
        for pair in problem.pairs:
            elements = node_map.elements[pair.instruction.operand]
            accessed = problem.at_points(pair, elements, node_map.extents)
            for image, index in zip(accessed, pair.workload.index, strict=True):
                if np.any(image != index.evaluate(point)):
                    return False
        # Written again, not shared with `from_points`: a mistake there must not agree with itself.
        shapes = {name: image.shape[1:] for name, image in node_map.elements.items()}
        for (first, first_at), (second, second_at) in problem.shared_elements(shapes):
            first_image, second_image = node_map.elements[first], node_map.elements[second]
            if np.any(
                first_image[(slice(None), *first_at)] != second_image[(slice(None), *second_at)]
            ):
                return False
        return all(_first_differs(node_map.elements[output]) for output in problem.outputs)

    def allows(self, problem: EmbeddingProblem, option: DigitOption) -> bool:
        instruction_axis = option.instruction_axis
        moved = {operand for operand, _, _ in moved_dimensions(problem, option)}
        # An element that the instruction shares along an axis must be shared by the workload, and
        # another output of the instruction must be another one of the workload.
        return all(can_feed(problem, instruction_axis, axis) for axis in option.members) and all(
            output in moved
            for output in problem.outputs
            if instruction_axis in problem.operand_axes[output]
        )

    def post_digits(self, model: DigitModel) -> None:
        for operand, groups in model.problem.window_groups.items():
            for group in set(groups.values()):
                # A component has all axes of a window or none: the model of all axes couples them.
                if len(group) > 1 and group <= set(model.axes):
                    model.couple(group)
                    _post_window(model, operand, group)
        for axes in _overlapping_ports(model.problem):
            model.couple(axes)
        _couple_meeting(model, model.problem.outputs)

    def words(self) -> str:
        return "dataflow: every operation reads and writes what the workload's operation does"


def _post_window(model: DigitModel, operand: str, group: frozenset[str]) -> None:
    """Post that points which share an element of a window share it in the workload.

    Each row says that a point moves the workload's operand as far as the first point with the same
    element of the instruction's operand.
    """
    problem = model.problem
    axes = [axis for axis in problem.instruction.axes if axis.name in group]
    steps = np.indices([axis.maximum for axis in axes], dtype=np.int64).reshape(len(axes), -1)
    place = {axis.name: steps[n] for n, axis in enumerate(axes)}
    indices = problem.instruction.computation.access(operand).index
    elements = np.stack([i.evaluate(place) for i in indices if group & set(i.iterators)])
    _, first, owner = np.unique(elements, axis=1, return_index=True, return_inverse=True)
    first = first[owner.ravel()]
    columns: dict[int, list[tuple[int, NDArray[np.int64]]]] = {}
    for option, literal in model.options.items():
        if option.instruction_axis not in group:
            continue
        at = place[option.instruction_axis] // option.weight % option.digit.count
        for moved, dimension, distance in displacements(problem, option):
            if moved == operand:
                change = distance[at] - distance[at][first]
                columns.setdefault(dimension, []).append((literal, change))
    for changes in columns.values():
        # Many points repeat a row, and the first point of an element has a row of zeros.
        rows = np.unique(np.stack([change for _, change in changes], axis=1), axis=0)
        for row in rows[np.any(rows, axis=1)]:
            terms = zip(row.tolist(), (literal for literal, _ in changes), strict=True)
            model.builder.row([term for term in terms if term[0]], 0, 0)


def _overlapping_ports(problem: EmbeddingProblem) -> Iterator[frozenset[str]]:
    """Yield the instruction axes of each two ports that share elements."""
    shared = problem.shared_elements()
    for first, second in {(first, second) for (first, _), (second, _) in shared}:
        yield problem.operand_axes[first] | problem.operand_axes[second]


def _first_differs(output: np.ndarray) -> bool:
    """Return True if the first output's image is that of no other output."""
    flat = output.reshape(len(output), math.prod(output.shape[1:]))
    return not np.any(np.all(flat[:, 1:] == flat[:, :1], axis=0)) if flat.shape[1] > 1 else True


@dataclass(frozen=True)
class AllDifferent(Constraint):
    """Scalar operations, outputs included, map injectively.

    ``elements`` says what else differs: "all" elements of every operand, or those "along_axes",
    that is, along each single index of an instruction operand (a stencil's window may overlap with
    the next one, but a window has no element twice), or "none". The contracted reduction is an
    operation, so outputs always count.
    """

    name: ClassVar[str] = "all_different"
    elements: Literal["none", "along_axes", "all"] = "none"

    def post(self, model: ScalarModel) -> None:
        if model.injective:
            return
        if not model.boxed:
            self._post_tuples(model, model.present_points())
        outputs = model.problem.outputs
        for operand in model.elements:
            dimensions = model.present_elements(operand)
            if not dimensions and (operand in outputs or self.elements != "none"):
                self._post_one_element(model, operand)
            elif operand in outputs or self.elements == "all":
                self._post_tuples(model, dimensions)
            elif self.elements == "along_axes" and dimensions:
                for index in range(dimensions[0].ndim):
                    lines = [np.moveaxis(ids, index, -1) for ids in dimensions]
                    for line in np.ndindex(lines[0].shape[:-1]):
                        self._post_tuples(model, [ids[line] for ids in lines])

    def _post_one_element(self, model: ScalarModel, operand: str) -> None:
        """Make the instruction's operand one element, as the workload's is."""
        names = model.problem.index_names[operand]
        shape = model.problem.instruction.computation.operand(operand).shape
        for name, size in zip(names, shape, strict=True):
            if name is None and size > 1:
                # No literal decides this size: one of no literals is never true.
                model.builder.exactly_one([])
            for extent, literal in model.extent_literals.get(name or "", {}).items():
                if extent > 1:
                    model.forbid(literal)

    def _post_tuples(self, model: ScalarModel, dimensions: list[Ids]) -> None:
        if dimensions and dimensions[0].size > 1:
            tuples = np.stack([ids.ravel() for ids in dimensions], axis=1)
            model.builder.all_different(tuples)

    def holds(self, problem: EmbeddingProblem, node_map: NodeMap) -> bool:
        groups = [_as_one_line(node_map.points)]
        outputs = problem.outputs
        for operand, image in node_map.elements.items():
            if self.elements == "all" or operand in outputs:
                groups.append(_as_one_line(image))
            elif self.elements == "along_axes":
                groups += [np.moveaxis(image, index, -1) for index in range(1, image.ndim)]
        return all(_distinct(image) for image in groups)

    def allows(self, problem: EmbeddingProblem, option: DigitOption) -> bool:
        outputs = problem.outputs
        # A digit has at least two values, so that it must move every operand with such elements.
        indexed = {
            operand
            for operand, axes in problem.operand_axes.items()
            if option.instruction_axis in axes and (operand in outputs or self.elements != "none")
        }
        return indexed <= {operand for operand, _, _ in moved_dimensions(problem, option)}

    def post_digits(self, model: DigitModel) -> None:
        # Along one axis `allows` suffices; along several, the digits' sums have to differ.
        operands = model.problem.operand_axes if self.elements == "all" else model.problem.outputs
        _couple_meeting(model, operands)

    def words(self) -> str:
        return "all_different: no operation of the workload is computed twice in one instruction"


def _couple_meeting(model: DigitModel, operands: Collection[str]) -> None:
    """Decide digits together that meet in a dimension of an operand whose elements must differ."""
    movers: dict[tuple[str, int], dict[str, set[str]]] = {}
    for option in model.options:
        for operand, dimension, _ in moved_dimensions(model.problem, option):
            if operand in operands:
                feeding = movers.setdefault((operand, dimension), {})
                feeding.setdefault(option.digit.axis, set()).add(option.instruction_axis)
    for feeding in movers.values():
        # One workload axis feeds one digit at most, so that alone it meets nothing.
        if len(feeding) > 1:
            model.couple(set[str]().union(*feeding.values()))


def _as_one_line(images: Coordinates) -> Coordinates:
    """Return images of shape ``(dimensions, *nodes)`` with all nodes along one axis."""
    return images.reshape(len(images), math.prod(images.shape[1:]))


def _distinct(images: Coordinates) -> bool:
    """Return True if the images along the last axis are pairwise different, in every line.

    ``images`` has the shape ``(dimensions, *lines, nodes)``.
    """
    nodes = images.shape[-1]
    if nodes <= 1:
        return True
    if not len(images):
        # An operand without dimensions: all nodes have its only element as their image.
        return False
    # One number for each image, different for different ones.
    flat = images.reshape(len(images), -1)
    lows, highs = flat.min(axis=1).tolist(), flat.max(axis=1).tolist()
    codes = np.zeros(images.shape[1:], np.int64)
    codes_end = 1
    for coordinates, low, high in zip(images, lows, highs, strict=True):
        size = high - low + 1
        codes_end *= size
        if codes_end >= 2**62:
            # The numbers would overflow 64 bits: rows are compared as they are, far more slowly.
            lines = np.moveaxis(images, 0, -1).reshape(-1, nodes, len(images))
            return all(len(np.unique(line, axis=0)) == nodes for line in lines)
        if size > 1:
            codes = codes * size + (coordinates - low)
    codes.sort(axis=-1)
    return bool((codes[..., 1:] != codes[..., :-1]).all())
