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
from cpembed.accelerator.machine_code import c_text, call_arguments, save
from cpembed.accelerator.program import Loop, Node, Program
from cpembed.accelerator.trace import unroll
from cpembed.errors import LoweringError
from cpembed.host_compiler import compiler_command
from cpembed.hw.isa import InstructionSet
from cpembed.hw.isa_reader import load_instruction_set
from tests.compilers import needs_executor
from tests.unit.accelerator.random_programs import random_case, random_machine
from tests.unit.accelerator.slow_machine import iterations

# Calls are recorded as numbers, in an array that the test reads.
PREAMBLE = """
long long calls[1 << 16];
long long count;
static void record(int number, int arguments, const long long *values) {
  calls[count++] = number;
  for (int i = 0; i < arguments; i++) calls[count++] = values[i];
}
"""


def recording(machine: InstructionSet, program: Program) -> InstructionSet:
    """Return the machine with templates that record each call; addresses are element numbers."""
    instructions = {}
    for number, (name, instruction) in enumerate(machine.instructions.items()):
        fields = [f.replace(".address", ".element") for f in call_arguments(instruction, program)]
        floats = {
            f"{n}.value" for n, p in instruction.places.items() if p.dtype.startswith("float")
        }
        values = ", ".join(f"(long long)({{{f}}}{' * 4' if f in floats else ''})" for f in fields)
        template = f"record({number}, {len(fields)}, (long long[]){{{{{values or '0'}}}}});"
        instructions[name] = replace(instruction, emit=template)
    return replace(machine, instructions=instructions, preamble=PREAMBLE)


def compiled(text: str, folder: Path) -> ctypes.CDLL:
    command = compiler_command("CC", ("cc", "gcc", "clang"), "the test compiles C")
    (folder / "program.c").write_text(text)
    arguments = [*command, "-std=c99", "-shared", "-fPIC", "-o", "program.so", "program.c"]
    subprocess.run(arguments, cwd=folder, check=True, capture_output=True)
    return ctypes.CDLL(str(folder / "program.so"))


def expected_calls(program: Program) -> list[int]:
    """Evaluate the arguments of each execution, in the order of the templates."""
    numbers = {name: n for n, name in enumerate(program.machine.instructions)}
    calls: list[int] = []
    for issue, values in iterations(program.body, {}):
        calls.append(numbers[issue.instruction])
        instruction = program.machine.instructions[issue.instruction]
        for field in call_arguments(instruction, program):
            name, _, attribute = field.partition(".")
            if not attribute:
                calls.append(min(e.evaluate(values) for e in issue.sizes[name]))
                continue
            address = issue.operands[name]
            if attribute.startswith("stride."):
                calls.append(address.strides[attribute.removeprefix("stride.")])
            elif attribute == "lane":
                calls.append(address.lane.evaluate(values))
            elif address.value is not None:
                calls.append(int(address.value * 4))
            else:
                calls.append(address.base.evaluate(values))
    return calls


@pytest.mark.parametrize("seed", range(6))
def test_compiled_text_issues_the_same_instructions(seed: int, tmp_path: Path) -> None:
    program = random_case(seed, random_machine(random.Random(seed))).program
    program = replace(program, machine=recording(program.machine, program))
    library = compiled(c_text(program), tmp_path)
    library.run_random(*[None] * len(program.tensors))
    count = ctypes.c_longlong.in_dll(library, "count").value
    calls = (ctypes.c_longlong * (1 << 16)).in_dll(library, "calls")
    assert calls[:count] == expected_calls(program)


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
    assert ctypes.c_longlong.in_dll(library, "count").value == len(expected_calls(program))


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
