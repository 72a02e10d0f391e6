"""Expressions of results as text."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from cpembed.driver.epilogue_language import FUNCTIONS, parse_expression, parse_second
from cpembed.errors import WorkloadError
from cpembed.ir.scalars import evaluate_scalar

PYTHON = {
    "relu": lambda x: max(x, 0.0),
    "relu6": lambda x: min(max(x, 0.0), 6.0),
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "gelu": lambda x: x / 2 * (1 + math.erf(x / math.sqrt(2))),
    "silu": lambda x: x / (1 + math.exp(-x)),
    "tanh": math.tanh,
    "hard_swish": lambda x: x * min(max(x / 6 + 0.5, 0.0), 1.0),
    "leaky_relu": lambda x, slope: x if x >= 0 else x * slope,
    "clip": lambda x, low, high: min(max(x, low), high),
    "where": lambda c, a, b: a if c else b,
}


@pytest.mark.parametrize(
    "text",
    [
        "x", "x + residual * 2", "-(x - 3) / 4", "gelu(x) + residual", "relu(x + residual)",
        "leaky_relu(x, 0.1)", "clip(x, -1, 2)", "where(x < residual, x, 7)", "hard_swish(-x)",
        "silu(x) * sigmoid(residual) - tanh(x / 2)", "where(x <= 1, relu6(x * 9), 1e-3)",
    ],
)  # fmt: skip
def test_text_has_pythons_meaning(text: str) -> None:
    rng = random.Random(text)
    for _ in range(20):
        x, residual = rng.uniform(-8, 8), rng.uniform(-8, 8)
        arrays = [np.asarray([value]) for value in (x, residual)]
        value = evaluate_scalar(parse_expression(text), arrays, "float64")
        expected = eval(text, dict(PYTHON), {"x": x, "residual": residual})
        assert float(np.asarray(value).reshape(-1)[0]) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    "text",
    [
        "", "y", "x.real", "x ** 2", "x if x else 1", "__import__('os')", "relu(x, x)", "relu",
        "gelu(x=1)", "[x]", "'x'", "x < 1 < 2", "lambda: 0", "x" * 2000, "(" * 300, "True",
        "relu(*x)", "x; x", "1j", "1e39 * x", "x - 1e400", "9" * 400,
    ],
)  # fmt: skip
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(WorkloadError):
        parse_expression(text)


def test_a_second_output_has_a_type() -> None:
    assert parse_second("int8=round(x)").dtype == "int8"
    for wrong in ("x", "float64=x", "=x", "float16="):
        with pytest.raises(WorkloadError):
            parse_second(wrong)


def test_every_function_parses() -> None:
    for name, (count, _) in FUNCTIONS.items():
        assert parse_expression(f"{name}({', '.join(['x'] * count)})")
