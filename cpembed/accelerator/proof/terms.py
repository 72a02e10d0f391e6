"""Normal forms of an instruction's and a statement's expressions, and how the two match.

Requantizations are first written alike (:mod:`cpembed.accelerator.normal_form`). The rules here
add what a proof needs: numbers in place of registers, immediates and margins, and sums and products
of integers, which are exact modulo 2^64, flattened and compared in any order. Operations on floats
keep theirs, but for the two arguments of a commutative one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.accelerator.normal_form import Clamps, normal
from cpembed.ir.arithmetic import evaluate
from cpembed.ir.dtypes import dtype_info, holds, is_integer, numpy_dtype
from cpembed.ir.expression import (
    OPERATIONS,
    Access,
    Cast,
    Constant,
    Expression,
    Operation,
    accesses,
    replaced,
    yields_float,
)
from cpembed.ir.index import IndexExpr

Range = tuple[int, int]
Pair = tuple[Access, Access]
Number = int | float

_LARGEST_INTEGER = 2**63


class Forms:
    """Normal forms of expressions over operands of these types.

    Parameters
    ----------
    dtypes : mapping of str to str
        Element type of each operand.
    ranges : mapping of str to (int, int)
        Least and largest value of operands of integers, where they are closer than their type's.
    is_wide : bool
        True for sums of floats, which are computed in float64.
    """

    def __init__(
        self,
        dtypes: Mapping[str, str],
        ranges: Mapping[str, Range] | None = None,
        *,
        is_wide: bool = False,
    ) -> None:
        self._dtypes, self._ranges, self._is_wide = dtypes, ranges or {}, is_wide

    def normal(
        self, expression: Expression, constants: Mapping[Access, Number] | None = None
    ) -> Expression:
        """Return the normal form in which some reads are constants."""
        constants = constants or {}
        operands = {access.operand for access in accesses(expression)} - {
            access.operand for access in constants
        }
        numbers: dict[Expression, Constant] = {a: Constant(n) for a, n in constants.items()}
        expression = replaced(expression, numbers.get)
        if not self._is_wide and all(self._dtypes[name] != "float64" for name in operands):
            expression = normal(expression, self._dtypes, Clamps.INNERMOST)
        return self._normal(expression)

    def _normal(self, expression: Expression) -> Expression:
        match expression:
            case Access() | Constant():
                return expression
            case Cast(arg=arg):
                return self._cast(expression, self._normal(arg))
            case Operation(op, args):
                return self._operation(op, [self._normal(arg) for arg in args])

    def range(self, expression: Expression) -> Range | None:
        """Return bounds of an expression of integers; None for floats and beyond 64 bits."""
        if self.is_float(expression):
            return None
        bounds = self._bounds(expression)
        if bounds is None or max(map(abs, bounds)) >= _LARGEST_INTEGER:
            return None
        return bounds

    def is_float(self, expression: Expression) -> bool:
        """Return True if the expression's value is a float."""
        return yields_float(expression, self._dtypes)

    def _bounds(self, expression: Expression) -> Range | None:
        match expression:
            case Access(operand):
                return self._ranges.get(operand) or dtype_info(self._dtypes[operand]).integer_range
            case Constant(value):
                return int(value), int(value)
            case Cast(dtype):
                return dtype_info(dtype).integer_range
            case Operation(op, args):
                bounds = [self.range(arg) for arg in args]
                finite = [b for b in bounds if b is not None]
                return _operation_bounds(op, finite) if len(finite) == len(bounds) else None

    def _cast(self, cast: Cast, arg: Expression) -> Expression:
        if isinstance(arg, Constant):
            return self._folded(Cast(cast.dtype, arg, cast.saturate))
        if is_integer(cast.dtype):
            low, high = dtype_info(cast.dtype).integer_range
            bounds = self.range(arg)
            if bounds is not None and low <= bounds[0] and bounds[1] <= high:
                return arg
            return Cast(cast.dtype, arg, cast.saturate)
        if isinstance(arg, Access) and holds(cast.dtype, self._dtypes[arg.operand]):
            is_widest = dtype_info(cast.dtype).bits == 64
            if self.is_float(arg) and not is_widest:
                return arg
        return Cast(cast.dtype, arg, cast.saturate)

    def _operation(self, op: str, args: list[Expression]) -> Expression:
        if all(isinstance(arg, Constant) for arg in args):
            return self._folded(Operation(op, tuple(args)))
        if OPERATIONS[op].is_float or any(self.is_float(arg) for arg in args):
            return self._float_operation(op, args)
        match op:
            case "neg":
                return self._flattened("mul", [*args, Constant(-1)])
            case "sub":
                negated = self._flattened("mul", [args[1], Constant(-1)])
                return self._flattened("add", [args[0], negated])
            case "add" | "mul" | "max" | "min":
                return self._flattened(op, args)
            case "shr" if args[1] == Constant(0):
                return args[0]
            case _:
                return Operation(op, tuple(args))

    def _float_operation(self, op: str, args: list[Expression]) -> Expression:
        if op == "mul":
            for arg, factor in (args, reversed(args)):
                # An integer is finite, so that its product with zero is zero.
                if _is_number(factor, 0) and not self.is_float(arg):
                    return Constant(0.0)
                if _is_number(factor, 1) and self.is_float(arg):
                    return arg
        return Operation(op, tuple(args))

    def _flattened(self, op: str, args: list[Expression]) -> Expression:
        """Return a sum, product, maximum or minimum of integers with one constant at most."""
        flat: list[Expression] = []
        for arg in args:
            same = isinstance(arg, Operation) and arg.op == op
            flat += arg.args if isinstance(arg, Operation) and same else (arg,)
        numbers = [arg for arg in flat if isinstance(arg, Constant)]
        rest: list[Expression] = [arg for arg in flat if not isinstance(arg, Constant)]
        number = self._folded_numbers(op, numbers)
        if number is not None and not rest:
            return Constant(number)
        if number is not None and self._is_neutral(op, number, rest):
            number = None
        if number is not None and self._is_absorbing(op, number, rest):
            return Constant(number)
        if number is not None:
            rest.append(Constant(number))
        return rest[0] if len(rest) == 1 else Operation(op, tuple(rest))

    def _folded(self, expression: Expression) -> Expression:
        """Return the value of an expression of constants."""

        def no_read(access: Access) -> NDArray[Any]:
            raise KeyError(access.operand)

        with np.errstate(all="ignore"):
            value = np.asarray(evaluate(expression, no_read, wide=self._is_wide)).item()
        # NaN is equal to nothing, itself included: it stays an operation.
        return expression if isinstance(value, float) and math.isnan(value) else Constant(value)

    def _folded_numbers(self, op: str, numbers: list[Constant]) -> int | None:
        if not numbers:
            return None
        folded = numbers[0]
        for number in numbers[1:]:
            result = self._folded(Operation(op, (folded, number)))
            folded = result if isinstance(result, Constant) else folded
        return int(folded.value)

    def _is_neutral(self, op: str, number: int, rest: Sequence[Expression]) -> bool:
        if op in ("add", "mul"):
            return number == OPERATIONS[op].neutral
        bounds = self._joint(op, rest)
        return bounds is not None and (number <= bounds[0] if op == "max" else number >= bounds[1])

    def _is_absorbing(self, op: str, number: int, rest: Sequence[Expression]) -> bool:
        if op in ("add", "mul"):
            return op == "mul" and number == 0
        bounds = self._joint(op, rest)
        return bounds is not None and (number >= bounds[1] if op == "max" else number <= bounds[0])

    def _joint(self, op: str, args: Sequence[Expression]) -> Range | None:
        bounds = [self.range(arg) for arg in args]
        if any(b is None for b in bounds):
            return None
        return _operation_bounds(op, [b for b in bounds if b is not None])


def _is_number(expression: Expression, value: int) -> bool:
    return isinstance(expression, Constant) and expression.value == value


def _operation_bounds(op: str, bounds: list[Range]) -> Range | None:
    lows, highs = [b[0] for b in bounds], [b[1] for b in bounds]
    match op:
        case "add":
            return sum(lows), sum(highs)
        case "mul":
            low, high = bounds[0]
            for other_low, other_high in bounds[1:]:
                ends = [a * b for a in (low, high) for b in (other_low, other_high)]
                low, high = min(ends), max(ends)
            return low, high
        case "max":
            return max(lows), max(highs)
        case "min":
            return min(lows), min(highs)
        case "abs":
            low, high = bounds[0]
            return (0 if low <= 0 <= high else min(abs(low), abs(high))), max(abs(low), abs(high))
        case "shr" if lows[1] == highs[1] and 0 <= lows[1] < 64:
            return lows[0] >> lows[1], highs[0] >> lows[1]
        case _:
            return None


def matchings(
    instruction: Expression, statement: Expression, agree: Callable[[Expression, Expression], bool]
) -> Iterator[tuple[Pair, ...]]:
    """Yield the ways in which an instruction's normal form is that of a statement.

    Parameters
    ----------
    instruction, statement : Expression
        Normal forms.
    agree : callable
        True if a leaf of the instruction, a read or a constant, can be a leaf of the statement.

    Yields
    ------
    tuple of (Access, Access)
        Reads of the instruction with the reads of the statement that they are.
    """
    match instruction, statement:
        case (Access(), Access()) if agree(instruction, statement):
            yield ((instruction, statement),)
        case (Access() | Constant(), Constant()) | (Constant(), Access()):
            if agree(instruction, statement):
                yield ()
        case (Cast(), Cast()) if (instruction.dtype, instruction.saturate) == (
            statement.dtype,
            statement.saturate,
        ):
            yield from matchings(instruction.arg, statement.arg, agree)
        case (Operation(op, args), Operation(name, required)) if op == name:
            if len(args) == len(required):
                is_commutative = OPERATIONS[op].commutative
                yield from _arguments(args, required, is_commutative, agree)
        case _:
            return


def _arguments(
    args: tuple[Expression, ...],
    required: tuple[Expression, ...],
    is_commutative: bool,
    agree: Callable[[Expression, Expression], bool],
) -> Iterator[tuple[Pair, ...]]:
    """Yield the matchings of arguments, in any order if the operation is commutative."""
    if not args:
        yield ()
        return
    for position in range(len(required) if is_commutative else 1):
        remaining = required[:position] + required[position + 1 :]
        for first in matchings(args[0], required[position], agree):
            for rest in _arguments(args[1:], remaining, is_commutative, agree):
                yield (*first, *rest)


def constant_value(
    forms: Forms, expression: Expression, constants: Mapping[Access, Number]
) -> Number | None:
    """Return the value of an expression where some reads are numbers; None if it has several.

    Parameters
    ----------
    forms : Forms
        Types of the operands.
    expression : Expression
    constants : mapping of Access to number
        Number of each of these reads; others may be anything.
    """
    normal = forms.normal(expression, constants)
    return normal.value if isinstance(normal, Constant) else None


def same_indices(first: tuple[IndexExpr, ...] | None, second: tuple[IndexExpr, ...] | None) -> bool:
    """Return True if tuples of index expressions are equal as sums of terms."""
    if first is None or second is None or len(first) != len(second):
        return False
    zero = IndexExpr()
    return all(a == b or a + b.times(-1) == zero for a, b in zip(first, second, strict=True))


def same_number(first: Number, second: Number, *, is_exact: bool) -> bool:
    """Return True if numbers are equal in expressions.

    Parameters
    ----------
    first, second : int or float
    is_exact : bool
        False if floats are compared as float32.
    """
    if isinstance(first, float) != isinstance(second, float):
        return False
    return first == second or (not is_exact and bool(np.float32(first) == np.float32(second)))


def stored_number(value: Number, dtype: str) -> Number:
    """Return a number as an element of a type."""
    with np.errstate(all="ignore"):
        return np.asarray(value).astype(numpy_dtype(dtype)).item()
