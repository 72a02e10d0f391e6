"""Damaged program files and assembly texts for VTA; each follows from its number alone."""

from __future__ import annotations

import json
import random
import re
import struct
import sys
import warnings
import zipfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

NUMBERS = (
    *(0, 1, -1, 2, 3, 7, 8, 15, 16, 31, 255, 256, 4096, 65535, 65536),
    *(2**31 - 1, 2**31, 2**32, 2**40, 2**63 - 1, 2**63, 2**64, 10**30, 10**4000),
)
VALUES = (
    *NUMBERS,
    *map(str, NUMBERS[:4]),
    *(None, True, 1.5, "", "A" * 5000, [], [1, 2], {}, {"a": 1}),
)
WORDS = (
    *(".vta", ".vta 1", ".config", ".dram", ".tensor", ".uop", ".data", ".code", "load", "store"),
    *("gemm", "alu", "finish", "uop", "inp", "out", "mul", "reset", "push.next", "pop.prev", "="),
    *("x=0", "role=input", "dtype=object", "shape=scalar", "shape=4294967296x2", "dram=A+9"),
    *("at=0xfffffffff", "size=1073741824", "base=1099511627775", "log_block=40"),
    *("log_inp_buff=40", "\0", "é", "A" * 3000),
)

BOMBS = (
    (3 << 30, "dram.bin"),
    (1 << 24, "dram.bin"),
    (3 << 30, "insns.bin"),
    (1 << 25, "insns.bin"),
)
"""The first mutants: zeros, a thousandth of their size in the file."""

Contents = dict[str, bytes]
"""Members of a program by name."""


def flipped(rng: random.Random, data: bytes) -> bytes:
    """Some bits."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8, 40))):
        if changed:
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def cut(rng: random.Random, data: bytes) -> bytes:
    """A piece is missing, repeated, zero, or random."""
    first, last = sorted(rng.randint(0, len(data)) for _ in range(2))
    piece = data[first:last]
    middle = rng.choice((b"", piece * 2, bytes(len(piece)), rng.randbytes(len(piece))))
    return rng.choice((data[:first], data[:first] + middle + data[last:]))


def damaged_bytes(rng: random.Random, data: bytes) -> bytes:
    return rng.choice((flipped, cut))(rng, data)


def places(node: Any) -> Iterator[tuple[Any, Any]]:
    """Every value of a JSON document: what it is in, and its key there."""
    for key, value in node.items() if isinstance(node, dict) else enumerate(node):
        yield node, key
        if isinstance(value, dict | list):
            yield from places(value)


def damaged_meta(rng: random.Random, data: bytes) -> bytes:
    """Values, keys, or bytes of the JSON."""
    if rng.random() < 0.2:
        return damaged_bytes(rng, data)
    meta = json.loads(data)
    for _ in range(rng.choice((1, 1, 2, 3))):
        node, key = rng.choice([*places(meta)])
        match rng.randrange(4):
            case 0 if isinstance(node, dict):
                del node[key]
            case 1 if isinstance(node, dict):
                node[rng.choice(("extra", "", "a b", "A" * 4000, key + "_"))] = node.pop(key)
            case 2 if isinstance(node[key], int):
                node[key] += rng.choice((-1, 1, 16, -16))
            case _:
                node[key] = rng.choice(VALUES)
    return _json(meta).encode()


def _json(value: object) -> str:
    """Also of numbers with more digits than Python writes."""
    digits = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        return json.dumps(value)
    finally:
        sys.set_int_max_str_digits(digits)


def consistent(members: Contents) -> Contents:
    """With the sizes that ``meta.json`` should say, so that what is damaged is read further."""
    try:
        meta = json.loads(members["meta.json"])
        meta["instructions"] = len(members["insns.bin"]) // 16
        meta["dram_bytes"] = len(members["dram.bin"])
    except (ValueError, TypeError, KeyError):
        return members
    return members | {"meta.json": _json(meta).encode()}


def damaged_members(rng: random.Random, members: Contents) -> Contents:
    """Of one program: damaged, swapped, dropped, or inflated."""
    changed = dict(members)
    name = rng.choice(sorted(changed))
    match rng.randrange(12):
        case 0 | 1 | 2 | 3:
            changed["meta.json"] = damaged_meta(rng, changed["meta.json"])
        case 4 | 5 | 6:
            changed["insns.bin"] = flipped(rng, changed["insns.bin"])
        case 7:
            changed[name] = damaged_bytes(rng, changed[name])
            changed = consistent(changed)
        case 8:
            other = rng.choice(sorted(changed))
            changed[name], changed[other] = changed[other], changed[name]
        case 9:
            changed[rng.choice(("other", name.upper(), f"../{name}"))] = changed.pop(name)
        case 10:
            # Each instruction takes a while; zeros are one that moves nothing.
            larger = (1 << 12, 1 << 16) if name == "insns.bin" else (1 << 20, 1 << 24)
            changed[name] = bytes(rng.choice(larger)) + changed[name]
            changed = rng.choice((changed, consistent(changed)))
        case _:
            changed[name] = b""
    return changed


def zipped(rng: random.Random, members: Contents) -> bytes:
    methods = (zipfile.ZIP_DEFLATED,) * 8 + (
        zipfile.ZIP_STORED,
        zipfile.ZIP_BZIP2,
        zipfile.ZIP_LZMA,
    )
    file = BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(file, "w", rng.choice(methods)) as archive:
        warnings.simplefilter("ignore")  # of names that are there twice
        names = sorted(members)
        if rng.random() < 0.05:
            names.append(rng.choice(names))
        for name in names:
            archive.writestr(
                zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), members[name], archive.compression
            )
    return file.getvalue()


def damaged_directory(rng: random.Random, data: bytes) -> bytes:
    """Fields of the archive's headers: sizes, checks, methods, places."""
    changed = bytearray(data)
    starts = [at for at in range(len(data) - 3) if data[at : at + 2] == b"PK"]
    for _ in range(rng.choice((1, 2, 4))):
        at = rng.choice(starts) + rng.randrange(4, 46)
        if at + 4 <= len(changed):
            value = rng.choice((0, 1, 0xFFFF, 0xFFFFFFFF, 1 << 31, rng.getrandbits(32)))
            struct.pack_into("<I", changed, at, value)
    return bytes(changed)


def bomb(size: int, name: str, members: Contents) -> bytes:
    """An archive whose member would be ``size`` zeros, and whose ``meta.json`` says so."""
    file = BytesIO()
    meta = json.loads(members["meta.json"])
    meta["instructions" if name == "insns.bin" else "dram_bytes"] = size // (
        16 if name[0] == "i" else 1
    )
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for other, data in (members | {"meta.json": json.dumps(meta).encode()}).items():
            if other != name:
                archive.writestr(other, data)
        with archive.open(name, "w", force_zip64=True) as member:
            for _ in range(size >> 20):
                member.write(bytes(1 << 20))
    return file.getvalue()


def damaged_file(number: int, members: list[Contents], folder: Path) -> Path:
    """The mutant of a number: a zip or a directory."""
    rng = random.Random(f"files {number}")
    changed = rng.choice(members)
    if number < len(BOMBS):
        path = folder / "mutant.zip"
        path.write_bytes(bomb(*BOMBS[number], changed))
        return path
    form = rng.randrange(8)
    if form < 4:
        changed = damaged_members(rng, changed)
    if form in (0, 1):
        path = folder / "mutant"
        for name, data in changed.items():
            file = path / name.replace("..", "up")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
        return path
    data = zipped(rng, changed)
    if form in (4, 5):
        data = damaged_bytes(rng, data)
    elif form > 5:
        data = damaged_directory(rng, data)
    path = folder / "mutant.zip"
    path.write_bytes(data)
    return path


def other_number(rng: random.Random, line: str) -> str:
    """One of a line's numbers: another near it, or any."""
    found = [*re.finditer(r"(?<![\w.])\d+\b", line)]
    if not found:
        return line
    number = rng.choice(found)
    near = (int(number[0]) + 1, max(int(number[0]) - 1, 0), 2 * int(number[0]))
    value = rng.choice(rng.choice((near, NUMBERS[:-1])))
    text = rng.choice((str(value), str(value), hex(value), "9" * 60))
    return line[: number.start()] + text + line[number.end() :]


def damaged_text(number: int, texts: list[str]) -> str:
    rng = random.Random(f"texts {number}")
    lines = rng.choice(texts).split("\n")
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(lines))
        match rng.randrange(8):
            case 0:
                lines[at] = flipped(rng, lines[at].encode()).decode("utf-8", "replace")
            case 1:
                lines.insert(at, rng.choice((rng.choice(lines), rng.choice(WORDS))))
            case 2:
                lines[at : at + rng.choice((1, 3, 20))] = []
                lines = lines or [""]
            case 3:
                words = lines[at].split(" ")
                words[rng.randrange(len(words))] = rng.choice(WORDS)
                lines[at] = " ".join(words)
            case _:
                lines[at] = other_number(rng, lines[at])
    return "\n".join(lines)
