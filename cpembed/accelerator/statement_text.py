"""C++ of the statements of an instruction: loops over its axes around scalar expressions."""

from __future__ import annotations

import math
from collections.abc import Callable

from cpembed.accelerator.scalar_text import Term, element, integer, integer_literal, scalar
from cpembed.errors import LoweringError
from cpembed.hw.isa import IsaInstruction
from cpembed.ir.computation import Assignment, AxisKind, Computation, Operand
from cpembed.ir.dtypes import dtype_info, is_integer
from cpembed.ir.expression import Access
from cpembed.ir.index import IndexExpr


def value_term(
    statement: Assignment, computation: Computation, read: Callable[[Access], str]
) -> Term:
    """Return the value of a statement.

    Parameters
    ----------
    statement : Assignment
    computation : Computation
        The computation that has the statement.
    read : callable
        Function from an access to the text of the element that it reads.
    """
    dtypes = {operand.name: operand.dtype for operand in computation.operands}
    wide = statement.reduction in ("add", "mul") and not is_integer(dtypes[statement.store.operand])

    def term(access: Access) -> Term:
        return element(read(access), dtypes[access.operand])

    return scalar(statement.value, term, wide=wide)


def combined_type(instruction: IsaInstruction, operand: Operand) -> str:
    """Return the type in C++ of an output's local array, in which its points are combined."""
    computation = instruction.computation
    statements = [s for s in computation.statements if s.store.operand == operand.name]
    values = [value_term(statement, computation, str) for statement in statements]
    sums = [statement.reduction in ("add", "mul") for statement in statements]
    if not is_integer(operand.dtype):
        is_float = all(value.type == "float" for value in values) and operand.dtype != "float64"
        # Sums are float64, and integers become it before they are rounded to the output's type.
        return "float" if is_float and not any(sums) else "double"
    low, high = dtype_info(operand.dtype).integer_range
    for statement, value, is_sum in zip(statements, values, sums, strict=True):
        # Sums that do not saturate wrap around in the output's bits, whenever that is done; and so
        # does a value that is stored. Whether they did can be told only if they change by fewer
        # bits, or are exact.
        if is_sum and not instruction.saturates:
            reach = _largest_change(instruction, value)
            low, high = (low, high) if reach < 2**31 else (low - reach, high + reach)
        elif is_sum:
            low, high = _after_a_step(statement.reduction, (low, high), value)
        elif statement.reduction is not None:
            low, high = min(low, value.low), max(high, value.high)
    return integer("", low, high).type


def _largest_change(instruction: IsaInstruction, value: Term) -> int:
    """Bound how far one execution moves a sum."""
    reductions = [a.name for a in instruction.computation.axes if a.kind is AxisKind.REDUCTION]
    sizes = {axis.name: axis.largest or axis.maximum for axis in instruction.axes}
    points = math.prod(sizes[name] for name in reductions)
    return points * max(abs(value.low), abs(value.high))


def counts_wraps(instruction: IsaInstruction, operand: Operand) -> bool:
    """True for an output of integers whose sums may wrap around, which is counted."""
    reduction = _statement_of(instruction, operand.name).reduction
    is_narrow = is_integer(operand.dtype) and dtype_info(operand.dtype).bits <= 32
    return reduction == "add" and is_narrow and not instruction.saturates


def _after_a_step(reduction: str | None, bounds: tuple[int, int], value: Term) -> tuple[int, int]:
    """Bound a saturated sum or product after a further step, before it is saturated again."""
    low, high = bounds
    if reduction == "add":
        return min(low, low + value.low), max(high, high + value.high)
    products = [a * b for a in bounds for b in (value.low, value.high)]
    return min(low, *products), max(high, *products)


def start_value(instruction: IsaInstruction, operand: Operand) -> str | None:
    """Return the value with which an output begins; None if it goes on from what is there."""
    reduction = _statement_of(instruction, operand.name).reduction
    if reduction is None:
        return "0"
    if instruction.accumulates:
        return None
    if reduction in ("add", "mul"):
        return "0" if reduction == "add" else "1"
    is_least = reduction == "max"
    if not is_integer(operand.dtype):
        return "-INFINITY" if is_least else "INFINITY"
    bits = "32" if combined_type(instruction, operand) == "int32_t" else "64"
    return f"INT{bits}_{'MIN' if is_least else 'MAX'}"


def _statement_of(instruction: IsaInstruction, output: str) -> Assignment:
    for statement in instruction.computation.statements:
        if statement.store.operand == output:
            return statement
    raise LoweringError(f"{instruction.name}: nothing writes {output}")


def combination(
    statement: Assignment, instruction: IsaInstruction, operand: Operand, target: str, value: Term
) -> str:
    """Return the text that combines a value with an output's element.

    Parameters
    ----------
    statement : Assignment
    instruction : IsaInstruction
    operand : Operand
        The output.
    target : str
        Text of the element.
    value : Term
        The value of this point.
    """
    type = combined_type(instruction, operand)
    text = value.converted(type)
    match statement.reduction:
        case None:
            return f" {target} = {text}; "
        case "max":
            return f" {target} = larger({target}, {text}); "
        case "min":
            return f" {target} = smaller({target}, {text}); "
        case reduction:
            symbol = "+" if reduction == "add" else "*"
    if not (instruction.saturates and is_integer(operand.dtype)):
        return f" {target} = {target} {symbol} {text}; "
    ends = ", ".join(map(integer_literal, dtype_info(operand.dtype).integer_range))
    return (
        f" {type} sum = {target} {symbol} {text}; {type} limited = {type}(clamped(sum, {ends}));"
        f" run.saturations += sum != limited; {target} = limited; "
    )


def loop_order(statement: Assignment, computation: Computation) -> list[str]:
    """Return the axes, outermost first, with one innermost that walks neighbours.

    Reduction axes keep their order, in which saturating sums are computed.
    """
    names = [axis.name for axis in computation.axes]
    reductions = [axis.name for axis in computation.axes if axis.kind is AxisKind.REDUCTION]

    def strides(name: str) -> int:
        """Count the accesses that an axis moves by other than one element."""
        accesses = (*statement.reads, statement.store)
        return sum(
            any(index.coefficient(name) for index in access.index[:-1])
            or (bool(access.index) and access.index[-1].coefficient(name) not in (0, 1))
            for access in accesses
        )

    candidates = [name for name in names if name not in reductions[:-1]]
    if not candidates:
        return names
    innermost = min(candidates, key=lambda name: (strides(name), name in reductions))
    return [name for name in names if name != innermost] + [innermost]


def index_text(index: IndexExpr) -> str:
    """Return an index over the axes; raise :class:`LoweringError` if it is not affine."""
    if not index.is_affine:
        raise LoweringError(f"the index {index} of an instruction is not affine")
    terms = [f"{term.coefficient} * x_{term.iterator}" for term in index.terms]
    return " + ".join([*terms, str(index.constant)] if index.constant or not terms else terms)
