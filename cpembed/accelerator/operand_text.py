"""C++ about an operand of an instruction: where its elements lie, reads, writes and checks.

An operand has a *walk*, a function that visits all of its elements in spans (``native/machine.h``),
and a local array in which the computation finds them, row-major over its dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from cpembed.accelerator.scalar_text import local_type
from cpembed.accelerator.statement_text import combined_type, index_text
from cpembed.accelerator.trace import RecordFields
from cpembed.hw.instruction import TileDimension
from cpembed.hw.isa import (
    InstructionSet,
    IsaInstruction,
    MemoryKind,
    OperandPlace,
    StrideSource,
)
from cpembed.ir.computation import Operand
from cpembed.ir.dtypes import dtype_info, is_integer
from cpembed.ir.expression import Access
from cpembed.ir.index import IndexExpr

_CODECS = {
    "float32": "Whole<float>", "float64": "Whole<double>", "bool": "Whole<uint8_t>",
    "int7": "Whole<int8_t>", "uint7": "Whole<uint8_t>",
}  # fmt: skip
"""Codecs of element types (``native/numbers.h``) that are not named like them."""
_PACKED = {"int4": "Narrow<4, true>", "uint4": "Narrow<4, false>"}
"""Codecs in main memory of types whose values are packed in rows."""


def size_parameters(instruction: IsaInstruction) -> str:
    """Return the sizes of all axes as further parameters of a function."""
    return "".join(f", int64_t n_{axis.name}" for axis in instruction.axes)


def size_arguments(instruction: IsaInstruction) -> str:
    """Return the sizes of all axes as further arguments of a call."""
    return "".join(f", n_{axis.name}" for axis in instruction.axes)


class OperandText:
    """Text about one operand of an instruction.

    Parameters
    ----------
    operand : Operand
    instruction : IsaInstruction
    machine : InstructionSet
    fields : RecordFields
        Positions of the numbers of the instruction's records, which the text calls ``r``.
    """

    def __init__(
        self,
        operand: Operand,
        instruction: IsaInstruction,
        machine: InstructionSet,
        fields: RecordFields,
    ) -> None:
        self.operand, self._instruction = operand, instruction
        self._machine, self._fields = machine, fields
        self.name = operand.name
        names = [o.name for o in instruction.computation.operands]
        self.number = names.index(self.name)
        self.place: OperandPlace = instruction.places[self.name]
        self.is_output = self.name in instruction.outputs
        self.accesses = instruction.computation.access_maps[self.name]
        memory = machine.memories.get(self.place.memory)
        self.kind = None if memory is None else memory.kind
        self.is_main = self.kind is MemoryKind.MAIN
        self.is_walked = self.kind in (MemoryKind.MAIN, MemoryKind.ROWS)
        self.index = -1 if memory is None else self._memory_index(memory.name)
        self.dimensions = self.place.dimensions or tuple(
            f"d{number}" for number in range(len(operand.shape))
        )

    def _memory_index(self, name: str) -> int:
        return list(self._machine.memories).index(name)

    @property
    def type(self) -> str:
        """Type of the elements of the local array."""
        if self.is_output:
            return combined_type(self._instruction, self.operand)
        return local_type(self.operand.dtype)

    @property
    def codec(self) -> str:
        dtype = self.place.dtype
        if self.is_main and dtype in _PACKED:
            return _PACKED[dtype]
        default = (
            f"Whole<{dtype}_t>" if dtype_info(dtype).is_integer and dtype not in _PACKED else dtype
        )
        return _CODECS.get(dtype, default)

    @property
    def tensor(self) -> str:
        return f"r[{self._position('tensor')}]"

    @property
    def base(self) -> str:
        return f"r[{self._position('base')}]"

    def _position(self, field: str) -> int:
        return self._fields.positions[self.name, field]

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
            return f"r[{self._fields.strides[self.name, key]}]"
        return f"register_value(run, {self._memory_index(source)})"

    def _strides(self) -> list[tuple[str, str, str]]:
        """Return the name, the digit and the stride of all that moves the row or the element."""
        entries: list[tuple[str, str, str]] = []
        if self.is_main:
            for number, name in enumerate(self.dimensions):
                inside = [f"d_{self.name}_{d}" for d in self.dimensions[number + 1 :]]
                stride = self._digit_stride(name, inside)
                entries.append((f"s_{number}", f"i_{name}", stride))
            return entries
        for number, digit in enumerate(self.place.rows):
            inside = [
                _digit_size(d, f"d_{self.name}_{d.axis}") for d in self.place.rows[number + 1 :]
            ]
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
        return [self._memory_index(name) for name in names]

    def stride_checks(self) -> str:
        return "\n".join(
            f"  if (!run.memories[{index}].is_set)"
            f" return run.fail(kRegisterUnset, {self.number}, {index}, 0, 0);\n"
            f"  if (run.clocks.enabled && !run.ordered({index}, 0, 0, {self.number}, {index}, "
            "false, false)) return false;"
            for index in self._stride_registers()
        )

    def dimension_sizes(self) -> str:
        """Declare the run-time size of each dimension and its distance in the local array."""
        sizes: list[str] = []
        for number, name in enumerate(self.dimensions):
            largest = [_largest(access.index[number]) for access in self.accesses]
            value = largest[0]
            for index in largest[1:]:
                if index != value:
                    value = f"std::max(int64_t({value}), int64_t({index}))"
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
            f"({index_text(expression)}) * l_{self.name}_{name}"
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
            (
                f"template <class V> static ALWAYS_INLINE bool walk_{self.name}"
                f"(V visit, const Run &run, const int64_t *r{size_parameters(self._instruction)})"
                " {"
            ),
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
        lines = [f"  for (int64_t i_{d} = 0; i_{d} < d_{self.name}_{d}; i_{d}++)" for d in outer]
        zero = f"const int64_t i_{span} = 0; " if span else ""
        return "\n".join([*lines, f"  {{ {zero}{self._visit(span)} }}"])

    def _marked_walk(self, access: Access) -> str:
        names = list(access.iterators)
        lines = [f"  for (int64_t x_{n} = 0; x_{n} < n_{n}; x_{n}++)" for n in names]
        indices = " ".join(
            f"const int64_t i_{name} = {index_text(index)};"
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
        digits = [*self.place.lanes[:-1], *self.place.rows]
        is_whole = last.divisor == 1 and last.modulus is None
        return last.axis if is_whole and all(d.axis != last.axis for d in digits) else None

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
        type = f"std::vector<{self.type}>"
        return f"static thread_local {type} local_{self.name}, before_{self.name};"

    def _allocate(self) -> str:
        return (
            f"{self.dimension_sizes()}\n"
            f"  {self.type} *v_{self.name} = local(local_{self.name}, {self.elements});"
        )

    def _walk_call(self, visitor: str, arguments: str) -> str:
        call = f"walk_{self.name}(visit, run, r{size_arguments(self._instruction)})"
        return f"  {{ {visitor} visit{{{arguments}}}; if (!{call}) return false; }}"

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
            f"  if (run.clocks.enabled && !run.ordered({index}, 0, 0, {self.number}, {index}, "
            f"false, false)) return false;\n"
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

    def keep(self) -> str:
        """Copy an output's local array, to see later which sums wrapped around."""
        return (
            f"  {self.type} *old_{self.name} = local(before_{self.name}, {self.elements});\n"
            f"  std::copy_n(v_{self.name}, {self.elements}, old_{self.name});"
        )

    def wraps(self) -> str:
        """Count the sums that wrapped around since :meth:`keep`."""
        low, high = dtype_info(self.operand.dtype).integer_range
        return (
            f"  run.wraps += wrapped_sums(old_{self.name}, v_{self.name}, {self.elements}, "
            f"{low}, {high});"
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
        tensor = self.tensor if self.is_main else "0"
        return (
            f"  {{ {self.dimension_sizes().strip()}\n"
            f"    if (!spread({{{steps}}})) {{\n"
            f"      std::vector<Span> a; {self.spans('a')}\n"
            f"      if (const Span *twice = shared(a)) return run.fail(kTwice, {self.number}, "
            f"{self.index}, twice->first / {row_bits}, {lane}, 0, {tensor});"
            " } }"
        )

    def spans(self, variable: str) -> str:
        """Collect the spans of the operand in a variable."""
        row_bits = "0" if self.is_main else f"8 * run.memories[{self.index}].setup.row_bytes"
        bits = dtype_info(self.place.dtype).storage_bits
        return (
            f"walk_{self.name}(Spans{{{row_bits}, {bits}, {self.index}, {variable}}}, run, r"
            f"{size_arguments(self._instruction)});"
        )

    def touch(self, *, writes: bool, old: bool = False) -> str:
        """Collect what is read or written; ``old`` if an output is also read."""
        lines: list[str] = []
        if not writes:
            lines += [
                f"  if (touched.collects) touched.add(touched.memory_base[{index}], 1, false);"
                for index in self._stride_registers()
            ]
            if self.is_output and not old:
                return "\n".join(lines)
        text = "true" if writes else "false"
        bits = dtype_info(self.place.dtype).storage_bits
        if self.is_walked:
            lines.append(
                f"  walk_{self.name}(Toucher{{touched, {self.index}, {bits}, {text}}}, run, "
                f"r{size_arguments(self._instruction)});"
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


def _largest(index: IndexExpr) -> str:
    """Return the largest value of an index at run-time sizes."""
    terms = [
        f"{term.coefficient} * (n_{term.iterator} - 1)"
        for term in index.terms
        if term.coefficient > 0
    ]
    return " + ".join([*terms, str(index.constant)])
