"""What is allowed of an operator's results, and what is found to differ."""

from __future__ import annotations

import numpy as np
import pytest

from cpembed.codegen.epilogue import Chain, Epilogue
from cpembed.driver.named import workload
from cpembed.frontends.products import matrix_product
from cpembed.graph.graph import Operator
from cpembed.graph.kinds import (
    Apply,
    Elementwise,
    Input,
    Kind,
    Number,
    Pool,
    Product,
    Quantize,
    Softmax,
    Table,
)
from cpembed.network.observation import difference
from cpembed.network.run import tolerance_of, verdict_of

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


def test_a_chain_may_enlarge_the_tolerance_of_its_sums() -> None:
    """Rounding turns a difference in the last bit into a quantum, and nothing into more."""
    rounded = Apply("mul", (Apply("round", (Input(0),)), Number(8.0)))
    form = matrix_product((1, 2), (2, 3))
    kind = form.product.with_epilogue(Epilogue("float32", chain=Chain(rounded)))
    x = np.array([[1.0, 0.5]], np.float32)
    w = np.array([[1.0, 2.0, 3.0], [1.0, 0.2, 1.0]], np.float32)
    operator = Operator("op", kind, ("x", "w"), ("y",))
    # The sums are 1.5, 2.1 and 3.5, so that the first and the last one may be rounded down.
    values = {"x": x, "w": w}
    for actual, verified in (([16, 16, 32], True), ([8, 16, 24], True), ([16, 24, 32], False)):
        values["y"] = np.array([actual], np.float32)
        assert verdict_of(operator, values).verified == verified, actual


def test_what_the_first_of_a_pair_may_round_moves_bounds_of_the_second() -> None:
    """Each element by itself: the second of these sums is on no border between two quanta."""
    rounded = Apply("mul", (Apply("round", (Input(0),)), Number(8.0)))
    form = matrix_product((1, 2), (2, 3))
    kind = form.product.with_epilogue(Epilogue("float32", chain=Chain(rounded)))
    first = Operator("first", kind, ("x", "w"), ("y",))
    values = {
        "x": np.array([[1.0, 0.5]], np.float32),
        "w": np.array([[1.0, 2.0, 3.0], [1.0, 0.2, 1.0]], np.float32),
        "v": np.array([[1.0], [1.0], [-1.0]], np.float32),
    }
    (values["y"],) = first.kind.evaluate([values["x"], values["w"]])
    np.testing.assert_array_equal(values["y"], [[16, 16, 32]])
    product = Operator("second", matrix_product((1, 3), (3, 1)).product, ("y", "v"), ("z",))
    pool = Pool("max", (2,), (1,), (0,), (0,), (1,))
    pooled = Operator("second", pool, ("y",), ("z",))
    for second, cases in (
        (product, {(0,): True, (8,): True, (-8,): True, (-24,): False, (24,): False}),
        (pooled, {(16, 32): True, (16, 24): True, (8, 32): False, (16, 40): False}),
    ):
        for actual, verified in cases.items():
            values["z"] = np.array([actual], np.float32)
            assert verdict_of(second, values, first).verified == verified, actual
