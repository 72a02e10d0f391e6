"""A small specification, and how the loader answers a broken copy of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cpembed.errors import SpecError
from cpembed.hw.loader import load_hardware_spec

Broken = tuple[str, str, str, list[str]]
"""An edit of :data:`GOOD` (old and new text), the key that is wrong then, words of the message."""

GOOD = """\
name = "toy"
description = "A 4 x 8 x 8 product"
source = "made up"
backend = "x86"
cpu_features = ["avx512f"]

[instruction]
expression = "C[x,y] += A[x,z] * B[z,y]"

[instruction.axes]
x = { min = 2, max = 4, step = 2 }
y = 8
z = 8

[operands.A]
dtype = ["uint8", "int8"]
scope = "buffer"
tile = ["x", "z"]
stride = { x = "any" }
alignment_bytes = 4

[operands.B]
dtype = "int8"
scope = "buffer"
tile = ["z/4", "y", "z%4"]

[operands.C]
dtype = "int32"
scope = "sums"
tile = ["x", "y"]

[memories.buffer]
capacity_bytes = 128

[memories.sums]
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "toy.toml"
    path.write_text(text, encoding="utf-8")
    return path


def edited(old: str, new: str) -> str:
    assert GOOD.count(old) == 1, old
    return GOOD.replace(old, new)


def assert_refused(case: Broken, folder: Path) -> None:
    """The loader answers the edit by one line that begins with the file and the key."""
    old, new, key, words = case
    path = write(folder, edited(old, new))
    with pytest.raises(SpecError) as caught:
        load_hardware_spec(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: {key}: " if key else f"{path}: ")
    assert "\n" not in message
    for word in words:
        assert word in message, message
