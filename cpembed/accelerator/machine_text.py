"""C++ of an instruction set: functions that execute and time each instruction.

:func:`machine_text` generates the text from the description alone, so that it is the same for all
programs of a machine. Costs and capacities are no part of it: they are arguments of a run. What an
instruction does is its computation, on local copies of the boxes that its operands name.
"""

from __future__ import annotations

from cpembed.accelerator.operand_text import OperandText, size_arguments, size_parameters
from cpembed.accelerator.statement_text import (
    combination,
    counts_wraps,
    loop_order,
    start_value,
    value_term,
)
from cpembed.accelerator.trace import RecordFields
from cpembed.errors import LoweringError
from cpembed.hw.instruction import InstructionAxis
from cpembed.hw.isa import InstructionSet, IsaInstruction
from cpembed.ir.expression import Access


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
        self._operands = [
            OperandText(operand, instruction, machine, self._fields)
            for operand in self._computation.operands
        ]
        self._by_name = {text.name: text for text in self._operands}
        for operand in self._computation.operands:
            if operand.zero_outside:
                raise LoweringError(f"{instruction.name}: {operand.name} is read outside its shape")

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
        lines += [operand.stride_checks() for operand in self._operands]
        lines += self._bank_checks()
        lines += self._overlap_checks()
        lines += [operand.spread_check() for operand in self._operands if operand.is_output]
        written = set(self._instruction.outputs)
        for operand in self._operands:
            if operand.name in written:
                lines.append(operand.begin(start_value(self._instruction, operand.operand)))
                lines.append(operand.keep() if self._counts(operand) else "")
            else:
                lines.append(operand.read())
        arguments = "".join(f", v_{operand.name}" for operand in self._operands)
        for number in range(len(self._computation.statements)):
            axes = self._instruction.axes
            largest = "".join(f", {axis.maximum}" for axis in axes)
            full = " && ".join(f"n_{axis.name} == {axis.maximum}" for axis in axes) or "true"
            # With constant sizes, compilers unroll and vectorize.
            lines.append(f"  if ({full}) compute{number}(run{largest}{arguments});")
            sizes = size_arguments(self._instruction)
            lines.append(f"  else compute{number}(run{sizes}{arguments});")
        lines += [operand.wraps() for operand in self._operands if self._counts(operand)]
        lines += [operand.write() for operand in self._operands if operand.name in written]
        return "\n".join([*filter(None, lines), "  return true;\n}"])

    def _counts(self, operand: OperandText) -> bool:
        return operand.is_output and counts_wraps(self._instruction, operand.operand)

    def _compute(self, number: int) -> str:
        statement = self._computation.statements[number]
        operand = self._by_name[statement.store.operand]
        parameters = "".join(
            f", {'' if o.is_output else 'const '}{o.type} *__restrict v_{o.name}"
            for o in self._operands
        )
        parameters = size_parameters(self._instruction) + parameters
        lines = [f"static ALWAYS_INLINE void compute{number}(Run &run{parameters}) {{"]
        lines += [text.dimension_sizes() for text in self._operands if text.dimensions]
        lines += [
            f"  for (int64_t x_{axis} = 0; x_{axis} < n_{axis}; x_{axis}++)"
            for axis in loop_order(statement, self._computation)
        ]
        target = self._element(statement.store)
        value = value_term(statement, self._computation, self._element)
        text = combination(statement, self._instruction, operand.operand, target, value)
        return "\n".join([*lines, f"  {{{text}}}", "}"])

    def _element(self, access: Access) -> str:
        operand = self._by_name[access.operand]
        return f"v_{operand.name}[{operand.position(access.index)}]"

    # -- checks -----------------------------------------------------------------------------------

    def _bank_checks(self) -> list[str]:
        lines: list[str] = []
        for first, second in self._instruction.banks_differ:
            a, b = self._by_name[first], self._by_name[second]
            if a.place.memory != b.place.memory:
                continue
            index = a.index
            lines.append(
                f"  {{ int64_t bank = run.memories[{index}].setup.bank_rows;\n"
                f"    int64_t a_low, a_high, b_low, b_high;\n"
                f"    {a.rows('a')}\n    {b.rows('b')}\n"
                f"    if (a_low / bank <= b_high / bank && b_low / bank <= a_high / bank)\n"
                f"      return run.fail(kBanksEqual, {a.number}, {index}, a_low, 0, {b.number}, "
                "b_low); }"
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
                index = read.index
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
        old = self._instruction.reads_outputs
        lines += [operand.touch(writes=False, old=old) for operand in self._operands]
        lines += [operand.touch(writes=True) for operand in self._operands if operand.is_output]
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


def whole_row_memories(machine: InstructionSet) -> dict[str, bool]:
    """Tell for each memory of rows whether all operands in it begin at lane 0."""
    places = [p for i in machine.instructions.values() for p in i.places.values()]
    return {
        memory.name: not any(p.any_lane for p in places if p.memory == memory.name)
        for memory in machine.row_memories()
    }
