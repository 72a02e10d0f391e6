"""Products of float32 by fused multiply-adds on 512-bit registers: every operator, random layers,
and what the compiler makes of a block."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest

from cpembed.codegen.plan import Knobs
from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.run import run
from cpembed.driver.run_result import RunResult
from cpembed.driver.solve import solve
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.reference import random_inputs
from cpembed.runtime.measurement.verification import Expected
from cpembed.targets.cpu.target import build, schedule_space
from tests.features import needs
from tests.random_workloads import layer
from tests.running import check_candidates, check_schedules

COLUMNS = [
    "conv2d n=1 c=5 h=9 w=7 k=13 r=3 s=3 pad=1",
    "conv2d n=2 c=8 h=6 w=6 k=48 r=1 s=1 layout=NHWC",
    "conv2d n=1 c=32 h=6 w=6 k=48 r=3 s=3 pad=1 layout=NCHW16c",
    "conv2d n=1 c=16 h=9 w=9 k=32 r=3 s=3 groups=2 dilation=2 layout=NHWC",
    "conv1d n=2 c=6 w=20 k=40 s=5 stride=2 layout=NWC",
    "conv3d n=1 c=4 d=5 h=6 w=7 k=20 t=2 r=3 s=3 pad=1 layout=NDHWC",
    "transposed_conv2d n=1 c=8 h=5 w=6 k=24 r=3 s=3 stride=2",
    "batched_gemm b=3 m=7 n=40 k=9",
    "batched_gemm b=2 m=17 n=16 k=33 trans_a=1 trans_b=1",
    "gemm m=19 n=33 k=70",
    "conv2d n=1 c=6 h=8 w=10 k=20 r=1 s=1",
    "conv2d n=2 c=4 h=7 w=22 k=18 r=3 s=3",
]
CASES = {
    "avx512_f32": ("x86.fma", COLUMNS),
    "avx512_f32_dot": ("x86.fma_rows", ["gemm m=33 n=1 k=256", "gemm m=5 n=3 k=100"]),
    "avx512_f32_lanes": (
        "x86.fma_lanes",
        [
            "depthwise n=1 c=32 h=9 w=11 r=3 s=3 pad=1",
            "depthwise n=2 c=37 h=12 w=7 r=5 s=3 stride=2 layout=NHWC",
        ],
    ),
    "avx512_bf16_outer": ("x86.fma_widened", COLUMNS),
}
TARGETS = [pytest.param(hardware_spec(name), id=name, marks=needs(name)) for name in CASES]


@pytest.mark.quick(5)
@pytest.mark.parametrize("threads", ["1", "3"])
@pytest.mark.parametrize("number", range(len(COLUMNS)))
@pytest.mark.parametrize("spec", TARGETS)
def test_kernels_compute_the_workload(
    spec: HardwareSpec, number: int, threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", threads)
    backend, layers = CASES[spec.name]
    check_candidates(layers[number % len(layers)], spec, backend)


@pytest.mark.quick(3)
@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("spec", TARGETS)
def test_random_layers_are_exact(spec: HardwareSpec, seed: int) -> None:
    """On some schedules, the last of them with a random epilogue as well."""
    rng = random.Random(f"{spec.name} {seed}")
    check_schedules(layer(rng, along_lanes=spec.name == "avx512_f32_lanes"), spec, rng, 1)


@pytest.mark.quick(2)
@pytest.mark.parametrize("spec", TARGETS[:1])
@pytest.mark.parametrize("m, n, k", [(1, 1, 1), (2, 15, 1), (29, 17, 3), (6, 64, 1), (13, 100, 5)])
def test_no_tail_of_any_axis_is_left_out(spec: HardwareSpec, m: int, n: int, k: int) -> None:
    rng = random.Random(m * n * k)
    check_schedules(f"gemm m={m} n={n} k={k}", spec, rng, 2)


@pytest.mark.parametrize("spec", TARGETS[:1])
def test_a_sum_is_within_rounding_and_a_wrong_one_is_not(spec: HardwareSpec) -> None:
    given = workload("gemm m=20 n=40 k=300", target=spec)
    inputs = random_inputs(given, 1)
    expected = Expected(given, inputs)
    program = (
        solve(given, spec, constraints="in_place_padded", top=1).embeddings[0].candidate.program
    )
    found = build(program, spec, backend="native").run(inputs)
    assert expected.judge(found).verified
    found[3, 5] *= np.float32(1.001)
    assert not expected.judge(found).verified


@pytest.mark.parametrize("spec", [TARGETS[0], TARGETS[3]])
def test_a_block_stays_in_registers(spec: HardwareSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """14 x 2 accumulators and what they are multiplied by, in the innermost loop over a reduction:
    a product of each, a load of each row and column, and nothing put aside."""
    # On one thread the compiler writes a few of the products ahead of the loop.
    monkeypatch.setenv("TVM_NUM_THREADS", "2")
    given = workload("gemm m=28 n=64 k=200", target=spec)
    program = (
        solve(given, spec, constraints="in_place_padded", top=1).embeddings[0].candidate.program
    )
    kernel = build(program, spec, backend="native", knobs=Knobs({"m.o": 14, "n.o": 2}))
    bodies = re.split(r"^\.L\w+:", kernel.assembly(), flags=re.M)
    body = max(bodies, key=lambda text: len(re.findall("vfmadd231ps", text)))
    steps, rest = divmod(len(re.findall(r"vfmadd231ps\s.*%zmm", body)), 28)
    assert steps >= 1
    assert rest == 0
    loads = r"vbroadcastss\s.*\(" if spec.name == "avx512_f32" else r"vpbroadcastw\s.*\("
    assert len(re.findall(loads, body)) <= 14 * steps
    assert not re.search(r"%zmm\d+, -?\d*\(%rsp\)|\(%rsp\), %zmm", body)


@pytest.mark.parametrize("spec", TARGETS)
def test_blocks_fit_the_registers(spec: HardwareSpec) -> None:
    given = workload(CASES[spec.name][1][0], target=spec)
    program = (
        solve(given, spec, constraints="in_place_padded", top=1).embeddings[0].candidate.program
    )
    space = schedule_space(program, spec)
    for _, knobs in space.ranked():
        rows, columns = space.model.sides(space.nest, knobs)
        assert rows * columns < 31


@pytest.mark.parametrize("spec", TARGETS[:1])
@pytest.mark.parametrize(
    "words, target",
    [
        ("depthwise n=1 c=32 h=9 w=9 r=3 s=3 pad=1 layout=NHWC", "avx512_f32_lanes"),
        ("gemm m=64 n=1 k=256", "avx512_f32_dot"),
        ("gemm m=64 n=32 k=256", "avx512_f32"),
    ],
)
def test_what_an_outer_product_cannot_fill_goes_to_an_alternative(
    spec: HardwareSpec, words: str, target: str
) -> None:
    found = run(workload(words, target=spec), spec)
    assert isinstance(found, RunResult)
    assert found.solved.target.name == target
    assert found.verification is not None
    assert found.verification.verified
