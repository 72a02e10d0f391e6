"""Executions of a program as arrays of numbers: :func:`unroll`.

An execution is a row of integers, its *record*: where its operands lie, and its sizes. Records of
all executions of one instruction of the text are computed at once over the loops around it, then
put in program order. Long programs are unrolled piece by piece, so that memory is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.accelerator.program import Address, Issue, Loop, Node, Program, execution_count
from cpembed.errors import ProgramError
from cpembed.hw.isa import IMMEDIATE, InstructionSet, IsaInstruction, MemoryKind
from cpembed.ir.dtypes import is_integer
from cpembed.ir.index import IndexExpr

Integers = NDArray[np.int64]

PIECE_EXECUTIONS = 1 << 17
"""Maximum number of executions of a piece, guarded ones included."""
LARGEST_PROGRAM = 10**9
"""Maximum number of executions of a program, guarded ones included."""


class RecordFields:
    """Positions of the numbers of an instruction's record.

    Operands have, in the computation's order: ``tensor`` and ``base`` in main memory, ``base`` and
    ``lane`` in rows, ``value`` as immediates (a float as its bits). Strides that are arguments
    follow, then the sizes of the axes that are not fixed.
    """

    def __init__(self, instruction: IsaInstruction, machine: InstructionSet) -> None:
        self.positions: dict[tuple[str, str], int] = {}
        self.strides: dict[tuple[str, str], int] = {}
        self.sizes: dict[str, int] = {}
        names = [operand.name for operand in instruction.computation.operands]
        for name in names:
            for field in _fields(instruction, name, machine):
                self.positions[name, field] = len(self.positions)
        count = len(self.positions)
        for name in names:
            for key in instruction.places[name].stride_arguments:
                self.strides[name, key] = count + len(self.strides)
        count += len(self.strides)
        for axis in instruction.size_arguments:
            self.sizes[axis.name] = count + len(self.sizes)
        self.width = count + len(self.sizes)


def _fields(instruction: IsaInstruction, name: str, machine: InstructionSet) -> tuple[str, ...]:
    memory = instruction.places[name].memory
    if memory == IMMEDIATE:
        return ("value",)
    kinds = {
        MemoryKind.MAIN: ("tensor", "base"),
        MemoryKind.ROWS: ("base", "lane"),
        MemoryKind.REGISTER: (),
    }
    return kinds[machine.memories[memory].kind]


@dataclass(frozen=True)
class Piece:
    """Consecutive executions.

    Attributes
    ----------
    issues : ndarray of int32
        Number of each execution's instruction in the text.
    records : ndarray of int64, shape (executions, width)
    """

    issues: NDArray[np.int32]
    records: Integers


@dataclass(frozen=True)
class Trace:
    """A program with its executions, in pieces that are computed when they are iterated over."""

    program: Program

    @cached_property
    def issues(self) -> tuple[Issue, ...]:
        """Instructions of the text, in its order."""
        return tuple(issue for _, issue in self.program.issues())

    @cached_property
    def tensors(self) -> tuple[str, ...]:
        """Names of the tensors, in the order of their numbers in records."""
        return tuple(self.program.tensors)

    @cached_property
    def fields(self) -> dict[str, RecordFields]:
        """Positions of the numbers in the records of each instruction that the program has."""
        machine = self.program.machine
        return {
            name: RecordFields(machine.instructions[name], machine)
            for name in dict.fromkeys(issue.instruction for issue in self.issues)
        }

    @property
    def width(self) -> int:
        """Number of integers of a record."""
        return max((fields.width for fields in self.fields.values()), default=0)

    @cached_property
    def executions(self) -> int:
        """Number of executions if no guard excluded any."""
        return execution_count(self.program.body)

    def __iter__(self) -> Iterator[Piece]:
        numbers = {id(issue): number for number, issue in enumerate(self.issues)}
        for nodes, outer in _parts(self.program.body, {}):
            yield self._piece(nodes, outer, numbers)

    def issue_at(self, number: int, record: Integers) -> Issue:
        """Return one execution as an instruction without loops: its expressions are constants."""
        issue = self.issues[number]
        instruction = self.program.machine.instructions[issue.instruction]
        fields = self.fields[issue.instruction]

        def constant(position: int) -> IndexExpr:
            return IndexExpr((), int(record[position]))

        operands: dict[str, Address] = {}
        for name, address in issue.operands.items():
            position = {f: fields.positions.get((name, f)) for f in ("base", "lane", "value")}
            base = position["base"] if position["base"] is not None else position["value"]
            lane = position["lane"]
            if address.table:
                assert base is not None
                operands[name] = _number_address(int(record[base]), address)
                continue
            operands[name] = replace(
                address,
                base=constant(base) if base is not None and address.value is None else address.base,
                lane=constant(lane) if lane is not None else address.lane,
            )
        sizes = {axis: (constant(position),) for axis, position in fields.sizes.items()}
        return Issue(instruction.name, operands, sizes, waits=issue.waits, signals=issue.signals)

    def _piece(
        self, nodes: tuple[Node, ...], outer: Mapping[str, int], numbers: Mapping[int, int]
    ) -> Piece:
        total = execution_count(nodes)
        records = np.zeros((total, self.width), np.int64)
        issues = np.full(total, -1, np.int32)
        for loops, issue, offset in _flattened(nodes, (), 0):
            shape = tuple(loop.extent for loop, _ in loops)
            grids = np.ogrid[tuple(slice(0, extent) for extent in shape)] if shape else ()
            values: dict[str, Any] = dict(outer)
            place: Any = np.asarray(offset)
            for (loop, step), grid in zip(loops, grids, strict=True):
                values[loop.name] = grid + loop.first if isinstance(loop, _LoopSlice) else grid
                place = place + grid * step
            self._fill(records, issues, np.broadcast_to(place, shape), issue, values, numbers)
        executed = issues >= 0
        if executed.all():
            return Piece(issues, records)
        return Piece(issues[executed], np.ascontiguousarray(records[executed]))

    def _fill(
        self,
        records: Integers,
        issues: NDArray[np.int32],
        places: Integers,
        issue: Issue,
        values: Mapping[str, Any],
        numbers: Mapping[int, int],
    ) -> None:
        mask: NDArray[np.bool_] | None = None
        for guard in issue.guards:
            passes = np.broadcast_to(np.asarray(guard.evaluate(values)) >= 0, places.shape)
            mask = passes if mask is None else mask & passes
        rows = places.reshape(-1) if mask is None else places[mask]
        issues[rows] = numbers[id(issue)]
        for position, expressions in self._columns(issue):
            column: Any = expressions
            if isinstance(expressions, _Table):
                column = expressions.at(values, places.shape, mask)
            elif not isinstance(expressions, int):
                column = np.asarray(expressions[0].evaluate(values))
                for expression in expressions[1:]:
                    column = np.minimum(column, np.asarray(expression.evaluate(values)))
                column = np.broadcast_to(column, places.shape)
                column = column.reshape(-1) if mask is None else column[mask]
            records[rows, position] = column

    def _columns(self, issue: Issue) -> Iterator[tuple[int, _Column]]:
        """Yield each number of a record with its position."""
        fields = self.fields[issue.instruction]
        instruction = self.program.machine.instructions[issue.instruction]
        for (name, field), position in fields.positions.items():
            address = _operand(issue, name)
            if field == "tensor":
                yield position, self._tensor(issue, name, address)
            elif field == "value":
                dtype = instruction.places[name].dtype
                yield position, _immediate(issue, name, address, dtype)
            else:
                yield position, ((address.lane if field == "lane" else address.base),)
        for (name, key), position in fields.strides.items():
            strides = _operand(issue, name).strides
            if key not in strides:
                raise ProgramError(
                    f"{issue.place}{issue.instruction}: operand {name} has no stride {key}: "
                    f"give [...; {key}=N]"
                )
            yield position, strides[key]
        for axis, position in fields.sizes.items():
            if not issue.sizes.get(axis):
                raise ProgramError(
                    f"{issue.place}{issue.instruction}: no size of {axis}: give {axis}=N"
                )
            yield position, issue.sizes[axis]

    def _tensor(self, issue: Issue, name: str, address: Address) -> int:
        if address.tensor not in self.program.tensors:
            raise ProgramError(
                f"{issue.place}{issue.instruction}: operand {name} lies in main memory and names "
                f"no tensor of the program: {address.tensor or 'nothing'!r}; use "
                f"{' '.join(self.tensors)}"
            )
        return self.tensors.index(address.tensor)


def unroll(program: Program) -> Trace:
    """Return the executions of a program.

    Raises
    ------
    ProgramError
        If an instruction, an operand, a channel or a loop of the program does not exist, or there
        are more than :data:`LARGEST_PROGRAM` executions.
    """
    for loops, issue in program.issues():
        names = [loop.name for loop in loops]
        for name in names:
            if names.count(name) > 1:
                raise ProgramError(
                    f"{program.name}: loop {name} is inside of another one of that name: rename it"
                )
        problem = _problem(program.machine, issue, names)
        if problem is not None:
            raise ProgramError(f"{program.name}: {issue.place}{problem}")
    trace = Trace(program)
    if trace.executions > LARGEST_PROGRAM:
        raise ProgramError(
            f"{program.name}: more than {LARGEST_PROGRAM:,} executions: use shorter loops"
        )
    return trace


def _problem(machine: InstructionSet, issue: Issue, loops: Sequence[str]) -> str | None:
    """Return what an instruction of the text names that does not exist; None if all exists."""
    name = issue.instruction
    if name not in machine.instructions:
        return f"{machine.name} has no instruction {name!r}: use {' '.join(machine.instructions)}"
    instruction = machine.instructions[name]
    channels = {channel.name: channel for channel in machine.channels}
    for channel, end in (
        *((c, "receiver") for c in issue.waits),
        *((c, "sender") for c in issue.signals),
    ):
        unit = getattr(channels.get(channel), end, None)
        if unit != instruction.unit:
            return (
                f"{name}, of unit {instruction.unit}, cannot use channel {channel!r}, whose {end} "
                f"is {unit or 'not described'}"
            )
    for expression in issue.expressions:
        for iterator in expression.iterators:
            if iterator not in loops:
                return f"{name} uses {iterator}, and no loop around it has that name"
    arguments = {axis.name for axis in instruction.size_arguments}
    for axis, size in issue.sizes.items():
        fixed = instruction.extents.get(axis)
        if axis not in arguments and size != (IndexExpr((), fixed or 0),):
            return f"{name} has no size {axis} that is an argument: leave it out"
    return None


def _operand(issue: Issue, name: str) -> Address:
    if name not in issue.operands:
        raise ProgramError(
            f"{issue.place}{issue.instruction}: operand {name} has no address: give {name}=..."
        )
    return issue.operands[name]


def _number_address(bits: int, address: Address) -> Address:
    """Return the immediate of a number of a table, as a record has it."""
    if all(isinstance(n, int) for n in address.table):
        return Address(IndexExpr((), bits))
    return Address(value=float(np.int64(bits).view(np.float64)))


@dataclass(frozen=True)
class _Table:
    """Numbers of an immediate, as records have them, with the place of one over the loops."""

    numbers: Integers
    place: IndexExpr

    def at(self, values: Mapping[str, Any], shape: tuple[int, ...], mask: Any) -> Integers:
        """Return the numbers of all executed iterations."""
        place = np.broadcast_to(np.asarray(self.place.evaluate(values)), shape)
        place = place.reshape(-1) if mask is None else place[mask]
        if place.size and (place.min() < 0 or place.max() >= len(self.numbers)):
            raise ProgramError(f"{self.place} leaves a table of {len(self.numbers)} numbers")
        return self.numbers[place]


_Column = int | tuple[IndexExpr, ...] | _Table
"""Number of a record: a constant, the least of some expressions, or an element of a table."""


def _immediate(issue: Issue, name: str, address: Address, dtype: str) -> _Column:
    if address.table:
        if is_integer(dtype) and not all(isinstance(n, int) for n in address.table):
            raise ProgramError(f"{issue.instruction}: {name} is {dtype}: give integers")
        numbers = np.asarray(address.table, np.int64 if is_integer(dtype) else np.float64)
        return _Table(numbers.view(np.int64), address.base)
    if is_integer(dtype):
        if address.value is not None:
            raise ProgramError(
                f"{issue.place}{issue.instruction}: {name} is {dtype}: give an integer"
            )
        return (address.base,)
    if address.value is None and address.base.terms:
        raise ProgramError(f"{issue.place}{issue.instruction}: {name} is {dtype}: give a number")
    value = address.base.constant if address.value is None else address.value
    return int(np.float64(value).view(np.int64))


# -- pieces ---------------------------------------------------------------------------------------


def _flattened(
    nodes: tuple[Node, ...], loops: tuple[tuple[Loop, int], ...], offset: int
) -> Iterator[tuple[tuple[tuple[Loop, int], ...], Issue, int]]:
    """Yield the instructions with the loops around them, each with its step in executions."""
    for node in nodes:
        if isinstance(node, Loop):
            step = execution_count(node.body)
            yield from _flattened(node.body, (*loops, (node, step)), offset)
            offset += node.extent * step
        else:
            yield loops, node, offset
            offset += 1


def _parts(
    nodes: tuple[Node, ...], outer: Mapping[str, int]
) -> Iterator[tuple[tuple[Node, ...], dict[str, int]]]:
    """Divide a program into parts of bounded length: nodes, and the values of the outer loops."""
    pending: list[Node] = []
    length = 0
    for node in nodes:
        size = execution_count((node,))
        if length + size > PIECE_EXECUTIONS and pending:
            yield tuple(pending), dict(outer)
            pending, length = [], 0
        if size <= PIECE_EXECUTIONS:
            pending.append(node)
            length += size
        elif isinstance(node, Loop):
            yield from _parts_of_loop(node, outer)
    if pending:
        yield tuple(pending), dict(outer)


def _parts_of_loop(
    loop: Loop, outer: Mapping[str, int]
) -> Iterator[tuple[tuple[Node, ...], dict[str, int]]]:
    body = execution_count(loop.body)
    if body > PIECE_EXECUTIONS:
        for value in range(loop.extent):
            yield from _parts(loop.body, {**outer, loop.name: value})
        return
    step = PIECE_EXECUTIONS // max(1, body)
    for first, end in pairwise([*range(0, loop.extent, step), loop.extent]):
        yield (_LoopSlice(loop.name, end - first, loop.body, first),), dict(outer)


@dataclass(frozen=True)
class _LoopSlice(Loop):
    """A loop that begins at another value than 0."""

    first: int = 0
