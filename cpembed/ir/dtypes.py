"""Element types of operands: widths, ranges, numpy equivalents and accumulators."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from cpembed.errors import WorkloadError


class DTypeKind(StrEnum):
    """Interpretation of the bits of an element."""

    SIGNED = "signed"
    UNSIGNED = "unsigned"
    FLOAT = "float"


# numpy has none of its own.
_ML_DTYPES: dict[str, Any] = {
    name: getattr(ml_dtypes, name) for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2")
}


@dataclass(frozen=True)
class DType:
    """An element type.

    >>> DTYPES["uint8"].integer_range, INPUT_DTYPES["int7"].in_memory, DTYPES["int4"].storage_bits
    ((0, 255), 'int8', 4)

    Attributes
    ----------
    name : str
        Name of the type: numpy's, or that of ml_dtypes.
    bits : int
        Bits of a value.
    kind : DTypeKind
        What they are.
    accumulator : str
        Type in which products of two such values are summed.
    is_packed : bool
        True if memories of a machine hold several values in a byte, the first one in the low bits.
        Arrays of numpy hold one value in a byte.
    """

    name: str
    bits: int
    kind: DTypeKind
    accumulator: str
    is_packed: bool = False

    @property
    def is_integer(self) -> bool:
        return self.kind is not DTypeKind.FLOAT

    @property
    def size_bytes(self) -> int:
        """Bytes of the element that holds a value; fewer than eight bits occupy one."""
        return -(-self.bits // 8)

    @property
    def storage_bits(self) -> int:
        """Bits that a value occupies in a machine's memory."""
        return self.bits if self.is_packed else 8 * self.size_bytes

    @property
    def in_memory(self) -> str:
        """Type of the element in memory that holds a value."""
        return self.name.replace(str(self.bits), str(8 * self.size_bytes))

    @property
    def numpy(self) -> np.dtype[Any]:
        """The numpy type of the element that holds a value."""
        return np.dtype(_ML_DTYPES.get(self.name, self.in_memory))

    @property
    def integer_range(self) -> tuple[int, int]:
        """Smallest and largest value of an integer type."""
        if self.kind is DTypeKind.UNSIGNED:
            return 0, 2**self.bits - 1
        if self.kind is DTypeKind.SIGNED:
            return -(2 ** (self.bits - 1)), 2 ** (self.bits - 1) - 1
        raise ValueError(f"{self.name} is not an integer type")


DTYPES: dict[str, DType] = {
    dtype.name: dtype
    for dtype in (
        DType("int8", 8, DTypeKind.SIGNED, "int32"),
        DType("uint8", 8, DTypeKind.UNSIGNED, "int32"),
        DType("int16", 16, DTypeKind.SIGNED, "int32"),
        # A product of two uint16 needs 32 unsigned bits: it does not fit int32.
        DType("uint16", 16, DTypeKind.UNSIGNED, "int64"),
        DType("int32", 32, DTypeKind.SIGNED, "int32"),
        DType("int64", 64, DTypeKind.SIGNED, "int64"),
        DType("float16", 16, DTypeKind.FLOAT, "float32"),
        DType("bfloat16", 16, DTypeKind.FLOAT, "float32"),
        DType("float32", 32, DTypeKind.FLOAT, "float32"),
        DType("float64", 64, DTypeKind.FLOAT, "float64"),
        DType("float8_e4m3fn", 8, DTypeKind.FLOAT, "float32"),
        DType("float8_e5m2", 8, DTypeKind.FLOAT, "float32"),
        DType("int4", 4, DTypeKind.SIGNED, "int32", is_packed=True),
        DType("uint4", 4, DTypeKind.UNSIGNED, "int32", is_packed=True),
    )
}

# The seven bits are a promise about values: with it, instructions that sum products in 16 bits
# (VPMADDUBSW) do not saturate.
INPUT_DTYPES: dict[str, DType] = DTYPES | {
    dtype.name: dtype
    for dtype in (
        DType("int7", 7, DTypeKind.SIGNED, "int32"),
        DType("uint7", 7, DTypeKind.UNSIGNED, "int32"),
    )
}
"""Element types of inputs: also those of bytes whose values need fewer bits."""

# What processors store has a byte a value, and floats of 16 bits or more.
_OF_UNITS = ("float8_e4m3fn", "float8_e5m2", "int4", "uint4")
"""Types of single operators, and of units with memories of their own."""

ELEMENT_DTYPES: dict[str, DType] = {
    name: dtype for name, dtype in INPUT_DTYPES.items() if name not in _OF_UNITS
} | {
    dtype.name: dtype
    for dtype in (
        DType("bool", 1, DTypeKind.UNSIGNED, "int32"),
        DType("uint32", 32, DTypeKind.UNSIGNED, "int64"),
        DType("uint64", 64, DTypeKind.UNSIGNED, "int64"),
    )
}
"""Element types of tensors of a network: also those that no product multiplies."""

_WIDENING = ("int32", "int64", "float32", "float64")
"""Accumulators, from the narrowest to the widest."""

DEFAULT_DTYPE = "int8"
"""Type of an input if none is given."""


def dtype_info(name: str) -> DType:
    """Look a type up by name; raise :class:`WorkloadError` for an unknown one."""
    if name not in INPUT_DTYPES:
        raise WorkloadError(f"unknown dtype {name!r}: use one of {' '.join(INPUT_DTYPES)}")
    return INPUT_DTYPES[name]


def element_info(name: str) -> DType:
    """Look the type of a tensor's elements up; raise :class:`WorkloadError` for an unknown one."""
    return ELEMENT_DTYPES[name] if name in ELEMENT_DTYPES else dtype_info(name)


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return :attr:`DType.numpy` of the type of a tensor's elements by name."""
    return element_info(name).numpy


def bits(name: str) -> int:
    """Return the number of bits of a type's values, which may be fewer than its element has."""
    return dtype_info(name).bits


def size_bytes(name: str) -> int:
    """Return the number of bytes of an element of a tensor.

    >>> size_bytes("int7"), size_bytes("bool"), size_bytes("uint64")
    (1, 1, 8)
    """
    return element_info(name).size_bytes


def is_integer(name: str) -> bool:
    """True for a type of integers, signed or not, and for Booleans."""
    return element_info(name).is_integer


def saturated_range(dtype: str) -> tuple[float, float]:
    """Return the smallest and the largest float32 that an integer type represents.

    >>> saturated_range("int32")
    (-2147483648.0, 2147483520.0)
    """
    low, high = dtype_info(dtype).integer_range
    largest = np.float32(high)
    # In numpy's comparison, the integer would be rounded as well.
    if float(largest) > high:
        largest = np.nextafter(largest, np.float32(0))
    return float(low), float(largest)


def neutral_element(operation: str, dtype: str) -> int | float:
    """Return the value from which a reduction of a type begins.

    >>> [neutral_element(name, "int8") for name in ("max", "min", "add", "prod")]
    [-128, 127, 0, 1]

    Parameters
    ----------
    operation : str
        Maximum, minimum, product (``mul``, ``prod``) or sum (``add``, ``sum``, ``mean``).
    dtype : str
        Element type.
    """
    if operation in ("max", "min"):
        info = element_info(dtype)
        low, high = info.integer_range if info.is_integer else (-math.inf, math.inf)
        return low if operation == "max" else high
    return 1 if operation in ("mul", "prod") else 0


def is_signed(name: str) -> bool:
    """True for a type of signed integers; False for floats."""
    return element_info(name).kind is DTypeKind.SIGNED


def require_values(operand: str, dtype: str, array: NDArray[Any]) -> None:
    """Check that an array holds only values of its type.

    Parameters
    ----------
    operand : str
        Name of the operand, for the message.
    dtype : str
        Its element type, which may have fewer bits than the array's.
    array : array
        The values.

    Raises
    ------
    WorkloadError
        If a value is out of the range of the type.
    """
    info = dtype_info(dtype)
    # An array of numpy cannot hold other values of whole bytes.
    if info.bits % 8 == 0 or not array.size:
        return
    low, high = info.integer_range
    least, largest = int(array.min()), int(array.max())
    if not low <= least <= largest <= high:
        raise WorkloadError(
            f"operand {operand} holds values from {least} to {largest}, {dtype} is {low} to "
            f"{high}: keep to these, or declare {info.in_memory}"
        )


def accumulator(*dtypes: str) -> str:
    """Return the type in which products of values of these types are summed.

    >>> accumulator("uint8", "int8"), accumulator("bfloat16", "bfloat16")
    ('int32', 'float32')
    """
    return max((dtype_info(name).accumulator for name in dtypes), key=_WIDENING.index)


def per_byte(name: str) -> int:
    """Return the number of values that share a byte of a machine's memory.

    >>> per_byte("int4"), per_byte("int8"), per_byte("float32")
    (2, 1, 1)
    """
    return max(1, 8 // element_info(name).storage_bits)


def element_bytes(name: str) -> float:
    """Return the bytes of a machine's memory that a value takes: half a byte of four bits.

    >>> element_bytes("int4"), element_bytes("bfloat16")
    (0.5, 2.0)
    """
    return element_info(name).storage_bits / 8


def storage_bytes(elements: int, dtype: str) -> int:
    """Return the number of bytes of a machine's memory that hold so many elements.

    >>> storage_bytes(5, "int4"), storage_bytes(5, "int7"), storage_bytes(5, "bfloat16")
    (3, 5, 10)
    """
    return -(-elements * element_info(dtype).storage_bits // 8)


def holds(dtype: str, source: str) -> bool:
    """True if ``dtype`` represents every value of ``source``, so that the conversion is exact.

    >>> holds("int32", "uint8"), holds("int8", "uint8"), holds("float16", "bfloat16")
    (True, False, False)
    """
    wide, narrow = dtype_info(dtype), dtype_info(source)
    if wide is narrow:
        return True
    if wide.is_integer and narrow.is_integer:
        low, high = wide.integer_range
        inner_low, inner_high = narrow.integer_range
        return low <= inner_low and inner_high <= high
    if wide.is_integer:
        return False
    # Bits of the significand with the hidden one: integers up to 2**bits are exact.
    significand = {
        "float8_e4m3fn": 4, "float8_e5m2": 3, "float16": 11, "bfloat16": 8, "float32": 24,
        "float64": 53,
    }[dtype]  # fmt: skip
    if narrow.is_integer:
        return max(abs(edge) for edge in narrow.integer_range) <= 2**significand
    # float16 has more significand, bfloat16 more exponent: of 16 bits, neither holds the other, nor
    # of 8.
    return wide.bits > narrow.bits


def resolve_dtypes(dtype: str | Sequence[str] | None, inputs: int = 2) -> tuple[str, ...]:
    """Resolve the types that a user gives to those of the inputs, in order, and of the output.

    A single type holds for every input; otherwise there is one per input. The output's type may
    follow last; by default it is the accumulator of the inputs. None is int8. Text may be a comma
    list. Raises :class:`WorkloadError` for an unknown type or a wrong number of them.

    >>> resolve_dtypes("uint8,int8"), resolve_dtypes("float32"), resolve_dtypes(None)
    (('uint8', 'int8', 'int32'), ('float32', 'float32', 'float32'), ('int8', 'int8', 'int32'))
    """
    if dtype is None:
        dtype = DEFAULT_DTYPE
    names = dtype.split(",") if isinstance(dtype, str) else list(dtype)
    names = [dtype_info(name.strip()).name for name in names]
    if len(names) == inputs + 1:
        return tuple(names)
    if len(names) == 1:
        names *= inputs
    if len(names) != inputs:
        raise WorkloadError(
            f"dtype={','.join(names)} has {len(names)} types: give one, {inputs} (the inputs) "
            f"or {inputs + 1} (the inputs, then the output)"
        )
    return (*names, accumulator(*names))


def as_stored(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array of storage types: Booleans are bytes, bfloat16 is uint16, float8 uint8."""
    if array.dtype == np.bool_:
        return array.view(np.uint8)
    if array.dtype.name in _ML_DTYPES:
        return array.view(f"uint{8 * array.dtype.itemsize}")
    return array


def as_typed(array: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Return an array of a type from one of its storage type."""
    if dtype == "bool":
        return array.astype(np.bool_)
    return array.view(numpy_dtype(dtype)) if dtype in _ML_DTYPES else array
