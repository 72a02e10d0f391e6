"""Networks in C: compiled, they call programs in order, on the buffers that these need."""

from __future__ import annotations

import ctypes
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cpembed.accelerator.executor import execute
from cpembed.accelerator.machine_code import program_function
from cpembed.accelerator.network import AcceleratorNetwork, plan_network
from cpembed.accelerator.network_code import NetworkCode, network_code
from cpembed.accelerator.network_run import run_network
from cpembed.accelerator.program import Program
from cpembed.errors import BackendUnavailable
from cpembed.graph.graph import Graph
from cpembed.graph.passes import prepare
from cpembed.host import compiler_command
from cpembed.hw.isa_reader import load_instruction_set
from cpembed.ir.dtypes import numpy_dtype
from cpembed.network.inputs import random_inputs
from tests.compilers import needs_executor
from tests.random_networks import random_network
from tests.unit.accelerator.recorded_calls import PREAMBLE, expected_calls, recorded, recording

HOOK = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.POINTER(ctypes.c_void_p))
FIRST_EXTERNAL = 1000


def planned(machine: str, seed: int) -> AcceleratorNetwork:
    source = random_network(seed, 5)
    names = [o.outputs[0] for o in source.operators if source.values[o.outputs[0]].ndim][-2:]
    graph = prepare(source.graph(*names), first="int8", second="int8")
    return plan_network(graph, load_instruction_set(machine))


def hooked(network: AcceleratorNetwork) -> tuple[NetworkCode, list[Program]]:
    """Return C that calls the test for each program, and the programs in the order of calls."""
    programs: list[Program] = []

    def text(program: Program, name: str) -> str:
        parameters = ", ".join(f"const void *t{n}" for n in range(len(program.tensors)))
        pointers = ", ".join(f"(void *)t{n}" for n in range(len(program.tensors)))
        programs.append(program)
        return (
            f"static void {name}({parameters}) {{\n"
            f"  void *tensors[] = {{{pointers}}};\n  hook({len(programs) - 1}, tensors);\n}}\n"
        )

    machine = replace(network.machine, preamble="void (*hook)(int, void **);")
    return network_code(replace(network, machine=machine), text), programs


def externals(code: NetworkCode) -> str:
    """Return definitions of the functions that a person writes, which call the test."""
    texts: list[str] = []
    for number, external in enumerate(code.document["functions_to_write"]):
        names = re.findall(r"\*(\w+)", external["declaration"])
        pointers = ", ".join(f"(void *){name}" for name in names)
        texts.append(
            f"{external['declaration'].removesuffix(';')} {{\n"
            f"  void *tensors[] = {{{pointers}}};\n"
            f"  hook({FIRST_EXTERNAL + number}, tensors);\n}}\n"
        )
    return "\n".join(texts)


def compiled(code: NetworkCode, folder: Path, extra: str = "") -> ctypes.CDLL:
    try:
        command = compiler_command("CC", ("cc", "gcc", "clang"), "the test compiles C")
    except BackendUnavailable as error:
        pytest.skip(str(error))
    (folder / "network.h").write_text(code.header)
    # What the test adds does not read all that it is passed.
    pragma = '#pragma GCC diagnostic ignored "-Wunused-parameter"\n' if extra else ""
    (folder / "network.c").write_text(code.source + pragma + extra)
    flags = ["-std=c11", "-O1", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror"]
    arguments = [*command, *flags, "-shared", "-fPIC", "-o", "network.so", "network.c", "-lm"]
    outcome = subprocess.run(arguments, cwd=folder, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stderr
    return ctypes.CDLL(str(folder / "network.so"))


def array_at(pointer: int, dtype: str, elements: int) -> np.ndarray:
    """Return the elements at an address as an array that shares them."""
    size = elements * numpy_dtype(dtype).itemsize
    memory = (ctypes.c_uint8 * size).from_address(pointer)
    return np.ctypeslib.as_array(memory).view(numpy_dtype(dtype))


def called(
    library: ctypes.CDLL, code: NetworkCode, graph: Graph, inputs: dict[str, np.ndarray], runs: int
) -> dict[str, np.ndarray]:
    """Run the compiled network some times on one workspace; return its last outputs."""
    workspace = np.zeros(code.document["workspace_bytes"] + 128, np.uint8)
    shift = -workspace.ctypes.data % 64
    memory = ctypes.c_void_p(workspace.ctypes.data + shift)
    constants = np.frombuffer(code.constants or b"\0", np.uint8)
    outputs = {
        name: np.zeros(graph.types[name].shape, numpy_dtype(graph.types[name].dtype))
        for name in graph.outputs
    }
    arrays = [*(np.ascontiguousarray(inputs[name]) for name in graph.inputs), *outputs.values()]
    library.network_prepare(memory)
    for _ in range(runs):
        pointers = [ctypes.c_void_p(a.ctypes.data) for a in (constants, *arrays)]
        library.network_run(*pointers, memory)
    return outputs


@needs_executor
@pytest.mark.parametrize("machine, seed", [("gemmini", 1), ("gemmini", 2), ("nvdla_like", 5)])
def test_a_compiled_network_computes_what_the_emulated_one_does(
    machine: str, seed: int, tmp_path: Path
) -> None:
    network = planned(machine, seed)
    graph = network.graph
    code, programs = hooked(network)
    library = compiled(code, tmp_path, externals(code))
    operators = {operator.name: operator for operator in graph.operators}
    calls: list[int] = []

    def run(number: int, pointers: Any) -> None:
        calls.append(number)
        if number >= FIRST_EXTERNAL:
            name = code.document["functions_to_write"][number - FIRST_EXTERNAL]["operator"]
            operator = operators[name]
            types = [graph.types[n] for n in (*operator.inputs, *operator.outputs)]
            arrays = [
                array_at(pointers[n], kind.dtype, kind.elements).reshape(kind.shape)
                for n, kind in enumerate(types)
            ]
            results = operator.kind.evaluate(arrays[: len(operator.inputs)])
            for array, result in zip(arrays[len(operator.inputs) :], results, strict=True):
                array[...] = result
            return
        program = programs[number]
        buffers = {
            name: array_at(pointers[n], layout.dtype, layout.elements)
            for n, (name, layout) in enumerate(program.tensors.items())
        }
        for name, buffer in execute(
            program, {n: b.copy() for n, b in buffers.items()}
        ).buffers.items():
            if program.tensors[name].role not in ("input", "constant"):
                buffers[name][...] = buffer

    hook = HOOK(run)
    ctypes.c_void_p.in_dll(library, "hook").value = ctypes.cast(hook, ctypes.c_void_p).value
    inputs = random_inputs(graph, 4)
    # A second run finds the workspace as the first one left it.
    outputs = called(library, code, graph, inputs, runs=2)
    expected = run_network(network, inputs).outputs
    for name in graph.outputs:
        np.testing.assert_array_equal(outputs[name], expected[name], err_msg=name)
    assert [n for n in calls if n < FIRST_EXTERNAL] == 2 * list(range(len(programs)))


def test_a_compiled_network_issues_the_instructions_of_its_programs(tmp_path: Path) -> None:
    """Instructions that record their arguments need no machine and no executor."""
    network = planned("gemmini", 2)
    programs: list[Program] = []

    def text(program: Program, name: str) -> str:
        programs.append(program)
        recorder = recording(program.machine, program)
        return program_function(replace(program, machine=recorder), name)

    machine = replace(network.machine, preamble=PREAMBLE)
    code = network_code(replace(network, machine=machine), text)
    bodies = [e["declaration"].replace(";", " {}") for e in code.document["functions_to_write"]]
    library = compiled(code, tmp_path, "\n".join(bodies))
    called(library, code, network.graph, random_inputs(network.graph, 4), runs=1)
    assert recorded(library) == [call for program in programs for call in expected_calls(program)]


def test_gemminis_network_compiles_with_its_macros(tmp_path: Path) -> None:
    network = planned("gemmini", 1)
    code = network_code(network)
    macros = sorted(set(re.findall(r"gemmini_\w+(?=\()", code.source)))
    assert "gemmini_extended_mvout" in macros
    names = ["GARBAGE_ADDR", "NO_ACTIVATION", "RELU", "WEIGHT_STATIONARY"]
    lines = ["#include <stdbool.h>", "#include <stdint.h>"]
    lines += [f"#define {name} {number}u" for number, name in enumerate(names)]
    lines += ["#define ACC_SCALE_IDENTITY 1.0f", "#define MVIN_SCALE_IDENTITY 1.0f"]
    # A macro of the header ends with a semicolon or not, and takes any number of arguments.
    lines += ["static inline void take(int count, ...) { (void)count; }"]
    lines += [f"#define {name}(...) {{ take(0, __VA_ARGS__); }}" for name in macros]
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "gemmini.h").write_text("\n".join(lines) + "\n")
    bodies = [e["declaration"].replace(";", " {}") for e in code.document["functions_to_write"]]
    assert compiled(code, tmp_path, "\n".join(bodies)).network_run
