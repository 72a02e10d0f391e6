"""A matrix instruction like AMX's, with tiles that an interpreter can execute."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from cpembed.driver.named import hardware_spec
from cpembed.hw.instruction import HardwareSpec
from cpembed.resources import hardware_spec_files


@cache
def small_amx() -> HardwareSpec:
    """AMX with up to 4 rows, 4 columns and a depth of 4, two of which share a word of B."""
    text = hardware_spec_files()["amx_int8"].read_text()
    changes = (
        ("x = { min = 1, max = 16 }", "x = { min = 1, max = 4 }"),
        ("y = 16\nz = 64", "y = 4\nz = 4"),
        ('["z/4", "y", "z%4"]', '["z/2", "y", "z%2"]'),
        ('name = "amx_int8"', 'name = "small_amx"'),
    )
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    with TemporaryDirectory() as folder:
        file = Path(folder) / "small_amx.toml"
        file.write_text(text)
        return hardware_spec(str(file))
