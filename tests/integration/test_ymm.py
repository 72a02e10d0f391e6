"""Kernels on 256-bit registers, what CPUs without AVX-512 have: exact, and with no wider one."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import subprocess
import sys

import numpy as np
import pytest

from cpembed.codegen.host_cpu import HIDE_VARIABLE
from cpembed.codegen.plan import Knobs
from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.solve import solve
from cpembed.errors import LoweringError, WorkloadError
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.dtypes import numpy_dtype
from cpembed.targets.cpu.target import build, schedule_space
from tests.features import needs
from tests.random_workloads import layer
from tests.running import check_candidates, check_schedules

BACK_ENDS = {
    "avx_vnni": ("x86.avx_vnni", "vpdpbusd", "gemm m=32 n=32 k=128"),
    "avx_vnni_dot": ("x86.avx_vnni_rows", "vpdpbusd", "gemm m=32 n=3 k=128"),
    "avx2_int8": ("x86.avx2_madd", "vpmaddwd", "gemm m=32 n=32 k=128"),
    "avx2_int16": ("x86.avx2_madd_words", "vpmaddwd", "gemm m=32 n=32 k=128"),
    "avx2_int7": ("x86.avx2_maddubs", "vpmaddubsw", "gemm m=32 n=32 k=128"),
    "avx2_lanes": ("x86.avx2", "vpmaddwd", "depthwise n=1 c=16 h=9 w=9 r=3 s=3 layout=NHWC"),
    "avx2_f32": ("x86.avx2_fma", "vfmadd231ps", "gemm m=32 n=32 k=128"),
    "avx2_f32_dot": ("x86.avx2_fma_rows", "vfmadd231ps", "gemm m=32 n=3 k=128"),
    "avx2_f32_lanes": (
        "x86.avx2_fma_lanes",
        "vfmadd231ps",
        "depthwise n=1 c=16 h=9 w=9 r=3 s=3 layout=NHWC",
    ),
    "avx2_bf16_outer": ("x86.avx2_fma_widened", "vfmadd231ps", "gemm m=32 n=32 k=128"),
    "avx2_bf16_fma": (
        "x86.avx2_widened_lanes",
        "vfmadd231ps",
        "depthwise n=1 c=16 h=9 w=9 r=3 s=3 layout=NHWC",
    ),
}

TYPES = {
    "avx2_int8": [f"dtype={a}int8,{b}int8" for a, b in itertools.product(("", "u"), repeat=2)],
    "avx2_int16": [f"dtype=int16,{second}" for second in ("int8", "uint8", "int16")],
    "avx2_int7": ["dtype=uint7,int8", "dtype=uint8,int7", "dtype=uint7,int7"],
}

TARGETS = [pytest.param(hardware_spec(name), id=name, marks=needs(name)) for name in BACK_ENDS]

COLUMNS = [
    "conv2d n=1 c=5 h=9 w=7 k=13 r=3 s=3 pad=1",
    "conv2d n=2 c=8 h=6 w=6 k=48 r=1 s=1 layout=NHWC",
    "conv2d n=1 c=32 h=6 w=6 k=48 r=3 s=3 pad=1 layout=NCHW16c",
    "gemm m=19 n=33 k=70",
]
ROWS = ["gemm m=33 n=1 k=256", "gemm m=1 n=40 k=64", "gemm m=5 n=3 k=100"]
DEPTHWISE = [
    "depthwise n=1 c=32 h=9 w=11 r=3 s=3 pad=1",
    "depthwise n=2 c=37 h=12 w=7 r=5 s=3 stride=2 layout=NHWC",
]
LAYERS = {
    "avx_vnni": COLUMNS,
    "avx2_int8": COLUMNS,
    "avx2_int16": COLUMNS,
    "avx2_int7": COLUMNS,
    "avx_vnni_dot": ROWS,
    "avx2_lanes": DEPTHWISE,
    "avx2_f32": COLUMNS,
    "avx2_f32_dot": ROWS,
    "avx2_f32_lanes": DEPTHWISE,
    "avx2_bf16_outer": COLUMNS,
    "avx2_bf16_fma": DEPTHWISE,
}
ALONG_LANES = ("avx2_lanes", "avx2_f32_lanes", "avx2_bf16_fma")


@pytest.mark.quick(1)
@pytest.mark.parametrize("threads", ["1", "3"])
@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("spec", TARGETS)
def test_kernels_compute_the_workload(
    spec: HardwareSpec, number: int, threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", threads)
    words = LAYERS[spec.name][number % len(LAYERS[spec.name])]
    check_candidates(words, spec, BACK_ENDS[spec.name][0])


@pytest.mark.quick(3)
@pytest.mark.parametrize("seed", range(200))
@pytest.mark.parametrize("spec", TARGETS[:1])
def test_two_hundred_random_layers_are_exact(spec: HardwareSpec, seed: int) -> None:
    check_random_layer(spec, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("spec", TARGETS[1:])
def test_random_layers_are_exact(spec: HardwareSpec, seed: int) -> None:
    check_random_layer(spec, seed)


def check_random_layer(spec: HardwareSpec, seed: int) -> None:
    """On some schedules, the last of them with a random epilogue as well."""
    rng = random.Random(f"{spec.name} {seed}")
    words = layer(rng, along_lanes=spec.name in ALONG_LANES)
    check_schedules(f"{words} {rng.choice(TYPES.get(spec.name, ['']))}", spec, rng, 1)


@pytest.mark.quick(3)
@pytest.mark.parametrize("spec", TARGETS)
def test_the_instruction_is_used_and_no_register_is_wider(spec: HardwareSpec) -> None:
    backend, instruction, words = BACK_ENDS[spec.name]
    given = workload(words, target=spec)
    program = (
        solve(given, spec, constraints="in_place_padded", top=1).embeddings[0].candidate.program
    )
    kernel = build(program, spec, backend="native")
    assert kernel.backend == backend
    text = kernel.assembly()
    assert re.search(rf"\b{instruction}\b.*%ymm", text)
    # Without AVX-512 there are sixteen registers, and no mask.
    assert not re.search(r"%zmm|%ymm(1[6-9]|2\d|3\d)|%k[0-7]", text)


@pytest.mark.parametrize("spec", TARGETS)
def test_blocks_fit_sixteen_registers(spec: HardwareSpec) -> None:
    given = workload(BACK_ENDS[spec.name][2].replace("h=9 w=9", "h=40 w=40"), target=spec)
    program = (
        solve(given, spec, constraints="in_place_padded", top=1).embeddings[0].candidate.program
    )
    space = schedule_space(program, spec)
    for _, knobs in space.ranked():
        rows, columns = space.model.sides(space.nest, knobs)
        assert rows * columns < 15
    with pytest.raises(LoweringError, match="does not fit the registers"):
        space.applied(Knobs({space.model.rows(space.nest)[-1].origin: 17}))


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "types, first, second", [("uint7,int8", 127, -128), ("uint8,int7", 255, -64)]
)
def test_the_largest_products_do_not_saturate(types: str, first: int, second: int) -> None:
    spec = hardware_spec("avx2_int7")
    given = workload(f"gemm m=9 n=16 k=64 dtype={types}", target=spec)
    program = (
        solve(given, spec, constraints="in_place_padded", top=1).embeddings[0].candidate.program
    )
    kernel = build(program, spec)
    inputs = {
        operand.name: np.full(operand.shape, value, numpy_dtype(operand.dtype))
        for operand, value in zip(given.inputs, (first, second), strict=True)
    }
    assert (kernel.run(inputs) == 64 * first * second).all()
    inputs["A"][3, 5] = first + 1 if first == 127 else 0
    inputs["B"][1, 2] = second - 1 if second == -64 else 0
    with pytest.raises(WorkloadError, match=r"holds values from .* is .* to .*: keep to these"):
        kernel.run(inputs)


def test_products_that_saturate_are_refused() -> None:
    spec = hardware_spec("avx2_int7")
    given = workload("gemm m=8 n=8 k=32 dtype=uint8,int8", target=spec)
    found = solve(given, spec, constraints="in_place_padded", top=1)
    program = found.embeddings[0].candidate.program
    with pytest.raises(LoweringError, match=r"saturates: two products .* add up to -65280"):
        schedule_space(program, spec)
    assert "take avx2_int8" in str(build(program, spec).fallback)


@pytest.mark.slow
@pytest.mark.parametrize("spec", TARGETS)
def test_a_cpu_without_avx512_runs_everything(spec: HardwareSpec) -> None:
    """Packing and unpacking included."""
    words = LAYERS[spec.name][0]
    command = f"run {words} --target {spec.name} --backend native --json"
    done = subprocess.run(
        [sys.executable, "-m", "cpembed", *command.split()],
        capture_output=True,
        text=True,
        env={**os.environ, HIDE_VARIABLE: "avx512f"},
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["backend"] == BACK_ENDS[spec.name][0]
    assert document["verified"]
