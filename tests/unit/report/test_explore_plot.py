"""The drawing of a front."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from cpembed.exploration.explore import open_exploration
from cpembed.exploration.options import Method
from cpembed.report.plots import front_svg
from cpembed.runtime.cluster import open_workers
from tests.unit.exploration.cases import space


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="missing: matplotlib")
@pytest.mark.parametrize("method, words", [("exact", "energy"), ("random", "hypervolume")])
def test_a_drawing_names_what_it_shows(tmp_path: Path, method: Method, words: str) -> None:
    suite = tmp_path / "suite.csv"
    suite.write_text("layer\ngemm m=8 n=16 k=16\n")
    exploration = open_exploration(
        space(tmp_path), str(suite), method=method, limits=["area=0.02mm2"], results=tmp_path
    )
    with open_workers() as workers:
        for _ in exploration.run(workers):
            pass
    drawn = front_svg(exploration.result())
    assert drawn == front_svg(exploration.result())
    for said in (words, "front", "simulated", "area (mm2)", "random"):
        assert said in drawn
