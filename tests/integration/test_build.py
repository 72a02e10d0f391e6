"""Libraries of generated kernels: built by the library function, called from C and Python."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cpembed.codegen import runtime
from cpembed.codegen.host_cpu import cpu_features
from cpembed.codegen.packing import packed_before
from cpembed.codegen.plan import KernelPlan
from cpembed.driver.build import build, call_library, verify_library
from cpembed.driver.build_result import BuildResult
from cpembed.driver.named import workload
from cpembed.driver.solve import solve
from cpembed.errors import BackendUnavailable, InvariantError
from cpembed.export.library import compiler, write_library
from cpembed.export.loader import Library, LibraryError
from cpembed.export.program import CompiledObject, kernel_program
from cpembed.hw.loader import load_hardware_spec
from cpembed.ir.reference import random_inputs, reference
from cpembed.targets.registry import open_target
from cpembed.targets.vta.checker import check
from cpembed.targets.vta.program import load_program

try:
    compiler()
except BackendUnavailable as error:
    pytest.skip(str(error), allow_module_level=True)

STORED = {"bias": True, "scale": True, "relu": True, "output": "uint8"}
CONV = "conv2d n=1 c=20 h=9 w=10 k=24 r=3 s=3 pad=1"
CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("gemm m=13 n=40 k=50", "avx512_vnni", STORED),
    (CONV, "avx512_vnni", {}),
    (CONV, "avx512_vnni", {"output": "int8", "shift": 9, "relu": True}),
    (CONV, "avx512_vnni", STORED),
    ("conv2d n=1 c=3 h=19 w=19 k=24 r=5 s=5 stride=2", "avx512_vnni", {"scale": True}),
    ("depthwise n=1 c=20 h=9 w=9 r=3 s=3 pad=1", "avx512_int8", STORED),
    ("gemm m=13 n=40 k=50", "avx512_bf16", {}),
    ("gemm m=13 n=40 k=50", "avx512_bf16", {"output": "bfloat16", "bias": True}),
    (CONV, "avx2_int8", STORED),
    ("batched_gemm b=3 m=13 n=20 k=24", "avx512_vnni", {}),
    (CONV, "gemm_16x16x16", {"backend": "generic", "bias": True, "output": "float32"}),
]


def wanted(name: str, sizes: str) -> Any:
    return workload(sizes.split(), target=name)


def skip_without(name: str) -> None:
    missing = open_target(load_hardware_spec(name)).missing()
    if missing:
        pytest.skip("; ".join(missing))


def built(sizes: str, on: str, folder: Path, **options: Any) -> BuildResult:
    if options.get("backend") != "generic":
        skip_without(on)
    found = build(wanted(on, sizes), on, folder, untuned=True, **options)
    assert isinstance(found, BuildResult)
    return found


def run_example(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """As the README says, with all that a compiler warns of."""
    flags = ["-O2", "-Wall", "-Wextra", "-Werror", *options, "example.c", "-o", "example"]
    linked = ["-L.", "-lkernel", "-Wl,-rpath,$ORIGIN", "-lm"]
    subprocess.run([*compiler(), *flags, *linked], cwd=folder, check=True)
    return subprocess.run(
        [folder / "example"], cwd="/", capture_output=True, text=True, check=False
    )


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    "sizes, name, options", CASES, ids=[f"{n}-{s}-{len(o)}" for s, n, o in CASES]
)
def test_the_example_finds_the_library_right(
    tmp_path: Path, sizes: str, name: str, options: dict[str, Any]
) -> None:
    """Its plain loops are written from the definition of the workload, not from the kernel's."""
    found = built(sizes, name, tmp_path, **options)
    assert found.verification is not None
    assert found.verification.verified
    assert {path.name for path in tmp_path.iterdir()} == set(found.files)
    done = run_example(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("OK: ")
    assert "compares with plain loops" in (tmp_path / "example.c").read_text()


def test_the_example_finds_a_wrong_library(tmp_path: Path) -> None:
    found = built("gemm m=13 n=40 k=50", "avx512_vnni", tmp_path)
    text = (tmp_path / "example.c").read_text()
    (tmp_path / "example.c").write_text(text.replace("sum += product", "sum += product + 1"))
    assert found.files
    done = run_example(tmp_path)
    assert done.returncode == 1
    assert done.stdout.startswith("WRONG: ")


@pytest.mark.slow
def test_valgrind_finds_nothing_in_a_library(tmp_path: Path) -> None:
    """Portable code: valgrind knows no later vectors than those of AVX2."""
    if shutil.which("valgrind") is None:
        pytest.skip("no valgrind")
    wide = sorted(name for name in cpu_features() if name.startswith(("avx512", "avx_", "gfni")))
    environment = {**os.environ, "CPEMBED_HIDE_CPU_FEATURES": ",".join(wide)}
    command = [sys.executable, "-m", "cpembed", "build", *CONV.split(), "-o", str(tmp_path)]
    command += ["--target", "avx2_int8", "--bias", "--scale", "--output", "uint8", "--untuned"]
    subprocess.run(command, check=True, env=environment, capture_output=True)
    run_example(tmp_path, "-g")
    checked = ["valgrind", "-q", "--error-exitcode=7", "--leak-check=full", "./example"]
    done = subprocess.run(checked, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("OK: ")


def test_a_library_that_loses_infinities_is_not_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = built("gemm m=5 n=16 k=7", "avx2_f32", tmp_path)
    assert found.verification is not None
    assert found.verification.special_values == "all"

    def call(library: Library, data: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        return np.nan_to_num(call_library(library, data))

    monkeypatch.setattr("cpembed.driver.build.call_library", call)
    workload, target = found.workload, found.selection.plan.target
    library = tmp_path / "libkernel.so"
    with pytest.raises(InvariantError, match="is wrong by up to"):
        verify_library(library, "kernel", target, workload, None, 1)


def test_both_factors_are_inputs_where_both_vary(tmp_path: Path) -> None:
    found = built("batched_gemm b=2 m=4 n=16 k=8", "avx512_vnni", tmp_path)
    layer = found.selection.solved.workload
    with Library(tmp_path / "libkernel.so", "kernel", threads=2) as library:
        assert not library.weights
        inputs = random_inputs(layer, 3)
        (result,) = library.run(*(inputs[info.name] for info in library.inputs))
    assert np.array_equal(result, reference(layer, inputs))


def test_tiles_are_linked_where_they_cannot_run(tmp_path: Path) -> None:
    spec = load_hardware_spec("amx_int8")
    layer = wanted("amx_int8", "gemm m=40 n=32 k=128")
    program = solve(layer, spec, top=1).embeddings[0].candidate.program
    target = open_target(spec)
    lowered = target.lower(program)
    kernel = target.planned(lowered, target.space(lowered).best().schedule)
    assert kernel is not None

    def compiled(plan: KernelPlan, symbol: str) -> CompiledObject:
        return CompiledObject(symbol, runtime.compile_host_object(plan, symbol).contents)

    made = kernel_program("tiles", kernel, packed_before(layer), compiled)
    made = replace(made, features=("amx_tile", "amx_int8"))
    library = write_library(made, tmp_path)
    assert library.path.exists()
    if not cpu_features().issuperset(spec.cpu_features):
        with pytest.raises(LibraryError, match="the processor lacks amx_tile"):
            Library(library.path, "tiles")


def test_what_is_built_of_an_emulated_target_is_linked_elsewhere(tmp_path: Path) -> None:
    found = built("gemm m=4 n=16 k=16", "arm_sdot", tmp_path)
    if found.linked:
        pytest.skip("this machine executes it")
    assert found.verification is not None
    made = (tmp_path / "Makefile").read_text()
    words = {word for word in made.split() if word.endswith((".c", ".o", ".h"))}
    assert {"runtime.c", "program.h", "kernel_0.o", "kernel_1.o", "example.c"} <= words
    assert all((tmp_path / word).exists() for word in words)
    # ELF, 64 bits, little-endian, machine 183: AArch64.
    header = (tmp_path / "kernel_0.o").read_bytes()[:20]
    assert (header[:6], int.from_bytes(header[18:20], "little")) == (b"\x7fELF\x02\x01", 183)


def test_the_program_of_a_simulated_target_is_legal_and_explained(tmp_path: Path) -> None:
    found = built("gemm m=4 n=16 k=16", "vta_1x16x16", tmp_path, name="product")
    assert not found.linked
    check(load_program(tmp_path / "product"))
    assert "cpembed vta run" in (tmp_path / "README.md").read_text()


@pytest.mark.parametrize(
    "sizes, shape",
    [(CONV, (24,)), ("conv2d n=1 c=8 h=5 w=5 k=12 r=3 s=3 groups=2", (2, 12))],
    ids=["plain", "grouped"],
)
def test_vectors_are_padded_with_zeros(tmp_path: Path, sizes: str, shape: tuple[int, ...]) -> None:
    """To whole tiles of 16 channels."""
    built(sizes, "avx512_vnni", tmp_path, bias=True)
    vector = np.arange(1, 25, dtype=np.int32).reshape(shape)
    inputs = random_inputs(wanted("avx512_vnni", sizes), 5)
    with Library(tmp_path / "libkernel.so", "kernel") as library:
        library.pack(inputs["W"], vector)
        held = library.tensor("bias.packed")
    padding = [(0, 0)] * (len(shape) - 1) + [(0, -shape[-1] % 16)]
    assert np.array_equal(held, np.pad(vector, padding).ravel())


def test_a_library_has_the_packing_that_a_whole_call_has(tmp_path: Path) -> None:
    """Steps are those of the kernel's own whole call, and weights are given once."""
    found = built(CONV, "avx512_vnni", tmp_path)
    layer = found.selection.solved.workload
    with Library(tmp_path / "libkernel.so", "kernel") as library:
        assert [info.name for info in library.weights] == ["W"]
        assert "compute" in library.steps
        assert "pack_W" not in library.steps
        inputs = random_inputs(layer, 5)
        library.pack(inputs["W"])
        for threads in (1, 2, 3):
            with Library(tmp_path / "libkernel.so", "kernel", threads=threads) as other:
                other.pack(inputs["W"])
                (result,) = other.run(inputs["I"])
                assert np.array_equal(result, reference(layer, inputs))
