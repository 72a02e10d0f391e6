"""Whatever is in a file for a target or a constraint set: it is used, or one line says what is
wrong."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from cpembed.resources import constraint_files, hardware_spec_files
from tests.fuzz.commands import run_all

SEED, COUNT, PARTS = 20261124, 3000, 6
TIMEOUT = 1

VALUES = (
    *("0", "1", "-1", "2", "3", "16", "17", "64", "255", "65536", "65537", "1_000_000", "0xff"),
    *("9223372036854775807", "9223372036854775808", "1" + "0" * 40, "1.5", "1e400", "nan", "inf"),
    *("true", "false", '""', '"x"', '"any"', '"all"', '"é"', '"\\u0000"', "'" + "x" * 3000 + "'"),
    *("[]", "[1]", '["x"]', '["x", "x"]', "{}", "{ min = 1, max = 16 }", "{ x = 1 }"),
    *("{ min = 5, max = 3 }", "{ min = 1, max = 65536 }", "{ min = 4, max = 16, step = 4 }"),
    *("1979-05-27", "07:32:00", "[[[[1]]]]", "[" * 2000 + "]" * 2000, '"C[x] += A[x]"'),
    *('"uint8"', '["int8", "uint8"]', '"float32"', '["one", "spread"]', '"operands"'),
)
PIECES = (
    *('"', "'", "[", "]", "{", "}", "=", ".", ",", "#", "\n", "\\", "\x00", "\x7f", "\ufeff", "é"),
    *("9" * 30, "x", "[x]", "[[x]]", '"""', "-", "%", "/", "*", "(", "A", "1"),
)
GARBAGE = (b"\xff\xfe", b"\xc3\x28", b"\x00", b"\x80", b"\xed\xa0\x80", b"\r", b"\xf8\x88")
WORKLOADS = (
    ["gemm", "m=8", "n=32", "k=64"],
    ["gemv", "m=32", "k=64"],
    ["dot", "k=64"],
    ["conv2d", "n=1", "c=8", "h=6", "w=6", "k=16", "r=3", "s=3"],
    ["axpy", "m=16"],
)
LINE = re.compile(r"^(\s*[\w.\"-]+\s*=\s*)(.*)$")

Lines = list[str]
Mutation = Callable[[random.Random, Lines], None]


def _at(rng: random.Random, lines: Lines) -> int:
    return rng.randrange(len(lines))


def other_value(rng: random.Random, lines: Lines) -> None:
    keys = [n for n, line in enumerate(lines) if LINE.match(line)]
    if keys:
        n = rng.choice(keys)
        lines[n] = LINE.sub(lambda found: found[1] + rng.choice(VALUES), lines[n])


def other_number(rng: random.Random, lines: Lines) -> None:
    """One of the numbers, wherever it is: in an expression, an index, a tile, a size."""
    numbers = [(n, m) for n, line in enumerate(lines) for m in re.finditer(r"\d+", line)]
    if numbers:
        n, found = rng.choice(numbers)
        new = rng.choice(("0", "1", "2", "3", "7", "16", "64", "1000", "65536", "9" * 25))
        lines[n] = lines[n][: found.start()] + new + lines[n][found.end() :]


def without_line(rng: random.Random, lines: Lines) -> None:
    del lines[_at(rng, lines)]


def line_twice(rng: random.Random, lines: Lines) -> None:
    lines.insert(_at(rng, lines), rng.choice(lines))


def lines_exchanged(rng: random.Random, lines: Lines) -> None:
    a, b = _at(rng, lines), _at(rng, lines)
    lines[a], lines[b] = lines[b], lines[a]


def other_characters(rng: random.Random, lines: Lines) -> None:
    n = _at(rng, lines)
    at = rng.randrange(len(lines[n]) + 1)
    lines[n] = lines[n][:at] + rng.choice(PIECES) + lines[n][at + rng.choice((0, 0, 1)) :]


def other_words(rng: random.Random, lines: Lines) -> None:
    """A word of the file in the place of another."""
    words = [(n, m) for n, line in enumerate(lines) for m in re.finditer(r"[A-Za-z_]+", line)]
    if words:
        (n, old), (_, new) = rng.choice(words), rng.choice(words)
        lines[n] = lines[n][: old.start()] + new[0] + lines[n][old.end() :]


MUTATIONS: tuple[Mutation, ...] = (
    *(other_value,) * 4,
    *(other_number,) * 4,
    *(other_words,) * 3,
    other_characters,
    without_line,
    line_twice,
    lines_exchanged,
)


def mutant(rng: random.Random, text: str) -> bytes:
    # Comments say nothing to a loader, and are half of most files.
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        if lines:
            rng.choice(MUTATIONS)(rng, lines)
    content = "\n".join(lines).encode()
    if rng.random() < 0.05:
        at = rng.randrange(len(content) + 1)
        content = content[:at] + rng.choice(GARBAGE) + content[at + rng.choice((0, 5, 500)) :]
    return content


def cases(folder: Path) -> list[list[str]]:
    """Command lines on mutants, which are written into the folder."""
    rng = random.Random(SEED)
    specs, sets = hardware_spec_files(), constraint_files()
    found: list[list[str]] = []
    for number in range(COUNT):
        of_set = rng.random() < 0.35
        original = rng.choice(sorted((sets if of_set else specs).items()))[1]
        path = folder / f"{original.stem}_{number}.toml"
        path.write_bytes(mutant(rng, original.read_text(encoding="utf-8")))
        words = ["solve", *rng.choice(WORKLOADS), "--timeout", str(TIMEOUT)]
        if of_set:
            target = rng.choice(("gemv", "dot", "vta_1x16x16", "amx_int8", "avx512_vnni"))
            words += ["--target", target, "--constraints", str(path)]
        else:
            words += ["--target", str(path)]
        found.append(words)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_any_file_is_used_or_refused_in_one_line(part: int, tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    asked = cases(folder)[part::PARTS]
    outcomes = run_all(asked, tmp_path)
    faults = [(o.arguments, fault) for o in outcomes if (fault := o.fault(TIMEOUT))]
    assert not faults, "\n".join(f"{arguments}: {fault}" for arguments, fault in faults[:20])
    assert [o.arguments for o in outcomes] == asked
    # Some mutants are as good as what they were made of.
    assert {0, 2} <= {o.code for o in outcomes}
