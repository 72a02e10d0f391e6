"""Scalar expressions of a computation: reads of operands, constants and scalar operations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cpembed.ir.index import IndexExpr


@dataclass(frozen=True)
class Access:
    """An element of an operand, with one index expression per dimension; as a leaf, a read.

    >>> str(Access("A", (IndexExpr.iterator("x"), IndexExpr((), 1))))
    'A[x, 1]'
    """

    operand: str
    index: tuple[IndexExpr, ...]

    @property
    def iterators(self) -> tuple[str, ...]:
        """Iterators of all indices, in order of first appearance."""
        return tuple(dict.fromkeys(name for index in self.index for name in index.iterators))

    def __str__(self) -> str:
        return f"{self.operand}[{', '.join(str(i) for i in self.index)}]"


@dataclass(frozen=True)
class Constant:
    """A number."""

    value: int | float

    def __str__(self) -> str:
        return repr(self.value)


@dataclass(frozen=True)
class Operation:
    """A scalar operation; ``op`` is a key of :data:`OPERATIONS`."""

    op: str
    args: tuple[Expression, ...]

    def __str__(self) -> str:
        symbol = OPERATIONS[self.op].symbol
        if symbol and len(self.args) == 2:
            return f"({self.args[0]} {symbol} {self.args[1]})"
        return f"{self.op}({', '.join(str(a) for a in self.args)})"


@dataclass(frozen=True)
class Cast:
    """A conversion of a value to an element type and back to that of the arithmetic."""

    dtype: str
    arg: Expression

    def __str__(self) -> str:
        return f"cast({self.arg}, {self.dtype})"


Expression = Access | Constant | Operation | Cast


@dataclass(frozen=True)
class OperationKind:
    """Properties of an operation, for the dataflow graph and the notation.

    ``neutral`` is the neutral element of the operation as a reduction, if there is a finite one.
    """

    name: str
    commutative: bool = False
    symbol: str | None = None
    neutral: int | float | None = None


OPERATIONS: dict[str, OperationKind] = {
    kind.name: kind
    for kind in (
        OperationKind("add", commutative=True, symbol="+", neutral=0),
        OperationKind("sub", symbol="-"),
        OperationKind("mul", commutative=True, symbol="*", neutral=1),
        OperationKind("max", commutative=True),
        OperationKind("min", commutative=True),
        OperationKind("abs"),
        OperationKind("neg"),
        OperationKind("shr", symbol=">>"),
    )
}


def walk(expression: Expression) -> Iterator[Expression]:
    """Yield every node of the tree, arguments before the operation that consumes them."""
    if isinstance(expression, Operation):
        for arg in expression.args:
            yield from walk(arg)
    elif isinstance(expression, Cast):
        yield from walk(expression.arg)
    yield expression


def accesses(expression: Expression) -> tuple[Access, ...]:
    """Return the reads of an expression in written order."""
    return tuple(node for node in walk(expression) if isinstance(node, Access))
