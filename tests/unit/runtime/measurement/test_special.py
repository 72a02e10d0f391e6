"""Special values among data, and how results with such are judged."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cpembed.codegen.epilogue import RESIDUAL, Epilogue, SecondResult
from cpembed.codegen.epilogue_request import EpilogueRequest
from cpembed.driver.epilogue_language import parse_expression
from cpembed.driver.named import workload
from cpembed.ir.reference import random_inputs
from cpembed.ir.scalars import evaluate_scalar
from cpembed.runtime.measurement.verification import Expected
from cpembed.runtime.measurement.verification_data import with_special_values
from cpembed.targets.verification import special_data

GENERATOR = np.random.default_rng


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_floats_have_each_special_value(dtype: str) -> None:
    import ml_dtypes

    kind = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    array = np.full((10, 10), 3, kind)
    found = with_special_values(array, GENERATOR(0))
    wide = found.astype(np.float64)
    assert found.dtype == kind
    assert found.shape == array.shape
    assert np.isnan(wide).any()
    assert (wide == math.inf).any()
    assert (wide == -math.inf).any()
    assert (np.signbit(wide) & (wide == 0)).any()
    assert ((wide > 0) & (wide < 1e-4)).sum() == 2
    assert (wide == 3).sum() >= 50
    assert np.isfinite(with_special_values(array, GENERATOR(0), finite=True).astype(float)).all()


def test_integers_have_the_ends_of_their_type() -> None:
    array = np.full(40, 3, np.int8)
    assert {*with_special_values(array, GENERATOR(0)).tolist()} == {3, -128, 127}
    assert {*with_special_values(array, GENERATOR(0), (-64, 63)).tolist()} == {3, -64, 63}
    for same in (np.ones(9, np.bool_), np.ones(1, np.float32)):
        assert np.array_equal(with_special_values(same, GENERATOR(0)), same)


def test_results_of_special_values_are_judged() -> None:
    gemm = workload("gemm m=2 n=2 k=2 dtype=float32")
    a = np.asarray([[1, math.inf], [2, 3]], np.float32)
    b = np.asarray([[1, 1], [1, -1]], np.float32)
    expected = Expected(gemm, {"A": a, "B": b})
    right = np.asarray([[math.inf, -math.inf], [5, -1]], np.float32)
    assert expected.judge(right).verified
    assert not expected.judge(right).spreads_nan
    for place, value in (((0, 0), -math.inf), ((0, 1), 3.0), ((1, 0), math.inf), ((1, 1), 0.0)):
        wrong = right.copy()
        wrong[place] = value
        assert not expected.judge(wrong).verified
    spread = right.copy()
    spread[1, 1] = math.nan
    assert expected.judge(spread).verified
    assert expected.judge(spread).spreads_nan
    finite = Expected(gemm, {"A": np.ones((2, 2), np.float32), "B": b})
    lost = finite.result.copy()
    lost[0, 0] = math.nan
    assert not finite.judge(lost).verified


def test_factors_of_padding_stay_finite() -> None:
    padded = workload("conv2d n=1 c=4 h=6 w=6 k=5 r=3 s=3 pad=1 dtype=float32")
    data = {o.name: np.ones(o.shape, np.float32) for o in padded.inputs}
    found = special_data(padded, data, 0)
    assert not np.isfinite(found["I"]).all()
    assert np.isfinite(found["W"]).all()
    assert (found["W"] == 0).any()


def chained(chain: str, second: str, dtype: str) -> Epilogue:
    """Return an epilogue of two expressions; a residual is in both."""
    request = EpilogueRequest(
        output=dtype,
        chain=parse_expression(chain),
        second=SecondResult(dtype, parse_expression(second)),
    )
    epilogue = request.epilogue("mma_f16", "float32")
    assert epilogue is not None
    return epilogue


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize(
    "expression",
    [
        "exp(exp(exp(x + residual)))",
        "1 / exp(100 * x) + residual",
        "1e30 * x * 1e30",
        "exp(90 * x) / exp(90 * x)",
        "sigmoid(x) + residual",
        "x * 0 + residual",
        "residual * 2",
        "70000 + x",
    ],
)
def test_expressions_may_overflow_as_float32_does(
    expression: str, special: bool, dtype: str
) -> None:
    """What numpy computes in float32 is right, and an element of it that changes is wrong."""
    gemm = workload("gemm m=6 n=8 k=5 dtype=float16,float16,float32")
    inputs = random_inputs(gemm, 3)
    if special:
        inputs = special_data(gemm, inputs, 3)
    expected = Expected(gemm, inputs)
    epilogue = chained(expression, expression, dtype)
    residual = GENERATOR(5).normal(size=(6, 8)).astype(dtype)
    vectors = {RESIDUAL: residual}
    with np.errstate(all="ignore"):
        operands = [expected.result.astype(np.float32), residual.astype(np.float32)]
        value = evaluate_scalar(parse_expression(expression), operands, "float32")
        stored = np.broadcast_to(value, (6, 8)).astype(dtype)
    assert expected.judge_stored(stored, epilogue, vectors).verified
    assert expected.judge_second(stored, epilogue, vectors).verified
    finite = np.argwhere(np.isfinite(stored) & np.isfinite(expected.result))
    for place in map(tuple, finite[:4]):
        wrong = stored.copy()
        wrong[place] = wrong[place] * 2 + 1
        assert not expected.judge_stored(wrong, epilogue, vectors).verified
