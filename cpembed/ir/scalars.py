"""Scalar expressions of elements, and their definition in numpy.

Operators at every element of tensors have such an expression, and so have epilogues of products.
Where kernel and definition have to round a product and a sum once, both are one operation, ``fma``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.errors import WorkloadError
from cpembed.ir.dtypes import numpy_dtype

Array = NDArray[Any]


@dataclass(frozen=True)
class Input:
    """Element of an input, by the input's position."""

    number: int


@dataclass(frozen=True)
class Number:
    """Constant."""

    value: float | int


@dataclass(frozen=True)
class Apply:
    """Operation on arguments; ``operation`` is a key of :data:`OPERATIONS`."""

    operation: str
    arguments: tuple[Scalar, ...]


Scalar = Input | Number | Apply


def apply(operation: str, *arguments: Scalar | float | int) -> Apply:
    """Return an operation; numbers among the arguments become constants."""
    return Apply(
        operation, tuple(Number(a) if isinstance(a, float | int) else a for a in arguments)
    )


def substituted(node: Scalar, change: Callable[[Input], Scalar]) -> Scalar:
    """Return an expression with ``change`` applied to each input.

    >>> substituted(apply("add", Input(0), 2), lambda x: Input(x.number + 1))
    Apply(operation='add', arguments=(Input(number=1), Number(value=2)))
    """
    if isinstance(node, Input):
        return change(node)
    if isinstance(node, Apply):
        return Apply(node.operation, tuple(substituted(a, change) for a in node.arguments))
    return node


def input_numbers(node: Scalar) -> set[int]:
    """Return the numbers of the inputs of an expression.

    >>> sorted(input_numbers(Apply("add", (Input(0), Apply("mul", (Input(2), Number(3)))))))
    [0, 2]
    """
    if isinstance(node, Input):
        return {node.number}
    arguments = node.arguments if isinstance(node, Apply) else ()
    return {number for argument in arguments for number in input_numbers(argument)}


def operations(node: Scalar) -> set[str]:
    """Return the names of the operations of an expression.

    >>> sorted(operations(Apply("add", (Input(0), Apply("mul", (Input(2), Number(3)))))))
    ['add', 'mul']
    """
    if not isinstance(node, Apply):
        return set()
    inner = {name for argument in node.arguments for name in operations(argument)}
    return inner | {node.operation}


def _fma(a: Array, b: Array, c: Array) -> Array:
    # Rounds once, since the product of two float32 numbers is exact in float64.
    return (a.astype(np.float64) * b + c).astype(np.float32)


def _div(a: Array, b: Array) -> Array:
    """Divide; quotients of integers round towards zero as in C, and are 0 for divisor 0."""
    if a.dtype.kind == "f" or b.dtype.kind == "f":
        return np.divide(a, b)
    quotient = np.floor_divide(a, b)
    # Negative quotients that are not whole were rounded away from zero.
    rounds_up = (quotient * b != a) & ((a < 0) != (b < 0)) & (b != 0)
    return quotient + rounds_up


def _pow(a: Array, b: Array) -> Array:
    """Return the power as C defines it."""
    # numpy takes the root of -infinity, which is NaN, for exponent 0.5.
    value = np.power(a, b)
    if value.dtype.kind != "f":
        return value
    return np.where((b == 0.5) & np.isneginf(a), value.dtype.type(np.inf), value)


def _erf(x: Array) -> Array:
    # numpy has no error function, and scipy is no dependency.
    flat = np.fromiter((math.erf(v) for v in x.reshape(-1)), np.float64, x.size)
    return flat.reshape(x.shape).astype(x.dtype)


def _sigmoid(x: Array) -> Array:
    with np.errstate(over="ignore"):
        return (1.0 / (1.0 + np.exp(-x.astype(np.float64)))).astype(x.dtype)


def _shift(a: Array, b: Array, *, left: bool) -> Array:
    """Shift bits; by a negative or too large number of them, as many as there are."""
    bits = 8 * np.result_type(a, b).itemsize
    inside = (b >= 0) & (b < bits)
    count = np.where(inside, b, 0)
    if left:
        return np.where(inside, np.left_shift(a, count), 0)
    return np.where(inside, np.right_shift(a, count), np.right_shift(a, bits - 1))


OPERATIONS: Mapping[str, tuple[int, Callable[..., Array]]] = {
    "add": (2, np.add),
    "sub": (2, np.subtract),
    "mul": (2, np.multiply),
    "div": (2, _div),
    "rem": (2, np.fmod),
    "fma": (3, _fma),
    "max": (2, np.maximum),
    "min": (2, np.minimum),
    "pow": (2, _pow),
    "neg": (1, np.negative),
    "abs": (1, np.abs),
    "exp": (1, np.exp),
    "log": (1, np.log),
    "sqrt": (1, np.sqrt),
    "erf": (1, _erf),
    "tanh": (1, np.tanh),
    "sigmoid": (1, _sigmoid),
    "sin": (1, np.sin),
    "cos": (1, np.cos),
    "atan": (1, np.arctan),
    "floor": (1, np.floor),
    "ceil": (1, np.ceil),
    "round": (1, np.rint),
    "equal": (2, np.equal),
    "less": (2, np.less),
    "less_equal": (2, np.less_equal),
    "and": (2, np.logical_and),
    "or": (2, np.logical_or),
    "not": (1, np.logical_not),
    "where": (3, np.where),
    "bit_and": (2, np.bitwise_and),
    "bit_or": (2, np.bitwise_or),
    "bit_xor": (2, np.bitwise_xor),
    "bit_not": (1, np.bitwise_not),
    "shift_left": (2, partial(_shift, left=True)),
    "shift_right": (2, partial(_shift, left=False)),
}
"""Number of arguments and definition of each operation. Integer ``div`` rounds towards zero and
``rem`` is its remainder, with the sign of the dividend (of floats too). ``round`` goes to the
nearest even; ``where`` takes its second argument if the first is true, else the third.
``shift_right`` repeats the sign."""

BOOLEAN = frozenset({"equal", "less", "less_equal", "and", "or", "not"})
"""Operations whose result is a Boolean."""

OF_BITS = frozenset({"bit_and", "bit_or", "bit_xor", "bit_not", "shift_left", "shift_right"})
"""Operations on the bits of integers, which floats do not have."""


def evaluate_scalar(node: Scalar, inputs: Sequence[Array], dtype: str) -> Array:
    """Return an expression of numpy arrays, whose arithmetic has a type.

    Parameters
    ----------
    node : Scalar
    inputs : sequence of ndarray
        Arrays that the inputs stand for: Booleans, or of ``dtype``.
    dtype : str
        Type of the constants.

    Raises
    ------
    WorkloadError
        An operation has the wrong number of arguments.
    """
    if isinstance(node, Input):
        return inputs[node.number]
    if isinstance(node, Number):
        return np.asarray(node.value, np.bool_ if isinstance(node.value, bool) else dtype)
    count, definition = OPERATIONS[node.operation]
    arguments = [evaluate_scalar(argument, inputs, dtype) for argument in node.arguments]
    if len(arguments) != count:
        raise WorkloadError(f"{node.operation} takes {count} arguments, not {len(arguments)}")
    return definition(*arguments)


def converted(value: Array, dtype: str) -> Array:
    """Convert to an element type; floats are rounded to the nearest even integer and saturated."""
    target = numpy_dtype(dtype)
    if target.kind in "iu" and value.dtype.kind == "f":
        limits = np.iinfo(str(target))
        largest = float(limits.max)
        # The largest integer of 64 bits is no float64, so the next one below it is the limit.
        high = largest if largest <= limits.max else np.nextafter(largest, 0.0)
        value = np.clip(np.rint(np.nan_to_num(value)).astype(np.float64), limits.min, high)
    return value.astype(target)
