"""The experiment on free and fixed mappings: what counts as fixed, and what its tables say."""

from __future__ import annotations

import json

from cpembed.api.solve import workload
from experiments.tensor_core_mappings.run import FIXED, HERE, gains, layers, markdown

GIVEN = workload("conv2d n=4 c=32 h=8 w=8 k=16 r=3 s=3 pad=1 layout=NHWC")


def test_fixed_mappings_are_recognised() -> None:
    whole = {"x": ("n", "q", "p"), "y": ("k",), "z": ("s", "c", "r")}
    rows = {"x": ("q", "p"), "y": ("k",), "z": ("c",)}
    other = {"x": ("p",), "y": ("k",), "z": ("c",)}
    found = [
        [name for name, is_it in FIXED.items() if is_it(f, GIVEN)] for f in (whole, rows, other)
    ]
    assert found == [["im2col"], ["fuse_hw"], []]


def test_the_layers_are_those_of_the_paper() -> None:
    assert len(layers()) == 12


def test_the_committed_results_are_consistent() -> None:
    document = json.loads((HERE / "results.json").read_text(encoding="utf-8"))
    assert document["provenance"] == "estimated"
    assert document["gains"] == gains(document["rows"])
    assert markdown(document) == (HERE / "results.md").read_text(encoding="utf-8")
    for row in document["rows"]:
        assert all(us >= row["us"]["free"] for us in row["us"].values())
    assert {(row["batch"], row["layer"]) for row in document["rows"]} == {
        (batch, number) for batch in (1, 16) for number in layers()
    }
