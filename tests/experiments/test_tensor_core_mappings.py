"""The experiment on free and fixed mappings: its layers, its means, its committed results."""

from __future__ import annotations

from experiments.amos2022.tensor_core_mappings.run import (
    BATCHES,
    FOLDER,
    TARGET,
    gains,
    layers,
    markdown,
    measure,
)
from tests.experiments.loading import committed


def test_the_layers_are_those_of_the_paper() -> None:
    assert len(layers()) == 12


def test_gains_are_geometric_means_over_the_layers_that_a_mapping_has() -> None:
    rows = [
        {"batch": 1, "us": {"free": 2.0, "im2col": 4.0, "fuse_hw": 2.0}},
        {"batch": 1, "us": {"free": 3.0, "im2col": 24.0}},
        {"batch": 16, "us": {"free": 1.0}},
    ]
    assert gains(rows) == {
        "im2col batch 1": {"mean": 4.0, "most": 8.0, "layers": 2},
        "fuse_hw batch 1": {"mean": 1.0, "most": 1.0, "layers": 1},
    }


def test_a_layer_is_as_committed() -> None:
    rows = committed("amos2022/tensor_core_mappings")["rows"]
    (row,) = [row for row in rows if (row["batch"], row["layer"]) == (1, layers()[-2])]
    assert measure(row["layer"], row["batch"], TARGET) == row


def test_the_committed_results_are_consistent() -> None:
    document = committed("amos2022/tensor_core_mappings")
    assert document["provenance"] == "estimated"
    assert document["gains"] == gains(document["rows"])
    assert markdown(document) == (FOLDER / "results.md").read_text(encoding="utf-8")
    for row in document["rows"]:
        assert all(us >= row["us"]["free"] for us in row["us"].values())
    found = {(row["batch"], row["layer"]) for row in document["rows"]}
    assert found == {(batch, number) for batch in BATCHES for number in layers()}
