"""float16 is computed in float32: the same graph on wider tensors, with its inputs and outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from cpembed.codegen.epilogue import Epilogue
from cpembed.frontends.builder import Builder
from cpembed.frontends.loops import LoopBody
from cpembed.graph.graph import Graph, Operator, evaluate
from cpembed.graph.kinds import (
    Apply,
    Bitcast,
    Elementwise,
    Foreign,
    Input,
    Product,
    Reduce,
    Softmax,
    TensorType,
)
from cpembed.graph.loop import Loop
from cpembed.graph.passes import prepare
from cpembed.graph.passes.half_floats import has_half_floats, widen_half_floats
from cpembed.ir.parser import parse_computation

FLOATS = dict.fromkeys("ABC", "float32")
HALF = {"A": "float16", "B": "float16", "C": "float32"}


def graph(sums: str = "float32", epilogue: Epilogue | None = None) -> Graph:
    """x times w, plus a constant, then a softmax and a mean; all stored as float16."""
    random = np.random.default_rng(3)
    workload = parse_computation(
        "C[m,n] += A[m,k] * B[k,n]", {"m": 6, "n": 5, "k": 7}, dtypes={**HALF, "C": sums}
    )
    constants = {
        "w": random.normal(size=(7, 5)).astype(np.float16),
        "b": random.normal(size=5).astype(np.float16),
    }
    reads = ("x", "w", "b") if epilogue else ("x", "w")
    kind = Product(workload, (6, 5), epilogue=epilogue)
    added = Elementwise(Apply("add", (Input(0), Input(1))), "float16")
    operators = (
        Operator("multiply", kind, reads, ("p",)),
        Operator("round", Elementwise(Input(0), "float16"), ("p",), ("h",)),
        Operator("add", added, ("h", "b"), ("s",)),
        Operator("softmax", Softmax(-1), ("s",), ("y",)),
        Operator("sum", Reduce("sum", (1,), keeps=False), ("s",), ("z",)),
    )
    inputs = {"x": TensorType((6, 7), "float16")}
    return Graph("half", inputs, ("y", "s", "z", "b"), constants, operators)


def test_inside_everything_is_float32_and_outside_float16() -> None:
    source = graph()
    widened = widen_half_floats(source)
    assert dict(widened.inputs) == dict(source.inputs)
    for name in source.outputs:
        assert widened.types[name] == source.types[name]
    halves = {name for name, kind in widened.types.items() if kind.dtype == "float16"}
    assert halves == {"x", *source.outputs}


def test_the_results_are_those_of_float32() -> None:
    """Referee: numpy in float64, from the same float16 numbers."""
    source = graph()
    x = np.random.default_rng(4).normal(size=(6, 7)).astype(np.float16)
    results = evaluate(prepare(source), {"x": x})
    w, b = (source.constants[name].astype(np.float64) for name in ("w", "b"))
    sums = x.astype(np.float64) @ w + b
    powers = np.exp(sums - sums.max(axis=1, keepdims=True))
    wide = {"s": sums, "y": powers / powers.sum(axis=1, keepdims=True), "b": b}
    for name, expected in wide.items():
        assert results[name].dtype == np.float16
        # One rounding to float16 in all: half a unit in the last place, and float32's own.
        spacing = np.spacing(np.abs(expected).astype(np.float16)).astype(np.float64)
        assert np.all(np.abs(results[name] - expected) <= 0.51 * spacing)


def test_intermediate_results_do_not_overflow() -> None:
    """float16 ends at 65504; a product of larger sums whose result is small stays finite."""
    workload = parse_computation("C[m,n] += A[m,k] * B[k,n]", {"m": 1, "n": 1, "k": 4}, dtypes=HALF)
    scaled = Elementwise(Apply("mul", (Input(0), Input(1))), "float16")
    operators = (
        Operator("multiply", Product(workload, (1, 1)), ("x", "w"), ("p",)),
        Operator("round", Elementwise(Input(0), "float16"), ("p",), ("h",)),
        Operator("scale", scaled, ("h", "c"), ("y",)),
    )
    constants = {
        "w": np.full((4, 1), 300, np.float16),
        "c": np.full((1, 1), 2**-10, np.float16),
    }
    inputs = {"x": TensorType((1, 4), "float16")}
    source = Graph("large", inputs, ("y",), constants, operators)
    x = np.full((1, 4), 100, np.float16)
    assert np.isinf(evaluate(source, {"x": x})["y"]).all()
    assert evaluate(prepare(source), {"x": x})["y"].item() == np.float16(4 * 300 * 100 / 1024)


def test_a_graph_without_float16_is_the_same_object() -> None:
    workload = parse_computation(
        "C[m,n] += A[m,k] * B[k,n]",
        {"m": 2, "n": 2, "k": 2},
        dtypes=dict.fromkeys("ABC", "float32"),
    )
    kind = TensorType((2, 2), "float32")
    plain = Graph(
        "plain",
        {"a": kind, "b": kind},
        ("c",),
        operators=(Operator("multiply", Product(workload, (2, 2)), ("a", "b"), ("c",)),),
    )
    assert not has_half_floats(plain)
    assert widen_half_floats(plain) is plain


def test_an_epilogue_that_stores_float16_stores_float32() -> None:
    source = graph()
    multiply = source.operators[0]
    assert isinstance(multiply.kind, Product)
    kind = multiply.kind.with_epilogue(Epilogue("float16", relu=True))
    stored = replace(source, outputs=("p",), operators=(replace(multiply, kind=kind),))
    assert stored.types["p"].dtype == "float16"
    widened = widen_half_floats(stored)
    (product,) = [o.kind for o in widened.operators if isinstance(o.kind, Product)]
    assert product.epilogue is not None
    assert product.epilogue.dtype == "float32"
    assert widened.types["p"].dtype == "float16"


@pytest.mark.parametrize("floats", ["float32", "bfloat16"])
def test_products_get_the_type_of_floats(floats: str) -> None:
    prepared = prepare(graph(), floats=floats)
    (product,) = [o.kind for o in prepared.operators if isinstance(o.kind, Product)]
    assert {o.dtype for o in product.computation.inputs} == {floats}
    x = np.random.default_rng(5).normal(size=(6, 7)).astype(np.float16)
    rounded = x.astype(ml_dtypes.bfloat16) if floats == "bfloat16" else x
    source = graph()
    w, b = (source.constants[name].astype(np.float32) for name in ("w", "b"))
    w = w.astype(ml_dtypes.bfloat16).astype(np.float32) if floats == "bfloat16" else w
    expected = rounded.astype(np.float32) @ w + b
    result = evaluate(prepared, {"x": x})["s"].astype(np.float32)
    assert np.allclose(result, expected, rtol=2e-3, atol=1e-3)


def test_bits_are_those_of_float16() -> None:
    """The sign of each number is cleared in its bits, which PyTorch and ONNX both can write."""
    masked = Elementwise(Apply("bit_and", (Input(0), Input(1))), "int16", "int16")
    operators = (
        Operator(
            "double", Elementwise(Apply("add", (Input(0), Input(0))), "float16"), ("x",), ("d",)
        ),
        Operator("bits", Bitcast("int16"), ("d",), ("i",)),
        Operator("mask", masked, ("i", "m"), ("j",)),
        Operator("number", Bitcast("float16"), ("j",), ("y",)),
        Operator(
            "half", Elementwise(Apply("add", (Input(0), Input(0))), "float16"), ("y",), ("z",)
        ),
    )
    constants = {"m": np.array(0x7FFF, np.int16)}
    source = Graph("bits", {"x": TensorType((3,), "float16")}, ("y", "z"), constants, operators)
    x = np.array([-1.5, 0.25, -3.0], np.float16)
    results = evaluate(widen_half_floats(source), {"x": x})
    assert results["y"].tolist() == [3.0, 0.5, 6.0]
    assert results["z"].tolist() == [6.0, 1.0, 12.0]


def test_an_operator_that_runs_elsewhere_keeps_its_types() -> None:
    def negated(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        assert [array.dtype for array in arrays] == [np.float16, np.float16]
        return [-arrays[0]]

    kind = Foreign("Neg", (TensorType((2,), "float16"),), "callback", negated)
    operators = (Operator("neg", kind, ("x", "c"), ("y",)),)
    constants = {"c": np.ones(2, np.float16)}
    source = Graph("foreign", {"x": TensorType((2,), "float16")}, ("y",), constants, operators)
    results = evaluate(widen_half_floats(source), {"x": np.array([1, -2], np.float16)})
    assert results["y"].dtype == np.float16
    assert results["y"].tolist() == [-1, 2]


def test_loops_compute_in_float32_too() -> None:
    """``s = (s + c) * x[t]`` in float16: the only rounding is that of the result."""
    outer = Builder("net")
    x = outer.input("x", TensorType((4, 3), "float16"))
    s = outer.input("s", TensorType((3,), "float16"))
    loop = LoopBody(outer, "loop", 4)
    state, part = loop.state(s), loop.slice(x)
    c = loop.builder.constant(np.asarray([0.1, 0.2, 0.3], np.float16))
    total = loop.builder.add(
        Elementwise(Apply("add", (Input(0), Input(1))), "float16"), [state, c], "total"
    )
    scaled = loop.builder.add(
        Elementwise(Apply("mul", (Input(0), Input(1))), "float16"), [total, part], "scaled"
    )
    (last,), _ = loop.emit([scaled])
    source = outer.graph({"y": last})
    prepared = prepare(source)
    (body,) = [o.kind.body for o in prepared.operators if isinstance(o.kind, Loop)]
    assert not has_half_floats(body)
    random = np.random.default_rng(5)
    values = {name: random.normal(size=kind.shape).astype(np.float16)
              for name, kind in source.inputs.items()}  # fmt: skip
    expected = values["s"].astype(np.float64)
    for part_of_step in values["x"].astype(np.float64):
        expected = (expected + np.asarray([0.1, 0.2, 0.3], np.float16)) * part_of_step
    result = evaluate(prepared, values)["y"]
    spacing = np.spacing(np.abs(expected).astype(np.float16)).astype(np.float64)
    assert result.dtype == np.float16
    assert np.all(np.abs(result - expected) <= 0.51 * spacing)
