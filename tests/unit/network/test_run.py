"""What is allowed of an operator's results, and what is found to differ."""

from __future__ import annotations

import numpy as np
import pytest

from cpembed.driver.named import workload
from cpembed.graph.graph import Operator
from cpembed.graph.kinds import Apply, Elementwise, Input, Kind, Product, Quantize, Softmax, Table
from cpembed.network.run import difference, tolerance_of

SUMS = workload("gemm m=2 n=2 k=2 dtype=uint8,int8,int32")
FLOATS = workload("gemm m=2 n=2 k=2 dtype=float32")


@pytest.mark.parametrize(
    "kind, dtype, allowed",
    [
        (Product(SUMS, (2, 2)), np.int32, 0.0),
        (Product(FLOATS, (2, 2)), np.float32, 2e-5 * 8),
        (Table((0,) * 256, "uint8"), np.uint8, 0.0),
        (Quantize((0.5,), (0,), "int8"), np.int8, 0.0),
        (Elementwise(Apply("add", (Input(0), Input(1))), "int8"), np.int8, 0.0),
        (Elementwise(Apply("erf", (Input(0),)), "int8"), np.int8, 1.0),
        (Softmax(1), np.float32, 2e-5 * 8),
    ],
    ids=lambda value: value.label if isinstance(value, Kind) else "",
)
def test_integers_are_equal_and_floats_nearly(kind: Kind, dtype: type, allowed: float) -> None:
    expected = np.array([[1, -2], [8, 0]]).astype(dtype)
    operator = Operator("one", kind, ("a",), ("b",))
    assert tolerance_of(operator, expected) == pytest.approx(allowed)


def test_differences() -> None:
    a = np.array([1.0, np.nan, np.inf], np.float32)
    assert difference(a, a.copy()) == 0
    assert difference(a, np.array([1.5, np.nan, np.inf], np.float32)) == 0.5
    assert difference(a, np.array([1.0, 2.0, np.inf], np.float32)) == float("inf")
    assert difference(a, a.astype(np.float64)) == float("inf")
    assert difference(a, a[:2]) == float("inf")
    bytes_apart = np.array([0], np.uint8), np.array([255], np.uint8)
    assert difference(*bytes_apart) == 255
