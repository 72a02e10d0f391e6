"""Attention of the standard and of ONNX Runtime, beside ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx.reference import ReferenceEvaluator

from cpembed.errors import ModelError
from cpembed.graph.graph import evaluate
from cpembed.graph.kinds import Attention
from cpembed.graph.passes import prepare
from tests.unit.frontends.onnx.referee import MICROSOFT, Array, check, loaded, single

RANDOM = np.random.default_rng(9)


def f(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


def named(*arrays: Array | None) -> dict[str, Array]:
    return {f"x{k}": array for k, array in enumerate(arrays) if array is not None}


BOOLEAN = RANDOM.random((5, 7)) < 0.7
BOOLEAN[:, 0] = True
STANDARD: dict[str, tuple[list[Array | None], int, dict[str, Any]]] = {
    "heads apart": ([f(2, 4, 5, 8), f(2, 4, 7, 8), f(2, 4, 7, 6)], 1, {}),
    "shared heads": ([f(2, 4, 5, 8), f(2, 2, 7, 8), f(2, 2, 7, 8)], 1, {"scale": 0.3}),
    "flat": (
        [f(2, 5, 32), f(2, 5, 16), f(2, 5, 16)],
        1,
        {"q_num_heads": 4, "kv_num_heads": 2, "is_causal": 1},
    ),
    "mask": ([f(1, 2, 5, 8), f(1, 2, 7, 8), f(1, 2, 7, 8), f(1, 1, 5, 7)], 1, {}),
    "boolean mask": ([f(1, 2, 5, 8), f(1, 2, 7, 8), f(1, 2, 7, 8), BOOLEAN], 1, {}),
    "softcap": ([f(1, 2, 5, 8), f(1, 2, 7, 8), f(1, 2, 7, 8)], 1, {"softcap": 2.0}),
    "softcap and mask": (
        [f(1, 2, 5, 8), f(1, 2, 7, 8), f(1, 2, 7, 8), f(1, 1, 5, 7)],
        1,
        {"softcap": 2.0},
    ),
    "cache": (
        [f(1, 2, 3, 8), f(1, 2, 3, 8), f(1, 2, 3, 8), None, f(1, 2, 4, 8), f(1, 2, 4, 8)],
        3,
        {"is_causal": 1},
    ),
}


@pytest.mark.parametrize("name", STANDARD)
def test_standard(name: str, tmp_path: Path) -> None:
    inputs, outputs, attributes = STANDARD[name]
    model = single("Attention", inputs, outputs=outputs, version=23, **attributes)
    check(model, named(*inputs), tmp_path)
    graph = prepare(loaded(model, tmp_path), attends=True)
    kinds = [o.kind for o in graph.operators if isinstance(o.kind, Attention)]
    assert len(kinds) == 1
    causal = {"flat": 0, "cache": 4}.get(name)
    assert (kinds[0].causal, kinds[0].softcap) == (causal, 2.0 if "softcap" in name else 0.0)


@pytest.mark.parametrize(
    "outputs, attributes",
    [(4, {}), (4, {"qk_matmul_output_mode": 2})],
    ids=["scores", "scores with the mask"],
)
def test_by_the_formats_definition(
    outputs: int, attributes: dict[str, Any], tmp_path: Path
) -> None:
    """What the kind lacks is computed by the operators of the format's definition."""
    inputs = [*STANDARD["mask"][0][:3], f(1, 1, 5, 11), f(1, 2, 4, 8), f(1, 2, 4, 8)]
    model = single("Attention", inputs, outputs=outputs, version=23, **attributes)
    graph = loaded(model, tmp_path)
    results = evaluate(graph, named(*inputs), keep=lambda name: name in graph.outputs)
    expected = ReferenceEvaluator(model).run(None, named(*inputs))
    for name, array in zip(graph.outputs, expected, strict=True):
        np.testing.assert_allclose(results[name], array, atol=1e-5, rtol=1e-5)


MULTI_HEAD: dict[str, tuple[list[Array | None], int, dict[str, Any]]] = {
    "plain": ([f(2, 5, 32), f(2, 7, 32), f(2, 7, 32)], 1, {}),
    "bias": ([f(2, 5, 32), f(2, 5, 32), f(2, 5, 32), f(96)], 1, {"scale": 0.4}),
    "added": (
        [f(2, 5, 32), f(2, 7, 32), f(2, 7, 32), None, None, f(2, 4, 5, 7)],
        1,
        {},
    ),
    "causal": ([f(2, 5, 32), f(2, 5, 32), f(2, 5, 32)], 1, {"unidirectional": 1}),
    "heads apart": ([f(2, 5, 32), f(2, 4, 7, 8), f(2, 4, 7, 8)], 1, {}),
    "cache": (
        [f(1, 3, 32), f(1, 3, 32), f(1, 3, 32), None, None, None, f(1, 4, 4, 8), f(1, 4, 4, 8)],
        3,
        {},
    ),
}


@pytest.mark.parametrize("name", MULTI_HEAD)
def test_multi_head(name: str, tmp_path: Path) -> None:
    inputs, outputs, attributes = MULTI_HEAD[name]
    options: dict[str, Any] = {"outputs": outputs, "domain": MICROSOFT, "num_heads": 4}
    model = single("MultiHeadAttention", inputs, **options, **attributes)
    check(model, named(*inputs), tmp_path)


@pytest.mark.parametrize(
    "inputs, attributes, message",
    [
        (STANDARD["flat"][0], {"q_num_heads": 3, "kv_num_heads": 2}, "3 heads of 32"),
        ([f(1, 4, 5, 8), f(1, 3, 5, 8), f(1, 3, 5, 8)], {}, "4 heads of queries for 3"),
    ],
)
def test_refused(
    inputs: list[Array | None], attributes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    model = single("Attention", inputs, version=23, **attributes)
    with pytest.raises(ModelError, match=message):
        loaded(model, tmp_path)
