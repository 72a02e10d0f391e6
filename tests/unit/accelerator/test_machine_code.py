"""The machine's own text: compiled, it issues the program's instructions with their arguments."""

from __future__ import annotations

import ctypes
import json
import random
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from cpembed.accelerator.assembly import parse
from cpembed.accelerator.executor import execute
from cpembed.accelerator.machine_code import c_text, save
from cpembed.accelerator.program import Loop, Node
from cpembed.accelerator.trace import unroll
from cpembed.errors import LoweringError
from cpembed.host import compiler_command
from cpembed.hw.isa_reader import load_instruction_set
from tests.compilers import needs_executor
from tests.unit.accelerator.random_programs import random_case, random_machine
from tests.unit.accelerator.recorded_calls import expected_calls, recorded, recording


def compiled(text: str, folder: Path) -> ctypes.CDLL:
    command = compiler_command("CC", ("cc", "gcc", "clang"), "the test compiles C")
    (folder / "program.c").write_text(text)
    arguments = [*command, "-std=c99", "-shared", "-fPIC", "-o", "program.so", "program.c"]
    subprocess.run(arguments, cwd=folder, check=True, capture_output=True)
    return ctypes.CDLL(str(folder / "program.so"))


@pytest.mark.parametrize("seed", range(6))
def test_compiled_text_issues_the_same_instructions(seed: int, tmp_path: Path) -> None:
    program = random_case(seed, random_machine(random.Random(seed))).program
    program = replace(program, machine=recording(program.machine, program))
    library = compiled(c_text(program), tmp_path)
    library.run_random(*[None] * len(program.tensors))
    assert recorded(library) == expected_calls(program)


def test_a_long_sequence_becomes_several_functions(tmp_path: Path) -> None:
    case = random_case(1, random_machine(random.Random(1)))
    load = case.program.body[1]
    assert isinstance(load, Loop)
    nodes: tuple[Node, ...] = tuple(
        Loop(f"outer{n}", 1, (replace(load, extent=1),)) for n in range(1000)
    )
    program = replace(case.program, body=(Loop("all", 2, nodes),))
    program = replace(program, machine=recording(program.machine, program))
    text = c_text(program)
    assert text.count("static void part") == 3
    library = compiled(text, tmp_path)
    library.run_random(*[None] * len(program.tensors))
    assert len(recorded(library)) == len(expected_calls(program))


def test_gemminis_text_calls_its_macros() -> None:
    machine = load_instruction_set("gemmini")
    source = (
        ".program tile\n.tensor A int8 [16, 16] input\nconfig_stride_a v=#16 r=stride_a\n"
        "loop i 4 {\nmvin_a S=A[4*i] D=scratchpad[8*i] r=4 e=16 if 2 - i\n}\n"
    )
    text = c_text(parse(source, machine))
    assert "void run_tile(const int8_t *A)" in text
    assert "for (ptrdiff_t i = 0; i < 4; i++) {" in text
    assert "gemmini_extended_mvin((A + (4 * i)), (8 * i), 16, 4);" in text
    assert "if (((-i + 2)) >= 0)" in text or "(-i + 2) >= 0" in text


@pytest.mark.parametrize(
    "tensor, loop, problem",
    [
        ("A.1", "i", "tensor 'A.1' cannot be a variable in C"),
        ("A", "int", "loop 'int' cannot be a variable in C"),
        ("i", "i", "loop 'i' has the name of a tensor"),
    ],
)
def test_names_that_c_does_not_have_are_refused(tensor: str, loop: str, problem: str) -> None:
    source = f".tensor {tensor} int8 [16, 16] input\nloop {loop} 2 {{\n}}\n"
    with pytest.raises(LoweringError, match=problem):
        c_text(parse(source, load_instruction_set("gemmini")))


@needs_executor
def test_the_manifest_has_every_number_of_the_run(tmp_path: Path) -> None:
    for seed in range(50):
        case = random_case(seed, random_machine(random.Random(0)))
        try:
            run = execute(case.program, case.buffers)
            break
        except Exception:
            continue
    names = save(case.program, tmp_path / "out", run)
    assert names == ("program.c", "manifest.json")
    document = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert document["emulated"]["cycles"] == run.cycles
    assert sum(document["emulated"]["executions"].values()) == sum(
        len(piece.issues) for piece in unroll(case.program)
    )
    assert [t["name"] for t in document["tensors"]] == list(case.program.tensors)
