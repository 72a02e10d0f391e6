"""Kernels of ACT: what stays on chip, what is proven, and results against numpy by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.act import (
    Kernel,
    emulate,
    kernels,
    main_bytes,
    random_arrays,
)
from cpembed.accelerator.operator_search import OperatorSearch, compulsory_bytes
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


def key_rows_attention(arrays: Arrays) -> NDArray[Any]:
    """The same with keys in rows."""
    return attention({**arrays, "K": arrays["K"].T})


def half_attention(arrays: Arrays) -> NDArray[Any]:
    """Attention on numbers of bfloat16, without their rounding."""
    query, key, value = (arrays[name].astype(np.float64) for name in "QKV")
    return softmax(query @ key.T) @ value


# Expected result, and the bytes to and from main memory, counted by hand.
MATRIX = 64 * 64
EXPECTED: dict[tuple[str, str], tuple[Expected, int]] = {
    ("product 64x64x64", "qkv_attention"): (
        lambda a: a["Q"].astype(np.float64) @ a["K"].astype(np.float64),
        3 * 2 * MATRIX,
    ),
    ("product 512x64x64", "qkv_attention"): (
        lambda a: a["Q"].astype(np.float64) @ a["K"].astype(np.float64),
        (8 + 1 + 8) * 2 * MATRIX,
    ),
    ("QKV 64x64", "qkv_attention"): (half_attention, 4 * 2 * MATRIX),
    ("QKV 64x64, no softmax", "qkv_attention"): (
        lambda a: np.linalg.multi_dot(
            [a["Q"].astype(np.float64), a["K"].astype(np.float64).T, a["V"].astype(np.float64)]
        ),
        4 * 2 * MATRIX,
    ),
    ("A·B", "gemmini"): (lambda a: scaled_products(a["A"], a["B"]), 3 * MATRIX),
    ("A·B", "tpu_like"): (lambda a: scaled_products(a["A"], a["B"]), 3 * MATRIX),
    # Gemmini stores sums as bytes to main memory alone: results in between cross it twice.
    ("A·B·C", "gemmini"): (lambda a: scaled_products(a["A"], a["B"], a["C"]), 6 * MATRIX),
    ("A·B·C", "tpu_like"): (lambda a: scaled_products(a["A"], a["B"], a["C"]), 4 * MATRIX),
    ("A·B·C·D", "gemmini"): (
        lambda a: scaled_products(a["A"], a["B"], a["C"], a["D"]),
        9 * MATRIX,
    ),
    ("A·B·C·D", "tpu_like"): (
        lambda a: scaled_products(a["A"], a["B"], a["C"], a["D"]),
        5 * MATRIX,
    ),
    ("relu(A·B)", "gemmini"): (
        lambda a: np.maximum(scaled_products(a["A"], a["B"]), 0),
        3 * MATRIX,
    ),
    ("relu(A·B)", "tpu_like"): (
        lambda a: np.maximum(scaled_products(a["A"], a["B"]), 0),
        3 * MATRIX,
    ),
    ("0.5A + 0.25B", "gemmini"): (
        lambda a: to_bytes(
            to_bytes(a["A"] * 0.5).astype(np.int64) + to_bytes(a["B"] * 0.25).astype(np.int64)
        ),
        3 * MATRIX,
    ),
    ("two scaled sums, relu", "tpu_like"): (
        lambda a: to_bytes(
            np.maximum(to_bytes(a["A"] * 0.5 + a["B"] * 0.25) * 0.5 + a["C"] * 0.5, 0)
        ),
        4 * MATRIX,
    ),
    ("relu((A + B)X) 512x64", "tpu_like"): (
        lambda a: np.maximum((a["A"] + a["B"]) * a["X"], 0),
        4 * 8 * 4 * MATRIX,
    ),
    ("softmax 512x64", "tpu_like"): (lambda a: softmax(a["X"]), 2 * 8 * 4 * MATRIX),
    ("softmax 512x64, maximum subtracted", "tpu_like"): (
        lambda a: softmax(a["X"]),
        2 * 8 * 4 * MATRIX,
    ),
    ("QKV 64x64", "tpu_like"): (key_rows_attention, 4 * MATRIX),
    ("QKV 64x64, maximum subtracted", "tpu_like"): (key_rows_attention, 4 * MATRIX),
    ("QKV 64x64, keys transposed ahead", "tpu_like"): (attention, 4 * MATRIX),
    ("QKV 64x64, maximum subtracted, keys transposed ahead", "tpu_like"): (attention, 4 * MATRIX),
}
KERNELS: dict[tuple[str, str], Kernel] = {(k.name, k.target): k for k in kernels()}


@pytest.mark.parametrize("key", EXPECTED, ids=" on ".join)
def test_kernels_are_proven_right_and_move_what_they_must(key: tuple[str, str]) -> None:
    expected, compulsory = EXPECTED[key]
    machine = load_instruction_set(KERNELS[key].target)
    specification = KERNELS[key].specification()
    search = OperatorSearch(specification, machine, "bytes")
    plans = search.plans()
    assert not isinstance(plans, str), plans
    assert [prove(plan.program()).refusal for plan in plans] == [""] * len(plans)
    arrays = random_arrays(specification, 7)
    contents, runs = emulate(plans, arrays)
    (name,) = specification.outputs
    result, right = contents[name], expected(arrays)
    assert len(np.unique(right)) > 16
    if result.dtype == np.int8:
        np.testing.assert_array_equal(result, right)
    elif result.dtype == np.float32:
        np.testing.assert_allclose(result, right, rtol=2e-5, atol=1e-7)
    else:
        # Each step rounds to the 8 digits of bfloat16.
        error = np.abs(result.astype(np.float64) - right).max()
        assert error < 2e-2 * np.abs(right).max()
    assert main_bytes(machine, runs) == compulsory
    assert compulsory_bytes(specification, search.matchings, machine) == compulsory


def test_an_input_that_no_instruction_carries_to_an_operand_is_named() -> None:
    kernel = KERNELS["softmax 64x64", "qkv_attention"]
    reason = OperatorSearch(kernel.specification(), load_instruction_set(kernel.target)).plans()
    assert reason == (
        "rejected: qkv_attention has no copies of bfloat16 from hbm to d2, where S is needed: "
        "describe a load, or a move between the two"
    )
