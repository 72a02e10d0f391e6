"""Kernels of warp groups, emulated beside the reference, and what nvcc says of them."""

from __future__ import annotations

import random
import re
import subprocess
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from cpembed.codegen.epilogue import Epilogue
from cpembed.ir.computation import Computation
from cpembed.ir.reference import random_inputs
from cpembed.runtime.measurement.verification import Expected
from cpembed.targets.cuda.build import CudaKernels
from cpembed.targets.cuda.emulator.executor import Order
from cpembed.targets.cuda.tma.reads import count_reads
from cpembed.targets.cuda.warp_specialized.build import cuda_text
from cpembed.targets.cuda.warp_specialized.limits import check
from cpembed.targets.cuda.warp_specialized.schedule import SpecializedPlan, SpecializedSchedule
from cpembed.targets.cuda.warp_specialized.traffic import SpecializedTraffic, traffic
from tests.unit.targets.cuda.emulator.running import needs_compiler, needs_nvcc
from tests.unit.targets.cuda.machine_code import opcodes
from tests.unit.targets.cuda.warp_specialized.products import (
    SHARED_BYTES,
    SHARED_BYTES_SM_120,
    lowered,
    random_plan,
)

WORKLOADS = {
    "gemm": "gemm m=128 n=64 k=128",
    "ragged gemm": "gemm m=133 n=75 k=90",
    "one row": "gemm m=1 n=40 k=72",
    "batched": "batched_gemm b=3 m=70 n=24 k=48",
    "conv1d": "conv1d n=2 c=32 w=40 k=24 s=3 pad=1 layout=NWC",
    "conv2d": "conv2d n=2 c=32 h=9 w=9 k=40 r=3 s=3 pad=1 layout=NHWC",
    "many channels": "conv2d n=1 c=96 h=7 w=12 k=72 r=3 s=3 pad=1 layout=NHWC",
    "channels first": "conv2d n=2 c=32 h=8 w=8 k=24 r=3 s=3 pad=1",
    "strided": "conv2d n=1 c=64 h=15 w=15 k=16 r=3 s=3 pad=1 stride=2 layout=NHWC",
    "dilated": "conv2d n=1 c=32 h=10 w=10 k=16 r=3 s=3 pad=2 dilation=2 layout=NHWC",
    "few channels": "conv2d n=1 c=3 h=12 w=12 k=16 r=3 s=3 pad=1 stride=2 layout=NHWC",
    "grouped": "conv2d n=1 c=64 h=7 w=7 k=32 r=3 s=3 pad=1 groups=2 layout=NHWC",
    "transposed": "transposed_conv2d n=1 c=32 h=5 w=5 k=16 r=3 s=3 pad=1 stride=2",
    "depthwise": "depthwise n=1 c=4 m=16 h=9 w=9 r=3 s=3 pad=1 layout=NHWC",
    "conv3d": "conv3d n=1 c=16 d=4 h=5 w=5 k=16 t=3 r=3 s=3 pad=1 layout=NDHWC",
    "filters per image": "batched_conv2d n=2 c=32 h=6 w=6 k=16 r=3 s=3 pad=1",
}

TARGETS = (
    "wgmma_f16", "wgmma_f16_f16", "wgmma_bf16", "wgmma_s8", "wgmma_f8", "wgmma_f8_f16",
    "mma_f16", "mma_f16_f16", "mma_bf16", "mma_s8", "mma_f8",
)  # fmt: skip
"""Specifications of warp groups, and of warps, which the same producers feed."""

SETS = ("in_place_padded", "fused", "complete")


def compare(operator: Computation, kernels: CudaKernels, seed: int) -> None:
    inputs = random_inputs(operator, seed)
    expected = Expected(operator, inputs)
    epilogue = kernels.plan.product.epilogue
    vectors = expected.vectors(epilogue, seed)
    for order in (Order.REVERSE, Order.FORWARD, seed):
        result = kernels.run({**inputs, **vectors}, order)
        assert expected.judge_stored(result, epilogue, vectors).verified, kernels.plan.schedule


def check_counts(kernels: CudaKernels) -> None:
    """What the executor counted is what the schedule says."""
    plan = kernels.plan
    assert isinstance(plan, SpecializedPlan)
    counters, expected = kernels.kernel_counters["product_kernel"], traffic(plan)
    assert expected == SpecializedTraffic(
        products=sum(counters.mma.values()),
        matrix_wavefronts=counters.wgmma_wavefronts,
        image_bytes=counters.bulk_load_image_bytes,
        phases=counters.mbarrier_phases,
        shared_load_wavefronts=counters.shared_load_wavefronts,
        shared_store_wavefronts=counters.shared_store_wavefronts,
        stored_bytes=counters.global_store_bytes + counters.bulk_store_bytes,
        # Where rows of results do not begin with a sector, there are more.
        stored_sectors=expected.stored_sectors,
        # Other loads of threads are those of factors.
        part_bytes_loaded=expected.part_bytes_loaded
        if plan.by_threads
        else counters.global_load_bytes,
    )
    assert count_reads(plan) == (counters.bulk_load_bytes, counters.bulk_load_sectors)
    sectors = counters.global_store_sectors + counters.bulk_store_sectors
    assert expected.stored_sectors <= sectors
    # Swizzles keep the operands of products apart.
    assert counters.wgmma_wavefronts == counters.wgmma_wavefronts_least


def plan_of(name: str, target: str, constraints: str) -> tuple[Computation, SpecializedPlan]:
    rng = random.Random(f"{name} {target} {constraints}")
    operator, product = lowered(WORKLOADS[name], target, constraints, rng.randrange(3))
    return operator, random_plan(rng, product)


@needs_compiler
@pytest.mark.quick(17)
@pytest.mark.parametrize("constraints", SETS)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", WORKLOADS)
def test_kernels_compute_the_workload(name: str, target: str, constraints: str) -> None:
    operator, plan = plan_of(name, target, constraints)
    kernels = CudaKernels(plan, cuda_text(plan))
    compare(operator, kernels, len(name))
    check_counts(kernels)


@needs_compiler
@pytest.mark.parametrize(
    "cluster, blocks, splits",
    [((2, 1), 0, 1), ((1, 2), 4, 1), ((2, 2), 0, 1), ((1, 4), 0, 2)],
)
def test_blocks_of_a_cluster_share_what_they_load(
    cluster: tuple[int, int], blocks: int, splits: int
) -> None:
    """Some of the blocks are beyond the result, and load and arrive like the others."""
    operator, product = lowered("gemm m=300 n=130 k=160", "wgmma_f16", "in_place_padded")
    schedule = SpecializedSchedule(
        1, (1, 8), 2, 3, ("tensor", "tensor"), splits=splits, blocks=blocks, cluster=cluster
    )
    plan = SpecializedPlan(product, schedule)
    check(plan, SHARED_BYTES)
    kernels = CudaKernels(plan, cuda_text(plan))
    compare(operator, kernels, 3)
    check_counts(kernels)
    assert kernels.kernel_counters["product_kernel"].multicast_bytes > 0


@needs_compiler
@pytest.mark.parametrize("target", ["wgmma_f16_f16", "wgmma_s8"])
def test_parts_of_any_sums_are_added(target: str) -> None:
    words = "gemm m=133 n=75 k=264" + " dtype=int8" * (target == "wgmma_s8")
    operator, product = lowered(words, target, "fused")
    schedule = SpecializedSchedule(2, (1, 4), 2, 4, ("threads", "bulk"), streamed=True, blocks=4)
    plan = SpecializedPlan(product, schedule)
    check(plan, SHARED_BYTES)
    assert plan.order.streamed_parts == 4
    kernels = CudaKernels(plan, cuda_text(plan))
    compare(operator, kernels, 3)
    check_counts(kernels)


@needs_compiler
@pytest.mark.parametrize("groups", [2, 3])
@pytest.mark.parametrize("in_registers", [False, True])
def test_groups_take_turns(groups: int, in_registers: bool) -> None:
    """One block computes more tiles than there are groups, of which each has several stages."""
    operator, product = lowered("gemm m=300 n=40 k=200", "wgmma_f16", "in_place_padded")
    schedule = SpecializedSchedule(
        groups, (1, 5), 2, 3, ("tensor", "tensor"), blocks=1, in_registers=in_registers,
        alternating=True,
    )  # fmt: skip
    plan = SpecializedPlan(product, schedule)
    check(plan, SHARED_BYTES)
    kernels = CudaKernels(plan, cuda_text(plan))
    compare(operator, kernels, 3)
    check_counts(kernels)


@needs_compiler
def test_workers_have_shares_of_the_traffic() -> None:
    """Counted one by one, their work is that of the kernel, and the emulator's."""
    _, product = lowered(
        "conv2d n=2 c=32 h=9 w=9 k=40 r=3 s=3 pad=1 layout=NHWC", "wgmma_f16", "fused"
    )
    schedule = SpecializedSchedule(1, (1, 3), 2, 3, ("tensor", "tensor"), blocks=3)
    plan = SpecializedPlan(product, schedule)
    kernels = CudaKernels(plan, cuda_text(plan))
    total = Counter[str]()
    for worker in range(plan.order.workers):
        share, counters = traffic(plan, [worker]), kernels.count([worker])
        assert share.stored_bytes == counters.global_store_bytes
        assert share.matrix_wavefronts == counters.wgmma_wavefronts
        items = list(plan.order.items(worker))
        assert count_reads(plan, items) == (counters.bulk_load_bytes, counters.bulk_load_sectors)
        total.update(asdict(share))
    # Each rounds its bytes up to sectors.
    del total["stored_sectors"]
    assert total == Counter({name: n for name, n in asdict(traffic(plan)).items() if name in total})


STORED = {
    "float16": Epilogue("float16", bias=True, relu=True),
    "float32": Epilogue("float32", scale=True, bias=True),
    "bfloat16": Epilogue("bfloat16", bias=True),
    "int8": Epilogue("int8", scale=True, bias=True),
    "clipped": Epilogue("int8", scale=True, clip=(-5, 40)),
}


@needs_compiler
@pytest.mark.quick(7)
@pytest.mark.parametrize("target", ["wgmma_f16", "wgmma_s8", "mma_f16", "mma_s8"])
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("stored", STORED)
def test_results_are_stored_by_their_epilogue(stored: str, layout: str, target: str) -> None:
    words = f"conv2d n=1 c=32 h=9 w=8 k=24 r=3 s=3 pad=1 layout={layout}"
    epilogue = STORED[stored]
    if epilogue.is_requantized and not target.endswith("s8"):
        pytest.skip("zero points, and clipping, are of integers")
    operator, product = lowered(words, target, "fused", 0, epilogue)
    plan = random_plan(random.Random(f"{stored} {layout} {target}"), product)
    compare(operator, CudaKernels(plan, cuda_text(plan)), 5)


@pytest.mark.slow
@needs_nvcc
@pytest.mark.parametrize("cluster", [(1, 1), (2, 1)])
@pytest.mark.parametrize("alternating", [False, True])
def test_the_main_loop_waits_for_stages_alone(
    cluster: tuple[int, int], alternating: bool, tmp_path: Path
) -> None:
    """Between products is no memory barrier, and descriptors stay in uniform registers."""
    _, product = lowered("gemm m=8192 n=8192 k=8192", "wgmma_f16", "fused")
    schedule = SpecializedSchedule(
        2, (1, 32), 4, 4, ("tensor", "tensor"), blocks=132, cluster=cluster,
        alternating=alternating,
    )  # fmt: skip
    text, cubin = tmp_path / "kernel.cu", tmp_path / "kernel.cubin"
    text.write_text(cuda_text(SpecializedPlan(product, schedule)).source)
    options = ["-cubin", "-arch=sm_90a", "-std=c++17", "-O3", "-o", str(cubin)]
    subprocess.run(["nvcc", *options, str(text)], check=True, capture_output=True)
    names = opcodes(cubin)["product_kernel"]
    products = [place for place, name in enumerate(names) if name.startswith("HGMMA")]
    loop = names[products[0] : products[-1]]
    assert len(products) >= 4
    assert not [name for name in loop if name.startswith(("MEMBAR", "ERRBAR", "CCTL", "R2UR"))]


@pytest.mark.slow
@needs_nvcc
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", WORKLOADS)
def test_nvcc_compiles_kernels_without_a_warning(name: str, target: str, tmp_path: Path) -> None:
    _, plan = plan_of(name, target, "fused")
    text = tmp_path / "kernel.cu"
    text.write_text(cuda_text(plan).source)
    architectures = ["sm_90a"] if target.startswith("wgmma") else ["sm_90", "sm_120"]
    if target == "mma_f8":
        # On sm_90 they are conversions, for which there are not enough registers.
        architectures.remove("sm_90")
    for architecture in architectures:
        _compile(text, architecture, plan)


def _compile(text: Path, architecture: str, plan: SpecializedPlan) -> None:
    options = ["-cubin", f"-arch={architecture}", "-std=c++17", "-O3", "-Xptxas", "-v"]
    done = subprocess.run(
        ["nvcc", *options, "-o", str(text.with_suffix(".cubin")), str(text)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    # TVM defines functions of half that a kernel may not use.
    warnings = [line for line in done.stderr.splitlines() if "warning #" in line]
    unused = [line for line in warnings if "was declared but never referenced" in line]
    assert warnings == unused, plan.schedule
    # C7508, C7510 and their like: registers that are not passed on, products that wait.
    assert "Potential Performance Loss" not in done.stderr
    assert not re.search(r"[1-9]\d* bytes (stack|spill)", done.stderr), plan.schedule


@needs_compiler
@pytest.mark.parametrize(
    "warps, tile, depth", [((2, 2), (2, 4), 4), ((1, 1), (4, 8), 2), ((4, 2), (2, 8), 2)]
)
def test_warps_transpose_what_is_contiguous_along_rows(
    warps: tuple[int, int], tile: tuple[int, int], depth: int
) -> None:
    """Images of one block of 64 rows and of several, of both factors where they are."""
    words = "gemm m=192 n=144 k=160 trans_a=1"
    operator, product = lowered(words, "mma_f16", "in_place_padded")
    block = warps[0] * tile[0], warps[1] * tile[1]
    layouts = [
        [view.major for view in product.views(number, block[number], depth)].index("mn")
        for number in range(2)
    ]
    schedule = SpecializedSchedule(
        1, tile, depth, 3, ("tensor", "tensor"), blocks=2, layouts=(layouts[0], layouts[1]),
        warps=warps,
    )  # fmt: skip
    plan = SpecializedPlan(product, schedule)
    check(plan, SHARED_BYTES_SM_120)
    kernels = CudaKernels(plan, cuda_text(plan))
    assert kernels.text.source.count("cpembed_ldmatrix_x4_trans") > 1
    compare(operator, kernels, 3)
    check_counts(kernels)


ODD_DEPTHS = {
    "one stage": ("gemm m=70 n=40 k=16", {}),
    "two stages": ("gemm m=70 n=40 k=32", {}),
    "ranges of stages": ("gemm m=70 n=40 k=80", {"streamed": True, "blocks": 4}),
    "parts of a sum": ("gemm m=70 n=40 k=80", {"splits": 2, "blocks": 3}),
    "few channels": ("conv2d n=2 c=48 h=9 w=9 k=40 r=3 s=3 pad=1 layout=NHWC", {"blocks": 3}),
}


@needs_compiler
@pytest.mark.quick(2)
@pytest.mark.parametrize("name", ODD_DEPTHS)
def test_stages_of_warps_may_have_an_odd_depth(name: str) -> None:
    """They begin with either set of fragments, whatever the number of stages of a work item is."""
    words, changes = ODD_DEPTHS[name]
    operator, product = lowered(words, "mma_f16", "fused")
    schedule = SpecializedSchedule(1, (2, 4), 1, 3, ("tensor", "tensor"), warps=(2, 1))
    plan = SpecializedPlan(product, replace(schedule, **changes))
    check(plan, SHARED_BYTES_SM_120)
    kernels = CudaKernels(plan, cuda_text(plan))
    compare(operator, kernels, 3)
    check_counts(kernels)


STORED_BY_TMA = {
    "words": ("wgmma_f16", None, {"store_buffers": 2}),
    "bias": ("wgmma_f16", Epilogue("float16", bias=True, relu=True), {"store_buffers": 1}),
    "bits": ("mma_bf16", Epilogue("bfloat16", scale=True), {"store_buffers": 1}),
    "integers": ("wgmma_s8", Epilogue("int32", bias=True), {"store_buffers": 1, "groups": 2}),
    "halves": ("wgmma_f16_f16", None, {"store_buffers": 1, "streamed": True}),
    "turns": ("wgmma_f16", None, {"groups": 2, "store_buffers": 2, "alternating": True}),
}


@needs_compiler
@pytest.mark.quick(3)
@pytest.mark.parametrize("name", STORED_BY_TMA)
def test_tma_stores_results(name: str) -> None:
    """Rows and columns of the last boxes are beyond the result, and are not stored."""
    target, epilogue, changes = STORED_BY_TMA[name]
    operator, product = lowered(
        "gemm m=150 n=200 k=192" + " dtype=int8" * (target == "wgmma_s8"), target, "fused", 0,
        epilogue,
    )  # fmt: skip
    schedule = SpecializedSchedule(1, (1, 8), 2, 3, ("tensor", "bulk"), blocks=2)
    if target.startswith("mma"):
        schedule = replace(schedule, tile=(2, 4), warps=(2, 2))
    plan = SpecializedPlan(product, replace(schedule, **changes))
    check(plan, SHARED_BYTES)
    kernels = CudaKernels(plan, cuda_text(plan))
    compare(operator, kernels, 3)
    counters, expected = kernels.kernel_counters["product_kernel"], traffic(plan)
    assert counters.shared_store_wavefronts == expected.shared_store_wavefronts
    assert counters.shared_store_wavefronts == counters.shared_store_wavefronts_least
    assert counters.shared_load_wavefronts == expected.shared_load_wavefronts
    assert counters.bulk_store_bytes + counters.global_store_bytes == expected.stored_bytes
