"""C++ of an instruction set: functions that execute and time each instruction.

:func:`machine_text` generates the text from the description alone, so that it is the same for all
programs of a machine. Costs and capacities are no part of it: they are arguments of a run. What an
instruction does is its computation, on local copies of the boxes that its operands name.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from cpembed.accelerator.scalar_text import Term, element, integer, local_type, scalar
from cpembed.accelerator.trace import RecordFields
from cpembed.errors import LoweringError
from cpembed.hw.instruction import InstructionAxis, TileDimension
from cpembed.hw.isa import (
    IMMEDIATE,
    InstructionSet,
    IsaInstruction,
    MemoryKind,
    OperandPlace,
    StrideSource,
)
from cpembed.ir.computation import Assignment, AxisKind, Operand
from cpembed.ir.dtypes import dtype_info, is_integer, size_bytes
from cpembed.ir.expression import Access
from cpembed.ir.index import IndexExpr

_CODECS = {
    "float32": "Whole<float>", "float64": "Whole<double>", "bool": "Whole<uint8_t>",
    "int7": "Whole<int8_t>", "uint7": "Whole<uint8_t>",
}  # fmt: skip
_PACKED = {"int4": "Narrow<4, true>", "uint4": "Narrow<4, false>"}


def machine_text(machine: InstructionSet) -> str:
    """Return the C++ of all instructions of a machine, in the order of its description."""
    parts = ['#include "machine.h"\n']
    for number, instruction in enumerate(machine.instructions.values()):
        parts.append(_InstructionText(instruction, machine, f"i{number}").text())
    names = [f"i{number}" for number in range(len(machine.instructions))]
    table = ",\n".join(f"  {{{n}::execute, {n}::touch, {n}::cycles}}" for n in names)
    parts.append(f'extern "C" const InstructionCode machine_instructions[] = {{\n{table}\n}};\n')
    return "\n".join(parts)


def allowed_sizes(axis: InstructionAxis) -> tuple[int, int, int]:
    """Return the least and the largest size of an axis, and the step between sizes."""
    if axis.largest is not None:
        return axis.maximum, axis.largest, axis.maximum
    return axis.minimum, axis.maximum, axis.step


class _InstructionText:
    """Text of one instruction, a namespace."""

    def __init__(self, instruction: IsaInstruction, machine: InstructionSet, name: str) -> None:
        self._instruction, self._machine, self._name = instruction, machine, name
        self._computation = instruction.computation
        self._fields = RecordFields(instruction, machine)
        self._memories = list(machine.memories)
        self._operands = [_OperandText(o, self) for o in self._computation.operands]
        self._by_name = {text.name: text for text in self._operands}
        for operand in self._computation.operands:
            if operand.zero_outside:
                raise LoweringError(f"{instruction.name}: {operand.name} is read outside its shape")

    # Names of sizes are arguments of every function.
    @property
    def size_parameters(self) -> str:
        return "".join(f", int64_t n_{axis.name}" for axis in self._instruction.axes)

    @property
    def size_arguments(self) -> str:
        return "".join(f", n_{axis.name}" for axis in self._instruction.axes)

    @property
    def instruction(self) -> IsaInstruction:
        return self._instruction

    @property
    def machine(self) -> InstructionSet:
        return self._machine

    @property
    def fields(self) -> RecordFields:
        return self._fields

    def memory_index(self, name: str) -> int:
        return self._memories.index(name)

    def text(self) -> str:
        parts = [f"namespace {self._name} {{  // {self._instruction.name}: {self._computation}"]
        parts.append(self._allowed())
        parts += [operand.walk() for operand in self._operands if operand.is_walked]
        parts += [operand.storage() for operand in self._operands]
        parts += [self._compute(number) for number in range(len(self._computation.statements))]
        parts += [self._execute(), self._touch(), self._cycles()]
        parts.append("}\n")
        return "\n".join(parts)

    def _sizes(self) -> str:
        lines: list[str] = []
        for axis in self._instruction.axes:
            position = self._fields.sizes.get(axis.name)
            value = f"r[{position}]" if position is not None else f"{axis.maximum}"
            lines.append(f"  const int64_t n_{axis.name} = {value};")
        return "\n".join(lines)

    def _allowed(self) -> str:
        tests: list[str] = []
        for axis in self._instruction.size_arguments:
            low, high, step = allowed_sizes(axis)
            size = f"r[{self._fields.sizes[axis.name]}]"
            test = f"{size} < {low} || {size} > {high}"
            if step != 1:
                test += f" || ({size} - {low}) % {step} != 0"
            number = self._fields.sizes[axis.name]
            tests.append(f"  if ({test}) return {number};")
        body = "\n".join(tests)
        return f"static ALWAYS_INLINE int wrong_size(const int64_t *r) {{\n{body}\n  return -1;\n}}"

    # -- execution --------------------------------------------------------------------------------

    def _execute(self) -> str:
        lines = [
            "static bool execute(Run &run, const int64_t *r) {",
            "  if (int w = wrong_size(r); w >= 0) return run.fail(kSize, -1, -1, r[w], 0, w);",
            self._sizes(),
        ]
        for operand in self._operands:
            lines.append(operand.stride_checks())
        lines += self._bank_checks()
        lines += self._overlap_checks()
        lines += [operand.spread_check() for operand in self._operands if operand.is_output]
        written = set(self._instruction.outputs)
        for operand in self._operands:
            if operand.name in written:
                lines.append(operand.begin(self._start(operand.operand)))
            else:
                lines.append(operand.read())
        arguments = "".join(f", v_{operand.name}" for operand in self._operands)
        for number in range(len(self._computation.statements)):
            axes = self._instruction.axes
            largest = "".join(f", {axis.maximum}" for axis in axes)
            full = " && ".join(f"n_{axis.name} == {axis.maximum}" for axis in axes) or "true"
            # With constant sizes, compilers unroll and vectorize.
            lines.append(f"  if ({full}) compute{number}(run{largest}{arguments});")
            lines.append(f"  else compute{number}(run{self.size_arguments}{arguments});")
        lines += [operand.write() for operand in self._operands if operand.name in written]
        return "\n".join([*filter(None, lines), "  return true;\n}"])

    def _start(self, operand: Operand) -> str | None:
        """Return the value with which an output begins; None if it goes on from what is there."""
        statement = self._statement_of(operand.name)
        if statement.reduction is None:
            return "0"
        if self._instruction.accumulates:
            return None
        if statement.reduction in ("add", "mul"):
            return "0" if statement.reduction == "add" else "1"
        is_least = statement.reduction == "max"
        if not is_integer(operand.dtype):
            return "-INFINITY" if is_least else "INFINITY"
        bits = "32" if self.output_type(operand) == "int32_t" else "64"
        return f"INT{bits}_{'MIN' if is_least else 'MAX'}"

    def _statement_of(self, output: str) -> Assignment:
        for statement in self._computation.statements:
            if statement.store.operand == output:
                return statement
        raise LoweringError(f"{self._instruction.name}: nothing writes {output}")

    def _value(self, statement: Assignment) -> Term:
        dtypes = {operand.name: operand.dtype for operand in self._computation.operands}
        output = dtypes[statement.store.operand]
        wide = statement.reduction in ("add", "mul") and not is_integer(output)

        def read(access: Access) -> Term:
            text = self._by_name[access.operand]
            return element(f"v_{text.name}[{text.position(access.index)}]", text.operand.dtype)

        return scalar(statement.value, read, dtypes, wide=wide)

    def output_type(self, operand: Operand) -> str:
        """Return the type in C++ of an output's local array, in which its points are combined."""
        statements = [
            s for s in self._computation.statements if s.store.operand == operand.name
        ]
        values = [self._value(statement) for statement in statements]
        if not is_integer(operand.dtype):
            is_float = all(v.type != "double" for v in values) and operand.dtype != "float64"
            combined = any(s.reduction in ("add", "mul") for s in statements)
            # Integers become float64 before they are rounded to the output's type.
            exact = all(v.is_float for v in values)
            return "float" if is_float and exact and not combined else "double"
        low, high = dtype_info(operand.dtype).integer_range
        for statement, value in zip(statements, values, strict=True):
            if statement.reduction in ("add", "mul") and not self._instruction.saturates:
                # Sums and products wrap around in the output's bits, whenever that is done.
                continue
            if statement.reduction in ("add", "mul"):
                steps = (
                    (low + value.low, high + value.high)
                    if statement.reduction == "add"
                    else (-(2**63), 2**63)
                )
                low, high = min(low, steps[0]), max(high, steps[1])
            elif statement.reduction is not None:
                low, high = min(low, value.low), max(high, value.high)
            # Without a reduction the value is converted by the store: any bits above wrap around.
        return integer("", low, high).type

    def _compute(self, number: int) -> str:
        statement = self._computation.statements[number]
        operand = self._by_name[statement.store.operand]
        type = self.output_type(operand.operand)
        parameters = "".join(
            f", {'' if o.is_output else 'const '}{o.type} *__restrict v_{o.name}"
            for o in self._operands
        )
        lines = [
            f"static ALWAYS_INLINE void compute{number}(Run &run{self.size_parameters}{parameters}) {{"
        ]
        lines += [text.dimension_sizes() for text in self._operands if text.dimensions]
        for axis in self._loop_order(statement):
            lines.append(f"  for (int64_t x_{axis} = 0; x_{axis} < n_{axis}; x_{axis}++)")
        target = f"v_{operand.name}[{operand.position(statement.store.index)}]"
        value = self._value(statement).converted(type)
        lines.append("  {" + self._combination(statement, operand.operand, target, value, type) + "}")
        return "\n".join([*lines, "}"])

    def _combination(
        self, statement: Assignment, operand: Operand, target: str, value: str, type: str
    ) -> str:
        match statement.reduction:
            case None:
                return f" {target} = {value}; "
            case "max":
                return f" {target} = larger({target}, {value}); "
            case "min":
                return f" {target} = smaller({target}, {value}); "
            case reduction:
                symbol = "+" if reduction == "add" else "*"
        if not (self._instruction.saturates and is_integer(operand.dtype)):
            return f" {target} = {target} {symbol} {value}; "
        low, high = dtype_info(operand.dtype).integer_range
        return (
            f" {type} sum = {target} {symbol} {value};"
            f" {type} limited = {type}(clamped(sum, {low}LL, {high}LL));"
            f" run.saturations += sum != limited; {target} = limited; "
        )

    def _loop_order(self, statement: Assignment) -> list[str]:
        """Return the axes, outermost first, with one innermost that walks neighbours.

        Reduction axes keep their order, in which saturating sums are computed.
        """
        names = [axis.name for axis in self._computation.axes]
        reductions = [a.name for a in self._computation.axes if a.kind is AxisKind.REDUCTION]

        def strides(name: str) -> int:
            """Count the accesses that an axis moves by other than one element."""
            accesses = (*statement.reads, statement.store)
            return sum(
                any(index.coefficient(name) for index in access.index[:-1])
                or (bool(access.index) and access.index[-1].coefficient(name) not in (0, 1))
                for access in accesses
            )

        candidates = [n for n in names if n not in reductions[:-1]]
        if not candidates:
            return names
        innermost = min(candidates, key=lambda name: (strides(name), name in reductions))
        return [n for n in names if n != innermost] + [innermost]

    # -- checks -----------------------------------------------------------------------------------

    def _bank_checks(self) -> list[str]:
        lines: list[str] = []
        for first, second in self._instruction.banks_differ:
            a, b = self._by_name[first], self._by_name[second]
            if a.place.memory != b.place.memory:
                continue
            index = self.memory_index(a.place.memory)
            lines.append(
                f"  {{ int64_t bank = run.memories[{index}].setup.bank_rows;\n"
                f"    int64_t a_low, a_high, b_low, b_high;\n"
                f"    {a.rows('a')}\n    {b.rows('b')}\n"
                f"    if (a_low / bank <= b_high / bank && b_low / bank <= a_high / bank)\n"
                f"      return run.fail(kBanksEqual, {a.number}, {index}, a_low, 0, {b.number}, b_low);"
                " }"
            )
        return lines

    def _overlap_checks(self) -> list[str]:
        lines: list[str] = []
        for output in self._operands:
            for read in self._operands:
                same = read.place.memory == output.place.memory
                if not output.is_output or read.is_output or not same or not read.is_walked:
                    continue
                in_place = "true" if read.name in self._instruction.in_place else "false"
                index = self.memory_index(read.place.memory)
                body = (
                    f"std::vector<Span> a, b; {read.spans('a')} {output.spans('b')}\n"
                    f"    if (!apart(a, b, {in_place}))\n"
                    f"      return run.fail(kOverlap, {read.number}, {index}, "
                    f"{read.base}, 0, {output.number}, {output.base});"
                )
                if read.is_main:
                    test = f"{read.tensor} == {output.tensor}"
                    lines.append(f"  if ({test}) {{ {body} }}")
                else:
                    lines.append(
                        "  { int64_t a_low, a_high, b_low, b_high;\n"
                        f"    {read.rows('a')}\n    {output.rows('b')}\n"
                        f"    if (a_low <= b_high && b_low <= a_high) {{ {body} }} }}"
                    )
        return lines

    # -- time -------------------------------------------------------------------------------------

    def _touch(self) -> str:
        lines = [
            "static void touch(Touched &touched, const int64_t *r) {",
            "  if (wrong_size(r) >= 0) return;",
            self._sizes(),
            "  const Run &run = touched.run;",
        ]
        for operand in self._operands:
            lines.append(operand.touch(writes=False, old=self._instruction.reads_outputs))
        for operand in self._operands:
            if operand.is_output:
                lines.append(operand.touch(writes=True))
        return "\n".join([*filter(None, lines), "}"])

    def _cycles(self) -> str:
        terms = [
            " * ".join([f"c[{number}]", *(f"double(n_{axis})" for axis in axes)])
            for number, (axes, _) in enumerate(self._instruction.cycles)
        ]
        sizes = self._sizes()
        return (
            "static double cycles(const double *c, const int64_t *r) {\n"
            f"{sizes}\n  return {' + '.join(terms) or '0'};\n}}"
        )


class _OperandText:
    """Text about one operand of an instruction."""

    def __init__(self, operand: Operand, owner: _InstructionText) -> None:
        self.operand, self._owner = operand, owner
        self.name = operand.name
        instruction = owner.instruction
        names = [o.name for o in instruction.computation.operands]
        self.number = names.index(self.name)
        self.place: OperandPlace = instruction.places[self.name]
        self.is_output = self.name in instruction.outputs
        self.accesses = instruction.computation.access_maps[self.name]
        memory = owner.machine.memories.get(self.place.memory)
        self.kind = None if memory is None else memory.kind
        self.is_main = self.kind is MemoryKind.MAIN
        self.is_walked = self.kind in (MemoryKind.MAIN, MemoryKind.ROWS)
        self.index = -1 if memory is None else owner.memory_index(memory.name)
        self.dimensions = self.place.dimensions or tuple(
            f"d{number}" for number in range(len(operand.shape))
        )

    @property
    def type(self) -> str:
        """Type of the elements of the local array."""
        if self.is_output:
            return self._owner.output_type(self.operand)
        return local_type(self.operand.dtype)

    @property
    def codec(self) -> str:
        dtype = self.place.dtype
        if self.is_main and dtype in _PACKED:
            return _PACKED[dtype]
        default = f"Whole<{dtype}_t>" if dtype_info(dtype).is_integer and dtype not in _PACKED else dtype
        return _CODECS.get(dtype, default)

    @property
    def tensor(self) -> str:
        return f"r[{self._position('tensor')}]"

    @property
    def base(self) -> str:
        return f"r[{self._position('base')}]"

    def _position(self, field: str) -> int:
        return self._owner.fields.positions[self.name, field]

    def _digit_stride(self, key: str, inside: Iterable[str]) -> str:
        """Return the distance of a digit: a number, an argument, a register or dense."""
        source = self.place.strides.get(key)
        if source is None:
            is_last = self.is_main and key == self.dimensions[-1]
            source = 1 if is_last else StrideSource.DENSE
        if isinstance(source, int):
            return str(source)
        if source == StrideSource.DENSE:
            return " * ".join(inside) or "1"
        if source == StrideSource.ANY:
            return f"r[{self._owner.fields.strides[self.name, key]}]"
        return f"register_value(run, {self._owner.memory_index(source)})"

    def _strides(self) -> list[tuple[str, str, str]]:
        """Return name, digit and value of the stride of each digit that moves the row or element."""
        entries: list[tuple[str, str, str]] = []
        if self.is_main:
            for number, name in enumerate(self.dimensions):
                inside = [f"d_{self.name}_{d}" for d in self.dimensions[number + 1 :]]
                stride = self._digit_stride(name, inside)
                entries.append((f"s_{number}", f"i_{name}", stride))
            return entries
        for number, digit in enumerate(self.place.rows):
            inside = [_digit_size(d, f"d_{self.name}_{d.axis}") for d in self.place.rows[number + 1 :]]
            stride = self._digit_stride(str(digit), inside)
            entries.append((f"s_{number}", _digit(digit, f"i_{digit.axis}"), stride))
        return entries

    def _stride_registers(self) -> list[int]:
        names = [
            source
            for key, source in self.place.strides.items()
            if isinstance(source, str)
            and source not in (StrideSource.ANY, StrideSource.DENSE)
            and key in self.place.stride_keys
        ]
        return [self._owner.memory_index(name) for name in names]

    def stride_checks(self) -> str:
        return "\n".join(
            f"  if (!run.memories[{index}].is_set)"
            f" return run.fail(kRegisterUnset, {self.number}, {index}, 0, 0);\n"
            f"  if (run.clocks.enabled && !run.ordered({index}, 0, 0, {self.number}, {index}, false,"
            " false)) return false;"
            for index in self._stride_registers()
        )

    def dimension_sizes(self) -> str:
        """Declare the run-time size of each dimension and its distance in the local array."""
        sizes: list[str] = []
        for number, name in enumerate(self.dimensions):
            largest = [_largest(access.index[number]) for access in self.accesses]
            value = largest[0]
            for other in largest[1:]:
                value = other if other == value else f"std::max(int64_t({value}), int64_t({other}))"
            sizes.append(f"  const int64_t d_{self.name}_{name} = 1 + {value};")
        for number, name in enumerate(self.dimensions):
            inside = [f"d_{self.name}_{d}" for d in self.dimensions[number + 1 :]]
            sizes.append(f"  const int64_t l_{self.name}_{name} = {' * '.join(inside) or '1'};")
        return "\n".join(sizes)

    @property
    def elements(self) -> str:
        return " * ".join(f"d_{self.name}_{d}" for d in self.dimensions) or "1"

    def position(self, index: Sequence[IndexExpr]) -> str:
        """Return the position in the local array of an element by its index."""
        terms = [
            f"({_index_text(expression)}) * l_{self.name}_{name}"
            for expression, name in zip(index, self.dimensions, strict=True)
        ]
        return " + ".join(terms) or "0"

    @property
    def _is_simple(self) -> bool:
        """True if each dimension is walked by an axis of its own, from 0 in steps of 1."""
        if len(self.accesses) != 1:
            return False
        names = [index.single_iterator for index in self.accesses[0].index]
        return None not in names and len(set(names)) == len(names)

    def walk(self) -> str:
        """Define the function that visits all elements of the operand."""
        lines = [
            f"static thread_local Marks marks_{self.name};" if not self._is_simple else "",
            f"template <class V> static ALWAYS_INLINE bool walk_{self.name}"
            f"(V visit, const Run &run, const int64_t *r{self._owner.size_parameters}) {{",
            self.dimension_sizes(),
        ]
        lines += [f"  const int64_t {name} = {value};" for name, _, value in self._strides()]
        if not self._is_simple:
            lines.append(f"  marks_{self.name}.begin({self.elements});")
            for access in self.accesses:
                lines.append(self._marked_walk(access))
        else:
            lines.append(self._simple_walk())
        return "\n".join([*filter(None, lines), "  return true;\n}"])

    def _simple_walk(self) -> str:
        span = self._span_dimension()
        outer = [name for name in self.dimensions if name != span]
        # Rows outside, so that one row is visited at once.
        lines = [
            f"  for (int64_t i_{d} = 0; i_{d} < d_{self.name}_{d}; i_{d}++)" for d in outer
        ]
        zero = f"const int64_t i_{span} = 0; " if span else ""
        return "\n".join([*lines, f"  {{ {zero}{self._visit(span)} }}"])

    def _marked_walk(self, access: Access) -> str:
        names = list(access.iterators)
        lines = [f"  for (int64_t x_{n} = 0; x_{n} < n_{n}; x_{n}++)" for n in names]
        indices = " ".join(
            f"const int64_t i_{name} = {_index_text(index)};"
            for name, index in zip(self.dimensions, access.index, strict=True)
        )
        position = self.position(access.index)
        lines.append(
            f"  {{ {indices} if (!marks_{self.name}.seen({position})) {{ {self._visit(None)} }} }}"
        )
        return "\n".join(lines)

    def _span_dimension(self) -> str | None:
        """Return the dimension whose elements are neighbours in a row, or equidistant in main."""
        if self.is_main:
            return self.dimensions[-1] if self.dimensions else None
        if not self.place.lanes:
            return None
        last = self.place.lanes[-1]
        others = [*self.place.lanes[:-1], *self.place.rows]
        is_whole = last.divisor == 1 and last.modulus is None
        return last.axis if is_whole and all(d.axis != last.axis for d in others) else None

    def _visit(self, span: str | None) -> str:
        count = f"d_{self.name}_{span}" if span else "1"
        step = f"l_{self.name}_{span}" if span else "1"
        terms = [f"i_{name} * l_{self.name}_{name}" for name in self.dimensions]
        position = " + ".join(terms) or "0"
        moves = " + ".join(f"{digit} * {name}" for name, digit, _ in self._strides())
        place = " + ".join(filter(None, [self.base, moves]))
        if self.is_main:
            stride = self._strides()[-1][0] if span else "1"
            call = f"visit.main({self.tensor}, {place}, {count}, {stride}, {position}, {step})"
        else:
            lane = " + ".join([f"r[{self._position('lane')}]", *self._lane_terms()])
            call = f"visit.rows({place}, {lane}, {count}, {position}, {step})"
        return f"if (!{call}) return false;"

    def _lane_terms(self) -> list[str]:
        """Return each lane digit times the number of lanes inside of it, at the largest sizes."""
        shape = dict(zip(self.dimensions, self.operand.shape, strict=True))
        terms: list[str] = []
        for number, digit in enumerate(self.place.lanes):
            inside = math.prod(d.size(shape[d.axis]) for d in self.place.lanes[number + 1 :])
            terms.append(f"{_digit(digit, f'i_{digit.axis}')} * {inside}")
        return terms

    # -- access -----------------------------------------------------------------------------------

    def storage(self) -> str:
        return f"static thread_local std::vector<{self.type}> local_{self.name};"

    def _allocate(self) -> str:
        return (
            f"{self.dimension_sizes()}\n"
            f"  {self.type} *v_{self.name} = local(local_{self.name}, {self.elements});"
        )

    def _walk_call(self, visitor: str, arguments: str) -> str:
        return (
            f"  {{ {visitor} visit{{{arguments}}};"
            f" if (!walk_{self.name}(visit, run, r{self._owner.size_arguments})) return false; }}"
        )

    def _fixed_lane(self) -> str:
        if self.kind is not MemoryKind.ROWS or self.place.any_lane:
            return ""
        lane = f"r[{self._position('lane')}]"
        return (
            f"  if ({lane} != 0)"
            f" return run.fail(kLaneFixed, {self.number}, {self.index}, {self.base}, {lane});\n"
        )

    def read(self) -> str:
        """Copy the operand's elements into its local array."""
        lines = [self._allocate()]
        if self.is_walked:
            lines.append(
                self._fixed_lane()
                + self._walk_call(
                    f"Reader<{self.codec}, {self.type}>",
                    f"run, {self.number}, {self.index}, v_{self.name}",
                )
            )
        elif self.kind is MemoryKind.REGISTER:
            lines.append(self._register_read())
        else:
            lines.append(self._immediate_read())
        return "\n".join(lines)

    def _register_read(self) -> str:
        field = "integer" if is_integer(self.place.dtype) else "real"
        index = self.index
        return (
            f"  if (!run.memories[{index}].is_set)"
            f" return run.fail(kRegisterUnset, {self.number}, {index}, 0, 0);\n"
            f"  if (run.clocks.enabled && !run.ordered({index}, 0, 0, {self.number}, {index}, false,"
            f" false)) return false;\n"
            f"  v_{self.name}[0] = {self.type}(run.memories[{index}].{field});"
        )

    def _immediate_read(self) -> str:
        value = f"r[{self._position('value')}]"
        dtype = self.place.dtype
        if is_integer(dtype):
            low, high = dtype_info(dtype).integer_range
            # The least integer of 64 bits is no literal.
            ends = f"{low + 1}LL - 1, {high}LL"
            return (
                f"  if (clamped({value}, {ends}) != {value})"
                f" return run.fail(kImmediate, {self.number}, -1, {value}, 0);\n"
                f"  v_{self.name}[0] = {self.type}({value});"
            )
        return (
            f"  {{ double value; memcpy(&value, &{value}, 8); uint8_t stored[8];"
            f" {self.codec}::put(stored, 0, value);"
            f" v_{self.name}[0] = {self.codec}::get(stored, 0); }}"
        )

    def begin(self, start: str | None) -> str:
        """Fill an output's local array with a value, or with what the output holds (None)."""
        if start is None:
            return self.read()
        return (
            f"{self._allocate()}\n{self._fixed_lane()}"
            f"  std::fill_n(v_{self.name}, {self.elements}, {self.type}({start}));"
        )

    def write(self) -> str:
        """Copy an output's local array to where it lies."""
        if self.is_walked:
            return self._walk_call(
                f"Writer<{self.codec}, {self.type}>",
                f"run, {self.number}, {self.index}, v_{self.name}",
            )
        field = "integer" if is_integer(self.place.dtype) else "real"
        return (
            f"  if (run.clocks.enabled && !run.ordered({self.index}, 0, 0, {self.number}, "
            f"{self.index}, true, false)) return false;\n"
            f"  {{ uint8_t stored[8]; {self.codec}::put(stored, 0, v_{self.name}[0]);"
            f" run.memories[{self.index}].{field} = {self.codec}::get(stored, 0);"
            f" run.memories[{self.index}].is_set = true; }}"
        )

    # -- what is touched --------------------------------------------------------------------------

    def rows(self, prefix: str) -> str:
        """Assign the first and the last row to variables with a prefix."""
        steps = [f"{prefix}_low = {prefix}_high = {self.base};"]
        declarations = self.dimension_sizes()
        for (_, _, stride), digit in zip(self._strides(), self.place.rows, strict=True):
            last = f"(({_digit_size(digit, f'd_{self.name}_{digit.axis}')}) - 1)"
            steps.append(
                f"{{ int64_t reach = ({stride}) * {last};"
                f" {prefix}_low += std::min<int64_t>(reach, 0);"
                f" {prefix}_high += std::max<int64_t>(reach, 0); }}"
            )
        return "{ " + declarations.strip() + " " + " ".join(steps) + " }"

    def spread_check(self) -> str:
        """Check that no two elements of an output lie in the same place."""
        if not self.is_walked:
            return ""
        if self.is_main:
            sizes = [f"d_{self.name}_{d}" for d in self.dimensions]
        else:
            sizes = [_digit_size(d, f"d_{self.name}_{d.axis}") for d in self.place.rows]
        keys = self.dimensions if self.is_main else tuple(map(str, self.place.rows))
        if all(self.place.strides.get(key) == StrideSource.DENSE for key in keys):
            return ""
        strides = [stride for _, _, stride in self._strides()]
        steps = ", ".join(f"{{{s}, {n}}}" for s, n in zip(strides, sizes, strict=True))
        bits = dtype_info(self.place.dtype).storage_bits
        row_bits = "1" if self.is_main else f"(8 * run.memories[{self.index}].setup.row_bytes)"
        lane = "0" if self.is_main else f"twice->first % {row_bits} / {bits}"
        return (
            f"  {{ {self.dimension_sizes().strip()}\n"
            f"    if (!spread({{{steps}}})) {{\n"
            f"      std::vector<Span> a; {self.spans('a')}\n"
            f"      if (const Span *twice = shared(a)) return run.fail(kTwice, {self.number}, "
            f"{self.index}, twice->first / {row_bits}, {lane}, 0, {self.tensor if self.is_main else 0});"
            " } }"
        )

    def spans(self, variable: str) -> str:
        """Collect the spans of the operand in a variable."""
        row_bits = "0" if self.is_main else f"8 * run.memories[{self.index}].setup.row_bytes"
        bits = dtype_info(self.place.dtype).storage_bits
        return (
            f"walk_{self.name}(Spans{{{row_bits}, {bits}, {self.index}, {variable}}}, run, r"
            f"{self._owner.size_arguments});"
        )

    def touch(self, *, writes: bool, old: bool = False) -> str:
        """Collect what is read or written; ``old`` if an output is also read."""
        lines: list[str] = []
        if not writes:
            for index in self._stride_registers():
                lines.append(
                    f"  if (touched.collects) touched.add(touched.memory_base[{index}], 1, false);"
                )
            if self.is_output and not old:
                return "\n".join(lines)
        text = "true" if writes else "false"
        bits = dtype_info(self.place.dtype).storage_bits
        if self.is_walked:
            rows = 8 * size_bytes(self.place.dtype) if self.is_main else bits
            lines.append(
                f"  walk_{self.name}(Toucher{{touched, {self.index}, {rows}, {bits}, {text}}}, run, r"
                f"{self._owner.size_arguments});"
            )
        elif self.kind is MemoryKind.REGISTER:
            direction = f"2 * {self.index} + {int(writes)}"
            lines.append(
                f"  touched.bits[{direction}] += {bits};"
                f" if (touched.collects) touched.add(touched.memory_base[{self.index}], 1, {text});"
            )
        return "\n".join(lines)


def _digit(digit: TileDimension, index: str) -> str:
    text = index if digit.divisor == 1 else f"({index} / {digit.divisor})"
    return text if digit.modulus is None else f"({text} % {digit.modulus})"


def _digit_size(digit: TileDimension, size: str) -> str:
    text = size if digit.divisor == 1 else f"(({size} + {digit.divisor - 1}) / {digit.divisor})"
    if digit.modulus is None:
        return text
    return f"std::min<int64_t>({text}, {digit.modulus})"


def _index_text(index: IndexExpr) -> str:
    if not index.is_affine:
        raise LoweringError(f"the index {index} of an instruction is not affine")
    terms = [f"{term.coefficient} * x_{term.iterator}" for term in index.terms]
    return " + ".join([*terms, str(index.constant)] if index.constant or not terms else terms)


def _largest(index: IndexExpr) -> str:
    """Return the largest value of an index at run-time sizes."""
    terms = [
        f"{term.coefficient} * (n_{term.iterator} - 1)"
        for term in index.terms
        if term.coefficient > 0
    ]
    return " + ".join([*terms, str(index.constant)])


def whole_row_memories(machine: InstructionSet) -> Mapping[str, bool]:
    """Tell for each memory of rows whether all operands in it begin at lane 0."""
    places = [p for i in machine.instructions.values() for p in i.places.values()]
    return {
        memory.name: not any(p.any_lane for p in places if p.memory == memory.name)
        for memory in machine.row_memories()
    }
