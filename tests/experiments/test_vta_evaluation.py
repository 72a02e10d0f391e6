"""The experiments on VTA: a small row of each, and the committed results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments.common import geometric_mean, load
from experiments.rieber2021 import comparison
from tests.experiments.loading import EXPERIMENTS, committed, script

FIGURES = [("figure6", "103"), ("figure7", "103")]
TABLES = ["table3", "table4", "table5"]


@pytest.mark.parametrize("name, key", FIGURES)
def test_a_layer_is_computed_stored_and_not_computed_again(
    name: str, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = script(f"rieber2021/{name}").EXPERIMENT
    experiment.run([key], 2, tmp_path)
    row = load(tmp_path)[key]
    assert row["verified"] is True
    assert row["reference"]["simulated"] <= 2
    assert f"| {key} `{row['layer']}`" in (tmp_path / "results.md").read_text()

    def never(*_: object) -> Any:
        raise AssertionError("computed again")

    monkeypatch.setattr(script(f"rieber2021/{name}"), "tune", never)
    experiment.run([key], 2, tmp_path)
    assert load(tmp_path)[key] == row


@pytest.mark.slow
def test_a_layer_is_tuned_executed_and_put_beside_its_bounds(tmp_path: Path) -> None:
    script("studies/tuned_layers").EXPERIMENT.run(["103"], 2, tmp_path)
    row = load(tmp_path)["103"]
    assert row["verified"]
    assert row["bound"] <= row["busiest"] <= row["tuned"] <= row["untuned"]
    text = (tmp_path / "results.md").read_text()
    assert f"| 103 `{row['layer']}` | {row['untuned']:,} | {row['tuned']:,} |" in text


@pytest.mark.slow
@pytest.mark.parametrize("name, key", [("table3", "13"), ("table4", "13"), ("table5", "1")])
def test_a_row_of_a_table(name: str, key: str, tmp_path: Path) -> None:
    script(f"rieber2021/{name}").EXPERIMENT.run([key], 2, tmp_path)
    row = load(tmp_path)[key]
    assert row["verified"]
    assert comparison.speedups(row)["operator"] > 1
    assert (tmp_path / "results.md").read_text().count(f"| {key} (") == 1


def test_the_paper_ran_62_layers_and_none_of_few_channels() -> None:
    figure = script("rieber2021/figure6")
    assert len(figure.PAPER) == 62
    low = {0, 1, 2, 6, 10, 15, 21, 27, 34, 41, 60, 68}
    assert not figure.PAPER & low


# Geometric means that the paper states below its tables.
MEANS = {
    "table3": (8.788, 0.069, 2.813),
    "table4": (6.068, 0.053, 1.938),
    "table5": (6.26, 4.21, 4.99),
}


@pytest.mark.parametrize("name", TABLES)
def test_the_papers_rows_have_the_means_that_it_states(name: str) -> None:
    rows = script(f"rieber2021/{name}").PAPER
    for column, stated in zip(zip(*rows, strict=True), MEANS[name], strict=True):
        assert geometric_mean(column) == pytest.approx(stated, rel=0.02)


@pytest.mark.parametrize("name", ["figure6", "figure7", *TABLES])
def test_committed_rows_are_verified_and_tables_are_theirs(name: str) -> None:
    experiment = script(f"rieber2021/{name}").EXPERIMENT
    rows = load(EXPERIMENTS / "rieber2021" / name)
    table = (EXPERIMENTS / "rieber2021" / name / "results.md").read_text()
    assert rows
    assert set(rows) <= set(experiment.keys)
    assert all(row["verified"] for row in rows.values())
    ordered = [rows[key] for key in experiment.keys if key in rows]
    assert table.startswith("\n".join(experiment.markdown(ordered)))
    assert committed(f"rieber2021/{name}")["rows"] == ordered
