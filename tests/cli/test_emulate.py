"""``cpembed emulate`` as a person or a script sees it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.cli.calling import Caller
from tests.cli.schema import NUMBER, Map, assert_matches
from tests.compilers import needs_executor
from tests.site.hooks import ROOT

DOCUMENT = {
    "program": str,
    "machine": str,
    "provenance": str,
    "cycles": NUMBER,
    "unit_cycles": Map(NUMBER),
    "memory_cycles": Map(NUMBER),
    "moved_bytes": [{"memory": str, "direction": str, "bytes": int}],
    "executions": Map(int),
    "energy_pj": Map(NUMBER),
    "saturations": int,
    "wraps": int,
    "warnings": [str],
    "comparison": {
        "expression": str,
        "output": str,
        "elements": int,
        "differences": int,
        "largest_error": NUMBER,
        "first": str,
    },
}
PRODUCT = "C[x,y] += A[x,z] * B[z,y]"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """Return the program of the page."""
    match = re.search(r'title="product\.s"\n(.*?)```', page(), re.DOTALL)
    assert match is not None
    path = tmp_path / "product.s"
    path.write_text(match[1])
    return path


def page() -> str:
    return (ROOT / "docs" / "emulate.md").read_text(encoding="utf-8")


@needs_executor
def test_the_page_shows_what_the_command_prints(cpembed: Caller, program: Path) -> None:
    called = cpembed("emulate", str(program), "--target", "gemmini", "--against", PRODUCT)
    assert (called.code, called.err) == (0, "")
    assert called.out.rstrip() in page()


@needs_executor
def test_the_page_shows_the_fault(cpembed: Caller, program: Path) -> None:
    program.write_text(program.read_text().replace("16*k] r=16", "16*k] r=15"))
    called = cpembed("emulate", str(program), "--target", "gemmini")
    called.is_one_line_error(1, "which was never written")
    assert called.err.removeprefix("cpembed: ").replace(f"{program}", "product.s") in page()


@needs_executor
@pytest.mark.parametrize(
    "old, new, line, problem",
    [
        ("config_a_rows v=#1 r=a_rows", "", 18, "register a_rows, which was never set"),
        ("preload B=scratchpad[8192", "preload B=scratchpad[8193", 17, "row 8208, lane 0"),
        ("  mvin_b", "  # mvin_b", 17, "row 8192, lane 0, of scratchpad, which was never written"),
        ("D=C[1024*i + 16*j]", "D=C[1024*i + 20*j]", 21, "element 4107 of tensor C"),
        ("S=A[1024*i]", "S=A[2048*i]", 13, "element 4096 of tensor A"),
        ("D=scratchpad[0] r=16", "D=scratchpad[16380] r=16", 13, "which has rows 0 to 16383"),
        ("D=scratchpad[0] r=16", "D=scratchpad[0] r=17", 13, "size r=17 is not allowed"),
        ("D=C[1024*i + 16*j]", "D=A[1024*i + 16*j]", 21, "elements of int32, and tensor A"),
        ("mvin_a S", "mvin_a wait loaded S", 13, "cannot use channel 'loaded'"),
    ],
)
def test_a_mistake_is_named_with_its_line(
    cpembed: Caller, program: Path, old: str, new: str, line: int, problem: str
) -> None:
    text = program.read_text()
    assert old in text
    program.write_text(text.replace(old, new))
    called = cpembed("emulate", str(program), "--target", "gemmini")
    assert called.code in (1, 2)
    called.is_one_line_error(called.code, f"line {line}: ", problem)


@needs_executor
def test_the_document(cpembed: Caller, program: Path) -> None:
    arguments = ("emulate", str(program), "--target", "gemmini", "--json", "--against")
    called = cpembed(*arguments, PRODUCT)
    assert_matches(called.json, DOCUMENT)
    assert called.json["comparison"]["differences"] == 0
    called = cpembed(*arguments, "C[x,y] += A[x,z] * B[y,z]")
    assert called.code == 1
    assert called.json["comparison"]["differences"] > 4000
    assert re.search(r"C\[0, 0\] is -?\d+ instead of -?\d+, and 4,\d+ more", called.err)


@needs_executor
def test_files_in_and_out(cpembed: Caller, program: Path, tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    a, b = (draw.integers(-128, 128, (64, 64), dtype=np.int8) for _ in range(2))
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", np.asfortranarray(b))
    called = cpembed(
        "emulate", str(program), "--target", "gemmini", "--input", f"A={tmp_path}/a.npy",
        "--input", f"B={tmp_path}/b.npy", "--output", f"C={tmp_path}/c.out",
        "--save", str(tmp_path / "out"),
    )  # fmt: skip
    assert called.code == 0
    result = np.load(tmp_path / "c.out", allow_pickle=False)
    assert np.array_equal(result, a.astype(np.int32) @ b.astype(np.int32))
    assert "void run_product(" in (tmp_path / "out" / "program.c").read_text()


@pytest.mark.parametrize(
    "array, problem",
    [
        (np.zeros((64, 63), np.int8), "int8[64, 63], and A is int8[64, 64]"),
        (np.zeros((64, 64), np.int16), "int16[64, 64], and A is int8[64, 64]"),
        (np.array([{}], object), "object[1], and A is int8[64, 64]"),
        (b"\x80\x04N.", "not an array of numpy"),
        (b"\x93NUMPY\x01\x00v\x00{'descr': '|i1', 'shape': (9", "not an array"),
        (b"", "not an array of numpy"),
    ],
)  # fmt: skip
def test_wrong_files_are_refused(
    cpembed: Caller, program: Path, tmp_path: Path, array: object, problem: str
) -> None:
    path = tmp_path / "a.npy"
    if isinstance(array, bytes):
        path.write_bytes(array)
    else:
        np.save(path, array, allow_pickle=True)
    called = cpembed("emulate", str(program), "--target", "gemmini", "--input", f"A={path}")
    called.is_one_line_error(2, problem)


@pytest.mark.parametrize(
    "arguments, code, problem",
    [
        (("--target", "gemini"), 2, "did you mean gemmini"),
        (("--target", "gemmini", "--input", "C=c.npy"), 2, "C is no input or constant: use A B"),
        (("--target", "gemmini", "--input", "A"), 2, "write NAME=FILE"),
        (("--target", "gemmini", "--output", "D=c.npy"), 2, "declares no tensor D: use A B C"),
        (("--target", "gemmini", "--against", "C[x,y] += A[x,z] * D[z,y]"), 2, "no tensor D"),
        (("--target", "gemmini", "--against", "C[x,y] += A[x]"), 2, "A[x] has 1 indices"),
        (("--target", "gemmini", "--against", "C[x,y] += A[x+y,z+w] * B[z,y]"), 2, "w alone"),
        (("--target", "gemmini", "--against", "C[x,y +="), 2, "column"),
        (("--target", "tpu_like"), 2, "the program is for gemmini"),
    ],
)
def test_wrong_words_are_refused(
    cpembed: Caller, program: Path, arguments: tuple[str, ...], code: int, problem: str
) -> None:
    cpembed("emulate", str(program), *arguments).is_one_line_error(code, problem)


def test_a_program_that_cannot_be_read_is_refused(cpembed: Caller, tmp_path: Path) -> None:
    called = cpembed("emulate", str(tmp_path / "none.s"), "--target", "gemmini")
    called.is_one_line_error(2, "none.s")
    (tmp_path / "binary.s").write_bytes(b"\xff\xfe\x00")
    called = cpembed("emulate", str(tmp_path / "binary.s"), "--target", "gemmini")
    called.is_one_line_error(2, "not a text in UTF-8")
