"""Element types: what numpy makes of them, accumulators, and the dtype= setting."""

import ml_dtypes
import numpy as np
import pytest

from cpembed.errors import WorkloadError
from cpembed.ir.dtypes import (
    DTYPES,
    accumulator,
    bits,
    holds,
    is_integer,
    numpy_dtype,
    resolve_dtypes,
    size_bytes,
)


@pytest.mark.parametrize("name", DTYPES)
def test_numpy_agrees_on_width_and_range(name):
    dtype = numpy_dtype(name)
    assert dtype.itemsize == size_bytes(name)
    assert is_integer(name) == (dtype.kind in "iu")
    if DTYPES[name].is_packed:
        own = np.dtype(getattr(ml_dtypes, name))
        assert bits(name) == DTYPES[name].storage_bits == ml_dtypes.iinfo(own).bits
    else:
        own = dtype
        assert dtype.name == name
        assert dtype.itemsize == bits(name) // 8
    if is_integer(name):
        limits = ml_dtypes.iinfo(own)
        assert DTYPES[name].integer_range == (limits.min, limits.max)


@pytest.mark.parametrize(
    "pair, expected",
    [
        (("int8", "int8"), "int32"),
        (("uint8", "int8"), "int32"),
        (("int16", "int16"), "int32"),
        (("int32", "int32"), "int32"),
        (("uint16", "int8"), "int64"),
        (("float16", "float16"), "float32"),
        (("bfloat16", "bfloat16"), "float32"),
        (("float32", "int8"), "float32"),
        (("float64", "float32"), "float64"),
        (("float8_e4m3fn", "float8_e5m2"), "float32"),
        (("int4", "uint8"), "int32"),
    ],
)
def test_accumulators(pair, expected):
    assert accumulator(*pair) == accumulator(*reversed(pair)) == expected


@pytest.mark.parametrize("wide", DTYPES)
@pytest.mark.parametrize("narrow", DTYPES)
def test_holds_means_that_the_extreme_values_survive_the_conversion(wide, narrow):
    if is_integer(narrow):
        values = [*DTYPES[narrow].integer_range, 2 ** (bits(narrow) - 2) + 1]
        survive = is_integer(wide) or all(int(float(v)) == v for v in values)
        for value in values:
            if is_integer(wide):
                low, high = DTYPES[wide].integer_range
                survive &= low <= value <= high
            else:
                # Through float64 the largest integers are already inexact: ask in Python.
                with np.errstate(over="ignore"):
                    rounded = np.float64(value).astype(numpy_dtype(wide)).astype(np.float64)
                survive &= bool(np.isfinite(rounded)) and int(rounded) == value
    else:
        smallest = {"float16": 2.0**-24, "bfloat16": 2.0**-133}
        smallest |= {"float8_e4m3fn": 2.0**-9, "float8_e5m2": 2.0**-16}
        smallest |= {"float32": 2.0**-149, "float64": 2.0**-1074}
        one_more = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
        one_more |= {"float8_e4m3fn": 2.0**-3, "float8_e5m2": 2.0**-2}
        one_more |= {"float32": 2.0**-23, "float64": 2.0**-52}
        values = [smallest[narrow], 1 + one_more[narrow]]
        survive = all(
            float(np.float64(v).astype(numpy_dtype(wide)).astype(np.float64)) == v for v in values
        )
    assert holds(wide, narrow) == survive


@pytest.mark.parametrize(
    "dtype, inputs, expected",
    [
        (None, 2, ("int8", "int8", "int32")),
        ("uint8, int8", 2, ("uint8", "int8", "int32")),
        (("int8", "int8", "int64"), 2, ("int8", "int8", "int64")),
        ("float16", 1, ("float16", "float32")),
        ("float16", 3, ("float16", "float16", "float16", "float32")),
    ],
)
def test_dtype_setting(dtype, inputs, expected):
    assert resolve_dtypes(dtype, inputs) == expected


@pytest.mark.parametrize(
    "dtype, message",
    [
        ("int8,int8,int32,int32", "has 4 types: give one, 2 .* or 3"),
        ("int9", "unknown dtype 'int9': use one of int8"),
        ("int8,", "unknown dtype ''"),
        ((), "has 0 types"),
    ],
)
def test_wrong_dtype_settings(dtype, message):
    with pytest.raises(WorkloadError, match=message):
        resolve_dtypes(dtype)
