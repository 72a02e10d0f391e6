"""Chains of warp groups with one thing wrong: each is a fault or a wrong number in the emulator."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from cpembed.errors import ExecutionFault
from cpembed.targets.cuda.chains.build import ChainKernels
from cpembed.targets.cuda.chains.plan import ChainSchedule
from cpembed.targets.cuda.emulator.executor import Order
from tests.unit.targets.cuda.chains.generated import chain_of, group_plan_of, is_right, kernels_of
from tests.unit.targets.cuda.emulator.running import needs_compiler

pytestmark = needs_compiler

CASES = {
    "heads": ("attention b=2 h=4 kv=2 q=150 k=170 d=80 causal lengths scale=2", (2, 4, 10, 2, 1)),
    "split": ("attention b=2 h=2 kv=1 q=20 k=300 d=64 dtype=bfloat16", (1, 2, 8, 2, 3)),
    "bytes": ("mlp m=150 k=64 n=170 p=48 act=relu bias dtype=int8", (2, 1, 6, 2, 1)),
}

ORDERS: tuple[Order | int, ...] = (Order.FORWARD, Order.REVERSE, 3)

FIRST = r"(cpembed_wgmma_mma_\w+\(\(&\(scores_ptr\[0\]\)\), .*?\);)"
SECOND = r"(cpembed_wgmma_mma_\w+_ra\w*\(\(&\(sums_ptr\[0\]\)\), .*?\);)"

MUTANTS: dict[str, tuple[str, str, str]] = {
    "scores before the products are done": ("heads", r"cpembed_wgmma_wait_1\(\);", ""),
    "scores before the first products are done": (
        "heads", r"(commit\(\);\s+)cpembed_wgmma_wait_0\(\);(\s+if \(lane)", r"\1\2",
    ),
    "sums are scaled while products add to them": (
        "heads", r"cpembed_wgmma_wait_0\(\);(\s+if \(lane_ptr\[0\] == 0\) {[^}]*behind)", r"\1",
    ),
    "results before the products are done": (
        "heads", r"cpembed_wgmma_wait_0\(\);(\s+if \(warp_row)", r"\1",
    ),
    "no group gives its turn away": ("heads", r"(?<!void )cpembed_named_arrive\([^;]*;", ""),
    "no fence before products": ("heads", r"cpembed_wgmma_fence\(\);", ""),
    "products of no group": ("heads", r"cpembed_wgmma_commit\(\);", ""),
    "rows are not waited for": (
        "heads", r"cpembed_mbarrier_wait\(\(&\(shared_ptr\[\d+\]\)\), 0\);", "",
    ),
    "columns are not waited for": ("heads", r"cpembed_mbarrier_wait\([^;]*, ring_ptr\[1\]\);", ""),
    "the second factor is not waited for": (
        "heads", r"cpembed_mbarrier_wait\([^;]*, behind_ptr\[1\]\);", "",
    ),
    "the parity of the second factor stays": (
        "heads", r"behind_ptr\[1\] = \(behind_ptr\[1\] \^ 1\);", "",
    ),
    "the second factor of the chunk ahead": ("heads", r"\(behind_ptr\[0\] \* 2048\)",
                                             "(ring_ptr[0] * 2048)"),
    "the producer does not wait": ("heads", r"cpembed_mbarrier_wait\([^;]*\^ 1\)\);", ""),
    "the second factor is given back too early": (
        "heads", SECOND + r"(\s+cpembed_wgmma_commit\(\);)",
        r"\1\2 if (lane_ptr[0] == 0) cpembed_mbarrier_arrive(shared_ptr + 118840);",
    ),
    "columns are never given back": (
        "heads", r"cpembed_mbarrier_arrive\(\(&\(shared_ptr\[\(\(ring[^;]*;", "",
    ),
    "too few arrivals at an empty stage": ("heads", r", 8\);", ", 4);"),
    "too many arrivals at an empty stage": ("heads", r", 8\);", ", 9);"),
    "another number of bytes": ("heads", r", 16384\);", ", 16368);"),
    "columns of the first chunk": ("heads", r"(B_map.*?, )\(chunk \* 64\)", r"\g<1>0"),
    "a panel of the wrong depth": ("heads", r"(B_map.*?\]\)\), )64, ", r"\g<1>0, "),
    "both groups have the same rows": ("heads", r"\(warp_row_ptr\[0\] \* 8192\)", "0"),
    "groups store the same rows": ("heads", r"\(row_ptr\[0\] \+ warp_row_ptr\[0\]\)",
                                   "row_ptr[0]"),
    "rows of the first warp": ("heads", r"\(warp_ptr\[0\] & 3\)", "0"),
    "scores go on from chunk to chunk": ("heads", r"(wgmma_mma_m64n64k16\w+\([^;]*), 0\);",
                                         r"\1, 1);"),
    "sums begin anew": ("heads", SECOND.replace(r"\);)", r"), 1\);"), r"\1, 0);"),
    "a matrix of the second panel": ("heads", r"\(uint64_t\)1024ULL", "(uint64_t)8ULL"),
    "a matrix further along the keys": ("heads", r"\(uint64_t\)128ULL", "(uint64_t)64ULL"),
    "the second factor is not transposed": ("heads", r"(, p, 1, 1), 1; \}", r"\1, 0; }"),
    "sums are not scaled": ("heads", r"(sums_ptr\[\d+\]) = \(\1 \* shrink_ptr\[\d\]\);", ""),
    "registers of another tile": ("heads", r"middle_ptr\[8\]\)\), \(\(second",
                                  "middle_ptr[0])), ((second"),
    "barriers are not visible to copies": ("heads", r"cpembed_mbarrier_init_fence\(\);", ""),
    "more registers than there are": ("heads", r"u32 232;", "u32 248;"),
    "sums are staged without a barrier": ("heads", r"tvm_builtin_cuda_warp_sync\(\);", ""),
    "parts have the same chunks": ("split", r"\(\(int\)blockIdx\.z\)", "0"),
    "statistics of another row": ("split", r"\(result_row_ptr(_1)?\[0\] \* 2\)", "0"),
    "parts are not weighted": ("split", r"one_ptr\[0\] = \(one_ptr\[0\] \* weight_ptr\[0\]\);", ""),
    "registers in another order": (
        "bytes", r"(?s)middle_ptr\[1\] = (.*?)middle_ptr\[2\] = ",
        r"middle_ptr[2] = \1middle_ptr[1] = ",
    ),
    "addends of the first chunk": ("bytes", r"MiddleBias_ptr\[[^\]]*\]", "MiddleBias_ptr[0]"),
}  # fmt: skip


@cache
def kernels(name: str) -> ChainKernels:
    words, (groups, chunk, columns, stages, splits) = CASES[name]
    schedule = ChainSchedule("registers", (groups, 1), 1, chunk, columns, stages, splits)
    plan = group_plan_of(chain_of(words), np.random.default_rng(0), lambda *_: schedule, number=0)
    return kernels_of(plan)


@pytest.mark.parametrize("name", CASES)
def test_the_kernels_are_right(name: str) -> None:
    assert all(is_right(kernels(name), 5, order) for order in ORDERS)


@pytest.mark.quick(6)
@pytest.mark.parametrize("name", MUTANTS)
def test_what_is_wrong_shows(name: str) -> None:
    case, pattern, replacement = MUTANTS[name]
    original = kernels(case)
    source, count = re.subn(pattern, replacement, original.text.source)
    assert count, "the text has nothing of the kind"
    mutant = ChainKernels(original.plan, replace(original.text, source=source))
    noticed = False
    for order in ORDERS:
        try:
            noticed = noticed or not is_right(mutant, 5, order)
        except ExecutionFault:
            noticed = True
    assert noticed
