"""Recurrent layers as loops, beside ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from cpembed.graph.graph import evaluate
from cpembed.graph.kinds import Product
from cpembed.graph.loop import nested_operators
from cpembed.graph.passes import prepare
from tests.unit.frontends.onnx.referee import MICROSOFT, Array, check, loaded, single

STEPS, BATCH, SIZE, STATE = 4, 2, 5, 3
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
RANDOM = np.random.default_rng(5)


def f(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


def parameters(operator: str, directions: int, *, bias: bool, states: bool) -> list[Array | None]:
    gates = GATES[operator]
    inputs: list[Array | None] = [
        f(STEPS, BATCH, SIZE),
        f(directions, gates * STATE, SIZE),
        f(directions, gates * STATE, STATE),
        f(directions, 2 * gates * STATE) if bias else None,
        None,
    ]
    if states:
        inputs += [f(directions, BATCH, STATE) for _ in range(2 if operator == "LSTM" else 1)]
    return inputs


@pytest.mark.parametrize("operator", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("bias, states", [(True, True), (False, False)])
def test_a_recurrent_layer(
    operator: str, direction: str, bias: bool, states: bool, tmp_path: Path
) -> None:
    directions = 2 if direction == "bidirectional" else 1
    inputs = parameters(operator, directions, bias=bias, states=states)
    outputs = 3 if operator == "LSTM" else 2
    model = single(
        operator, inputs, [1, 2, 3], outputs=outputs, version=14, hidden_size=STATE,
        direction=direction,
    )  # fmt: skip
    given = {
        f"x{k}": array for k, array in enumerate(inputs) if array is not None and k not in (1, 2, 3)
    }
    check(model, given, tmp_path)


@pytest.mark.parametrize("operator, attributes", [
    ("GRU", {"linear_before_reset": 1}),
    ("LSTM", {"activations": ["HardSigmoid", "Relu", "Softsign"], "activation_alpha": [0.3],
              "activation_beta": [0.4]}),
    ("LSTM", {"clip": 0.5}),
    ("RNN", {"activations": ["Relu"]}),
])  # fmt: skip
def test_attributes_of_recurrent_layers(
    operator: str, attributes: dict[str, Any], tmp_path: Path
) -> None:
    inputs = parameters(operator, 1, bias=True, states=False)
    outputs = 3 if operator == "LSTM" else 2
    model = single(
        operator, inputs, [1, 2, 3], outputs=outputs, version=14, hidden_size=STATE, **attributes
    )
    check(model, {"x0": inputs[0]}, tmp_path)  # type: ignore[dict-item]


def test_peepholes(tmp_path: Path) -> None:
    inputs = [*parameters("LSTM", 1, bias=True, states=True), f(1, 3 * STATE)]
    model = single(
        "LSTM", inputs, [1, 2, 3, 5, 6, 7], outputs=3, version=14, hidden_size=STATE
    )  # fmt: skip
    check(model, {"x0": inputs[0]}, tmp_path)  # type: ignore[dict-item]


def test_inputs_are_multiplied_for_all_steps_at_once(tmp_path: Path) -> None:
    inputs = parameters("LSTM", 1, bias=True, states=False)
    model = single("LSTM", inputs, [1, 2, 3], version=14, hidden_size=STATE)
    graph = loaded(model, tmp_path)
    rows = [
        (times, operator.kind.computation.extents["m"])
        for operator, _, times in nested_operators(graph)
        if isinstance(operator.kind, Product)
    ]
    assert rows == [(1, STEPS * BATCH), (STEPS, BATCH)]


@pytest.mark.parametrize("operator", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("constant", [True, False])
def test_lengths_of_sequences(
    operator: str, direction: str, constant: bool, tmp_path: Path
) -> None:
    directions = 2 if direction == "bidirectional" else 1
    inputs = parameters(operator, directions, bias=True, states=True)
    inputs[4] = np.array([1, STEPS - 1], np.int32)
    outputs = 3 if operator == "LSTM" else 2
    model = single(
        operator, inputs, [1, 2, 3, 4] if constant else [1, 2, 3], outputs=outputs, version=14,
        hidden_size=STATE, direction=direction,
    )  # fmt: skip
    fixed = (1, 2, 3, 4) if constant else (1, 2, 3)
    given = {f"x{k}": array for k, array in enumerate(inputs) if k not in fixed}
    check(model, given, tmp_path)  # type: ignore[arg-type]


@pytest.mark.parametrize("operator", ["LSTM", "GRU", "RNN"])
def test_the_number_of_operators_does_not_depend_on_the_steps(
    operator: str, tmp_path: Path
) -> None:
    counts: list[int] = []
    for steps in (2, 1000):
        inputs = parameters(operator, 1, bias=True, states=False)
        inputs[0] = f(steps, 1, SIZE)
        model = single(operator, inputs, [1, 2, 3], version=14, hidden_size=STATE)
        graph = prepare(loaded(model, tmp_path))
        counts.append(sum(1 for _ in nested_operators(graph)))
    assert counts[0] == counts[1] < 20


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("columns", [True, False])
def test_a_dynamically_quantized_lstm(
    direction: str, dtype: str, columns: bool, tmp_path: Path
) -> None:
    directions = 2 if direction == "bidirectional" else 1
    limits = np.iinfo(dtype)
    width = (directions, 4 * STATE) if columns else (directions,)

    def integers(*shape: int) -> Array:
        return RANDOM.integers(limits.min // 2, limits.max // 2, shape, dtype, endpoint=True)

    def scales() -> Array:
        return RANDOM.uniform(0.005, 0.01, width).astype(np.float32)

    # Zero points of columns are zeros in int8 weights, the only ones that ONNX Runtime takes there.
    zero = np.zeros(width, dtype) if columns else np.full(width, 3, dtype)
    inputs: list[Array | None] = [
        f(STEPS, 1, SIZE),
        integers(directions, SIZE, 4 * STATE),
        integers(directions, STATE, 4 * STATE),
        f(directions, 8 * STATE),
        *[None] * 4,
        scales(), zero, scales(), zero,
    ]  # fmt: skip
    fixed = [1, 2, 3, 8, 9, 10, 11]
    model = single(
        "DynamicQuantizeLSTM", inputs, fixed, outputs=3, domain=MICROSOFT, hidden_size=STATE,
        direction=direction,
    )  # fmt: skip
    check(model, {"x0": inputs[0]}, tmp_path)  # type: ignore[dict-item]
    products = [
        operator.kind.computation
        for operator, _, _ in nested_operators(prepare(loaded(model, tmp_path)))
        if isinstance(operator.kind, Product)
    ]
    assert products
    assert {o.dtype for product in products for o in product.inputs} <= {"int8", "uint8"}


@pytest.mark.parametrize("steps, batch", [(0, 2), (3, 0)])
def test_no_steps_and_no_sequences(steps: int, batch: int, tmp_path: Path) -> None:
    inputs = parameters("GRU", 1, bias=True, states=True)
    inputs[0], inputs[5] = f(steps, batch, SIZE), f(1, batch, STATE)
    model = single("GRU", inputs, [1, 2, 3], outputs=2, version=14, hidden_size=STATE)
    graph = prepare(loaded(model, tmp_path))
    values = evaluate(graph, {"x0": inputs[0], "x5": inputs[5]})  # type: ignore[dict-item]
    assert values["y0"].shape == (steps, 1, batch, STATE)
    np.testing.assert_array_equal(values["y1"], inputs[5])  # type: ignore[arg-type]
