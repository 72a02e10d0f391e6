"""Kernels of ACT: what stays on chip, what is proven, and results against numpy by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.act import (
    Kernel,
    compulsory_bytes,
    emulate,
    kernels,
    main_bytes,
    random_arrays,
)
from cpembed.accelerator.operator_search import OperatorSearch
from cpembed.accelerator.proof import prove
from cpembed.hw.isa_reader import load_instruction_set
from tests.compilers import needs_executor

pytestmark = needs_executor

Arrays = Mapping[str, NDArray[Any]]
Expected = Callable[[Arrays], NDArray[Any]]


def to_bytes(values: NDArray[Any]) -> NDArray[Any]:
    """Round to nearest even and saturate."""
    return np.clip(np.rint(values), -128, 127).astype(np.int8)


def scaled_products(*matrices: NDArray[Any]) -> NDArray[Any]:
    """Multiply bytes from the left, each result scaled to bytes."""
    result, *others = matrices
    for other in others:
        result = to_bytes((result.astype(np.int64) @ other.astype(np.int64)) / 1024)
    return result


def softmax(values: NDArray[Any]) -> NDArray[Any]:
    exponentials = np.exp(values.astype(np.float64))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def attention(arrays: Arrays) -> NDArray[Any]:
    """Attention on bytes with float32 scores, in the kernel's steps; keys are in columns."""
    products = arrays["Q"].astype(np.int64) @ arrays["K"].astype(np.int64)
    weights = softmax((products * 2.0**-15).astype(np.float32)) * 127
    sums = to_bytes(weights).astype(np.int64) @ arrays["V"].astype(np.int64)
    return to_bytes(sums / 128)


# Expected result, and the bytes to and from main memory over the compulsory ones.
EXPECTED: dict[tuple[str, str], tuple[Expected, float]] = {
    ("A·B", "gemmini"): (lambda a: scaled_products(a["A"], a["B"]), 1.0),
    ("A·B", "tpu_like"): (lambda a: scaled_products(a["A"], a["B"]), 1.0),
    ("A·B·C", "gemmini"): (lambda a: scaled_products(a["A"], a["B"], a["C"]), 1.5),
    ("A·B·C", "tpu_like"): (lambda a: scaled_products(a["A"], a["B"], a["C"]), 1.0),
    ("relu(A·B)", "tpu_like"): (lambda a: np.maximum(scaled_products(a["A"], a["B"]), 0), 1.0),
    ("two scaled sums, relu", "tpu_like"): (
        lambda a: to_bytes(
            np.maximum(to_bytes(a["A"] * 0.5 + a["B"] * 0.25) * 0.5 + a["C"] * 0.5, 0)
        ),
        1.0,
    ),
    ("QKV 64x64, keys transposed ahead", "tpu_like"): (attention, 1.0),
    ("QKV 64x64, maximum subtracted, keys transposed ahead", "tpu_like"): (attention, 1.0),
    ("A·B·C·D", "tpu_like"): (lambda a: scaled_products(a["A"], a["B"], a["C"], a["D"]), 1.0),
    # Gemmini stores sums as bytes to main memory alone: both results in between cross it twice.
    ("A·B·C·D", "gemmini"): (lambda a: scaled_products(a["A"], a["B"], a["C"], a["D"]), 1.8),
    ("relu(A·B)", "gemmini"): (lambda a: np.maximum(scaled_products(a["A"], a["B"]), 0), 1.0),
    ("0.5A + 0.25B", "gemmini"): (
        lambda a: to_bytes(
            to_bytes(a["A"] * 0.5).astype(np.int64) + to_bytes(a["B"] * 0.25).astype(np.int64)
        ),
        1.0,
    ),
    ("relu((A + B)X) 512x64", "tpu_like"): (
        lambda a: np.maximum((a["A"] + a["B"]) * a["X"], 0),
        1.0,
    ),
    ("softmax 512x64", "tpu_like"): (lambda a: softmax(a["X"]), 1.0),
    ("softmax 512x64, maximum subtracted", "tpu_like"): (lambda a: softmax(a["X"]), 1.0),
}
KERNELS: dict[tuple[str, str], Kernel] = {(k.name, k.target): k for k in kernels()}


@pytest.mark.parametrize("key", EXPECTED, ids=" on ".join)
def test_kernels_are_proven_right_and_move_what_they_must(key: tuple[str, str]) -> None:
    expected, ratio = EXPECTED[key]
    machine = load_instruction_set(KERNELS[key].target)
    specification = KERNELS[key].specification()
    plans = OperatorSearch(specification, machine).plans()
    assert not isinstance(plans, str), plans
    assert [prove(plan.program()).refusal for plan in plans] == [""] * len(plans)
    arrays = random_arrays(specification, 7)
    contents, runs = emulate(plans, arrays)
    (name,) = specification.outputs
    result, right = contents[name], expected(arrays)
    assert len(np.unique(right)) > 16
    if result.dtype == np.int8:
        np.testing.assert_array_equal(result, right)
    else:
        np.testing.assert_allclose(result, right, rtol=2e-5, atol=1e-7)
    assert main_bytes(machine, runs) == ratio * compulsory_bytes(specification)
