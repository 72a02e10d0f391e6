"""Images of networks that run product by product: their layouts, and what is converted."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from cpembed.driver.matching import network_units
from cpembed.frontends import load_model
from cpembed.graph.graph import Graph
from cpembed.graph.kinds import Product
from cpembed.ir.reference import reference
from cpembed.network.build import prepared_and_named
from cpembed.network.stepwise_layouts import StepLayouts
from tests.unit.network.test_layer_chains import values_of
from tests.unit.network.test_tensor_core_networks import Model


def network(seed: int, path: Path) -> tuple[Graph, int]:
    """A random network of images, and in how many places the order of axes counts."""
    draw, model = random.Random(seed), Model(seed)
    size, width = draw.choice([4, 6]), 8 * draw.randint(1, 2)
    x = model.input("x", draw.randint(1, 2), width, size, size)
    order_counts = 1
    for _ in range(draw.randint(2, 5)):
        step = draw.choice(["conv", "depthwise", "pool", "concat", "residual", "function"])
        if step == "conv":
            filters, window = 8 * draw.randint(1, 3), draw.choice([1, 3])
            weights = model.weights(filters, width, window, window)
            x = model.node("Conv", x, weights, pads=[window // 2] * 4)
            width = filters
        elif step == "depthwise":
            x = model.node("Conv", x, model.weights(width, 1, 3, 3), group=width, pads=[1] * 4)
        elif step == "pool":
            kind = draw.choice(["MaxPool", "AveragePool"])
            x = model.node(kind, x, kernel_shape=[3, 3], pads=[1] * 4)
        elif step == "concat":
            x = model.node("Concat", x, model.node("Sigmoid", x), axis=1)
            width *= 2
        elif step == "residual":
            y = model.node("Conv", x, model.weights(width, width, 1, 1))
            x = model.node("Add", y, x)
        else:
            x = model.node(draw.choice(["Relu", "Tanh"]), x)
    x = model.node("Conv", x, model.weights(8, width, 1, 1))
    end = draw.choice(["image", "mean", "flat"])
    if end == "mean":
        x = model.node("Flatten", model.node("GlobalAveragePool", x))
    elif end == "flat":
        x = model.node("Flatten", x)
    # A flattened result is stored in order by the last convolution itself.
    order_counts += end == "image"
    units = network_units("mma_f16")
    return prepared_and_named(load_model(model.write(path, x)), units), order_counts


@pytest.mark.parametrize("seed", range(40))
def test_images_are_converted_where_the_order_of_axes_counts(seed: int, tmp_path: Path) -> None:
    graph, order_counts = network(seed, tmp_path / "m.onnx")
    conversions = StepLayouts(graph, channels_last=True).conversions
    assert len(conversions) == order_counts
    assert (conversions[0].tensor, str(conversions[0].read)) == ("x", "NHWC")
    assert StepLayouts(graph, channels_last=False).conversions == ()


@pytest.mark.parametrize("seed", range(20))
def test_products_in_their_layouts_have_the_same_sums(seed: int, tmp_path: Path) -> None:
    graph, _ = network(seed, tmp_path / "m.onnx")
    layouts, values = StepLayouts(graph, channels_last=True), values_of(graph)
    for operator in graph.operators:
        kind = operator.kind
        if not isinstance(kind, Product):
            continue
        placed = layouts.product(operator, kind)
        arrays = [values[name] for name in operator.inputs[:2]]
        first, second = placed.computation.inputs
        inputs = {
            first.name: placed.first.buffer_of(arrays[0]).reshape(first.shape),
            second.name: arrays[1].reshape(second.shape),
        }
        sums = placed.output.elements_of(reference(placed.computation, inputs))
        expected = kind.sums(*arrays).reshape(kind.shape)
        np.testing.assert_allclose(sums, expected, rtol=1e-4, atol=1e-4)
