"""Statements that the host computes, as functions of C: loops around scalar expressions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cpembed.accelerator.machine_code import c_type, index_c
from cpembed.accelerator.specification import Specification, Statement
from cpembed.accelerator.statement_text import value_term
from cpembed.errors import LoweringError
from cpembed.ir.computation import Operand
from cpembed.ir.dtypes import dtype_info, is_integer
from cpembed.ir.expression import Access
from cpembed.ir.index import IndexExpr, flat_index, row_major_strides

NUMBERS = """\
static inline int64_t clamped(int64_t value, int64_t low, int64_t high) {
  return value < low ? low : value > high ? high : value;
}
/* To the nearest integer, halves to the even one, saturated; NaN is 0. */
static inline int64_t saturated(double value, int64_t low, int64_t high) {
  if (value != value) return 0;
  value = nearbyint(value);
  return value <= (double)low ? low : value >= (double)high ? high : (int64_t)value;
}
static inline int64_t cut_off(double value) {
  return value >= -0x1p63 && value < 0x1p63 ? (int64_t)value : INT64_MIN;
}
static inline int64_t wrapped(int64_t value, int bits, int is_signed) {
  int64_t low = is_signed ? -((int64_t)1 << (bits - 1)) : 0;
  return ((value - low) & (((int64_t)1 << bits) - 1)) + low;
}
static inline int64_t shifted(int64_t value, int64_t by) {
  return (uint64_t)by < 64 ? value >> by : value < 0 ? -1 : 0;
}
static inline float larger_float(float a, float b) { return a > b || a != a ? a : b; }
static inline float smaller_float(float a, float b) { return a < b || a != a ? a : b; }
static inline double larger_double(double a, double b) { return a > b || a != a ? a : b; }
static inline double smaller_double(double a, double b) { return a < b || a != a ? a : b; }
static inline int64_t larger_integer(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t smaller_integer(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t magnitude_integer(int64_t a) { return a < 0 ? -a : a; }
#define OF_TYPE(a, name) _Generic((a), float: name##_float, double: name##_double, \\
                                  default: name##_integer)
#define larger(a, b) OF_TYPE(a, larger)(a, b)
#define smaller(a, b) OF_TYPE(a, smaller)(a, b)
#define magnitude(a) _Generic((a), float: fabsf, double: fabs, default: magnitude_integer)(a)
"""
"""Functions that the expressions of :mod:`~cpembed.accelerator.scalar_text` call, in C11."""


def specification_function(specification: Specification, name: str) -> str:
    """Return a function that computes statements on row-major tensors.

    Its parameters are pointers to the tensors of :attr:`Specification.operands`, in their order.

    Raises
    ------
    LoweringError
        If a statement is none of C: an operand that is spread, or of a type that C does not have.
    """
    tensors = {tensor: f"t{n}" for n, tensor in enumerate(specification.operands)}
    written = {statement.output.tensor for statement in specification.statements}
    parameters = ", ".join(
        f"{'' if tensor in written else 'const '}{_element_type(operand)} *{tensors[tensor]}"
        for tensor, operand in specification.operands.items()
    )
    lines = [f"static void {name}({parameters}) {{"]
    for statement in specification.statements:
        lines.append(f"  /* {str(statement.computation).replace('*/', '* /')} */")
        lines += _statement(statement, tensors)
    return "\n".join([*lines, "}"]) + "\n"


def _element_type(operand: Operand) -> str:
    info = dtype_info(operand.dtype)
    if info.storage_bits < 8 or (not info.is_integer and info.bits < 32):
        raise LoweringError(f"{operand.tensor} is {operand.dtype}, which C does not compute with")
    if operand.spread:
        raise LoweringError(f"{operand.tensor} has zeros between its elements")
    return c_type(operand.dtype)


def _statement(statement: Statement, tensors: Mapping[str, str]) -> Iterator[str]:
    """Yield the loops of a statement; a reduction is computed before it is stored."""
    computation = statement.computation
    assignment = computation.statement
    outer = assignment.store.iterators
    target = _element(computation.output, assignment.store, tensors)
    value = value_term(
        assignment, computation, lambda a: _read(computation.operand(a.operand), a, tensors)
    )
    if "rounded_to<" in value.text:
        raise LoweringError(f"{computation}: a type of floats of fewer than 32 bits")
    kind = c_type(computation.output.dtype)
    margin = "  "
    for axis in outer:
        yield f"{margin}{_loop(axis, computation.extents[axis])}"
        margin += "  "
    if assignment.reduction is None:
        yield f"{margin}{target} = ({kind})({value.text});"
    else:
        yield from _reduced(statement, target, value.text, margin)
    for depth in range(len(outer), 0, -1):
        yield "  " * depth + "}"


def _reduced(statement: Statement, target: str, value: str, margin: str) -> Iterator[str]:
    computation = statement.computation
    reduction = computation.statement.reduction
    integers = is_integer(computation.output.dtype)
    kind, wide = c_type(computation.output.dtype), "int64_t" if integers else "double"
    starts = {
        "add": "0",
        "mul": "1",
        "max": "INT64_MIN" if integers else "-INFINITY",
        "min": "INT64_MAX" if integers else "INFINITY",
    }
    assert reduction is not None

    def combined(first: str, second: str) -> str:
        symbols = {"add": "+", "mul": "*"}
        functions = {"max": "larger", "min": "smaller"}
        if reduction in symbols:
            return f"{first} {symbols[reduction]} {second}"
        return f"{functions[reduction]}({first}, {second})"

    yield f"{margin}{wide} total = {starts[reduction]};"
    inner = [a for a in computation.extents if a not in computation.statement.store.iterators]
    for depth, axis in enumerate(inner):
        yield f"{margin}{'  ' * depth}{_loop(axis, computation.extents[axis])}"
    yield f"{margin}{'  ' * len(inner)}total = {combined('total', f'({wide})({value})')};"
    for depth in range(len(inner) - 1, -1, -1):
        yield f"{margin}{'  ' * depth}}}"
    if statement.accumulates:
        yield f"{margin}{target} = ({kind})({combined(target, f'({kind})total')});"
    else:
        yield f"{margin}{target} = ({kind})total;"


def _loop(axis: str, extent: int) -> str:
    return f"for (ptrdiff_t x_{axis} = 0; x_{axis} < {extent}; x_{axis}++) {{"


def _over_loops(index: IndexExpr) -> IndexExpr:
    return index.rename(lambda name: f"x_{name}")


def _element(operand: Operand, access: Access, tensors: Mapping[str, str]) -> str:
    index = [_over_loops(e) for e in reversed(access.index)]
    flat = flat_index(index, row_major_strides(operand.shape)[::-1])
    return f"{tensors[operand.tensor]}[{index_c(flat)}]"


def _read(operand: Operand, access: Access, tensors: Mapping[str, str]) -> str:
    """Return the text of an element; one outside of an operand with zeros around it is 0."""
    text = _element(operand, access, tensors)
    if not operand.zero_outside:
        return text
    bounds = [
        f"{index_c(_over_loops(index))} >= 0 && {index_c(_over_loops(index))} < {size}"
        for index, size in zip(access.index, operand.shape, strict=True)
    ]
    return f"({' && '.join(bounds)} ? {text} : 0)" if bounds else text
