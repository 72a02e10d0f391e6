"""``cpembed bench`` on several targets, and of suites of a user's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.calling import Caller

TARGETS = ("--target", "vta_1x16x16", "--target", "gemm_16x16x16")


@pytest.fixture
def bench(tmp_path: Path) -> tuple[str, ...]:
    path = tmp_path / "mine.csv"
    path.write_text('layer,count\ngemm m=8 n=32 k=32,3\n"C[m] max= A[m,k] * B[k] m=8 k=16",1\n')
    return ("bench", str(path), "--results", str(tmp_path))


def test_one_table_and_a_line_a_target(cpembed: Caller, bench: tuple[str, ...]) -> None:
    called = cpembed(*bench, *TARGETS)
    assert called.code == 0, called
    lines = called.out.splitlines()
    head = "# layer vta_1x16x16 time gemm_16x16x16 time"
    assert lines[0].split() == head.split()
    assert lines[2].split()[:5] == ["0", "gemm", "m=8", "n=32", "k=32"]
    assert "100.0%" in lines[2]
    assert "cycles" in lines[2]
    assert lines[3].split()[-4:] == ["not", "embedded"] * 2
    (vta,) = [line for line in lines if line.startswith("vta_1x16x16 ")]
    assert "3 of 4" in vta
    assert "simulated" in vta
    assert "Not embedded on vta_1x16x16" in called.out
    assert "layer 1: " in called.out


def test_the_document_has_each_bench_and_the_lines(cpembed: Caller, bench: tuple[str, ...]) -> None:
    document = cpembed(*bench, *TARGETS, "--json").json
    assert document["suite"] == "mine.csv"
    assert [each["target"] for each in document["targets"]] == list(TARGETS[1::2])
    assert set(document["lines"]) == set(TARGETS[1::2])
    assert document["lines"]["gemm_16x16x16"]["utilisation"] == 0.5
    first, second = document["layers"]
    assert first["targets"]["vta_1x16x16"]["time"]["unit"] == "cycles"
    assert second["targets"]["vta_1x16x16"]["embedded_on"] is None


def test_one_target_prints_what_it_always_did(cpembed: Caller, bench: tuple[str, ...]) -> None:
    document = cpembed(*bench, *TARGETS[:2], "--json").json
    assert "lines" not in document
    assert document["target"] == "vta_1x16x16"


@pytest.mark.parametrize(
    "options, said",
    [
        (("--baseline", "onednn"), "apply to one target"),
        (("--target", "vta_1x16x16"), "more than once"),
    ],
)
def test_what_is_of_one_target_is_refused_for_several(
    cpembed: Caller, bench: tuple[str, ...], options: tuple[str, ...], said: str
) -> None:
    cpembed(*bench, *TARGETS, *options).is_one_line_error(2, said)


def test_a_table_that_is_not_there_is_one_line(cpembed: Caller) -> None:
    cpembed("bench", "nowhere.csv", *TARGETS).is_one_line_error(2, "nowhere.csv", "cannot be read")


def test_shapes_are_of_models(cpembed: Caller, bench: tuple[str, ...]) -> None:
    called = cpembed(*bench, *TARGETS, "--shape", "x=1,2")
    called.is_one_line_error(2, "not a model", "--shape")


def test_a_layout_of_an_expression_is_refused_before_anything_runs(
    cpembed: Caller, bench: tuple[str, ...]
) -> None:
    called = cpembed(*bench, *TARGETS, "--layout", "NHWC")
    called.is_one_line_error(2, "leave layout out")
