"""The scalar expression of a computation: reads of operands, constants and scalar operations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cpembed.ir.index import IndexExpr


@dataclass(frozen=True)
class Access:
    """An element of an operand, named by one index expression per dimension; a read when a leaf."""

    operand: str
    index: tuple[IndexExpr, ...]

    def __str__(self) -> str:
        return f"{self.operand}[{', '.join(str(i) for i in self.index)}]"


@dataclass(frozen=True)
class Constant:
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
    dtype: str
    arg: Expression

    def __str__(self) -> str:
        return f"cast({self.arg}, {self.dtype})"


Expression = Access | Constant | Operation | Cast


@dataclass(frozen=True)
class OperationKind:
    """Properties of an operation that the dataflow graph needs."""

    name: str
    commutative: bool = False
    symbol: str | None = None
    neutral: int | float | None = None
    """Neutral element when the operation is used as a reduction, where it has a finite one."""


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
    """Every node of the tree, operands before the operation that consumes them."""
    if isinstance(expression, Operation):
        for arg in expression.args:
            yield from walk(arg)
    elif isinstance(expression, Cast):
        yield from walk(expression.arg)
    yield expression


def accesses(expression: Expression) -> tuple[Access, ...]:
    """Reads in the order in which they are written."""
    return tuple(node for node in walk(expression) if isinstance(node, Access))
