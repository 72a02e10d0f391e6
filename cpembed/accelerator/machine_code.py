"""The machine's own text of a program: C with loops around its instructions, and a manifest.

Each instruction is written by its template (``emit``, documented in ``docs/accelerators.md``).
Fields of a template become expressions of C over the loops' variables, so that a loop of the
program is a loop of the text. Instructions without a template are calls of a function of that
name, whose arguments are in the order of :func:`call_arguments`.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cpembed.accelerator.executor import Run
from cpembed.accelerator.program import Address, Issue, Loop, MainTensor, Node, Program
from cpembed.errors import LoweringError
from cpembed.files import make_folder, write_whole
from cpembed.hw.isa import IMMEDIATE, InstructionSet, IsaInstruction, MemoryKind
from cpembed.ir.dtypes import dtype_info, storage_bytes
from cpembed.ir.index import IndexExpr, IndexTerm

_C_TYPES = {"float32": "float", "float64": "double", "bool": "uint8_t"}
_KEYWORDS = frozenset(
    re.findall(
        r"\w+",
        "auto break case char const continue default do double else enum extern float for goto if "
        "inline int long register restrict return short signed sizeof static struct switch "
        "typedef union unsigned void volatile while",
    )
)
_FUNCTION_ISSUES = 400
"""Maximum number of instructions of a function: compilers take long for larger ones."""


def c_text(program: Program) -> str:
    """Return a program as C.

    The last function is ``void run_NAME(...)`` with a pointer for each tensor in the order of
    :attr:`~cpembed.accelerator.program.Program.tensors`. Tensors of int4 hold two values in a byte.

    Raises
    ------
    LoweringError
        If the name of a tensor or a loop is none in C.
    """
    # Prefixed, since a preamble may define functions of any name.
    name = "run_" + re.sub(r"\W", "_", program.name)
    return preamble(program.machine) + _Text(program, "part").functions(name)


def preamble(machine: InstructionSet) -> str:
    """Return the text before the functions of a machine's programs."""
    parts = ["#include <stddef.h>", "#include <stdint.h>", ""]
    if machine.preamble:
        parts.append(without_warnings(machine.preamble.rstrip()))
    return "\n".join(parts) + "\n"


def without_warnings(definitions: str) -> str:
    """Return definitions about which compilers do not warn where a program uses only some."""
    return "\n".join(
        [
            "#pragma GCC diagnostic push",
            '#pragma GCC diagnostic ignored "-Wunused-function"',
            '#pragma GCC diagnostic ignored "-Wunused-variable"',
            definitions,
            "#pragma GCC diagnostic pop",
            "",
        ]
    )


def program_function(program: Program, name: str) -> str:
    """Return a program as a static function, with a pointer for each of its tensors.

    Raises
    ------
    LoweringError
        If the name of a tensor or a loop is none in C.
    """
    return _Text(program, f"{name}_part").functions(name, "static ")


def manifest(program: Program, run: Run | None = None) -> dict[str, Any]:
    """Return what a person needs to call the text, and the numbers of a run.

    Layouts of tensors are those of :class:`~cpembed.accelerator.program.MainTensor`; bytes, cycles
    and energies are emulated, with the costs of the description.
    """
    machine = program.machine
    document: dict[str, Any] = {
        "program": program.name,
        "machine": {"name": machine.name, "clock_mhz": machine.clock_mhz, "source": machine.source},
        "tensors": [_tensor_document(tensor) for tensor in program.tensors.values()],
    }
    if run is not None:
        document["emulated"] = run.to_json()
    return document


def save(program: Program, folder: Path, run: Run | None = None) -> tuple[str, ...]:
    """Write a program in its machine's text, with its manifest.

    Parameters
    ----------
    program : Program
    folder : Path
        Folder of the files, which is made if it does not exist.
    run : Run, optional
        A run, whose numbers the manifest has.

    Returns
    -------
    tuple of str
        Names of the files.
    """
    make_folder(folder)
    text = json.dumps(manifest(program, run), indent=2)
    write_whole(folder / "program.c", c_text(program).encode())
    write_whole(folder / "manifest.json", f"{text}\n".encode())
    return ("program.c", "manifest.json")


def call_arguments(instruction: IsaInstruction, program: Program) -> tuple[str, ...]:
    """Return the fields of a template that names everything an instruction takes."""
    fields: list[str] = []
    for operand in instruction.computation.operands:
        place = instruction.places[operand.name]
        if place.memory == IMMEDIATE:
            fields.append(f"{operand.name}.value")
            continue
        match program.machine.memories[place.memory].kind:
            case MemoryKind.MAIN:
                fields.append(f"{operand.name}.address")
            case MemoryKind.ROWS:
                fields.append(f"{operand.name}.row")
                fields += [f"{operand.name}.lane"] if place.any_lane else []
            case MemoryKind.REGISTER:
                pass
        fields += [f"{operand.name}.stride.{key}" for key in place.stride_arguments]
    return (*fields, *(axis.name for axis in instruction.size_arguments))


def _tensor_document(tensor: MainTensor) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "role": tensor.role,
        "dtype": tensor.dtype,
        "shape": list(tensor.shape),
        "order": list(tensor.order),
        "before": list(tensor.before),
        "after": list(tensor.after),
        "blocks": {str(dimension): block for dimension, block in tensor.blocks.items()},
        "fill": tensor.fill,
        "elements": tensor.elements,
        "bytes": storage_bytes(tensor.elements, tensor.dtype),
    }


class _Text:
    def __init__(self, program: Program, part: str) -> None:
        self._program, self._part = program, part
        self._functions: list[str] = []
        self._tables: dict[tuple[str, tuple[int | float, ...]], str] = {}
        for name in program.tensors:
            _require_identifier(name, "tensor")

    def functions(self, name: str, qualifier: str = "") -> str:
        """Return the program as a function, after those of its parts."""
        body = list(self._body(self._program.body, 1, []))
        tables = [
            f"static const {c_type(dtype)} {table}[] = {{{', '.join(map(repr, numbers))}}};"
            for (dtype, numbers), table in self._tables.items()
        ]
        main = self._function(f"{qualifier}void {name}", body, [])
        return "\n".join([*tables, *self._functions, main])

    def _function(self, head: str, body: Sequence[str], loops: list[str]) -> str:
        code = "\n".join(line for line in body if not line.lstrip().startswith("//"))
        used = set(re.findall(r"\w+", code))
        # Tensors that stay on chip have a pointer too, as the manifest lists them.
        unused = [f"  (void){n};" for n in (*self._program.tensors, *loops) if n not in used]
        return "\n".join([f"{head}({self._parameters(loops)}) {{", *unused, *body, "}"]) + "\n"

    def _parameters(self, loops: list[str]) -> str:
        tensors = [
            f"{'const ' if tensor.is_loaded else ''}{c_type(tensor.dtype)} *{name}"
            for name, tensor in self._program.tensors.items()
        ]
        return ", ".join([*tensors, *(f"ptrdiff_t {loop}" for loop in loops)]) or "void"

    def _body(self, nodes: tuple[Node, ...], depth: int, loops: list[str]) -> Iterator[str]:
        margin = "  " * depth
        if len(nodes) > _FUNCTION_ISSUES:
            # Parts of a long sequence become functions of their own.
            for first in range(0, len(nodes), _FUNCTION_ISSUES):
                name = f"{self._part}{len(self._functions)}"
                self._functions.append("")
                number = len(self._functions) - 1
                body = self._body(nodes[first : first + _FUNCTION_ISSUES], 1, loops)
                self._functions[number] = self._function(f"static void {name}", list(body), loops)
                arguments = ", ".join([*self._program.tensors, *loops])
                yield f"{margin}{name}({arguments});"
            return
        for node in nodes:
            if isinstance(node, Loop):
                _require_identifier(node.name, "loop")
                if node.name in self._program.tensors:
                    raise LoweringError(f"loop {node.name!r} has the name of a tensor: rename it")
                yield (
                    f"{margin}for (ptrdiff_t {node.name} = 0; {node.name} < {node.extent}; "
                    f"{node.name}++) {{"
                )
                yield from self._body(node.body, depth + 1, [*loops, node.name])
                yield f"{margin}}}"
            else:
                yield from self._issue(node, margin)

    def _issue(self, issue: Issue, margin: str) -> Iterator[str]:
        instruction = self._program.machine.instructions[issue.instruction]
        template = instruction.emit
        if not template:
            fields = ", ".join(f"{{{f}}}" for f in call_arguments(instruction, self._program))
            template = f"{instruction.name}({fields});"
        text = self._filled(template, issue, instruction)
        for channel in issue.waits:
            text = f"wait({channel}); {text}"
        for channel in issue.signals:
            text = f"{text} signal({channel});"
        if issue.note:
            yield f"{margin}// {' '.join(issue.note.split())}"
        if issue.guards:
            guards = " && ".join(f"{index_c(guard)} >= 0" for guard in issue.guards)
            text = f"if ({guards}) {{ {text} }}"
        yield from (f"{margin}{line}" for line in text.splitlines())

    def _filled(self, template: str, issue: Issue, instruction: IsaInstruction) -> str:
        parts: list[str] = []
        for literal, field, _, _ in string.Formatter().parse(template):
            parts.append(literal)
            if field is not None:
                parts.append(self._field(field, issue, instruction))
        return "".join(parts)

    def _field(self, field: str, issue: Issue, instruction: IsaInstruction) -> str:
        name, _, attribute = field.partition(".")
        if not attribute:
            if name in issue.sizes:
                return _least(issue.sizes[name])
            return str(instruction.extents[name])
        address = issue.operands[name]
        if attribute.startswith("stride."):
            return str(address.strides[attribute.removeprefix("stride.")])
        match attribute:
            case "row" | "element":
                return index_c(address.base)
            case "lane":
                return index_c(address.lane)
            case "value":
                return self._value(address, instruction.places[name].dtype)
            case "tensor":
                return address.tensor
            case "byte":
                return self._byte(address)
            case _:
                return self._address(address)

    def _value(self, address: Address, dtype: str) -> str:
        """Return an immediate; those that differ by iteration are in a table before the functions.

        A program's tables begin with the name of its parts, so that programs share none.
        """
        if not address.table:
            return index_c(address.base) if address.value is None else repr(address.value)
        key = dtype, address.table
        table = self._tables.setdefault(key, f"{self._part}_numbers{len(self._tables)}")
        return f"{table}[{index_c(address.base)}]"

    def _address(self, address: Address) -> str:
        tensor = self._program.tensors[address.tensor]
        if dtype_info(tensor.dtype).storage_bits < 8:
            return f"({address.tensor} + {self._byte(address)})"
        return f"({address.tensor} + {index_c(address.base)})"

    def _byte(self, address: Address) -> str:
        bits = dtype_info(self._program.tensors[address.tensor].dtype).storage_bits
        return (
            index_c(address.base.times(bits // 8))
            if bits >= 8
            else f"{index_c(address.base)} / {8 // bits}"
        )


def _require_identifier(name: str, kind: str) -> None:
    if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) or name in _KEYWORDS:
        raise LoweringError(f"{kind} {name!r} cannot be a variable in C: rename it")


def c_type(dtype: str) -> str:
    """Return the type in C of a tensor's elements."""
    info = dtype_info(dtype)
    if info.is_integer:
        # Two values of four bits are a byte.
        return _C_TYPES.get(dtype, f"{info.in_memory}_t" if info.bits >= 7 else "uint8_t")
    return _C_TYPES.get(dtype, f"uint{info.bits}_t")


def _least(size: tuple[IndexExpr, ...]) -> str:
    text = index_c(size[0])
    for expression in size[1:]:
        bound = index_c(expression)
        text = f"({text} < {bound} ? {text} : {bound})"
    return text


def index_c(expression: IndexExpr) -> str:
    """Write an index in C; quotients and remainders are of numbers that are not negative."""
    parts = [
        f"{' - ' if term.coefficient < 0 else ' + '}{_c_term(term)}" for term in expression.terms
    ]
    if expression.constant or not parts:
        parts.append(f"{' - ' if expression.constant < 0 else ' + '}{abs(expression.constant)}")
    text = "".join(parts)
    text = text[3:] if text.startswith(" + ") else f"-{text[3:]}"
    return text if text.isalnum() else f"({text})"


def _c_term(term: IndexTerm) -> str:
    body = term.iterator if term.inner is None else index_c(term.inner)
    if term.divisor != 1:
        body = f"({body} / {term.divisor})"
    if term.modulus is not None:
        body = f"({body} % {term.modulus})"
    return body if abs(term.coefficient) == 1 else f"{abs(term.coefficient)} * {body}"
