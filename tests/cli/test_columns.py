"""Lists and tables on a terminal of 80 columns, and in pipes: nothing is cut off."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from cpembed.blocks import Table
from cpembed.graph.graph import Graph
from tests.cli.calling import Caller
from tests.cli.test_explore import Explored, explored
from tests.cli.test_match import PRODUCTS, model, network

__all__ = ["explored", "model"]

WIDTH = 80

LAYER = ("conv2d", "n=1", "c=12", "h=10", "w=10", "k=32", "r=3", "s=3", "pad=1", "stride=1,2")
VTA = ("--target", "vta_1x16x16")
GEMM = ("gemm", "m=8", "n=60", "k=200")
LAYERS = ("bench", "unit16", *VTA, "--layers", "0,1")

COMMANDS = {
    "targets": ("targets",),
    "operators": ("operators",),
    "solve": ("solve", *LAYER, *VTA, "--all", "--verbose"),
    "pareto": ("solve", *LAYER, *VTA, "--pareto"),
    "estimate": ("solve", *LAYER, *VTA, "--estimate"),
    "explain": ("explain", *LAYER, *VTA),
    "infeasible": ("explain", "gemm", "m=3", "n=5", "k=7", *VTA, "--constraints", "strict"),
    "run": ("run", *GEMM, *VTA, "--seed", "1"),
    "tune": ("tune", *GEMM, *VTA, "--trials", "8"),
    "records": ("tune", "--show"),
    "layouts": ("layouts", *GEMM, "--target", "avx512_vnni"),
    "shape": ("shape", "unit16", "--macs", "16", "--within", "20"),
    "bench": (*LAYERS, "--no-run"),
    "bench run": LAYERS,
    "bench across": (*LAYERS, "--no-run", "--target", "avx512_vnni"),
    "match": ("match", "MODEL", *VTA),
    "match across": ("match", "MODEL", *VTA, "--target", "avx512_vnni"),
    "network": ("network", "MODEL", *VTA),
    "explore": ("EXPLORE", "--pick", "0"),
    "calibrate": ("calibrate", "--show"),
    "cycles": ("vta", "cycles", "PROGRAM"),
    "vta run": ("vta", "run", "PROGRAM"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of what all commands of this module store."""
    return tmp_path_factory.mktemp("columns")


@pytest.fixture
def call(
    cpembed: Caller,
    folder: Path,
    model: Callable[[Graph], Path],
    explored: Explored,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[str], str]:
    """Prints a command's report on stdout."""
    for variable in ("TUNE", "CALIBRATION"):
        monkeypatch.setenv(f"CPEMBED_{variable}_DIR", str(folder / variable))
    program = folder / "program.zip"

    def printed(name: str) -> str:
        words = list(COMMANDS[name])
        if "PROGRAM" in words and not program.exists():
            assert cpembed("run", *GEMM, *VTA, "--save", str(program)).code == 0
        if "MODEL" in words:
            words[words.index("MODEL")] = str(model(network("net", PRODUCTS)))
        if words[0] == "EXPLORE":
            words[:1] = explored.words
        if "PROGRAM" in words:
            words[words.index("PROGRAM")] = str(program)
        if name == "records":
            assert cpembed(*COMMANDS["tune"]).code == 0
        if words[0] == "bench":
            words += ["--results", str(folder / "results")]
        called = cpembed(*words)
        assert called.code == (3 if name == "infeasible" else 0), called
        return called.out

    return printed


@pytest.mark.parametrize("name", COMMANDS)
def test_every_table_fits_80_columns(
    call: Callable[[str], str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks: list[Any] = []
    usual = Console.print

    def recorded(console: Console, *objects: Any, **settings: Any) -> None:
        blocks.extend(objects)
        usual(console, *objects, **settings)

    # One call, printed twice: a second call would measure other times, with other notes on them.
    with monkeypatch.context() as patch:
        patch.setattr(Console, "print", recorded)
        in_pipe = call(name)
    page = io.StringIO()
    terminal = Console(file=page, highlight=False, width=WIDTH, color_system=None)
    for block in blocks:
        terminal.print(block)
    lines = page.getvalue().splitlines()
    assert lines
    wide = [line for line in lines if cell_len(line) > WIDTH]
    assert not wide
    assert "…" not in "".join(lines) + in_pipe
    # Folding changes spaces and the order of words of different cells, but loses none.
    stable = [word for word in in_pipe.split() if re.fullmatch(r"[A-Za-z_]{4,20}[:;,]?", word)]
    shown = "".join("".join(lines).split())
    assert not [word for word in stable if word not in shown and not _is_folded(word, lines)]


@pytest.mark.parametrize("name", ["targets", "operators", "explain"])
def test_a_terminal_folds_lines(
    call: Callable[[str], str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert any(cell_len(line) > WIDTH for line in call(name).splitlines())
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    lines = re.sub(r"\x1b\[[0-9;]*m", "", call(name)).splitlines()
    assert lines
    assert all(cell_len(line) <= WIDTH for line in lines)


def _is_folded(word: str, lines: list[str]) -> bool:
    """True if a word that is longer than its column continues on the next line."""
    text = " ".join(lines)
    return any(word[:cut] in text and word[cut:] in text for cut in range(2, len(word) - 1))


@pytest.mark.parametrize("width", [30, 50, 80, 120])
def test_a_wide_table_is_split_and_numbers_stay_in_one_piece(width: int) -> None:
    columns = ["name", *(f"number {n}>" for n in range(8)), "reason"]
    rows = [[f"row{k}", *(f"{10**6 + k:,}" for _ in range(8)), "because " * 6] for k in range(3)]
    page = io.StringIO()
    Console(file=page, width=width).print(Table(columns, rows))
    text = page.getvalue()
    assert all(len(line) <= width for line in text.splitlines())
    assert text.count("1,000,001") == 8
    assert text.count("because") == 18
    assert text.count("row1") == len(re.findall(r"^name", text, re.MULTILINE))
