"""Normal forms of scalar expressions, in which equal requantizations are written alike.

An instruction and a statement may compute the same values in other words: ``int8(max(x, 0))`` and
``max(int8(x), 0)``, or a conversion that changes nothing. Each rule below is an equality of
:mod:`cpembed.ir.arithmetic` for all values of the operands' types; the tests evaluate both sides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from cpembed.ir.computation import Assignment, Computation
from cpembed.ir.dtypes import dtype_info, is_integer
from cpembed.ir.expression import (
    OPERATIONS,
    Access,
    Cast,
    Constant,
    Expression,
    Operation,
    walk,
    yields_float,
)
from cpembed.ir.ranges import Range, typed_range

_EXACT_FLOAT32 = 2**24
"""Magnitude up to which float32 holds every integer."""


class Clamps(StrEnum):
    """Place of a maximum or minimum beside a saturating conversion."""

    AS_WRITTEN = "as_written"
    INSIDE = "inside"
    """``int8(max(x, 0))``."""
    OUTSIDE = "outside"
    """``max(int8(x), 0)``."""
    INNERMOST = "innermost"
    """``int8(max(x, 0) * 0.5)``."""


def _within(inner: Range, outer: Range) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def normal_computation(computation: Computation, clamps: Clamps) -> Computation:
    """Return a computation of one statement with its expression in normal form.

    Parameters
    ----------
    computation : Computation
        A computation whose sums of floats stay as they are: they are computed in float64.
    clamps : Clamps
        Place of constant bounds beside saturating conversions.
    """
    statement, dtypes = computation.statement, _dtypes(computation)
    is_wide = statement.reduction in ("add", "mul") and not is_integer(computation.output.dtype)
    if is_wide or "float64" in dtypes.values():
        return computation
    value = normal(statement.value, dtypes, clamps)
    reads = {node.operand for node in walk(value) if isinstance(node, Access)}
    inputs = tuple(operand for operand in computation.inputs if operand.name in reads)
    used = {name for node in walk(value) if isinstance(node, Access) for name in node.iterators}
    if not used | {*statement.store.iterators} >= {*computation.extents}:
        return computation
    changed = Assignment(statement.store, value, statement.reduction)
    return replace(computation, inputs=inputs, statements=(changed,))


def _dtypes(computation: Computation) -> dict[str, str]:
    return {operand.name: operand.dtype for operand in computation.operands}


def normal(expression: Expression, dtypes: Mapping[str, str], clamps: Clamps) -> Expression:
    """Return the normal form of an expression without float64.

    >>> from cpembed.ir.grammar import parse_body
    >>> value = parse_body("C[x] = max(int8(float32(A[x]) * 0.5), 0)").statements[0].value
    >>> str(normal(value, {"A": "int32"}, Clamps.INSIDE))
    'int8(max((A[x] * 0.5), 0.0))'

    Parameters
    ----------
    expression : Expression
    dtypes : mapping of str to str
        Element type of each operand.
    clamps : Clamps
        Place of constant bounds beside saturating conversions.
    """
    return _Normal(dtypes, clamps).normalized(expression)


@dataclass(frozen=True)
class _Normal:
    """Rules of the normal form over operands of some types."""

    dtypes: Mapping[str, str]
    clamps: Clamps

    def normalized(self, node: Expression) -> Expression:
        if isinstance(node, Cast):
            return self._cast(node.dtype, self.normalized(node.arg), node.saturate)
        if isinstance(node, Operation):
            return self._operation(node.op, tuple(map(self.normalized, node.args)))
        return node

    # -- conversions ------------------------------------------------------------------------------

    def _cast(self, dtype: str, arg: Expression, saturate: bool) -> Expression:
        if not is_integer(dtype):
            # Every float in such an expression is float32 already.
            is_identity = dtype == "float32" and self._is_float(arg)
            return arg if is_identity else Cast(dtype, arg, saturate)
        limits, inside = dtype_info(dtype).integer_range, self._range(arg)
        if inside is not None and _within(inside, limits):
            return arg
        if not saturate:
            return Cast(dtype, arg)
        match arg:
            case Operation("max", (value, Constant(bound))) if bound <= limits[0]:
                return self._cast(dtype, value, saturate=True)
            case Operation("min", (value, Constant(bound))) if bound >= limits[1]:
                return self._cast(dtype, value, saturate=True)
            case Cast("float32", value, _) if (
                not self._is_float(value) and max(-limits[0], limits[1]) < _EXACT_FLOAT32
            ):
                # Rounding to float32 is monotone, and exact for every value within the limits.
                return self._cast(dtype, value, saturate=True)
            case Cast(inner, value, True) if is_integer(inner) and _within(
                limits, dtype_info(inner).integer_range
            ):
                return self._cast(dtype, value, saturate=True)
            case Operation("max", (Operation("mul", (value, Constant(factor))), Constant(0))) if (
                self.clamps is Clamps.INNERMOST and factor > 0
            ):
                # Zeros of either sign are the integer 0.
                bounded = self._operation("max", (value, Constant(0)))
                return Cast(dtype, Operation("mul", (bounded, Constant(factor))), saturate=True)
            case Operation("mul", (Operation("max", (value, Constant(0))), Constant(factor))) if (
                self.clamps in (Clamps.INSIDE, Clamps.OUTSIDE) and factor > 0
            ):
                scaled = self._operation("mul", (value, Constant(factor)))
                return self._cast(dtype, self._operation("max", (scaled, Constant(0))), True)
            case Operation(("max" | "min") as op, (value, Constant(bound))) if (
                self.clamps is Clamps.OUTSIDE and _commutes(op, bound, limits)
            ):
                cast = self._cast(dtype, value, saturate=True)
                return self._operation(op, (cast, Constant(int(bound))))
            case _:
                return Cast(dtype, arg, saturate=True)

    # -- operations -------------------------------------------------------------------------------

    def _operation(self, op: str, args: tuple[Expression, ...]) -> Expression:
        if len(args) == 2 and OPERATIONS[op].commutative and isinstance(args[0], Constant):
            args = args[::-1]
        args = self._in_floats(op, args)
        match op, args:
            case (("mul" | "div"), (value, Constant(1))):
                # The result of a product with a float, and of a division, is a float.
                is_float = op == "div" or self._is_float(args[1])
                return self._cast("float32", value, saturate=True) if is_float else value
            case "div", (value, Constant(divisor)) if _is_power_of_two(divisor):
                # The same number, rounded once.
                return self._operation("mul", (value, Constant(1.0 / divisor)))
            case (("add" | "sub" | "shr"), (value, Constant(int() as zero))) if (
                zero == 0 and not self._is_float(value)
            ):
                return value
            case (("max" | "min"), (value, Constant(bound))):
                return self._bounded(op, value, bound)
            case _:
                return Operation(op, args)

    def _in_floats(self, op: str, args: tuple[Expression, ...]) -> tuple[Expression, ...]:
        """Leave the conversion of integers to an operation that is one of floats anyway."""
        changed: list[Expression] = []
        for position, arg in enumerate(args):
            siblings = [a for place, a in enumerate(args) if place != position]
            is_float = OPERATIONS[op].is_float or any(map(self._is_float, siblings))
            match arg:
                case Cast("float32", inner, _) if is_float and not self._is_float(inner):
                    changed.append(inner)
                case Constant(int(value)) if is_float and abs(value) <= _EXACT_FLOAT32:
                    changed.append(Constant(float(value)))
                case _:
                    changed.append(arg)
        # Where each leaves the conversion to the other, none would be left.
        if changed != list(args) and not (
            OPERATIONS[op].is_float or any(map(self._is_float, changed))
        ):
            return args
        return tuple(changed)

    def _bounded(self, op: str, value: Expression, bound: float) -> Expression:
        inside = self._range(value)
        is_idle = inside is not None and (bound <= inside[0] if op == "max" else bound >= inside[1])
        if isinstance(bound, float) and not self._is_float(value):
            # The result is a float, also where the bound changes nothing.
            if is_idle:
                return self._cast("float32", value, saturate=True)
            return Operation(op, (value, Constant(bound)))
        if is_idle:
            return value
        match value:
            case Operation(inner, (nested, Constant(first))) if inner == op:
                joint = max(first, bound) if op == "max" else min(first, bound)
                is_float = isinstance(first, float) or isinstance(bound, float)
                return self._bounded(op, nested, float(joint) if is_float else joint)
            case Operation("min", (nested, Constant(first))) if op == "max" and bound <= first:
                # The lower bound first: min(max(x, a), b).
                return self._bounded("min", self._bounded("max", nested, bound), first)
            case Cast(dtype, nested, True) if (
                self.clamps in (Clamps.INSIDE, Clamps.INNERMOST)
                and is_integer(dtype)
                and _commutes(op, bound, dtype_info(dtype).integer_range)
            ):
                return self._cast(
                    dtype, self._operation(op, (nested, Constant(bound))), saturate=True
                )
            case _:
                return Operation(op, (value, Constant(bound)))

    def _range(self, node: Expression) -> Range | None:
        return typed_range(node, self.dtypes)

    def _is_float(self, node: Expression) -> bool:
        return yields_float(node, self.dtypes)


def _is_power_of_two(value: float) -> bool:
    """True for a power of two whose reciprocal is a float32 as well."""
    return 2.0**-100 <= value <= 2.0**100 and math.frexp(value)[0] == 0.5


def _commutes(op: str, bound: float, limits: Range) -> bool:
    """True if a bound of values commutes with their saturating conversion to integers.

    Both are monotone, and the bound is a value of the type. NaN becomes 0 in the one order and the
    bound of 0 in the other, so that the bound must not be on the other side of 0.
    """
    is_value = float(bound).is_integer() and limits[0] <= bound <= limits[1]
    return is_value and (bound <= 0 if op == "max" else bound >= 0) and abs(bound) < _EXACT_FLOAT32
