"""Sums of float16 on data of which every partial sum is exact: one lost product is seen."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from cpembed.codegen.epilogue import Chain, Epilogue
from cpembed.driver.named import workload
from cpembed.ir.computation import Computation
from cpembed.ir.reference import random_inputs
from cpembed.ir.scalars import Apply, Input, Number
from cpembed.runtime.measurement.verification import Expected
from cpembed.runtime.measurement.verification_data import LARGEST_EXACT_FLOAT16, exact_data


def product(depth: int, dtype: str = "float16") -> Computation:
    given = workload(f"gemm m=5 n=4 k={depth}")
    return given.with_dtypes({operand.name: dtype for operand in given.operands})


def factors(data: dict[str, NDArray[np.float16]], depth: int) -> list[NDArray[np.float16]]:
    """A with rows of ``depth``, and B with columns of it."""
    first, second = data.values()
    first = first if first.shape[1] == depth else first.T
    return [first, second if second.shape[0] == depth else second.T]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("depth", [1, 16, 100, 128, 500, 512, 2048, 2049, 5000, 40_000])
def test_sums_are_exact_in_every_order(depth: int, seed: int) -> None:
    data = exact_data(product(depth), seed)
    assert data is not None
    first, second = factors(data, depth)
    magnitudes = np.abs(first.astype(float)) @ np.abs(second.astype(float))
    assert magnitudes.max() <= LARGEST_EXACT_FLOAT16
    assert magnitudes.min() > 0
    # Added one after the other in float16, in a random order.
    order = np.random.default_rng(seed).permutation(depth)
    total = np.zeros((5, 4), np.float16)
    for k in order:
        total = (total + first[:, k : k + 1] * second[k : k + 1]).astype(np.float16)
    np.testing.assert_array_equal(total, first.astype(float) @ second.astype(float))
    assert Expected(product(depth), data).judge(total).verified


@pytest.mark.parametrize("depth", [16, 512, 2048, 5000])
def test_one_lost_product_is_seen(depth: int) -> None:
    """On random data the roundings that a long sum may have are larger than a product."""
    data = exact_data(product(depth), 3)
    assert data is not None
    first, second = factors(data, depth)
    right = (first.astype(float) @ second.astype(float)).astype(np.float16)
    expected = Expected(product(depth), data)
    assert expected.judge(right).verified
    random = np.random.default_rng(4)
    for _ in range(20):
        row, column = random.integers(5), random.integers(4)
        k = random.choice(np.flatnonzero(first[row] * second[:, column]))
        wrong = right.copy()
        wrong[row, column] -= first[row, k] * second[k, column]
        verification = expected.judge(wrong)
        assert not verification.verified
        assert verification.tolerance == 0


def test_random_data_alone_would_hide_a_lost_product() -> None:
    given = product(2048)
    data = random_inputs(given, 1)
    first, second = factors(data, 2048)
    wrong = (first[:, 1:].astype(float) @ second[1:].astype(float)).astype(np.float16)
    assert Expected(given, data).judge(wrong).verified


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_other_sums_have_no_such_data(dtype: str) -> None:
    assert exact_data(product(64, dtype), 0) is None


def test_chains_of_exact_sums_may_be_rounded_to_the_type_of_the_sums() -> None:
    layer = product(16)
    data = exact_data(layer, 0)
    assert data is not None
    expected = Expected(layer, data)
    epilogue = Epilogue("float16", chain=Chain(Apply("mul", (Input(0), Number(0.3)))))
    exact = expected.result.astype(np.float64) * np.float32(0.3)
    stored = exact.astype(np.float16)
    assert (stored.astype(np.float64) != exact).any()
    assert expected.judge_stored(stored, epilogue, {}).verified
    # Two neighbours away is no rounding.
    wrong = np.nextafter(np.nextafter(stored, np.float16(np.inf)), np.float16(np.inf))
    assert not expected.judge_stored(wrong, epilogue, {}).verified
