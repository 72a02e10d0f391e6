"""Orders of dimensions in main memory, chosen over small networks, on random machines."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cpembed.accelerator import network as planner
from cpembed.accelerator.main_layouts import has_own_order
from cpembed.accelerator.network import AcceleratorNetwork, LayoutStep, plan_network
from cpembed.accelerator.network_proof import prove_network
from cpembed.accelerator.network_run import run_network
from cpembed.accelerator.operator_search import OperatorSearch, Plans
from cpembed.codegen.epilogue import BIAS, SCALE, Epilogue
from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import Product, TensorType
from cpembed.hw.isa import InstructionSet
from cpembed.hw.isa_reader import read_instruction_set
from cpembed.ir.parser import parse_computation
from tests.compilers import needs_executor
from tests.unit.accelerator.random_machines import random_machine

ELEMENT = 8


def blocked_machine(host: float) -> InstructionSet:
    """Return a machine whose copies move neighbouring rows of 8 bytes, as VTA's do."""
    rows = {"memory": "buffer", "dtype": "int8", "rows": ["h", "w"], "lanes": ["e"]}
    outside = {"memory": "main", "dtype": "int8", "stride": {"w": ELEMENT}}
    sums = {"memory": "sums", "dtype": "int32", "lanes": ["y"]}
    axes = {"h": {"max": 2}, "w": {"max": 16}, "e": ELEMENT}
    instructions: list[dict[str, Any]] = [
        {
            "name": "set_scale", "unit": "store", "expression": "r[] = v[]",
            "operands": {
                "r": {"memory": "scale"}, "v": {"memory": "immediate", "dtype": "float32"},
            },
        },
        {
            "name": "load", "unit": "load", "expression": "D[h,w,e] = S[h,w,e]", "axes": axes,
            "operands": {"D": rows, "S": outside}, "cycles": {"1": 30, "h*w": 1},
        },
        {
            "name": "clear", "unit": "array", "expression": "C[x,y] = 0",
            "axes": {"x": {"max": 16}, "y": ELEMENT},
            "operands": {"C": {**sums, "rows": ["x"], "stride": {"x": "any"}}},
        },
        {
            "name": "multiply", "unit": "array", "expression": "C[x,y] += A[x,z] * B[z,y]",
            "axes": {"x": {"max": 16}, "y": ELEMENT, "z": ELEMENT},
            "operands": {
                "A": {
                    "memory": "buffer", "dtype": "int8", "rows": ["x"], "lanes": ["z"],
                    "stride": {"x": "any"},
                },
                "B": {"memory": "buffer", "dtype": "int8", "rows": ["z"], "lanes": ["y"]},
                "C": {**sums, "rows": ["x"], "stride": {"x": "any"}},
            },
        },
        {
            "name": "store", "unit": "store", "expression": "D[h,w,e] = int8(S[h,w,e] * s[])",
            "axes": axes,
            "operands": {
                "D": outside, "S": {**sums, "rows": ["h", "w"], "lanes": ["e"]},
                "s": {"memory": "scale"},
            },
            "cycles": {"1": 30, "h*w": 1},
        },
    ]  # fmt: skip
    tables = {
        "name": "blocked", "description": "rows of 8 bytes", "source": "tests", "known": "assumed",
        "clock_mhz": 100, "units": ["load", "array", "store"], "synchronization": "interlocked",
        "host": {"cycles_per_element": host},
        "memories": {
            "main": {"kind": "main", "bytes_per_cycle": 8},
            "buffer": {"rows": 512, "row_bytes": ELEMENT},
            "sums": {"rows": 64, "row_bytes": 4 * ELEMENT},
            "scale": {"kind": "register", "dtype": "float32"},
        },
        "instructions": instructions,
    }  # fmt: skip
    return read_instruction_set(tables, "blocked")


def products(seed: int, rows: int, widths: tuple[int, ...], *, bias: bool = False) -> Graph:
    """Return products of matrices one after the other, quantized with a scale a tensor."""
    draw = np.random.default_rng(seed)
    operators: list[Operator] = []
    constants: dict[str, Any] = {}
    for number, (depth, width) in enumerate(itertools.pairwise(widths)):
        extents = {"i": rows, "j": width, "k": depth}
        sums = parse_computation("C[i,j] += A[i,k] * B[k,j]", extents)
        kind = Product(sums, (rows, width), epilogue=Epilogue("int8", scale=True, bias=bias))
        names = {name: f"{name}{number}" for name in kind.vectors}
        vectors = {
            BIAS: draw.integers(-999, 999, width).astype(np.int32),
            SCALE: np.full(width, 2.0**-8, np.float32),
        }
        constants[f"w{number}"] = draw.integers(-128, 128, (depth, width)).astype(np.int8)
        constants |= {names[name]: vectors[name] for name in kind.vectors}
        reads = (f"t{number}", f"w{number}", *names.values())
        operators.append(Operator(f"product{number}", kind, reads, (f"t{number + 1}",)))
    inputs = {"t0": TensorType((rows, widths[0]), "int8")}
    return Graph("chain", inputs, (operators[-1].output,), constants, tuple(operators))


def estimate(network: AcceleratorNetwork) -> float:
    """Return the estimated cycles of a network's programs and of its host."""
    cycles = sum(step.cycles for step in network.programs)
    host = sum(step.us or 0.0 for step in network.on_host)
    return cycles + host * network.machine.clock_mhz


def ordered_only(search: OperatorSearch) -> tuple[Plans, ...] | str:
    """Return the plans of a search in the first order that has any."""
    alternatives = ALTERNATIVES(search)
    return alternatives if isinstance(alternatives, str) else alternatives[:1]


ALTERNATIVES = OperatorSearch.alternatives


def check(network: AcceleratorNetwork) -> None:
    """Check that a network is proven, and that its programs compute it."""
    proven = prove_network(network)
    assert all(proof.holds for proof in proven.proofs.values())
    draw = np.random.default_rng(5)
    inputs = {
        name: draw.integers(-128, 128, kind.shape).astype(np.int8)
        for name, kind in network.graph.inputs.items()
    }
    values = dict(network.graph.constants) | inputs
    for operator in network.graph.operators:
        results = operator.kind.evaluate([values[name] for name in operator.inputs])
        values |= dict(zip(operator.outputs, results, strict=True))
    run = run_network(proven.network, inputs)
    for name in network.graph.outputs:
        np.testing.assert_array_equal(run.outputs[name], values[name])


@needs_executor
def test_operators_pass_on_blocks_without_changes_of_layout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = products(1, 48, (64, 64, 64, 64))
    network = plan_network(graph, blocked_machine(0.5))
    between = {"t1", "t2"}
    changed = {step.tensor for step in network.steps if isinstance(step, LayoutStep)}
    assert not changed & between
    layouts = [
        tensor
        for step in network.programs
        for program in step.programs
        for tensor in program.tensors.values()
        if tensor.role != "constant"
    ]
    assert not all(map(has_own_order, layouts))
    check(network)
    monkeypatch.setattr(OperatorSearch, "alternatives", ordered_only)
    assert estimate(network) < estimate(plan_network(graph, blocked_machine(0.5)))


def test_an_expensive_host_keeps_the_order() -> None:
    network = plan_network(products(1, 48, (64, 64)), blocked_machine(1000.0))
    assert not any(isinstance(step, LayoutStep) for step in network.steps)


@needs_executor
@pytest.mark.parametrize(
    "seed", [3, 11, *(pytest.param(n, marks=pytest.mark.slow) for n in range(40))]
)
def test_chosen_layouts_never_cost_more(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed)
    widths = tuple(draw.choice([8, 12, 16, 20, 32]) for _ in range(draw.choice([3, 4])))
    graph = products(seed, draw.choice([4, 9, 16]), widths, bias=draw.random() < 0.5)
    host = draw.choice([0.1, 1.0, 10.0])
    machine = blocked_machine(host)
    if seed % 3:
        machine = replace(random_machine(seed), host={"cycles_per_element": host})
    network = plan_network(graph, machine)
    check(network)
    monkeypatch.setattr(OperatorSearch, "alternatives", ordered_only)
    assert estimate(network) <= estimate(planner.plan_network(graph, machine)) * (1 + 1e-9)
