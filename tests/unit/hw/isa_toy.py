"""A small instruction set, and how the reader answers a broken copy of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cpembed.errors import SpecError
from cpembed.hw.isa_reader import load_instruction_set

BrokenSet = tuple[str, str, str, list[str]]
"""An edit of :data:`SMALL_SET` (old and new text), the key that is wrong then, and words of the
message."""

SMALL_SET = """\
name = "small"
description = "A load, a product and a store"
source = "made up"
known = "assumed"
clock_mhz = 100
synchronization = "channels"
units = ["dma", "array"]

[memories.main]
kind = "main"
bytes_per_cycle = 8

[memories.buffer]
rows = 64
row_bytes = 8
banks = 4

[memories.sums]
rows = 16
row_bytes = 32

[memories.step]
kind = "register"
dtype = "int32"

[[channels]]
name = "loaded"
from = "dma"
to = "array"
depth = 4

[[instructions]]
name = "set_step"
unit = "dma"
expression = "r[] = v[]"
operands.r = { memory = "step" }
operands.v = { memory = "immediate", dtype = "int32" }
emit = "step {v.value}"

[[instructions]]
name = "load"
unit = "dma"
expression = "D[r,e] = S[r,e]"
axes = { r = { min = 1, max = 8 }, e = { max = 8 } }
operands.D = { memory = "buffer", dtype = "int8", rows = ["r"], lanes = ["e"], any_lane = true }
operands.S = { memory = "main", dtype = "int8", stride = { r = "step" } }
cycles = { "1" = 2, "r*e" = 0.125 }
emit = "load {D.row} {S.address} {r} {e}"

[[instructions]]
name = "product"
unit = "array"
expression = "C[x,y] += A[x,z] * B[z,y]"
axes = { x = { max = 8 }, y = 8, z = 8 }
operands.A = { memory = "buffer", dtype = "int8", rows = ["x"], lanes = ["z"], stride.x = "any" }
operands.B = { memory = "buffer", dtype = "int8", rows = ["z"], lanes = ["y"] }
operands.C = { memory = "sums", dtype = "int32", rows = ["x"], lanes = ["y"] }
accumulate = false
banks_differ = [["A", "B"]]
emit = "product {A.row} {A.stride.x}"

[[instructions]]
name = "narrow"
unit = "array"
expression = "D[x,y] = max(int8(S[x,y]), 0)"
axes = { x = { max = 8 }, y = 8 }
operands.S = { memory = "sums", dtype = "int32", rows = ["x"], lanes = ["y"] }
operands.D = { memory = "buffer", dtype = "int8", rows = ["x"], lanes = ["y"] }

[[instructions]]
name = "store"
unit = "dma"
expression = "D[r,e] = S[r,e]"
axes = { r = 8, e = { min = 2, max = 8, step = 2 } }
operands.D = { memory = "main", dtype = "int8" }
operands.S = { memory = "buffer", dtype = "int8", rows = ["r"], lanes = ["e"] }
latency_cycles = 3
"""


def saved(folder: Path, text: str) -> Path:
    path = folder / "small.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(folder: Path, text: str) -> str:
    """Return the line that says what is wrong with a file, without the file's name."""
    path = saved(folder, text)
    with pytest.raises(SpecError) as caught:
        load_instruction_set(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: "), message
    assert "\n" not in message, message
    return message.removeprefix(f"{path}: ")


def assert_refused_set(folder: Path, broken: BrokenSet) -> None:
    old, new, key, words = broken
    assert SMALL_SET.count(old) >= 1, f"{old!r} is not in the file"
    message = refusal(folder, SMALL_SET.replace(old, new, 1))
    assert message.startswith(f"{key}: "), message
    for word in words:
        assert word in message, message
