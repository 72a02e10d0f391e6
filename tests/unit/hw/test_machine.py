"""Machines of a specification: memories by level, and what is wrong in them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from cpembed.errors import SpecError
from cpembed.hw.loader import load_hardware_spec
from cpembed.hw.machine import Evidence, Hierarchy, Overlapping, TransferUnit
from tests.unit.hw.toy import edited, write

MACHINES = """
[machines.big]
source = "a manual"
known = "published"
clock_mhz = 1000

[machines.big.compute]
cycles = 0.5
latency_cycles = 4

[machines.big.memories.buffer]
parent = "l1"
units = 8
granule_bytes = 64
moves = "tile"

[machines.big.memories.sums]
parent = "l2"
units = 8
capacity_bytes = 4096
overlap = "double_buffer"
transfer = "STORE"

[machines.big.memories.l1]
parent = "l2"
units = 4
capacity_bytes = 32_768
read_bytes_per_cycle = 128
write_bytes_per_cycle = 64

[machines.big.memories.l2]
parent = "dram"
read_bytes_per_cycle = 32
write_bytes_per_cycle = 32
banks = 1
overlap = "double_buffer"

[machines.big.memories.dram]
read_bytes_per_cycle = 8
write_bytes_per_cycle = 8
half_duplex = true
"""


MESH = """
[machines.big.mesh]
rows = 2
columns = 4

[machines.big.mesh.cut]
A = ["x", "z"]
B = ["z", "y"]
C = ["x", "y"]
"""


def read(folder: Path, text: str) -> Hierarchy:
    spec = load_hardware_spec(write(folder, edited("[memories.sums]", f"[memories.sums]\n{text}")))
    return next(iter(spec.machines.values()))


def test_memories_are_read_by_level(tmp_path: Path) -> None:
    machine = read(tmp_path, MACHINES)
    assert (machine.name, machine.clock_mhz, machine.evidence) == ("big", 1000, Evidence.PUBLISHED)
    assert machine.compute.cycles == 0.5
    assert machine.compute.issues_per_cycle == math.inf
    names = [[memory.name for memory in level] for level in machine.levels]
    assert names == [["buffer", "sums"], ["l1"], ["l2"], ["dram"]]
    assert [machine.fan_out(level) for level in range(3)] == [2, 4, 1]
    assert [memory.name for memory in machine.path("sums")] == ["sums", "l2", "dram"]
    buffer, sums, l2 = (machine.memories[name] for name in ("buffer", "sums", "l2"))
    assert (buffer.capacity_bytes, buffer.tile_capacity) == (128, 128)
    assert buffer.transfer_unit is TransferUnit.TILE
    assert sums.tile_capacity == 2048
    # One bank cannot be filled while it is read.
    assert l2.effective_overlap is Overlapping.NONE
    assert machine.root.half_duplex


def test_what_the_machine_says_need_not_be_said_again(tmp_path: Path) -> None:
    given = "[machine]\nclock_mhz = 50\nbus_bits = 64\nburst_beats = 16\ndram_delay_cycles = 9\n"
    text = """
[machines.board]
source = "a board"
known = "assumed"
compute = { cycles = 1 }
memories = { buffer = { parent = "dram" }, sums = { parent = "dram" }, dram = {} }
"""
    machine = read(tmp_path, given + text)
    assert machine.clock_mhz == 50
    assert (machine.root.read_bytes, machine.root.write_bytes) == (8, 8)
    assert machine.root.latency_cycles == 9
    assert machine.memories["buffer"].granule_bytes == 8
    assert machine.compute.latency_cycles == 1


def test_a_mesh_cuts_every_operand(tmp_path: Path) -> None:
    mesh = read(tmp_path, MACHINES + MESH).mesh
    assert mesh is not None
    assert (mesh.rows, mesh.columns) == (2, 4)
    assert mesh.cut == {"A": ("x", "z"), "B": ("z", "y"), "C": ("x", "y")}
    assert read(tmp_path, MACHINES).mesh is None


def test_what_a_call_takes_is_a_polynomial_of_sizes(tmp_path: Path) -> None:
    text = 'cycles = 0.5\ncall_cycles = { "1" = 10, "z" = 0.25, "x * z" = 0, "1*y" = 2 }'
    found = read(tmp_path, MACHINES.replace("cycles = 0.5", text)).compute.call_cycles
    assert found == (((), 10), (("z",), 0.25), (("x", "z"), 0), (("y",), 2))


@pytest.mark.parametrize(
    "old, new, problem",
    [
        ("rows = 2", "rows = 0", "mesh.rows: 0 is not allowed; allowed: 1..64"),
        ("columns = 4", "columns = 65", "mesh.columns: 65 is not allowed; allowed: 1..64"),
        ("columns = 4", "cols = 4", "mesh.cols: unknown key; allowed: rows, columns, cut"),
        ("rows = 2", "rows = 3", "cut.A: x is 4, which 3 does not divide; make it a multiple"),
        ("columns = 4", "columns = 16", "cut.A: z is 8, which 16 does not divide"),
        ('C = ["x", "y"]\n', "", "cut.C: must be two different axes of C"),
        ('C = ["x", "y"]', 'C = ["x"]', "cut.C: must be two different axes of C, for rows and"),
        ('C = ["x", "y"]', 'C = ["x", "x"]', "cut.C: must be two different axes of C"),
        ('C = ["x", "y"]', 'C = ["x", "z"]', "cut.C: must be two different axes of C"),
        ('C = ["x"', 'D = ["x"', "cut.C: must be two different axes of C, for rows and columns"),
        ('C = ["x", "y"]', 'C = ["x", "y"]\nD = []', "cut.D: is no operand of the instruction"),
        ("cycles = 0.5", 'cycles = 1\ncall_cycles = { "w" = 1 }', "call_cycles.w: 'w' is not a"),
        ("cycles = 0.5", 'cycles = 1\ncall_cycles = { "" = 1 }', "'' is not a product of diff"),
        (
            "cycles = 0.5",
            'cycles = 1\ncall_cycles = { "x*x" = 1 }',
            "'x*x' is not a product of different axes; allowed: 1, or x, y, z, with * between",
        ),
        ("cycles = 0.5", 'cycles = 1\ncall_cycles = { "x" = -1 }', "x: -1.0 is not allowed; all"),
    ],
)  # fmt: skip
def test_a_wrong_mesh_and_wrong_call_cycles_are_named(
    old: str, new: str, problem: str, tmp_path: Path
) -> None:
    assert (MACHINES + MESH).count(old) == 1
    with pytest.raises(SpecError) as caught:
        read(tmp_path, (MACHINES + MESH).replace(old, new))
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "old, new, problem",
    [
        ('source = "a manual"', 'source = " "', "machines.big.source: is empty"),
        ('"published"', '"rumoured"', "known: 'rumoured' is not allowed; allowed: published"),
        ("clock_mhz = 1000\n", "", "machines.big.clock_mhz: is missing"),
        ("cycles = 0.5", "cycles = 0", "compute.cycles: 0.0 is not allowed; allowed: a number"),
        ("cycles = 0.5", "cycles = nan", "compute.cycles: nan is not allowed"),
        ("cycles = 4", "cycles = -1", "latency_cycles: -1.0 is not allowed; allowed: a number of"),
        ("cycles = 0.5", "cicles = 1", "compute.cicles: unknown key; allowed: cycles"),
        ('parent = "l1"', 'parent = "l3"', "buffer.parent: unknown memory 'l3'"),
        ('parent = "dram"\n', "", "memories: l2, dram without a parent; allowed: one"),
        ('parent = "dram"', 'parent = "l1"', "l2.parent: buffer -> l1 -> l2 -> l1 goes round in a"),
        ("= 32_768", "= 3", "memories.l1.capacity_bytes: 3 is too small for a tile of A"),
        ('parent = "l1"', 'parent = "sums"', "buffer.parent: sums holds an operand itself"),
        ("memories.l1", "memories.l9", "memories.buffer.parent: unknown memory 'l1'"),
        ("memories.sums]", "memories.sum]", "memories.sums: is missing: it holds an operand"),
        ("units = 4", "units = 3", "memories.buffer.units: 8 is not allowed; allowed: a multiple"),
        ("units = 8\ncap", "units = 4\ncap", "sums.units: 4, and 8 of buffer on the same level"),
        ("half_duplex", "units = 2\nhalf_duplex", "dram.units: 2 is not allowed for main memory"),
        ("banks = 1", "banks = 0", "l2.banks: 0 is not allowed"),
        ("granule_bytes = 64", "bypass = true", "buffer.bypass: no operand can pass by it"),
        ("half_duplex", "bypass = true\nhalf_duplex", "dram.bypass: no operand can pass by main"),
        ("granule_bytes = 64", "multicast = true", "buffer.multicast: it feeds no memory"),
        ("granule_bytes = 64", "granule_bytes = 0", "buffer.granule_bytes: 0 is not allowed"),
        ("granule_bytes = 64", "capacity_bytes = 9", "buffer.capacity_bytes: it is in [memories"),
        ("write_bytes_per_cycle = 64\n", "", "l1.write_bytes_per_cycle: is missing"),
        ('"tile"', '"row"', "buffer.moves: 'row' is not allowed; allowed: region, tile"),
        (
            "[machines.big.memories.dram]",
            '[machines.big.memories.rom]\nparent = "dram"\n[machines.big.memories.dram]',
            "memories.rom: feeds no operand; the operands are in",
        ),
    ],
)
def test_a_wrong_machine_is_named(old: str, new: str, problem: str, tmp_path: Path) -> None:
    assert old in MACHINES
    with pytest.raises(SpecError) as caught:
        read(tmp_path, MACHINES.replace(old, new, 1))
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)
