"""Saved programs: what is written is read, others can read it, and damage is named."""

from __future__ import annotations

import json
import os
import tracemalloc
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cpembed.errors import CpembedError, ProgramError
from cpembed.targets.vta.isa import Finish, Load, Memory, VtaConfig
from cpembed.targets.vta.program import Role, Tensor, VtaProgram, load_program, save_program
from tests.unit.targets.vta.strategies import CONFIGS, assert_same, programs

PROGRAM = VtaProgram(
    VtaConfig(),
    (Load(Memory.INP, 0, 0x100, 1, 1, 1), Finish()),
    np.arange(48, dtype=np.uint8),
    {
        "A": Tensor(0, (2, 8), "int8", Role.INPUT),
        "u": Tensor(16, (4,), "uint32", Role.UOPS),
        "O": Tensor(32, (16,), "int8", Role.OUTPUT),
    },
    base=0x1000,
)


@pytest.fixture(params=["program", "program.zip"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / request.param


@pytest.mark.parametrize("name", CONFIGS)
@settings(
    max_examples=10,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_what_is_saved_is_loaded(name: str, data: st.DataObject, path: Path) -> None:
    program = data.draw(programs(CONFIGS[name]))
    save_program(program, path)
    assert_same(load_program(path), program)


def test_the_members_are_those_documented(tmp_path: Path) -> None:
    save_program(PROGRAM, tmp_path / "p")
    assert sorted(member.name for member in (tmp_path / "p").iterdir()) == [
        "dram.bin",
        "insns.bin",
        "meta.json",
    ]
    assert (tmp_path / "p/dram.bin").read_bytes() == bytes(range(48))
    assert len((tmp_path / "p/insns.bin").read_bytes()) == 32
    assert json.loads((tmp_path / "p/meta.json").read_text()) == {
        "format": "vta-program",
        "version": 1,
        "config": {
            "log_batch": 0,
            "log_block": 4,
            "log_inp_width": 3,
            "log_wgt_width": 3,
            "log_acc_width": 5,
            "log_out_width": 3,
            "log_uop_buff": 15,
            "log_inp_buff": 15,
            "log_wgt_buff": 18,
            "log_acc_buff": 17,
        },
        "base": 4096,
        "instructions": 2,
        "dram_bytes": 48,
        "tensors": {
            "A": {"offset": 0, "shape": [2, 8], "dtype": "int8", "role": "input"},
            "u": {"offset": 16, "shape": [4], "dtype": "uint32", "role": "uops"},
            "O": {"offset": 32, "shape": [16], "dtype": "int8", "role": "output"},
        },
    }


def test_equal_programs_are_equal_files_and_replace_what_is_there(tmp_path: Path) -> None:
    for name in ("a.zip", "b.zip", "a.zip"):
        save_program(PROGRAM, tmp_path / name)
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    assert len(list(tmp_path.iterdir())) == 2


Edit = Callable[[dict[str, Any]], object]
DAMAGED: dict[str, tuple[Edit, list[str]]] = {
    "version": (lambda m: m.update(version=2), ["unknown version 2", "reads 1"]),
    "no version": (lambda m: m.pop("version"), ["unknown version None"]),
    "format": (lambda m: m.update(format="elf"), ["format 'elf'", "vta-program"]),
    "missing key": (lambda m: m.pop("base"), ["missing required field `base`"]),
    "unknown key": (lambda m: m.update(extra=1), ["unknown field `extra`"]),
    "wrong type": (lambda m: m.update(base="0"), ["Expected `int`, got `str`", "$.base"]),
    "negative base": (lambda m: m.update(base=-1), ["base -1", "0..2^40"]),
    "size of DRAM": (
        lambda m: m.update(dram_bytes=49),
        ["dram.bin: has 48 bytes", "49 dram_bytes, 49 bytes"],
    ),
    "number of instructions": (
        lambda m: m.update(instructions=3),
        ["insns.bin: has 32 bytes", "3 instructions, 48 bytes"],
    ),
    "overlap": (
        lambda m: m["tensors"]["u"].update(offset=15),
        ["'A' and 'u' overlap", "ends before byte 16", "starts at 15"],
    ),
    "tensor beyond DRAM": (
        lambda m: m["tensors"]["O"].update(shape=[17]),
        ["tensor 'O': bytes 32..48 are not within DRAM, which has 48 bytes"],
    ),
    "negative offset": (lambda m: m["tensors"]["A"].update(offset=-1), ["bytes -1..14"]),
    "negative shape": (lambda m: m["tensors"]["A"].update(shape=[-1, -1]), ["at least 1"]),
    "dtype": (
        lambda m: m["tensors"]["A"].update(dtype="float32"),
        ["unknown dtype 'float32'", "int8, uint8"],
    ),
    "role": (lambda m: m["tensors"]["A"].update(role="in"), ["'in'", "role"]),
    "name": (lambda m: m["tensors"].update({"a b": m["tensors"].pop("A")}), ["'a b'", "name"]),
    "configuration lacks a size": (
        lambda m: m["config"].pop("log_block"),
        ["config.log_block: is missing"],
    ),
    "huge image": (
        lambda m: m.update(dram_bytes=10**4000),
        ["dram_bytes 1000", "allowed: 0..1073741824"],
    ),
    "huge program": (lambda m: m.update(instructions=2**40), ["instructions 1099511627776", "0.."]),
    "negative numbers": (lambda m: m.update(instructions=-2), ["instructions -2; allowed: 0.."]),
    "huge shape": (
        lambda m: m["tensors"]["A"].update(shape=[10**4000] * 30),
        ["shape [1000", "1073741824 at most"],
    ),
    "too many sizes": (
        lambda m: m["tensors"]["A"].update(shape=[1] * 33),
        ["shape of 33 sizes; allowed: 32 at most"],
    ),
    "huge offset": (
        lambda m: m["tensors"]["A"].update(offset=10**4000),
        ["offset 1000", "0..1073741824"],
    ),
    "elements of less than a byte": (
        lambda m: m["config"].update(log_block=1, log_inp_width=0),
        ["INP has 0 bytes; allowed: 1..1048576"],
    ),
    "elements of gigabytes": (
        lambda m: m["config"].update(log_block=14, log_wgt_buff=34, log_acc_buff=25),
        ["WGT has 268435456 bytes; allowed: 1..1048576"],
    ),
    "configuration of another machine": (
        lambda m: m["config"].update(log_out_buff=15),
        ["config.log_out_buff: unknown key; allowed: log_batch"],
    ),
    "configuration out of range": (lambda m: m["config"].update(log_block=99), ["99", "0..40"]),
    "configuration without encoding": (
        lambda m: m["config"].update(log_uop_buff=17),
        ["VTA configuration", "do not fit 128 bits"],
    ),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damage_is_named_in_one_line(case: str, tmp_path: Path) -> None:
    edit, parts = DAMAGED[case]
    path = tmp_path / "p"
    save_program(PROGRAM, path)
    meta = json.loads((path / "meta.json").read_text())
    edit(meta)
    (path / "meta.json").write_text(json.dumps(meta))
    refused(path, *parts)


def refused(path: Path, *parts: str) -> None:
    with pytest.raises(ProgramError) as caught:
        load_program(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    assert len(message) < 700
    for part in parts:
        assert part in message, message


def test_damaged_members_are_named(tmp_path: Path) -> None:
    path = tmp_path / "p"
    save_program(PROGRAM, path)
    (path / "insns.bin").write_bytes(b"\0" * 16 + b"\x05" + b"\0" * 15)
    refused(path, "insns.bin: instruction 1: unknown opcode 5")
    (path / "insns.bin").unlink()
    refused(path, "insns.bin cannot be read", "insns.bin, dram.bin and meta.json")
    (path / "meta.json").write_text("{")
    (path / "insns.bin").write_bytes(b"")
    refused(path, "meta.json: ", "JSON")
    (path / "meta.json").write_bytes(b"\xff")
    refused(path, "meta.json: ")


def test_files_that_are_no_program_are_refused(tmp_path: Path) -> None:
    refused(tmp_path / "missing", "meta.json cannot be read", "No such file")
    (tmp_path / "text").write_text("load inp")
    refused(tmp_path / "text", "not a saved program", "insns.bin")
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("readme", "nothing")
    refused(tmp_path / "other.zip", "meta.json", "insns.bin, dram.bin")


def zipped(path: Path, members: list[tuple[str, bytes]], method: int = zipfile.ZIP_STORED) -> Path:
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w", method) as archive:
        warnings.simplefilter("ignore")  # of names that are there twice
        for name, content in members:
            archive.writestr(name, content)
    return path


def members_of(tmp_path: Path) -> dict[str, bytes]:
    save_program(PROGRAM, tmp_path / "whole")
    return {file.name: file.read_bytes() for file in (tmp_path / "whole").iterdir()}


def test_a_member_is_there_once_and_compressed_as_zips_are(tmp_path: Path) -> None:
    members = [*members_of(tmp_path).items()]
    load_program(zipped(tmp_path / "stored.zip", members))
    twice = zipped(tmp_path / "twice.zip", [*members, ("dram.bin", bytes(48))])
    refused(twice, "has 2 members dram.bin", "one of each")
    other = zipped(tmp_path / "other.zip", members, zipfile.ZIP_LZMA)
    refused(other, "compressed by method 14", "deflated (8) or stored (0)")


def test_an_archive_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    save_program(PROGRAM, tmp_path / "p.zip")
    whole = (tmp_path / "p.zip").read_bytes()
    for end in (0, 1, 100, len(whole) - 1):
        (tmp_path / "p.zip").write_bytes(whole[:end])
        refused(tmp_path / "p.zip", "not a saved program")
    broken = bytearray(zipped(tmp_path / "p.zip", [*members_of(tmp_path).items()]).read_bytes())
    broken[broken.index(b"insns.bin") + 20] ^= 1
    (tmp_path / "p.zip").write_bytes(broken)
    refused(tmp_path / "p.zip", "p.zip: not a saved program: Bad CRC-32 for file 'insns.bin'")


def test_a_member_that_ends_before_its_size_is_refused(tmp_path: Path) -> None:
    """The image is the last member; the directory of the archive says that it is longer."""
    members = members_of(tmp_path)
    members["meta.json"] = members["meta.json"].replace(b": 48,", b": 4800,")
    order = ("meta.json", "insns.bin", "dram.bin")
    path = zipped(tmp_path / "short.zip", [(name, members[name]) for name in order])
    with zipfile.ZipFile(path) as archive:
        start = archive.start_dir
    content, sizes = path.read_bytes(), [n.to_bytes(4, "little") * 2 for n in (48, 4800)]
    assert content[start:].count(sizes[0]) == 1
    path.write_bytes(content[:start] + content[start:].replace(*sizes))
    refused(path, "not a saved program: it is cut off")


def test_sizes_are_looked_at_before_anything_is_unpacked(tmp_path: Path) -> None:
    """Zeros that take a thousandth of their size in the file."""
    members = members_of(tmp_path)
    size = 1 << 25
    for name, part in (
        ("dram.bin", "dram.bin: has 33,554,432 bytes"),
        ("insns.bin", "insns.bin: has 33,554,432 bytes"),
        ("meta.json", "meta.json: has 33,554,432 bytes; allowed: 16,777,216"),
    ):
        bomb = [*(members | {name: bytes(size)}).items()]
        path = zipped(tmp_path / "bomb.zip", bomb, zipfile.ZIP_DEFLATED)
        tracemalloc.start()
        refused(path, part)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < size / 8
        (tmp_path / "bomb").mkdir(exist_ok=True)
        for member, content in bomb:
            (tmp_path / "bomb" / member).write_bytes(content)
        refused(tmp_path / "bomb", part)


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    save_program(PROGRAM, tmp_path / "p")
    (tmp_path / "p/dram.bin").unlink()
    os.mkfifo(tmp_path / "p/dram.bin")
    refused(tmp_path / "p", "dram.bin cannot be read: it is no file")


def test_a_program_that_could_not_be_read_back_is_not_written(tmp_path: Path) -> None:
    image = np.broadcast_to(np.zeros(1, np.uint8), (1 << 30) + 1)
    with pytest.raises(
        ProgramError, match=r"1,073,741,825 bytes of DRAM; .* 1,073,741,824 at most"
    ):
        save_program(VtaProgram(VtaConfig(), (), image, {}), tmp_path / "p")


def test_an_invalid_program_is_not_written(tmp_path: Path) -> None:
    overlapping = VtaProgram(
        VtaConfig(),
        (),
        np.zeros(4, dtype=np.uint8),
        {"A": Tensor(0, (4,), "int8"), "B": Tensor(2, (2,), "int8")},
    )
    with pytest.raises(ProgramError, match="overlap"):
        save_program(overlapping, tmp_path / "p")
    with pytest.raises(ProgramError, match="does not fit"):
        save_program(
            VtaProgram(VtaConfig(), (Load(Memory.INP, -1, 0, 1, 1, 1),), np.zeros(0, np.uint8), {}),
            tmp_path / "p",
        )
    assert not (tmp_path / "p").exists()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ProgramError, match=r"file is a file; .*\.zip"):
        save_program(PROGRAM, tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"
    with pytest.raises(CpembedError, match="cannot be written"):
        save_program(PROGRAM, tmp_path / "no such folder" / "p.zip")
