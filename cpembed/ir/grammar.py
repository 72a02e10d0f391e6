"""Grammar of the expression language: scalar statements over indexed operands.

    O[n,k,p,q] += I[n,c,2*p+r,2*q+s] * W[k,c,r,s]
    R[i] += A[i,k,0]*B[k,0] - A[i,k,1]*B[k,1]; J[i] += A[i,k,0]*B[k,1] + A[i,k,1]*B[k,0]

    body      := statement (";" statement)*
    statement := access ("=" | "+=" | "max=" | "min=") value
    value     := sum (">>" sum)*
    sum       := product (("+" | "-") product)*
    product   := unary (("*" | "/") unary)*
    unary     := "-" unary | number | access | "(" value ")"
               | ("max" | "min") "(" value "," value ")"
               | ("abs" | "neg" | "exp" | "sqrt" | "rsqrt" | "tanh" | "erf") "(" value ")"
               | dtype "(" value ")" | "cast" "(" value "," dtype ")"
    access    := NAME "[" [index ("," index)*] "]"
    index     := affine expression of iterators and integers: + - * ( )

``int8(x)`` rounds and saturates, ``cast(x, int8)`` wraps around; what values are, and in which type
they are computed, is in :mod:`cpembed.ir.arithmetic`.

Printing is the inverse: ``str(computation)`` parses to the same statements again.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from cpembed.errors import WorkloadError
from cpembed.ir.computation import Assignment
from cpembed.ir.dtypes import DTYPES, INPUT_DTYPES
from cpembed.ir.expression import Access, Cast, Constant, Expression, Operation
from cpembed.ir.index import IndexExpr

FUNCTIONS: dict[str, int] = {
    "max": 2, "min": 2, "abs": 1, "neg": 1, "exp": 1, "sqrt": 1, "rsqrt": 1, "tanh": 1, "erf": 1,
}  # fmt: skip
"""Operations that are written as calls, with their number of arguments."""

_RESERVED = (*FUNCTIONS, *INPUT_DTYPES, "cast")
# The parser and all that walks trees are recursive, and Python's stack is limited.
_MAX_NESTING = 64
"""Maximum depth of parentheses and signs."""
# A sum of as many terms is a tree of that depth.
_MAX_OPERATIONS = 128
"""Maximum number of operations of a statement."""
# All such integers fit 64 bits.
_MAX_DIGITS = 18
"""Maximum number of digits of an integer."""
_TOKEN = re.compile(
    r"(?P<number>(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|\d+)"
    r"|(?P<name>[A-Za-z_][A-Za-z_0-9]*)"
    r"|(?P<symbol>>>|\+=|[-+*/=()\[\],;])",
    re.ASCII,
)


@dataclass(frozen=True)
class ParsedStatement(Assignment):
    """A statement with the columns, from 1, of its store and of each read, to locate errors."""

    columns: tuple[int, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class ParsedBody:
    """The statements of a computation, and its iterators with the column of their first use."""

    statements: tuple[ParsedStatement, ...]
    iterators: tuple[tuple[str, int], ...]

    @property
    def inputs(self) -> tuple[str, ...]:
        """Operands read, in the order of their first read."""
        reads = (read for statement in self.statements for read in statement.reads)
        return tuple(dict.fromkeys(read.operand for read in reads))

    @property
    def outputs(self) -> tuple[str, ...]:
        """Operands written, in the order of their first store."""
        return tuple(dict.fromkeys(statement.store.operand for statement in self.statements))

    @property
    def operands(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.inputs, *self.outputs)))


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    column: int

    @property
    def end(self) -> int:
        return self.column + len(self.text)

    def __str__(self) -> str:
        return repr(self.text) if self.text else "end of the expression"


def parse_body(text: str) -> ParsedBody:
    """Parse one statement or several, separated by semicolons.

    >>> parse_body("S[x] += A[x,z]; Q[x] += A[x,z] * A[x,z]").outputs
    ('S', 'Q')

    Raises :class:`WorkloadError`, in one line: the column, the token and the remedy.
    """
    return _Parser(text).body()


def located_error(column: int, token: str, problem: str) -> WorkloadError:
    """Make an error of the language.

    Parameters
    ----------
    column, token : int, str
        Position in the text, counted from 1, and the token there.
    problem : str
        What is wrong, and the remedy.
    """
    return WorkloadError(f"expression, column {column}, {token}: {problem}")


class _Parser:
    """Recursive descent, one method per rule of the grammar."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokenize(text)
        self._position = 0
        self._depth = self._operations = 0
        self._columns: list[int] = []
        self._iterators: dict[str, int] = {}
        self._operands: dict[str, tuple[int, int]] = {}

    def body(self) -> ParsedBody:
        statements = [self._statement()]
        while self._accept(";"):
            statements.append(self._statement())
        if self._next.kind != "end":
            raise self._error(
                self._next, "expected an operator + - * / >> or the end of the expression"
            )
        # Only now, because a name may become an iterator after it was used as an operand.
        for name, (_, column) in self._operands.items():
            if name in self._iterators:
                raise located_error(
                    column, repr(name), "is both an operand and an iterator; rename one of them"
                )
        return ParsedBody(tuple(statements), tuple(self._iterators.items()))

    def _statement(self) -> ParsedStatement:
        if self._next.kind == "end":
            raise self._error(
                self._next, "nothing to parse; write for example C[x,y] += A[x,z] * B[z,y]"
            )
        self._columns = []
        store = self._access()
        reduction = self._assignment()
        self._operations = 0
        value = self._value()
        return ParsedStatement(store, value, reduction, tuple(self._columns))

    # -- tokens ---------------------------------------------------------------------------------

    @property
    def _next(self) -> _Token:
        return self._tokens[self._position]

    def _take(self) -> _Token:
        token = self._next
        self._position += token.kind != "end"
        return token

    def _accept(self, symbol: str) -> bool:
        accepted = self._next.kind == "symbol" and self._next.text == symbol
        self._position += accepted
        return accepted

    def _expect(self, symbol: str, purpose: str) -> None:
        if not self._accept(symbol):
            raise self._error(self._next, f"expected {symbol!r} {purpose}")

    def _error(self, token: _Token, problem: str) -> WorkloadError:
        return located_error(token.column, str(token), problem)

    def _enter(self, token: _Token) -> None:
        self._depth += 1
        if self._depth > _MAX_NESTING:
            raise self._error(
                token, f"nested deeper than {_MAX_NESTING} levels; simplify the expression"
            )

    def _operation(self, op: str, args: tuple[Expression, ...]) -> Operation:
        self._operations += 1
        if self._operations > _MAX_OPERATIONS:
            raise self._error(
                self._next, f"more than {_MAX_OPERATIONS} operations; write several statements"
            )
        return Operation(op, args)

    # -- statement and values -------------------------------------------------------------------

    def _assignment(self) -> str | None:
        token = self._take()
        if token.kind == "symbol" and token.text == "=":
            return None
        if token.kind == "symbol" and token.text == "+=":
            return "add"
        if token.kind == "name" and token.text in ("max", "min") and self._accept("="):
            return token.text
        raise self._error(token, "expected one of = += max= min= after the output")

    def _value(self) -> Expression:
        left = self._sum()
        while self._accept(">>"):
            left = self._operation("shr", (left, self._sum()))
        return left

    def _sum(self) -> Expression:
        left = self._product()
        while self._next.text in ("+", "-"):
            op = "add" if self._take().text == "+" else "sub"
            left = self._operation(op, (left, self._product()))
        return left

    def _product(self) -> Expression:
        left = self._unary()
        while self._next.text in ("*", "/"):
            op = "mul" if self._take().text == "*" else "div"
            left = self._operation(op, (left, self._unary()))
        return left

    def _unary(self) -> Expression:
        token = self._next
        if not self._accept("-"):
            return self._primary()
        self._enter(token)
        arg = self._unary()
        self._depth -= 1
        # A negative constant is a leaf, so that its text parses to the same tree again.
        return Constant(-arg.value) if isinstance(arg, Constant) else Operation("neg", (arg,))

    def _primary(self) -> Expression:
        token = self._next
        if token.kind == "number":
            return Constant(self._number())
        if token.kind == "name":
            # One token of lookahead tells a call from an access; the last token is always "end".
            following = self._tokens[self._position + 1]
            return self._call() if following.text == "(" else self._access()
        if not self._accept("("):
            raise self._error(token, "expected a value: an operand NAME[...], a number or a call")
        self._enter(token)
        value = self._value()
        self._depth -= 1
        self._expect(")", f"for the '(' at column {token.column}")
        return value

    def _call(self) -> Expression:
        token = self._take()
        if token.text not in _RESERVED:
            raise self._error(
                token,
                f"no such function; use {' '.join(FUNCTIONS)}, an element type such as int8(...), "
                "cast, or index an operand with [...]",
            )
        self._enter(token)
        self._expect("(", "after the function")
        args = [self._value()]
        if token.text == "cast":
            self._expect(",", "and the dtype of the cast")
            dtype = self._take()
            if dtype.text not in DTYPES:
                raise self._error(dtype, f"unknown dtype; use one of {' '.join(DTYPES)}")
            result: Expression = Cast(dtype.text, args[0])
        elif token.text in INPUT_DTYPES:
            result = Cast(token.text, args[0], saturate=True)
        else:
            for _ in range(FUNCTIONS[token.text] - 1):
                self._expect(",", f"and another argument of {token.text}")
                args.append(self._value())
            result = Operation(token.text, tuple(args))
        self._expect(")", f"to close {token.text}(")
        self._depth -= 1
        return result

    def _number(self) -> int | float:
        token = self._take()
        # `2p` is two tokens; without this check the error would speak of a missing operator.
        if self._next.kind == "name" and self._next.column == token.end:
            raise self._error(self._next, f"write a product as {token.text}*{self._next.text}")
        if token.text.isdigit():
            if len(token.text) > _MAX_DIGITS:
                raise self._error(token, f"more than {_MAX_DIGITS} digits; use a smaller number")
            return int(token.text)
        value = float(token.text)
        if not math.isfinite(value):  # such as 1e999
            raise self._error(token, "exceeds float64; use a smaller number")
        return value

    # -- accesses and indices -------------------------------------------------------------------

    def _access(self) -> Access:
        token = self._take()
        if token.kind != "name":
            raise self._error(token, "expected an operand NAME[...]")
        if token.text in _RESERVED:
            raise self._error(token, "is a function and cannot name an operand; rename the operand")
        if not self._accept("["):
            if token.text in self._iterators:
                raise self._error(token, "an iterator is not a value; use it inside an index [...]")
            raise self._error(self._next, f"expected '[' and the index of {token.text}")
        index: list[IndexExpr] = []
        if not self._accept("]"):
            index.append(self._index())
            while self._accept(","):
                index.append(self._index())
            self._expect("]", f"to close {token.text}[")
        rank, _ = self._operands.setdefault(token.text, (len(index), token.column))
        if rank != len(index):
            raise self._error(
                token, f"has {len(index)} indices here and {rank} before; use as many"
            )
        self._columns.append(token.column)
        return Access(token.text, tuple(index))

    def _index(self) -> IndexExpr:
        total = self._index_product()
        while self._next.text in ("+", "-"):
            sign = 1 if self._take().text == "+" else -1
            total = total + self._index_product().times(sign)
        return total

    def _index_product(self) -> IndexExpr:
        left = self._index_atom()
        while self._next.text == "*":
            star = self._take()
            right = self._index_atom()
            if left.terms and right.terms:
                raise self._error(
                    star,
                    f"{left} times {right} is not affine; multiply iterators by numbers only",
                )
            left = left.times(right.constant) if left.terms else right.times(left.constant)
        if self._next.text == "/":
            raise self._error(
                self._next, "an index is a sum of axes times integers; only a value is divided"
            )
        return left

    def _index_atom(self) -> IndexExpr:
        token = self._next
        if token.text in ("-", "("):
            self._take()
            self._enter(token)
            inner = self._index_atom().times(-1) if token.text == "-" else self._index()
            self._depth -= 1
            if token.text == "(":
                self._expect(")", f"for the '(' at column {token.column}")
            return inner
        if token.kind == "number":
            value = self._number()
            if isinstance(value, float):
                raise self._error(token, "an index is made of integers; write an integer")
            return IndexExpr((), value)
        if token.kind != "name":
            raise self._error(token, "expected an iterator or an integer in the index")
        self._take()
        if self._next.text in ("[", "("):
            raise self._error(
                token, "the index is not affine; use sums of iterators times integers"
            )
        if token.text in _RESERVED:
            raise self._error(
                token, "is a function and cannot name an iterator; rename the iterator"
            )
        self._iterators.setdefault(token.text, token.column)
        return IndexExpr.iterator(token.text)


def _tokenize(text: str) -> tuple[_Token, ...]:
    tokens: list[_Token] = []
    position = 0
    while position < len(text):
        if text[position].isspace():
            position += 1
            continue
        match = _TOKEN.match(text, position)
        if match is None:
            character = text[position]
            remedy = (
                "remainders are not in the language: an index is a sum of axes times integers"
                if character == "%"
                else "is not in the language; use names, numbers and + - * / >> = ( ) [ ] , ;"
            )
            raise located_error(position + 1, repr(character), remedy)
        tokens.append(_Token(match.lastgroup or "symbol", match.group(), position + 1))
        position = match.end()
    tokens.append(_Token("end", "", len(text) + 1))
    return tuple(tokens)
