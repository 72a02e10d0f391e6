"""``cpembed explain --svg`` and ``--html``."""

from __future__ import annotations

from pathlib import Path

from tests.cli.calling import Caller

GEMM = ("explain", "gemm", "m=5", "n=32", "k=40", "--target", "vta_1x16x16")


def test_the_files_are_written_beside_the_text(cpembed: Caller, tmp_path: Path) -> None:
    svg, html = tmp_path / "a.svg", tmp_path / "a.html"
    called = cpembed(*GEMM, "--svg", str(svg), "--html", str(html))
    assert (called.code, called.err) == (0, "")
    assert called.out.splitlines()[0] == cpembed(*GEMM).out.splitlines()[0]
    assert svg.read_text(encoding="utf-8").startswith("<svg ")
    assert html.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_json_stays_one_document(cpembed: Caller, tmp_path: Path) -> None:
    called = cpembed(*GEMM, "--svg", str(tmp_path / "a.svg"), "--json")
    assert called.json["embedding"]["rank"] == 1


def test_a_folder_that_is_not_there_is_said(cpembed: Caller, tmp_path: Path) -> None:
    path = tmp_path / "none" / "a.svg"
    called = cpembed(*GEMM, "--svg", str(path))
    called.is_one_line_error(2, str(path.parent), "does not exist: make it")


def test_nothing_to_draw_is_said(cpembed: Caller, tmp_path: Path) -> None:
    path = tmp_path / "a.svg"
    words = ("gemm", "m=4", "n=8", "k=64", "--target", "vta_1x16x16", "--constraints", "strict")
    called = cpembed("explain", *words, "--svg", str(path))
    assert called.code == 3
    assert f"{path} is not written" in called.err
    assert not path.exists()
