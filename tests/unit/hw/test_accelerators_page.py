"""What ``docs/accelerators.md`` shows is what the package does."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from cpembed.errors import SpecError
from cpembed.hw.isa import InstructionSet
from cpembed.hw.isa_reader import available_instruction_sets, load_instruction_set
from cpembed.hw.isa_tables import (
    ChannelTable,
    HostTable,
    InstructionSetTable,
    IsaInstructionTable,
    IsaMemoryTable,
    PlaceTable,
)

PAGE = (Path(__file__).parents[3] / "docs" / "accelerators.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
SHOWN = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)


def read(folder: Path, *edits: tuple[str, str]) -> InstructionSet:
    """Read the example with parts of it replaced."""
    (text,) = BLOCKS
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    path = folder / "my_accelerator.toml"
    path.write_text(text, encoding="utf-8")
    return load_instruction_set(path)


def test_the_example_loads(tmp_path: Path) -> None:
    machine = read(tmp_path)
    assert not machine.warnings
    load = machine.instructions["load"]
    assert load.occupied_cycles({"r": 16, "e": 8}) == 20
    assert load.size_arguments[0].allowed == tuple(range(1, 17))
    assert machine.memories["buffer"].bank_rows == 256
    assert machine.instructions["multiply"].places["A"].stride_arguments == ("x",)


def test_every_shipped_accelerator_is_listed() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    assert set(available_instruction_sets()) <= set(rows)


@pytest.mark.parametrize(
    "table",
    [ChannelTable, HostTable, InstructionSetTable, IsaInstructionTable, IsaMemoryTable, PlaceTable],
)
def test_every_key_is_listed(table: type[msgspec.Struct]) -> None:
    fields = set(table.__struct_encode_fields__) - {"memories", "instructions"}
    for field in fields:
        assert f"`{field}`" in PAGE, field


def table_of(name: str) -> str:
    """Return an instruction's part of the example."""
    parts = BLOCKS[0].split("[[instructions]]\n")
    return next(f"[[instructions]]\n{part}" for part in parts if f'name = "{name}"' in part)


@pytest.mark.parametrize(
    "edit",
    [("y = 8, z = 8", "y = 8, z = 16"), (table_of("set_scale"), ""), (table_of("clear"), "")],
    ids=["lanes", "set", "sums"],
)
def test_the_messages_are_those_shown(edit: tuple[str, str], tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        read(tmp_path, edit)
    message = str(caught.value).replace(f"{tmp_path}/", "")
    assert message in SHOWN[0].splitlines()


def test_the_warning_is_the_one_shown(tmp_path: Path) -> None:
    machine = read(tmp_path, ('dtype = "int32"', 'dtype = "int16"'))
    assert list(machine.warnings) == SHOWN[1].splitlines()
