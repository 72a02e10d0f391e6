"""Scalar expressions of a computation: reads of operands, constants and scalar operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from cpembed.ir.dtypes import is_integer
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
    """A conversion of a value to an element type.

    Attributes
    ----------
    dtype : str
        Element type of the result.
    arg : Expression
        The value.
    saturate : bool
        True if values beyond the type become its nearest one, and floats are rounded to integers;
        otherwise integers wrap around, and fractions are cut off.
    """

    dtype: str
    arg: Expression
    saturate: bool = False

    def __str__(self) -> str:
        return f"{self.dtype}({self.arg})" if self.saturate else f"cast({self.arg}, {self.dtype})"


Expression = Access | Constant | Operation | Cast


@dataclass(frozen=True)
class OperationKind:
    """Properties of an operation, for the dataflow graph and the notation.

    ``neutral`` is the neutral element of the operation as a reduction, if there is a finite one;
    ``is_float`` says that the result is a float also of integers.
    """

    name: str
    commutative: bool = False
    symbol: str | None = None
    neutral: int | float | None = None
    is_float: bool = False


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
        OperationKind("div", symbol="/", is_float=True),
        OperationKind("exp", is_float=True),
        OperationKind("sqrt", is_float=True),
        OperationKind("rsqrt", is_float=True),
        OperationKind("tanh", is_float=True),
        OperationKind("erf", is_float=True),
    )
}


_ZERO_AT_ZERO = frozenset({"add", "sub", "max", "min", "abs", "neg", "sqrt", "tanh", "erf"})
"""Operations whose result is zero if all of their arguments are."""


def zero_arguments(operation: Operation) -> tuple[tuple[int, ...], ...]:
    """Return the sets of arguments of which one, if it is zero, makes the operation's result zero.

    >>> a, b = (Access(name, ()) for name in "ab")
    >>> [zero_arguments(Operation(op, (a, b))) for op in ("mul", "add", "shr", "div")]
    [((0,), (1,)), ((0, 1),), ((0,),), ()]

    Returns
    -------
    tuple of tuple of int
        Each member holds the positions of arguments that have to be zero together.
    """
    match operation:
        case Operation("mul", args):
            return tuple((position,) for position in range(len(args)))
        # Zero divided by zero is not a number, so that a divisor has to be a constant.
        case Operation("shr") | Operation("div", (_, Constant(int() | float()))):
            divisor = operation.args[1]
            is_zero = isinstance(divisor, Constant) and operation.op == "div" and not divisor.value
            return () if is_zero else ((0,),)
        case Operation(op, args) if op in _ZERO_AT_ZERO:
            return (tuple(range(len(args))),)
        case _:
            return ()


def walk(expression: Expression) -> Iterator[Expression]:
    """Yield every node of the tree, arguments before the operation that consumes them."""
    if isinstance(expression, Operation):
        for arg in expression.args:
            yield from walk(arg)
    elif isinstance(expression, Cast):
        yield from walk(expression.arg)
    yield expression


def replaced(
    expression: Expression, replacement: Callable[[Expression], Expression | None]
) -> Expression:
    """Return an expression with subexpressions replaced, the outermost ones first.

    >>> total = Operation("add", (Access("A", ()), Access("B", ())))
    >>> str(replaced(total, lambda node: Constant(1) if node == Access("B", ()) else None))
    '(A[] + 1)'

    Parameters
    ----------
    expression : Expression
    replacement : callable
        Returns what takes the place of a subexpression; None to look inside of it.
    """
    result = replacement(expression)
    if result is not None:
        return result
    match expression:
        case Cast(dtype, arg, saturate):
            return Cast(dtype, replaced(arg, replacement), saturate)
        case Operation(op, args):
            return Operation(op, tuple(replaced(arg, replacement) for arg in args))
        case _:
            return expression


def accesses(expression: Expression) -> tuple[Access, ...]:
    """Return the reads of an expression in written order."""
    return tuple(node for node in walk(expression) if isinstance(node, Access))


def copied_read(expression: Expression) -> Access | None:
    """Return the read whose value an expression is, but for conversions; None for others."""
    while isinstance(expression, Cast):
        expression = expression.arg
    return expression if isinstance(expression, Access) else None


def yields_float(expression: Expression, dtypes: Mapping[str, str]) -> bool:
    """True if an expression's value is a float.

    >>> from cpembed.ir.grammar import parse_body
    >>> values = [parse_body(f"C[x] = {text}").statements[0].value
    ...           for text in ("A[x] * 3", "A[x] / 3", "A[x] * S[]", "int8(A[x] * S[])")]
    >>> [yields_float(value, {"A": "int32", "S": "float32"}) for value in values]
    [False, True, True, False]

    Parameters
    ----------
    expression : Expression
    dtypes : mapping of str to str
        Element type of each operand.
    """
    match expression:
        case Access():
            return not is_integer(dtypes[expression.operand])
        case Constant():
            return isinstance(expression.value, float)
        case Cast():
            return not is_integer(expression.dtype)
        case Operation():
            # The first argument alone is shifted, and by an integer.
            args = expression.args[:1] if expression.op == "shr" else expression.args
            is_float = OPERATIONS[expression.op].is_float
            return is_float or any(yields_float(arg, dtypes) for arg in args)
