"""The executions of one instruction of the text, as arrays over the iterations of its loops."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.accelerator.program import Loop, Node, Program, execution_count
from cpembed.accelerator.proof.facts import IssueFacts
from cpembed.accelerator.proof.result import ObligationError, UndecidedError
from cpembed.accelerator.proof.tensors import Tensors
from cpembed.hw.isa import MemoryKind, OperandPlace, StrideSource
from cpembed.ir.dtypes import element_info
from cpembed.ir.expression import Access
from cpembed.ir.index import IndexExpr, IndexTerm

Integers = NDArray[np.int64]

LARGEST_TRACE = 8_000_000
"""Number of executions beyond which a program is not enumerated."""

Sizes = tuple[int, ...]
"""Size of each axis of an instruction in one execution."""


class Split:
    """An index over loops and inner names, as a part for each.

    Digits of sums over both have no parts: such an index is evaluated for each execution.
    """

    def __init__(self, index: IndexExpr, instances: Instances) -> None:
        loops = set(instances.loop_values)
        outer: list[IndexTerm] = []
        inner: list[IndexTerm] = []
        self.mixed: IndexExpr | None = None
        for term in index.terms:
            names = set(term.iterators)
            if names <= loops:
                outer.append(term)
            elif names & loops:
                self.mixed = index
            else:
                inner.append(term)
        self._instances = instances
        self.inner = IndexExpr(tuple(inner))
        self.outer: list[int] = instances.at_iterations(IndexExpr(tuple(outer), index.constant))

    def values(self, iteration: int, inner_part: Any, inner_values: Mapping[str, Any]) -> Any:
        """Return the index in one iteration; ``inner_part`` is :attr:`inner` at these values."""
        if self.mixed is None:
            return inner_part + self.outer[iteration]
        loops = self._instances.iteration(iteration)
        return np.asarray(self.mixed.evaluate({**inner_values, **loops}))


@dataclass(frozen=True)
class Elements:
    """Elements of an operand that an execution of certain sizes touches.

    Attributes
    ----------
    dimensions : mapping of str to ndarray
        Index of each element in each dimension.
    places : ndarray
        Row (main memory: element) behind the base, for strides that the execution has.
    lanes : ndarray
        Lane behind the first one.
    numbers : mapping of Access to ndarray
        Element that each point of the instruction accesses.
    content : tuple of ndarray
        Inner part of the claimed index in each dimension of the tensor.
    """

    dimensions: Mapping[str, Integers]
    places: Integers
    lanes: Integers
    numbers: Mapping[Access, Integers]
    content: tuple[Any, ...]

    @cached_property
    def bounds(self) -> tuple[tuple[int, int], ...]:
        """Least and largest inner part of the claimed index in each dimension."""
        return tuple((int(np.min(c)), int(np.max(c))) for c in self.content)

    @cached_property
    def are_distinct(self) -> bool:
        """True if no two elements share a place."""
        pairs = np.stack((self.places, self.lanes))
        return np.unique(pairs, axis=1).shape == pairs.shape


class Instances:
    """The executions of an instruction of the text, in the order of their loops.

    Raises
    ------
    ObligationError
        If a size is not one that the instruction takes.
    """

    def __init__(self, facts: IssueFacts) -> None:
        facts.check()
        self.facts = facts
        extents = [loop.extent for loop in facts.loops]
        if math.prod(extents) > LARGEST_TRACE:
            raise UndecidedError(f"{facts.text} is executed {math.prod(extents):,} times")
        grids = np.meshgrid(*(np.arange(e) for e in extents), indexing="ij")
        self.count = math.prod(extents)
        self.loop_values: dict[str, Integers] = {
            loop.name: grid.reshape(-1) for loop, grid in zip(facts.loops, grids, strict=True)
        }
        executed = np.ones(self.count, bool)
        for guard in facts.issue.guards:
            executed &= np.broadcast_to(np.asarray(self._evaluate(guard)), (self.count,)) >= 0
        self.executed: NDArray[np.bool_] = executed
        self.sizes = self._sizes()
        self._elements: dict[tuple[str, Sizes, tuple[int, ...]], Elements] = {}
        self._grids: dict[Sizes, dict[str, Integers]] = {}
        self._distinct: dict[Sizes, bool] = {}

    def _evaluate(self, index: IndexExpr) -> Any:
        unknown = set(index.iterators) - set(self.loop_values)
        if unknown:
            raise ObligationError(
                f"{self.facts.text}: {index} names {sorted(unknown)[0]}, which is no "
                "loop around the instruction"
            )
        return index.evaluate(self.loop_values)

    def at_iterations(self, index: IndexExpr) -> list[int]:
        """Return the value of an index over loops in each iteration."""
        values: Any = np.broadcast_to(np.asarray(self._evaluate(index)), (self.count,))
        return values.tolist()

    def iteration(self, iteration: int) -> dict[str, int]:
        """Return the value of each loop in an iteration."""
        return {name: int(values[iteration]) for name, values in self.loop_values.items()}

    def _sizes(self) -> list[Sizes]:
        columns: list[Integers] = []
        for axis in self.facts.instruction.axes:
            claims = self.facts.issue.sizes.get(axis.name, ())
            size = np.full(self.count, axis.maximum, np.int64)
            for number, claim in enumerate(claims):
                value = np.asarray(self._evaluate(claim))
                size = (
                    np.broadcast_to(value, size.shape) if number == 0 else np.minimum(size, value)
                )
            wrong = self.executed & (
                (size < axis.minimum)
                | (size > axis.maximum)
                | ((size - axis.minimum) % axis.step != 0)
            )
            if wrong.any():
                at = int(np.flatnonzero(wrong)[0])
                raise ObligationError(
                    f"{self.describe(at)}: size {axis.name} is {int(size[at])}, the instruction "
                    f"takes {axis.describe_allowed()}"
                )
            columns.append(size)
        rows = np.stack(columns, axis=-1) if columns else np.zeros((self.count, 0), np.int64)
        return [tuple(row) for row in rows.tolist()]

    def describe(self, iteration: int) -> str:
        """Return the instruction's name with the values of its loops."""
        values = ", ".join(f"{n}={v}" for n, v in self.iteration(iteration).items())
        return f"{self.facts.text} at {values}" if values else self.facts.text

    def grid(self, sizes: Sizes) -> dict[str, Integers]:
        """Return the value of each axis at each point of an execution of these sizes."""
        if sizes not in self._grids:
            names = [axis.name for axis in self.facts.instruction.axes]
            grids = np.meshgrid(*(np.arange(size) for size in sizes), indexing="ij")
            self._grids[sizes] = {n: g.reshape(-1) for n, g in zip(names, grids, strict=True)}
        return self._grids[sizes]

    def are_distinct(self, sizes: Sizes, indices: Mapping[str, IndexExpr]) -> bool:
        """Return True if indices over the axes are different at all points of an execution."""
        if sizes not in self._distinct:
            grid, count = self.grid(sizes), self.points(sizes)
            values = [np.asarray(index.evaluate(grid)) for index in indices.values()]
            columns = np.zeros((1, count), np.int64)
            if values:
                columns = np.stack([np.broadcast_to(column, (count,)) for column in values])
            self._distinct[sizes] = np.unique(columns, axis=1).shape[1] == count
        return self._distinct[sizes]

    def points(self, sizes: Sizes) -> int:
        """Return the number of points of an execution of these sizes."""
        return math.prod(sizes)

    def elements(
        self, operand: str, sizes: Sizes, strides: tuple[int, ...], content: Sequence[Split]
    ) -> Elements:
        """Return the elements of an operand that an execution touches.

        Parameters
        ----------
        operand : str
            Name of the operand.
        sizes : tuple of int
            Size of each axis of the instruction.
        strides : tuple of int
            Distance for each of the operand's :attr:`~cpembed.hw.isa.OperandPlace.stride_keys`.
        content : sequence of Split
            Claimed index of the tensor's element; empty if nothing is claimed.
        """
        key = (operand, sizes, strides)
        if key not in self._elements:
            self._elements[key] = self._touched(operand, sizes, strides, content)
        return self._elements[key]

    def _touched(
        self, operand: str, sizes: Sizes, strides: tuple[int, ...], content: Sequence[Split]
    ) -> Elements:
        place, grid = self.facts.place(operand), self.grid(sizes)
        accesses = self.facts.instruction.computation.access_maps[operand]
        count = self.points(sizes)
        extents = self.dimension_sizes(operand, sizes).values()
        flat: list[Integers] = []
        for access in accesses:
            number = np.zeros(count, np.int64)
            for index, extent in zip(access.index, extents, strict=True):
                number = number * extent + index.evaluate(grid)
            flat.append(number)
        unique, inverse = np.unique(np.concatenate(flat), return_inverse=True)
        numbers = dict(zip(accesses, inverse.reshape(len(accesses), count), strict=True))
        indices = np.unravel_index(unique, tuple(extents)) if extents else ()
        dimensions = dict(zip(place.dimensions, indices, strict=True))
        radices = self.facts.instruction.lane_radices(operand)
        places, lanes = _offsets(place, dimensions, strides, radices)
        shape = unique.shape
        return Elements(
            dimensions,
            np.broadcast_to(places, shape),
            np.broadcast_to(lanes, shape),
            numbers,
            tuple(
                np.broadcast_to(np.asarray(s.inner.evaluate(dimensions)), shape)
                if s.mixed is None
                else np.zeros(shape, np.int64)
                for s in content
            ),
        )

    def dimension_sizes(self, operand: str, sizes: Sizes) -> dict[str, int]:
        """Return the size of each dimension of an operand in an execution of these sizes."""
        instruction = self.facts.instruction
        names = [axis.name for axis in instruction.axes]
        return instruction.dimension_sizes(operand, dict(zip(names, sizes, strict=True)))


def _offsets(
    place: OperandPlace,
    dimensions: Mapping[str, Integers],
    strides: tuple[int, ...],
    radices: list[int],
) -> tuple[Any, Any]:
    """Return row (or element of main memory) and lane of each element, behind the first."""
    zero: Any = np.zeros((), np.int64)
    if not (place.rows or place.lanes):
        steps = zip(place.dimensions, strides, strict=True)
        return sum((dimensions[d] * step for d, step in steps), zero), zero
    rows, lanes = zero, zero
    for digit, step in zip(place.rows, strides, strict=True):
        rows = rows + step * _digit(dimensions[digit.axis], digit.divisor, digit.modulus)
    for digit, radix in zip(place.lanes, radices, strict=True):
        lanes = lanes * radix + _digit(dimensions[digit.axis], digit.divisor, digit.modulus)
    return rows, lanes


def _digit(values: Integers, divisor: int, modulus: int | None) -> Integers:
    quotient = values // divisor
    return quotient if modulus is None else quotient % modulus


def stride_sources(facts: IssueFacts, operand: str) -> list[int | str]:
    """Return the stride of each key: a number, the name of a register, or ``dense``.

    Raises
    ------
    ObligationError
        If an argument is missing.
    """
    place = facts.place(operand)
    address = facts.issue.operands[operand]
    keys = place.stride_keys
    memory = facts.tensors.program.machine.memories.get(place.memory)
    is_main = memory is not None and memory.kind is MemoryKind.MAIN
    sources: list[int | str] = []
    for position, key in enumerate(keys):
        is_innermost = position == len(keys) - 1
        default: int | str = StrideSource.ANY if is_main else StrideSource.DENSE
        source = place.strides.get(key, 1 if is_innermost else default)
        if source == StrideSource.ANY:
            if key not in address.strides:
                raise ObligationError(f"{facts.text}: the stride {key} of {operand} is missing")
            source = address.strides[key]
        sources.append(source)
    return sources


def dense_strides(place: OperandPlace, sizes: Mapping[str, int], position: int) -> int:
    """Return the product of the sizes of the digits of rows inside of one.

    Parameters
    ----------
    place : OperandPlace
    sizes : mapping of str to int
        Size of each dimension of the operand.
    position : int
        Position of the digit, outermost first.
    """
    return math.prod(digit.size(sizes[digit.axis]) for digit in place.rows[position + 1 :])


def trace_order(program: Program, tensors: Tensors) -> tuple[list[Instances], Integers, Integers]:
    """Return the executions of a program in the order of its text.

    Returns
    -------
    tuple of (list of Instances, ndarray, ndarray)
        The instructions of the text; for each execution, which of them it is and its iteration.
    """
    total = execution_count(program.body)
    if total > LARGEST_TRACE:
        raise UndecidedError(f"{program.name} executes {total:,} instructions")
    instances: list[Instances] = []
    which = np.full(total, -1, np.int64)
    iterations = np.zeros(total, np.int64)

    def place(body: Sequence[Node], loops: tuple[Loop, ...], offset: Any) -> None:
        for node in body:
            if isinstance(node, Loop):
                size = execution_count(node.body)
                steps = np.arange(node.extent) * size
                place(node.body, (*loops, node), (offset[:, None] + steps).reshape(-1))
                offset = offset + node.extent * size
            else:
                executions = Instances(IssueFacts(tensors, loops, node))
                which[offset] = np.where(executions.executed, len(instances), -1)
                iterations[offset] = np.arange(executions.count)
                instances.append(executions)
                offset = offset + 1

    place(program.body, (), np.zeros(1, np.int64))
    executed = which >= 0
    return instances, which[executed], iterations[executed]


def element_bits(dtype: str) -> int:
    """Return the number of bits that an element occupies in a memory."""
    return element_info(dtype).storage_bits
