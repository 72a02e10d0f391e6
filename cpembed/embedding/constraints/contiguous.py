"""``contiguous``: operands that a copy engine loads from where they lie in main memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from cpembed.embedding.constraints.base import Constraint, displacements
from cpembed.embedding.digit_model import DigitModel, DigitOption
from cpembed.embedding.node_map import Coordinates, NodeMap
from cpembed.embedding.problem import EmbeddingProblem
from cpembed.embedding.scalar_model import ScalarModel
from cpembed.ir.dtypes import size_bytes


@dataclass(frozen=True)
class Contiguous(Constraint):
    """Operands lie in main memory as a copy engine reads them: in contiguous rows.

    For each operand whose memory side names axes in ``contiguous``, all of several steps in the
    instruction, exactly one of these is used at several steps and walks neighbouring elements of
    the workload operand's innermost dimension and nothing else. No other index moves along that
    dimension, and its bytes are a multiple of the tile's alignment, so that all rows are aligned as
    the tile is.
    """

    name: ClassVar[str] = "contiguous"

    def post(self, model: ScalarModel) -> None:
        problem = model.problem
        for operand in _bulk_operands(problem):
            elements = model.present_elements(operand)
            choices = _candidates(problem, operand) if _has_aligned_rows(problem, operand) else {}
            literals = {index: model.builder.boolean() for index in choices}
            model.builder.exactly_one(list(literals.values()))
            for index, literal in literals.items():
                self._post_choice(model, elements, (index, choices[index]), literal)

    def _post_choice(
        self,
        model: ScalarModel,
        elements: list[Coordinates],
        choice: tuple[int, str],
        literal: int,
    ) -> None:
        """Post that an index walks the innermost dimension where the literal is true."""
        index, axis = choice
        builder, extents = model.builder, model.extent_literals[axis]
        condition = np.array([literal])
        # An axis of one step walks nothing.
        builder.linear(
            [(1, condition), *((-1, np.array([extents[e]])) for e in extents if e > 1)], -1, 0
        )
        for dimension, ids in enumerate(elements):
            is_innermost = dimension == len(elements) - 1
            low, high = builder.range_of(int(ids.flat[0]))
            reach = high - low + 1
            for place in range(ids.ndim):
                first, second = _neighbours(ids, place)
                if not first.size:
                    continue
                if place != index:
                    if is_innermost:
                        _post_step(model, (first, second), 0, [condition], reach)
                elif not is_innermost:
                    _post_step(model, (first, second), 0, [condition], reach)
                else:
                    # Beyond the extent that is chosen, elements repeat others.
                    for step in range(first.shape[place]):
                        present = [np.array([extents[e]]) for e in extents if e > step + 1]
                        cut = np.take(first, [step], place), np.take(second, [step], place)
                        _post_step(model, cut, 1, [condition], reach, present)

    def holds(self, problem: EmbeddingProblem, node_map: NodeMap) -> bool:
        """Return True if exactly one of the named axes walks contiguous elements."""
        for operand, image in node_map.elements.items():
            names = problem.instruction.memory[operand].contiguous
            if not names or min(problem.instruction.extents[axis] for axis in names) == 1:
                continue
            dtype = problem.workload.operand(problem.roles[operand]).dtype
            shape = problem.workload.operand(problem.roles[operand]).shape
            if not shape:
                return False
            row = shape[-1] * size_bytes(dtype)
            if len(shape) > 1 and row % problem.instruction.memory[operand].alignment_bytes:
                return False
            walking = [
                index
                for index, axis in enumerate(problem.index_names[operand])
                if axis in names and _walks(image, index)
            ]
            if len(walking) != 1:
                return False
        return True

    def allows(self, problem: EmbeddingProblem, option: DigitOption) -> bool:
        return all(
            not moves or (is_run and option.instruction_axis in _axes(problem, operand))
            for operand, moves, is_run in _moves(problem, option)
        )

    def post_digits(self, model: DigitModel) -> None:
        """Post that one axis of each operand has only digits that walk, and the others none."""
        problem = model.problem
        for operand in _bulk_operands(problem):
            axes = set[str]()
            if _has_aligned_rows(problem, operand):
                axes = set(_candidates(problem, operand).values())
                # Another model decides them, all together.
                if axes and axes.isdisjoint(model.axes):
                    continue
            literals = {axis: model.builder.boolean() for axis in sorted(axes)}
            model.builder.exactly_one(list(literals.values()))
            model.couple(literals)
            for axis, literal in literals.items():
                walking = list[int]()
                for option, option_literal in model.options.items():
                    if option.instruction_axis != axis:
                        continue
                    if any(moves for name, moves, _ in _moves(problem, option) if name == operand):
                        walking.append(option_literal)
                        model.builder.row([(1, option_literal), (-1, literal)], -1, 0)
                    else:
                        model.builder.row([(1, option_literal), (1, literal)], 0, 1)
                terms = [(1, literal), *((-1, digit) for digit in walking)]
                model.builder.row(terms, -len(walking), 0)

    def words(self) -> str:
        return "contiguous: a copy engine loads operands in contiguous rows from where they lie"


def _bulk_operands(problem: EmbeddingProblem) -> list[str]:
    """Return the instruction operands whose memory side names contiguous axes."""
    memory, extents = problem.instruction.memory, problem.instruction.extents
    return [
        name
        for name in problem.operand_axes
        if memory[name].contiguous and all(extents[axis] > 1 for axis in memory[name].contiguous)
    ]


def _axes(problem: EmbeddingProblem, operand: str) -> tuple[str, ...]:
    """Return the axes of an operand that may be contiguous: they are an index by themselves."""
    names = problem.instruction.memory[operand].contiguous
    return tuple(axis for axis in names if axis in problem.index_names[operand])


def _candidates(problem: EmbeddingProblem, operand: str) -> dict[int, str]:
    """Return the indices of an operand that may be contiguous, with their axes."""
    axes = _axes(problem, operand)
    return {index: axis for index, axis in enumerate(problem.index_names[operand]) if axis in axes}


def _has_aligned_rows(problem: EmbeddingProblem, operand: str) -> bool:
    stored = problem.workload.operand(problem.roles[operand])
    alignment = problem.instruction.memory[operand].alignment_bytes
    if len(stored.shape) < 2:
        return bool(stored.shape)
    return stored.shape[-1] * size_bytes(stored.dtype) % alignment == 0


def _moves(problem: EmbeddingProblem, option: DigitOption) -> Iterator[tuple[str, bool, bool]]:
    """Yield what a digit does to each operand that has contiguous axes.

    Each is (operand, True if it moves along the innermost dimension, True if it walks neighbouring
    elements there and moves nothing else).
    """
    moved: dict[str, dict[int, NDArray[np.int64]]] = {}
    for operand, dimension, distances in displacements(problem, option):
        moved.setdefault(operand, {})[dimension] = distances
    for operand in _bulk_operands(problem):
        if option.instruction_axis not in problem.operand_axes[operand]:
            continue
        dimensions = moved.get(operand, {})
        innermost = len(problem.workload_indices[operand]) - 1
        if innermost not in dimensions:
            yield operand, False, False
            continue
        steps = np.arange(option.digit.count) * option.weight
        is_run = len(dimensions) == 1 and np.array_equal(dimensions[innermost], steps)
        yield operand, True, is_run


def _neighbours(ids: Coordinates, place: int) -> tuple[Coordinates, Coordinates]:
    """Return all elements but the last along an index, and those that follow them."""
    size = ids.shape[place]
    return np.take(ids, range(size - 1), place), np.take(ids, range(1, size), place)


def _post_step(
    model: ScalarModel,
    pair: tuple[Coordinates, Coordinates],
    step: int,
    literals: list[Coordinates],
    reach: int,
    present: list[Coordinates] | None = None,
) -> None:
    """Post that the second of a pair is ``step`` beyond the first where literals are true.

    ``present`` are literals of which one has to be true as well.
    """
    first, second = (ids.reshape(-1, 1) for ids in pair)
    weight = reach + abs(step)
    conditions = [*literals, *(present or [])]
    slack = weight * (2 if present is not None else 1)
    terms = [(1, second), (-1, first)]
    upper = [*terms, *((weight, literal) for literal in conditions)]
    lower = [*terms, *((-weight, literal) for literal in conditions)]
    model.builder.linear(upper, -2 * slack, step + slack)
    model.builder.linear(lower, step - slack, 2 * slack)


def _walks(image: Coordinates, index: int) -> bool:
    """Return True if an index walks the innermost dimension, and no other moves along it."""
    lines = np.moveaxis(image, 1 + index, -1)
    count = lines.shape[-1]
    steps: Coordinates = np.arange(count, dtype=np.int64)
    neighbours: Coordinates = lines[-1] - lines[-1].flat[0] - steps
    still: Coordinates = lines[:-1] - lines[:-1, ..., :1]
    return count > 1 and not neighbours.any() and not still.any()
