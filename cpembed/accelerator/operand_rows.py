"""Rows and lanes in which an instruction finds the dimensions of a tensor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cpembed.accelerator.problem import PlanningError, Step
from cpembed.ir.index import IndexExpr


def walked_steps(step: Step, axis: str, operand: str) -> list[tuple[int, int, int]]:
    """Return dimension, distance and count of each digit that an instruction's axis walks.

    Parameters
    ----------
    step : Step
        Statement with its instruction.
    axis, operand : str
        Axis and operand of the instruction.
    """
    access = step.access(operand)
    traversed: list[tuple[int, int, int]] = []
    for d in step.digits(axis):
        for dimension, e in enumerate(access.index):
            coefficient = e.coefficient(d.axis)
            if coefficient:
                traversed.append((dimension, coefficient * d.stride, d.count))
    return traversed


def _index_by_dimension(step: Step, operand: str) -> dict[str, IndexExpr]:
    index = step.instruction.computation.access(operand).index
    return dict(zip(step.instruction.places[operand].dimensions, index, strict=True))


def lane_blocks(step: Step, operand: str) -> tuple[tuple[int, int], ...]:
    """Return the dimensions of a tensor in the lanes of a row, with the elements in one row.

    Parameters
    ----------
    step : Step
        Statement with its instruction.
    operand : str
        Operand of the instruction.

    Raises
    ------
    PlanningError
        If no layout has the lanes that the instruction reads.
    """
    place = step.instruction.places[operand]
    index = _index_by_dimension(step, operand)
    lanes: list[tuple[int, int]] = []
    for d, size in zip(place.lanes, step.instruction.lane_radices(operand), strict=True):
        e = index[d.axis]
        if e.single_iterator is None:
            lanes += _window_lanes(step, operand, e, size)
            continue
        digits = step.digits(e.single_iterator)
        traversed = walked_steps(step, e.single_iterator, operand)
        if len(digits) == 1 and traversed:
            dimension, distance, count = traversed[0]
            if distance != 1:
                raise PlanningError(
                    f"rejected: {step.tensor(operand)} has a step of {distance} in the "
                    f"lanes of {step.instruction.name}: use a layout with neighbours in a row"
                )
            # Executions that leave lanes empty begin a row each.
            tensor = step.statement.computation.operand(step.access(operand).operand)
            extent = tensor.shape[dimension]
            is_part = count < size and count < extent and extent % count == 0
            lanes.append((dimension, count if is_part else size))
        elif traversed:
            lanes += [(dimension, count) for dimension, _, count in traversed]
    return tuple(lanes)


def _window_lanes(
    step: Step, operand: str, index: IndexExpr, size: int
) -> Iterator[tuple[int, int]]:
    """Yield the dimension along which a window's axes walk lanes, with the window's elements."""
    traversed = [
        (dimension, term.coefficient, distance)
        for term in index.terms
        for dimension, distance, count in walked_steps(step, term.iterator, operand)
        if count > 1
    ]
    if len({dimension for dimension, _, _ in traversed}) > 1 or any(
        distance != coefficient for _, coefficient, distance in traversed
    ):
        raise PlanningError(
            f"rejected: {step.instruction.name} reads {index} in the lanes of {operand}, and "
            f"{step.tensor(operand)} has no dimension with these steps: use an instruction with "
            "its strides"
        )
    if traversed:
        yield traversed[0][0], size


def row_distances(step: Step, operand: str) -> Iterator[tuple[int, int]]:
    """Yield dimensions whose elements in neighbouring rows are not neighbours, with the distance.

    Parameters
    ----------
    step : Step
        Statement with its instruction.
    operand : str
        Operand of the instruction.

    Raises
    ------
    PlanningError
        If no layout has the rows that the instruction reads.
    """
    place = step.instruction.places[operand]
    index = _index_by_dimension(step, operand)
    lanes = {dimension for dimension, _ in lane_blocks(step, operand)}
    in_lanes = {index[d.axis].single_iterator for d in place.lanes}
    for d in place.rows:
        for name in index[d.axis].iterators:
            along = {dimension for dimension, _, _ in walked_steps(step, name, operand)}
            if name not in in_lanes and along & lanes:
                raise PlanningError(
                    f"rejected: {step.instruction.name} walks rows and lanes of "
                    f"{step.tensor(operand)} along the same dimension: copy its windows ahead"
                )
    for d in place.rows:
        e = index[d.axis]
        if e.single_iterator is None:
            continue
        digits = step.digits(e.single_iterator)
        traversed = walked_steps(step, e.single_iterator, operand)
        has_stride = place.strides.get(str(d), 1) not in (1, "dense")
        if len(digits) == 1 and len(traversed) == 1 and not has_stride:
            dimension, distance, count = traversed[0]
            if distance > 1 and count > 1 and dimension not in lanes:
                yield dimension, distance
        elif len(digits) > 1:
            yield from row_blocks(step, operand, traversed)


def row_blocks(
    step: Step, operand: str, traversed: Sequence[tuple[int, int, int]]
) -> Iterator[tuple[int, int]]:
    """Yield the blocks of dimensions that one axis of an instruction walks together.

    Parameters
    ----------
    step : Step
        Statement with its instruction.
    operand : str
        Operand of the instruction.
    traversed : sequence of (int, int, int)
        Dimension, distance and count of each digit, from :func:`walked_steps`.

    Raises
    ------
    PlanningError
        If no layout has both dimensions in neighbouring rows.
    """
    for dimension, distance, count in traversed:
        e = step.access(operand).index[dimension]
        extents = step.statement.computation.extents
        windows = [t for t in e.terms if t.coefficient % count and extents[t.iterator] > 1]
        if count > 1 and (distance != 1 or len(windows) > 1):
            raise PlanningError(
                f"rejected: {step.instruction.name} walks windows of {step.tensor(operand)} along "
                "two dimensions at once, which no layout has in neighbouring rows: use one axis"
            )
        if count > 1:
            yield dimension, count
