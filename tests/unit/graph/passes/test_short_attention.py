"""Attention of bfloat16: of models in it, and of float32 models that a target computes in it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")
from onnx import TensorProto

from cpembed.graph.graph import Graph, Operator, evaluate
from cpembed.graph.kinds import Attention, Elementwise, Input, Product, Softmax, TensorType
from cpembed.graph.kinds.base import Array
from cpembed.graph.passes import prepare
from cpembed.graph.passes.attention_splitting import split_attentions
from tests.unit.graph.passes.test_attention import (
    DEPTH,
    HEADS,
    LENGTH,
    RANDOM,
    Model,
    hidden,
    scalar,
)


def only_attention(graph: Graph) -> Attention:
    (kind,) = [o.kind for o in graph.operators if isinstance(o.kind, Attention)]
    assert not any(isinstance(o.kind, Product | Softmax) for o in graph.operators)
    return kind


def close(graph: Graph, changed: Graph, inputs: dict[str, Array]) -> None:
    (name,) = graph.outputs
    expected = evaluate(graph, inputs)[name].astype(np.float64)
    result = evaluate(changed, inputs)[name].astype(np.float64)
    # The model rounds scores, weights and result, this the result alone.
    np.testing.assert_allclose(result, expected, atol=2**-6 * float(np.abs(expected).max()))


@pytest.mark.parametrize("softmax", ["bfloat16", "float32"])
@pytest.mark.parametrize("masked", [False, True])
def test_a_model_in_bfloat16(softmax: str, masked: bool, tmp_path: Path) -> None:
    """Scores and weights are rounded between the operators, or the softmax is of float32."""
    model, short = Model(), TensorProto.BFLOAT16

    def cast(name: str, kind: int = short) -> str:
        return model.node("Cast", name, to=kind)

    query = cast(model.input("q", hidden(1, HEADS, LENGTH, DEPTH)))
    key = cast(model.input("k", hidden(1, HEADS, DEPTH, LENGTH)))
    value = cast(model.input("v", hidden(1, HEADS, LENGTH, DEPTH)))
    scores = model.node("MatMul", query, key)
    scores = model.node("Mul", scores, cast(model.constant(scalar(0.25))))
    if masked:
        mask = np.where(RANDOM.random((1, 1, LENGTH, LENGTH)) < 0.3, -np.inf, 0.0)
        mask[..., 0] = 0
        scores = model.node("Add", scores, cast(model.input("mask", mask.astype(np.float32))))
    if softmax == "float32":
        scores = cast(scores, TensorProto.FLOAT)
    weights = model.node("Softmax", scores, axis=-1)
    weights = cast(weights) if softmax == "float32" else weights
    output = cast(model.node("MatMul", weights, value), TensorProto.FLOAT)
    graph = model.loaded(output, tmp_path)
    changed = prepare(graph, attends=True)
    kind = only_attention(changed)
    assert (kind.factors, kind.dtype, kind.masked) == ("bfloat16", "bfloat16", masked)
    assert kind.scale == pytest.approx(0.25)
    close(graph, changed, model.inputs)


@pytest.mark.parametrize("rounded", [False, True])
def test_a_float32_model_on_a_unit_for_bfloat16(rounded: bool) -> None:
    """Query, key and value are rounded; so is a result that is read in bfloat16 alone."""
    types = {name: TensorType((1, HEADS, LENGTH, DEPTH), "float32") for name in "qkv"}
    operators = [Operator("attend", Attention(0.25), ("q", "k", "v"), ("y",))]
    if rounded:
        operators.append(Operator("z", Elementwise(Input(0), "bfloat16"), ("y",), ("z",)))
    graph = Graph("floats", types, ("z" if rounded else "y",), operators=tuple(operators))
    changed = prepare(graph, attends=True, floats="bfloat16")
    kind = only_attention(changed)
    assert (kind.factors, kind.dtype) == ("bfloat16", "bfloat16" if rounded else "float32")
    inputs = {name: hidden(1, HEADS, LENGTH, DEPTH) for name in "qkv"}
    close(graph, changed, inputs)


def test_it_is_split_into_products_of_bfloat16() -> None:
    types = {name: TensorType((1, HEADS, LENGTH, DEPTH), "bfloat16") for name in "qkv"}
    kind = Attention(0.25, factors="bfloat16", dtype="bfloat16", causal=0, zero_rows=True)
    operator = Operator("attend", kind, ("q", "k", "v"), ("y",))
    graph = Graph("short", types, ("y",), operators=(operator,))
    split = split_attentions(graph, ["attend"])
    products = [o.kind.computation for o in split.operators if isinstance(o.kind, Product)]
    assert [[o.dtype for o in p.inputs] for p in products] == [["bfloat16", "bfloat16"]] * 2
    short = {name: hidden(*kind.shape) for name, kind in types.items()}
    inputs = {n: evaluate(_cast(a), {"x": a})["y"] for n, a in short.items()}
    close(graph, split, inputs)


def _cast(array: Array) -> Graph:
    operator = Operator("y", Elementwise(Input(0), "bfloat16"), ("x",), ("y",))
    return Graph("cast", {"x": TensorType.of_array(array)}, ("y",), operators=(operator,))
