"""``cpembed vta check``, ``run`` and ``cycles``, through the front door."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import numpy as np
import pytest

from tests.cli.calling import Caller
from tests.cli.schema import Map, assert_matches

TEXT = """\
.tensor A role=input  dtype=int8 shape=1x16
.tensor B role=weight dtype=int8 shape=16x16
.tensor C role=output dtype=int8 shape=1x16
.uop kernel
dst=0
.data A
0: 01 02 ff
.data B
0: 10 20 30
.code
load uop sram=0 dram=kernel y=1 x=1 x_stride=1
gemm uop_begin=0 uop_end=1 outer=1 inner=1 reset
load inp sram=0 dram=A y=1 x=1 x_stride=1
load wgt sram=0 dram=B y=1 x=1 x_stride=1 push.next
gemm uop_begin=0 uop_end=1 outer=1 inner=1 pop.prev
alu shr uop_begin=0 uop_end=1 outer=1 inner=1 immediate=4 push.next
store out sram=0 dram=C y=1 x=1 x_stride=1 pop.prev push.prev
load uop sram=0 dram=0 y=0 x=0 x_stride=0 pop.next
finish
"""
RESULT = [(0x10 + 2 * 0x20 - 0x30) >> 4] + [0] * 15


@pytest.fixture
def program(cpembed: Caller, tmp_path: Path) -> str:
    return assembled(cpembed, tmp_path, TEXT)


def assembled(cpembed: Caller, folder: Path, text: str) -> str:
    (folder / "program.s").write_text(text, encoding="utf-8")
    path = str(folder / "program.zip")
    assert cpembed("vta", "asm", str(folder / "program.s"), "-o", path).code == 0
    return path


def test_a_run_prints_and_saves_what_was_written(
    cpembed: Caller, program: str, tmp_path: Path
) -> None:
    crc = f"{zlib.crc32(bytes(RESULT)):08x}"
    called = cpembed("vta", "run", program)
    assert (called.code, called.err) == (0, "")
    assert called.out.splitlines()[2].split() == ["C", "int8", "[1,", "16]", "0", "2", crc]
    for name in ("c.npy", "c.npz"):
        saved = tmp_path / name
        document = cpembed("vta", "run", program, "-o", str(saved), "--json").json
        (output,) = document["outputs"]
        assert (output["name"], output["shape"], output["crc32"]) == ("C", [1, 16], crc)
        loaded = np.load(saved)
        assert (loaded if name == "c.npy" else loaded["C"]).tolist() == [RESULT]


@pytest.mark.parametrize("order", ["load_first", "store_first", "random"])
def test_a_run_does_not_depend_on_the_order(cpembed: Caller, program: str, order: str) -> None:
    assert cpembed("vta", "run", program, "--order", order, "--seed", "3").out == (
        cpembed("vta", "run", program).out
    )


def test_cycles_are_printed_and_drawn(cpembed: Caller, program: str, tmp_path: Path) -> None:
    document = cpembed("vta", "cycles", program, "--json").json
    module = {"busy": int, "stalled": int, "idle": int}
    assert_matches(
        document,
        {
            "cycles": int,
            "gemm_utilisation": float,
            "read_utilisation": float,
            "macs": int,
            "modules": {"load": module, "compute": module, "store": module},
            "bytes": Map(int),
            "memory": Map(int),
        },
    )
    assert document["macs"] == 256
    slower = cpembed("vta", "cycles", program, "--delay", "100", "--json").json
    assert slower["cycles"] > document["cycles"] + 84
    drawn = tmp_path / "trace.json"
    printed = cpembed("vta", "cycles", program, "--trace", str(drawn))
    assert (printed.code, printed.err) == (0, "")
    assert f"cycles   {document['cycles']:,}" in printed.out
    assert json.loads(drawn.read_text(encoding="utf-8"))["traceEvents"]


def test_an_illegal_program_is_refused_in_one_line(cpembed: Caller, tmp_path: Path) -> None:
    text = TEXT.replace("alu shr", "alu mul").replace("push.prev", "").replace("pop.next", "")
    path = assembled(
        cpembed, tmp_path, text.replace("gemm uop_begin=0 uop_end=1 outer=1 inner=1 r", "; r")
    )
    for command in ("run", "cycles", "check"):
        called = cpembed("vta", command, path)
        called.is_one_line_error(2, "instruction 3 (gemm ", "accumulator 0", "reset or load it")
    listed = cpembed("vta", "check", path, "--all")
    assert listed.code == 2
    assert [line.split()[1] for line in listed.out.splitlines()] == ["3", "4"]
    document = cpembed("vta", "check", path, "--json").json
    assert (document["legal"], document["violations"][0]["instruction"]) == (False, 3)


def test_a_legal_program_is_said_to_be(cpembed: Caller, program: str) -> None:
    assert cpembed("vta", "check", program).out == f"{program}: legal, 9 instructions\n"


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("cycles", "--bus-bits", "96"), "bus_bits = 96; allowed: 64, 128"),
        (("cycles", "--burst", "5"), "burst_beats = 5; allowed"),
        (("cycles", "--delay", "-1"), "dram_delay_cycles = -1; allowed: 0.."),
        (("run", "-o", "c.txt"), "ends in neither .npy nor .npz"),
        (("run", "-o", "missing/c.npy"), "missing/c.npy cannot be written"),
    ],
)
def test_wrong_options_are_refused(
    cpembed: Caller, program: str, arguments: tuple[str, ...], words: str
) -> None:
    command, *rest = arguments
    cpembed("vta", command, program, *rest).is_one_line_error(2, words)
