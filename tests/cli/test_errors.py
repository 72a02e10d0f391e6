"""Wrong input: one line on stderr that says what, where and the remedy, nothing on stdout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest

from cpembed.cli import main, output
from cpembed.cli.output import print_json
from cpembed.driver import advice as choice
from cpembed.driver import solve as api
from cpembed.errors import InvariantError
from cpembed.resources import hardware_spec_files
from tests.cli.calling import Called, Caller, in_a_process

VTA = ("--target", "vta_1x16x16")
GEMM = ("gemm", "m=4", "n=32", "k=64")

WRONG = {
    "unknown operator": ((*VTA, "gem", "m=4", "n=4", "k=4"), ("'gem'", "gemm")),
    "missing extent": ((*VTA, "gemm", "m=4", "n=4"), ("gemm", "missing k")),
    "missing extent of an expression": (
        (*VTA, "C[x,y] += A[x,z] * B[z,y]", "x=4", "y=4"),
        ("z",),
    ),
    "index that is not affine": (
        (*VTA, "C[x,y] += A[x*y,z] * B[z,y]", "x=4", "y=4", "z=4"),
        ("x times y", "affine"),
    ),
    "zero extent": ((*VTA, "gemm", "m=4", "n=0", "k=4"), ("n=0", "less than 1")),
    "negative extent": ((*VTA, "gemm", "m=-4", "n=4", "k=4"), ("m=-4", "less than 1")),
    "zero extent of an expression": (
        (*VTA, "C[x,y] += A[x,z] * B[z,y]", "x=4", "y=4", "z=0"),
        ("z", "at least 1"),
    ),
    "unknown dtype": ((*VTA, *GEMM, "dtype=int7"), ("int7", "int8")),
    "dtype that the target lacks": ((*VTA, *GEMM, "dtype=float32"), ("float32", "int8")),
    "unknown layer": ((*VTA, "deepbench:108"), ("108",)),
    "no workload": (VTA, ("WORKLOAD", "solve --help")),
    "unknown target": (("--target", "vta_1x16x61", *GEMM), ("vta_1x16x61", "vta_1x16x16")),
    "no target": (GEMM, ("--target", "solve --help")),
    "file that is not there": (("--target", "missing.toml", *GEMM), ("missing.toml",)),
    "unknown constraint set": (
        (*VTA, "--constraints", "strickt", *GEMM),
        ("strickt", "did you mean strict"),
    ),
    "unknown option": ((*VTA, *GEMM, "--tpo", "3"), ("--tpo", "solve --help")),
    "top and all": ((*VTA, *GEMM, "--top", "3", "--all"), ("--top", "--all")),
    "no candidates wanted": ((*VTA, *GEMM, "--top", "0"), ("--top",)),
    "one weight": ((*VTA, *GEMM, "--weights", "1"), ("--weights", "MAC,DATA")),
    "negative weight": ((*VTA, *GEMM, "--weights=-1,1"), ("--weights", "at least 0")),
    "no time": ((*VTA, *GEMM, "--timeout", "0"), ("--timeout",)),
    "target twice": ((*VTA, "--target", "amx_int8", *GEMM), ("--target", "more than once")),
    "seed twice": ((*VTA, *GEMM, "--seed", "1", "--seed=1"), ("--seed", "more than once")),
    "seed that is no integer": ((*VTA, *GEMM, "--seed", "x"), ("--seed",)),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_one_line(cpembed: Caller, name: str) -> None:
    arguments, parts = WRONG[name]
    cpembed("solve", *arguments).is_one_line_error(2, *parts)


def test_wrong_input_prints_no_json(cpembed: Caller) -> None:
    cpembed("solve", "--json", *VTA, "gem", "m=4").is_one_line_error(2, "'gem'")


@pytest.mark.parametrize("option", ["--trace", "--report"])
def test_a_file_in_a_missing_folder_is_told_before_any_work(
    cpembed: Caller, tmp_path: Path, option: str
) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(b"no model, which is not read")
    called = cpembed("network", str(model), option, "/missing/file.json")
    called.is_one_line_error(2, option, "folder /missing of file.json does not exist", "make it")


def test_an_unknown_subcommand_is_one_line(cpembed: Caller) -> None:
    cpembed("slove", *VTA, *GEMM).is_one_line_error(2, "'slove'", "cpembed --help")


@pytest.mark.parametrize("command", ["explain", "run", "bench"])
def test_every_command_takes_an_option_once(cpembed: Caller, command: str) -> None:
    workload = ("deepbench",) if command == "bench" else GEMM
    called = cpembed(
        command, *workload, *VTA, "--constraints", "strict", "--constraints", "relaxed"
    )
    called.is_one_line_error(2, "--constraints is given more than once", f"{command} --help")


def test_a_flag_may_be_repeated(cpembed: Caller) -> None:
    assert cpembed("operators", "--json", "--json").code == 0


def test_an_empty_command_line_is_answered_by_the_help(cpembed: Caller) -> None:
    called = cpembed()
    assert (called.code, called.out) == (2, "")
    assert called.err == cpembed("--help").out


@pytest.mark.quick(1)
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize("words", [("--help",), ("targets",), ("operators", "--json")])
def test_a_full_disk_is_one_line(words: tuple[str, ...], buffered: bool) -> None:
    called = with_output_to("/dev/full", *words, buffered=buffered)
    called.is_one_line_error(1, "cannot be written", "No space left on device")


@pytest.mark.slow
def test_a_closed_stdout_is_one_line() -> None:
    command = ["sh", "-c", 'exec "$0" -m cpembed targets >&-', sys.executable]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=60)
    called = Called(done.returncode, "", done.stderr)
    called.is_one_line_error(1, "cannot be written", "Bad file descriptor")


@pytest.mark.quick(1)
@pytest.mark.parametrize("words", [("--help",), ("targets",), ("operators", "--json")])
def test_a_reader_that_goes_away_ends_the_command_as_shells_have_it(words: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as pipe:
        called = with_output_to(pipe.fileno(), *words)
    assert (called.code, called.err) == (128 + 13, "")


def test_nothing_is_done_after_the_result_is_printed(
    cpembed: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    monkeypatch.setattr(output, "print_json", lambda document: done.append("printed"))
    monkeypatch.setattr(choice, "better_order", lambda result: done.append("looked further"))
    assert cpembed("solve", *VTA, *GEMM, "--json").code == 0
    assert done == ["looked further", "printed"]


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "environment",
    [
        {"PYTHONIOENCODING": "iso-8859-1"},
        {"PYTHONIOENCODING": "ascii:strict"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ],
)
def test_a_terminal_without_arrows_gets_what_it_can_show(environment: dict[str, str]) -> None:
    words = ("explain", *GEMM, "--target", "vta_1x16x16")
    told = {k: v for k, v in os.environ.items() if not k.startswith(("LC_", "LANG", "PYTHON"))}
    done = subprocess.run(
        [sys.executable, "-m", "cpembed", *words],
        capture_output=True,
        env=told | environment,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\n  y  16  <----  n : 16 of 32\n" in done.stdout


def test_stderr_and_json_survive_a_terminal_without_the_characters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out, err = (TextIOWrapper(BytesIO(), encoding="ascii") for _ in range(2))
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    assert main(["solve", "x ← y", *VTA]) == 2
    print_json({"mapping": "x ← q:14"})
    assert b"column 3, '?'" in err.buffer.getvalue() or b"<-" in err.buffer.getvalue()
    assert json.loads(out.buffer.getvalue()) == {"mapping": "x ← q:14"}


def with_output_to(where: str | int, *words: str, buffered: bool = True) -> Called:
    """A process with its stdout somewhere else."""
    with open(where, "wb", closefd=isinstance(where, str)) as stream:
        done = subprocess.run(
            [sys.executable, *(() if buffered else ("-u",)), "-m", "cpembed", *words],
            stdout=stream,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            env={k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"},
        )
    return Called(done.returncode, "", done.stderr)


EDITS = {
    "wrong key": (('scope = "vta.inp"', 'scoop = "vta.inp"'), ("scoop", "operands.A")),
    "impossible tile": (('tile = ["x", "z"]', 'tile = ["x", "y"]'), ("operands.A", "tile")),
    "no TOML": (("[instruction]", "[instruction"), ("target.toml",)),
    "unknown dtype": (('dtype = "int8"', 'dtype = "int9"'), ("int9", "dtype")),
}


@pytest.mark.parametrize("name", EDITS)
def test_a_wrong_specification_is_one_line(cpembed: Caller, tmp_path: Path, name: str) -> None:
    (old, new), parts = EDITS[name]
    text = hardware_spec_files()["vta_1x16x16"].read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / "target.toml"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    cpembed("solve", "--target", str(path), *GEMM).is_one_line_error(2, str(path), *parts)


def test_a_folder_is_no_specification(cpembed: Caller, tmp_path: Path) -> None:
    folder = tmp_path / "folder.toml"
    folder.mkdir()
    cpembed("solve", "--target", str(folder), *GEMM).is_one_line_error(2, str(folder))
    cpembed("solve", *VTA, "--constraints", str(folder), *GEMM).is_one_line_error(2, str(folder))


def test_a_constraint_set_with_a_wrong_key_is_one_line(cpembed: Caller, tmp_path: Path) -> None:
    path = tmp_path / "set.toml"
    path.write_text('extends = "strict"\n[pading]\naxes = "all"\n', encoding="utf-8")
    called = cpembed("solve", *VTA, "--constraints", str(path), *GEMM)
    called.is_one_line_error(2, str(path), "pading", "padding")


def test_an_interrupt_is_one_line(cpembed: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "find_best", raising(KeyboardInterrupt()))
    called = cpembed("solve", *VTA, *GEMM)
    assert (called.code, called.out) == (130, "")
    assert called.err.strip() == "cpembed: interrupted"


def test_a_failed_check_of_our_own_is_an_internal_error(
    cpembed: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "require", raising(InvariantError("not proven")))
    cpembed("solve", *VTA, *GEMM).is_one_line_error(1, "internal error: not proven")


def test_a_bug_shows_where_it_is(cpembed: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "find_best", raising(ZeroDivisionError("by zero")))
    called = cpembed("solve", *VTA, *GEMM)
    assert (called.code, called.out) == (1, "")
    assert "Traceback" in called.err
    assert called.err.splitlines()[-1] == "cpembed: internal error: ZeroDivisionError: by zero"


def test_the_process_returns_the_exit_code() -> None:
    in_a_process("solve", *VTA, "gem").is_one_line_error(2, "'gem'")


def raising(error: BaseException) -> object:
    def function(*arguments: object, **options: object) -> None:
        raise error

    return function


@pytest.mark.parametrize("option", ["--target", "--constraints"])
@pytest.mark.parametrize(
    "content, what",
    [
        (b"x = " + b"[" * 5000 + b"]" * 5000, "nested too deeply"),
        (b"x = " + b"9" * 5000, "not valid TOML"),
        (b"name = '\xff'", "UTF-8"),
        (b"#" * 2_000_000, "more than 1,048,576 bytes"),
    ],
)
def test_a_file_that_is_no_toml_is_one_line(
    cpembed: Caller, tmp_path: Path, option: str, content: bytes, what: str
) -> None:
    path = tmp_path / "strange.toml"
    path.write_bytes(content)
    others = () if option == "--target" else VTA
    called = cpembed("solve", *others, option, str(path), *GEMM)
    called.is_one_line_error(2, str(path), what)
