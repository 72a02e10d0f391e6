"""A back end of another distribution: it executes a target, and what it does to its process is one
line."""

from __future__ import annotations

from pathlib import Path

import pytest

from cpembed.worker import LIMIT_VARIABLE
from tests.cli.calling import in_a_process
from tests.unit.plugins.conftest import Install

MODULE = '''
import os
from dataclasses import replace

from cpembed.kernel import portable as generic

LLVM = {
    "works": "ret i32 0",
    "illegal": "call void @llvm.trap()\\n  unreachable",
    "forever": "br label %loop\\nloop:\\n  br label %loop",
    "astray": """br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
  %at = getelementptr i8, ptr %buffer, i64 %i
  store volatile i8 1, ptr %at
  %next = add i64 %i, 4096
  %more = icmp ult i64 %next, 1099511627776
  br i1 %more, label %loop, label %done
done:
  ret i32 0""",
    "hungry": """%bytes = call ptr @malloc(i64 107374182400)
  call void @llvm.memset.p0.i64(ptr %bytes, i8 1, i64 107374182400, i1 true)
  ret i32 0""",
}
DECLARED = """declare void @llvm.trap()
declare ptr @malloc(i64)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
"""


def plan(kind):
    def planned(program, threads, epilogue):
        if kind == "aborts" and program.workload.macs < 10_000:
            os.write(2, b"LLVM ERROR: no such instruction\\n")
            os.abort()
        text = LLVM.get(kind, LLVM["works"])
        made = generic.plan(program, 1, epilogue)
        output = program.workload.output.name
        lines = made.source.splitlines()
        first = next(n for n, line in enumerate(lines) if "T.func_attr" in line)
        call = f'T.evaluate(T.call_extern("int32", "behave", T.address_of({output}[0])))'
        lines.insert(first + 1, " " * 4 + call)
        source = chr(10).join(lines) + chr(10)
        body = f"define i32 @behave(ptr %buffer) {{{{\\nentry:\\n  {text}\\n}}}}\\n".format()
        return replace(made, backend=kind, source=source, functions=DECLARED + body)
    return planned


works, aborts, illegal, forever, astray, hungry = map(
    plan, ("works", "aborts", "illegal", "forever", "astray", "hungry")
)
'''

TARGET = """
name = "{name}"
description = "a unit of another distribution"
source = "made up"
backend = "{name}"

[instruction]
expression = "C[y] += A[z] * B[y,z]"

[instruction.axes]
y = 4
z = 4

[operands.A]
dtype = "int8"
scope = "memory"
tile = ["z"]

[operands.B]
dtype = "int8"
scope = "memory"
tile = ["y", "z"]

[operands.C]
dtype = "int32"
scope = "memory"
tile = ["y"]

[memories.memory]
"""

GEMM = ("run", "gemm", "m=4", "n=8", "k=9", "--json")


@pytest.fixture
def unit(install: Install, tmp_path: Path) -> None:
    kinds = ("works", "aborts", "illegal", "forever", "astray", "hungry")
    install(
        "cpembed-unit",
        {
            "cpembed.targets": {kind: f"unit_back_end:{kind}" for kind in kinds},
            "cpembed.hw_specs": {"unit": "unit_targets"},
        },
        {
            "unit_back_end.py": MODULE,
            "unit_targets/__init__.py": "",
            **{f"unit_targets/{kind}.toml": TARGET.format(name=kind) for kind in kinds},
        },
    )


@pytest.mark.usefixtures("unit")
def test_its_kernels_are_verified_and_timed() -> None:
    called = in_a_process(*GEMM, "--target", "works")
    assert called.code == 0, called.err
    document = called.json
    assert (document["backend"], document["verified"]) == ("works", True)
    assert document["latency_us"]["median"] > 0


@pytest.mark.usefixtures("unit")
@pytest.mark.parametrize(
    "kind, code, words",
    [
        pytest.param(
            "aborts",
            1,
            "planning a kernel of aborts ended in SIGABRT: LLVM ERROR: no such instruction",
            marks=pytest.mark.slow,
        ),
        ("illegal", 5, "running the illegal kernel ended in SIGILL"),
        pytest.param(
            "forever", 1, "running the forever kernel took too long", marks=pytest.mark.slow
        ),
        pytest.param(
            "astray", 1, "running the astray kernel ended in SIGSEGV", marks=pytest.mark.slow
        ),
        pytest.param("hungry", 1, "running the hungry kernel ended in SIG", marks=pytest.mark.slow),
    ],
)
def test_what_ends_its_process_is_one_line(
    monkeypatch: pytest.MonkeyPatch, kind: str, code: int, words: str
) -> None:
    monkeypatch.setenv(LIMIT_VARIABLE, "3")
    in_a_process(*GEMM, "--target", kind).is_one_line_error(code, words)


@pytest.mark.slow
@pytest.mark.usefixtures("unit")
def test_a_suite_goes_on_with_the_next_row(tmp_path: Path) -> None:
    call = ("bench", "amos", "--layers", "0-5", "--target", "aborts", "--results", str(tmp_path))
    called = in_a_process(*call, "--json")
    assert called.code == 1
    rows = called.json["rows"]
    assert [row["index"] for row in rows] == list(range(6))
    ended = [row for row in rows if row["error"] is not None]
    assert 0 < len(ended) < 6
    assert {row["error"]["type"] for row in ended} == {"CrashError"}
