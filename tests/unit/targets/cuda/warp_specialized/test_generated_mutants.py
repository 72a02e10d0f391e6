"""Generated kernels with one thing wrong: each is a fault or a wrong number in the emulator."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from cpembed.errors import ExecutionFault
from cpembed.targets.cuda.build import CudaKernels
from cpembed.targets.cuda.emulator.executor import Order
from cpembed.targets.cuda.warp_specialized.build import cuda_text
from cpembed.targets.cuda.warp_specialized.limits import check
from cpembed.targets.cuda.warp_specialized.schedule import SpecializedPlan, SpecializedSchedule
from tests.running import exact_inputs
from tests.unit.targets.cuda.emulator.running import needs_compiler
from tests.unit.targets.cuda.warp_specialized.products import SHARED_BYTES, lowered

pytestmark = needs_compiler

WORDS = "gemm m=150 n=64 k=192"

SCHEDULES = {
    "threads": SpecializedSchedule(2, (1, 8), 2, 3, ("threads", "bulk")),
    "tensor": SpecializedSchedule(1, (1, 8), 2, 3, ("tensor", "tensor"), blocks=2),
    "registers": SpecializedSchedule(1, (2, 4), 4, 2, ("bulk", "tensor"), in_registers=True),
    "turns": SpecializedSchedule(2, (1, 8), 2, 4, ("tensor", "tensor"), blocks=1, alternating=True),
    "warps": SpecializedSchedule(1, (2, 4), 4, 3, ("tensor", "bulk"), warps=(2, 2), blocks=2),
    "boxes": SpecializedSchedule(1, (1, 8), 2, 3, ("tensor", "tensor"), blocks=2, store_buffers=2),
    "matrices": SpecializedSchedule(
        2, (1, 8), 2, 4, ("tensor", "tensor"), blocks=1, alternating=True, store_buffers=1
    ),
}
"""Of warp groups, and of warps of their own; the last two store by TMA."""

PRODUCT = r"(cpembed_wgmma_mma_\w+\(\(&\(sums_ptr\[\d+\]\)\), .*?)"

MUTANTS: dict[str, tuple[str, str, str]] = {
    "copies are not waited for": ("threads", r"cpembed_cp_async_wait_1\(\);", ""),
    "copies are hidden from products": ("threads", r"cpembed_proxy_fence\(\);", ""),
    "a thread announces twice": (
        "threads", r"(cpembed_mbarrier_arrive\(\(&\(shared_ptr\[\(\(behind.*?;)", r"\1 \1",
    ),
    "the stage is announced before it is copied": (
        "threads", r"if \(1 < behind_ptr\[1\]\)", "if (0 < behind_ptr[1])",
    ),
    "the last stages are not announced": ("threads", r"cpembed_cp_async_wait_0\(\);", "return;"),
    "chunks are not permuted": ("threads", r"\^ \(\(image_row_ptr\[0\] & 7\) >> 1\)", ""),
    "another permutation": (
        "threads", r"\(image_row_ptr\[0\] & 7\) >> 1", "(image_row_ptr[0] & 3)",
    ),
    "half of an image": ("threads", r"(cpembed_bulk_load\(.*?), 4096, ", r"\1, 2048, "),
    "images of another step": ("threads", r"deep_step_ptr\[0\] \* 2048", "step * 1024"),
    "both groups read the same rows": ("threads", r"consumer_ptr\[0\] \* 4096", "0"),
    "groups store the same rows": ("threads", r"\+ consumer_ptr\[0\]\)", ")"),
    "too few arrivals at a full stage": ("threads", r", 257\);|, 129\);", ", 128);"),
    "too few arrivals at an empty stage": ("tensor", r", 4\);", ", 1);"),
    "too many arrivals at an empty stage": ("tensor", r", 4\);", ", 5);"),
    "producers do not wait": ("tensor", r"cpembed_mbarrier_wait\(.*?\^ 1\)\);", ""),
    "producers wait for the other parity": (
        "tensor", r"\(ring_ptr\[1\] \^ 1\)\);", "ring_ptr[1]);",
    ),
    "consumers do not wait": ("tensor", r"cpembed_mbarrier_wait\(.*?, ring_ptr\[1\]\);", ""),
    "the parity stays": ("tensor", r"ring_ptr\[1\] = \(ring_ptr\[1\] \^ 1\);", ""),
    "another number of bytes": ("tensor", r", 8192\);", ", 8176);"),
    "coordinates of the first step": ("tensor", r"\(deep_step_ptr\[0\] \* 32\)", "0"),
    "the second factor is not transposed": (
        "tensor", r"(p, 1, 1, 0), 1; \}", r"\1, 0; }",
    ),
    "a matrix further along the depth": ("tensor", r"\(uint64_t\)128ULL", "(uint64_t)64ULL"),
    "a stage is given back too early": (
        "tensor", r"cpembed_wgmma_wait_1\(\);(\s+)if \(0 < step_1\)", r"\1if (true)",
    ),
    "a stage is never given back": ("tensor", r"cpembed_mbarrier_arrive\(.*?\);\n", "\n"),
    "sums go on from tile to tile": ("tensor", r"\(\(int\)\(0 < step_1\)\)", "1"),
    "sums begin anew": ("tensor", r"\(\(int\)\(0 < step_1\)\)", "0"),
    "results before the products are done": ("tensor", r"cpembed_wgmma_wait_0\(\);", ""),
    "sums are staged without a barrier": ("tensor", r"tvm_builtin_cuda_warp_sync\(\);", ""),
    "no fence before products": ("tensor", r"cpembed_wgmma_fence\(\);", ""),
    "products of no group": ("tensor", r"cpembed_wgmma_commit\(\);", ""),
    "fragments are overwritten in flight": (
        "registers", r"cpembed_wgmma_wait_1\(\);", "",
    ),
    "a fragment changes while products read it": (
        "registers", r"(cpembed_wgmma_commit\(\);)", r"\1 fragments_ptr[0] += 1;",
    ),
    "fragments are loaded after the fence": (
        "registers", r"((?:\s*cpembed_ldmatrix_x4\([^;]*;)+)(\s*cpembed_wgmma_fence\(\);)", r"\2\1",
    ),
    "registers are decreased to more than there are": (
        "threads", r"setmaxnreg\.inc\.sync", "setmaxnreg.dec.sync",
    ),
    "registers are not given back": ("threads", r"cpembed_registers_dec_\d+\(\);", ""),
    "no tensor map": ("tensor", r"\(unsigned long long\)\(&\(B_map\)\)", "4096ull * 7"),
    "fragments of the first warp": ("registers", r"\(warp_ptr\[0\] & 3\)", "0"),
    "fragments of another depth": ("registers", r"fragments_ptr\[4\]", "fragments_ptr[0]"),
    "groups do not wait for their turn": (
        "turns", r"cpembed_mbarrier_wait\(\(&\(shared_ptr\[\(\(consumer_ptr.*?;", "",
    ),
    "groups wait for the other parity of turns": (
        "turns", r"\(int\)\(consumer_ptr\[0\] == 0\)", "(int)(consumer_ptr[0] == 1)",
    ),
    "a turn is not handed on": (
        "turns", r"cpembed_mbarrier_arrive\(\(&\(shared_ptr\[\(+consumer_ptr.*?;", "",
    ),
    "stages of the other group are not skipped": (
        "turns", r"later_ptr\[0\] = \(ring_ptr\[0\] \+ 6\)", "later_ptr[0] = ring_ptr[0]",
    ),
    "the parity of skipped stages stays": ("turns", r"\(later_ptr\[0\] / 4\) & 1", "0"),
    "warps do not wait for a stage": ("warps", r"cpembed_mbarrier_wait\(.*?, ring_ptr\[1\]\);", ""),
    "warps wait for the other parity": (
        "warps", r"(cpembed_mbarrier_wait\(.*?), ring_ptr\[1\]\);", r"\1, ring_ptr[1] ^ 1);",
    ),
    "the producer does not wait for warps": (
        "warps", r"cpembed_mbarrier_wait\(.*?\^ 1\)\);", "",
    ),
    "warps keep a stage": ("warps", r"cpembed_mbarrier_arrive\(.*?\);\n", "\n"),
    "warps announce a stage": (
        "warps", r"(cpembed_mbarrier_arrive\(.*?ring_ptr\[0\] \* 8)", r"\1 - 24",
    ),
    "a stage is given back before its last fragments": (
        "warps",
        (r"(?s)( +cpembed_ldmatrix_x4\(\(&\(first_ptr\[8\]\)[^;]*first_place_ptr\[0\] \^ 96.*?)"
         r"( +tvm_builtin_cuda_warp_sync\(\);\s+if \(lane_ptr\[0\] == 0\) \{.*?\n      \})"),
        r"\2\1",
    ),
    "a lane gives back a stage that others may read": (
        "warps",
        r"tvm_builtin_cuda_warp_sync\(\);(\s+if \(lane_ptr\[0\] == 0\) \{\s+cpembed_mbarrier)",
        r"\1",
    ),
    "one arrival is enough": ("warps", r", 4\);", ", 1);"),
    "more arrivals than warps": ("warps", r", 4\);", ", 5);"),
    "the whole warp issues copies": ("warps", r"if \(producer_ptr\[0\] == 0\)", "if (true)"),
    "bytes of one image alone": ("warps", r"(cpembed_mbarrier_expect\(.*?), 16384\)", r"\1, 8192)"),
    "lanes ignore the swizzle": ("warps", r"\^ \(lane_ptr\[0\] & 7\)\)", ")"),
    "the swizzle of half as long rows": (
        "warps", r"\^ \(lane_ptr\[0\] & 7\)\)", "^ ((lane_ptr[0] & 7) >> 1))",
    ),
    "the depth is added, not permuted": ("warps", r"place_ptr\[0\] \^ (\d+)", r"place_ptr[0] + \1"),
    "fragments of the same depth": (
        "warps", r"first_place_ptr\[0\] \^ 64", "first_place_ptr[0] ^ 32",
    ),
    "fragments of the first stage": (
        "warps", r"ring_ptr\[0\] \* 16384\) \+ \(second", "0) + (second",
    ),
    "one set of fragments": ("warps", r"first_ptr\[8\]", "first_ptr[0]"),
    "warps multiply the same rows": ("warps", r"warp_row_ptr\[0\] \* 4096", "0"),
    "warps store the same columns": ("warps", r"\(warp_column_ptr\[0\] \* 4\)", "0"),
    "sums of warps go on": ("warps", r"sums_ptr\[(\d+)\] = 0x0p.*?;", ""),
    "the last stage is left out": ("warps", r"last_ptr\[0\] = 1;", "last_ptr[0] = 0;"),
    "boxes are hidden from the copy": ("boxes", r"cpembed_proxy_fence\(\);", ""),
    "matrices are hidden from the copy": ("matrices", r"cpembed_proxy_fence\(\);", ""),
    "one lane makes the matrices of all visible": (
        "matrices", r"cpembed_proxy_fence\(\);", "if (lane_ptr[0] == 0) cpembed_proxy_fence();",
    ),
    "the fence is one of global memory": ("boxes", r"async\.shared::cta;", "async.global;"),
    "swizzles in memory that is not aligned": ("boxes", r"__align__\(1024\)", "__align__(64)"),
    "buffers are not waited for": ("boxes", r"cpembed_bulk_wait_read_1\(\);", ""),
    "one copy too many reads buffers": ("matrices", r"wait_group\.read 0", "wait_group.read 1"),
    "two buffers are one": (
        "boxes", r"(cpembed_shared_store_8\(\(&\(shared_ptr\[.*?) \+ (2048|3072)\)",
        r"\1 + (\2 - 2048))",
    ),
    "other lanes write while one waits for the buffer": (
        "boxes", r"(cpembed_bulk_wait_read_1\(\);\s+\}\s+)tvm_builtin_cuda_warp_sync\(\);", r"\1",
    ),
    "a box is copied while lanes write it": (
        "boxes", r"(cpembed_proxy_fence\(\);\s+)tvm_builtin_cuda_warp_sync\(\);", r"\1",
    ),
    "every lane copies the box": (
        "matrices", r"if \(lane_ptr\[0\] == 0\)(\s+\{\s+if \(\(item)", r"if (true)\1",
    ),
    "copies of no group": ("boxes", r"cpembed_bulk_commit\(\);", ""),
    "the block ends while boxes are copied": (
        "boxes", r"cpembed_bulk_wait_read_0\(\);", "",
    ),
    "a box is copied from the buffer of the first warp": (
        "matrices", r"\(&\(shared_ptr\[stage_ptr\[0\]\]\)\)", "(&(shared_ptr[32768]))",
    ),
    "boxes of the same rows": ("boxes", r"\(\(warp_ptr\[0\] & 3\) \* 16\)", "0"),
    "boxes of the same columns": ("boxes", r"\(\(column_block_ptr_1\[0\] \* 64\) \+ 32\)", "0"),
    "rows of boxes are not permuted": ("matrices", r"\^ \(lane_ptr\[0\] & 7\)\)", ")"),
    "pairs of rows are exchanged in one place alone": (
        "boxes", r"exchanged_ptr\[0\] == 1", "exchanged_ptr[0] == 0",
    ),
}  # fmt: skip


def target_of(name: str) -> str:
    """Specification of a schedule's instruction."""
    if name == "matrices":
        return "wgmma_f16_f16"
    return "wgmma_f16" if SCHEDULES[name].warps is None else "mma_f16"


@cache
def kernels(name: str) -> CudaKernels:
    _, product = lowered(WORDS, target_of(name), "in_place_padded")
    plan = SpecializedPlan(product, SCHEDULES[name])
    check(plan, SHARED_BYTES)
    return CudaKernels(plan, cuda_text(plan))


def right(mutant: CudaKernels) -> bool:
    """In three orders; a fault is not."""
    operator = mutant.plan.product.program.unfused
    inputs = exact_inputs(operator, 3)
    first, second = (inputs[operand.tensor].astype(np.float64) for operand in operator.inputs)
    for order in (Order.FORWARD, Order.REVERSE, 7):
        try:
            result = mutant.run(inputs, order)
        except ExecutionFault:
            return False
        if not np.array_equal(result, first @ second):
            return False
    return True


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_kernels_are_right(name: str) -> None:
    assert right(kernels(name))


@pytest.mark.quick(8)
@pytest.mark.parametrize("name", MUTANTS)
def test_what_is_wrong_shows(name: str) -> None:
    schedule, pattern, replacement = MUTANTS[name]
    original = kernels(schedule)
    source, count = re.subn(pattern, replacement, original.text.source)
    assert count, "the text has nothing of the kind"
    mutant = CudaKernels(original.plan, replace(original.text, source=source))
    assert not right(mutant)
