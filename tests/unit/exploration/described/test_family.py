"""Machines of a specification whose keys vary: each point is what its file would be."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest

from cpembed.driver.estimate import estimate
from cpembed.errors import SpecError
from cpembed.exploration.described.embedded import EmbeddedFamily
from cpembed.exploration.explore import ExploreResult, open_exploration
from cpembed.exploration.objectives import EvaluatedPoint
from cpembed.exploration.options import ExploreOptions
from cpembed.exploration.space_file import read_space
from cpembed.hw.loader import load_hardware_spec
from cpembed.runtime.cluster import open_workers
from tests.unit.exploration.described.machines import TEXT, layers, written

MAXIMUM = '"Y[a]max=X[a,b] a=4 b=5"'
GEMMS = ("gemm m=30 n=20 k=24", "gemm m=7 n=64 k=33")


def explored(folder: Path, vary: list[str], suite: str, **options: Any) -> ExploreResult:
    path = options.pop("path", None) or written(folder)
    exploration = open_exploration(path, suite, vary=vary, results=folder / "store", **options)
    with open_workers() as workers:
        for _ in exploration.run(workers):
            pass
    return exploration.result()


def us_of(point: EvaluatedPoint) -> list[float]:
    return [item.costs.cycles / point.machine.clock_mhz for item in point.layers]


CHOICES: dict[str, list[str]] = {
    "instruction.axes.x": ["4", "6", "16"],
    "instruction.axes.y": ["8", "10", "11"],
    "instruction.axes.z": ["12", "16", "1"],
    'memories."on.chip".capacity_bytes': ["2KiB", "8KiB", "100000"],
    "memories.sums.capacity_bytes": ["4096", "2600", "absent"],
    "machines.soc.compute.cycles": ["1", "6", "12.5"],
    "machines.soc.clock_mhz": ["100", "400"],
    'machines.soc.memories."on.chip".banks': ["1", "4", "absent"],
    "machines.soc.memories.sums.overlap": ["none", "hardware", "double_buffer"],
    "machines.soc.memories.dram.read_bytes_per_cycle": ["1", "4", "32"],
    "machines.soc.memories.dram.half_duplex": ["true", "false"],
    "machines.soc.layouts": ["original", "packed"],
    "operands.A.tile": ['["x","z"]', '["z","x"]'],
    "operands.A.stride": ['{ x = "any" }', '{ z = "any", x = "any" }'],
    "operands.C.dtype": ["int32", '["int32", "int64"]'],
}


@pytest.mark.quick(4)
@pytest.mark.parametrize("seed", range(24))
def test_a_point_costs_what_its_saved_file_costs(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    keys = chance.sample(list(CHOICES), 3)
    vary = [f"{key}={','.join(CHOICES[key][:2])}" for key in keys]
    result = explored(tmp_path, vary, layers(tmp_path, *GEMMS), bounds=False, objectives=["time"])
    assert result.search.points == 8
    for point in result.evaluated:
        saved = tmp_path / f"point{point.number}.toml"
        saved.write_text(result.space.family.specification(point.point))
        for item, us in zip(point.layers, us_of(point), strict=True):
            spec = load_hardware_spec(saved)
            alone = estimate(item.layer.workload, spec, rank_by="estimate", top=1)
            best = alone.estimates[0]
            assert not isinstance(best, str)
            assert us == best.total_us
            assert item.choice.key == alone.solved.embeddings[0].candidate.identifier


def test_a_space_file_names_a_target_beside_it(tmp_path: Path) -> None:
    written(tmp_path)
    space_file = tmp_path / "space.toml"
    space_file.write_text("""
name = "sizes"
description = "sizes of the unit and its buffer"
target = "odd.toml"
objectives = ["time", 'memories."on.chip".capacity_bytes']
where = ['instruction.axes.x * instruction.axes.y <= memories."on.chip".capacity_bytes // 64']
[parameters]
"instruction.axes.x" = [4, 8, 16]
'memories."on.chip".capacity_bytes' = { from = 2048, to = 8192, times = 2 }
[derived]
"machines.soc.compute.cycles" = "instruction.axes.x"
""")
    suite = layers(tmp_path, GEMMS[0])
    result = explored(tmp_path, [], suite, path=space_file)
    assert result.status == "proven"
    # 16 x 10 is above 8192 // 64, and 4 x 10 above 2048 // 64.
    places = [(p["instruction.axes.x"], p['memories."on.chip".capacity_bytes'])
              for p in map(result.space.point, result.space.places())]  # fmt: skip
    assert places == [(4, 4096), (4, 8192), (8, 8192)]
    for point in result.evaluated:
        assert point.point["machines.soc.compute.cycles"] == point.point["instruction.axes.x"]
    vectors = [result.vector(point) for point in result.front]
    assert vectors == sorted(vectors)
    assert {vector[1] for vector in vectors} <= {2048.0, 4096.0, 8192.0}


def test_points_name_what_is_wrong_with_them(tmp_path: Path) -> None:
    key = 'memories."on.chip".capacity_bytes'
    result = explored(tmp_path, [f"{key}=64,8192"], layers(tmp_path, GEMMS[0]))
    certificate = result.certificate()
    assert certificate["fates"] == {"no_machine": 1, "evaluated": 1}
    (discarded,) = certificate["discarded"]
    assert discarded["parameters"] == {key: 64}
    assert discarded["by"].startswith("operands.A.tile: takes 72 bytes, on.chip holds 64")


def test_layers_without_software_are_named_and_in_no_sum(tmp_path: Path) -> None:
    suite = layers(tmp_path, GEMMS[0], MAXIMUM, "conv2d n=1 c=16 h=8 w=8 k=16 r=3 s=3")
    result = explored(tmp_path, ["instruction.axes.x=4,6"], suite, bounds=False)
    alone = explored(tmp_path, ["instruction.axes.x=4,6"], suite, bounds=False, layers="0,2")
    assert len(result.evaluated) == 2
    for point, without in zip(result.evaluated, alone.evaluated, strict=True):
        (item,) = point.left_out
        assert item.layer.label.startswith("Y[a]")
        assert item.reason
        assert point.costs == without.costs
        assert math.isfinite(point.costs.cycles)
    rows = result.to_json()["rows"]
    assert [row["left_out"][0]["index"] for row in rows] == [1, 1]


def test_a_machine_that_rejects_all_embeddings_leaves_the_layer_out(tmp_path: Path) -> None:
    # One bank cannot be halved, and half of the buffer holds no execution.
    vary = ['memories."on.chip".capacity_bytes=200,8192']
    result = explored(tmp_path, vary, layers(tmp_path, GEMMS[0]), objectives=["time"])
    verdicts = {v.number: v for v in result.search.verdicts.values()}  # type: ignore[union-attr]
    assert verdicts[0].fate == "no_software"
    assert "rejected by soc: one execution takes" in str(verdicts[0].cause)
    assert [point.number for point in result.front] == [1]


@pytest.mark.parametrize(
    "vary, words",
    [
        ("instruction.axes.w=4", "there is no instruction.axes.w; allowed there: x, y, z"),
        ("instructions.axes.x=4", "no instructions (did you mean instruction?)"),
        ("instruction.axes.x=four", "instruction.axes.x: is a string"),
        ("machines.soc.compute.cycle=4", "unknown key; allowed: cycles"),
        ("machines.soc.memories.sums.overlap=nono", "is not allowed; allowed: none"),
        ("instruction.axes.x", "it is not KEY=VALUES"),
        ("instruction.axes.x=", "empty value"),
        ("instruction.axes.x=present,4,absent,4", "twice"),
        ("machines.soc.memories.sums.banks=present", "present: "),
        ("operands.A.tile[7]=x", "there is no operands.A.tile[7]"),
    ],
)
def test_wrong_variations_are_one_line(tmp_path: Path, vary: str, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        read_space(written(tmp_path), ExploreOptions(vary=[vary]))
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith("--vary ")
    assert words in text


def test_relations_of_the_command_line_may_mention_any_key(tmp_path: Path) -> None:
    additions = ExploreOptions(
        vary=["instruction.axes.x=2,4,8"], where=["instruction.axes.x <= instruction.axes.y - 4"]
    )
    space = read_space(written(tmp_path), additions)
    assert [space.point(p)["instruction.axes.x"] for p in space.places()] == [2, 4]
    with pytest.raises(SpecError, match=r"--where .*no parameter 'instruction.axes.w'"):
        read_space(
            written(tmp_path), ExploreOptions(vary=additions.vary, where=["instruction.axes.w < 2"])
        )


def test_area_and_energy_come_from_tables_or_are_refused(tmp_path: Path) -> None:
    space = read_space(written(tmp_path), ExploreOptions(vary=["instruction.axes.x=6"]))
    assert [objective.name for objective in space.objectives] == ["time", "energy", "area"]
    # No table has a bfloat16 multiplier.
    other = TEXT.replace('dtype = "int8"', 'dtype = "bfloat16"').replace("int32", "float32")
    path = written(tmp_path, other)
    space = read_space(path, ExploreOptions(vary=["instruction.axes.x=6"]))
    assert [objective.name for objective in space.objectives] == ["time"]
    suite = layers(tmp_path, GEMMS[0])
    result = explored(tmp_path, ["instruction.axes.x=6"], suite, path=path, objectives=["area"])
    (verdict,) = result.search.verdicts.values()  # type: ignore[union-attr]
    assert verdict.fate == "no_machine"
    assert "no figures to multiply bfloat16" in str(verdict.cause)


def test_area_is_the_sum_of_its_parts(tmp_path: Path) -> None:
    """Twice the units need twice the area of multipliers, and a larger buffer more SRAM."""
    family = read_space(written(tmp_path), ExploreOptions(vary=["instruction.axes.x=6,12"])).family
    assert isinstance(family, EmbeddedFamily)
    small, large = ({"instruction.axes.x": x} for x in (6, 12))
    first, second = family.silicon(small), family.silicon(large)
    assert first is not None
    assert second is not None
    # 6 x 10 x 12 multiply-accumulates in 6 cycles, at 282 and 137 um2 (Dally 2015).
    assert first.units_um2 == pytest.approx(120 * (282 + 137))
    assert second.units_um2 == pytest.approx(240 * (282 + 137))
    assert first.memories["dram"].area_um2 == 0
    assert first.memories["on.chip"].kind == "SRAM"
    assert first.area_um2 == pytest.approx(
        first.units_um2 + sum(memory.area_um2 for memory in first.memories.values())
    )
