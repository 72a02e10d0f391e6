"""Printed reports against stored ones; ``--update-golden`` rewrites them, for a person to read."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.calling import Caller

Golden = Callable[[str, str], None]

LAYER = ("conv2d", "n=1", "c=12", "h=10", "w=10", "k=32", "r=3", "s=3", "pad=1", "stride=1,2")

REPORTS = {
    "solve_vnni.txt": ("solve", *LAYER, "--target", "avx512_vnni"),
    "pareto_amx.txt": (
        *("solve", "conv2d", "n=1", "c=3", "h=10", "w=12", "k=16", "r=3", "s=3", "pad=1"),
        *("--target", "amx_int8", "--pareto", "--constraints", "in_place_padded"),
    ),
    "estimate_vta.txt": (
        *("solve", "conv2d", "n=1", "c=60", "h=28", "w=28", "k=64", "r=3", "s=3", "pad=1"),
        *("--target", "vta_1x16x16", "--constraints", "fused", "--rank-by", "estimate"),
    ),
    "explain_vnni.txt": ("explain", *LAYER, "--target", "avx512_vnni", "--rank", "2"),
    "explain_fused.txt": (
        *("explain", "conv2d", "n=1", "c=3", "h=12", "w=12", "k=16", "r=7", "s=7"),
        *("--target", "vta_1x16x16", "--constraints", "flattened"),
    ),
    "explain_vta.txt": ("explain", "gemm", "m=5", "n=32", "k=40", "--target", "vta_1x16x16"),
    "run_vta.txt": (
        *("run", "gemm", "m=8", "n=60", "k=200"),
        *("--target", "vta_1x16x16", "--seed", "1"),
    ),
    "tune_vta.txt": (
        *("tune", "gemm", "m=8", "n=60", "k=200"),
        *("--target", "vta_1x16x16", "--trials", "16"),
    ),
}


def without_times(text: str) -> str:
    text = re.sub(r"; \d+\.\d\d s$", "; TIME", text, flags=re.MULTILINE)
    text = re.sub(r"^noisy .*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"new, \d+\.\d s$", "new, TIME", text, flags=re.MULTILINE)
    text = re.sub(r"trials in \S+$", "trials in FILE", text, flags=re.MULTILINE)
    return re.sub(r"packing {6}\S+ [um]?s, unpacking \S+ [um]?s", "packing      TIMES", text)


@pytest.fixture
def cpembed(capsys: pytest.CaptureFixture[str]) -> Caller:
    return Caller(capsys)


@pytest.mark.parametrize("name", REPORTS)
def test_report_is_the_stored_one(
    name: str,
    cpembed: Caller,
    golden: Golden,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CPEMBED_TUNE_DIR", str(tmp_path))
    called = cpembed(*REPORTS[name])
    assert (called.code, called.err) == (0, "")
    assert not re.search(r"[ \t]$", called.out, re.MULTILINE)
    golden(name, without_times(called.out))


@pytest.mark.parametrize(
    "name, start, document",
    [
        ("pareto_amx.txt", "not dominated", "how-to/find-embeddings.md"),
        ("explain_vta.txt", "embedding  ", "how-to/explain.md"),
        ("run_vta.txt", "verified ", "vta.md"),
        ("tune_vta.txt", "constraints ", "how-to/tune.md"),
    ],
)
def test_the_page_shows_what_is_printed(name: str, start: str, document: str) -> None:
    report = (Path(__file__).parent / name).read_text(encoding="utf-8")
    shown = report[report.index(start) :].split("\n\nmapping: ")[0].rstrip()
    page = (Path(__file__).parents[2] / "docs" / document).read_text(encoding="utf-8")
    page = (
        without_times(page).replace("new, …", "new, TIME").replace("trials in …", "trials in FILE")
    )
    assert textwrap.indent(shown, "    ") in page
    assert f"    $ cpembed {' '.join(REPORTS[name])}" in page
