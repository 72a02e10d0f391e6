"""Points of an instruction set's file: what depends on what a point removes goes with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cpembed.exploration.explore import ExploreResult, open_exploration
from cpembed.hw.isa_reader import load_instruction_set
from cpembed.runtime.cluster import open_workers


def explored(vary: list[str], folder: Path, target: str = "gemmini") -> ExploreResult:
    table = folder / "layers.csv"
    table.write_text("layer\ngemm m=40 n=30 k=20\n")
    exploration = open_exploration(target, str(table), vary=vary, results=folder)
    with open_workers() as workers:
        for _ in exploration.run(workers):
            pass
    return exploration.result()


def test_registers_go_with_the_instructions_that_read_them(tmp_path: Path) -> None:
    result = explored(["instructions.mvin_b=present,absent"], tmp_path)
    family = result.space.family
    points = {str(p.point["instructions.mvin_b"]): p for p in result.evaluated}
    (layer,) = points["absent"].layers
    (reason,) = layer.choice.details["absent"]
    assert "memories.stride_b: is set by config_stride_b and no instruction reads it" in reason
    # The point's file is one that the reader takes, and has the cycles of the point.
    path = tmp_path / "point.toml"
    path.write_text(family.specification(points["absent"].point))
    machine = load_instruction_set(str(path))
    whole = load_instruction_set("gemmini")
    assert set(whole.instructions) - set(machine.instructions) == {"mvin_b", "config_stride_b"}
    assert set(whole.memories) - set(machine.memories) == {"stride_b"}
    assert points["absent"].costs.cycles >= points["present"].costs.cycles


def test_instructions_without_room_are_left_out_and_named(tmp_path: Path) -> None:
    result = explored(["memories.scratchpad.rows=512,16384"], tmp_path)
    points = {p.point["memories.scratchpad.rows"]: p for p in result.evaluated}
    (small,), (large,) = points[512].layers, points[16384].layers
    assert not large.choice.details["absent"]
    (reason,) = small.choice.details["absent"]
    assert reason.startswith("instructions.mvout_pool3_scratchpad.operands.S.rows: takes 8,001")
    # Room never costs cycles.
    assert points[16384].costs.cycles <= points[512].costs.cycles


@pytest.mark.parametrize("dim, least", [(8, 4), (16, 1), (32, 1)])
def test_the_mesh_is_one_key(tmp_path: Path, dim: int, least: int) -> None:
    """A mesh of 8 x 8 needs at least 5 x 4 x 3 products of 8 rows each."""
    (point,) = explored([f"constants.dim={dim}"], tmp_path).evaluated
    (layer,) = point.layers
    counts = layer.choice.details["instructions"]
    executions = counts.get("compute", 0) + counts["compute_first"]
    assert executions >= -(-40 // dim) * -(-30 // dim) * -(-20 // dim)
    assert layer.costs.cycles >= executions * least
