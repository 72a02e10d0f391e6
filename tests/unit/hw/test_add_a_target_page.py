"""What ``docs/add-a-target.md`` shows is what the package does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cpembed.errors import SpecError
from cpembed.hw.loader import load_hardware_spec
from cpembed.ir.dtypes import DTYPES

PAGE = (Path(__file__).parents[3] / "docs" / "add-a-target.md").read_text(encoding="utf-8")


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


def test_every_dtype_is_listed() -> None:
    paragraph = PAGE[PAGE.index("Dtypes:") :].split("\n\n")[0]
    assert re.findall(r"`(\w+)`", paragraph) == list(DTYPES)
