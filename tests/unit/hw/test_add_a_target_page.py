"""What ``docs/add-a-target.md`` shows is what the package does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cpembed.cost.machine.estimate import Estimate
from cpembed.driver.estimate import estimate
from cpembed.driver.named import workload
from cpembed.errors import SpecError
from cpembed.hw.loader import load_hardware_spec
from cpembed.hw.specification import (
    AxisTable,
    ComputeTable,
    HardwareTable,
    HierarchyTable,
    LevelTable,
    MeshTable,
)
from cpembed.ir.dtypes import DTYPES
from cpembed.wording import duration

PAGE = (Path(__file__).parents[3] / "docs" / "add-a-target.md").read_text(encoding="utf-8")


BLOCKS = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert found
    return found[1]


def test_the_example_loads(tmp_path: Path) -> None:
    path = tmp_path / "my_dot.toml"
    path.write_text(block("toml"), encoding="utf-8")
    instruction = load_hardware_spec(path).instruction
    assert instruction.axis("x").allowed == (2, 4, 6, 8)
    assert instruction.tile_shape("B") == (8, 8, 4)


def test_the_machine_of_the_example_gives_the_times_shown(tmp_path: Path) -> None:
    path = tmp_path / "my_dot.toml"
    path.write_text(BLOCKS[0] + BLOCKS[1], encoding="utf-8")
    spec = load_hardware_spec(path)
    result = estimate(workload("gemm m=512 n=512 k=512", spec), spec, top=1)
    (item,), (found,) = result.solved.embeddings, result.estimates
    assert isinstance(found, Estimate)
    row = (item.rank, item.candidate.embedding.identifier(), found.bound)
    shown = re.search(
        r"^ +(\d+)  x ← .* (\S+ us) +(\S+ us)  (\w+) +B C +(\w+)$", PAGE, re.MULTILINE
    )
    assert shown
    assert (int(shown[1]), shown[5], shown[4]) == row
    assert duration(found.total_us) == shown[2]
    assert duration(sum(found.packing_us.values())) == shown[3]


def test_every_key_of_a_machine_is_listed() -> None:
    for table in (HierarchyTable, ComputeTable, LevelTable, MeshTable):
        for field in set(table.__struct_encode_fields__) - {"compute", "memories", "mesh"}:
            spelled = re.sub("write_bytes_per_cycle(_each)?", "write_…", field)
            assert f"{spelled}`" in PAGE, field


@pytest.mark.parametrize(
    "old, new, line", [("z%4", "z%2", 0), ("alignment_bytes", "aligment_bytes", 1)]
)
def test_the_messages_are_those_shown(old: str, new: str, line: int, tmp_path: Path) -> None:
    path = tmp_path / "my_dot.toml"
    path.write_text(block("toml").replace(old, new, 1), encoding="utf-8")
    with pytest.raises(SpecError) as caught:
        load_hardware_spec(path)
    shown = re.findall(r"^my_dot\.toml: .*$", PAGE, re.MULTILINE)
    assert str(caught.value).replace(str(path), "my_dot.toml") == shown[line]


def test_every_key_of_a_specification_and_of_an_axis_is_listed() -> None:
    older = {"otherwise", "beside"}
    for field in set(HardwareTable.__struct_encode_fields__) - older:
        assert re.search(rf"`(\w+\.)?{field}[`.]", PAGE), field
    for field in AxisTable.__struct_fields__:
        assert re.search(rf"`\{{[^}}]*\b{field}\b[^}}]*\}}`", PAGE), field


def test_every_dtype_is_listed() -> None:
    paragraph = PAGE[PAGE.index("Dtypes:") :].split("\n\n")[0]
    assert re.findall(r"`(\w+)`", paragraph) == list(DTYPES)
