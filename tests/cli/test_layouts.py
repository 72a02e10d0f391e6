"""``cpembed layouts`` as a person or a script sees it."""

from __future__ import annotations

from tests.cli.calling import Caller

CONV = (
    "layouts",
    *[
        "conv2d",
        "n=1",
        "c=16",
        "h=8",
        "w=8",
        "k=16",
        "r=3",
        "s=3",
        "pad=1",
        "--target",
        "vta_1x16x16",
    ],
)


def test_one_row_a_layout_with_the_best_marked(cpembed: Caller) -> None:
    called = cpembed(*CONV)
    assert called.code == 0, called
    lines = called.out.splitlines()
    rows = lines[2:5]
    words = {word for row in rows for word in row.split()}
    assert {"NCHW", "NHWC", "NCHW16c"} <= words
    (best,) = [line for line in rows if line.startswith("best")]
    assert any(line.startswith("why ") and best.split()[1] in line for line in lines)
    assert "estimated for" in called.out


def test_the_document_says_the_same(cpembed: Caller) -> None:
    document = cpembed(*CONV, "--json").json
    assert document["target"] == "vta_1x16x16"
    names = [entry["layout"] for entry in document["layouts"]]
    assert document["best"] in names
    assert document["why"]
    totals = {e["layout"]: e["times"]["total_us"] for e in document["layouts"]}
    assert totals[document["best"]] == min(totals.values())


def test_measuring_is_said(cpembed: Caller) -> None:
    document = cpembed(*CONV, "--measure", "--json").json
    assert {e["times"]["provenance"] for e in document["layouts"]} == {"simulated"}


def test_what_does_not_fit_has_the_exit_code_of_a_search(cpembed: Caller) -> None:
    called = cpembed(*["layouts", "gemm", "m=4", "n=4", "k=4", "--target", "requantize"])
    assert called.code == 3
    assert "Not compared" in called.out


def test_an_operator_without_layouts_is_one_line(cpembed: Caller) -> None:
    called = cpembed(*["layouts", "axpy", "n=16", "--target", "vta_1x16x16"])
    called.is_one_line_error(2, "axpy", "no choice of layouts")
