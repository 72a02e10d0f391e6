"""Methods against the reference: random convolutions in integers and in rationals."""

from __future__ import annotations

import random
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from cpembed.errors import WorkloadError
from cpembed.ir.computation import Computation
from cpembed.ir.parser import parse_computation
from cpembed.ir.reference import reference
from cpembed.transform.methods.convolution import Rewritten, as_convolution, explicit
from cpembed.transform.methods.winograd import winograd
from cpembed.workloads.operators import find_operator


def _layer(name: str, **values: Any) -> Computation:
    family = find_operator(name)
    assert family is not None
    return family.workload(values)


def _random_layer(draw: random.Random, *, dense: bool) -> Computation:
    """A convolution of one to three windows; ``dense``: of stride and dilation 1."""
    rank = draw.choice((1, 2, 2, 2, 3))
    sizes: dict[str, Any] = {"n": draw.randint(1, 2), "c": draw.randint(1, 4)}
    sizes |= {"k": draw.randint(1, 4), "dtype": draw.choice(("int8", "uint8,int8"))}
    taps = [draw.choice((1, 2, 3, 3, 3, 5)) for _ in range(rank)]
    taps[-1] = max(taps[-1], 2)
    strides = [1 if dense else draw.randint(1, 3) for _ in range(rank)]
    dilations = [1 if dense else draw.randint(1, 2) for _ in range(rank)]
    for name, tap, count in zip("whd", "srt", reversed(taps), strict=False):
        sizes |= {tap: count, name: draw.randint(9, 12)}
    sizes |= {"stride": tuple(strides), "dilation": tuple(dilations)}
    sizes["pad"] = tuple(draw.randint(0, 2) for _ in range(rank))
    layouts = {1: ("NCW", "NWC"), 2: ("NCHW", "NHWC", "NCHW2c"), 3: ("NCDHW", "NDHWC")}
    sizes["layout"] = draw.choice(layouts[rank])
    if sizes["layout"] == "NCHW2c":
        sizes["c"], sizes["k"] = 4, 2
    if rank == 2 and draw.random() < 0.3:
        sizes["groups"] = draw.randint(2, 3)
    return _layer(f"conv{rank}d", **sizes)


def _inputs(layer: Computation, draw: random.Random) -> dict[str, Any]:
    numbers = np.random.default_rng(draw.randint(0, 10**9))
    arrays: dict[str, Any] = {}
    for operand in layer.inputs:
        limits = np.iinfo(operand.dtype)
        values = numbers.integers(limits.min, limits.max, operand.shape, endpoint=True)
        arrays[operand.name] = values.astype(operand.dtype)
    return arrays


def _check(method: Rewritten, layer: Computation, draw: random.Random) -> None:
    """Through the method's own product, by the reference of that computation."""
    inputs = _inputs(layer, draw)

    def multiply(v: Any, u: Any) -> Any:
        return reference(method.product, {"V": v, "U": u})

    result = method.computed(inputs, multiply)
    expected = reference(layer, inputs)
    assert result.dtype == expected.dtype
    assert np.array_equal(result, expected), str(layer)


@pytest.mark.parametrize("seed", range(30))
def test_explicit_is_the_convolution(seed: int) -> None:
    draw = random.Random(seed)
    layer = _random_layer(draw, dense=False)
    _check(explicit(layer, channels_last=draw.choice((None, True, False))), layer, draw)


@pytest.mark.parametrize("seed", range(40))
def test_winograd_of_integers_is_exact(seed: int) -> None:
    draw = random.Random(1000 + seed)
    layer = _random_layer(draw, dense=True)
    outputs = draw.choice((1, 2, 2, 3, 4))
    if len(as_convolution(layer).windows) == 3:
        # Three nested F(4, 3) of int8 need more than the 32 bits of U.
        outputs = min(outputs, 2)
    method = winograd(layer, outputs, channels_last=draw.choice((None, True, False)))
    assert method.is_exact
    _check(method, layer, draw)


@pytest.mark.quick(4)
@pytest.mark.parametrize("seed", range(20))
def test_winograd_of_rationals_is_exact(seed: int) -> None:
    """The same code on ``Fraction`` objects, with the matrices that floats are computed with."""
    draw = random.Random(2000 + seed)
    layer = _random_layer(draw, dense=True)
    layer = layer.with_dtypes({o.name: "float64" for o in layer.operands})
    method = winograd(layer, draw.choice((2, 3, 4)), channels_last=draw.choice((None, True, False)))
    inputs = {
        operand.name: np.array(
            [Fraction(draw.randint(-99, 99), draw.randint(1, 9)) for _ in range(operand.elements)],
            object,
        ).reshape(operand.shape)
        for operand in layer.inputs
    }

    def multiply(v: Any, u: Any) -> Any:
        return v @ u if method.orders.last else u @ v

    result = method.computed(inputs, multiply)
    common = 2520
    integers = {name: (a * common).astype(np.int64) for name, a in inputs.items()}
    wide = layer.with_dtypes({"I": "int64", "W": "int64", "O": "int64"})
    expected = reference(wide, integers).astype(object) * Fraction(1, common**2)
    assert np.array_equal(result, expected), str(layer)


def test_a_turned_filter_is_turned_back() -> None:
    layer = _layer("transposed_conv2d", n=1, c=2, h=6, w=6, k=3, r=3, s=3, pad=1, dtype="int8")
    draw = random.Random(3)
    for method in (winograd(layer, 2), explicit(layer)):
        _check(method, layer, draw)


def test_filters_of_images_are_groups() -> None:
    layer = _layer("batched_conv2d", n=2, c=3, h=6, w=6, k=3, r=3, s=3)
    assert as_convolution(layer).groups == ("n",)
    for method in (winograd(layer, 2), explicit(layer)):
        _check(method, layer, random.Random(4))


def test_multiplications() -> None:
    """Whole tiles: 16 for 4 outputs of 9 taps, 36 for 16; a 5x5 in pieces of 3x3 four times."""
    layer = _layer("conv2d", n=1, c=8, h=10, w=10, k=8, r=3, s=3)
    assert winograd(layer, 2).relative_multiplications == pytest.approx(16 / 36)
    assert winograd(layer, 4).relative_multiplications == pytest.approx(36 / 144)
    assert explicit(layer).relative_multiplications == 1
    nested = _layer("conv2d", n=1, c=8, h=12, w=12, k=8, r=5, s=5)
    assert winograd(nested, 4).relative_multiplications == pytest.approx(4 * 36 / (16 * 25))
    assert winograd(nested, 4).name == "winograd_4x4"


@pytest.mark.parametrize(
    "values, why",
    [
        ({"stride": 2}, "stride 2 and dilation 1"),
        ({"dilation": 2}, "stride 1 and dilation 2"),
        ({"r": 1, "s": 1}, "all are 1"),
        ({"dtype": "bfloat16"}, "too coarsely in bfloat16"),
    ],
)
def test_what_winograd_is_not_for_is_said_in_one_line(values: Any, why: str) -> None:
    layer = _layer("conv2d", **{"n": 1, "c": 2, "h": 9, "w": 9, "k": 2, "r": 3, "s": 3} | values)
    with pytest.raises(WorkloadError, match=why) as refused:
        winograd(layer, 2)
    assert "\n" not in str(refused.value)


def test_int8_does_not_pass_through_int8() -> None:
    layer = _layer("conv2d", n=1, c=2, h=9, w=9, k=2, r=3, s=3)
    assert winograd(layer, 2).product.operand("V").dtype == "int16"
    with pytest.raises(WorkloadError, match="V reaches 512, which int8 does not hold"):
        winograd(layer, 2, types=("int8", "int8", "int32"))


def test_single_channels_are_refused() -> None:
    depthwise = _layer("depthwise", n=1, c=4, h=9, w=9, r=3, s=3)
    with pytest.raises(WorkloadError, match="single channels"):
        winograd(depthwise, 2)
    _check(explicit(depthwise), depthwise, random.Random(1))


@pytest.mark.parametrize(
    "text, extents, why",
    [
        ("C[x,y] += A[x,z] * B[z,y]", {"x": 4, "y": 4, "z": 4}, "is read by windows"),
        ("C[x] += A[x+z]", {"x": 4, "z": 4}, "no|not a sum of products"),
        ("O[x] max= A[x+z] * W[z]", {"x": 4, "z": 4}, "not a sum of products"),
        ("O[x,y] += A[x+y+z] * W[z]", {"x": 4, "y": 2, "z": 4}, "not of one output"),
        ("O[x] += A[x+z] * W[2*z]", {"x": 4, "z": 4}, "is no tap"),
    ],
)
def test_what_is_no_convolution(text: str, extents: dict[str, int], why: str) -> None:
    with pytest.raises(WorkloadError, match=why):
        as_convolution(parse_computation(text, extents))
