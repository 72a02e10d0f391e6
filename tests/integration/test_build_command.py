"""``cpembed build`` as a person calls it, and what is taken away in other surroundings."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cpembed.errors import BackendUnavailable
from cpembed.export.layout import LibraryLayout, blob_of
from cpembed.export.library import Contents, compiler, texts_of
from cpembed.export.sized import SizedProgram
from cpembed.hw.loader import load_hardware_spec
from cpembed.targets.registry import open_target
from tests.cli.calling import Called, Caller, in_a_process
from tests.unit.export.handwritten import sums

try:
    compiler()
except BackendUnavailable as error:
    pytest.skip(str(error), allow_module_level=True)

GEMM = ("gemm", "m=4", "n=32", "k=64")
EXAMPLE = Path(__file__).parents[2] / "examples" / "take_away"


def build(*arguments: object) -> Called:
    return in_a_process("build", *map(str, arguments))


def test_a_library_is_said_in_a_document(tmp_path: Path) -> None:
    target = open_target(load_hardware_spec("avx2_int8"))
    if target.missing():
        pytest.skip("; ".join(target.missing()))
    stored = ("--bias", "--output", "float32", "--name", "layer", "--threads", 1, "--torch")
    called = build(*GEMM, "--target", "avx2_int8", *stored, "-o", tmp_path, "--json")
    assert (called.code, called.err) == (0, "")
    document = called.json
    assert document["verified"]
    assert document["special_values"] == "all"
    assert document["linked"]
    assert document["native"]
    assert document["stored"] == "float32"
    assert document["call_us"] > 0
    assert "avx2" in document["cpu_features"]
    assert set(document["files"]) == {path.name for path in tmp_path.iterdir()}
    assert {"liblayer.so", "layer.h", "layer.py", "layer_torch.py"} <= set(document["files"])
    about = json.loads((tmp_path / "layer.json").read_text())
    assert [one["name"] for one in about["weights"]] == ["B", "bias"]
    assert about["operands"]["A"]["original"] == [4, 64]
    assert "threads: 0 for 1." in (tmp_path / "layer.h").read_text()


@pytest.mark.slow
def test_portable_code_stands_in_and_is_said(tmp_path: Path) -> None:
    called = build(*GEMM, "--target", "gemm_16x16x16", "-o", tmp_path, "--json")
    assert called.code == 5
    assert called.err.count("\n") == 1
    assert "the library is portable code, and slow" in called.err
    assert called.json["verified"]
    assert not called.json["native"]


@pytest.mark.slow
def test_what_cannot_be_built_is_one_line(tmp_path: Path) -> None:
    wrong = build(*GEMM, "--target", "avx2_int8", "-o", tmp_path, "--name", "1-2")
    wrong.is_one_line_error(2, "'1-2' cannot name a library")
    (tmp_path / "file").write_text("")
    below = build(*GEMM, "--target", "vta_1x16x16", "-o", tmp_path / "file" / "x")
    below.is_one_line_error(2, "cannot be written", "name another folder")
    lone = build(*GEMM, "--target", "gemm_16x16x16", "--backend", "native", "-o", tmp_path / "a")
    lone.is_one_line_error(5, "use the generic back end")
    infeasible = build("axpy", "m=4", "--target", "vta_1x16x16", "-o", tmp_path / "a")
    assert infeasible.code in (2, 3)
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    "option",
    ["--rank=1", "--id=ab", "--backend=auto", "--verbose", "--weights=1,1", "--bias", "--untuned"],
)
def test_what_says_something_of_one_kernel_is_refused_of_a_model(
    capsys: pytest.CaptureFixture[str], option: str
) -> None:
    called = Caller(capsys)("build", "net.onnx", "--target", "avx2_int8", "-o", "net", option)
    called.is_one_line_error(2, f"{option.partition('=')[0]} applies to a workload, not to a model")


@pytest.mark.slow
def test_the_example_of_two_libraries_runs(tmp_path: Path) -> None:
    if shutil.which("make") is None:
        pytest.skip("no make")
    for name in ("Makefile", "two_layers.c"):
        shutil.copy(EXAMPLE / name, tmp_path)
    target = open_target(load_hardware_spec("avx2_int8"))
    if target.missing():
        pytest.skip("; ".join(target.missing()))
    command = f"CPEMBED={sys.executable} -m cpembed"
    root = str(EXAMPLE.parents[1])
    environment = {**os.environ, "PYTHONPATH": root}
    subprocess.run(["make", "-s", command], cwd=tmp_path, check=True, env=environment)
    done = subprocess.run([tmp_path / "two_layers"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("OK: ")


@pytest.mark.slow
def test_pytorch_compiles_the_operator(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    target = open_target(load_hardware_spec("avx2_int8"))
    if target.missing():
        pytest.skip("; ".join(target.missing()))
    called = build(*GEMM, "--target", "avx2_int8", "--torch", "--name", "taken", "-o", tmp_path)
    assert called.code == 0
    script = (
        "import torch\nfrom taken_torch import taken\n"
        "B = torch.randint(-128, 127, (64, 32), dtype=torch.int8)\n"
        "A = torch.randint(0, 255, (4, 64), dtype=torch.uint8)\n"
        "layer = taken(B, threads=2)\n"
        "expected = A.int() @ B.int()\n"
        "assert torch.equal(layer(A), expected)\n"
        "compiled = torch.compile(lambda x: layer(x) + 1, fullgraph=True, backend='aot_eager')\n"
        "assert torch.equal(compiled(A), expected + 1)\n"
        "torch.library.opcheck(torch.ops.cpembed.taken, ([A], layer._key))\n"
        "print('done')\n"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "done\n", done.stderr
    assert torch.__version__


def test_what_people_read_names_everything() -> None:
    """The README lists the files, and what is given in its order."""
    program = sums()
    layout = LibraryLayout(SizedProgram.fixed(program), blob_of(program), in_file=True)
    texts = texts_of(layout, Contents(torch=True, about="Sums."))
    readme = texts["README.md"]
    for file in ("libsums.so", "sums.weights", *texts):
        assert file == "README.md" or f"`{file}`: " in readme
    assert "library.pack(w)" in readme
    assert "(y,) = library.run(x)" in readme
    for file, text in texts.items():
        if not file.endswith(".py"):
            assert "NAME_" not in text, file
