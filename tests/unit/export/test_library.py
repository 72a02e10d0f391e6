"""Libraries of kernels that are written in C: what callers of the interface see."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cpembed.codegen.host_cpu import cpu_features, feature_table, needed_features
from cpembed.errors import BackendUnavailable, CpembedError, InvariantError, WorkloadError
from cpembed.export import library as written
from cpembed.export.library import Contents, compiler
from cpembed.export.loader import Library, LibraryError, aligned
from cpembed.export.program import Buffer, Call, Program, Role
from tests.unit.export.handwritten import FAIL, MEET, SIZE, compiled, sums
from tests.unit.export.small_library import W, X, Y, write_library

try:
    compiler()
except BackendUnavailable as error:
    pytest.skip(str(error), allow_module_level=True)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_library(sums(), tmp_path_factory.mktemp("sums")).path


@pytest.fixture(params=(1, 2, 5), ids="{} threads".format)
def library(request: pytest.FixtureRequest, path: Path) -> Iterator[Library]:
    with Library(path, "sums", threads=request.param) as opened:
        yield opened


def test_it_computes_what_its_calls_say(library: Library) -> None:
    library.pack(W)
    for _ in range(20):
        assert np.array_equal(library.run(X)[0], Y)
    library.pack(W + 1)
    assert np.array_equal(library.run(X)[0], Y - 2)


def test_it_says_what_it_takes(library: Library) -> None:
    (given,), (weights,), (result,) = library.inputs, library.weights, library.outputs
    assert (given.name, given.dtype, given.shape) == ("x", "int32", (SIZE // 10, 10))
    assert (weights.name, weights.shape) == ("w", (SIZE,))
    assert (result.name, result.shape) == ("y", (SIZE,))
    assert library.steps == ("first sum", 'the "second"\\', "negate")


def test_weights_come_before_the_first_run(library: Library) -> None:
    with pytest.raises(LibraryError, match="packed before the first run"):
        library.run(X)


@pytest.mark.parametrize("shift", [0, 4, 60])
def test_memory_may_begin_anywhere(library: Library, shift: int) -> None:
    """Also through the interface itself, which copies."""
    library.pack(W)
    room = np.zeros(4 * SIZE + 128, np.uint8)
    start = -room.ctypes.data % 64 + shift
    out = room[start : start + 4 * SIZE].view(np.int32)
    source = room.copy()
    given = source[-source.ctypes.data % 64 + shift :][: 4 * SIZE].view(np.int32)
    given[:] = X.reshape(-1)
    pointers = [np.array([array.ctypes.data], np.uintp) for array in (given, out)]
    status = library._library.sums_run(
        library._handle, *(pointer.ctypes.data for pointer in pointers), None
    )
    assert status == 0
    assert np.array_equal(out, Y)
    assert not room[:start].any()
    assert not room[start + 4 * SIZE :].any()


def test_steps_are_run_apart_and_buffers_are_read(library: Library) -> None:
    library.pack(W)
    library.run_steps(0, 1, X)
    assert np.array_equal(library.tensor("sum"), X.reshape(-1) + 2 * W)
    assert np.array_equal(library.tensor("twice"), 2 * W)
    library.run_steps(1, 2, X)
    assert np.array_equal(library.tensor("bordered"), X.reshape(-1) + 2 * W - 7)
    (found,) = library.run_steps(2, 3, X)
    assert np.array_equal(found, Y)
    with pytest.raises(LibraryError, match="no buffer z"):
        library.tensor("z")
    with pytest.raises(LibraryError, match="out of range"):
        library.run_steps(2, 4, X)


def test_each_step_is_timed(library: Library) -> None:
    library.pack(W)
    (found,), times = library.run_timed(X)
    assert np.array_equal(found, Y)
    assert times.shape == (3,)
    assert (times > 0).all()


def test_wrong_arrays_are_refused(library: Library) -> None:
    with pytest.raises(LibraryError, match=r"w is int64 \[1000\], the library takes int32"):
        library.pack(W.astype(np.int64))
    library.pack(W)
    with pytest.raises(LibraryError, match=r"x is int32 \[1000\]"):
        library.run(X.reshape(-1))
    with pytest.raises(LibraryError, match="2 inputs are given, the library takes: x"):
        library.run(X, X)
    with pytest.raises(LibraryError, match="not contiguous"):
        library.run(X, out=[np.zeros(2 * SIZE, np.int32)[::2]])
    transposed = np.asfortranarray(X)
    assert np.array_equal(library.run(transposed)[0], Y)


def test_results_are_written_where_the_caller_says(library: Library) -> None:
    library.pack(W)
    out = aligned((SIZE,), np.int32)
    assert library.run(X, out=[out])[0] is out
    assert np.array_equal(out, Y)


def test_a_closed_library_says_so(path: Path) -> None:
    library = Library(path, "sums")
    library.close()
    library.close()
    with pytest.raises(LibraryError, match="closed"):
        library.run(X)


@pytest.mark.parametrize("asleep", [0.0, 0.05], ids=["spinning", "sleeping"])
def test_a_forked_child_runs_alone_and_ends(path: Path, asleep: float) -> None:
    """Its handle's threads, and what they hold, stay in the parent: closing waits for none."""
    script = f"""
import os, sys, time
import numpy as np
from cpembed.export.loader import Library
X, W = np.arange({SIZE}, dtype=np.int32).reshape(-1, 10), np.arange({SIZE}, dtype=np.int32)
library = Library({str(path)!r}, "sums", threads=4)
closed = Library({str(path)!r}, "sums", threads=3)
library.pack(W)
right = library.run(X)[0]
time.sleep({asleep})
child = os.fork()
if child == 0:
    assert (library.threads, closed.threads) == (4, 3)
    assert np.array_equal(library.run(X)[0], right)
    library.pack(W)
    assert np.array_equal(library.run(X)[0], right)
    assert library.threads == 1
    closed.close()
    with Library({str(path)!r}, "sums", threads=2) as another:
        another.pack(W)
        assert np.array_equal(another.run(X)[0], right)
        grandchild = os.fork()
        if grandchild:
            sys.exit(os.waitpid(grandchild, 0)[1])
    sys.exit()
status = os.waitpid(child, 0)[1]
assert np.array_equal(library.run(X)[0], right) and library.threads == 4
sys.exit(status != 0)
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("shift", [0, 4])
def test_no_memory_of_the_caller_is_looked_at(library: Library, shift: int) -> None:
    """It may be freed: of what a call was given nothing can be read after it."""

    def placed(array: np.ndarray) -> np.ndarray:
        room = aligned((array.nbytes + shift,), np.uint8)[shift:]
        found = room.view(array.dtype).reshape(array.shape)
        found[:] = array
        return found

    library.pack(placed(W))
    for name in ("x", "w", "y"):
        with pytest.raises(LibraryError, match=f"no buffer {name} now"):
            library.tensor(name)
    library.run(placed(X), out=[placed(Y)])
    for name in ("x", "w", "y"):
        with pytest.raises(LibraryError, match=f"no buffer {name} now"):
            library.tensor(name)
    assert np.array_equal(library.tensor("sum"), X.reshape(-1) + 2 * W)
    library.close()
    with pytest.raises(LibraryError, match="closed"):
        library.tensor("sum")


def test_a_workspace_of_the_caller_is_not_looked_at(library: Library) -> None:
    library.pack(W)
    library.run(X)
    room, out = aligned((library.workspace_bytes,), np.uint8), aligned((SIZE,), np.int32)
    pointers = (ctypes.c_void_p * 1)(X.ctypes.data), (ctypes.c_void_p * 1)(out.ctypes.data)
    run = library._function("run")
    assert run(library._handle, *pointers, room.ctypes.data) == 0
    assert np.array_equal(out, Y)
    with pytest.raises(LibraryError, match="no buffer sum now"):
        library.tensor("sum")
    # Also after a call that was refused half-way.
    nothing = (ctypes.c_void_p * 1)(None)
    assert run(library._handle, pointers[0], nothing, None) != 0
    for name in ("x", "y"):
        with pytest.raises(LibraryError, match=f"no buffer {name} now"):
            library.tensor(name)
    library.run(X)
    assert np.array_equal(library.tensor("sum"), X.reshape(-1) + 2 * W)


def test_handles_run_beside_each_other(path: Path) -> None:
    """Each on threads of its own, with weights of its own."""
    failed: list[int] = []

    def work(number: int) -> None:
        with Library(path, "sums", threads=2) as library:
            library.pack(W + number)
            right = [np.array_equal(library.run(X)[0], Y - 2 * number) for _ in range(50)]
            failed.extend([number] * right.count(False))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_libraries_with_the_same_kernels_share_nothing(path: Path, tmp_path: Path) -> None:
    """Their kernels have the same names, and do different things."""
    program = sums("other")
    minus = compiled(
        "KERNEL(add) { UNUSED; for (int64_t k = 0; k < TENSOR(2)->shape[0]; k++) ((int32_t *)"
        "TENSOR(2)->data)[k] = 1; return 0; }",
        "add",
    )
    other = write_library(replace(program, kernels={**program.kernels, "add": minus}), tmp_path)
    with Library(path, "sums", threads=2) as one, Library(other.path, "other") as two:
        one.pack(W)
        two.pack(W)
        assert (two.run(X)[0] == -1).all()
        assert np.array_equal(one.run(X)[0], Y)


def test_a_library_in_the_place_of_an_open_one_is_another(tmp_path: Path) -> None:
    """The dynamic linker would take the path for the library that it has loaded."""
    opened: list[Library] = []
    for factor in (1, 5, 9):
        program = sums("net", known=True)
        buffers = tuple(
            replace(b, data=b.data * factor) if b.data is not None else b for b in program.buffers
        )
        path = write_library(replace(program, buffers=buffers), tmp_path).path
        # By the package's own loader, and by the file that is written beside the library.
        spec = importlib.util.spec_from_file_location(f"net{factor}", tmp_path / "net.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        opened += [Library(path, "net"), Library(path, "net"), module.Library()]
    for number, library in enumerate(opened):
        weights = np.arange(SIZE) * (1, 5, 9)[number // 3]
        assert np.array_equal(library.run(X)[0], -(X.reshape(-1) + 2 * weights - 7))
        library.close()


@pytest.mark.quick(1)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_meet_at_a_barrier(tmp_path: Path, threads: int) -> None:
    out = Buffer("y", "int32", 8, Role.OUTPUT, (8,))
    program = Program("meet", (out,), {"meet": compiled(MEET, "meet")}, (), (Call("meet", ("y",)),))
    library = write_library(program, tmp_path, Contents(example=False))
    with Library(library.path, "meet", threads=threads) as opened:
        for _ in range(200):
            (found,) = opened.run()
            # On one thread a loop of one task.
            assert (found[:threads] == sum(range(1, threads + 1))).all()


@pytest.mark.quick(1)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_kernel_that_fails_is_said(tmp_path: Path, threads: int) -> None:
    out = Buffer("y", "int32", 8, Role.OUTPUT, (8,))
    program = Program("no", (out,), {"fail": compiled(FAIL, "fail")}, (), (Call("fail", ("y",)),))
    path = write_library(program, tmp_path, Contents(example=False)).path
    with (
        Library(path, "no", threads=threads) as opened,
        pytest.raises(LibraryError, match="a kernel refused its arguments, or found no memory"),
    ):
        opened.run()


def test_a_kernel_says_what_it_refuses(tmp_path: Path) -> None:
    program = sums()
    short = tuple(
        replace(buffer, elements=SIZE - 1) if buffer.name == "border" else buffer
        for buffer in program.buffers
    )
    path = write_library(replace(program, buffers=short), tmp_path).path
    with Library(path, "sums") as opened:
        opened.pack(W)
        with pytest.raises(LibraryError, match="three tensors of one size are taken"):
            opened.run(X)


@pytest.mark.skipif(not needed_features(), reason="processors are asked by CPUID")
def test_a_processor_that_lacks_a_feature_is_told(tmp_path: Path) -> None:
    known = set(feature_table().names) - {"amx_fp16"}
    lacking = sorted(known - cpu_features() - set(feature_table().not_taken))
    path = write_library(replace(sums(), features=("avx", lacking[0])), tmp_path).path
    with pytest.raises(LibraryError, match=f"the processor lacks {lacking[0]}"):
        Library(path, "sums")


@pytest.mark.skipif(not needed_features(), reason="processors are asked by CPUID")
def test_what_the_processor_reports_is_found_by_cpuid(tmp_path: Path) -> None:
    """Every feature that this one has, of those that compilers know."""
    reported = tuple(sorted(set(feature_table().names) & cpu_features()))
    path = write_library(replace(sums(), features=reported), tmp_path).path
    Library(path, "sums").close()


def test_every_feature_is_known_to_the_runtime() -> None:
    text = (Path(written.__file__).parent / "native" / "processor.h").read_text()
    assert not [name for name in feature_table().names if f'{{"{name}", ' not in text]


def test_buffers_that_live_apart_share_memory(path: Path) -> None:
    with Library(path, "sums") as opened:
        assert opened.workspace_bytes == 2 * 4032  # "sum" and "bordered", whole lines


def test_a_program_of_parts_that_do_not_fit_is_refused() -> None:
    program = sums()
    with pytest.raises(InvariantError, match="no kernel sub"):
        replace(program, run=(Call("sub", ()),))
    with pytest.raises(InvariantError, match="takes z, no buffer"):
        replace(program, run=(Call("add", ("z",)),))
    with pytest.raises(InvariantError, match="x is not there when weights are packed"):
        replace(program, prepare=(Call("add", ("x",)),))
    with pytest.raises(InvariantError, match="two buffers have one name"):
        replace(program, buffers=(*program.buffers, program.buffers[0]))
    for name in ("", "1st", "a-b", "é", "a" * 61):
        with pytest.raises(WorkloadError, match="cannot name a library"):
            replace(program, name=name)


@pytest.mark.slow
def test_nothing_is_left_where_a_check_fails(tmp_path: Path) -> None:
    kept = tmp_path / "mine.txt"
    kept.write_text("mine")

    def refuse(path: Path) -> None:
        assert path.exists()
        raise InvariantError("wrong")

    with pytest.raises(InvariantError):
        write_library(sums(), tmp_path, check=refuse)
    assert list(tmp_path.iterdir()) == [kept]
    library = write_library(sums(), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {*library.files, "mine.txt"}


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CpembedError, match=r"cannot be written: .*; name another folder"):
        write_library(sums(), tmp_path / "file" / "below")


def test_a_missing_compiler_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = sums()
    monkeypatch.setenv("CC", "no-such-compiler -O2")
    with pytest.raises(
        BackendUnavailable, match="no CC=no-such-compiler on the path: install one of cc, gcc"
    ):
        write_library(program, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_python_file_needs_numpy_alone(tmp_path: Path) -> None:
    """In an interpreter that sees nothing else of what is installed here."""
    write_library(sums(), tmp_path)
    (tmp_path / "only").mkdir()
    origin = Path(np.__file__).parent
    (tmp_path / "only" / "numpy").symlink_to(origin)
    if (origin.parent / "numpy.libs").exists():
        (tmp_path / "only" / "numpy.libs").symlink_to(origin.parent / "numpy.libs")
    script = (
        "import sys, numpy as np\nfrom sums import Library\n"
        "assert 'cpembed' not in sys.modules\n"
        "x, w = np.arange(1000, dtype=np.int32).reshape(100, 10), np.ones(1000, np.int32)\n"
        "with Library() as library:\n    library.pack(w)\n    (y,) = library.run(x)\n"
        "assert (y == -(np.arange(1000) + 2 - 7)).all()\nprint('done')\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{tmp_path / 'only'}"}
    command = [sys.executable, "-S", "-s", "-c", script]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("done\n", "")


@pytest.mark.parametrize("command", [["cc", "-std=c99"], ["c++", "-std=c++11"]], ids=" ".join)
def test_the_header_is_c_and_cpp(path: Path, tmp_path: Path, command: list[str]) -> None:
    if shutil.which(command[0]) is None:
        pytest.skip(f"no {command[0]}")
    kind = "c++" if "++" in command[0] else "c"
    text = '#include "sums.h"\n#include "sums.h"\nint main(void) { return sums_run(0, 0, 0, 0); }\n'
    (tmp_path / f"use.{kind}").write_text(text)
    options = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", f"-I{path.parent}"]
    subprocess.run([*command, "-x", kind, *options, str(tmp_path / f"use.{kind}")], check=True)


@pytest.mark.slow
def test_libraries_of_one_name_are_operators_of_pytorch_beside_each_other(tmp_path: Path) -> None:
    """In two folders, and in one folder after each other: each layer runs its own code."""
    pytest.importorskip("torch")
    first = sums()
    minus = compiled(
        "KERNEL(add) { UNUSED; for (int64_t k = 0; k < TENSOR(2)->shape[0]; k++) ((int32_t *)"
        "TENSOR(2)->data)[k] = 1; return 0; }",
        "add",
    )
    second = replace(first, kernels={**first.kernels, "add": minus})
    write_library(first, tmp_path / "a", Contents(torch=True))
    write_library(second, tmp_path / "b", Contents(torch=True))
    write_library(second, tmp_path / "later", Contents(torch=True))
    script = f"""
import importlib.util, shutil, sys, types
import torch
sys.modules["sums"] = types.ModuleType("sums")  # another module of the library's name
def layer(folder):
    path = {str(tmp_path)!r} + f"/{{folder}}/sums_torch.py"
    spec = importlib.util.spec_from_file_location("sums_torch", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.sums(W)
X = torch.arange({SIZE}, dtype=torch.int32).reshape(-1, 10)
W = torch.arange({SIZE}, dtype=torch.int32)
right, other = -(X.reshape(-1) + 2 * W - 7), torch.full(({SIZE},), -1, dtype=torch.int32)
def check(a, b):
    for _ in range(2):
        assert torch.equal(a(X), right) and torch.equal(b(X), other)
        for module, result in ((a, right), (b, other)):
            ran = torch.compile(module, backend="aot_eager", fullgraph=True)
            assert torch.equal(ran(X), result)
a = layer("a")
check(a, layer("b"))
shutil.move({str(tmp_path / "later/libsums.so")!r}, {str(tmp_path / "a/libsums.so")!r})
check(a, layer("a"))
print("done")
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "done\n", done.stderr


@pytest.mark.slow
def test_an_operator_of_pytorch_may_have_the_name_of_anything(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    names = ("tuple", "map", "len", "super", "torch", "Path", "Library", "annotations", "vars")
    for name in names:
        write_library(replace(sums(), name=name), tmp_path, Contents(torch=True))
    script = f"""
import importlib.util, torch
X = torch.arange({SIZE}, dtype=torch.int32).reshape(-1, 10)
W = torch.arange({SIZE}, dtype=torch.int32)
for name in {names!r}:
    path = {str(tmp_path)!r} + f"/{{name}}_torch.py"
    spec = importlib.util.spec_from_file_location(f"{{name}}_torch", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert torch.equal(getattr(module, name)(W)(X), -(X.reshape(-1) + 2 * W - 7)), name
print("done")
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)
    assert done.stdout == "done\n", done.stderr


def test_a_library_that_takes_the_number_of_its_file_is_another(tmp_path: Path) -> None:
    """A file that was removed gives its number, and a copy its times, to another."""
    library = write_library(sums(), tmp_path)
    assert not library.is_replaced
    state, content = library.path.stat(), library.path.read_bytes()
    library.path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    os.utime(library.path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert library.path.stat().st_ino == state.st_ino
    assert library.is_replaced
    library.path.write_bytes(content)
    assert not library.is_replaced
