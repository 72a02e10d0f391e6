"""Arithmetic of scalar expressions, on arrays of numpy: :func:`evaluate`.

A value is an integer or a float.

- Integers are exact in 64 bits, and stay integers until they meet a float.
- An operation with a float among its arguments is one of float32, of float64 if an argument is
  float64: integers are converted to that type first, and the result is rounded to it, to nearest
  even. Operations are executed in the order in which they are written, from left to right.
- ``/``, ``exp``, ``sqrt``, ``rsqrt``, ``tanh`` and ``erf`` always yield floats. Each is computed in
  float64 and rounded once.
- ``int8(x)`` converts to a type: integers saturate; floats are rounded to nearest even and then
  saturate, and NaN becomes 0. Floats of 16 and more bits overflow to infinity, those of 8 bits
  saturate, infinities too, and keep NaN. ``cast(x, int8)`` wraps around as numpy's conversion.
- A sum into an output of floats (``+=``) has no stated order. It is computed in float64, as are the
  operations of its value outside of conversions, and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from cpembed.ir.computation import Assignment
from cpembed.ir.dtypes import dtype_info, is_integer, numpy_dtype
from cpembed.ir.expression import Access, Cast, Constant, Expression, Operation
from cpembed.ir.scalars import OPERATIONS as ELEMENT_OPERATIONS
from cpembed.ir.scalars import converted

Array = npt.NDArray[Any]


def _reciprocal_root(values: Array) -> Array:
    return 1.0 / np.sqrt(values)


UFUNCS: Mapping[str, np.ufunc] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "max": np.maximum, "min": np.minimum,
    "abs": np.absolute, "neg": np.negative, "shr": np.right_shift,
}  # fmt: skip
"""Function of each operation on integers and on floats; of two arguments, also of reductions."""

_FLOAT_FUNCTIONS: Mapping[str, Callable[..., Array]] = {
    "div": np.divide, "exp": np.exp, "sqrt": np.sqrt, "rsqrt": _reciprocal_root, "tanh": np.tanh,
    "erf": ELEMENT_OPERATIONS["erf"][1],
}  # fmt: skip
"""Function of each operation that is one of floats whatever its arguments are."""

_FORMATS = {"bfloat16": (7, -126), "float8_e4m3fn": (3, -6), "float8_e5m2": (2, -14)}
"""Bits of the fraction, and least exponent of a normal number, of floats that numpy lacks."""

_LARGEST = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}
"""Largest finite value of each type of floats that saturates."""


def evaluate(expression: Expression, read: Callable[[Access], Array], *, wide: bool) -> Array:
    """Compute an expression for many points at once.

    Parameters
    ----------
    expression : Expression
    read : callable
        Returns the elements that an access reads, in the operand's own type. All of them broadcast
        against each other.
    wide : bool
        True in sums into an output of floats, in which floats are float64.

    Returns
    -------
    ndarray
        The value at each point: int64, float32 or float64.
    """
    match expression:
        case Access():
            values = read(expression)
            return values.astype(_computing_type(values.dtype, wide))
        case Constant():
            value = np.asarray(expression.value)
            return value.astype(_computing_type(value.dtype, wide, constant=True))
        case Cast():
            # What is converted is rounded as it is everywhere: a conversion states its input.
            values = evaluate(expression.arg, read, wide=False)
            convert = saturated if expression.saturate else _wrapped
            result = convert(values, expression.dtype)
            return result.astype(_computing_type(result.dtype, wide))
        case Operation():
            args = [evaluate(arg, read, wide=wide) for arg in expression.args]
            return _apply(expression.op, args)


def saturated(values: Array, dtype: str) -> Array:
    """Convert numbers to an element type, to nearest even, with saturation.

    >>> saturated(np.array([2.5, 3.5, -200.0, np.nan]), "int8").tolist()
    [2, 4, -128, 0]
    >>> saturated(np.array([1e6, -np.inf, 1.0625]), "float8_e4m3fn").tolist()
    [448.0, -448.0, 1.0]

    Parameters
    ----------
    values : ndarray
        Integers of 64 bits, or floats of 32 or 64.
    dtype : str
        Element type of the result. Integers and floats of 8 bits saturate.

    Returns
    -------
    ndarray
        Of :attr:`~cpembed.ir.dtypes.DType.numpy` of the type.
    """
    info = dtype_info(dtype)
    if info.is_integer:
        if values.dtype.kind != "f":
            return np.clip(values, *info.integer_range).astype(info.numpy)
        if info.bits >= 64:
            return converted(values, dtype)
        # In float64, which holds both ends of these ranges.
        integers = np.rint(np.nan_to_num(values.astype(np.float64)))
        return np.clip(integers, *info.integer_range).astype(info.numpy)
    if values.dtype.kind != "f":
        # Integers are converted to float32 wherever they meet a narrower float.
        values = values.astype("float64" if info.bits == 64 else "float32")
    if info.bits == 8:
        values = np.clip(values, -_LARGEST[dtype], _LARGEST[dtype])
    return rounded(values, dtype)


def rounded(values: Array, dtype: str) -> Array:
    """Convert floats to a type of floats, to nearest even, once; too large ones as in IEEE 754."""
    target = numpy_dtype(dtype)
    if dtype in _FORMATS and (dtype, values.dtype) != ("bfloat16", np.float32):
        # ml_dtypes goes by way of a wider type, which rounds twice. Multiplied by a power of two,
        # values are rounded to integers instead.
        fraction_bits, least_exponent = _FORMATS[dtype]
        wide = np.where(np.isfinite(values), values, 0).astype(np.float64)
        _, exponents = np.frexp(wide)
        last_bit = np.maximum(exponents - 1, least_exponent) - fraction_bits
        nearest = np.ldexp(np.rint(np.ldexp(wide, -last_bit)), last_bit)
        values = np.where(np.isfinite(values), nearest, values)
    with np.errstate(over="ignore"):
        return values.astype(target)


def _wrapped(values: Array, dtype: str) -> Array:
    info = dtype_info(dtype)
    if info.is_integer and values.dtype.kind == "f":
        values = values.astype(np.int64)
    if info.bits % 8:
        low, _ = info.integer_range
        values = (values - low) % 2**info.bits + low
    return values.astype(info.numpy)


def _apply(op: str, args: list[Array]) -> Array:
    """Apply an operation, in the type that its arguments need."""
    if op not in _FLOAT_FUNCTIONS and all(arg.dtype.kind != "f" for arg in args):
        return UFUNCS[op](*args)
    is_double = any(arg.dtype == np.float64 for arg in args)
    result_type = np.dtype("float64" if is_double else "float32")
    function = _FLOAT_FUNCTIONS.get(op) or UFUNCS[op]
    # An operation on float32 that is computed in float64 and rounded is the one of float32, as
    # float64 has more than twice the bits; functions do not depend on the processor's library.
    return function(*(a.astype(result_type).astype(np.float64) for a in args)).astype(result_type)


def _computing_type(
    dtype: np.dtype[Any], wide: bool, *, constant: bool = False
) -> np.dtype[np.float64] | np.dtype[np.float32] | np.dtype[np.int64]:
    if dtype.kind in "iub":
        return np.dtype(np.int64)
    # A constant has no type of its own: it takes that of the other argument.
    is_double = wide or (dtype == np.float64 and not constant)
    return np.dtype(np.float64) if is_double else np.dtype(np.float32)


def computing_dtype(output: str) -> np.dtype[Any]:
    """Type in which the points of an output's element are combined: int64 or float64."""
    # So wide that a sum of floats can serve as reference for any order of summation.
    return numpy_dtype("int64" if is_integer(output) else "float64")


def sums_floats(statement: Assignment, output: str) -> bool:
    """True if a statement adds, or multiplies, points of no stated order into a type of floats."""
    return statement.reduction in ("add", "mul") and not is_integer(output)


def stored(values: Array, dtype: str) -> Array:
    """Convert results, of :func:`computing_dtype`, to the output's type: integers wrap around."""
    return _wrapped(values, dtype) if is_integer(dtype) else rounded(values, dtype)
