"""Products of tensors whose scale and zero point are computed in each call, on their integers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cpembed.graph.graph import Graph, Operator, evaluate
from cpembed.graph.kinds import (
    Apply,
    Dequantize,
    DynamicQuantize,
    Elementwise,
    Input,
    Product,
    Reshape,
    TensorType,
    Transpose,
)
from cpembed.graph.passes import prepare
from cpembed.graph.passes.dynamic_products import dynamic_products
from cpembed.workloads.naming import parse_workload

CENTRED = Apply("mul", (Apply("sub", (Input(0), Input(1))), Input(2)))
PLAIN = Apply("mul", (Input(0), Input(1)))
WORDS = {
    "rows": "gemm m=7 n=10 k=12",
    "padded": "conv2d n=2 k=10 c=6 h=5 w=5 r=3 s=3 pad=1",
    "strided": "conv2d n=1 k=10 c=6 h=7 w=7 r=3 s=3 pad=1 stride=2",
    "depthwise": "depthwise n=1 c=10 h=6 w=6 r=3 s=3 pad=1",
}
CHANNEL = {"rows": 1, "padded": 0, "strided": 0, "depthwise": 0}


def graph(words: str, zeros: int = 0, scales: int = 10, symmetric: bool = False) -> Graph:
    """A tensor that is quantized by its own range, times dequantized weights, plus a bias."""
    workload = parse_workload(f"{WORDS[words]} dtype=float32,float32,float32".split())
    first, second = workload.inputs
    random = np.random.default_rng(len(words))
    integers = random.integers(-100 + zeros, 100 + zeros, second.shape).astype(np.int8)
    scale = tuple(float(s) for s in np.float32(random.uniform(0.001, 0.01, scales)))
    zero = tuple(int(z) for z in random.integers(-zeros, zeros + 1, scales)) if zeros else (0,)
    zero = (zeros,) if scales == 1 and zeros else zero
    shape = workload.output.shape
    inputs = ("q", "s") if symmetric else ("q", "z", "s")
    operators = (
        Operator("quantize", DynamicQuantize(), ("x",), ("q", "s", "z")),
        Operator(
            "centre", Elementwise(PLAIN if symmetric else CENTRED, "float32"), inputs, ("f",)
        ),
        Operator("weights", Dequantize(scale, zero, CHANNEL[words]), ("w",), ("v",)),
        Operator("multiply", Product(workload, shape), ("f", "v"), ("p",)),
        Operator("bias", Elementwise(Apply("add", (Input(0), Input(1))), "float32"),
                 ("p", "b"), ("y",)),
    )  # fmt: skip
    constants = {"w": integers, "b": np.float32(0.25)}
    return Graph("net", {"x": TensorType(first.shape, "float32")}, ("y",), constants, operators)


def products(changed: Graph) -> list[Product]:
    return [o.kind for o in changed.operators if isinstance(o.kind, Product)]


def differs(source: Graph, changed: Graph) -> float:
    """Return the largest difference of results relative to the largest one."""
    x = np.random.default_rng(9).normal(1, 2, source.inputs["x"].shape).astype(np.float32)
    expected, result = (evaluate(each, {"x": x})["y"] for each in (source, changed))
    return float(np.abs(result - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("words", WORDS)
@pytest.mark.parametrize("scales", [1, 10])
@pytest.mark.parametrize("zeros", [0, 5])
def test_the_integers_are_multiplied(words: str, scales: int, zeros: int) -> None:
    source = graph(words, zeros, scales)
    for changed in (dynamic_products(source), prepare(source), prepare(source, first="int8")):
        (product,) = products(changed)
        assert product.computation.output.dtype == "int32"
        assert differs(source, changed) < 1e-5


def test_a_scale_alone_needs_no_sums_of_weights() -> None:
    source = graph("rows", symmetric=True)
    changed = dynamic_products(source)
    assert products(changed)[0].computation.output.dtype == "int32"
    assert len(changed.operators) == len(source.operators) - 1
    assert differs(source, changed) < 1e-5


@pytest.mark.parametrize(
    "kind", [Reshape((7, 12)), Transpose((1, 0))], ids=["reshape", "transpose"]
)
def test_movement_in_between_moves_integers(kind: Reshape | Transpose) -> None:
    source = graph("rows")
    quantize, centre, weights, multiply, bias = source.operators
    moved = Operator("move", kind, ("f",), ("g",))
    multiply = replace(multiply, inputs=("g", "v"))
    shape = (12, 7) if isinstance(kind, Transpose) else (7, 12)
    source = replace(
        source,
        inputs={"x": TensorType(shape, "float32")},
        operators=(quantize, centre, moved, weights, multiply, bias),
    )
    changed = prepare(source)
    assert products(changed)[0].computation.output.dtype == "int32"
    assert differs(source, changed) < 1e-5


def test_what_has_no_common_factor_stays_in_floats() -> None:
    """Scales along the axis that is summed over; and sums that 32 bits cannot hold."""
    source = graph("rows", scales=10)
    quantize, centre, _, *rest = source.operators
    scales = tuple(float(s) for s in np.linspace(0.01, 0.02, 12, dtype=np.float32))
    rows = Operator("weights", Dequantize(scales, (0,), 0), ("w",), ("v",))
    changed = dynamic_products(replace(source, operators=(quantize, centre, rows, *rest)))
    assert products(changed)[0].computation.output.dtype == "float32"


def test_the_tensor_itself_may_be_an_output() -> None:
    source = replace(graph("rows"), outputs=("y", "f"))
    changed = prepare(source)
    assert products(changed)[0].computation.output.dtype == "int32"
    assert differs(source, changed) < 1e-5
