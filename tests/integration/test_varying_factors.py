"""Products whose factors are both computed: what packs the second one comes before the kernel."""

from __future__ import annotations

import numpy as np
import pytest

from cpembed.frontends.products import Window, convolution
from cpembed.graph.graph import Graph, Operator, evaluate
from cpembed.graph.kinds import Product, TensorType
from cpembed.network.build import compile_model
from cpembed.network.inputs import random_inputs
from tests.features import needs

TARGET = "avx2_f32"


@needs(TARGET)
@pytest.mark.quick(2)
@pytest.mark.parametrize("seed", range(8))
def test_convolutions_by_computed_weights(seed: int) -> None:
    random = np.random.default_rng(seed)
    channels, filters = (1, 1) if seed < 2 else map(int, random.integers(1, 20, 2))
    image = (1, channels, *map(int, random.integers(4, 9, 2)))
    step, pad = int(random.integers(1, 3)), int(random.integers(0, 2))
    window = Window(
        taps=(3, 3), strides=(step, step), dilations=(1, 1), before=(1, pad), after=(1, pad)
    )
    weights = (filters, channels, 3, 3)
    form = convolution(
        image, weights, window, groups=1, dtypes=("float32", "float32"), varying=True
    )
    inputs = {"x": TensorType(image, "float32"), "w": TensorType(weights, "float32")}
    operator = Operator("conv", Product(form.computation, form.shape), ("x", "w"), ("y",))
    graph = Graph("computed weights", inputs, ("y",), {}, (operator,))
    arrays = random_inputs(graph, seed)
    expected = evaluate(graph, arrays)["y"]
    with compile_model(graph, TARGET, threads=1) as network:
        actual = network.run(arrays)["y"]
    assert np.abs(actual - expected).max() <= 1e-5 * max(1.0, np.abs(expected).max())
