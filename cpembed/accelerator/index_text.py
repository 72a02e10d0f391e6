"""Index expressions of programs as text, read back: the inverse of ``str(expression)``."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from cpembed.ir.index import IndexExpr, IndexTerm

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+)|(?P<name>[A-Za-z_]\w*)|(?P<symbol>//|[-+*%()]))", re.ASCII
)
_MAX_DIGITS = 18
_MAX_NESTING = 64


class IndexSyntaxError(ValueError):
    """An expression that cannot be read; ``column`` counts from 0 in the line."""

    def __init__(self, column: int, problem: str) -> None:
        super().__init__(problem)
        self.column = column


@dataclass
class IndexReader:
    """Reader of index expressions in a line, from a position on.

    >>> reader = IndexReader("2*(i//4) + j%8 - 1, k")
    >>> str(reader.expression()), reader.position
    ('2*(i//4) + j%8 - 1', 18)
    """

    line: str
    position: int = 0
    depth: int = 0

    def expression(self) -> IndexExpr:
        """Read a sum up to the first character that cannot continue it.

        Raises :class:`IndexSyntaxError` if there is none.
        """
        total = self._product()
        while (symbol := self._peek()) in ("+", "-"):
            self._take()
            part = self._product()
            total = total + (part if symbol == "+" else part.times(-1))
        return total

    def _match(self) -> re.Match[str] | None:
        return _TOKEN.match(self.line, self.position)

    def _peek(self) -> str:
        match = self._match()
        return match.group().strip() if match else ""

    def _take(self) -> re.Match[str]:
        match = self._match()
        if match is None:
            raise IndexSyntaxError(self.position, "expected a number, a loop or '('")
        self.position = match.end()
        return match

    def _product(self) -> IndexExpr:
        left = self._digit()
        while self._peek() == "*":
            self._take()
            start = self.position
            right = self._digit()
            if left.terms and right.terms:
                raise IndexSyntaxError(start, "loops can be multiplied by numbers only")
            left = left.times(right.constant) if left.terms else right.times(left.constant)
        return left

    def _digit(self) -> IndexExpr:
        value = self._atom()
        while (symbol := self._peek()) in ("//", "%"):
            self._take()
            start = self.position
            number = self._atom()
            if number.terms or number.constant < 1:
                raise IndexSyntaxError(start, f"{symbol} takes a number of at least 1")
            value = (
                _divided(value, number.constant)
                if symbol == "//"
                else _remainder(value, number.constant)
            )
        return value

    def _atom(self) -> IndexExpr:
        match = self._take()
        if match["number"]:
            if len(match["number"]) > _MAX_DIGITS:
                raise IndexSyntaxError(match.start("number"), f"more than {_MAX_DIGITS} digits")
            return IndexExpr((), int(match["number"]))
        if match["name"]:
            return IndexExpr.iterator(match["name"])
        column = match.start("symbol")
        if match["symbol"] not in ("-", "("):
            raise IndexSyntaxError(column, "expected a number, a loop or '('")
        self.depth += 1
        if self.depth > _MAX_NESTING:
            raise IndexSyntaxError(column, f"nested deeper than {_MAX_NESTING} levels")
        if match["symbol"] == "-":
            value = self._digit().times(-1)
        else:
            value = self.expression()
            if self._peek() != ")":
                raise IndexSyntaxError(self.position, "expected ')'")
            self._take()
        self.depth -= 1
        return value


def _single(value: IndexExpr) -> IndexTerm | None:
    """Return the only term of an expression that is nothing but one digit."""
    if len(value.terms) == 1 and not value.constant and value.terms[0].coefficient == 1:
        return value.terms[0]
    return None


def _divided(value: IndexExpr, divisor: int) -> IndexExpr:
    if not value.terms:
        return IndexExpr((), value.constant // divisor)
    term = _single(value)
    if term is not None and term.modulus is None and term.divisor == 1:
        return IndexExpr.sum([replace(term, divisor=divisor)])
    return IndexExpr.sum([IndexTerm.digit(value, divisor=divisor)])


def _remainder(value: IndexExpr, modulus: int) -> IndexExpr:
    if not value.terms:
        return IndexExpr((), value.constant % modulus)
    term = _single(value)
    if term is not None and term.modulus is None:
        return IndexExpr.sum([replace(term, modulus=modulus)])
    return IndexExpr.sum([IndexTerm.digit(value, modulus=modulus)])
