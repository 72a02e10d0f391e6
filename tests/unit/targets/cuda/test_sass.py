"""Machine code of generated kernels: what ptxas makes of them, for each architecture."""

from __future__ import annotations

import math
import re
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.gpu.main_loop import compiled, kinds, main_loop, products_between
from cpembed.codegen.epilogue import Epilogue
from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.solve import solve
from cpembed.ir.dtypes import size_bytes
from cpembed.ir.reference import random_inputs
from cpembed.targets.cuda.build import CudaKernels, cuda_text
from cpembed.targets.cuda.lower import lower
from cpembed.targets.cuda.multistage.schedule import (
    UNROLLED_COPIES,
    UNROLLED_PRODUCTS,
    KernelSchedule,
    Plan,
    check,
)
from cpembed.targets.registry import open_target
from tests.unit.targets.cuda.emulator.running import needs_compiler, needs_nvcc
from tests.unit.targets.cuda.machine_code import opcodes

pytestmark = needs_nvcc

SHARED_BYTES = {"sm_80": 166_912, "sm_90": 232_448}
"""Of a block: CUDA C++ Programming Guide, technical specifications."""

LAYERS = {
    "gemm": "gemm m=256 n=256 k=512",
    "conv": "conv2d n=2 c=64 h=14 w=14 k=64 r=3 s=3 pad=1 layout=NHWC",
    "strided": "conv2d n=1 c=64 h=28 w=28 k=128 r=3 s=3 pad=1 stride=2 layout=NHWC",
    "many few channels": "conv2d n=16 c=3 h=224 w=224 k=64 r=7 s=7 pad=3 stride=2 layout=NHWC",
    "few channels": "conv2d n=1 c=3 h=32 w=32 k=64 r=7 s=7 pad=3 stride=2 layout=NHWC",
}

PRODUCTS = {
    "mma_f16": r"HMMA\.16816\.F32",
    "mma_f16_f16": r"HMMA\.16816\.F16",
    "mma_bf16": r"HMMA\.16816\.F32\.BF16",
    "mma_s8": r"IMMA\.16832\.S8\.S8",
}

STORED = {"mma_f16": "float16", "mma_f16_f16": "float16", "mma_bf16": "bfloat16", "mma_s8": "int32"}


@dataclass(frozen=True)
class Machine:
    """Of a kernel: ptxas's report, and its opcodes."""

    registers: int
    frame: int
    spills: int
    opcodes: Counter[str]

    def count(self, pattern: str) -> int:
        return sum(n for name, n in self.opcodes.items() if re.match(rf"{pattern}(\.|$)", name))


def machine_code(source: str, architecture: str, folder: Path) -> dict[str, Machine]:
    """By kernel."""
    text, cubin = folder / "kernel.cu", folder / "kernel.cubin"
    text.write_text(source)
    options = ["-cubin", f"-arch={architecture}", "-std=c++17", "-O3", "-Xptxas", "-v"]
    done = subprocess.run(
        ["nvcc", *options, "-o", str(cubin), str(text)], capture_output=True, text=True, check=True
    )
    found = {name: Counter(each) for name, each in opcodes(cubin).items()}
    reports = re.findall(
        r"Compiling entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, "
        r"(\d+) bytes spill loads.*?Used (\d+) registers",
        done.stderr,
        re.S,
    )
    return {
        name: Machine(int(used), int(frame), int(stores) + int(loads), found[name])
        for name, frame, stores, loads, used in reports
    }


def plan_of(
    name: str, target: str, schedule: KernelSchedule | None = None, number: int = 0
) -> Plan:
    """What the target chooses of a layer's candidate, or a schedule of it."""
    spec = hardware_spec(target)
    given = workload(LAYERS[name], target=spec)
    found = solve(given, spec, constraints="fused", top=number + 1).embeddings
    program = found[min(number, len(found) - 1)].candidate.program
    stored = STORED[target]
    epilogue = None if stored == given.output.dtype else Epilogue(stored)
    product = lower(program, spec, epilogue)
    if schedule is None:
        schedule = open_target(spec).space(product).best().schedule
    return Plan(product, schedule)


def products_of_a_step(plan: Plan) -> int:
    """Of a warp, in a stage."""
    rows, columns = plan.schedule.tile
    return rows * columns * plan.schedule.depth


def check_code(found: dict[str, Machine], plan: Plan, target: str) -> None:
    for name, code in found.items():
        assert code.frame == 0, name
        assert code.spills == 0, name
        assert code.count("LDL") == code.count("STL") == 0, name
    product = found["product_kernel"]
    # A compiler may copy the loop's body, and nothing else.
    products = product.count(PRODUCTS[target])
    assert products > 0
    assert products % products_of_a_step(plan) == 0
    assert product.count("[HI]MMA") == products
    assert product.count("LDSM") > 0
    widths = [o.length * size_bytes(o.layout.dtype) for o in (plan.first, plan.second)]
    assert (product.count("LDGSTS") > 0) == any(width >= 4 for width in widths)
    assert product.count("BAR.SYNC") >= 1


@pytest.mark.quick(4)
@pytest.mark.parametrize("architecture", SHARED_BYTES)
@pytest.mark.parametrize("target", PRODUCTS)
@pytest.mark.parametrize("name", LAYERS)
def test_default_kernels_multiply_on_tensor_cores_and_keep_sums_in_registers(
    name: str, target: str, architecture: str, tmp_path: Path
) -> None:
    plan = plan_of(name, target)
    found = machine_code(cuda_text(plan, architecture).source, architecture, tmp_path)
    check_code(found, plan, target)


SCHEDULES = (
    KernelSchedule((1, 1), (1, 1), 1, 2),
    KernelSchedule((2, 2), (1, 2), 2, 3),
    KernelSchedule((2, 2), (2, 3), 2, 3),
    KernelSchedule((2, 2), (4, 4), 2, 4, group=4, splits=2),
    KernelSchedule((2, 4), (4, 8), 2, 3),
    KernelSchedule((1, 2), (2, 8), 4, 4),
)


@pytest.mark.quick(2)
@pytest.mark.parametrize("target", ["mma_f16", "mma_s8"])
@pytest.mark.parametrize("number", [0, 3])
@pytest.mark.parametrize("name", ["gemm", "conv"])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_no_schedule_needs_local_memory(
    schedule: KernelSchedule, name: str, number: int, target: str, tmp_path: Path
) -> None:
    plan = plan_of(name, target, schedule, number)
    check(plan, SHARED_BYTES["sm_80"])
    check_code(machine_code(cuda_text(plan, "sm_80").source, "sm_80", tmp_path), plan, target)


@needs_compiler
@pytest.mark.quick(2)
@pytest.mark.parametrize("target", ["mma_f16", "mma_s8"])
@pytest.mark.parametrize(
    "schedule", [*SCHEDULES[1:3], KernelSchedule((2, 2), (4, 4), 2, 3)], ids=str
)
def test_products_in_machine_code_times_trips_are_those_executed(
    schedule: KernelSchedule, target: str, tmp_path: Path
) -> None:
    """There are two loops over the stages, one that copies and one for the last stages, and the
    products of both are executed by every warp once a stage.

    Where a stage has few products, a loop over turns of the ring, with a step for each stage, comes
    before the first, which does what is left.
    """
    plan = plan_of("conv", target, schedule)
    made = CudaKernels(plan, cuda_text(plan, "sm_80"))
    made.run(random_inputs(plan.product.program.unfused, 1))
    code = machine_code(made.text.source, "sm_80", tmp_path)["product_kernel"]
    stages, copying = schedule.stages, plan.steps - schedule.stages + 1
    steps = 2
    copies = sum(-(-tile.copies // schedule.threads) for tile in plan.shared_tiles)
    is_small = math.prod(schedule.tile) * schedule.depth <= UNROLLED_PRODUCTS
    if is_small and copies <= UNROLLED_COPIES and copying >= 2 * stages:
        steps = stages + 1 + (copying % stages > 0)
    assert code.count(PRODUCTS[target]) == steps * products_of_a_step(plan)
    rows, columns, batch, splits = plan.blocks
    warps = rows * columns * batch * splits * plan.schedule.warps[0] * plan.schedule.warps[1]
    executed = warps * plan.steps * products_of_a_step(plan)
    assert sum(made.counters.mma.values()) == executed


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", ["conv", "gemm"])
@pytest.mark.parametrize("depth", [2, 4, 1])
def test_fragments_are_loaded_a_depth_ahead(name: str, depth: int) -> None:
    """Products are between every load and its first use, across stages too; a single set of
    fragments would have none. And copies take few integer instructions."""
    schedule = KernelSchedule((2, 2), (4, 4), depth, 3)
    plan = plan_of(name, "mma_f16", schedule)
    code = compiled(cuda_text(plan, "sm_80").source, "sm_80")
    loop = main_loop(code.text)
    assert loop is not None
    distances = products_between(loop)
    counts = kinds(loop)
    assert len(distances) == counts["fragments"]
    # Of a single depth the loads follow the copies and the barrier.
    assert min(distances) >= (1 if depth == 1 else 5)
    # 112 to 152 on 32 products were counted before rows were located ahead of the loop.
    limit = {"conv": 40, "gemm": 32}[name] + 4 * depth
    assert counts["integer"] <= limit * counts["products"] / (16 * depth)


def test_a_kernel_whose_sums_leave_registers_is_noticed(tmp_path: Path) -> None:
    """An index that only the device knows puts an array into local memory."""
    plan = plan_of("gemm", "mma_f16", SCHEDULES[1])
    source = cuda_text(plan, "sm_80").source
    sums = "cpembed_mma_m16n8k16_f32_f16_f16((&(sums_ptr[0]))"
    assert sums in source
    moved = sums.replace("[0]", "[threadIdx.x & 1]")
    found = machine_code(source.replace(sums, moved), "sm_80", tmp_path)["product_kernel"]
    with pytest.raises(AssertionError):
        check_code({"product_kernel": found}, plan, "mma_f16")
