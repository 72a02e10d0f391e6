"""Attention as exporters write it: recognized as one operator that computes the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
import onnx
from onnx import TensorProto, helper, numpy_helper

from cpembed.frontends import load_model
from cpembed.graph.graph import Graph, evaluate
from cpembed.graph.kinds import Attention, Product, Softmax, Transpose
from cpembed.graph.kinds.base import Array
from cpembed.graph.passes import prepare

RANDOM = np.random.default_rng(11)
BATCH, LENGTH, HEADS, DEPTH = 2, 10, 4, 8
WIDTH = HEADS * DEPTH


class Model:
    """Nodes of a model in the making; constants are initializers."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.inputs: dict[str, Array] = {}

    def input(self, name: str, array: Array) -> str:
        self.inputs[name] = array
        return name

    def constant(self, array: Array) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], name, **attributes))
        return name

    def shaped(self, x: str, *shape: int) -> str:
        return self.node("Reshape", x, self.constant(np.asarray(shape, np.int64)))

    def projected(self, x: str, width: int) -> str:
        weights = RANDOM.standard_normal((WIDTH, width)).astype(np.float32) / 4
        return self.node("MatMul", x, self.constant(weights))

    def loaded(self, output: str, folder: Path) -> Graph:
        inputs = [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
            for name, array in self.inputs.items()
        ]
        outputs = [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)]
        graph = helper.make_graph(self.nodes, "model", inputs, outputs, self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
        model.ir_version = 8
        path = folder / "model.onnx"
        path.write_bytes(onnx.shape_inference.infer_shapes(model).SerializeToString())
        return load_model(path)


def scalar(value: float) -> Array:
    return np.asarray(value, np.float32)


def hidden(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


def bert(m: Model) -> str:
    """Scores divided, a mask of 0 and 1 that becomes one to add, heads merged."""
    x = m.input("x", hidden(BATCH, LENGTH, WIDTH))
    padding = np.ones((BATCH, LENGTH), np.int64)
    padding[1, 7:] = 0
    mask = m.node("Cast", m.input("attention_mask", padding), to=TensorProto.FLOAT)
    mask = m.node("Unsqueeze", mask, m.constant(np.asarray([1, 2], np.int64)))
    mask = m.node("Sub", m.constant(scalar(1)), mask)
    mask = m.node("Mul", mask, m.constant(scalar(-3.4028234663852886e38)))
    parts = [m.shaped(m.projected(x, WIDTH), 0, 0, HEADS, DEPTH) for _ in range(3)]
    query, value = (m.node("Transpose", parts[k], perm=[0, 2, 1, 3]) for k in (0, 2))
    key = m.node("Transpose", parts[1], perm=[0, 2, 3, 1])
    scores = m.node("Div", m.node("MatMul", query, key), m.constant(scalar(math.sqrt(DEPTH))))
    weights = m.node("Softmax", m.node("Add", scores, mask), axis=-1)
    sums = m.node("Transpose", m.node("MatMul", weights, value), perm=[0, 2, 1, 3])
    return m.shaped(sums, 0, 0, WIDTH)


def vit(m: Model) -> str:
    """Query and key each multiplied by the root of the scale, one product for all three."""
    x = m.input("x", hidden(BATCH, LENGTH, WIDTH))
    joined = m.shaped(m.projected(x, 3 * WIDTH), BATCH, LENGTH, 3, HEADS, DEPTH)
    joined = m.node("Transpose", joined, perm=[2, 0, 3, 1, 4])
    query, key, value = (
        m.node("Gather", joined, m.constant(np.asarray(k, np.int64)), axis=0) for k in range(3)
    )
    root = m.constant(scalar(DEPTH**-0.25))
    turned = m.node("Transpose", key, perm=[0, 1, 3, 2])
    scores = m.node("MatMul", m.node("Mul", query, root), m.node("Mul", turned, root))
    sums = m.node("MatMul", m.node("Softmax", scores, axis=-1), value)
    return m.shaped(m.node("Transpose", sums, perm=[0, 2, 1, 3]), 0, 0, WIDTH)


def gpt2(m: Model) -> str:
    """A causal mask that selects, a constant."""
    x = m.input("x", hidden(1, LENGTH, WIDTH))
    parts = [m.shaped(m.projected(x, WIDTH), 0, 0, HEADS, DEPTH) for _ in range(3)]
    query, value = (m.node("Transpose", parts[k], perm=[0, 2, 1, 3]) for k in (0, 2))
    key = m.node("Transpose", parts[1], perm=[0, 2, 3, 1])
    scores = m.node("Div", m.node("MatMul", query, key), m.constant(scalar(math.sqrt(DEPTH))))
    triangle = m.constant(np.tril(np.ones((1, 1, LENGTH, LENGTH), np.bool_)))
    lowest = m.constant(scalar(float(np.finfo(np.float32).min)))
    weights = m.node("Softmax", m.node("Where", triangle, scores, lowest), axis=-1)
    sums = m.node("Transpose", m.node("MatMul", weights, value), perm=[0, 2, 1, 3])
    return m.shaped(sums, 0, 0, WIDTH)


def llama(m: Model) -> str:
    """Two heads of keys and values repeated, a cache before them, a mask with its keys."""
    past, shared = 5, HEADS // 2
    x = m.input("x", hidden(1, LENGTH, WIDTH))
    query = m.shaped(m.projected(x, WIDTH), 0, 0, HEADS, DEPTH)
    query = m.node("Transpose", query, perm=[0, 2, 1, 3])
    repeated: list[str] = []
    for name in ("key", "value"):
        new = m.shaped(m.projected(x, shared * DEPTH), 0, 0, shared, DEPTH)
        new = m.node("Transpose", new, perm=[0, 2, 1, 3])
        cache = m.input(f"past_{name}", hidden(1, shared, past, DEPTH))
        both = m.node("Concat", cache, new, axis=2)
        wide = m.node("Unsqueeze", both, m.constant(np.asarray([2], np.int64)))
        shape = np.asarray([1, shared, 2, past + LENGTH, DEPTH], np.int64)
        wide = m.node("Expand", wide, m.constant(shape))
        repeated.append(m.shaped(wide, 1, HEADS, past + LENGTH, DEPTH))
    key = m.node("Transpose", repeated[0], perm=[0, 1, 3, 2])
    scale = m.constant(scalar(1 / math.sqrt(DEPTH)))
    scores = m.node("Mul", m.node("MatMul", query, key), scale)
    later = np.triu(np.full((1, 1, LENGTH, past + LENGTH), -np.inf, np.float32), past + 1)
    scores = m.node("Add", scores, m.constant(later))
    weights = m.node("Softmax", scores, axis=-1)
    sums = m.node("Transpose", m.node("MatMul", weights, repeated[1]), perm=[0, 2, 1, 3])
    return m.shaped(sums, 0, 0, WIDTH)


EXPORTERS: dict[str, tuple[Callable[[Model], str], dict[str, object]]] = {
    "bert": (bert, {"axes": ("bshd",) * 4, "causal": None, "masked": True}),
    "vit": (vit, {"causal": None, "masked": False}),
    "gpt2": (gpt2, {"axes": ("bshd",) * 4, "causal": 0, "masked": False}),
    "llama": (llama, {"axes": ("bshd", "bhsd", "bhsd", "bshd"), "causal": 5, "masked": False}),
}


@pytest.mark.parametrize("name", EXPORTERS)
def test_as_exported(name: str, tmp_path: Path) -> None:
    write, attributes = EXPORTERS[name]
    model = Model()
    output = write(model)
    graph = model.loaded(output, tmp_path)
    changed = prepare(graph, attends=True)
    (attention,) = [o for o in changed.operators if isinstance(o.kind, Attention)]
    assert isinstance(attention.kind, Attention)
    assert attention.kind.scale == pytest.approx(1 / math.sqrt(DEPTH))
    assert {key: getattr(attention.kind, key) for key in attributes} == attributes
    assert not any(isinstance(o.kind, Softmax) for o in changed.operators)
    # Only the projections are left, and what cuts one tensor into three.
    others = [o.kind for o in changed.operators if isinstance(o.kind, Product)]
    assert len(others) == (1 if name == "vit" else 3)
    if name in ("bert", "gpt2"):
        assert not any(isinstance(o.kind, Transpose) for o in changed.operators)
    expected = evaluate(graph, model.inputs)[output]
    np.testing.assert_allclose(evaluate(changed, model.inputs)[output], expected, atol=2e-6)


def scored(
    m: Model, change: Callable[[Model, str], str], rows: int = LENGTH, keys: int = LENGTH
) -> str:
    """Attention of three inputs with a change of the scores before the softmax."""
    query = m.input("q", hidden(1, HEADS, rows, DEPTH))
    key = m.input("k", hidden(1, HEADS, DEPTH, keys))
    value = m.input("v", hidden(1, HEADS, keys, DEPTH))
    weights = m.node("Softmax", change(m, m.node("MatMul", query, key)), axis=-1)
    return m.node("MatMul", weights, value)


def two_masks(m: Model, scores: str) -> str:
    scores = m.node("Add", scores, m.input("bias", hidden(1, HEADS, LENGTH, LENGTH)))
    return m.node("Add", scores, m.input("mask", hidden(1, 1, 1, LENGTH)))


def inverted(m: Model, scores: str) -> str:
    mask = m.input("mask", RANDOM.random((1, 1, LENGTH, LENGTH)) < 0.4)
    return m.node("Where", mask, m.constant(scalar(-1e4)), scores)


def causal_and_padding(m: Model, scores: str) -> str:
    later = np.triu(np.full((LENGTH, LENGTH), -np.inf, np.float32), 1)
    scores = m.node("Add", scores, m.constant(later))
    return m.node("Add", scores, m.input("mask", hidden(1, 1, 1, LENGTH)))


@pytest.mark.parametrize("change", [two_masks, inverted, causal_and_padding])
def test_masks(change: Callable[[Model, str], str], tmp_path: Path) -> None:
    model = Model()
    output = scored(model, change)
    graph = model.loaded(output, tmp_path)
    changed = prepare(graph, attends=True)
    kinds = [o.kind for o in changed.operators if isinstance(o.kind, Attention)]
    assert len(kinds) == 1
    assert not any(isinstance(o.kind, Product | Softmax) for o in changed.operators)
    assert kinds[0].masked
    assert (kinds[0].causal is not None) == (change is causal_and_padding)
    expected = evaluate(graph, model.inputs)[output]
    np.testing.assert_allclose(evaluate(changed, model.inputs)[output], expected, atol=2e-6)


def scaled_mask(m: Model, scores: str) -> str:
    """The mask is scaled too."""
    scores = m.node("Add", scores, m.input("mask", hidden(1, 1, 1, LENGTH)))
    return m.node("Mul", scores, m.constant(scalar(0.5)))


def squared(m: Model, scores: str) -> str:
    return m.node("Mul", scores, scores)


@pytest.mark.parametrize("change", [scaled_mask, squared])
def test_other_scores_stay(change: Callable[[Model, str], str], tmp_path: Path) -> None:
    model = Model()
    output = scored(model, change)
    changed = prepare(model.loaded(output, tmp_path), attends=True)
    assert not any(isinstance(o.kind, Attention) for o in changed.operators)


def test_weights_that_are_read_elsewhere_stay(tmp_path: Path) -> None:
    model = Model()
    sums = scored(model, lambda m, scores: scores, keys=DEPTH)
    weights = model.nodes[-1].input[0]
    output = model.node("Concat", sums, weights, axis=3)
    changed = prepare(model.loaded(output, tmp_path), attends=True)
    assert not any(isinstance(o.kind, Attention) for o in changed.operators)


def test_targets_without_the_kernel_have_its_products(tmp_path: Path) -> None:
    model = Model()
    changed = prepare(model.loaded(bert(model), tmp_path))
    assert sum(isinstance(o.kind, Product) for o in changed.operators) == 5
