"""Forms of operators: each has the operator's results, or stays within its stated deviation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cpembed.accelerator.matching import matches
from cpembed.accelerator.operators import NoForm, OperatorForm, is_view, specifications
from cpembed.accelerator.operators.products import fixed_multipliers
from cpembed.accelerator.operators.reductions import is_never_negative
from cpembed.accelerator.operators.scaled_addends import scaled_addends
from cpembed.frontends.products import Window, transposed_convolution
from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import (
    Apply,
    Elementwise,
    Input,
    Kind,
    LayerNorm,
    Number,
    Pool,
    Product,
    Quantize,
    Reshape,
    Resize,
    Softmax,
    Table,
    TensorType,
)
from cpembed.graph.passes import prepare
from cpembed.hw.isa_reader import load_instruction_set
from tests.random_networks import UNARY, random_network
from tests.unit.accelerator.operators.evaluation import evaluated


def arrays_of(operator: Operator, graph: Graph, seed: int) -> dict[str, np.ndarray]:
    """Random inputs; every second draw has nothing but the ends of the range."""
    random = np.random.default_rng(seed)
    arrays: dict[str, np.ndarray] = {}
    for name in operator.inputs:
        kind = graph.types[name]
        if graph.is_constant(name):
            arrays[name] = graph.constants[name]
        elif kind.dtype.startswith(("int", "uint")):
            info = np.iinfo(kind.dtype)
            low, high = (info.min, info.max) if info.bits <= 16 else (-1000, 1000)
            values = random.integers(low, high + 1, kind.shape)
            if seed % 2:
                values = random.choice([low, high, 0, 1], kind.shape)
            arrays[name] = values.astype(kind.dtype)
        else:
            arrays[name] = (random.normal(size=kind.shape) * 3).astype(kind.dtype)
        if isinstance(operator.kind, Pool) and is_never_negative(name, graph):
            arrays[name] = np.maximum(arrays[name], 0)
    return arrays


def quanta(form: OperatorForm) -> float:
    """The stated deviation in quanta, or in relative terms for floats."""
    text = form.specification.deviation
    if text.startswith("at most"):
        return int(text.split()[2])
    return 1 if text else 0


def check(operator: Operator, graph: Graph, machine: str) -> tuple[OperatorForm, ...]:
    forms = specifications(operator, graph, load_instruction_set(machine))
    if isinstance(forms, NoForm):
        return ()
    for form in forms:
        for seed in range(2):
            arrays = arrays_of(operator, graph, seed)
            result = evaluated(form, arrays)
            expected = operator.kind.evaluate([arrays[name] for name in operator.inputs])
            for name, array in zip(operator.outputs, expected, strict=True):
                got = result[name]
                assert (got.shape, got.dtype) == (array.shape, array.dtype)
                if array.dtype.kind == "f":
                    tolerance = 1e-4 if form.specification.deviation else 0
                    np.testing.assert_allclose(got, array, rtol=tolerance, atol=tolerance / 10)
                else:
                    distance = np.abs(got.astype(np.int64) - array.astype(np.int64))
                    assert distance.max(initial=0) <= quanta(form), form.specification.name
    return forms


@pytest.mark.parametrize("seed", range(8))
def test_forms_of_random_networks(seed: int) -> None:
    network = random_network(seed, 8)
    written = {name for operator in network.operators for name in operator.outputs}
    outputs = [n for n in written if network.values[n].dtype.kind in "iu"]
    graph = prepare(network.graph(*outputs), first="int8", second="int8")
    checked = sum(len(check(operator, graph, "gemmini")) for operator in graph.operators)
    assert checked


def graph_of(kind: Kind, types: dict[str, TensorType], **constants: np.ndarray) -> Graph:
    inputs = {n: t for n, t in types.items() if n not in constants}
    operator = Operator("op", kind, tuple(types), ("y",))
    return Graph("one", inputs, ("y",), constants, (operator,))


ROWS = TensorType((6, 40), "float32")
VECTOR = TensorType((40,), "float32")


@pytest.mark.parametrize(
    "kind, types",
    [
        (Softmax(1), {"x": ROWS}),
        (LayerNorm(1, 1e-5), {"x": ROWS, "g": VECTOR, "b": VECTOR}),
        (LayerNorm(1, 1e-5, centres=False), {"x": ROWS, "g": VECTOR, "b": VECTOR}),
        (Quantize((0.037,), (0,), "int8"), {"x": ROWS}),
        (
            Elementwise(Apply("add", (Apply("div", (Input(0), Number(5.5))), Input(1))), "float32"),
            {"x": ROWS, "z": VECTOR},
        ),
    ],
)
def test_the_tpu_like_machine_computes_what_a_transformer_needs(
    kind: Kind, types: dict[str, TensorType]
) -> None:
    graph = graph_of(kind, types)
    machine = load_instruction_set("tpu_like")
    best = check(graph.operators[0], graph, "tpu_like")[0]
    assert all(matches(s, machine) for s in best.specification.statements)


def test_a_transposed_convolution_counts_its_real_products() -> None:
    window = Window(taps=(3, 3), strides=(2, 2), dilations=(1, 1), before=(1, 1), after=(1, 1))
    form = transposed_convolution((1, 4, 4, 4), (4, 6, 3, 3), window)
    dtypes = {"I": "int8", "W": "int8", "O": "int32"}
    product = replace(form.product, computation=form.product.computation.with_dtypes(dtypes))
    shapes = [o.shape for o in product.computation.inputs]
    image, weights = (TensorType(tuple(s), "int8") for s in shapes)
    random = np.random.default_rng(0)
    graph = graph_of(
        product, {"x": image, "w": weights}, w=random.integers(-9, 9, weights.shape).astype(np.int8)
    )
    assert any(step > 1 for o in product.computation.inputs for step in o.spread)
    forms = specifications(graph.operators[0], graph, load_instruction_set("gemmini"))
    assert not isinstance(forms, NoForm)
    macs = min(sum(s.computation.macs for s in f.specification.statements) for f in forms)
    assert macs < product.computation.macs / 3
    # The spread image has zeros between its pixels.
    x = np.zeros(image.shape, np.int8)
    x[..., ::2, ::2] = random.integers(-9, 9, x[..., ::2, ::2].shape)
    expected = product.evaluate([x, graph.constants["w"]])[0]
    for candidate in forms:
        np.testing.assert_array_equal(evaluated(candidate, {"x": x})["y"], expected)


def test_tables_of_scaled_numbers_are_statements() -> None:
    x = np.arange(-128, 128)
    scaled = np.clip(np.rint(x.astype(np.float32) * np.float32(0.3)), 0, 127)
    graph = graph_of(Table(tuple(map(int, scaled)), "int8"), {"x": TensorType((4, 5), "int8")})
    assert check(graph.operators[0], graph, "gemmini")
    noise = tuple(int(v) for v in np.random.default_rng(0).integers(-128, 128, 256))
    graph = graph_of(Table(noise, "int8"), {"x": TensorType((4, 5), "int8")})
    refused = specifications(graph.operators[0], graph, load_instruction_set("gemmini"))
    assert isinstance(refused, NoForm)
    assert "table" in refused.reason


@pytest.mark.parametrize("unary", range(len(UNARY)))
@pytest.mark.parametrize("seed", range(2))
def test_tables_of_activations_are_statements_again(unary: int, seed: int) -> None:
    net = random_network(seed, 0)
    x = net.input((3, 7), "int8")
    y = net.quantize(net.elementwise(UNARY[unary], net.floats(x)), "int8")
    # A zero point of the result has no expression; the entries are what counts.
    net.operators[-1] = replace(
        net.operators[-1], kind=Quantize((net.quantized[y][0],), (0,), "int8")
    )
    graph = prepare(net.graph(y), first="int8", second="int8")
    (operator,) = graph.operators
    assert isinstance(operator.kind, Table)
    assert operator.kind.expression is not None
    assert check(operator, graph, "tpu_like")


def test_reshapes_that_move_elements_are_no_views() -> None:
    graph = graph_of(Reshape((4, 6)), {"x": TensorType((2, 12), "int8")})
    assert is_view(graph.operators[0], graph)
    assert check(graph.operators[0], graph, "gemmini")
    graph = graph_of(
        Resize((6, 6), "nearest", "asymmetric", "floor"), {"x": TensorType((1, 2, 3, 3), "int8")}
    )
    assert check(graph.operators[0], graph, "gemmini")


@pytest.mark.parametrize("seed", range(20))
def test_scaled_addends_stay_within_their_bound(seed: int) -> None:
    random = np.random.default_rng(seed)
    scales = [float(np.float32(s)) for s in random.uniform(0.01, 3, 2)]
    a, b = (v.reshape(-1) for v in np.meshgrid(np.arange(-128, 128), np.arange(-128, 128)))
    exact = np.rint(a * scales[0] + b * scales[1])
    for addends in scaled_addends(scales):
        limits = np.iinfo(addends.dtype)
        total = sum(
            np.clip(np.rint(np.float32(v) * np.float32(f)), limits.min, limits.max)
            for v, f in zip((a, b), addends.factors, strict=True)
        )
        result = np.rint(np.float32(total) * np.float32(addends.scale))
        assert np.abs(result - exact).max() <= addends.quanta, addends.label


def test_multipliers_have_31_bits() -> None:
    scales = np.array([0.3, 0.001, 1.7])
    fixed = fixed_multipliers(scales)
    assert fixed is not None
    multipliers, shift = fixed
    assert 2**30 <= multipliers.max() < 2**31
    assert np.abs(multipliers / 2.0**shift - scales).max() <= 2.0**-shift
    assert fixed_multipliers(np.array([-1.0])) is None


def test_an_operator_without_statements_has_a_reason() -> None:
    graph = graph_of(Softmax(1, log=True), {"x": ROWS})
    refused = specifications(graph.operators[0], graph, load_instruction_set("tpu_like"))
    assert isinstance(refused, NoForm)
    assert not refused
    assert refused.reason == "op: softmax of a logarithm is no statement"


def test_products_of_zero_points_begin_with_a_constant() -> None:
    graph = prepare(random_network(3, 6).graph("t3"), first="uint8", second="int8")
    for operator in graph.operators:
        if isinstance(operator.kind, Product):
            check(operator, graph, "gemmini")
