"""Models of published networks once they are prepared, beside ONNX Runtime."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

from cpembed.frontends import load_model  # noqa: E402
from cpembed.graph.graph import Graph, evaluate  # noqa: E402
from cpembed.graph.kinds import Dequantize, Elementwise, Product, Quantize, Table  # noqa: E402
from cpembed.graph.passes import prepare  # noqa: E402
from tests.models.registry import MODELS, TINY, options, quantized, samples, write  # noqa: E402

CONVOLUTIONAL = [name for name in MODELS if name not in ("bert_base", "transformer", "milstm")]
RESIDUALS = {"resnet18": 8, "resnet50": 16, "mobilenet_v2": 10, "efficientnet_lite0": 9, "tiny": 2}
"""Sums within blocks of the published networks."""


def products(graph: Graph) -> list[Product]:
    return [o.kind for o in graph.operators if isinstance(o.kind, Product)]


def int8(name: str, folder: Path, signed: bool) -> tuple[Path, dict[str, np.ndarray]]:
    path = write(name, folder / "model.onnx", **TINY[name])
    feeds = samples(onnx.load(path), 2)
    target = folder / "int8.onnx"
    return quantized(path, target, signed=signed, calibration=feeds, **options(name)), feeds[0]


def cosine(graph: Graph, path: Path, feed: dict[str, np.ndarray]) -> float:
    """Of the angle between our result and ONNX Runtime's."""
    options = ort.SessionOptions()
    # Without VNNI its products of bytes saturate at 16 bits, unless told not to.
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    other = session.run([graph.outputs[0]], feed)[0].ravel().astype(np.float64)
    ours = evaluate(graph, feed, keep=lambda name: False)[graph.outputs[0]].ravel()
    return float(ours @ other / math.sqrt((ours @ ours) * (other @ other)))


@pytest.mark.quick(2)
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("name", CONVOLUTIONAL)
def test_convolutional_networks_are_integers_from_end_to_end(
    name: str, signed: bool, tmp_path: Path
) -> None:
    path, feed = int8(name, tmp_path, signed)
    graph = prepare(load_model(path))
    for product in products(graph):
        assert [o.dtype for o in product.computation.inputs] == ["uint8", "int8"]
        assert product.zero_points == (0, 0)
        assert product.epilogue is not None
        assert product.epilogue.scale
    kinds = [type(o.kind) for o in graph.operators]
    assert kinds.count(Quantize) == kinds.count(Dequantize) == 1
    assert Elementwise not in kinds
    added = [p for p in products(graph) if p.epilogue and p.epilogue.residual is not None]
    if name in RESIDUALS:
        assert len(added) == RESIDUALS[name]
        assert Table not in kinds
    assert cosine(graph, path, feed) > 0.99


@pytest.mark.quick(2)
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("name", ["bert_base", "transformer", "milstm"])
def test_products_of_other_networks_are_of_integers(
    name: str, signed: bool, tmp_path: Path
) -> None:
    path, feed = int8(name, tmp_path, signed)
    graph = prepare(load_model(path))
    assert products(graph)
    for product in products(graph):
        assert [o.dtype for o in product.computation.inputs] == ["uint8", "int8"]
    assert cosine(graph, path, feed) > 0.99


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", MODELS)
def test_networks_of_floats(name: str, tmp_path: Path) -> None:
    path = write(name, tmp_path / "model.onnx", **TINY[name])
    graph = prepare(load_model(path))
    added = [p for p in products(graph) if p.epilogue and p.epilogue.residual is not None]
    assert len(added) >= RESIDUALS.get(name, 0)
    assert cosine(graph, path, samples(onnx.load(path), 1)[0]) > 1 - 1e-6
