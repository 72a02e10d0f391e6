"""The scalar constraint model: one variable tuple per node of the instruction's graph.

The sequential edges of the dataflow (Rieber et al. 2021, section 4.2.1) are posted here for every
problem; constraints post themselves through the same object (``cpembed/embedding/constraints``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cpembed.embedding.model_builder import ModelBuilder
from cpembed.embedding.model_writer import CompiledModel, Ids
from cpembed.embedding.node_map import NodeMap
from cpembed.embedding.problem import EmbeddingProblem


@dataclass(frozen=True)
class DigitChoice:
    """A possible digit of a box, which ``index`` of an operand may have along a dimension.

    ``literal`` is true if it has, ``stride`` is the variable of its stride, 0 if it has not.
    """

    index: int
    weight: int
    count: int
    literal: int
    stride: int


@dataclass
class ScalarModel:
    """Variables of the embedding problem, and state that constraints share while they post.

    Attributes
    ----------
    padded : Mapping
        Largest extent that each workload axis may be given, padding included.
    points : dict
        For each workload axis an array of the instruction box's shape: the coordinate of every
        scalar operation.
    elements : dict
        For each instruction operand an array of its shape for each dimension of the workload's.
    boxes : dict
        Digit choices of each (operand, dimension) once ``hyper_rectangle`` has posted; an axis that
        no operand indexes alone has the key ``("", axis)``.
    extent_literals : dict
        For each instruction axis a literal per extent at which it may be used.
    """

    problem: EmbeddingProblem
    padded: Mapping[str, int]
    dense_strides: bool = False
    separable: bool = False
    """True if every coordinate will be posted as a sum of one function per instruction axis.

    Boxes are, where the instruction walks its operands by single axes.
    """
    configuration: Mapping[str, int] | None = None
    """Extents of the instruction axes when they are decided beforehand."""
    builder: ModelBuilder = field(default_factory=ModelBuilder)
    points: dict[str, Ids] = field(default_factory=dict[str, Ids])
    elements: dict[str, list[Ids]] = field(default_factory=dict[str, list[Ids]])
    boxes: dict[tuple[str, int | str], list[DigitChoice]] = field(
        default_factory=dict[tuple[str, "int | str"], list[DigitChoice]]
    )
    extent_literals: dict[str, dict[int, int]] = field(default_factory=dict[str, dict[int, int]])
    axis_order: Sequence[str] | None = None
    """Workload axes in the order of their assignment, which may be set until the model is built.

    What comes last varies first. By default it is the workload's order.
    """
    injective: bool = False
    """True if posted constraints make the operations, and each operand's elements, differ."""
    boxed: bool = False
    """True if posted constraints make the operations pairwise different."""

    def __post_init__(self) -> None:
        instruction, workload = self.problem.instruction, self.problem.workload
        for axis in workload.axes:
            high = self.padded[axis.name] - 1
            self.points[axis.name] = self.builder.variables(self._box, 0, high)
        for pair in self.problem.pairs:
            name = pair.instruction.operand
            shape = instruction.computation.operand(name).shape
            self.elements[name] = [
                self.builder.variables(shape, *index.bounds(self.padded))
                for index in pair.workload.index
            ]
        for axis in instruction.axes:
            literals = {extent: self.builder.boolean() for extent in axis.allowed}
            self.builder.exactly_one(list(literals.values()))
            self.extent_literals[axis.name] = literals
            if self.configuration is not None:
                chosen_extent = self.configuration[axis.name]
                self.builder.bound(np.array([literals[chosen_extent]]), 1, 1)
        self._dataflow()
        self._shared_elements()

    def _dataflow(self) -> None:
        """Post that an operation accesses the element that the access map names."""
        for pair in self.problem.pairs:
            where = self.problem.element_index(pair)
            elements = self.elements[pair.instruction.operand]
            for ids, index in zip(elements, pair.workload.index, strict=True):
                accessed = np.broadcast_to(ids[where], self._box)
                axis = index.single_iterator
                if axis is not None:
                    # Equal variables are merged, so that most edges cost no row at all.
                    self.builder.equate(accessed, self.points[axis])
                    continue
                # An affine relation between sums of one function per axis holds everywhere once it
                # holds along each axis.
                posted = self._axis_lines() if self.separable else np.ones(self._box, np.bool_)
                terms = [(-t.coefficient, self.points[t.iterator][posted]) for t in index.terms]
                self.builder.linear([(1, accessed[posted]), *terms], index.constant)

    def _shared_elements(self) -> None:
        """Post that an element of the instruction which two of its ports reach has one image."""
        for (first, first_at), (second, second_at) in self.problem.shared_elements():
            for first_ids, second_ids in zip(
                self.elements[first], self.elements[second], strict=True
            ):
                self.builder.equate(
                    first_ids[first_at].reshape(1), second_ids[second_at].reshape(1)
                )

    @property
    def _box(self) -> tuple[int, ...]:
        return tuple(axis.maximum for axis in self.problem.instruction.axes)

    def _axis_lines(self) -> NDArray[np.bool_]:
        """Return the points of the instruction's box with at most one coordinate above 0."""
        return np.sum(np.indices(self._box) > 0, axis=0) <= 1

    def axis_choices(self, axis: str) -> list[tuple[str, DigitChoice]]:
        """Return the digit choices of a workload axis as (instruction axis, choice)."""
        direct = self.problem.direct_dimension.get(axis)
        if direct is None or ("", axis) in self.boxes:
            names = tuple(a.name for a in self.problem.instruction.axes)
            return [(names[c.index], c) for c in self.boxes.get(("", axis), [])]
        operand, _ = direct
        names = self.problem.index_names[operand]
        choices: list[tuple[str, DigitChoice]] = []
        for choice in self.boxes.get(direct, []):
            name = names[choice.index]
            if name is not None:
                choices.append((name, choice))
        return choices

    def present_points(self) -> list[Ids]:
        """Return the coordinates of the operations, without those beyond a configured extent."""
        cut = self._cut([axis.name for axis in self.problem.instruction.axes])
        return [ids[cut] for ids in self.points.values()]

    def present_elements(self, operand: str) -> list[Ids]:
        """Return the coordinates of an operand's elements within the configured extents."""
        cut = self._cut(self.problem.index_names[operand])
        return [ids[cut] for ids in self.elements[operand]]

    def _cut(self, names: Sequence[str | None]) -> tuple[slice, ...]:
        extents = self.configuration or {}
        return tuple(slice(0, None if n is None else extents.get(n)) for n in names)

    def forbid(self, literal: int) -> None:
        """Make a literal false."""
        self.builder.bound(np.array([literal]), 0, 0)

    def node_map(self, values: Ids) -> NodeMap:
        """Return the node map of a solution; configurable axes are cut to the chosen extent."""
        instruction = self.problem.instruction
        extents = {
            axis: next(e for e, literal in literals.items() if values[literal])
            for axis, literals in self.extent_literals.items()
        }
        cut = tuple(slice(0, extents[axis.name]) for axis in instruction.axes)
        shape = tuple(extents[axis.name] for axis in instruction.axes)
        # What lies beyond the chosen extents repeats other nodes.
        coordinates = [values[ids[cut]] for ids in self.points.values()]
        points = np.array(coordinates, np.int64).reshape(len(coordinates), *shape)
        elements: dict[str, Ids] = {}
        for pair in self.problem.pairs:
            operand = pair.instruction.operand
            names = self.problem.index_names[operand]
            cut = tuple(slice(0, extents[n]) if n is not None else slice(None) for n in names)
            dimensions = [values[ids[cut]] for ids in self.elements[operand]]
            shape = tuple(
                extents[n] if n is not None else size
                for n, size in zip(
                    names, instruction.computation.operand(operand).shape, strict=True
                )
            )
            elements[operand] = (
                np.stack(dimensions) if dimensions else np.zeros((0, *shape), np.int64)
            )
        return NodeMap(extents, points, elements)

    def _decisions(self) -> Iterator[Ids]:
        """Yield variables in the order of their assignment: outputs, operations, inputs."""
        axes = list(self.points) if self.axis_order is None else list(self.axis_order)
        ranks = {axis: rank for rank, axis in enumerate(axes)}
        outputs = self.problem.outputs

        def dimensions(operand: str) -> list[Ids]:
            if self.axis_order is None:
                return self.elements[operand]
            # A dimension that several axes reach is known once the last of them is.
            indices = self.problem.workload_indices[operand]
            last = [max((ranks[a] for a in index.iterators), default=0) for index in indices]
            order = sorted(range(len(indices)), key=last.__getitem__)
            return [self.elements[operand][dimension] for dimension in order]

        for operand in outputs:
            yield from dimensions(operand)
        yield from (self.points[axis] for axis in axes)
        for operand in self.elements:
            if operand not in outputs:
                yield from dimensions(operand)

    def build(self) -> CompiledModel:
        """Compile the model with its decision order."""
        for ids in self._decisions():
            self.builder.decide(ids)
        return self.builder.build()
