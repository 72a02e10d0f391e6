"""Tensor Core kernels, generated and run by the executor, beside the reference: every family of
operators, every kind of instruction, integers bit for bit; and what is broken fails."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import numpy as np
import pytest

from cpembed.codegen.epilogue import RESIDUAL, Epilogue, Residual, channel_numbers
from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.solve import solve
from cpembed.errors import CpembedError, LoweringError
from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import dtype_info
from cpembed.ir.reference import random_inputs, reference
from cpembed.runtime.measurement.verification import Expected
from cpembed.runtime.measurement.verification_data import exact_data
from cpembed.targets.cuda import results
from cpembed.targets.cuda.build import CudaKernels, cuda_text
from cpembed.targets.cuda.emulator.executor import Order
from cpembed.targets.cuda.lane_places import place
from cpembed.targets.cuda.lower import lower
from cpembed.targets.cuda.multistage.reads import count_reads
from cpembed.targets.cuda.multistage.schedule import KernelSchedule, Plan, check
from cpembed.targets.cuda.multistage.traffic import traffic
from tests.running import exact_inputs
from tests.unit.targets.cuda.emulator.running import needs_compiler

pytestmark = needs_compiler

SHARED_BYTES = 166_912
"""Of a block on sm_80: CUDA C++ Programming Guide, technical specifications."""

WORKLOADS = {
    "gemm": "gemm m=40 n=24 k=80",
    "ragged gemm": "gemm m=33 n=19 k=50",
    "batched": "batched_gemm b=3 m=20 n=24 k=48",
    "conv1d": "conv1d n=2 c=32 w=20 k=24 s=3 pad=1 layout=NWC",
    "conv2d": "conv2d n=1 c=32 h=9 w=9 k=40 r=3 s=3 pad=1 layout=NHWC",
    "channels first": "conv2d n=2 c=32 h=8 w=8 k=24 r=3 s=3 pad=1",
    "strided": "conv2d n=1 c=32 h=11 w=11 k=16 r=3 s=3 pad=1 stride=2 layout=NHWC",
    "dilated": "conv2d n=1 c=32 h=10 w=10 k=16 r=3 s=3 pad=2 dilation=2 layout=NHWC",
    "few channels": "conv2d n=1 c=3 h=12 w=12 k=16 r=3 s=3 pad=1 stride=2 layout=NHWC",
    "grouped": "conv2d n=1 c=64 h=7 w=7 k=32 r=3 s=3 pad=1 groups=2 layout=NHWC",
    "transposed": "transposed_conv2d n=1 c=32 h=5 w=5 k=16 r=3 s=3 pad=1 stride=2",
    "in blocks": "conv2d n=1 c=64 h=8 w=8 k=32 r=3 s=3 pad=1 layout=NCHW16c",
    "depthwise": "depthwise n=1 c=4 m=16 h=9 w=9 r=3 s=3 pad=1 layout=NHWC",
    "capsules": "capsule_conv2d n=1 c=16 h=6 w=6 k=8 r=3 s=3 u=8",
    "conv3d": "conv3d n=1 c=16 d=4 h=5 w=5 k=16 t=3 r=3 s=3 pad=1 layout=NDHWC",
    "filters per image": "batched_conv2d n=2 c=32 h=6 w=6 k=16 r=3 s=3 pad=1",
}

TARGETS = (
    *("mma_f16", "mma_f16_f16", "mma_bf16", "mma_s8", "mma_f8", "mma_f8_f16"),
    *("wmma_f16", "wmma_f16_32x8x16", "wmma_f16_8x32x16", "wmma_f16_f16", "wmma_bf16", "wmma_s8"),
)

SETS = ("in_place_padded", "fused", "complete")


def schedule_for(rng: random.Random) -> KernelSchedule:
    return KernelSchedule(
        rng.choice(((1, 1), (1, 2), (2, 1), (2, 2))),
        rng.choice(((1, 1), (2, 1), (1, 2), (2, 4), (1, 3))),
        rng.choice((1, 2, 4)),
        rng.choice((2, 3, 4)),
        rng.choice((1, 2)),
        rng.choice((1, 1, 2, 3)),
    )


def kernels(
    given: Computation, target: str, constraints: str, schedule: KernelSchedule, number: int = 0,
    epilogue: Epilogue | None = None,
) -> CudaKernels:  # fmt: skip
    """Those of a candidate; skips where nothing embeds."""
    spec = hardware_spec(target)
    found = solve(given, spec, constraints=constraints, top=number + 1).embeddings
    if not found:
        pytest.skip(f"{given.name} has no embedding of {target} under {constraints}")
    program = found[min(number, len(found) - 1)].candidate.program
    product = lower(program, spec, epilogue)
    layouts = (len(product.first) - 1, 0) if number % 2 else (0, 0)
    plan = Plan(product, replace(schedule, layouts=layouts))
    if any(tile.transposed and tile.chunks & (tile.chunks - 1) for tile in plan.shared_tiles):
        # Rows that are transposed when they are loaded are a power of two of chunks.
        plan = Plan(product, replace(plan.schedule, tile=(plan.schedule.tile[0], 2)))
    check(plan, SHARED_BYTES)
    return CudaKernels(plan, cuda_text(plan, "sm_80"))


def compare(given: Computation, made: CudaKernels, seed: int) -> None:
    inputs = random_inputs(given, seed)
    expected = Expected(given, inputs)
    epilogue = made.plan.product.epilogue
    vectors = expected.vectors(epilogue, seed)
    for order in (Order.REVERSE, Order.FORWARD):
        found = made.run({**inputs, **vectors}, order)
        assert expected.judge_stored(found, epilogue, vectors).verified, (given, order)
    exact = exact_data(given, seed)
    if exact is not None:
        found = made.run({**exact, **vectors})
        assert Expected(given, exact).judge_stored(found, epilogue, vectors).verified, given


@pytest.mark.quick(32)
@pytest.mark.parametrize("constraints", SETS)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", WORKLOADS)
def test_kernels_compute_the_workload(name: str, target: str, constraints: str) -> None:
    rng = random.Random(f"{name} {target} {constraints}")
    given = workload(WORKLOADS[name], target=hardware_spec(target))
    made = kernels(given, target, constraints, schedule_for(rng), rng.randrange(3))
    compare(given, made, rng.randrange(1 << 30))
    check_counts(made)


def check_counts(made: CudaKernels) -> None:
    """What the executor counted is what the schedule says."""
    found, expected = made.kernel_counters["product_kernel"], traffic(made.plan)
    assert sum(found.mma.values()) == expected.products
    assert found.shared_load_wavefronts == expected.shared_load_wavefronts
    assert found.shared_store_wavefronts == expected.shared_store_wavefronts
    assert (found.global_load_bytes, found.global_load_sectors) == count_reads(made.plan)
    assert found.global_store_bytes == expected.stored_bytes
    assert found.ldmatrix_wavefronts == sum(
        int(name.split(".x")[1][0]) * count
        for name, count in found.instructions.items()
        if name.startswith("ldmatrix.")
    )


STORED = {
    "float16": Epilogue("float16", bias=True, relu=True),
    "float32": Epilogue("float32", scale=True, bias=True),
    "bfloat16": Epilogue("bfloat16", bias=True),
    "int8": Epilogue("int8", scale=True, bias=True),
    "uint8": Epilogue("uint8", scale=True, bias=True),
    "moved": Epilogue("uint8", scale=True, bias=True, zero_point=7),
    "clipped": Epilogue("int8", scale=True, clip=(-5, 40)),
}


@pytest.mark.quick(16)
@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("target", ["mma_f16", "mma_s8", "wmma_s8", "mma_bf16"])
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("stored", STORED)
def test_results_are_stored_as_asked(stored: str, layout: str, target: str, splits: int) -> None:
    words = f"conv2d n=1 c=32 h=9 w=8 k=24 r=3 s=3 pad=1 layout={layout}"
    given = workload(words, target=hardware_spec(target))
    schedule = KernelSchedule((2, 1), (1, 2), 2, 3, splits=splits)
    epilogue = STORED[stored]
    if epilogue.is_requantized and given.output.dtype != "int32":
        pytest.skip("zero points, and clipping, are of integers")
    made = kernels(given, target, "fused", schedule, epilogue=epilogue)
    compare(given, made, 5)


RESIDUALS = {
    "floats": (
        "mma_f16",
        Epilogue("float32", scale=True, bias=True, residual=Residual("float32", relu=True)),
    ),
    "bytes": (
        "mma_s8",
        Epilogue("uint8", scale=True, bias=True, zero_point=3, residual=Residual(
            "int8", own_scale=0.75, scale=0.5, zero_point=-4, stored_zero_point=9, clip=(5, 250)
        )),
    ),
    "not rounded": (
        "wmma_s8",
        Epilogue("int8", scale=True, residual=Residual("uint8", own_scale=0.9, scale=0.25,
                                                       zero_point=7, rounds=False)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("name", RESIDUALS)
def test_a_residual_is_added(name: str, layout: str, splits: int) -> None:
    target, epilogue = RESIDUALS[name]
    words = f"conv2d n=1 c=32 h=7 w=8 k=24 r=3 s=3 pad=1 layout={layout}"
    given = workload(words, target=hardware_spec(target))
    schedule = KernelSchedule((2, 1), (1, 2), 1, 3, splits=splits)
    made = kernels(given, target, "fused", schedule, epilogue=epilogue)
    inputs = exact_inputs(given, 7)
    vectors = Expected(given, inputs).vectors(epilogue, 7)
    rng, residual = np.random.default_rng(7), epilogue.residual
    assert residual is not None
    low, high = (-8, 8) if residual.dtype == "float32" else dtype_info(residual.dtype).integer_range
    other = rng.integers(low, high, given.output.shape).astype(residual.dtype)
    flat = {vector: array.reshape(-1) for vector, array in vectors.items()}
    expected = epilogue.apply(reference(given, inputs), flat, channel_numbers(given), other)
    for order in (Order.REVERSE, Order.FORWARD):
        found = made.run({**inputs, **vectors, RESIDUAL: other}, order)
        if residual.dtype == "float32":
            np.testing.assert_allclose(found, expected, 1e-6, 1e-5)
        else:
            np.testing.assert_array_equal(found, expected)
    assert len(np.unique(expected)) > 20


def test_fused_multiply_adds_of_other_kernels_stay_tvms() -> None:
    target, epilogue = RESIDUALS["not rounded"]
    given = workload("gemm m=16 n=16 k=16", target=hardware_spec(target))
    schedule = KernelSchedule((1, 1), (1, 1), 1, 2)
    text = kernels(given, target, "fused", schedule, epilogue=epilogue).text
    assert "__fmaf_rn" in text.source
    from tvm.ir import Op

    assert Op.get("tirx.fma").get_attr("cuda.FLowerIntrinsic") is None


GEMM = "gemm m=64 n=64 k=256"
PADDED = "conv2d n=1 c=64 h=9 w=9 k=40 r=3 s=3 pad=1 layout=NHWC"

MUTATIONS = {
    "a dropped barrier": (GEMM, "tvm_builtin_cuda_cta_sync();\n", "\n"),
    "a missing wait": (GEMM, "cpembed_cp_async_wait_1();", ";"),
    "a wait for too little": (GEMM, "cpembed_cp_async_wait_1();", "cpembed_cp_async_wait_3();"),
    "a stage read twice": (GEMM, r"reading_ptr\[0\] \+ \d+\)", "reading_ptr[0] + 0)"),
    "a stage filled while it is read": (GEMM, r"filling_ptr\[0\] = reading_ptr\[0\];", ";"),
    "fragments of the same depth again": (GEMM, r"\^ 32\)", "^ 0)"),
    "a fragment multiplied before it is loaded": (GEMM, r"first_ptr\[4\]\)\), \(&\(shared",
                                                  "first_ptr[0])), (&(shared"),
    "a tap that stays": (PADDED, r"(A_digits_ptr\[1\]) = \(\1 \+ A_carry_0_ptr\[0\]\);", ";"),
    "a mask that is not read": (PADDED, r"\w+\[0\] & (\w+\[0\]\) == 0)", r"0 & \1"),
    "an address without its carry": (PADDED, r"\? -?\d+ : 0\)\);\n", "? 0 : 0));\n"),
}  # fmt: skip


def broken(made: CudaKernels, old: str, new: str) -> CudaKernels:
    at = made.text.source.index("product_kernel(", made.text.source.rindex("__global__"))
    head, body = made.text.source[:at], made.text.source[at:]
    changed, count = re.subn(old if "\\" in old else re.escape(old), new, body)
    assert count
    return CudaKernels(made.plan, replace(made.text, source=head + changed))


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_what_is_broken_fails(mutation: str) -> None:
    words, old, new = MUTATIONS[mutation]
    given = workload(words, target=hardware_spec("mma_f16"))
    # Enough products that stages share their statements.
    made = kernels(given, "mma_f16", "in_place_padded", KernelSchedule((2, 2), (4, 4), 2, 3))
    compare(given, made, 3)
    wrong = broken(made, old, new)
    with pytest.raises((CpembedError, AssertionError)):
        compare(given, wrong, 3)


def test_a_wrong_lane_map_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows and columns of a lane's sums exchanged within a group of lanes."""

    def wrong(fragment: str, element: int) -> tuple[str, str]:
        row, column = place(fragment, element)
        return row, f"{6 + 2 * (element % 2)} - ({column})"

    given = workload(GEMM, target=hardware_spec("mma_f16"))
    schedule = KernelSchedule((2, 2), (1, 2), 2, 3)
    monkeypatch.setattr(results, "place", wrong)
    made = kernels(given, "mma_f16", "in_place_padded", schedule)
    with pytest.raises(AssertionError):
        compare(given, made, 3)


def test_counts_are_those_of_the_schedule() -> None:
    """And aligned accesses take the fewest sectors."""
    given = workload(GEMM, target=hardware_spec("mma_f16"))
    made = kernels(given, "mma_f16", "in_place_padded", KernelSchedule((2, 2), (1, 2), 2, 3))
    compare(given, made, 4)
    check_counts(made)
    found = made.kernel_counters["product_kernel"]
    assert sum(found.mma.values()) == (64 // 16) * (64 // 8) * (256 // 16)
    assert found.global_load_sectors == found.global_load_sectors_least
    assert found.global_store_sectors == found.global_store_sectors_least


def test_schedules_that_do_not_fit_are_refused() -> None:
    given = workload(GEMM, target=hardware_spec("mma_f16"))
    made = kernels(given, "mma_f16", "in_place_padded", KernelSchedule((1, 1), (1, 1), 1, 2))
    for wrong in (
        KernelSchedule((8, 8), (1, 1)),
        KernelSchedule((1, 1), (8, 16)),
        KernelSchedule((2, 2), (4, 8), 4, 8),
        KernelSchedule((1, 1), (1, 1), 3),
        KernelSchedule((1, 1), (1, 1), 1, 1),
        KernelSchedule((1, 1), (1, 1), layouts=(5, 0)),
    ):
        with pytest.raises(LoweringError):
            check(Plan(made.plan.product, wrong), SHARED_BYTES)


def test_sums_do_not_depend_on_the_split() -> None:
    given = workload(GEMM, target=hardware_spec("mma_s8"))
    inputs = random_inputs(given, 8)
    results = [
        kernels(given, "mma_s8", "in_place_padded", KernelSchedule((1, 2), (2, 2), splits=n))
        .run(inputs)
        for n in (1, 2, 4)
    ]  # fmt: skip
    assert all(np.array_equal(results[0], other) for other in results[1:])
