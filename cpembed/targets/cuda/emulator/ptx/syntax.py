"""Grammar of an inline-PTX body: declarations, labels, and instructions with their operands.

Text between ``{`` and ``}`` at the beginning of a statement is a scope of register names; elsewhere
it is a vector of operands.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from cpembed.errors import LoweringError


@dataclass(frozen=True)
class Placeholder:
    """``%2``: an operand of the ``asm`` statement by its number."""

    number: int


@dataclass(frozen=True)
class Name:
    """A register or a label; ``_`` is a destination that is not used."""

    name: str


@dataclass(frozen=True)
class Special:
    """A special register, ``laneid`` or ``tid.x`` for instance."""

    name: str


@dataclass(frozen=True)
class Immediate:
    """A constant: its value as C++, and whether it has a floating-point type."""

    text: str
    floating: bool = False


@dataclass(frozen=True)
class Negation:
    """``!p``."""

    operand: Operand


@dataclass(frozen=True)
class Vector:
    """``{a, b}``."""

    items: tuple[Operand, ...]


@dataclass(frozen=True)
class Address:
    """``[base + offset, {coordinates}]``: the first expression, and what follows its comma."""

    base: Operand
    offset: Operand | None = None
    rest: tuple[Operand, ...] = ()


@dataclass(frozen=True)
class Pair:
    """``p|q``: two destinations of one instruction."""

    first: Operand
    second: Operand


Operand = Placeholder | Name | Special | Immediate | Negation | Vector | Address | Pair


@dataclass(frozen=True)
class Declaration:
    """``.reg .TYPE name, other<COUNT>;``."""

    type: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class Label:
    """``name:``."""

    name: str


@dataclass(frozen=True)
class Scope:
    """Beginning or end of a scope of names."""

    opens: bool


@dataclass(frozen=True)
class Instruction:
    """``@predicate opcode operands;``; ``opcode`` includes its modifiers."""

    opcode: str
    operands: tuple[Operand, ...]
    predicate: Operand | None = None


Statement = Declaration | Label | Scope | Instruction

_TOKEN = re.compile(
    r"""
    (?P<space>\s+|//[^\n]*|/\*.*?\*/)
  | (?P<directive>\.[A-Za-z]\w*)
  | (?P<placeholder>%\d+)
  | (?P<special>%%?[A-Za-z]\w*(?:\.[xyzw])?)
  | (?P<float>0[fF][0-9A-Fa-f]{8}(?!\w)|0[dD][0-9A-Fa-f]{16}(?!\w)|\d+\.\d*(?:[eE][+-]?\d+)?)
  | (?P<integer>0[xX][0-9A-Fa-f]+U?|0[bB][01]+U?|\d+U?)
  | (?P<word>[A-Za-z_$][\w$]*(?:\.[\w:]+)*)
  | (?P<mark>[{}\[\](),;:@!|+\-<>])
    """,
    re.VERBOSE | re.DOTALL,
)

_MAX_REGISTERS = 1024
"""Maximum number of registers that one declaration may name."""


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str


def parse(body: str) -> tuple[Statement, ...]:
    """Return the statements of a body of inline PTX.

    Raises
    ------
    LoweringError
        If the body is not PTX; the message names what is not.
    """
    return tuple(_Parser(tuple(_tokens(body))).statements())


def _tokens(body: str) -> Iterator[_Token]:
    position = 0
    while position < len(body):
        match = _TOKEN.match(body, position)
        if match is None:
            raise LoweringError(f"{body[position : position + 20]!r} is not PTX")
        position = match.end()
        if match.lastgroup != "space":
            assert match.lastgroup is not None
            yield _Token(match.lastgroup, match[0])


_END = _Token("end", "the end")


class _Parser:
    """Recursive descent over the tokens of a body."""

    def __init__(self, tokens: tuple[_Token, ...]) -> None:
        self._tokens, self._position = tokens, 0

    def statements(self) -> Iterator[Statement]:
        depth = 0
        while self._token is not _END:
            if self._accept(";"):
                continue
            if self._accept("{"):
                depth += 1
                yield Scope(opens=True)
            elif self._accept("}"):
                depth -= 1
                yield Scope(opens=False)
            else:
                yield self._statement()
            if depth < 0:
                raise LoweringError("a closing brace has no opening one")
        if depth:
            raise LoweringError("an opening brace has no closing one")

    @property
    def _token(self) -> _Token:
        return self._tokens[self._position] if self._position < len(self._tokens) else _END

    def _next(self, kind: str, meaning: str) -> str:
        token = self._token
        if token.kind != kind:
            raise LoweringError(f"{token.text!r} is where {meaning} should be")
        self._position += 1
        return token.text

    def _accept(self, mark: str) -> bool:
        matches = self._token == _Token("mark", mark)
        self._position += matches
        return matches

    def _expect(self, mark: str) -> None:
        if not self._accept(mark):
            raise LoweringError(f"{self._token.text!r} is where {mark!r} should be")

    def _statement(self) -> Statement:
        if self._token.kind == "directive":
            return self._declaration()
        predicate = self._predicate() if self._accept("@") else None
        word = self._next("word", "an instruction")
        if predicate is None and self._accept(":"):
            return Label(word)
        operands: list[Operand] = []
        if self._token != _Token("mark", ";") and self._token is not _END:
            operands.append(self._operand())
            while self._accept(","):
                operands.append(self._operand())
        # The last instruction of a body may lack its semicolon.
        if self._token is not _END:
            self._expect(";")
        return Instruction(word, tuple(operands), predicate)

    def _declaration(self) -> Declaration:
        directive = self._next("directive", "a directive")
        if directive != ".reg":
            raise LoweringError(f"the directive {directive} is not emulated; only .reg is")
        kind = self._next("directive", "the type of registers").removeprefix(".")
        names: list[str] = []
        while True:
            name = self._next("word", "the name of a register")
            if self._accept("<"):
                count = int(self._next("integer", "a number of registers"))
                self._expect(">")
                if not 1 <= count <= _MAX_REGISTERS:
                    raise LoweringError(f"{count} registers {name}: at most {_MAX_REGISTERS}")
                names += [f"{name}{number}" for number in range(count)]
            else:
                names.append(name)
            if not self._accept(","):
                break
        self._expect(";")
        return Declaration(kind, tuple(names))

    def _predicate(self) -> Operand:
        negated = self._accept("!")
        operand = self._atom()
        return Negation(operand) if negated else operand

    def _operand(self) -> Operand:
        if self._accept("{"):
            return Vector(self._list("}"))
        if self._accept("["):
            return self._address()
        if self._accept("!"):
            return Negation(self._atom())
        first = self._atom()
        return Pair(first, self._atom()) if self._accept("|") else first

    def _list(self, closing: str) -> tuple[Operand, ...]:
        items = [self._operand()]
        while self._accept(","):
            items.append(self._operand())
        self._expect(closing)
        return tuple(items)

    def _address(self) -> Address:
        base, offset = self._atom(), None
        # The sign of a negative offset belongs to its number.
        if self._accept("+") or self._token == _Token("mark", "-"):
            offset = self._atom()
        if self._accept(","):
            return Address(base, offset, self._list("]"))
        self._expect("]")
        return Address(base, offset)

    def _atom(self) -> Operand:
        sign = "-" if self._accept("-") else ""
        token = self._token
        self._position += 1
        match token.kind:
            case "placeholder" if not sign:
                return Placeholder(int(token.text[1:]))
            case "special" if not sign:
                return Special(token.text.lstrip("%"))
            case "word" if not sign:
                return Name(token.text)
            case "integer":
                # The suffix of PTX is that of C++ as well.
                return Immediate(f"{sign}{token.text}")
            case "float":
                return Immediate(f"{sign}{_float(token.text)}", floating=True)
            case _:
                raise LoweringError(f"{token.text!r} is where an operand should be")


def _float(text: str) -> str:
    """Return a floating-point constant as C++; ``0f`` and ``0d`` precede its bits."""
    if text[:2].lower() == "0f":
        return f"executor::bits<float>(0x{text[2:]}u)"
    if text[:2].lower() == "0d":
        return f"executor::bits<double>(0x{text[2:]}ull)"
    return text
