"""Rows and lanes in which an instruction finds the dimensions of a tensor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from cpembed.accelerator.problem import PlanningError, Step
from cpembed.ir.index import IndexExpr


class Walk(NamedTuple):
    """Dimension of a tensor that a digit of an instruction's axis walks, over ``size`` points."""

    dimension: int
    distance: int
    size: int


class OperandRows:
    """Rows and lanes of an operand of a statement's instruction.

    Parameters
    ----------
    step : Step
        Statement with its instruction.
    operand : str
        Operand of the instruction.
    """

    def __init__(self, step: Step, operand: str) -> None:
        self.step = step
        self.operand = operand
        self.instruction = step.instruction
        self.place = step.instruction.places[operand]

    @cached_property
    def index(self) -> dict[str, IndexExpr]:
        """Index of each dimension of the operand over the instruction's axes."""
        index = self.instruction.computation.access(self.operand).index
        return dict(zip(self.place.dimensions, index, strict=True))

    def walks(self, axis: str) -> list[Walk]:
        """Return what the digits of an axis of the instruction walk, outermost first."""
        return [
            Walk(dimension, e.coefficient(digit.axis) * digit.stride, digit.count)
            for digit in self.step.digits(axis)
            for dimension, e in enumerate(self.step.access(self.operand).index)
            if e.coefficient(digit.axis)
        ]

    def lane_blocks(self) -> tuple[tuple[int, int], ...]:
        """Return the dimensions of a tensor in the lanes of a row, with the elements in one row.

        Raises
        ------
        PlanningError
            If no layout has the lanes that the instruction reads.
        """
        step, tensor = self.step, self.step.tensor(self.operand)
        lanes: list[tuple[int, int]] = []
        radices = self.instruction.lane_radices(self.operand)
        for d, size in zip(self.place.lanes, radices, strict=True):
            e = self.index[d.axis]
            if e.single_iterator is None:
                lanes += self._window_lanes(e, size)
                continue
            digits, walks = step.digits(e.single_iterator), self.walks(e.single_iterator)
            if len(digits) == 1 and walks:
                dimension, distance, count = walks[0]
                if distance != 1:
                    raise PlanningError(
                        f"rejected: {tensor} has a step of {distance} in the lanes of "
                        f"{self.instruction.name}: use a layout with neighbours in a row"
                    )
                # Executions that leave lanes empty begin a row each.
                read = step.access(self.operand).operand
                extent = step.statement.computation.operand(read).shape[dimension]
                is_part = count < size and count < extent and extent % count == 0
                lanes.append((dimension, count if is_part else size))
            else:
                lanes += [(walk.dimension, walk.size) for walk in walks]
        return tuple(lanes)

    def _window_lanes(self, index: IndexExpr, size: int) -> Iterator[tuple[int, int]]:
        """Yield the dimension along which a window's axes walk lanes, with its elements."""
        walks = [
            (walk, term.coefficient)
            for term in index.terms
            for walk in self.walks(term.iterator)
            if walk.size > 1
        ]
        if len({walk.dimension for walk, _ in walks}) > 1 or any(
            walk.distance != coefficient for walk, coefficient in walks
        ):
            raise PlanningError(
                f"rejected: {self.instruction.name} reads {index} in the lanes of {self.operand}, "
                f"and {self.step.tensor(self.operand)} has no dimension with these steps: use an "
                "instruction with its strides"
            )
        if walks:
            yield walks[0][0].dimension, size

    def row_distances(self) -> Iterator[tuple[int, int]]:
        """Yield dimensions whose neighbouring rows hold no neighbours, with the distance.

        Raises
        ------
        PlanningError
            If no layout has the rows that the instruction reads.
        """
        lanes = {dimension for dimension, _ in self.lane_blocks()}
        in_lanes = {self.index[d.axis].single_iterator for d in self.place.lanes}
        for d in self.place.rows:
            for name in self.index[d.axis].iterators:
                along = {walk.dimension for walk in self.walks(name)}
                if name not in in_lanes and along & lanes:
                    raise PlanningError(
                        f"rejected: {self.instruction.name} walks rows and lanes of "
                        f"{self.step.tensor(self.operand)} along the same dimension: copy its "
                        "windows ahead"
                    )
        for d in self.place.rows:
            name = self.index[d.axis].single_iterator
            if name is None:
                continue
            digits, walks = self.step.digits(name), self.walks(name)
            has_stride = self.place.strides.get(str(d), 1) not in (1, "dense")
            if len(digits) == 1 and len(walks) == 1 and not has_stride:
                dimension, distance, count = walks[0]
                if distance > 1 and count > 1 and dimension not in lanes:
                    yield dimension, distance
            elif len(digits) > 1:
                yield from self._row_blocks(walks)

    def _row_blocks(self, walks: Sequence[Walk]) -> Iterator[tuple[int, int]]:
        """Yield the blocks of dimensions that one axis of an instruction walks together."""
        extents = self.step.statement.computation.extents
        for dimension, distance, count in walks:
            e = self.step.access(self.operand).index[dimension]
            windows = [t for t in e.terms if t.coefficient % count and extents[t.iterator] > 1]
            if count > 1 and (distance != 1 or len(windows) > 1):
                raise PlanningError(
                    f"rejected: {self.instruction.name} walks windows of "
                    f"{self.step.tensor(self.operand)} along two dimensions at once, which no "
                    "layout has in neighbouring rows: use one axis"
                )
            if count > 1:
                yield dimension, count
