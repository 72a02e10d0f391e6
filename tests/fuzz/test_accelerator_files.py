"""Damaged files for accelerators: each works, or one line says what is wrong and what to do.

Tables of instruction sets are damaged by their structure: keys that are deleted, renamed or
exchanged, numbers that are negative or huge, texts of other keys. What is still a machine must be
planned for, or refused. Programs and inputs of ``cpembed emulate`` are damaged as texts and bytes.
"""

from __future__ import annotations

import copy
import io
import random
import re
import tomllib
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cpembed.accelerator.operator_search import OperatorSearch
from cpembed.accelerator.proof import prove
from cpembed.accelerator.workload import workload_specification
from cpembed.cli import main
from cpembed.errors import SpecError
from cpembed.hw.isa_reader import read_instruction_set
from cpembed.resources import accelerator_files
from cpembed.workloads.naming import parse_workload
from tests.compilers import needs_executor

ROOT = Path(__file__).parents[2]
MACHINES = {**accelerator_files(), "npu": ROOT / "examples" / "accelerator" / "npu.toml"}
LONGEST = 1500
"""Characters of a message."""
VALUES: tuple[Any, ...] = (
    "", "x", "main", "immediate", "int8", "float32", "int7", "é\n\t", "(" * 300, "a" * 10_000,
    "r[] = v[]", "D[r,e] = S[e,q]", "D[r,e] += S[r,e] * S[e,r]", "e%16", "e/0", "any", "dense",
    0, -1, 1, 3, 2**70, -(2**63), -0.5, 1e300, float("nan"), float("inf"), True, [], {},
    ["r"], ["r", "e", "r"], [[[]]], {"max": 0}, {"min": 9, "max": 3}, {"r": "any"},
    {"a": {"b": {}}},
)  # fmt: skip
"""What stands where something else is expected."""


def paths(node: Any, prefix: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the keys that lead to every value."""
    items: Any = node.items() if hasattr(node, "items") else enumerate(node)
    for key, value in items:
        yield (*prefix, key)
        if isinstance(value, dict | list):
            yield from paths(value, (*prefix, key))


def value_at(tables: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        tables = tables[key]
    return tables


def damaged(original: dict[str, Any], draw: random.Random) -> tuple[str, dict[str, Any]]:
    """Return a description and a copy of tables with one random fault."""
    tables = copy.deepcopy(original)
    places = list(paths(tables))
    path = draw.choice(places)
    parent: Any = value_at(tables, path[:-1])
    key = path[-1]
    kind = draw.choice(["delete", "value", "number", "rename", "swap", "repeat", "text", "drop"])
    if kind == "delete":
        del parent[key]
    elif kind == "value":
        parent[key] = copy.deepcopy(draw.choice(VALUES))
    elif kind == "number":
        numbers = [p for p in places if type(value_at(tables, p)) in (int, float)]
        path = draw.choice(numbers)
        number = value_at(tables, path)
        value_at(tables, path[:-1])[path[-1]] = draw.choice(
            [0, -1, -number, 2 * number, 1_000_003 * number, number + 1, number / 2, 2**62, 1e18]
        )
    elif kind == "rename" and hasattr(parent, "items"):
        parent[draw.choice(["zz", "name", "memory", "Ü", "max", "r", "e"])] = parent.pop(key)
    elif kind == "swap":
        alike = [p for p in places if type(value_at(tables, p)) is type(parent[key])]
        other = draw.choice(alike)
        first, second = copy.deepcopy(parent[key]), copy.deepcopy(value_at(tables, other))
        value_at(tables, other[:-1])[other[-1]] = first
        # What was exchanged with something inside of itself is there no more.
        if path[: len(other)] != other:
            parent[key] = second
    elif kind == "repeat" and hasattr(parent, "append"):
        parent.append(copy.deepcopy(parent[key]))
    elif kind == "text":
        path = draw.choice([p for p in places if isinstance(value_at(tables, p), str)])
        value_at(tables, path[:-1])[path[-1]] = damaged_text(value_at(tables, path), draw)
    elif kind == "drop":
        for _ in range(draw.choice([1, 1, 3])):
            tables["instructions"].pop(draw.randrange(len(tables["instructions"])))
    return f"{kind} of {'.'.join(map(str, path))}", tables


def damaged_text(text: str, draw: random.Random) -> str:
    """Return a text with one letter, number or line that is another."""
    at = draw.randrange(len(text) + 1)
    numbers = list(re.finditer(r"\d+", text))
    words = list(re.finditer(r"[A-Za-z_]\w*", text))
    lines = text.split("\n")
    line = draw.randrange(len(lines))
    kind = draw.choice(["letter", "number", "word", "line", "twice", "part"])
    if kind == "number" and numbers:
        number = draw.choice(numbers)
        other = ["0", "-1", "65536", str(2**31), str(2**63), "1e9", "nan", str(10**30)]
        near = [str(int(number.group()) + 1), str(2 * int(number.group()))]
        return text[: number.start()] + draw.choice(other + near) + text[number.end() :]
    if kind == "word" and words:
        word, other_word = draw.choice(words), draw.choice(words)
        return text[: word.start()] + other_word.group() + text[word.end() :]
    if kind == "line":
        return "\n".join(lines[:line] + lines[line + 1 :])
    if kind == "twice":
        return "\n".join([*lines[:line], lines[line], *lines[line:]])
    if kind == "part":
        parts = [" if -1", " wait x", " signal x", " r=min(1,", "{", "}\n", "\nloop i 5 {", "\0"]
        return text[:at] + draw.choice(parts) + text[at:]
    return text[:at] + draw.choice("[](){}*+-/%,.;=#| 09axzé\n\t") + text[at + 1 :]


def planning_fault(tables: dict[str, Any]) -> str:
    """Read a machine and plan a layer for it; return what is wrong with the answer, or nothing."""
    try:
        machine = read_instruction_set(tables, "file.toml")
    except SpecError as error:
        text = str(error)
        is_line = text.startswith("file.toml: ") and "\n" not in text and len(text) < LONGEST
        return "" if is_line else f"no line for people: {text[:200]!r}"
    layer = workload_specification(parse_workload(["gemm", "m=20", "n=24", "k=24"]))
    plans = OperatorSearch(layer, machine).plans()
    if isinstance(plans, str):
        return "" if plans.startswith("rejected: ") and "\n" not in plans else plans
    return "; ".join(p.refusal for p in (prove(plan.program()) for plan in plans) if not p.holds)


def check_tables(name: str, seeds: range) -> None:
    original = tomllib.loads(MACHINES[name].read_text(encoding="utf-8"))
    for seed in seeds:
        description, tables = damaged(original, random.Random(f"{name}{seed}"))
        fault = planning_fault(tables)
        assert not fault, f"{seed}, {description}: {fault}"


@pytest.mark.parametrize("name", MACHINES)
def test_a_damaged_machine_is_refused_or_planned_for(name: str) -> None:
    check_tables(name, range(6))


@pytest.mark.slow
@pytest.mark.parametrize("name", MACHINES)
def test_any_damaged_machine_is_refused_or_planned_for(name: str) -> None:
    check_tables(name, range(6, 106))


NPU = MACHINES["npu"].read_text(encoding="utf-8")
WRONG: dict[str, tuple[str, str, str]] = {
    "no instruction": (NPU[NPU.index("[[instructions]]") :], "", "instructions: is missing"),
    "huge memory": ("rows = 2048", "rows = 1000000000000", "memories.buffer.rows: 1,000,000,000"),
    "table twice": ("[memories.buffer]", "[[memories.buffer]]", "memories.buffer: is an array"),
    "unit": ('"array", ', "", "instructions.product.unit: 'array' is not in `units`"),
    "unused unit": ('"array", ', '"array", "spare", ', "units[2]: spare executes no instruction"),
    "latency": ("latency_cycles = 60", "latency_cycles = -60", "memories.dram.latency_cycles: -60"),
    "register": (
        'operands.r = { memory = "scale" }',
        'operands.r = { memory = "add_scale" }',
        "memories.scale: is read by store, store_relu and no instruction sets it",
    ),
    "overlap": (
        'dtype = "int32", rows = ["x"], lanes = ["y"] }',
        'dtype = "int32", rows = ["x"], lanes = ["y"], stride = { x = 0 } }',
        "instructions.product.operands.C.stride: C[0, 0] and C[1, 0] lie at one place",
    ),
    "division": (
        "S[r,e] * s[]",
        "S[r,e] * s[] / 0",
        "load_scaled.expression: ((S[r, e] * s[]) / 0) divides by zero",
    ),
    "constant": ("rows = 2048", 'rows = "$(2048/0)"', "rows: $2048/0: divides by zero"),
    "product": (
        "rows = 2048",
        f'rows = "$({"*".join(["9999999999"] * 200)})"',
        "is beyond all sizes",
    ),
    "shell": ('name = "load"', 'name = "$(touch x)"', "instructions: '$(touch x)' is not a name"),
    "path": ('name = "npu"', 'name = "../npu"', "name: '../npu' is not a name"),
    "format": ("{D.row}", "{D.row:>1000000000}", "instructions.load.emit: {D.row} has a format"),
    "nested format": ("{D.row}", "{D.row:{r}}", "instructions.load.emit: {D.row} has a format"),
    "conversion": ("{D.row}", "{D.row!r}", "instructions.load.emit: {D.row} has a format"),
    "attribute": ("{D.row}", "{D.__class__}", "emit: unknown field {D.__class__}"),
    "key of a named entry": ('unit = "load"', 'unit = "load"\nx = 1', ".x: unknown key"),
    "constants": ('name = "npu"', 'name = "npu"\nconstant = 1', "(did you mean constants?)"),
}
"""A part of the guide's file, what stands there instead, and the message's beginning or a part."""


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_file_gets_one_line(kind: str, tmp_path: Path) -> None:
    old, new, message = WRONG[kind]
    text = NPU.replace(old, new, 1)
    assert text != NPU
    if kind in ("constant", "product"):
        text += "\n[constants]\nx = 1\n"
    (tmp_path / "file.toml").write_text(text, encoding="utf-8")
    error = refusal(tmp_path / "file.toml")
    assert message in error, error
    assert len(error) < LONGEST


@pytest.mark.parametrize(
    "content",
    [b"", b"\x00\xff", NPU.encode("utf-16"), b"a = " + b"[" * 5000, b"a." * 100_000 + b"a = 1"],
    ids=["empty", "bytes", "UTF-16", "deep", "dotted"],
)
def test_what_is_no_table_gets_one_line(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "file.toml").write_bytes(content)
    assert refusal(tmp_path / "file.toml")


def refusal(path: Path) -> str:
    """Return the line that refuses a file, beside which nothing is written."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(["solve", "gemm", "m=16", "n=16", "k=16", "--target", str(path)])
    lines = err.getvalue().splitlines()
    assert (code, len(lines), out.getvalue()) == (2, 1, ""), err.getvalue()
    assert lines[0].startswith(f"cpembed: {path}: ")
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    return lines[0]


# -- cpembed emulate ------------------------------------------------------------------------------


def emulate_fault(arguments: list[str]) -> str:
    """Run the command; return what is wrong with its answer, or nothing."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(["emulate", *arguments])
    lines = err.getvalue().splitlines()
    if code not in (0, 1, 2) or "Traceback" in err.getvalue():
        return f"exit code {code}: {err.getvalue()[-300:]}"
    if code == 2 and (len(lines) != 1 or out.getvalue() or len(lines[0]) > LONGEST):
        return f"no line for people: {err.getvalue()[:300]!r}"
    return ""


def product(folder: Path) -> tuple[Path, str]:
    """Return the file of the guide's program and its text."""
    path = folder / "product.s"
    text = (ROOT / "examples" / "accelerator" / "product.s").read_text(encoding="utf-8")
    path.write_text(text, encoding="utf-8")
    return path, text


def check_programs(folder: Path, seeds: range) -> None:
    path, text = product(folder)
    for seed in seeds:
        draw = random.Random(seed)
        changed = damaged_text(text, draw)
        for _ in range(draw.choice([0, 0, 1, 3])):
            changed = damaged_text(changed, draw)
        path.write_text(changed, encoding="utf-8")
        against = ["--against", "C[x,y] += A[x,z] * B[z,y]"]
        fault = emulate_fault([str(path), "--target", str(MACHINES["npu"]), *against])
        assert not fault, f"{seed}: {fault}"


@needs_executor
def test_a_damaged_program_runs_or_is_refused(tmp_path: Path) -> None:
    check_programs(tmp_path, range(60))


@needs_executor
@pytest.mark.slow
def test_any_damaged_program_runs_or_is_refused(tmp_path: Path) -> None:
    check_programs(tmp_path, range(60, 3000))


def damaged_arrays(draw: random.Random) -> bytes:
    """Return the bytes of a file of numpy that is no matrix of bytes, or a damaged one."""
    arrays: list[Any] = [
        np.zeros((64, 16), np.int8), np.zeros((16, 64), np.int8), np.zeros(1024, np.int8),
        np.zeros((64, 16), np.int32), np.zeros((64, 16), np.complex64), np.zeros((), np.int8),
        np.full((64, 16), np.nan), np.zeros((64, 16), "U3"), np.zeros((0, 16), np.int8),
        np.full((64, 16), 1000), np.asfortranarray(np.zeros((64, 16), np.int8)),
        np.zeros((64, 16), [("a", "i1")]), np.zeros((64, 16), "M8[s]"), np.zeros((64, 16), ">i2"),
    ]  # fmt: skip
    stream = io.BytesIO()
    np.save(stream, draw.choice(arrays))
    content = bytearray(stream.getvalue())
    for _ in range(draw.choice([0, 1, 1, 4])):
        at = draw.randrange(min(len(content), 140))
        content[at] = draw.randrange(256)
    if draw.random() < 0.3:
        content = content[: draw.randrange(len(content) + 1)]
    return bytes(content)


@needs_executor
def test_a_damaged_input_is_read_or_refused(tmp_path: Path) -> None:
    path, _ = product(tmp_path)
    array = tmp_path / "a.npy"
    for seed in range(80):
        array.write_bytes(damaged_arrays(random.Random(seed)))
        machine = ["--target", str(MACHINES["npu"])]
        fault = emulate_fault([str(path), *machine, "--input", f"A={array}"])
        assert not fault, f"{seed}: {fault}"
    # Nothing was left beside what was there.
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.npy", "product.s"]
