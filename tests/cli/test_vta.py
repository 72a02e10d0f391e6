"""``cpembed vta``: text to program and back, through the front door."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from tests.cli.calling import Caller

TEXT = """\
.tensor A role=input dtype=int8 shape=1x16
.data A
0: 01
.uop u
dst=1
.code
load inp sram=0 dram=A y=1 x=1 x_stride=1
finish
"""


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "program.s"
    path.write_text(TEXT, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["program", "program.zip"])
def test_a_text_survives_assembling_and_disassembling(
    cpembed: Caller, text: Path, tmp_path: Path, name: str
) -> None:
    program = tmp_path / name
    called = cpembed("vta", "asm", str(text), "-o", str(program))
    assert (called.code, called.err) == (0, "")
    assert called.out == f"{program}: 2 instructions, 260 bytes of DRAM, tensors A, u\n"
    printed = cpembed("vta", "disasm", str(program))
    assert (printed.code, printed.err) == (0, "")
    assert "load inp sram=0 dram=A y=1 x=1 x_stride=1  ; 0\nfinish  ; 1\n" in printed.out
    assert ".data A\n0x0000: 01" in printed.out
    again = tmp_path / "again.s"
    assert cpembed("vta", "disasm", str(program), "--output", str(again)).out == ""
    assert again.read_text(encoding="utf-8") == printed.out
    assert cpembed("vta", "asm", str(again), "-o", str(program)).code == 0
    assert cpembed("vta", "disasm", str(program)).out == printed.out


def test_data_are_left_out_on_request(cpembed: Caller, text: Path, tmp_path: Path) -> None:
    program = str(tmp_path / "p")
    document = cpembed("vta", "asm", str(text), "-o", program, "--json").json
    assert document == {
        "program": program,
        "instructions": 2,
        "dram_bytes": 260,
        "tensors": ["A", "u"],
    }
    shown = cpembed("vta", "disasm", program, "--no-data").out
    assert ".data" not in shown
    assert ".uop u\ndst=1\n" in shown


def test_the_standard_input_is_a_file(
    cpembed: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"finsh\n")))
    called = cpembed("vta", "asm", "-", "-o", str(tmp_path / "p"))
    called.is_one_line_error(2, "standard input:1:1: ", "did you mean finish?")


def test_wrong_input_is_one_line(cpembed: Caller, text: Path, tmp_path: Path) -> None:
    program = str(tmp_path / "p")
    text.write_text("load inp y=70000", encoding="utf-8")
    cpembed("vta", "asm", str(text), "-o", program).is_one_line_error(2, f"{text}:1:1: ", "lacks")
    assert not Path(program).exists()
    missing = str(tmp_path / "missing")
    cpembed("vta", "asm", missing, "-o", program).is_one_line_error(2, missing, "No such file")
    cpembed("vta", "disasm", missing).is_one_line_error(2, missing, "meta.json")
    cpembed("vta", "asm", str(text)).is_one_line_error(2, "'-o'", "vta asm --help")
    cpembed("vta", "asn").is_one_line_error(2, "'asn'", "vta --help")
    text.write_bytes(b"\xff")
    cpembed("vta", "asm", str(text), "-o", program).is_one_line_error(2, "not a text file")


def test_a_text_without_an_end_is_not_read_to_it(
    cpembed: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cpembed.targets.vta.commands._MAX_TEXT_BYTES", 1000)
    called = cpembed("vta", "asm", "/dev/zero", "-o", str(tmp_path / "p.zip"))
    called.is_one_line_error(2, "/dev/zero: has more than 1,000 bytes")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("command", ["check", "run", "cycles", "disasm"])
def test_a_program_that_is_cut_off_is_named(
    cpembed: Caller, text: Path, tmp_path: Path, command: str
) -> None:
    path = tmp_path / "p.zip"
    assert cpembed("vta", "asm", str(text), "-o", str(path)).code == 0
    path.write_bytes(path.read_bytes()[:150])
    called = cpembed("vta", command, str(path))
    called.is_one_line_error(2, f"{path}: not a saved program: ", "insns.bin")
