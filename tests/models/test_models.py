"""The models that tests and experiments run are the published networks, and run elsewhere too."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

from tests.models.registry import MODELS, TINY, options, quantized, samples, write  # noqa: E402

RESULTS = {"bert_base": (1, 8, 32), "transformer": (1, 8, 50), "milstm": (1, 10)}
"""Shapes of the tiny instances' first outputs; the others classify into ten."""

MULTIPLICATIONS = {
    "resnet18": 1.81e9,
    "resnet50": 4.09e9,
    "resnet50_v1": 3.8e9,
    "resnet101_v1": 7.6e9,
    "resnet152_v1": 11.3e9,
    "mobilenet_v1": 569e6,
    "mobilenet_v2": 300e6,
    "shufflenet_v1": 140e6,
    "inception_v3": 5.7e9,
    "bert_base": 11.17e9,
    "milstm": 7.4e6,
}
"""As published, each in its paper or repository. By hand: BERT, 12 layers of 128 tokens, each
12 x 768 x 768 x 128 + 2 x 128 x 128 x 768; LSTM 4 x 784 x 1024 + 4 x 1024 x 1024 + 1024 x 10."""


def results(path: Path, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, feed)


@pytest.mark.parametrize("name", MODELS)
def test_a_tiny_instance_runs_and_its_magnitudes_stay_sensible(name, tmp_path):
    path = write(name, tmp_path / "model.onnx", **TINY[name])
    onnx.checker.check_model(path, full_check=True)
    first = results(path, samples(onnx.load(path), 1)[0])[0]
    assert first.shape == RESULTS.get(name, (1, 10))
    assert first.dtype == np.float32
    assert 0.01 < first.std() < 30


@pytest.mark.quick(1)
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_a_quantized_model_computes_nearly_the_same(name, signed, tmp_path):
    path = write(name, tmp_path / "model.onnx", **TINY[name])
    feeds = samples(onnx.load(path), 2)
    int8 = quantized(path, tmp_path / "int8.onnx", signed=signed, calibration=feeds,
                     **options(name))  # fmt: skip
    onnx.checker.check_model(int8)
    kinds = {node.op_type for node in onnx.load(int8).graph.node}
    assert {"QuantizeLinear", "DequantizeLinear"} <= kinds
    exact, rounded = (results(p, feeds[0])[0].ravel() for p in (path, int8))
    cosine = exact @ rounded / math.sqrt((exact @ exact) * (rounded @ rounded))
    assert cosine > 0.97
    assert not np.array_equal(exact, rounded)


def test_weights_are_int8_a_scale_a_channel_and_activations_of_the_kind_asked_for(tmp_path):
    path = write("tiny", tmp_path / "model.onnx", **TINY["tiny"])
    for signed, activation in ((False, onnx.TensorProto.UINT8), (True, onnx.TensorProto.INT8)):
        model = onnx.load(quantized(path, tmp_path / "int8.onnx", signed=signed))
        constants = {tensor.name: tensor for tensor in model.graph.initializer}
        scales = [node.input[1] for node in model.graph.node if node.op_type == "DequantizeLinear"]
        weights = [t for t in constants.values() if len(t.dims) == 4]
        assert {t.data_type for t in weights} == {onnx.TensorProto.INT8}
        assert sum(constants[name].dims == [16] for name in scales) >= 3
        stored = [node.input[2] for node in model.graph.node if node.op_type == "QuantizeLinear"]
        assert {constants[name].data_type for name in stored} == {activation}


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", MULTIPLICATIONS)
def test_a_full_instance_multiplies_as_often_as_published(name):
    assert multiplications(MODELS[name]()) == pytest.approx(MULTIPLICATIONS[name], rel=0.03)


def test_efficientnet_lite0_has_as_many_weights_as_published():
    """4.65 million; each normalisation's scale and shift count there, here its shift alone."""
    constants = MODELS["efficientnet_lite0"]().graph.initializer
    weights = sum(math.prod(tensor.dims) for tensor in constants)
    assert weights == pytest.approx(4.65e6, rel=0.01)


def test_scalars_are_scalars():
    """The bounds of a Clip have no dimension."""
    model = MODELS["mobilenet_v2"](**TINY["mobilenet_v2"])
    sizes = {tensor.name: list(tensor.dims) for tensor in model.graph.initializer}
    bounds = [n for node in model.graph.node if node.op_type == "Clip" for n in node.input[1:]]
    assert bounds
    assert all(sizes[name] == [] for name in bounds)


def test_the_same_seed_gives_the_same_model_and_another_one_another():
    first, again, other = (MODELS["tiny"](seed=seed).SerializeToString() for seed in (0, 0, 1))
    assert first == again != other


def multiplications(model: onnx.ModelProto) -> int:
    """Of a model's products, from the shapes that ONNX infers."""
    shapes = {tensor.name: list(tensor.dims) for tensor in model.graph.initializer}
    for value in (*model.graph.value_info, *model.graph.input, *model.graph.output):
        shapes[value.name] = [size.dim_value for size in value.type.tensor_type.shape.dim]
    total = 0
    for node in model.graph.node:
        result = math.prod(shapes[node.output[0]])
        if node.op_type == "Conv":
            total += result * math.prod(shapes[node.input[1]][1:])
        elif node.op_type in ("MatMul", "Gemm"):
            total += result * shapes[node.input[0]][-1]
    return total
