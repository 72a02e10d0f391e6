"""Scopes, tiles, strides and alignment of a specification's operands."""

from __future__ import annotations

from pathlib import Path

import pytest

from cpembed.errors import SpecError
from cpembed.hw.loader import load_hardware_spec
from cpembed.hw.machine import MemoryInterface
from tests.unit.hw.toy import Broken, assert_refused, edited, write

BROKEN: dict[str, Broken] = {
    "scope that is not declared": (
        'scope = "sums"',
        'scope = "sum"',
        "operands.C.scope",
        ["'sum' has no [memories] table", "buffer, sums", "did you mean sums?"],
    ),
    "memory that holds nothing": (
        "[memories.sums]",
        "[memories.sums]\n[memories.'l2.x']",
        'memories."l2.x"',
        ["holds no operand", "scopes in use: buffer, sums"],
    ),
    "capacity of zero": (
        "capacity_bytes = 128",
        "capacity_bytes = 0",
        "memories.buffer.capacity_bytes",
        ["0 is not allowed", "at least 1"],
    ),
    "tile larger than its scope": (
        "capacity_bytes = 128",
        "capacity_bytes = 32",
        "operands.B.tile",
        ["takes 64 bytes", "buffer holds 32"],
    ),
    "tiles together larger than their scope": (
        "capacity_bytes = 128",
        "capacity_bytes = 80",
        "memories.buffer.capacity_bytes",
        ["80 is too small", "A, B together", "96 bytes"],
    ),
    "tile lacks an axis": (
        'tile = ["x", "z"]',
        'tile = ["x"]',
        "operands.A.tile",
        ["lacks axis z", "exactly once"],
    ),
    "tile holds an axis twice": (
        'tile = ["x", "z"]',
        'tile = ["x", "z", "z"]',
        "operands.A.tile",
        ["holds axis z more than once"],
    ),
    "tile holds a part twice": (
        '"z/4", "y", "z%4"',
        '"z/4", "z%4", "y", "z%4"',
        "operands.B.tile",
        ["holds axis z more than once", "z%4"],
    ),
    "tile of another operand's axis": (
        'tile = ["x", "z"]',
        'tile = ["x", "y", "z"]',
        "operands.A.tile",
        ["y is not an axis of the operand", "its axes: x, z"],
    ),
    "tile part that is missing": (
        '"z/4", "y", "z%4"',
        '"z/4", "y"',
        "operands.B.tile",
        ["z/4 leaves a gap", "starts with z"],
    ),
    "divisor and modulus differ": (
        '"z/4", "y", "z%4"',
        '"z/4", "y", "z%2"',
        "operands.B.tile",
        ["z/4 leaves a gap", "multiply to 2", "starts with z/2"],
    ),
    "split that does not divide": (
        '"z/4", "y", "z%4"',
        '"z/3", "y", "z%3"',
        "operands.B.tile",
        ["z%3 does not divide the extent 8 of z"],
    ),
    "split that covers only a part": (
        '"z/4", "y", "z%4"',
        '"z%4", "y"',
        "operands.B.tile",
        ["parts of z multiply to 4", "its extent is 8"],
    ),
    "split of a configurable axis": (
        'tile = ["x", "z"]',
        'tile = ["x/2", "x%2", "z"]',
        "operands.A.tile",
        ["splits x, which is configurable", "x whole"],
    ),
    "tile dimension that cannot be read": (
        'tile = ["x", "z"]',
        'tile = ["x", "2*z"]',
        "operands.A.tile",
        ["'2*z' is not a tile dimension", "axis/divisor"],
    ),
    "tile dimension divided by zero": (
        'tile = ["x", "z"]',
        'tile = ["x", "z/0"]',
        "operands.A.tile",
        ["'z/0' divides by zero"],
    ),
    "stride rule of another operand's axis": (
        'stride = { x = "any" }',
        'stride = { y = "any" }',
        "operands.A.stride.y",
        ["y is not an axis of the operand", "its axes: x, z"],
    ),
    "stride rule of a split axis": (
        'tile = ["z/4", "y", "z%4"]',
        'tile = ["z/4", "y", "z%4"]\nstride = { z = "any" }',
        "operands.B.stride.z",
        ["z is split in the tile", "allowed for a split axis: unit"],
    ),
    "unknown stride rule": (
        'x = "any"',
        'x = "free"',
        "operands.A.stride.x",
        ["'free' is not allowed", "allowed: unit, any"],
    ),
    "alignment that is no power of two": (
        "alignment_bytes = 4",
        "alignment_bytes = 12",
        "operands.A.alignment_bytes",
        ["12 is not allowed", "a power of two"],
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_answered_by_one_line_with_its_key(case: str, tmp_path: Path) -> None:
    assert_refused(BROKEN[case], tmp_path)


def test_a_scalar_has_no_axis_to_hold_in_its_tile(tmp_path: Path) -> None:
    text = edited("C[x,y] += A[x,z] * B[z,y]", "C[y] += A[] * B[z,y]")
    for old, new in (
        ("x = { min = 2, max = 4, step = 2 }\n", ""),
        ('tile = ["x", "z"]\nstride = { x = "any" }', 'tile = ["z"]'),
        ('tile = ["x", "y"]', 'tile = ["y"]'),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    with pytest.raises(SpecError, match=r"operands\.A\.tile: z is not an axis .* axes: none"):
        load_hardware_spec(write(tmp_path, text))
    scalar = load_hardware_spec(write(tmp_path, text.replace('["z"]', "[]"))).instruction
    assert scalar.tile_shape("A", {"y": 8}) == ()
    assert scalar.with_extents({"y": 8}).operand("A").shape == ()


def test_a_memory_that_holds_no_operand_says_what_it_holds(tmp_path: Path) -> None:
    extra = '[memories.words]\nholds = "micro-ops"\ncapacity_bytes = 64\n'
    text = edited("[memories.sums]", f"{extra}\n[memories.sums]")
    spec = load_hardware_spec(write(tmp_path, text))
    assert spec.memories == {"buffer": 128, "words": 64, "sums": None}
    assert spec.machine is None
    for old, new, key in (
        ("capacity_bytes = 64", "capacity_bytes = 0", r"memories\.words\.capacity_bytes: 0 is not"),
        ("[memories.sums]", '[memories.sums]\nholds = "x"', r"memories\.sums\.holds: it holds C"),
    ):
        with pytest.raises(SpecError, match=key):
            load_hardware_spec(write(tmp_path, text.replace(old, new)))


MACHINE = """
[machine]
clock_mhz = 333.3
bus_bits = 128
burst_beats = 16
dram_delay_cycles = 0
"""


def test_the_machine_is_read(tmp_path: Path) -> None:
    text = edited("[memories.sums]", f"[memories.sums]\n{MACHINE}")
    assert load_hardware_spec(write(tmp_path, text)).machine == MemoryInterface(333.3, 128, 16, 0)


@pytest.mark.parametrize(
    "old, new, problem",
    [
        ("clock_mhz = 333.3", "clock_mhz = 0", "machine.clock_mhz: 0.0 is not allowed"),
        ("clock_mhz = 333.3", "clock_mhz = inf", "machine.clock_mhz: inf is not allowed"),
        (
            "bus_bits = 128",
            "bus_bits = 96",
            "machine.bus_bits: 96 is not allowed; allowed: a",
        ),
        ("bus_bits = 128", "bus_bits = 4", "machine.bus_bits: 4 is not allowed"),
        ("beats = 16", "beats = 512", "machine.burst_beats: 512 is not allowed; allowed: a power"),
        ("cycles = 0", "cycles = -1", "machine.dram_delay_cycles: -1 is not allowed"),
        ("cycles = 0", "cycles = 1.5", "machine.dram_delay_cycles: is a float (1.5)"),
        ("bus_bits = 128\n", "", "machine.bus_bits: is missing"),
        ("bus_bits", "bus_bit", "machine.bus_bit: unknown key; allowed: clock_mhz, bus_bits"),
    ],
)
def test_a_wrong_machine_is_named(old: str, new: str, problem: str, tmp_path: Path) -> None:
    text = edited("[memories.sums]", f"[memories.sums]\n{MACHINE.replace(old, new)}")
    with pytest.raises(SpecError) as caught:
        load_hardware_spec(write(tmp_path, text))
    assert problem in str(caught.value)
