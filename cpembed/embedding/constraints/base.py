"""Interface of a constraint, and how digits and workload axes move the operands.

A constraint posts itself to both models and independently judges a finished node map.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from cpembed.embedding.digit_model import DigitModel, DigitOption
from cpembed.embedding.node_map import NodeMap
from cpembed.embedding.problem import EmbeddingProblem
from cpembed.embedding.scalar_model import ScalarModel
from cpembed.ir.computation import AxisKind
from cpembed.ir.index import IndexExpr


class Constraint(ABC):
    """A condition on embeddings; its fields are the parameters of its table in the TOML file.

    ``post`` and ``holds`` must say the same thing without sharing code: tests compare all
    solutions of the posted model with all node maps that ``holds`` accepts. ``allows`` and
    ``post_digits`` say it once more over digits, for the fast model of regular instructions.
    """

    name: ClassVar[str]

    @abstractmethod
    def post(self, model: ScalarModel) -> None:
        """Record the constraint in the model."""

    @abstractmethod
    def holds(self, problem: EmbeddingProblem, node_map: NodeMap) -> bool:
        """Return True if a node map satisfies the constraint, decided from the map alone."""

    @property
    def needs_boxes(self) -> bool:
        """True if the constraint is about digits, which only ``hyper_rectangle`` defines."""
        return False

    def allows(self, problem: EmbeddingProblem, option: DigitOption) -> bool:
        """Return True if a digit, judged by itself, can be part of an embedding (digit model)."""
        return True

    def post_digits(self, model: DigitModel) -> None:  # noqa: B027 - most exclude nothing
        """Record in the digit model what the digits exclude together."""

    @abstractmethod
    def words(self) -> str:
        """Return the constraint as a phrase for an explanation ("no strides: ...")."""


# -- digits ---------------------------------------------------------------------------------------


def moved_dimensions(
    problem: EmbeddingProblem, option: DigitOption
) -> Iterator[tuple[str, int, int]]:
    """Yield the dimensions along which a digit moves the operands that its instruction axis walks.

    Each is (instruction operand, dimension of the workload operand, step in that dimension).
    """
    for operand, axes in problem.operand_axes.items():
        if option.instruction_axis not in axes:
            continue
        for dimension, index in enumerate(problem.workload_indices[operand]):
            for member in option.members:
                step = index.coefficient(member) * option.digit.stride
                if step:
                    yield operand, dimension, step


def displacements(
    problem: EmbeddingProblem, option: DigitOption
) -> Iterator[tuple[str, int, NDArray[np.int64]]]:
    """Yield the distances by which a digit moves each operand, dimension by dimension.

    Each is (instruction operand, dimension of the workload operand, distance at each value of the
    digit), without dimensions in which nothing moves.
    """
    steps = np.arange(option.digit.count, dtype=np.int64) * option.digit.stride
    members: dict[str, NDArray[np.int64]] = {}
    # A fused axis counts through its members, the innermost first; the outermost is unlimited.
    for position, member in reversed(list(enumerate(option.members))):
        extent = problem.workload.extents[member]
        members[member] = steps if position == 0 else steps % extent
        steps = steps // extent
    for operand, indices in problem.workload_indices.items():
        for dimension, index in enumerate(indices):
            moved = np.zeros(option.digit.count, np.int64)
            for name, at in members.items():
                moved = moved + index.coefficient(name) * at
            if np.any(moved):
                yield operand, dimension, moved


def along_index(problem: EmbeddingProblem, operand: str, instruction_axis: str, step: int) -> int:
    """Return a step along a dimension as one along the operand's index, which may run backwards.

    Parameters
    ----------
    problem : EmbeddingProblem
        Problem with the operand.
    operand, instruction_axis : str
        Instruction operand, and the instruction axis whose digit moves it.
    step : int
        Step in the workload operand's dimension, in elements.
    """
    indices = problem.instruction.computation.access(operand).index
    return step if sum(index.coefficient(instruction_axis) for index in indices) > 0 else -step


def can_feed(problem: EmbeddingProblem, instruction_axis: str, axis: str) -> bool:
    """Return True if a workload axis indexes no operand that the instruction axis does not index.

    Parameters
    ----------
    problem : EmbeddingProblem
        Problem with both axes.
    instruction_axis, axis : str
        Axis to feed, and the workload axis or member of a fused one that would feed it.
    """
    # Operands that the workload axis leaves alone need no check: `dataflow` asks only that what
    # the instruction shares along its axis is shared by the workload.
    return not any(
        axis in index.iterators
        for operand, axes in problem.operand_axes.items()
        if instruction_axis not in axes
        for index in problem.workload_indices[operand]
    )


# -- sliding windows ------------------------------------------------------------------------------


def walker(problem: EmbeddingProblem, index: IndexExpr) -> str | None:
    """Return the one iterator that walks an index, None where several do: a sliding window."""
    workload = problem.workload
    # An iterator of one step walks nothing, as long as no tile pads it.
    moving = [t for t in index.terms if not t.is_zero(workload.extents)]
    names = dict.fromkeys(name for term in moving for name in term.iterators)
    if len(names) > 1 or not index.iterators:
        return None
    # Where all are of one step, an axis of the output is preferred to the filter's.
    kinds = {axis.name: axis.kind for axis in workload.axes}
    ordered = sorted(index.iterators, key=lambda name: kinds[name] is not AxisKind.SPATIAL)
    return next(iter(names or ordered))


def slides(problem: EmbeddingProblem, index: IndexExpr, moved: Collection[str]) -> bool:
    """Return True if an index is a sliding window where these axes move: one is not its walker.

    Parameters
    ----------
    problem : EmbeddingProblem
        Problem whose workload has the index.
    index : IndexExpr
        Index of one dimension of a workload operand.
    moved : Collection of str
        Workload axes with more than one image.
    """
    return any(name in moved and name != walker(problem, index) for name in index.iterators)


def stencil_axes(problem: EmbeddingProblem) -> dict[str, str]:
    """Return the workload axes that move some index as a sliding window, with that index.

    The index is text, such as ``I[2*p + r]``.
    """
    windows: dict[str, str] = {}
    for pair in problem.pairs:
        for index in pair.workload.index:
            for axis in index.iterators:
                if slides(problem, index, (axis,)):
                    windows.setdefault(axis, f"{pair.workload.operand}[{index}]")
    return windows
