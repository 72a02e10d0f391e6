"""Recurrent layers that are written out, beside ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from cpembed.graph.kinds import Product
from tests.unit.frontends.onnx.referee import Array, check, loaded, single

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
    rows = [o.kind.computation.extents["m"] for o in graph.operators if isinstance(o.kind, Product)]
    # The state of the first step is zero: its product is a constant.
    assert rows == [STEPS * BATCH] + [BATCH] * (STEPS - 1)
