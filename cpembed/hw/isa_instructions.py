"""Read one of ``[[instructions]]``: its table in, a checked :class:`IsaInstruction` out."""

from __future__ import annotations

import math
import string
from collections.abc import Mapping

from cpembed.errors import SpecError, WorkloadError
from cpembed.hw.instruction import InstructionAxis
from cpembed.hw.isa import IMMEDIATE, IsaInstruction, IsaMemory, MemoryKind, OperandPlace
from cpembed.hw.isa_places import PlaceReader
from cpembed.hw.isa_tables import IsaInstructionTable, PlaceTable
from cpembed.hw.schema import Key, close_match, joined, spec_error
from cpembed.hw.specification import AxisTable
from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import INPUT_DTYPES, is_integer
from cpembed.ir.expression import Constant, Operation, walk
from cpembed.ir.grammar import ParsedBody, parse_body
from cpembed.ir.parser import parse_computation

_MAX_EXTENT = 65_536
"""Maximum extent of an axis."""
# Checks of places and executors enumerate the points of an execution.
_MAX_OPERATIONS = 2**22
"""Maximum number of points of an execution at its largest sizes."""
_MAX_CYCLES = 2.0**40
"""Maximum of every number of an instruction, far beyond any machine."""

_PLACE_FIELDS: Mapping[str, tuple[str, ...]] = {
    MemoryKind.MAIN: ("address", "tensor", "element", "byte"),
    MemoryKind.ROWS: ("row", "lane"),
    MemoryKind.REGISTER: (),
    IMMEDIATE: ("value",),
}
"""Fields of an operand in ``emit``, by the kind of its memory; ``stride.KEY`` is one more."""


class InstructionReader:
    """Checks the table of one instruction against the memories and makes the value.

    Parameters
    ----------
    path : str
        The file, for messages.
    table : IsaInstructionTable
    memories : mapping of str to IsaMemory
        All memories of the machine.
    """

    def __init__(
        self, path: str, table: IsaInstructionTable, memories: Mapping[str, IsaMemory]
    ) -> None:
        self.path = path
        self.table = table
        self.memories = memories

    def read(self) -> IsaInstruction:
        """Return the instruction; raise :class:`SpecError` for the first fault."""
        table = self.table
        # Names first: the expression can be parsed only when each axis has an extent.
        self._check_names(self._body())
        axes = {name: self._axis(name, value) for name, value in table.axes.items()}
        operations = math.prod(axis.maximum for axis in axes.values())
        problem = f"{operations:,} points in one execution; allowed: {_MAX_OPERATIONS:,}"
        self._need(operations <= _MAX_OPERATIONS, ("axes",), problem)
        computation = self._computation(axes)
        instruction = IsaInstruction(
            name=table.name,
            unit=table.unit,
            axes=tuple(axes.values()),
            computation=computation,
            places={
                operand.name: PlaceReader(
                    self.path,
                    ("instructions", table.name, "operands", operand.name),
                    table.operands[operand.name],
                    self.memories,
                ).read(computation, operand.name, axes)
                for operand in computation.operands
            },
            accumulates=table.accumulate,
            saturates=table.saturate,
            cycles=self._cycles(axes),
            latency_cycles=table.latency_cycles,
            energy_pj=table.energy_pj,
            emit=table.emit,
            banks_differ=tuple((pair[0], pair[-1]) for pair in table.banks_differ),
            in_place=frozenset(table.in_place),
        )
        for field in ("latency_cycles", "energy_pj"):
            self._need_number(getattr(table, field) or 0.0, (field,))
        self._check_sums(instruction)
        self._check_pairs(instruction)
        self._check_emit(instruction)
        return instruction

    def _error(self, key: Key, problem: str) -> SpecError:
        return spec_error(self.path, ("instructions", self.table.name, *key), problem)

    def _need(self, condition: bool, key: Key, problem: str) -> None:
        if not condition:
            raise self._error(key, problem)

    def _need_number(self, value: float, key: Key) -> None:
        problem = f"{value} is not allowed; allowed: a number from 0 to {_MAX_CYCLES:g}"
        self._need(0 <= value <= _MAX_CYCLES, key, problem)

    def _body(self) -> ParsedBody:
        try:
            return parse_body(self.table.expression)
        except WorkloadError as error:
            raise self._expression_error(error) from None

    def _expression_error(self, error: WorkloadError) -> SpecError:
        problem = str(error).removeprefix("expression").lstrip(":, ")
        return self._error(("expression",), problem)

    def _check_names(self, body: ParsedBody) -> None:
        """Check that the tables list exactly the axes and the operands of the expression."""
        table = self.table
        used = [name for name, _ in body.iterators]
        for key, declared, expected, remedy in (
            ("axes", table.axes, used, "an extent"),
            ("operands", table.operands, list(body.operands), "a table with its memory"),
        ):
            for name in expected:
                problem = f"is missing: {name} is in the expression and needs {remedy}"
                self._need(name in declared, (key, name), problem)
            for name in declared:
                problem = f"is not in the expression; its {key}: {joined(expected) or 'none'}"
                problem += "" if name in expected else close_match(name, expected)
                self._need(name in expected, (key, name), problem)

    def _axis(self, name: str, value: int | AxisTable) -> InstructionAxis:
        key = ("axes", name)
        if isinstance(value, int):
            problem = f"extent {value} is not allowed; allowed: 1..{_MAX_EXTENT}"
            self._need(1 <= value <= _MAX_EXTENT, key, problem)
            return InstructionAxis(name, value, value)
        problem = "is for single instructions; allowed: min, max and step"
        self._need(value.multiple is None, (*key, "multiple"), problem)
        low = 1 if value.min is None else value.min
        for part, number in (("min", low), ("max", value.max), ("step", value.step)):
            problem = f"{number} is not allowed; allowed: 1..{_MAX_EXTENT}"
            self._need(1 <= number <= _MAX_EXTENT, (*key, part), problem)
        self._need(low <= value.max, (*key, "min"), f"{low} is above max, {value.max}")
        problem = f"{value.step} does not lead from min {low} to max {value.max}"
        problem += f"; allowed: a divisor of {value.max - low}"
        self._need((value.max - low) % value.step == 0, (*key, "step"), problem)
        return InstructionAxis(name, low, value.max, value.step)

    def _computation(self, axes: Mapping[str, InstructionAxis]) -> Computation:
        """Parse the expression at the largest sizes."""
        dtypes = {name: self._dtype(name, table) for name, table in self.table.operands.items()}
        try:
            computation = parse_computation(
                self.table.expression,
                {name: axis.maximum for name, axis in axes.items()},
                name=self.table.name,
                dtypes=dtypes,
                takes_constants=True,
            )
        except WorkloadError as error:
            raise self._expression_error(error) from None
        for part in (p for s in computation.statements for p in walk(s.value)):
            if isinstance(part, Operation) and part.op == "div" and part.args[1] == Constant(0):
                problem = f"{part} divides by zero; use another number"
                raise self._error(("expression",), problem)
        return computation

    def _dtype(self, operand: str, table: PlaceTable) -> str:
        key: Key = ("operands", operand)
        memory = self.memories.get(table.memory)
        if memory is None and table.memory != IMMEDIATE:
            names = [*self.memories, IMMEDIATE]
            problem = f"unknown memory {table.memory!r}{close_match(table.memory, names)}"
            raise self._error((*key, "memory"), f"{problem}; allowed: {joined(names)}")
        register = "" if memory is None else memory.dtype
        dtype = table.dtype or register
        if not dtype:
            raise self._error((*key, "dtype"), f"is missing; allowed: {joined(INPUT_DTYPES)}")
        problem = f"unknown dtype {dtype!r}{close_match(dtype, INPUT_DTYPES)}"
        allowed = f"; allowed: {joined(INPUT_DTYPES)}"
        self._need(dtype in INPUT_DTYPES, (*key, "dtype"), problem + allowed)
        problem = f"{dtype}, and the register holds {register}: leave the key out"
        self._need(not register or dtype == register, (*key, "dtype"), problem)
        return dtype

    def _cycles(
        self, axes: Mapping[str, InstructionAxis]
    ) -> tuple[tuple[tuple[str, ...], float], ...]:
        """Parse ``cycles``: a number, or coefficients of products of sizes such as ``r*e``."""
        cycles = self.table.cycles
        if not isinstance(cycles, dict):
            self._need_number(cycles, ("cycles",))
            return (((), float(cycles)),)
        terms: list[tuple[tuple[str, ...], float]] = []
        for text, value in cycles.items():
            names = tuple(part.strip() for part in text.split("*") if part.strip() != "1")
            problem = f"{text!r} is not a product of different axes; allowed: 1"
            problem += "".join(f", {axis}" for axis in axes) + ", with * between them"
            different = len(set(names)) == len(names) and set(names) <= set(axes)
            self._need(different, ("cycles", text), problem)
            self._need_number(value, ("cycles", text))
            terms.append((names, float(value)))
        return tuple(terms)

    def _check_sums(self, instruction: IsaInstruction) -> None:
        """Check the keys that speak of reductions and of outputs."""
        statements = instruction.computation.statements
        reduces = any(statement.reduction is not None for statement in statements)
        for field, default in (("accumulate", True), ("saturate", False)):
            problem = "is for sums, maxima and minima (+= max= min=), and the expression has none"
            self._need(reduces or getattr(self.table, field) is default, (field,), problem)
        outputs = [instruction.computation.operand(name) for name in instruction.outputs]
        problem = "floats do not saturate: leave the key out, or give an integer output"
        are_integers = all(is_integer(output.dtype) for output in outputs)
        self._need(are_integers or not instruction.saturates, ("saturate",), problem)
        for output in outputs:
            problem = "is written, so it needs a memory; an immediate is read only"
            key = ("operands", output.name, "memory")
            self._need(instruction.places[output.name].memory != IMMEDIATE, key, problem)

    def _check_pairs(self, instruction: IsaInstruction) -> None:
        """Check the relations between the places of two operands."""
        places, outputs = instruction.places, instruction.outputs
        for position, pair in enumerate(self.table.banks_differ):
            key: Key = ("banks_differ", position)
            problem = f"is no pair of operands; allowed: two of {joined(places)}"
            self._need(len(set(pair)) == len(pair) == 2 and set(pair) <= set(places), key, problem)
            first, second = (places[name].memory for name in pair)
            problem = f"{pair[0]} is in {first} and {pair[1]} in {second}; allowed: one memory"
            self._need(first == second, key, problem)
            memory = self.memories.get(first)
            problem = f"{first} has one bank; allowed: a memory with `banks`"
            self._need(memory is not None and memory.banks > 1, key, problem)
        for position, name in enumerate(self.table.in_place):
            key = ("in_place", position)
            inputs = [n for n in instruction.inputs if self._in_rows(places[n])]
            problem = f"{name!r} is no input in rows of a memory; allowed: {joined(inputs)}"
            self._need(name in inputs, key, problem)
            written = [places[output].memory for output in outputs]
            problem = f"{name} is in {places[name].memory}, which holds no output"
            self._need(places[name].memory in written, key, f"{problem}; leave it out")

    def _in_rows(self, place: OperandPlace) -> bool:
        memory = self.memories.get(place.memory)
        return memory is not None and memory.kind is MemoryKind.ROWS

    def _check_emit(self, instruction: IsaInstruction) -> None:
        """Check that the fields of the text are sizes and places of this instruction."""
        allowed = set(instruction.extents)
        for name, place in instruction.places.items():
            memory = self.memories.get(place.memory)
            fields = _PLACE_FIELDS[IMMEDIATE if memory is None else memory.kind]
            allowed |= {f"{name}.{field}" for field in fields}
            allowed |= {f"{name}.stride.{key}" for key in place.stride_arguments}
        try:
            parts = list(string.Formatter().parse(instruction.emit))
        except ValueError as error:
            problem = f"{error}; write braces of the text twice, {{{{ and }}}}"
            raise self._error(("emit",), problem) from None
        for _, field, specification, conversion in parts:
            if field is None:
                continue
            problem = f"unknown field {{{field}}}{close_match(field, sorted(allowed))}"
            problem += f"; allowed: {joined(sorted(allowed))}"
            self._need(field in allowed, ("emit",), problem)
            problem = f"{{{field}}} has a format or a conversion; write {{{field}}} alone"
            self._need(not specification and not conversion, ("emit",), problem)
