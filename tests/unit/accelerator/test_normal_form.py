"""Normal forms: the same values as the expression that they stand for, also at the extremes."""

from __future__ import annotations

import numpy as np
import pytest

from cpembed.accelerator.normal_form import Clamps, normal
from cpembed.ir.arithmetic import evaluate
from cpembed.ir.grammar import parse_body

DTYPES = {"A": "int32", "B": "int8", "S": "float32"}
TEXTS = (
    "max(int8(float32(A[x]) * 0.5), 0)", "int8(min(max(A[x] * S[x], 0 - 128), 127))",
    "int8(max(int8(A[x] * 1.0), 0))", "int32(B[x]) + 0", "int8(int32(A[x] * S[x]))",
    "int8(min(max(int32(A[x] * S[x]), 0), 100))", "min(max(int8(A[x] * 0.01), 0), 90)",
    "int8(max(A[x], 0) * 0.25)", "int8(max(A[x] * 0.25, 0))", "S[x] / 8.0", "A[x] / 0.25",
    "int8(float32(A[x]) / 4.0)", "max(max(B[x], 3), 5)", "max(min(B[x], 90), 0 - 90)",
    "int8(A[x] >> 0)", "uint8(max(S[x], 0))", "int8(S[x] * 1.0)",
    "max(int8(A[x] * S[x]), 5)", "min(int8(A[x] * S[x]), 0 - 5)",
    "int8(max(S[x], 0) * 0.25)", "int8(max(S[x], 0) * 100000000000.0)",
    "max(A[x], 0.0)", "int8(float32(A[x] + B[x]) * float32(B[x]))",
)  # fmt: skip


@pytest.mark.parametrize("clamps", Clamps)
@pytest.mark.parametrize("text", TEXTS)
def test_normal_forms_have_the_same_values(text: str, clamps: Clamps) -> None:
    value = parse_body(f"C[x] = {text}").statements[0].value
    random = np.random.default_rng(len(text))
    ends = np.array([-(2**31), 2**31 - 1, 0, 1, -1, 2**24 + 1, -(2**24) - 3, 255, -129, 513])
    arrays = {
        "A": np.concatenate([ends, random.integers(-1000, 1000, 2000)]).astype(np.int32),
        "B": random.integers(-128, 128, 2010).astype(np.int8),
        "S": np.concatenate(
            [[np.inf, -np.inf, np.nan, 0.0, -0.0, 1e38, 0.5, 1.5, -2.5, 127.5],
             random.normal(0, 60, 2000)]
        ).astype(np.float32),
    }  # fmt: skip

    def read(access: object) -> np.ndarray:
        return arrays[access.operand]  # type: ignore[attr-defined]

    with np.errstate(all="ignore"):
        expected = evaluate(value, read, wide=False)
        result = evaluate(normal(value, DTYPES, clamps), read, wide=False)
    np.testing.assert_array_equal(result, expected)


def test_equal_requantizations_are_written_alike() -> None:
    texts = ("max(int8(float32(A[x]) * 0.5), 0)", "int8(max(A[x] * 0.5, 0))")
    forms = {
        str(normal(parse_body(f"C[x] = {t}").statements[0].value, DTYPES, Clamps.INNERMOST))
        for t in texts
    }
    assert forms == {"int8((max(A[x], 0) * 0.5))"}


def test_a_scale_behind_a_bound_comes_before_it_too() -> None:
    texts = ("int8(max(A[x], 0) * 0.5)", "int8(max(A[x] * 0.5, 0))")
    forms = {
        str(normal(parse_body(f"C[x] = {t}").statements[0].value, DTYPES, Clamps.INSIDE))
        for t in texts
    }
    assert forms == {"int8(max((A[x] * 0.5), 0.0))"}
