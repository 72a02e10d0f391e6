"""The families there are: fronts by bounds equal those of brute force."""

from __future__ import annotations

from pathlib import Path

import pytest

from cpembed.errors import SpecError
from cpembed.exploration.explore import open_exploration
from cpembed.runtime.cluster import open_workers
from cpembed.runtime.measurement.environment import source_digest
from cpembed.targets.family import open_family

HEAD = 'name = "small"\ndescription = "a few machines"\n'
SPACES = {
    "core": """
family = "core"
[fixed]
intrinsic = "gemm"
[parameters]
pe_rows = [8, 16]
scratchpad_kib = [128, 256]
local_kib = [64, 128]
dataflow = ["os", "ws"]
banks = [1, 4]
""",
    "vta": """
family = "vta"
[parameters]
log_block = [3, 4]
log_inp_buff = [13, 15]
log_wgt_buff = [16, 18]
log_acc_buff = [15, 17]
bus_bits = [64, 128]
[fixed]
embeddings = 2
schedules = 2
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("objectives", ["cycles,energy,area", "time,power,area"])
@pytest.mark.parametrize("family", SPACES)
def test_the_front_equals_that_of_all_points(tmp_path: Path, family: str, objectives: str) -> None:
    path = tmp_path / "space.toml"
    path.write_text(HEAD + SPACES[family])
    fronts: list[list[tuple[int, tuple[float, ...]]]] = []
    for bounds in (False, True):
        exploration = open_exploration(
            path,
            "resnet50",
            layers="3,12",
            objectives=objectives.split(","),
            bounds=bounds,
            results=tmp_path,
        )
        with open_workers() as workers:
            for _ in exploration.run(workers):
                pass
        result = exploration.result()
        assert result.status == "proven"
        if not bounds:
            fates = result.certificate()["fates"]
            assert fates["evaluated"] + fates.get("no_machine", 0) == 32
        fronts.append([(point.number, result.vector(point)) for point in result.front])
    assert fronts[0] == fronts[1]


@pytest.mark.parametrize("name", ["core", "vta"])
def test_families_are_opened_by_name(name: str) -> None:
    family = open_family(name)
    assert family.name == name
    # Embeddings and models of cost outside of its folder take part in its results.
    assert family.identity().startswith(source_digest())


def test_an_unknown_family_is_told() -> None:
    with pytest.raises(SpecError, match=r"unknown family 'vtta' \(did you mean vta\?\)"):
        open_family("vtta")
