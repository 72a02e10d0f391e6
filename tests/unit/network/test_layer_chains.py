"""Pairs of products in networks: which are recognised, and that their chains are defined alike."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from cpembed.codegen.epilogue import Chain, Epilogue, Residual
from cpembed.codegen.pointwise import epilogue_of, pointwise_of
from cpembed.driver.matching import network_units
from cpembed.frontends import load_model
from cpembed.graph.graph import Array, Graph
from cpembed.graph.kinds import Apply, Input, Number, Product
from cpembed.graph.passes.second_results import fuse_second_results
from cpembed.network.build import prepared_and_named
from cpembed.network.inputs import random_inputs
from cpembed.network.layer_chains import FusedLayers, LayerPair, layer_pair
from cpembed.network.match import match
from cpembed.network.stepwise import run_stepwise
from cpembed.network.stepwise_layouts import StepLayouts
from cpembed.steps import silent
from cpembed.workloads.chains import TOLERANCES
from tests.unit.network.test_stepwise_chains import CANDIDATE
from tests.unit.network.test_tensor_core_networks import Model, needs_compiler

runtime = pytest.importorskip("onnxruntime")

FUNCTIONS = ("", "Relu", "Sigmoid", "HardSwish", "Elu", "Tanh")


class Layers:
    """Random network of layers on images or rows, and what its pairs are by construction."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.model = Model(seed)
        self.images = self.draw.random() < 0.6
        self.width = 8 * self.draw.randint(1, 3)
        size = (self.draw.randint(2, 6), self.draw.randint(2, 6))
        shape = (self.draw.randint(1, 2), self.width, *size)
        self.start = self.model.input("x", *(shape if self.images else (7, self.width)))
        self.outputs: list[str] = []
        self.pairs = self.apart = 0

    def layer(self, x: str, width: int, window: int) -> str:
        """Return a layer with a bias, or without one."""
        bias = self.model.random.standard_normal(width).astype(np.float32)
        has_bias = self.draw.random() < 0.6
        if self.images:
            weights = self.model.weights(width, self.width, window, window)
            y = self.model.node("Conv", x, weights, pads=[window // 2] * 4)
            if has_bias:
                self.model.nodes[-1].input.append(self.model.constant(bias))
        else:
            y = self.model.node("MatMul", x, self.model.weights(self.width, width))
            y = self.model.node("Add", y, self.model.constant(bias)) if has_bias else y
        self.width = width
        return y

    def function(self, x: str) -> str:
        name = self.draw.choice(FUNCTIONS)
        return self.model.node(name, x) if name else x

    def pair(self, x: str) -> str:
        """Return two layers; another reader, or a window, forbids one kernel."""
        first_width, inner = self.width, 8 * self.draw.randint(1, 4)
        y = self.function(self.layer(x, inner, self.draw.choice([1, 3])))
        branches = self.draw.random() < 0.3
        window = 3 if self.images and self.draw.random() < 0.3 else 1
        z = self.layer(y, first_width, window)
        if self.draw.random() < 0.5:
            z = self.model.node("Add", z, x)
        z = self.function(z)
        if branches:
            self.outputs.append(y if self.draw.random() < 0.5 else self.model.node("Neg", y))
        self.pairs += not branches and window == 1
        self.apart += branches or window == 3
        return z

    def write(self, path: Path) -> Path:
        x = self.pair(self.start)
        # Nothing multiplies what this is, so that a second pair is none with the first.
        largest = self.model.node("ReduceMax", x, keepdims=1)
        x = self.model.node("Sub", x, largest)
        return self.model.write(path, self.pair(x), *self.outputs)


def prepared(path: Path) -> Graph:
    return fuse_second_results(prepared_and_named(load_model(path), network_units("mma_f16")))


def values_of(graph: Graph) -> dict[str, Array]:
    values: dict[str, NDArray] = {**graph.constants, **random_inputs(graph, 2)}
    for operator in graph.operators:
        results = operator.kind.evaluate([values[name] for name in operator.inputs])
        values |= zip(operator.outputs, results, strict=True)
    return values


@pytest.mark.quick(8)
@pytest.mark.parametrize("seed", range(80))
def test_pairs_of_random_networks_are_chains_of_the_same_numbers(seed: int, tmp_path: Path) -> None:
    layers = Layers(seed)
    graph = prepared(layers.write(tmp_path / "m.onnx"))
    layouts, values = StepLayouts(graph, channels_last=True), values_of(graph)
    outcomes = [layer_pair(layouts, operator) for operator in graph.operators]
    pairs = [each for each in outcomes if isinstance(each, LayerPair)]
    assert len(pairs) == layers.pairs
    reasons = [each for each in outcomes if isinstance(each, str)]
    assert len(reasons) >= layers.apart
    assert {*reasons} <= {
        "several readers", "an output of the network", "windows of several rows",
        "the first stores float32",
    }  # fmt: skip
    for pair in pairs:
        fused = FusedLayers(pair, CANDIDATE)
        arrays = [values[name] for name in pair.operator.inputs]
        (expected,) = pair.kind.evaluate(arrays)
        result = fused.result(arrays, pair.chain.evaluate(fused.inputs(arrays)))
        largest = max(np.abs(expected).max(), np.abs(pair.kind.sums(arrays)).max())
        error = np.abs(result - expected.astype(np.float64)).max()
        assert error <= TOLERANCES["float16"] * largest


def test_the_residual_of_the_first_product_is_no_part_of_a_chain(tmp_path: Path) -> None:
    model = Model(0)
    x = model.input("x", 7, 16)
    y = model.node("Relu", model.node("Add", model.node("MatMul", x, model.weights(16, 16)), x))
    path = model.write(tmp_path / "m.onnx", model.node("MatMul", y, model.weights(16, 8)))
    graph = prepared(path)
    outcomes = [layer_pair(StepLayouts(graph, False), each) for each in graph.operators]
    assert [each for each in outcomes if each] == ["the first adds a residual"]


@pytest.mark.parametrize("seed", range(20))
def test_functions_are_the_epilogues_that_they_come_from(seed: int) -> None:
    """An epilogue, and that of its function, store the same numbers."""
    draw, data = random.Random(seed), np.random.default_rng(seed)
    residual = draw.choice([None, "float32", "float16"])
    chain = Apply("mul", (Input(0), Apply("tanh", (Input(1),))))
    has_chain = draw.random() < 0.5 or residual == "float16"
    vectors = 0 if residual or not has_chain else 1
    epilogue = Epilogue(
        "float32",
        scale=draw.random() < 0.5,
        bias=draw.random() < 0.5,
        relu=draw.random() < 0.5,
        residual=None
        if residual is None
        else Residual(residual, relu=not has_chain and draw.random() < 0.5),
        chain=Chain(chain if residual or vectors else Number(1.0), vectors) if has_chain else None,
    )
    function = pointwise_of(epilogue)
    assert function is not None
    stored = epilogue_of(function, "float32")
    sums = data.standard_normal((4, 6)).astype(np.float32)
    names = {name: data.standard_normal(6).astype(np.float32) for name in epilogue.vectors}
    assert {*stored.vectors} == {*epilogue.vectors}
    addend = None if residual is None else data.standard_normal((4, 6)).astype(residual)
    channel = np.broadcast_to(np.arange(6), (4, 6))
    np.testing.assert_array_equal(
        stored.apply(sums, names, channel, addend), epilogue.apply(sums, names, channel, addend)
    )


@needs_compiler
@pytest.mark.quick(3)
@pytest.mark.parametrize("seed", range(24))
def test_kernels_of_pairs_agree_with_onnx_runtime(seed: int, tmp_path: Path) -> None:
    """Wherever there is a kernel of both, whatever is faster."""
    layers = Layers(seed)
    path = layers.write(tmp_path / "m.onnx")
    units = network_units(("mma_f16", "wgmma_f16")[seed % 2])
    graph = prepared_and_named(load_model(path), units)
    inputs = random_inputs(graph, 1)
    result = run_stepwise(graph, units.primary, inputs, progress=silent, pairs="always")
    assert result.failed == ()
    assert len(result.chained.fused) == layers.pairs
    products = [step for step in result.steps if isinstance(step.operator.kind, Product)]
    assert all(step.executed_on for step in products)
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for output, expected in zip(graph.outputs, session.run(None, dict(inputs)), strict=True):
        error = np.abs(result.outputs[output] - expected).max()
        assert error <= 5e-3 * max(1.0, float(np.abs(expected).max()))


def test_a_match_shows_chains_as_they_run(tmp_path: Path) -> None:
    """Attention too: one row for two products, and with pairs off a row for each."""
    from tests.unit.network.test_tensor_core_networks import attention, perceptron

    rows = {
        pairs: match(load_model(perceptron(tmp_path / "m.onnx", 0)), ["mma_f16"], pairs=pairs)
        for pairs in ("auto", "never")
    }
    counts = {
        pairs: [(o.products, o.macs) for o in result.targets[0].matched]
        for pairs, result in rows.items()
    }
    assert counts["never"] == [(1, 32 * 32 * 48)] * 2
    assert counts["auto"] == [(2, 2 * 32 * 32 * 48)]
    (pair,) = rows["auto"].targets[0].matched
    assert pair.reason is not None
    assert pair.reason.startswith("one kernel, through ")
    (result,) = match(load_model(attention(tmp_path / "a.onnx", 0)), ["mma_f16"]).targets
    assert [o.products for o in result.matched if o.products > 1] == [2]
    assert (result.products, result.embedded) == (6, 6)


def test_pairs_are_off_where_they_are_not_wanted(tmp_path: Path) -> None:
    model = Model(0)
    y = model.node("MatMul", model.input("x", 7, 16), model.weights(16, 16))
    y = model.node("MatMul", model.node("Relu", y), model.weights(16, 8))
    units = network_units("mma_f16")
    graph = prepared_and_named(load_model(model.write(tmp_path / "m.onnx", y)), units)
    from cpembed.network.stepwise_chains import with_chains
    from cpembed.targets.registry import open_target

    chained = with_chains(graph, open_target(units.primary), "never")
    assert (chained.fused, [*chained.reasons.values()]) == ({}, ["pairs are off"])
