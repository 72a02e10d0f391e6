"""The neutral estimate beside other models: a small row of each, and the committed results."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.common import load
from tests.experiments.loading import EXPERIMENTS, script


@pytest.mark.parametrize("key", ["vta_1x16x16/deepbench:103", "avx512_vnni/unit16:9"])
def test_a_layer_is_compared_and_stored(key: str, tmp_path: Path) -> None:
    experiment = script("studies/machine_model")
    experiment.EXPERIMENT.run([key], 3, tmp_path)
    row = load(tmp_path)[key]
    assert 1 <= row["trials"] <= 3
    assert row["trials"] + row["left_out"] <= row["found"]
    for entry in row["candidates"]:
        assert entry["kernel"] > 0
        assert 0.1 < entry["estimate"] / entry["kernel"] < 10
    assert min(row["loss"], row["loss_overheads"]) >= 0
    assert f"`{row['layer']}`" in (tmp_path / "results.md").read_text()


@pytest.mark.parametrize(
    "first, second, expected",
    [
        ([1, 2, 3], [10, 20, 30], 1.0),
        ([1, 2, 3], [30, 20, 10], -1.0),
        # Two that are equal share the place between them: ranks 0, 1.5, 1.5 and 0, 1, 2.
        ([1, 2, 2], [1, 2, 3], 0.866025),
        ([1, 2, 2.0001], [1, 2, 3], 0.866025),
        ([1, 2], [1, 2], None),
        ([1, 1, 1], [1, 2, 3], None),
    ],
)
def test_rank_correlation(first: list[float], second: list[float], expected: float | None) -> None:
    assert script("studies/machine_model").spearman(first, second) == expected


def test_the_best_and_some_of_the_rest_are_looked_at() -> None:
    sample = script("studies/machine_model").sample
    assert sample(tuple(range(5)), 12) == tuple(range(5))
    assert sample(tuple(range(100)), 3) == (0, 1, 2)
    taken = sample(tuple(range(100)), 12)
    assert taken[:5] == tuple(range(5))
    assert len(set(taken)) == len(taken) == 12
    assert taken == tuple(sorted(taken))


def test_every_layer_is_in_the_committed_results() -> None:
    rows = load(EXPERIMENTS / "studies/machine_model")
    assert set(rows) == set(script("studies/machine_model").ROWS)
    readme = (EXPERIMENTS / "studies/machine_model" / "README.md").read_text()
    assert "rank correlation" in readme
    for row in rows.values():
        assert row["trials"] == len(row["candidates"]) > 0
