"""``cpembed explore`` and ``shape`` on a person's own file, through the front door."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.calling import Caller
from tests.unit.exploration.described.machines import layers, written

SUITE = ("gemm m=30 n=20 k=24", "gemm m=7 n=64 k=33")
KEY = 'memories."on.chip".capacity_bytes'


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    return [str(written(tmp_path)), layers(tmp_path, *SUITE, '"Y[a]max=X[a,b] a=4 b=5"')]


def explored(words: list[str], folder: Path) -> list[str]:
    return [
        *("explore", *words, "--results", str(folder / "kept")),
        *("--vary", "instruction.axes.x=4,6,12", "--vary", f"{KEY}=4KiB..8KiB*2"),
        *("--derive", "machines.soc.compute.cycles=instruction.axes.x"),
    ]


def test_a_front_of_keys_names_parameters_and_what_is_left_out(
    cpembed: Caller, words: list[str], tmp_path: Path
) -> None:
    page = tmp_path / "front.html"
    called = cpembed(*explored(words, tmp_path), "--page", str(page), "--pick", "0")
    assert called.code == 0, called.err
    for text in ("x  capacity_bytes", "Left out of the sums", "Y[a]max=X[a,b]", "(all points)"):
        assert text in called.out
    text = page.read_text()
    assert text.count("<article") >= 1
    assert "instruction.axes.x = 4" in text


def test_points_are_saved_as_targets_that_solve_to_their_time(
    cpembed: Caller, words: list[str], tmp_path: Path
) -> None:
    saved = tmp_path / "best.toml"
    call = [*explored(words, tmp_path), "--objectives", f"time,{KEY}", "--json"]
    called = cpembed(*call, "--save-target", str(saved))
    assert called.code == 0, called.err
    document = json.loads(called.out)
    first = next(row for row in document["rows"] if row["number"] == document["front"][0])
    assert set(first["objectives"]) == {"time_us", KEY}
    solve = ["solve", *SUITE[0].split(), "--target", str(saved), "--estimate", "--json"]
    solved = json.loads(cpembed(*solve, "--rank-by", "estimate", "--top", "1").out)
    layer = next(layer for layer in first["layers"] if layer["index"] == 0)
    assert solved["embeddings"][0]["estimate"]["total_us"] == layer["details"]["us"]


def test_shapes_by_time_are_saved_with_their_machine(
    cpembed: Caller, words: list[str], tmp_path: Path
) -> None:
    saved = tmp_path / "shape.toml"
    called = cpembed(
        *("shape", words[1], "--macs", "64", "--multiple", "x=1,y=4,z=4", "--target", words[0]),
        *("--within", "10", "--save", str(saved), "--json"),
    )
    assert called.code == 0, called.err
    document = json.loads(called.out)
    assert document["unit"] == "us"
    assert document["proven"]
    assert document["multiples"] == [1, 4, 4]
    assert document["left_out"][0]["index"] == 2
    assert document["us"] == sum(layer["us"] for layer in document["layers"])
    layer = document["layers"][0]
    solve = ["solve", *SUITE[0].split(), "--target", str(saved), "--estimate", "--json"]
    solve += ["--constraints", document["constraints"], "--rank-by", "estimate", "--top", "1"]
    solved = json.loads(cpembed(*solve).out)
    assert solved["embeddings"][0]["estimate"]["total_us"] == layer["us"]
    table = cpembed("shape", words[1], "--macs", "64", "--multiple", "4", "--target", words[0])
    for text in ("time us", "estimated for odd, soc, proven", "that are multiples of 4"):
        assert text in table.out


@pytest.mark.parametrize(
    "more, words_of_error",
    [
        (["--vary", "instruction.axes.w=4"], "no instruction.axes.w"),
        (["--vary", "instruction.axes.x=9..4"], "from 9 is above to 4"),
        (["--vary", "instruction.axes.x=4", "--where", "x < 3"], "--where 'x < 3': no parameter"),
        (["--vary", "instruction.axes.x=4", "--derive", "name"], "it is not KEY=VALUES"),
        (["--vary", "instruction.axes.x=4", "--machine", "sac"], "no machine 'sac'"),
        (["--vary", "instruction.axes.x=4", "--technology", "7nm"], "unknown technology"),
        (["--vary", "instruction.axes.x=4", "--constraints", "boxs"], "did you mean boxes"),
        ([], "name keys by --vary KEY=VALUES"),
    ],
)
def test_wrong_words_are_one_line(
    cpembed: Caller, words: list[str], more: list[str], words_of_error: str, tmp_path: Path
) -> None:
    called = cpembed("explore", *words, "--results", str(tmp_path), *more)
    assert called.code == 2
    assert words_of_error in called.err
    assert len(called.err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "more, words_of_error",
    [
        (["--multiple", "0"], "is no number"),
        (["--multiple", "w=4"], "is no number"),
        (["--multiple", "4,4"], "give one number for all axes, three for x, y and z, or names"),
        (["--multiple", "4,4,64"], "multiples of (4, 4, 64)"),
        (["--target", "tpu_like"], "an instruction set has no shape to compare"),
        (["--machine", "soc"], "need --target"),
        (["--target", "gemmini_16x16", "--packing", "4"], "counts packing by its time"),
        (["--target", "gemmini_16x16", "--dtypes", "int8,int8,int32"], "types of its own"),
        (["--dtypes", "int8,int9,int32"], "did you mean int8"),
        (["--multiple", "5"], "allow smaller extents"),
    ],
)
def test_wrong_shapes_are_one_line(
    cpembed: Caller, words: list[str], more: list[str], words_of_error: str
) -> None:
    called = cpembed("shape", words[1], "--macs", "64", *more)
    assert called.code == 2
    assert words_of_error in called.err


def test_a_derived_key_that_is_misspelt_is_said(cpembed: Caller, words: list[str]) -> None:
    """No shape is a machine with it, which is no reason to allow more shapes."""
    derived = ("--derive", "machines.soc.compute.cycle=x")
    called = cpembed("shape", words[1], "--macs", "64", "--target", words[0], *derived)
    assert called.code == 2
    assert "--derive machines.soc.compute.cycle: unknown key" in called.err
    assert "did you mean cycles?" in called.err
