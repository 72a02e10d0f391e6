"""Compiling texts: what is kept, and what is said where it cannot be done."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest

from cpembed.errors import BackendUnavailable, LoweringError
from cpembed.targets.cuda.executor import compiler
from cpembed.targets.cuda.executor.program import Launch, compile_text
from cpembed.targets.cuda.executor.text import prepared
from cpembed.targets.executor.compiler import COMPILER_VARIABLE, writable
from tests.unit.targets.cuda.executor.running import needs_compiler

KERNEL = 'extern "C" __global__ void __launch_bounds__(64, 2) k(int* out) { out[0] = 1; }'


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COMPILER_VARIABLE, "no-such-compiler -O2")
    with pytest.raises(BackendUnavailable, match="there is no CXX=no-such-compiler on the path"):
        compiler.compiled("int a;")


@needs_compiler
def test_a_library_is_kept_by_its_content(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(compiler.FOLDER_VARIABLE, str(tmp_path))
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(compiler.FOLDER_VARIABLE)
        usual = compiler.TEXTS.default_folder()
    for made in usual.glob("[rh]*-*") if usual else ():  # Compiling these takes seconds.
        (tmp_path / made.name).symlink_to(made)
    source = prepared(KERNEL).source
    library = compiler.compiled(source)
    found = {path.name for path in tmp_path.iterdir()}
    assert {name for name in found if name[:2] not in ("ru", "he")} == {library.name}
    made = library.stat().st_mtime_ns
    assert compiler.compiled(source) == library
    assert library.stat().st_mtime_ns == made
    assert compiler.compiled(source + "\n") != library


@pytest.mark.parametrize("told", ["", "/proc/nothing/can/be/made/here"])
def test_where_nothing_is_kept_this_process_has_a_folder(
    monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    monkeypatch.setenv(compiler.FOLDER_VARIABLE, told)
    folder = writable(compiler.TEXTS.default_folder())
    assert folder.is_dir()
    assert folder == writable(None)


@needs_compiler
def test_an_error_of_the_compiler_is_one_line_with_its_place() -> None:
    with pytest.raises(LoweringError) as caught:
        compile_text(KERNEL + '\nextern "C" __global__ void bad(int* out) { out[0] = missing; }\n')
    line = str(caught.value)
    assert "cannot compile the CUDA text: line 2:" in line
    assert "missing" in line
    assert "\n" not in line


def test_a_text_without_a_kernel() -> None:
    with pytest.raises(LoweringError, match="has no kernel"):
        prepared("__device__ int f() { return 1; }")


@pytest.mark.parametrize(
    "declaration, replaced",
    [
        ("extern __shared__ __align__(64) unsigned char a_1[];", "unsigned char"),
        ("extern __shared__ half a_1[];", "half"),
        ('extern "C" __shared__ alignas(16) uchar a_1[];', "uchar"),
        ("extern __shared__ float4 __align__(16) a_1[];", "float4"),
    ],
)
def test_dynamic_shared_memory(declaration: str, replaced: str) -> None:
    source = prepared(f"{declaration}\n{KERNEL}").source
    line = f"static {replaced}* const a_1 = ({replaced}*)executor_dynamic_shared;"
    assert source.split("\n")[0] == line


def test_kernels_and_their_bounds() -> None:
    source = f"""{KERNEL}
    extern "C" __global__ void __launch_bounds__(128) b(float* x);
    extern "C" __global__ void __launch_bounds__(128) b(float* x) {{}}
    __global__ void c() {{}}
    void __device__ d();
    """
    assert prepared(source).kernels == {"k": 64, "b": 128, "c": None}


@needs_compiler
def test_a_library_is_closed_with_its_program() -> None:
    program = compile_text.__wrapped__(KERNEL)
    path = str(program.library)
    out = np.zeros(1, np.int32)
    program.run(Launch("k", (1, 1, 1), (1, 1, 1)), [out])
    assert out[0] == 1
    assert path in Path("/proc/self/maps").read_text()
    del program
    gc.collect()
    assert path not in Path("/proc/self/maps").read_text()
