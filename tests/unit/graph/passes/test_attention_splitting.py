"""Attention as products and a softmax, beside the definition of its kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cpembed.graph.graph import Graph, Operator, evaluate
from cpembed.graph.kinds import Attention, Product, Softmax, TensorType
from cpembed.graph.passes.attention import recognize_attention
from cpembed.graph.passes.attention_splitting import split_attentions

Array = NDArray[Any]
RANDOM = np.random.default_rng(3)


def graph_of(kind: Attention, arrays: dict[str, Array]) -> Graph:
    types = {name: TensorType.of_array(array) for name, array in arrays.items()}
    operator = Operator("attend", kind, tuple(arrays), ("y",))
    return Graph("attention", types, ("y",), operators=(operator,))


def case(seed: int) -> tuple[Attention, dict[str, Array]]:
    """A random attention with orders of axes, shared heads and masks."""
    random = np.random.default_rng(seed)
    b, h, g, s, n, k, d = (int(x) for x in random.integers(1, [3, 4, 4, 9, 9, 6, 6]))
    orders = ("bhsd", "bshd", "sbhd", "bhds")
    axes = tuple(orders[int(x)] for x in random.integers(0, [4, 4, 4, 3]))
    shapes = ({"b": b, "h": h * g, "s": s, "d": k}, {"b": b, "h": h, "s": n, "d": k})
    shapes = (*shapes, {"b": b, "h": h, "s": n, "d": d})
    arrays = {
        name: random.standard_normal([shape[x] for x in order]).astype(np.float32)
        for name, shape, order in zip("qkv", shapes, axes, strict=False)
    }
    masks: list[Array | None] = [None, random.random((b, 1, s, n)) < 0.6]
    masks.append(random.standard_normal((h * g, 1, n)).astype(np.float32))
    mask = masks[seed % 3]
    if mask is not None:
        arrays["mask"] = mask
    kind = Attention(
        float(random.uniform(-0.5, 0.5)), axes, masked=mask is not None,
        causal=int(random.integers(-1, 5)) if random.random() < 0.5 else None,
        excluded=-1e4 if seed % 2 else -np.inf, softcap=2.0 * (seed % 4 == 0),
        zero_rows=bool(seed % 5 < 3),
    )  # fmt: skip
    return kind, arrays


@pytest.mark.parametrize("seed", range(30))
def test_results_are_those_of_the_kind(seed: int) -> None:
    kind, arrays = case(seed)
    graph = graph_of(kind, arrays)
    split = split_attentions(graph, ["attend"])
    kinds = [type(operator.kind) for operator in split.operators]
    assert (kinds.count(Product), kinds.count(Softmax), kinds.count(Attention)) == (2, 1, 0)
    expected, result = (evaluate(each, arrays)["y"] for each in (graph, split))
    np.testing.assert_allclose(result, expected, atol=1e-5, rtol=1e-5)


def test_what_was_split_is_recognized_again() -> None:
    shapes = {"q": (2, 3, 5, 8), "k": (2, 3, 7, 8), "v": (2, 3, 7, 4)}
    arrays = {n: RANDOM.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    split = split_attentions(graph_of(Attention(0.5), arrays), ["attend"])
    (operator,) = recognize_attention(split).operators
    assert operator.kind == Attention(0.5)


def test_attentions_that_are_not_named_stay() -> None:
    _, arrays = case(0)
    graph = graph_of(case(0)[0], arrays)
    assert split_attentions(graph, ["another"]).operators == graph.operators
