"""Bounds of floating-point errors: they hold, on data that cancels too, and say what tiles cost."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from cpembed.ir.reference import random_inputs, reference
from cpembed.transform.methods.cook_toom import INTEGER_POINTS, cook_toom
from cpembed.transform.methods.error_growth import bound, magnitudes, roundings, running_bound
from cpembed.transform.methods.winograd import Winograd, winograd
from cpembed.workloads.convolutions import conv1d, conv2d, conv3d

LAYERS = {
    "conv1d": conv1d(n=1, c=40, w=50, k=8, s=3, dtype="float32"),
    "conv2d": conv2d(n=1, c=64, h=12, w=10, k=16, r=3, s=3, pad=1, dtype="float32"),
    "5x5": conv2d(n=1, c=16, h=12, w=12, k=8, r=5, s=5, layout="NHWC", dtype="float32"),
    "conv3d": conv3d(n=1, c=6, d=6, h=6, w=6, k=4, t=3, r=3, s=3, dtype="float32"),
    "float64": conv2d(n=1, c=8, h=10, w=10, k=8, r=3, s=3, dtype="float64"),
}


def _off(method: Winograd, inputs: dict[str, Any]) -> Any:
    """The method in float32, weights transformed in float64, against the convolution in float64."""
    conv = method.convolution
    u = method.weights_part(inputs["W"].astype(np.float64))
    result = method.output_part(method.multiplied(method.image_part(inputs["I"]), u))
    layer = conv.workload.with_dtypes({o.name: "float64" for o in conv.workload.operands})
    exact = reference(layer, {name: array.astype(np.float64) for name, array in inputs.items()})
    return np.abs(result.astype(np.float64) - exact)


@pytest.mark.parametrize("outputs", [2, 4])
@pytest.mark.parametrize("name", [name for name in LAYERS if name != "float64"])
@pytest.mark.parametrize("data", ["uniform", "positive", "cancelling"])
def test_errors_are_within_the_bounds(name: str, outputs: int, data: str) -> None:
    layer = LAYERS[name]
    method = winograd(layer, outputs)
    inputs = random_inputs(layer, seed=outputs)
    if data == "positive":
        inputs = {key: np.abs(array) for key, array in inputs.items()}
    if data == "cancelling":
        inputs["W"] = inputs["W"] - inputs["W"].mean(keepdims=True)
        inputs["I"] = inputs["I"] * np.float32(1e-3) + np.float32(1000)
    off, near, far = _off(method, inputs), running_bound(method, inputs), bound(method, inputs)
    assert (off <= near).all()
    assert (near <= far * (1 + 1e-9)).all()
    assert off.max() > 0


def test_a_wrong_entry_is_beyond_the_bound() -> None:
    layer = LAYERS["conv2d"]
    method = winograd(layer, 4)
    inputs = random_inputs(layer, seed=9)
    rows = [list(row) for row in method.tilings[0].form.input]
    rows[2][3] += Fraction(1, 8)
    form = replace(method.tilings[0].form, input=tuple(map(tuple, rows)))
    broken = replace(method, tilings=(replace(method.tilings[0], form=form), method.tilings[1]))
    assert not (_off(broken, inputs) <= running_bound(method, inputs)).all()


def test_what_a_tile_costs() -> None:
    """Magnitudes grow from one tile size to the next; roundings hardly do."""
    layer = LAYERS["conv2d"]
    inputs = random_inputs(layer, seed=2)
    sizes = {name: np.abs(array) for name, array in inputs.items()}
    wide = layer.with_dtypes({operand.name: "float64" for operand in layer.operands})
    magnitude = reference(wide, {name: array.astype(np.float64) for name, array in sizes.items()})
    growth = [
        float((magnitudes(winograd(layer, outputs), inputs) / magnitude).mean())
        for outputs in (1, 2, 4)
    ]
    assert growth[0] < growth[1] < growth[2]
    assert 5 < growth[1] < 12
    assert 40 < growth[2] < 100
    counts = [roundings(winograd(layer, outputs)) for outputs in (2, 4)]
    assert 64 < counts[0] < counts[1] < 64 + 32


def test_our_points_are_the_more_accurate_ones() -> None:
    layer = LAYERS["conv2d"]
    method = winograd(layer, 4)
    form = cook_toom(4, 3, INTEGER_POINTS)
    rival = replace(method, tilings=tuple(replace(t, form=form) for t in method.tilings))
    error = rival_error = 0.0
    for seed in range(4):
        inputs = random_inputs(layer, seed)
        error += float((_off(method, inputs) ** 2).mean())
        rival_error += float((_off(rival, inputs) ** 2).mean())
    assert error < 0.8 * rival_error


def test_float64_has_its_own_unit() -> None:
    layer = LAYERS["float64"]
    method, inputs = winograd(layer, 2), random_inputs(layer, seed=1)
    assert bound(method, inputs).max() < 1e-11
