"""Commands where files and folders are not what they should be: a line, nothing half-written."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from cpembed.errors import CpembedError
from cpembed.targets.cpu import calibration
from tests.cli.calling import Caller

GEMM = ("gemm", "m=8", "n=16", "k=16", "--target", "vta_1x16x16")
NO_RUN = ("bench", "gemm", "--target", "vta_1x16x16", "--no-run", "--layers", "0")

COMMANDS: dict[str, Sequence[str]] = {
    "solve": ("solve", *GEMM[:-1], "PLACE"),
    "constraints": ("solve", *GEMM, "--constraints", "PLACE"),
    "explain": ("explain", *GEMM, "--svg", "PLACE"),
    "run": ("run", *GEMM, "--constraints", "PLACE"),
    "tune": ("tune", *GEMM, "--trials", "1", "--database", "PLACE"),
    "bench": (*NO_RUN, "--results", "PLACE"),
    "suite": ("bench", "PLACE.csv", "--target", "vta_1x16x16"),
    "build": ("build", *GEMM, "--directory", "PLACE"),
    "network": ("network", "PLACE.onnx", "--target", "avx2_f32"),
    "match": ("match", "PLACE.onnx", "--target", "avx2_f32"),
    "shape": ("shape", "gemm", "--macs", "16", "--save", "PLACE/x.toml"),
    "explore": ("explore", "PLACE", "gemm"),
    "layouts": ("layouts", *GEMM, "--target", "PLACE"),
    "worker": ("worker", "PLACE"),
    "assemble": ("vta", "asm", "PLACE", "-o", "program"),
    "assembled": ("vta", "asm", "OTHER/x.s", "-o", "PLACE"),
    "zipped": ("vta", "asm", "OTHER/x.s", "-o", "PLACE/x.zip"),
    "disassemble": ("vta", "disasm", "PLACE"),
    "disassembled": ("vta", "disasm", "OTHER/x", "-o", "PLACE"),
    "check": ("vta", "check", "PLACE"),
    "simulate": ("vta", "run", "PLACE"),
    "outputs": ("vta", "run", "OTHER/x", "-o", "PLACE/x.npz"),
    "cycles": ("vta", "cycles", "PLACE"),
    "trace": ("vta", "cycles", "OTHER/x", "--trace", "PLACE"),
}

PROGRAM = """\
.tensor A role=output dtype=int8 shape=1x16
.code
finish
"""


@pytest.fixture(params=["long", "deep", "loop", "full", "no folder", "null"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A path that can neither be read nor written."""
    path = tmp_path / "place"
    if request.param == "loop":
        path.symlink_to(path)
    return {
        "long": str(tmp_path / ("x" * 300)),
        "deep": str(tmp_path / ("x/" * 3000)),
        "full": "/dev/full",
        "no folder": "/proc/nothing/there",
        "null": f"{path}\0",
    }.get(request.param, str(path))


@pytest.fixture
def other(tmp_path: Path, cpembed: Caller) -> Path:
    """A folder with a program for VTA, as text and as it is saved."""
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "x.s").write_text(PROGRAM)
    assert cpembed("vta", "asm", str(folder / "x.s"), "-o", str(folder / "x")).code == 0
    return folder


@pytest.mark.quick(14)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_path_that_is_none_is_one_line(
    cpembed: Caller, command: str, place: str, other: Path, tmp_path: Path
) -> None:
    before = sorted(tmp_path.rglob("*"))
    words = [word.replace("OTHER", str(other)) for word in COMMANDS[command]]
    called = cpembed(*(word.replace("PLACE", place) for word in words))
    called.is_one_line_error(2, "")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", ["x" * 300, "loop", "file/calibration"])
@pytest.mark.parametrize(
    "words", [("calibrate", "--show"), ("solve", *GEMM[:-1], "avx512_vnni", "--estimate")],
    ids=lambda words: words[0],
)  # fmt: skip
def test_a_folder_of_calibrations_that_is_none_is_no_fault(
    cpembed: Caller, tmp_path: Path, name: str, words: Sequence[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(calibration.DIRECTORY_VARIABLE, str(tmp_path / name))
    calibration.calibration.cache_clear()
    called = cpembed(*words)
    calibration.calibration.cache_clear()
    assert called.code == 0
    assert all(line.startswith("cpembed: ") for line in called.err.splitlines())


@pytest.mark.parametrize("name", ["x" * 300, "loop", "file/calibration", "/proc/nothing"])
def test_a_calibration_that_cannot_be_kept_is_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").write_text("")
    measured = calibration.default_calibration(1)
    with pytest.raises(CpembedError, match=r"cannot be (made|written)"):
        calibration.store_calibration(measured, tmp_path / name)


@pytest.fixture
def removed(tmp_path: Path) -> Iterator[Path]:
    """The current folder, which is not there any more."""
    folder, before = tmp_path / "removed", Path.cwd()
    folder.mkdir()
    os.chdir(folder)
    folder.rmdir()
    yield folder
    os.chdir(before)


@pytest.mark.parametrize(
    "words",
    [
        ("run", *GEMM),
        ("build", *GEMM, "--directory", "out"),
        (*NO_RUN, "--results", "rows"),
        ("tune", *GEMM, "--trials", "1", "--database", "trials"),
    ],
    ids=lambda words: words[0],
)
def test_a_current_folder_that_was_removed_is_one_line(
    cpembed: Caller, removed: Path, words: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CPEMBED_IN_PROCESS", raising=False)
    assert not removed.exists()
    cpembed(*words).is_one_line_error(2, "")


@pytest.mark.parametrize("count", ["0", "-1", "1e3", "9" * 5000, "9" * 16, "1\0", "²", "1_0"])
def test_a_count_that_is_none_is_one_line(cpembed: Caller, tmp_path: Path, count: str) -> None:
    path = tmp_path / "suite.csv"
    path.write_text(f"layer,count\ngemm m=1 n=16 k=16,{count}\n")
    called = cpembed("bench", str(path), "--target", "vta_1x16x16", "--no-run")
    called.is_one_line_error(2, "suite.csv:2: count", "is no integer from 1 to 10^15")


def test_a_table_of_millions_of_lines_is_one_line(cpembed: Caller, tmp_path: Path) -> None:
    path = tmp_path / "suite.csv"
    for text in ("layer\n" + "gemm m=1 n=16 k=16\n" * 200_000, "layer\n" + "x" * 2**25):
        path.write_text(text)
        cpembed("bench", str(path), "--target", "vta_1x16x16").is_one_line_error(2, "more than")
