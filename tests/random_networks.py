"""Quantized networks at random, in the form in which front ends write them: operators of floats
with quantization around them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.frontends.products import Window, convolution, matrix_product
from cpembed.graph.graph import Graph, Operator, evaluate
from cpembed.graph.kinds import (
    Apply,
    Concat,
    Dequantize,
    Elementwise,
    Input,
    Kind,
    Pad,
    Pool,
    Quantize,
    Reduce,
    Reshape,
    Slice,
    TensorType,
    Transpose,
)
from cpembed.ir.scalars import apply

Array = NDArray[Any]
BYTES = ("uint8", "int8")
RELU = apply("max", Input(0), 0.0)
RELU6 = apply("min", apply("max", Input(0), 0.0), 6.0)
HARD_SWISH = apply(
    "mul",
    Input(0),
    apply("div", apply("min", apply("max", apply("add", Input(0), 3.0), 0.0), 6.0), 6.0),
)
SILU = apply("mul", Input(0), apply("sigmoid", Input(0)))
UNARY = (RELU, RELU6, HARD_SWISH, SILU, apply("tanh", Input(0)))


class Network:
    """A graph in the making, with the value of each tensor on one random input, by which scales are
    chosen; ``quantized`` are tensors of integers by their names, with scale and zero point."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.values: dict[str, Array] = {}
        self.inputs: dict[str, TensorType] = {}
        self.constants: dict[str, Array] = {}
        self.operators: list[Operator] = []
        self.quantized: dict[str, tuple[float, int]] = {}

    def one_of(self, things: Any) -> Any:
        return things[self.random.integers(len(things))]

    def input(self, shape: tuple[int, ...], dtype: str) -> str:
        name = f"in{len(self.inputs)}"
        self.inputs[name] = TensorType(shape, dtype)
        self.values[name] = self.array(shape, dtype)
        if dtype in BYTES:
            self.quantized[name] = (
                float(np.float32(self.random.uniform(0.01, 0.1))),
                self.zero(dtype),
            )
        return name

    def array(self, shape: tuple[int, ...], dtype: str) -> Array:
        if dtype == "float32":
            return self.random.normal(size=shape).astype(np.float32)
        info = np.iinfo(dtype)
        return self.random.integers(info.min, info.max + 1, shape).astype(dtype)

    def zero(self, dtype: str) -> int:
        return int(self.random.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1))

    def constant(self, array: Array) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = self.values[name] = array
        return name

    def add(self, kind: Kind, *inputs: str) -> str:
        name = f"t{len(self.operators)}"
        (self.values[name],) = kind.evaluate([self.values[n] for n in inputs])
        self.operators.append(Operator(f"op{len(self.operators)}", kind, inputs, (name,)))
        return name

    def floats(self, q: str) -> str:
        scale, zero = self.quantized[q]
        return self.add(Dequantize((scale,), (zero,)), q)

    def quantize(self, x: str, dtype: str | None = None, like: str | None = None) -> str:
        """With a scale by the range of the values, most of which do not saturate."""
        dtype = dtype or self.one_of(BYTES)
        values, info = self.values[x], np.iinfo(dtype)
        low, high = min(0.0, float(values.min())), max(0.0, float(values.max()))
        scale = float(np.float32(max(high - low, 1e-3) / 255 * self.random.uniform(0.8, 1.2)))
        zero = int(np.clip(round(info.min - low / scale), info.min, info.max))
        if like is not None:
            (scale, zero), dtype = self.quantized[like], str(self.values[like].dtype)
        name = self.add(Quantize((scale,), (zero,), dtype), x)
        self.quantized[name] = (scale, zero)
        return name

    def weights(self, shape: tuple[int, ...], axis: int | None, zero: bool = False) -> str:
        dtype = self.one_of(BYTES) if zero else "int8"
        count = 1 if axis is None else shape[axis]
        scales = tuple(map(float, self.random.uniform(0.005, 0.02, count).astype(np.float32)))
        zeros = (self.zero(dtype) if zero else 0,) * count
        name = self.constant(self.array(shape, dtype))
        return self.add(Dequantize(scales, zeros, axis or 0), name)

    def convolution(
        self, x: str, filters: int, taps: int, stride: int = 1, groups: int = 1, zero: bool = False
    ) -> str:
        """With a bias, padded so that its size is kept but for the stride."""
        shape = self.values[x].shape
        pads = (taps // 2, taps // 2)
        weights = (filters, shape[1] // groups, taps, taps)
        window = Window(
            taps=(taps, taps), strides=(stride, stride), dilations=(1, 1), before=pads, after=pads
        )
        form = convolution(shape, weights, window, groups=groups)
        w = self.weights(weights, None if zero else 0, zero)
        y = self.add(form.product, x, w)
        if self.random.integers(4) == 0:
            return y
        bias = self.constant(self.array((filters, 1, 1), "float32"))
        return self.add(Elementwise(apply("add", Input(0), Input(1)), "float32"), y, bias)

    def linear(self, x: str, columns: int, zero: bool = False) -> str:
        shape = self.values[x].shape
        form = matrix_product(shape, (shape[-1], columns))
        y = self.add(form.product, x, self.weights((shape[-1], columns), 1 - zero, zero))
        bias = self.constant(self.array((columns,), "float32"))
        return self.add(Elementwise(apply("add", Input(1), Input(0)), "float32"), y, bias)

    def attention(self, a: str, b: str) -> str:
        """The product of each matrix with the other's transposed one."""
        form = matrix_product(
            self.values[a].shape, self.values[b].shape, transposed=True, varying=True
        )
        return self.add(form.product, a, b)

    def elementwise(self, expression: Apply, *inputs: str) -> str:
        return self.add(Elementwise(expression, "float32"), *inputs)

    def graph(self, *outputs: str) -> Graph:
        return Graph("random", self.inputs, outputs, self.constants, tuple(self.operators))

    def samples(self) -> dict[str, Array]:
        """Other inputs than those by which the scales were chosen."""
        return {name: self.array(kind.shape, kind.dtype) for name, kind in self.inputs.items()}


def random_network(seed: int, steps: int = 6) -> Network:
    """Images of eight channels through layers of all kinds, some of which branch."""
    net = Network(seed)
    q = net.input((1, 8, 6, 6), net.one_of(BYTES))
    made = [q]
    for _ in range(steps):
        q = net.one_of(made)
        made.append(_layer(net, q, made))
    return net


def _layer(net: Network, q: str, made: list[str]) -> str:
    x = net.floats(q)
    same = [o for o in made if net.values[o].shape == net.values[q].shape]
    match int(net.random.integers(11)):
        case 0 | 1 | 2:
            groups = net.one_of((1, 1, 2, 8))
            y = net.convolution(x, 8, net.one_of((1, 3)), 1, groups)
            if net.random.integers(2):
                y = net.elementwise(net.one_of((RELU, RELU6)), y)
            return net.quantize(y)
        case 3 | 4:
            other = net.floats(net.one_of(same))
            y = net.elementwise(apply(net.one_of(("add", "mul")), Input(0), Input(1)), x, other)
            if net.random.integers(2):
                y = net.elementwise(RELU, y)
            return net.quantize(y)
        case 5:
            return net.quantize(net.elementwise(net.one_of(UNARY), x))
        case 6:
            what = net.one_of(("max", "mean"))
            y = net.add(Pool(what, (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)), x)
            return net.quantize(y, like=q if what == "max" else None)
        case 7:
            y = net.add(Concat(1), x, net.floats(net.one_of(same)))
            y = net.quantize(y)
            sizes = net.values[y].shape
            y = net.floats(y)
            cut = net.add(Slice((0, 4, 0, 0), (1, 12, *sizes[2:]), (1,) * 4), y)
            return net.quantize(cut, like=None)
        case 8:
            y = net.add(Transpose((0, 1, 3, 2)), net.add(Reshape(net.values[x].shape), x))
            return net.quantize(y, like=q)
        case 9:
            y = net.add(Pad((0, 0, 1, 1), (0, 0, 0, 0)), x)
            y = net.add(Slice((0, 0, 1, 0), (*net.values[x].shape[:2], 7, 6), (1,) * 4), y)
            return net.quantize(y, like=q)
        case _:
            y = net.floats(net.quantize(net.add(Reduce("mean", (2, 3), True), x)))
            scales = net.quantize(net.elementwise(apply("sigmoid", Input(0)), y), "uint8")
            y = net.elementwise(apply("mul", Input(0), Input(1)), x, net.floats(scales))
            return net.quantize(y)


def same_results(first: Graph, second: Graph, inputs: dict[str, Array]) -> bool:
    """Whether two graphs have the same outputs, bit for bit."""
    a, b = (evaluate(graph, inputs, keep=lambda name: False) for graph in (first, second))
    return a.keys() == b.keys() and all(
        a[name].dtype == b[name].dtype and np.array_equal(a[name], b[name]) for name in a
    )


def largest_difference(first: Graph, second: Graph, inputs: dict[str, Array]) -> float:
    """Between outputs of the same names and types."""
    a, b = (evaluate(graph, inputs, keep=lambda name: False) for graph in (first, second))
    assert {n: v.dtype for n, v in a.items()} == {n: v.dtype for n, v in b.items()}
    return max(float(np.abs(a[n].astype(np.float64) - b[n]).max()) for n in a)
