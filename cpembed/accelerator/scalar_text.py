"""Scalar expressions as C and C++, in the arithmetic of :mod:`cpembed.ir.arithmetic`.

Both languages have the functions that the texts call, in ``native/numbers.h`` and in the C of
:mod:`~cpembed.accelerator.host_code`; numbers of fewer than 32 bits that are floats are C++ only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cpembed.ir.dtypes import dtype_info, is_integer
from cpembed.ir.expression import Access, Cast, Constant, Expression, Operation

_LARGEST_INT32, _LARGEST_INT64 = 2**31 - 1, 2**63 - 1
_SMALL_FLOATS = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
_LARGEST_FLOAT8 = {"float8_e4m3fn": "448.0", "float8_e5m2": "57344.0"}


@dataclass(frozen=True)
class Term:
    """The text of a value with its type in C++ and, of an integer, the range of its values."""

    text: str
    type: str
    low: int = 0
    high: int = 0

    @property
    def is_float(self) -> bool:
        return self.type in ("float", "double")

    def converted(self, type: str) -> str:
        """Return the value in another type."""
        return self.text if self.type == type else f"(({type})({self.text}))"


def integer(text: str, low: int, high: int) -> Term:
    """Return a term of the narrowest type in which all values of a range are exact.

    What leaves 64 bits wraps around in them.

    Parameters
    ----------
    text : str
        The text of the value.
    low, high : int
        The least and the largest value.
    """
    if low >= -_LARGEST_INT32 - 1 and high <= _LARGEST_INT32:
        return Term(text, "int32_t", low, high)
    if low >= -_LARGEST_INT64 - 1 and high <= _LARGEST_INT64:
        return Term(text, "int64_t", low, high)
    return Term(text, "int64_t", -_LARGEST_INT64 - 1, _LARGEST_INT64)


def element(text: str, dtype: str) -> Term:
    """Return the value of an operand's element, read from a local array of :func:`local_type`."""
    if is_integer(dtype):
        return integer(text, *dtype_info(dtype).integer_range)
    return Term(text, local_type(dtype))


def local_type(dtype: str) -> str:
    """Return the type in C++ that holds every value of an element type exactly."""
    info = dtype_info(dtype)
    if info.is_integer:
        return "int32_t" if info.integer_range[1] <= _LARGEST_INT32 else "int64_t"
    return "double" if dtype == "float64" else "float"


def scalar(expression: Expression, read: Callable[[Access], Term], *, wide: bool) -> Term:
    """Return the text of an expression.

    Parameters
    ----------
    expression
        The value of a statement.
    read
        Function from an access to the term of the element that it reads.
    wide
        True in sums into an output of floats, in which floats are float64.
    """
    match expression:
        case Access():
            term = read(expression)
            return Term(f"((double)({term.text}))", "double") if wide and term.is_float else term
        case Constant(int() as value):
            return integer(
                f"{value}" if abs(value) <= _LARGEST_INT32 else f"{value}LL", value, value
            )
        case Constant(value):
            text = f"{value!r}" if value == value and abs(value) != float("inf") else "NAN"
            return Term(text, "double") if wide else Term(f"{text}f", "float")
        case Cast():
            term = scalar(expression.arg, read, wide=False)
            result = (
                _saturated(term, expression.dtype)
                if expression.saturate
                else _cast(term, expression.dtype)
            )
            return (
                Term(f"((double)({result.text}))", "double") if wide and result.is_float else result
            )
        case Operation():
            args = [scalar(arg, read, wide=wide) for arg in expression.args]
            return _operation(expression.op, args)


_FLOAT_FUNCTIONS = {
    "exp": "exp({})", "sqrt": "sqrt({})", "rsqrt": "1.0 / sqrt({})",
    "tanh": "tanh({})", "erf": "erf({})",
}  # fmt: skip


def _operation(op: str, args: list[Term]) -> Term:
    if op not in ("div", *_FLOAT_FUNCTIONS) and not any(arg.is_float for arg in args):
        return _integer_operation(op, args)
    type = "double" if any(arg.type == "double" for arg in args) else "float"
    texts = [arg.converted(type) for arg in args]
    if op in _FLOAT_FUNCTIONS:
        return Term(f"(({type})({_FLOAT_FUNCTIONS[op].format(f'(double)({texts[0]})')}))", type)
    return Term(_symbolic(op, texts), type)


def _symbolic(op: str, texts: list[str]) -> str:
    match op:
        case "add" | "sub" | "mul" | "div":
            symbol = {"add": "+", "sub": "-", "mul": "*", "div": "/"}[op]
            return f"({texts[0]} {symbol} {texts[1]})"
        case "max":
            return f"larger({texts[0]}, {texts[1]})"
        case "min":
            return f"smaller({texts[0]}, {texts[1]})"
        case "neg":
            return f"(-{texts[0]})"
        case "abs":
            return f"magnitude({texts[0]})"
        case _:
            raise NotImplementedError(op)


def _integer_operation(op: str, args: list[Term]) -> Term:
    low, high = _range(op, args)
    result = integer("", low, high)
    if op == "shr":
        if args[1].low >= 0 and args[1].high < 32:
            return integer(f"({args[0].text} >> {args[1].text})", low, high)
        # Shifted in 64 bits, whatever the result needs.
        return integer(f"(({result.type})(shifted({args[0].text}, {args[1].text})))", low, high)
    # In the wider of the types of arguments and result.
    types = {result.type, *(arg.type for arg in args)}
    type = "int64_t" if "int64_t" in types else "int32_t"
    text = _symbolic(op, [arg.converted(type) for arg in args])
    if type != result.type:
        text = f"(({result.type})({text}))"
    return Term(text, result.type, result.low, result.high)


def _range(op: str, args: list[Term]) -> tuple[int, int]:
    """Return the least and the largest value of an operation on integers."""
    a = args[0]
    b = args[1] if len(args) > 1 else a
    match op:
        case "add":
            return a.low + b.low, a.high + b.high
        case "sub":
            return a.low - b.high, a.high - b.low
        case "mul":
            products = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
            return min(products), max(products)
        case "max":
            return max(a.low, b.low), max(a.high, b.high)
        case "min":
            return min(a.low, b.low), min(a.high, b.high)
        case "neg":
            return -a.high, -a.low
        case "abs":
            ends = (abs(a.low), abs(a.high))
            return (0 if a.low <= 0 <= a.high else min(ends)), max(ends)
        case "shr":
            # A shift by a negative number of bits, or by 64, leaves the sign.
            return min(a.low, -1 if a.low < 0 else 0), max(a.high, 0)
        case _:
            raise NotImplementedError(op)


def _saturated(term: Term, dtype: str) -> Term:
    info = dtype_info(dtype)
    if info.is_integer:
        low, high = info.integer_range
        # The largest integer of 64 bits is no float64; the largest float64 below it is the limit.
        last = min(high, 2**63 - 1024) if term.is_float else high
        ends = f"{integer_literal(low)}, {integer_literal(last)}"
        function = "saturated" if term.is_float else "clamped"
        result = integer("", low, high)
        return Term(f"(({result.type})({function}({term.text}, {ends})))", result.type, low, high)
    if dtype == "float64":
        return Term(term.converted("double"), "double")
    text = term.text if term.is_float else f"(float)({term.text})"
    if dtype in _LARGEST_FLOAT8:
        text = f"limited({text}, {_LARGEST_FLOAT8[dtype]})"
    return _rounded(text, dtype)


def _rounded(text: str, dtype: str) -> Term:
    if dtype in _SMALL_FLOATS:
        return Term(f"((float)(rounded_to<{dtype}>({text})))", "float")
    return Term(f"((float)({text}))", "float")


def _cast(term: Term, dtype: str) -> Term:
    info = dtype_info(dtype)
    if info.is_integer:
        low, high = info.integer_range
        text = f"cut_off({term.text})" if term.is_float else term.text
        result = integer("", low, high)
        if info.bits % 8:
            signed = "true" if low else "false"
            text = f"wrapped({text}, {info.bits}, {signed})"
        else:
            text = f"({info.name}_t)({text})"
        return Term(f"(({result.type})({text}))", result.type, low, high)
    if dtype == "float64":
        return Term(term.converted("double"), "double")
    # Libraries convert to these types by way of float32.
    text = term.converted("float") if dtype in _SMALL_FLOATS and dtype != "float16" else term.text
    if dtype == "float16" and not term.is_float:
        text = term.converted("double")
    return _rounded(text, dtype)


def integer_literal(value: int) -> str:
    """Return an integer of 64 bits; the least one is no literal of C++."""
    if value == -_LARGEST_INT64 - 1:
        return "INT64_MIN"
    return f"(int64_t)({value}LL)"
