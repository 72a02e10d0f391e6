"""Narrow floats and integers beside those of ml_dtypes, on every number of sixteen bits."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

import ml_dtypes
import numpy as np
import pytest

from cpembed.frontends.builder import Builder
from cpembed.frontends.emitter import Emitter
from cpembed.frontends.narrow import EXPONENT, FLOATS, INTEGERS, bytes_of, narrowed, widened
from cpembed.graph.graph import evaluate
from cpembed.graph.kinds import Kind, TensorType
from cpembed.graph.kinds.base import Array


class Writer(Emitter):
    def emit_all(self, kind: Kind, *inputs: str) -> tuple[str, ...]:
        return self.builder.add_all(kind, inputs, "operator")

    def tensor(self, value: Array | Sequence[Any] | float, dtype: str | None = None) -> str:
        return self.builder.constant(np.asarray(value, dtype))

    def reject(self, reason: str) -> NoReturn:
        raise AssertionError(reason)

    def inside(self, builder: Builder) -> Writer:
        return Writer(builder, {})


def values() -> Array:
    """Every float16, and float32 of all magnitudes: ties, subnormal numbers and no numbers too."""
    random = np.random.default_rng(0)
    halves = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32)
    wide = random.standard_normal(20000) * 10.0 ** random.uniform(-45, 38, 20000)
    special = [np.inf, -np.inf, np.nan, 0.0, -0.0]
    return np.concatenate([halves, wide.astype(np.float32), np.float32(special)])


def computed(x: Array, narrow: str, **options: Any) -> Array:
    builder = Builder("test")
    name = builder.input("x", TensorType.of_array(x))
    result = narrowed(Writer(builder, {}), name, narrow, **options)
    return evaluate(builder.graph({"y": result}), {"x": x})["y"]


def of_ml_dtypes(x: Array, narrow: str) -> Array:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return bytes_of(x.astype(np.dtype(getattr(ml_dtypes, narrow))))


@pytest.mark.parametrize("narrow", FLOATS)
def test_floats_are_rounded_as_ml_dtypes_does(narrow: str) -> None:
    x = values()
    if narrow == "float4_e2m1fn":
        # It has no NaN: the format stores -0, and ml_dtypes 0 of either sign.
        assert computed(np.float32([np.nan]), narrow).tolist() == [8]
        x = x[~np.isnan(x)]
    expected = of_ml_dtypes(x, narrow)
    np.testing.assert_array_equal(computed(x, narrow, saturates=False), expected)
    # Saturating, only what is too large differs, and becomes the largest of its sign.
    form = FLOATS[narrow]
    wide = np.uint8([form.largest]).view(np.dtype(getattr(ml_dtypes, narrow)))
    largest = float(wide.astype(np.float32)[0])
    saturated = computed(x, narrow, saturates=True)
    fits = ~(np.abs(x) > largest)
    np.testing.assert_array_equal(saturated[fits], expected[fits])
    beyond = form.largest | np.where(x < 0, form.sign, 0)
    np.testing.assert_array_equal(saturated[~fits], beyond[~fits])


@pytest.mark.parametrize("narrow", [*FLOATS, EXPONENT])
def test_bytes_are_read_as_ml_dtypes_does(narrow: str) -> None:
    count = 16 if narrow == "float4_e2m1fn" else 256
    q = np.arange(count).astype(np.uint8)
    builder = Builder("test")
    name = builder.input("q", TensorType.of_array(q))
    graph = builder.graph({"y": widened(Writer(builder, {}), name, narrow)})
    expected = q.view(np.dtype(getattr(ml_dtypes, narrow))).astype(np.float32)
    np.testing.assert_array_equal(evaluate(graph, {"q": q})["y"], expected)


@pytest.mark.parametrize("rounding, expected", [
    ("up", [127, 128, 129, 129, 0, 1, 255, 255]), ("down", [127, 128, 128, 128, 0, 0, 255, 255]),
    ("nearest", [127, 128, 128, 129, 0, 1, 255, 255]),
])  # fmt: skip
def test_exponents_are_rounded_in_a_direction(rounding: str, expected: list[int]) -> None:
    x = np.float32([1, 2, 2.5, 3.5, 0, 2.0**-126 * 0.9, np.nan, -1])
    assert computed(x, EXPONENT, rounding=rounding).tolist() == expected


@pytest.mark.parametrize("narrow", INTEGERS)
def test_integers_of_few_bits_wrap(narrow: str) -> None:
    x = np.arange(-40, 40, dtype=np.int32)
    dtype, bits = INTEGERS[narrow]
    low = 0 if dtype == "uint8" else -(1 << (bits - 1))
    expected = (x - low) % (1 << bits) + low
    assert computed(x, narrow).dtype == dtype
    np.testing.assert_array_equal(computed(x, narrow), expected)
