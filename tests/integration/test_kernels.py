"""Kernels against the reference: bit for bit in integers, within rounding in floats.

AMX kernels run on AMX where the CPU has it, else their machine code runs under the emulator of
``tests/emulation``.
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cpembed.codegen.plan import Knobs
from cpembed.embedding.embedding import Digit, Embedding
from cpembed.hw.loader import load_hardware_spec
from cpembed.ir.index import IndexExpr
from cpembed.targets.cpu.target import build, schedule_space
from cpembed.targets.x86.features import cpu_features, missing_features
from cpembed.transform.derive import derive
from cpembed.transform.program import DerivedProgram
from cpembed.workloads.convolutions import conv1d, conv2d, conv3d
from cpembed.workloads.einsum import gemm
from cpembed.workloads.suites import suite as shipped_suite
from tests.emulation.amx_cases import CASES, SLOW_CASES, STORED
from tests.features import needs
from tests.running import verify
from tests.unit.codegen.handwritten import conv2d_program, gemm_program

ROOT = Path(__file__).parents[2]
VNNI = load_hardware_spec("avx512_vnni")

needs_vnni = needs(VNNI)


def vnni_conv(*sizes: int, **options: Any) -> DerivedProgram:
    named = dict(zip("nchwkrs", sizes, strict=True))
    return conv2d_program(VNNI, sizes=named, **options)


VNNI_PROGRAMS = {
    "conv-3x3": lambda: vnni_conv(1, 16, 14, 14, 32, 3, 3, pad=1),
    "conv-prime-sizes": lambda: vnni_conv(1, 5, 11, 13, 37, 3, 3),
    "conv-stride-2-pad-3": lambda: vnni_conv(1, 3, 30, 30, 24, 7, 7, pad=3, stride=2),
    "conv-batch-3-dilation-2": lambda: vnni_conv(3, 8, 12, 12, 16, 3, 3, pad=2, dilation=2),
    "conv-planes-nchw": lambda: vnni_conv(2, 9, 9, 10, 20, 3, 3, pad=1, layout="NCHW"),
    "conv-1x1-one-pixel": lambda: vnni_conv(1, 64, 1, 1, 100, 1, 1),
    "gemm": lambda: gemm_program(VNNI, m=64, n=64, k=64),
    "gemm-prime-sizes": lambda: gemm_program(VNNI, m=29, n=83, k=131),
    "gemm-one-row": lambda: gemm_program(VNNI, m=1, n=48, k=20),
    "gemm-in-place": lambda: gemm_program(VNNI, m=32, n=32, k=32, in_place=True),
}


@pytest.mark.quick(4)
@needs_vnni
@pytest.mark.parametrize("name", VNNI_PROGRAMS)
def test_vnni_kernel_is_bit_exact(name: str) -> None:
    program = VNNI_PROGRAMS[name]()
    kernel = build(program, VNNI, backend="native")
    assert kernel.backend == "x86.vnni"
    assert "vpdpbusd" in kernel.assembly()
    assert verify(kernel, program.workload, seed=1).verified


@needs_vnni
def test_resnet_layer_is_bit_exact() -> None:
    program = vnni_conv(1, 64, 56, 56, 64, 3, 3, pad=1)
    assert verify(build(program, VNNI, backend="native"), program.workload, seed=2).verified


@needs_vnni
def test_every_knob_setting_gives_the_same_result() -> None:
    program = vnni_conv(1, 8, 9, 11, 48, 3, 3, pad=1)
    candidates = [knobs for _, knobs in schedule_space(program, VNNI).ranked()[::10]]
    assert len({str(knobs) for knobs in candidates}) >= 4
    candidates.append(Knobs({"k.o": 1}, cache_tiles={"k.o": 2}))
    for knobs in candidates:
        kernel = build(program, VNNI, backend="native", knobs=knobs)
        assert verify(kernel, program.workload, seed=1).verified, knobs


GENERIC = {
    "vta_1x16x16": {"rows": 1, "depth": 16, "dtype": "int8"},
    "vta_8x8x8": {"rows": 8, "depth": 8, "dtype": "int8"},
    "arm_sdot": {"depth": 4, "dtype": "int8"},
    "wmma_f16": {"rows": 16, "depth": 16, "dtype": "float16"},
    "amx_bf16": {"rows": 5, "depth": 32, "dtype": "bfloat16"},
    "avx512_vnni": {"depth": 4, "dtype": "uint8,int8"},
    "avx512_bf16": {"depth": 2, "dtype": "bfloat16"},
}


@pytest.mark.quick(1)
@pytest.mark.parametrize("target", GENERIC)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_generic_kernel_matches_the_reference_for_every_target(target: str, layout: str) -> None:
    spec = load_hardware_spec(target)
    sizes = {"n": 2, "c": 7, "h": 9, "w": 8, "k": 19, "r": 3, "s": 2}
    program = conv2d_program(spec, sizes=sizes, pad=1, layout=layout, **GENERIC[target])
    kernel = build(program, spec, backend="generic")
    assert kernel.backend == "generic"
    assert verify(kernel, program.workload, seed=3).verified


@pytest.mark.parametrize("backend", ["generic", pytest.param("native", marks=needs_vnni)])
def test_a_wrong_access_fails_verification(backend: Any) -> None:
    program = vnni_conv(1, 8, 9, 9, 16, 3, 3, pad=1)
    image, *others = program.operands
    access = [*image.access[:-1], IndexExpr()]
    wrong = replace(program, operands=(replace(image, access=tuple(access)), *others))
    if backend == "native":  # the intrinsic needs the lane, so spoil the channel instead
        access = [*image.access[:-2], IndexExpr(), image.access[-1]]
        wrong = replace(program, operands=(replace(image, access=tuple(access)), *others))
    found = verify(build(wrong, VNNI, backend=backend), program.workload)
    assert not found.verified
    assert found.max_error > 0


def test_a_wrong_source_fails_verification() -> None:
    program = gemm_program(VNNI, m=8, n=16, k=8)
    a, *others = program.operands
    shifted = replace(a, source=(a.source[0], a.source[1] + 1))
    wrong = replace(program, operands=(shifted, *others))
    assert not verify(build(wrong, VNNI, backend="generic"), program.workload).verified


# ------------------------------------------------------------------------------- derived programs

DERIVED: dict[str, tuple[Any, dict[str, tuple[Digit, ...]]]] = {
    "conv2d": (
        lambda: conv2d(n=1, c=8, h=9, w=9, k=20, r=3, s=3, pad=1, stride=2, dtype="uint8,int8"),
        {"y": (Digit("k", 16),), "z": (Digit("c", 4),)},
    ),
    "conv2d-groups": (
        lambda: conv2d(n=1, c=8, h=6, w=6, k=16, r=3, s=3, groups=3, dtype="uint8,int8"),
        {"y": (Digit("k", 16),), "z": (Digit("c", 4),)},
    ),
    "conv3d": (
        lambda: conv3d(n=1, c=4, d=5, h=6, w=7, k=17, t=3, r=2, s=3, pad=1, dtype="uint8,int8"),
        {"y": (Digit("k", 16),), "z": (Digit("c", 4),)},
    ),
    "conv1d-taps-in-depth": (
        lambda: conv1d(n=2, c=3, w=31, k=20, s=5, dtype="uint8,int8"),
        {"y": (Digit("k", 16),), "z": (Digit("s", 4),)},
    ),
    "gemm-transposed": (
        lambda: gemm(m=33, n=50, k=70, trans_a=True, trans_b=True, dtype="uint8,int8"),
        {"y": (Digit("n", 16),), "z": (Digit("k", 4),)},
    ),
    "gemm-strided-columns": (
        lambda: gemm(m=5, n=70, k=9, dtype="uint8,int8"),
        {"y": (Digit("n", 16, 3),), "z": (Digit("k", 4),)},
    ),
}


@pytest.mark.quick(1)
@pytest.mark.parametrize("backend", ["generic", pytest.param("native", marks=needs_vnni)])
@pytest.mark.parametrize("name", DERIVED)
def test_derived_program_is_bit_exact(name: str, backend: Any) -> None:
    make, digits = DERIVED[name]
    workload = make()
    image, weights = (operand.name for operand in workload.inputs)
    roles = {"A": image, "B": weights, "C": workload.output.name}
    embedding = Embedding(roles, {"y": 16, "z": 4}, digits)
    program = derive(workload, VNNI.instruction, embedding)
    assert verify(build(program, VNNI, backend=backend), workload, seed=4).verified


# --------------------------------------------------------------------------------------------- AMX


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Path | None:
    """The compiled emulator; None on a CPU that has AMX."""
    if not missing_features(load_hardware_spec("amx_int8")):
        return None
    if platform.machine() != "x86_64" or "fma" not in cpu_features():
        pytest.skip("neither AMX nor an x86-64 CPU with FMA to emulate it on")
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no AMX here, and no C compiler (cc) to build its emulator")
    library = tmp_path_factory.mktemp("emulator") / "amx_emulator.so"
    source = ROOT / "tests" / "emulation" / "amx_emulator.c"
    command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(source)]
    subprocess.run(command, check=True)
    return library


def run_amx(module: str, emulator: Path | None, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", f"tests.emulation.{module}", *arguments]
    if emulator is not None:
        command.append(str(emulator))
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


COUNTED = ("conv-3x3", "conv-dilation-2", "derived-conv3d", "conv-1x1", "gemm-7-by-7-tiles")
"""Cases whose tile products are counted."""


@pytest.fixture(scope="module")
def amx_results(emulator: Path | None, request: pytest.FixtureRequest) -> dict[str, Any]:
    """Of the cases that this session's tests look at."""
    calls = [getattr(item, "callspec", None) for item in request.session.items]
    named = {call.params.get("name") for call in calls if call is not None}
    names = [name for name in (*CASES, *STORED) if name in named or name in COUNTED]
    return run_amx("amx_cases", emulator, ",".join(names))


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", CASES)
def test_amx_kernel_matches_the_reference(
    name: str, amx_results: dict[str, Any], emulator: Path | None
) -> None:
    check_amx(amx_results[name], emulated=emulator is not None)


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", STORED)
def test_amx_kernel_stores_what_is_asked(name: str, amx_results: dict[str, Any]) -> None:
    found = amx_results[name]
    if "missing" in found:
        pytest.skip(f"missing: {', '.join(found['missing'])}")
    assert found["verified"], found


def test_amx_blocks_that_do_not_divide_are_moved_back(
    amx_results: dict[str, Any], emulator: Path | None
) -> None:
    if emulator is None:
        pytest.skip("only the emulator counts tile products")
    found = amx_results["gemm-7-by-7-tiles"]
    assert found["products"] > found["calls"]


# The emulator executes AMX alone; LLVM computes addresses of large kernels in AVX-512's registers.
needs_avx512 = pytest.mark.skipif("avx512f" not in cpu_features(), reason="missing: AVX-512")


@needs_avx512
@pytest.mark.slow
def test_amx_network_layers_are_bit_exact(emulator: Path | None) -> None:
    results = run_amx("amx_cases", emulator, ",".join(SLOW_CASES))
    assert set(results) == set(SLOW_CASES)
    for found in results.values():
        check_amx(found, emulated=emulator is not None)


@needs_avx512
@pytest.mark.slow
@pytest.mark.parametrize("target", ["amx_int8", "amx_bf16"])
@pytest.mark.parametrize("suite", ["unit16", "resnet50"])
def test_what_the_model_chooses_for_amx_is_right(
    suite: str, target: str, emulator: Path | None
) -> None:
    results = run_amx("amx_suites", emulator, suite, target)
    assert len(results) == len(shipped_suite(suite))
    for found in results.values():
        assert found == {"backend": "x86.amx", "verified": True}


def check_amx(found: dict[str, Any], *, emulated: bool) -> None:
    assert found.get("backend") == "x86.amx", found
    assert found["verified"], found
    if emulated:  # what sees more than padding is one tile product or more (moved-back blocks)
        assert found["products"] >= found["least"]


def test_amx_leaves_out_products_with_padding(
    amx_results: dict[str, Any], emulator: Path | None
) -> None:
    if emulator is None:
        pytest.skip("only the emulator counts tile products")
    for name in ("conv-3x3", "conv-dilation-2", "derived-conv3d"):
        found = amx_results[name]
        assert found["least"] <= found["products"] < found["calls"]
    assert amx_results["conv-1x1"]["least"] == amx_results["conv-1x1"]["calls"]
