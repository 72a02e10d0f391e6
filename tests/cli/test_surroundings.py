"""Commands where files and folders are not what they should be: a line, nothing half-written."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

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
}


@pytest.fixture(params=["long", "deep", "loop", "full", "no folder"])
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
    }.get(request.param, str(path))


@pytest.mark.quick(12)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_path_that_is_none_is_one_line(
    cpembed: Caller, command: str, place: str, tmp_path: Path
) -> None:
    before = sorted(tmp_path.rglob("*"))
    called = cpembed(*(word.replace("PLACE", place) for word in COMMANDS[command]))
    called.is_one_line_error(2, "")
    assert sorted(tmp_path.rglob("*")) == before


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
