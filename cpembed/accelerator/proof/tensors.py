"""Tensors of a specification as the proof sees them: elements, levels and constants."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.accelerator.program import MainTensor, Program
from cpembed.accelerator.proof.result import ObligationError
from cpembed.accelerator.specification import Specification, Statement
from cpembed.ir.computation import Operand
from cpembed.ir.dtypes import dtype_info, is_integer
from cpembed.ir.expression import OPERATIONS
from cpembed.ir.index import IndexExpr

Levels = int | NDArray[np.int64]
"""Number of points of the statements that an element has behind it, uniform or per element."""


@dataclass(frozen=True)
class Tensors:
    """The tensors of a program's specification.

    A tensor that several statements write in turn has one *level* per element: the number of points
    of these statements, in their order, that its value includes.
    """

    program: Program
    specification: Specification
    spoiled_margins: frozenset[str] = frozenset()

    @staticmethod
    def from_program(program: Program, spoiled_margins: frozenset[str] = frozenset()) -> Tensors:
        """Return a program's tensors; raise :class:`ObligationError` where they contradict it.

        Margins of ``spoiled_margins`` hold anything in the beginning.
        """
        if program.specification is None:
            raise ObligationError(
                f"{program.name} has no specification: nothing says what it computes"
            )
        tensors = Tensors(program, program.specification, spoiled_margins)
        tensors.check()
        return tensors

    def check(self) -> None:
        """Check that tensors in main memory are those of the specification."""
        for name, tensor in self.program.tensors.items():
            operand = self.operands.get(name)
            if operand is not None and (operand.shape, operand.dtype) != (
                tensor.shape,
                tensor.dtype,
            ):
                raise ObligationError(
                    f"tensor {name} is {tensor.dtype}{list(tensor.shape)} in main memory and "
                    f"{operand.dtype}{list(operand.shape)} in the specification: make them equal"
                )
        loaded = {*self.specification.inputs, *self.specification.constants}
        for name, tensor in self.program.tensors.items():
            if tensor.is_loaded != (name in loaded):
                raise ObligationError(
                    f"tensor {name} is {tensor.role} in main memory, and "
                    f"{'loaded' if name in loaded else 'computed'} in the specification"
                )
        self.check_written()
        for name in self.specification.outputs:
            if name not in self.program.tensors:
                raise ObligationError(
                    f"output {name} is no tensor in main memory: add it to the program"
                )
            if name not in self.writers:
                raise ObligationError(
                    f"output {name} is written by no statement of the specification"
                )

    @cached_property
    def operands(self) -> dict[str, Operand]:
        """Shape and type of each tensor, by the tensor's name."""
        operands: dict[str, Operand] = {}
        for statement in self.specification.statements:
            if len(statement.computation.statements) != 1:
                raise ObligationError(f"{statement.computation} is several statements: split it")
            for operand in statement.computation.operands:
                first = operands.setdefault(operand.tensor, operand)
                if (first.shape, first.dtype) != (operand.shape, operand.dtype):
                    raise ObligationError(
                        f"statements see {operand.tensor} in several shapes or types: use one"
                    )
        return operands

    @cached_property
    def writers(self) -> dict[str, list[int]]:
        """Numbers of the statements that write each tensor, in their order."""
        writers: dict[str, list[int]] = {}
        for number, statement in enumerate(self.specification.statements):
            writers.setdefault(statement.output.tensor, []).append(number)
            if statement.output.zero_outside:
                raise ObligationError(
                    f"{statement.computation} drops stores: bound its axes instead"
                )
        return writers

    def statement(self, number: int) -> Statement:
        """Return a statement by its number; raise :class:`ObligationError` if there is none."""
        statements = self.specification.statements
        if not 0 <= number < len(statements):
            raise ObligationError(f"statement {number} is claimed, there are {len(statements)}")
        return statements[number]

    def shape(self, tensor: str) -> tuple[int, ...]:
        """Return a tensor's shape; raise :class:`ObligationError` for one that nothing declares."""
        if tensor in self.operands:
            return self.operands[tensor].shape
        if tensor in self.program.tensors:
            return self.program.tensors[tensor].shape
        raise ObligationError(
            f"tensor {tensor} is claimed, and the specification has none of this name"
        )

    def dtype(self, tensor: str) -> str:
        """Return the element type of a tensor."""
        self.shape(tensor)
        operand = self.operands.get(tensor)
        return operand.dtype if operand is not None else self.program.tensors[tensor].dtype

    def main(self, tensor: str) -> MainTensor | None:
        """Return the layout in main memory; None for a tensor that is on chip only."""
        return self.program.tensors.get(tensor)

    @cached_property
    def uniform(self) -> Mapping[str, int | float]:
        """Value of each constant whose elements are all equal."""
        values: dict[str, int | float] = {}
        for name, array in self.specification.constants.items():
            if array.size and bool((array == array.reshape(-1)[0]).all()):
                values[name] = np.asarray(array).reshape(-1)[0].item()
        return values

    @cached_property
    def ranges(self) -> Mapping[str, tuple[int, int]]:
        """Least and largest element of each constant of integers, with zero and the fill."""
        # Reads outside of a tensor are zero, or the fill of its margins.
        ranges: dict[str, tuple[int, int]] = {}
        for name, array in self.specification.constants.items():
            if array.size and np.asarray(array).dtype.kind in "iu":
                main = self.main(name)
                fill = int(main.fill) if main is not None else 0
                ranges[name] = (min(0, fill, int(array.min())), max(0, fill, int(array.max())))
        return ranges

    def level_before(self, number: int, tensor: str) -> Levels:
        """Return the level of a complete tensor as a statement reads it."""
        return self._level([n for n in self.writers.get(tensor, []) if n < number])

    def final_level(self, tensor: str) -> Levels:
        """Return the level of a tensor that all statements have written."""
        return self._level(self.writers.get(tensor, []))

    def _level(self, numbers: list[int]) -> Levels:
        level: Levels = 0
        for number in numbers:
            level = level + self.points_per_element(number)
        return level

    def points_per_element(self, number: int) -> Levels:
        """Return the number of points of a statement that write each element, flat."""
        if number not in self._points:
            self._points[number] = _points_per_element(self.statement(number))
        return self._points[number]

    @cached_property
    def _points(self) -> dict[int, Levels]:
        return {}

    def check_written(self) -> None:
        """Check that the statements write every element of what they write."""
        for name in self.writers:
            if not np.all(self.final_level(name)):
                raise ObligationError(f"the statements leave elements of {name} unwritten")

    def neutral(self, number: int) -> int | float | None:
        """Return a value that changes no result when a statement's reduction goes on from it."""
        reduction = self.statement(number).computation.statement.reduction
        if reduction in ("max", "min"):
            return None
        return None if reduction is None else OPERATIONS[reduction].neutral

    def is_neutral(self, number: int, value: int | float) -> bool:
        """Return True if a number changes no result of a statement's reduction."""
        statement = self.statement(number)
        reduction = statement.computation.statement.reduction
        if reduction not in ("max", "min"):
            return value == self.neutral(number)
        info = dtype_info(statement.output.dtype)
        if not info.is_integer:
            return value == (-math.inf if reduction == "max" else math.inf)
        low, high = info.integer_range
        return value <= low if reduction == "max" else value >= high

    @cached_property
    def assumptions(self) -> tuple[str, ...]:
        """Meaning of equality where the arithmetic of floats leaves it open."""
        sums = [
            statement.output.tensor
            for statement in self.specification.statements
            if statement.computation.statement.reduction in ("add", "mul")
            and not is_integer(statement.output.dtype)
        ]
        if not sums:
            return ()
        names = ", ".join(dict.fromkeys(sums))
        rounding = "in the program's order and rounded where it stores them"
        return (f"sums of floats ({names}) have the specification's terms, {rounding}",)


def _points_per_element(statement: Statement) -> Levels:
    computation = statement.computation
    store, shape = computation.statement.store, statement.output.shape
    names = store.iterators
    reduced = math.prod(e for axis, e in computation.extents.items() if axis not in names)
    singles = [index.single_iterator for index in store.index]
    sizes = tuple(computation.extents[name] for name in singles if name is not None)
    if len(set(singles)) == len(singles) and sizes == shape:
        return reduced
    grids = np.meshgrid(*(np.arange(computation.extents[n]) for n in names), indexing="ij")
    point: dict[str, Any] = dict(zip(names, (g.reshape(-1) for g in grids), strict=True))
    flat = flat_elements(store.index, shape, point)
    counts = np.bincount(np.atleast_1d(flat), minlength=math.prod(shape)) * reduced
    return counts.astype(np.int64)


def flat_elements(
    index: tuple[IndexExpr, ...], shape: tuple[int, ...], values: Mapping[str, Any]
) -> NDArray[np.int64]:
    """Return the row-major number of the element that each set of iterators names.

    Parameters
    ----------
    index : tuple of IndexExpr
        Index in each dimension.
    shape : tuple of int
        Shape of the tensor.
    values : mapping of str to int or ndarray
        Values of the iterators.
    """
    flat: Any = np.zeros((), np.int64)
    for expression, size in zip(index, shape, strict=True):
        flat = flat * size + expression.evaluate(values)
    return np.asarray(flat)
