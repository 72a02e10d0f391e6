"""The study of kernels of many workloads: its rows, and that it notices what is wrong."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest

from cpembed.driver.named import workload
from cpembed.targets.cuda.emulator.executor import COMPILER
from cpembed.targets.cuda.saving.cases import cases_of
from experiments.studies.tensor_core_workloads import run
from experiments.studies.tensor_core_workloads.rows import (
    EPILOGUES,
    MACHINES,
    RANDOM,
    TYPES,
    keys,
    random_words,
    small_words,
    variants,
    words_of,
)

needs_compilers = pytest.mark.skipif(
    shutil.which("nvcc") is None or bool(COMPILER.missing()),
    reason="missing: nvcc or the executor's compiler",
)


def test_rows_are_suites_and_random_workloads() -> None:
    assert len(set(run.KEYS)) == len(run.KEYS) == 121 + RANDOM
    random = {random_words(number) for number in range(RANDOM)}
    assert len(random) == RANDOM
    operators = {words.split()[0] for words in random}
    assert {"gemm", "batched_gemm", "conv1d", "conv2d", "conv3d", "depthwise"} <= operators
    assert {"transposed_conv2d", "conv2d_dgrad", "conv2d_wgrad"} <= operators
    options = " ".join(random)
    assert all(each in options for each in ("groups=2", "dilation=2", "trans_a=1", "stride=3"))


def test_small_versions_have_the_windows_of_their_workloads() -> None:
    for key in keys():
        words, small = words_of(key), small_words(words_of(key))
        sizes, small_sizes = (
            dict(word.split("=") for word in each.split()[1:]) for each in (words, small)
        )
        same = ("r", "s", "t", "pad", "stride", "dilation", "layout", "trans_a", "trans_b")
        assert all(sizes.get(name) == small_sizes.get(name) for name in same)
        assert workload(small).macs <= min(workload(words).macs, 40_000_000)


def test_each_row_has_both_instructions_and_all_types_have_all_epilogues() -> None:
    cases = {
        (variant.target, variant.epilogue)
        for number, key in enumerate(run.KEYS)
        for variant in variants(key, number)
    }
    for kind in ("mma", "wgmma"):
        assert (f"{kind}_f16", None) in cases
        assert {(f"{kind}_{t}", e) for t in TYPES for e in EPILOGUES} <= cases
    machines = {v.name for n, key in enumerate(run.KEYS) for v in variants(key, n)}
    assert {f"mma_s8 {machine}" for machine in MACHINES} <= machines


def test_one_wrong_bit_is_a_difference() -> None:
    case = cases_of(workload("gemm m=9 n=8 k=16 dtype=float16"), None)[0]
    (expected,) = case.results.values()
    right = expected.array.copy()
    right[right == 0] = -0.0
    assert not run.difference(right, expected)
    wrong = expected.array.copy()
    wrong.reshape(-1).view("u4")[17] ^= 1
    assert run.difference(wrong, expected) == "1 of 72 elements differ"
    assert not run.difference(wrong, replace(expected, absolute=1e-3))
    wrong.reshape(-1)[3] = np.nan
    assert run.difference(wrong, replace(expected, absolute=1e-3))
    # Padding may spread a NaN, but not to everything.
    special = replace(expected, absolute=1e-3, spreads=True)
    assert not run.difference(wrong, special)
    assert run.difference(np.full_like(wrong, np.nan), special)


KERNEL = """
extern "C" __global__ void kernel(float* result, const float* data, int n) {
  BODY
}
"""


@needs_compilers
def test_warnings_and_local_memory_are_noticed() -> None:
    clean = run.compile_kernel(KERNEL.replace("BODY", "result[n] = data[n];"), "sm_80")
    assert not run.verdict(clean | {"emulated": {}})
    unused = run.compile_kernel(KERNEL.replace("BODY", "int unused; unused = n;"), "sm_80")
    assert "550" in run.verdict(unused)
    local = "float all[64]; for (int i = 0; i < 64; i++) all[(i * n) & 63] = data[i];"
    local += " result[n] = all[n & 63];"
    assert "local memory" in run.verdict(run.compile_kernel(KERNEL.replace("BODY", local), "sm_80"))
    assert "differ" in run.verdict(clean | {"emulated": {"error": "2 of 4 elements differ"}})


@needs_compilers
@pytest.mark.slow
@pytest.mark.parametrize("number", range(RANDOM))
def test_random_workloads_have_right_kernels(number: int) -> None:
    """With a random embedding and schedule of each instruction."""
    row = run.compute(f"random:{number}")
    wrong = {name: run.verdict(report) for name, report in row["kernels"].items()}
    assert not any(
        reason for name, reason in wrong.items() if row["kernels"][name].get("fits", True)
    ), wrong
