"""Inline-PTX statements of a CUDA text: their places, their operands, and their C++."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cpembed.errors import LoweringError
from cpembed.targets.cuda.emulator.ptx.body import Body
from cpembed.targets.cuda.emulator.ptx.registers import CONSTRAINTS, Register, c_type
from cpembed.targets.cuda.emulator.ptx.syntax import (
    Declaration,
    Instruction,
    Label,
    Scope,
    Statement,
    parse,
)
from cpembed.targets.cuda.emulator.ptx.table import translated

_START = re.compile(r"\b(?:__asm__|asm)\b\s*(?:__volatile__|volatile)?\s*\(")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_OPERAND = re.compile(r'\s*(?:\[\w+\]\s*)?"([^"]*)"\s*\((.*)\)\s*$', re.DOTALL)
_CONSTRAINT = re.compile(rf"([=+]?)&?([{''.join(CONSTRAINTS)}n])")
_ESCAPES = {"n": "\n", "t": "\t", '"': '"', "\\": "\\", "r": "\r"}


@dataclass(frozen=True)
class _Operand:
    """An operand of a statement: its constraint and its C++ expression."""

    mode: str
    letter: str
    expression: str


def translate_inline_ptx(source: str) -> str:
    """Replace the inline PTX of a text by calls of the runtime; every line keeps its number.

    What cannot be translated becomes an assertion that fails where it is compiled, with the
    instruction and the reason.
    """
    parts, end_of_last = list[str](), 0
    for number, (start, end, inside) in enumerate(_statements(source)):
        # As many line breaks as the statement had keep the numbers of the lines below.
        lines = "\n" * source.count("\n", start, end)
        parts += [source[end_of_last:start], _block(number, inside), lines]
        end_of_last = end
    return "".join([*parts, source[end_of_last:]])


def _statements(source: str) -> Iterator[tuple[int, int, str]]:
    """Yield start, end and the text between the parentheses of each ``asm`` statement."""
    position = 0
    while match := _START.search(source, position):
        line = source.rfind("\n", 0, match.start()) + 1
        end = _closing(source, match.end())
        # A macro's definition stays: what it expands to cannot be seen here.
        if source[line:].lstrip().startswith("#") or end is None:
            position = match.end()
            continue
        yield match.start(), end + 1, source[match.end() : end]
        position = end + 1


def _closing(source: str, position: int) -> int | None:
    """Return the index of the parenthesis that closes the one open at ``position``."""
    depth = 1
    while position < len(source):
        string = _STRING.match(source, position)
        if string:
            position = string.end()
            continue
        # A parenthesis inside a string was skipped above.
        depth += (source[position] == "(") - (source[position] == ")")
        if depth == 0:
            return position
        position += 1
    return None


def _split(text: str, separator: str) -> list[str]:
    """Split at separators outside of strings and brackets."""
    parts, depth, position = [""], 0, 0
    while position < len(text):
        string = _STRING.match(text, position)
        if string:
            parts[-1] += string[0]
            position = string.end()
            continue
        depth += (text[position] in "([{") - (text[position] in ")]}")
        # "::" is a qualified name inside an operand, and two separators outside.
        if text[position] == separator and depth == 0:
            parts.append("")
        else:
            parts[-1] += text[position]
        position += 1
    return [part.strip() for part in parts]


def _block(number: int, inside: str) -> str:
    """Return the replacement of a statement, without its semicolon."""
    try:
        sections = _split(inside, ":")
        body = _body_text(sections[0], number)
        operands = [
            _operand(text, written=place == 0)
            for place, section in enumerate(sections[1:3])
            for text in filter(None, _split(section, ","))
        ]
        return _translated_block(number, parse(body), operands)
    except LoweringError as error:
        excerpt = " ".join(re.sub(r'[\\"]|\\[nt]', " ", "".join(_STRING.findall(inside))).split())
        reason = re.sub(r'["\\\n]', "'", str(error))
        return (
            f'static_assert(false, "the executor cannot execute this inline PTX: {reason}; '
            f"leave it out by #ifndef CPEMBED_EXECUTOR, or add it to "
            f'cpembed/targets/cuda/emulator/ptx: {excerpt[:120]}")'
        )


def _body_text(section: str, number: int) -> str:
    """Return the PTX of the string literals of a section."""
    literals = _STRING.findall(section)
    rest = _COMMENT.sub("", _STRING.sub("", section)).strip()
    if rest or not literals:
        raise LoweringError(f"its text has to be string literals, not {rest[:40]!r}")
    text = "".join(re.sub(r"\\(.)", _unescaped, literal[1:-1]) for literal in literals)
    return text.replace("%=", str(number))


def _unescaped(match: re.Match[str]) -> str:
    return _ESCAPES.get(match[1], match[0])


def _operand(text: str, *, written: bool) -> _Operand:
    match = _OPERAND.match(text)
    constraint = match and _CONSTRAINT.fullmatch(match[1])
    if match is None or constraint is None:
        raise LoweringError(f"the operand {' '.join(text.split())[:40]} has no constraint of CUDA")
    mode, letter = constraint.groups()
    if bool(mode) is not written or (letter == "n" and written):
        raise LoweringError(f"the constraint '{match[1]}' is in the wrong list of operands")
    return _Operand(mode, letter, match[2])


def _translated_block(
    number: int, statements: Sequence[Statement], operands: Sequence[_Operand]
) -> str:
    """Return a block: operands are read, instructions executed, results written."""
    registers = [
        Register(f"({operand.expression})", "b32", written=False, constant=True)
        if operand.letter == "n"
        else Register(f"ptx_o{place}", CONSTRAINTS[operand.letter], written=bool(operand.mode))
        for place, operand in enumerate(operands)
    ]
    body = Body(number, registers)
    translated_statements = [_translated_statement(body, statement) for statement in statements]
    lines = list[str]()
    for place, (operand, register) in enumerate(zip(operands, registers, strict=True)):
        lines += _entry(place, operand, register, by_reference=place in body.references)
        if place in body.places:
            place_of = f"executor::place<decltype(({operand.expression}))>(ptx_r{place})"
            lines[-1:] = [
                f"auto &&ptx_r{place} = {operand.expression};",
                lines[-1].replace(f"({operand.expression})", f"(ptx_r{place})"),
                f"const void *const ptx_p{place} = {place_of};",
            ]
    lines += translated_statements
    for place, operand in enumerate(operands):
        if operand.mode and place not in body.references:
            lines.append(f"executor::assign(ptx_l{place}, ptx_o{place});")
    # One statement, wherever a statement may stand.
    return f"do {{ {' '.join(lines)} }} while (0)"


def _entry(place: int, operand: _Operand, register: Register, *, by_reference: bool) -> list[str]:
    """Return the declarations of an operand's variable."""
    if register.constant:
        return []
    kind = c_type(register.type)
    lines = list[str]()
    if operand.mode:
        # Bound once, as its expression may have effects.
        lines.append(f"auto &&ptx_l{place} = {operand.expression};")
    if by_reference:
        return [*lines, f"static_assert(sizeof(ptx_l{place}) == sizeof({kind}));"]
    if operand.mode == "=":
        # An output that no instruction writes is rubbish, not what it was before.
        value = f"executor::rubbish<{kind}>()"
    else:
        source = f"ptx_l{place}" if operand.mode else operand.expression
        value = f"executor::operand<{kind}>({source})"
    return [*lines, f"{kind} ptx_o{place} = {value};"]


def _translated_statement(body: Body, statement: Statement) -> str:
    match statement:
        case Declaration():
            return body.declare(statement.type, statement.names)
        case Scope(opens=True):
            body.scopes.append({})
            return "{"
        case Scope():
            body.scopes.pop()
            return "}"
        case Label():
            return f"{body.label(statement.name)}:;"
        case Instruction():
            try:
                return translated(body, statement)
            except LoweringError as error:
                raise LoweringError(f"{statement.opcode}: {error}") from None
