"""Machines of tests as specifications: an invented unit with odd extents."""

from __future__ import annotations

from pathlib import Path

TEXT = """
name = "odd"
description = "an invented unit: 6 x 10 sums of 12 products"
source = "invented for tests"

[instruction]
expression = "C[x,y] += A[x,z] * B[z,y]"
axes = { x = 6, y = 10, z = 12 }

[operands.A]
dtype = "int8"
scope = "on.chip"
tile = ["x", "z"]
stride = { x = "any" }

[operands.B]
dtype = "int8"
scope = "on.chip"
tile = ["z", "y"]
stride = { z = "any" }

[operands.C]
dtype = "int32"
scope = "sums"
tile = ["x", "y"]
stride = { x = "any" }

[memories."on.chip"]
capacity_bytes = 8192

[memories.sums]
capacity_bytes = 4096

[machines.soc]
source = "invented for tests"
known = "assumed"
clock_mhz = 400
layouts = "original"

[machines.soc.compute]
cycles = 6

[machines.soc.memories."on.chip"]
parent = "dram"
banks = 4
overlap = "double_buffer"

[machines.soc.memories.sums]
parent = "dram"
overlap = "double_buffer"

[machines.soc.memories.dram]
read_bytes_per_cycle = 4
write_bytes_per_cycle = 4
latency_cycles = 30
"""


def written(folder: Path, text: str = TEXT) -> Path:
    """Write a specification and return its path."""
    path = folder / "odd.toml"
    path.write_text(text)
    return path


def layers(folder: Path, *names: str) -> str:
    """Write a table of layers and return its path."""
    path = folder / "layers.csv"
    path.write_text("layer\n" + "".join(f"{name}\n" for name in names))
    return str(path)
