"""Operators divided between machine and host, against the operators' own definitions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cpembed.accelerator.document import network_document
from cpembed.accelerator.network import AcceleratorNetwork, HostStep, ProgramStep, plan_network
from cpembed.accelerator.network_proof import prove_network
from cpembed.accelerator.network_run import run_network
from cpembed.codegen.epilogue import BIAS, SCALE, Epilogue
from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import Product, TensorType
from cpembed.hw.isa_reader import load_instruction_set
from cpembed.ir.parser import parse_computation
from cpembed.report.accelerator import accelerator_report
from tests.compilers import needs_executor

ROWS, DEPTH, CHANNELS = 20, 40, 24


def product_graph(epilogue: Epilogue, *, equal_scales: bool = False) -> Graph:
    """One product with an epilogue, whose scales differ by channel or are all equal."""
    extents = {"i": ROWS, "j": CHANNELS, "k": DEPTH}
    sums = parse_computation("C[i,j] += A[i,k] * B[k,j]", extents)
    random = np.random.default_rng(7)
    scales = random.uniform(1e-4, 1e-3, CHANNELS).astype(np.float32)
    vectors = {
        BIAS: random.integers(-9999, 9999, CHANNELS).astype(np.int32),
        SCALE: np.full_like(scales, 5e-4) if equal_scales else scales,
    }
    kind = Product(sums, (ROWS, CHANNELS), epilogue=epilogue)
    weights = random.integers(-128, 128, (DEPTH, CHANNELS)).astype(np.int8)
    operator = Operator("product", kind, ("x", "w", *kind.vectors), ("y",))
    constants = {"w": weights, **{name: vectors[name] for name in kind.vectors}}
    inputs = {"x": TensorType((ROWS, DEPTH), "int8")}
    return Graph("one", inputs, ("y",), constants, (operator,))


def planned(graph: Graph, *, elements: float = 10.0) -> AcceleratorNetwork:
    """Plan for Gemmini, with a host of so many cycles for each element."""
    machine = load_instruction_set("gemmini")
    host = {**machine.host, "cycles_per_element": elements}
    return plan_network(graph, replace(machine, host=host))


PER_CHANNEL = Epilogue("int8", scale=True, bias=True, relu=True)


FLOATS = Epilogue("float32", scale=True)


@needs_executor
@pytest.mark.parametrize("epilogue, elements", [(PER_CHANNEL, 0.5), (FLOATS, 10.0)])
def test_what_the_host_is_faster_at_is_its_part(epilogue: Epilogue, elements: float) -> None:
    network = planned(product_graph(epilogue), elements=elements)
    (step,) = network.steps
    assert isinstance(step, ProgramStep)
    (part,) = step.host
    assert (part.after, len(part.specification.statements)) == (1, 1)
    assert "the host takes" in part.reason or "no instruction computes" in part.reason
    # The host reads sums, a scale for each channel and perhaps a bias, and writes the output.
    vectors = sum(
        name in str(part.specification.statements) for name in part.specification.constants
    )
    count = 2 * ROWS * CHANNELS + max(1, vectors) * CHANNELS
    assert part.us == pytest.approx(count * elements / network.machine.clock_mhz, rel=0.01)
    assert network.on_host == (part,)
    check(network)


def check(network: AcceleratorNetwork) -> None:
    """Check that the programs of a network of one operator are proven and right."""
    (step,) = network.programs
    random = np.random.default_rng(3)
    x = random.integers(-128, 128, (ROWS, DEPTH)).astype(np.int8)
    run = run_network(network, {"x": x})
    assert run.is_right
    inputs = [x, *(network.graph.constants[name] for name in step.operators[0].inputs[1:])]
    np.testing.assert_array_equal(run.outputs["y"], step.operators[0].kind.evaluate(inputs)[0])
    assert prove_network(network).proofs["product"].holds


@needs_executor
def test_a_register_is_set_for_each_channel() -> None:
    # Gemmini has one scale: each execution of its stores is of one channel.
    network = planned(product_graph(PER_CHANNEL))
    (step,) = network.programs
    assert step.host == ()
    (table,) = {
        address.table
        for program in step.programs
        for _, issue in program.issues()
        for address in issue.operands.values()
        if address.table
    }
    np.testing.assert_array_equal(
        np.asarray(table[:CHANNELS], np.float32), network.graph.constants[SCALE]
    )
    check(network)


@needs_executor
def test_sums_of_a_machine_that_stores_bytes_are_composed_by_the_host() -> None:
    # VTA stores the lower eight bits of an accumulator and has no products with scales.
    network = plan_network(product_graph(PER_CHANNEL), load_instruction_set("vta_isa"))
    (step,) = network.programs
    (part,) = step.host
    assert [s.output.dtype for s in part.specification.statements] == ["int32", "int8"]
    random = np.random.default_rng(3)
    x = random.integers(-128, 128, (ROWS, DEPTH)).astype(np.int8)
    run = run_network(network, {"x": x})
    inputs = [x, *(network.graph.constants[name] for name in step.operators[0].inputs[1:])]
    np.testing.assert_array_equal(run.outputs["y"], step.operators[0].kind.evaluate(inputs)[0])
    assert prove_network(network).proofs["product"].holds


def test_a_host_that_is_faster_alone_computes_the_whole_operator() -> None:
    # No time for an element or a product: any program is slower.
    network = planned(product_graph(FLOATS), elements=0.0)
    machine = replace(network.machine, host={"cycles_per_element": 1e-6, "cycles_per_mac": 1e-6})
    (step,) = plan_network(network.graph, machine).steps
    assert isinstance(step, HostStep)


def test_equal_scales_need_no_host() -> None:
    (step,) = planned(product_graph(PER_CHANNEL, equal_scales=True)).steps
    assert isinstance(step, ProgramStep)
    assert step.host == ()


def test_reports_name_the_statements_of_the_host() -> None:
    document = network_document(planned(product_graph(FLOATS)))
    ((host,),) = [step["host"] for step in document["steps"]]
    assert host["after_programs"] == 1
    assert "float32" in host["statements"][0]
    assert document["totals"]["host_steps"] == 1
    assert document["totals"]["host_us"] == host["estimated_us"]
    assert "1 statement after program 1" in str(list(accelerator_report(document)))
