"""Compiling texts: what is kept, and what is said where it cannot be done."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest

from cpembed.errors import BackendUnavailable, LoweringError
from cpembed.targets.cuda.emulator.executor import COMPILER, Launch, compile_text
from cpembed.targets.cuda.emulator.source import prepare
from cpembed.targets.executor import program as executor
from cpembed.targets.executor.program import COMPILER_VARIABLE
from tests.unit.targets.cuda.emulator.running import needs_compiler

KERNEL = 'extern "C" __global__ void __launch_bounds__(64, 2) k(int* out) { out[0] = 1; }'


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COMPILER_VARIABLE, "no-such-compiler -O2")
    with pytest.raises(BackendUnavailable, match="there is no CXX=no-such-compiler on the path"):
        COMPILER.compile("int a;")


def another_process(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Begin with a folder of the process in which nothing is."""
    folder.mkdir()
    monkeypatch.setattr(executor, "_process_folder", lambda: folder)


@needs_compiler
def test_a_library_is_kept_by_its_content(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = prepare(KERNEL).source
    COMPILER.compile(source)  # So that runtime and header are there, which take seconds.
    usual = COMPILER.cache_folder()
    kept = tmp_path / "kept"
    kept.mkdir()
    for made in usual.glob("[rh]*-*") if usual else ():
        (kept / made.name).symlink_to(made)
    monkeypatch.setenv(COMPILER.folder_variable, str(kept))
    another_process(monkeypatch, tmp_path / "first")
    library = COMPILER.compile(source)
    (file,) = [path for path in kept.iterdir() if path.suffix == ".so"]
    made = file.stat().st_mtime_ns
    another_process(monkeypatch, tmp_path / "second")
    again = COMPILER.compile(source)
    assert again != library
    assert again.read_bytes() == library.read_bytes()
    assert file.stat().st_mtime_ns == made
    # Of somebody else: it is made again, not loaded.
    file.write_bytes(b"\x7fELF" + bytes(1000))
    another_process(monkeypatch, tmp_path / "third")
    assert len(COMPILER.compile(source).read_bytes()) > 10_000
    assert file.stat().st_mtime_ns != made
    assert COMPILER.compile(source + "\n").name != library.name


@needs_compiler
@pytest.mark.parametrize("told", ["", "/proc/nothing/can/be/made/here"])
def test_where_nothing_is_kept_a_library_is_made(
    monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    source = prepare(KERNEL).source
    COMPILER.compile(source)
    monkeypatch.setenv(COMPILER.folder_variable, told)
    assert COMPILER.compile(source + "\n\n").is_file()


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
        prepare("__device__ int f() { return 1; }")


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
    source = prepare(f"{declaration}\n{KERNEL}").source
    line = f"static const executor_dynamic_array<{replaced}> a_1{{}};"
    assert source.split("\n")[0] == line


def test_kernels_and_their_bounds() -> None:
    source = f"""{KERNEL}
    extern "C" __global__ void __launch_bounds__(128) b(float* x);
    extern "C" __global__ void __launch_bounds__(128) b(float* x) {{}}
    __global__ void c() {{}}
    void __device__ d();
    """
    assert prepare(source).kernels == {"k": 64, "b": 128, "c": None}


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


@pytest.mark.parametrize(
    "parameters, is_copied",
    [
        ("const __grid_constant__ CUtensorMap map, float* out", False),
        ("float* out, const __grid_constant__  CUtensorMap map", False),
        ("const CUtensorMap* map", False),
        ("const CUtensorMap& map, int n", False),
        ("const CUtensorMap map, float* out", True),
        ("float* out,\n    CUtensorMap map", True),
        ("const __grid_constant__ CUtensorMap a, CUtensorMap map", True),
    ],
)
def test_tensor_maps_have_no_copies(parameters: str, is_copied: bool) -> None:
    text = f"__global__ void k({parameters}) {{}}"
    if is_copied:
        with pytest.raises(LoweringError, match="the tensor map map is a parameter without"):
            prepare(text)
    else:
        prepare(text)


ALIGNED = """extern "C" __global__ void k(unsigned* out) {
  extern __shared__ DECLARED unsigned char memory[];
  STATIC
  if (threadIdx.x == 0) out[0] = (unsigned)__cvta_generic_to_shared(memory);
}"""


@needs_compiler
@pytest.mark.parametrize("static", ["", "__shared__ int a[3]; a[threadIdx.x] = 1;"])
@pytest.mark.parametrize("alignment", [1, 16, 64, 128, 256, 1024])
def test_dynamic_shared_memory_is_aligned_as_declared(alignment: int, static: str) -> None:
    source = ALIGNED.replace("DECLARED", f"__align__({alignment})").replace("STATIC", static)
    address = np.zeros(1, np.uint32)
    compile_text(source).run(Launch("k", (1, 1, 1), (3, 1, 1), 64), [address])
    # And no further, so that what needs more is misaligned.
    place = int(address[0])
    assert min(place & -place or 1024, 1024) == max(alignment, 16)
