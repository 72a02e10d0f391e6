"""The time of several processes beside one: what is counted, and what is written."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import distribution
from cpembed.runtime.measurement.environment import provenance


def _pair(one: float, several: float) -> dict[str, Any]:
    runs = {"one": one, "several": several}
    return {"load": 0.1} | {name: {"wall_s": s, "cpu_s": 2 * s} for name, s in runs.items()}


def test_the_ratio_is_that_of_pairs() -> None:
    found = distribution.summary([_pair(6.0, 3.0), _pair(5.0, 4.0), _pair(9.0, 5.0)])
    assert (found["one_s"], found["several_s"]) == (6.0, 4.0)
    assert (found["least_ratio"], found["ratio"], found["largest_ratio"]) == (1.25, 1.8, 2.0)


def test_the_page_has_the_figures_and_where_they_are_from() -> None:
    pairs = [_pair(6.0, 3.0)]
    options = {"suite": "deepbench", "target": "vta_1x16x16", "workers": 2}
    document = {"options": options, "pairs": pairs, "summary": distribution.summary(pairs)}
    text = distribution.markdown({**provenance(), **document})
    assert "| one process | 6.00 | 12.00 |" in text
    assert "| `--workers 2` | 3.00 | 6.00 |" in text
    assert "Ratio 2.00 in the median of 1 pairs" in text
    assert "load average" in text


def test_rows_that_differ_in_more_than_times_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"suite": "deepbench", "target": "vta_1x16x16", "workers": 2}

    def timed(command: list[str]) -> tuple[dict[str, float], Any]:
        several = "--workers" in command
        rows = [{"index": 0, "seconds": 1.0 + several, "count": 1 + several * wrong}]
        return {"wall_s": 2.0 - several, "cpu_s": 2.0}, {"rows": rows}

    monkeypatch.setattr(distribution, "timed", timed)
    wrong = 0
    assert distribution.pair(options, 0)["several"]["wall_s"] == 1.0
    wrong = 1
    with pytest.raises(SystemExit, match="rows differ"):
        distribution.pair(options, 0)


@pytest.mark.slow
def test_the_script_on_a_small_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["--suite", "odd", "--repeats", "1", "--output", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["distribution.py", *arguments])
    distribution.main()
    document = json.loads((tmp_path / "distribution.json").read_text())
    assert len(document["pairs"]) == 1
    assert document["pairs"][0]["one"]["wall_s"] > 0
    assert "`--workers 2`" in (tmp_path / "distribution.md").read_text()
