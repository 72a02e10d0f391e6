"""VTA's configuration from a hardware specification, and what is no VTA."""

from __future__ import annotations

from pathlib import Path

import pytest

from cpembed.errors import SpecError
from cpembed.hw.loader import load_hardware_spec
from cpembed.resources import hardware_spec_files
from cpembed.targets.vta.isa import VtaConfig
from cpembed.targets.vta.specification import vta_config

SHIPPED = hardware_spec_files()["vta_1x16x16"].read_text(encoding="utf-8")

Edits = list[tuple[str, str]]


def edited(edits: Edits, folder: Path) -> Path:
    text = SHIPPED
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_shipped_specifications_are_the_machines_of_the_paper() -> None:
    assert vta_config(load_hardware_spec("vta_1x16x16")) == VtaConfig()
    assert vta_config(load_hardware_spec("vta_8x8x8")) == VtaConfig(log_batch=3, log_block=3)


BLOCK_32: Edits = [
    ("y = 16", "y = 32"),
    ("z = 16", "z = 32"),
]


@pytest.mark.parametrize(
    "edits, expected",
    [
        (BLOCK_32, VtaConfig(log_block=5)),
        ([("x = 1\n", "x = 4\n")], VtaConfig(log_batch=2)),
        ([("262_144", "65_536")], VtaConfig(log_wgt_buff=16)),
        ([("32_768   # 8192 words", "4_096")], VtaConfig(log_uop_buff=12)),
        # Without a narrower result type, results are as wide as the inputs.
        ([('["int32", "int8"]', '"int32"')], VtaConfig()),
        # Names and order in the expression are free; tiles say what is what.
        ([("C[x,y] += A[x,z] * B[y,z]", "C[y,x] += B[z,y] * A[z,x]")], VtaConfig()),
    ],
)
def test_the_file_is_the_configuration(edits: Edits, expected: VtaConfig, tmp_path: Path) -> None:
    assert vta_config(load_hardware_spec(edited(edits, tmp_path))) == expected


@pytest.mark.parametrize(
    "edits, problem",
    [
        ([('backend = "vta"\n', "")], 'backend: is not "vta"'),
        ([("y = 16", "y = 8")], "instruction.axes.z: is 16, y is 8; VTA multiplies by square"),
        (
            [("x = 1\n", "x = 3\n")],
            "instruction.axes.x: 3 is not a power of two; VTA takes 2 or 4",
        ),
        ([("x = 1\n", "x = { min = 1, max = 2 }\n")], "instruction.axes.x: is configurable"),
        (
            [("262_144", "262_143")],
            'memories."vta.wgt".capacity_bytes: 262143 is not a power of two; VTA takes 131072 or',
        ),
        ([("capacity_bytes = 262_144", "")], 'memories."vta.wgt".capacity_bytes: is missing'),
        ([("vta.uop", "vta.uops")], 'memories."vta.uop": is missing; VTA needs vta.uop'),
        ([("vta.inp", "vta.input")], 'memories."vta.inp": holds no operand'),
        (
            [("32_768   # 2048 tiles, as many", "16_384  #")],
            'memories."vta.out".capacity_bytes: 16384 is not allowed; allowed: 32768',
        ),
        ([('tile = ["y", "z"]', 'tile = ["z", "y"]')], "operands.B.tile: is z, y; an element"),
        (
            [('tile = ["x", "y"]', 'tile = ["x", "y"]\nstride = { x = "any" }')],
            "operands.C.stride.x: VTA's elements are dense",
        ),
        (
            [('dtype = "int8"', 'dtype = "uint8"')],
            "operands.A.dtype: VTA does not compute",
        ),
        (
            [('["int32", "int8"]', '["int32", "int8", "int16"]')],
            "operands.C.dtype: lists int32, int8, int16; allowed: the accumulator's",
        ),
        ([(" * B[y,z]", " * B[y,z] * 2")], "instruction.expression: is C[x, y]"),
        ([("+= A", "= A"), ("A[x,z] * B", "A[x,z] + B")], "instruction"),
        (
            [("32_768   # 8192 words", "65_536")],
            "memories: VTA configuration: the fields of GEMM do not fit 128 bits",
        ),
    ],
)
def test_what_is_no_vta_is_named(edits: Edits, problem: str, tmp_path: Path) -> None:
    path = edited(edits, tmp_path)
    with pytest.raises(SpecError) as caught:
        vta_config(load_hardware_spec(path))
    message = str(caught.value)
    assert message.startswith(f"{path}: {problem}"), message
    assert "\n" not in message
