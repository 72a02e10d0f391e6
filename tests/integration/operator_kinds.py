"""One quantized operator of each kind, and what each machine computes of it.

``python -m tests.integration.operator_kinds`` prints the table of ``docs/accelerators.md``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np

from cpembed.accelerator.network import AcceleratorNetwork, HostStep, plan_network
from cpembed.accelerator.network_proof import prove_network
from cpembed.accelerator.network_run import run_network
from cpembed.frontends.products import (
    Window,
    convolution,
    matrix_product,
    spread_shape,
    transposed_convolution,
)
from cpembed.graph.graph import Graph
from cpembed.graph.kinds import (
    Apply,
    Concat,
    Dequantize,
    Gather,
    Input,
    Kind,
    LayerNorm,
    Pad,
    Pool,
    Quantize,
    Reduce,
    Reshape,
    Resize,
    Slice,
    Softmax,
    TensorType,
    Transpose,
)
from cpembed.graph.passes import prepare
from cpembed.hw.isa_reader import load_instruction_set
from cpembed.ir.scalars import apply
from cpembed.network.inputs import random_inputs
from tests.random_networks import HARD_SWISH, RELU, RELU6, SILU, Network

MACHINES = ("gemmini", "tpu_like", "nvdla_like", "ethos_u_like", "qkv_attention", "vta_isa")
IMAGE = (1, 16, 8, 8)


class Symmetric(Network):
    """A network of int8 without zero points."""

    def zero(self, dtype: str) -> int:
        return 0

    def quantize(self, x: str, dtype: str | None = None, like: str | None = None) -> str:
        if like is None:
            largest = float(np.abs(self.values[x]).max(initial=1e-3))
            parameters = float(np.float32(largest / 127)), 0
        else:
            parameters = self.quantized[like]
        name = self.add(Quantize((parameters[0],), (0,), "int8"), x)
        self.quantized[name] = parameters
        return name

    def image(self, shape: tuple[int, ...] = IMAGE) -> str:
        """Add an input of bytes; return its values as floats."""
        return self.floats(self.input(shape, "int8"))

    def factors(self, shape: tuple[int, ...], axis: int | None) -> str:
        """Add weights with one scale, or one for each index of an axis."""
        count = 1 if axis is None else shape[axis]
        scales = tuple(map(float, self.random.uniform(0.005, 0.02, count).astype(np.float32)))
        name = self.constant(self.array(shape, "int8"))
        return self.add(Dequantize(scales, (0,) * count, axis or 0), name)


def matrix(axis: int | None) -> Callable[[Symmetric], str]:
    def case(net: Symmetric) -> str:
        x = net.image((24, 32))
        form = matrix_product((24, 32), (32, 40))
        return net.quantize(net.add(form.product, x, net.factors((32, 40), axis)))

    return case


def window(
    taps: int = 3,
    stride: int = 1,
    dilation: int = 1,
    groups: int = 1,
    filters: int = 16,
    *,
    axis: int | None = None,
    transposed: bool = False,
) -> Callable[[Symmetric], str]:
    def case(net: Symmetric) -> str:
        x = net.image()
        pads = (dilation * (taps // 2),) * 2
        described = Window(
            taps=(taps, taps),
            strides=(stride, stride),
            dilations=(dilation, dilation),
            before=pads,
            after=pads,
        )
        if transposed:
            x = spread(net, x, stride)
            weights = (IMAGE[1], filters, taps, taps)
            form = transposed_convolution(IMAGE, weights, described)
        else:
            weights = (filters, IMAGE[1] // groups, taps, taps)
            form = convolution(IMAGE, weights, described, groups=groups)
        return net.quantize(net.add(form.product, x, net.factors(weights, axis)))

    return case


def spread(net: Symmetric, x: str, stride: int) -> str:
    """Insert zeros between the pixels of an image, as front ends do."""
    n, c, height, width = IMAGE
    x = net.add(Reshape((n, c, height, 1, width, 1)), x)
    x = net.add(Pad((0,) * 6, (0, 0, 0, stride - 1, 0, stride - 1)), x)
    x = net.add(Reshape((n, c, height * stride, width * stride)), x)
    shape = spread_shape(IMAGE, (stride, stride))
    return net.add(Slice((0,) * 4, shape, (1,) * 4), x)


def pool(
    kind: str, taps: int, stride: int, pad: int, *, counts: bool = False
) -> Callable[[Symmetric], str]:
    def case(net: Symmetric) -> str:
        x = net.input(IMAGE, "int8")
        pads = (pad, pad)
        described = Pool(kind, (taps, taps), (stride, stride), pads, pads, (1, 1), counts)
        y = net.add(described, net.floats(x))
        return net.quantize(y, like=x if kind == "max" else None)

    return case


def unary(expression: Apply) -> Callable[[Symmetric], str]:
    return lambda net: net.quantize(net.elementwise(expression, net.image()))


def copied(kind: Kind) -> Callable[[Symmetric], str]:
    def case(net: Symmetric) -> str:
        x = net.input(IMAGE, "int8")
        return net.quantize(net.add(kind, net.floats(x)), like=x)

    return case


def added(net: Symmetric) -> str:
    x, y = net.image(), net.image()
    return net.quantize(net.elementwise(apply("add", Input(0), Input(1)), x, y))


def multiplied(net: Symmetric) -> str:
    x, y = net.image(), net.image()
    return net.quantize(net.elementwise(apply("mul", Input(0), Input(1)), x, y))


def joined(net: Symmetric) -> str:
    x, y = net.input(IMAGE, "int8"), net.input(IMAGE, "int8")
    net.quantized[y] = net.quantized[x]
    return net.quantize(net.add(Concat(1), net.floats(x), net.floats(y)), like=x)


def normalized(net: Symmetric) -> str:
    x = net.image((24, 32))
    gain = net.constant(np.linspace(0.5, 1.5, 32, dtype=np.float32))
    bias = net.constant(np.linspace(-1, 1, 32, dtype=np.float32))
    return net.quantize(net.add(LayerNorm(1, 1e-5), x, gain, bias))


def softmax(net: Symmetric) -> str:
    return net.quantize(net.add(Softmax(1), net.image((24, 32))))


def embedded(net: Symmetric) -> str:
    table = net.constant(net.array((50, 32), "int8"))
    net.inputs["tokens"] = TensorType((12,), "int64")
    net.values["tokens"] = net.random.integers(0, 50, 12)
    return net.add(Gather(0), table, "tokens")


CASES: dict[str, Callable[[Symmetric], str]] = {
    "matrix product": matrix(None),
    "matrix product, scales per channel": matrix(1),
    "convolution 3 x 3": window(),
    "convolution 3 x 3, scales per channel": window(axis=0),
    "convolution, stride 2": window(stride=2),
    "convolution, dilation 2": window(dilation=2),
    "convolution, 2 groups": window(groups=2),
    "depthwise convolution": window(groups=16),
    "depthwise convolution, multiplier 2": window(groups=16, filters=32),
    "transposed convolution, stride 2": window(stride=2, transposed=True),
    "max pooling, padded": pool("max", 3, 2, 1),
    "mean pooling, padding not counted": pool("mean", 3, 1, 1),
    "mean pooling, padding counted": pool("mean", 3, 1, 1, counts=True),
    "global mean": copied(Reduce("mean", (2, 3), keeps=True)),
    "global maximum": copied(Reduce("max", (2, 3), keeps=True)),
    "addition": added,
    "multiplication": multiplied,
    "ReLU": unary(RELU),
    "clip to 0 to 6": unary(RELU6),
    "HardSwish": unary(HARD_SWISH),
    "SiLU": unary(SILU),
    "tanh": unary(apply("tanh", Input(0))),
    "softmax": softmax,
    "layer norm": normalized,
    "concatenation": joined,
    "slice": copied(Slice((0, 0, 1, 0), (1, 16, 7, 8), (1, 1, 1, 1))),
    "padding": copied(Pad((0, 0, 1, 1), (0, 0, 1, 1))),
    "transposition": copied(Transpose((0, 1, 3, 2))),
    "resize to nearest": copied(Resize((16, 16), "nearest", "asymmetric", "floor")),
    "embedding lookup": embedded,
}


def graph_of(case: str) -> Graph:
    net = Symmetric(1)
    output = CASES[case](net)
    return prepare(net.graph(output), first="int8", second="int8")


def outcome(case: str, machine: str) -> str:
    """Return what a machine does of a case; raise if a program is wrong or not proven."""
    network = plan_network(graph_of(case), load_instruction_set(machine))
    inputs = random_inputs(network.graph, 2)
    inputs = {n: a % 50 if a.dtype == np.int64 else a for n, a in inputs.items()}
    proofs = prove_network(network)
    for name, proof in proofs.proofs.items():
        assert proof.holds, f"{case} on {machine}: {name}: {proof.refusal}"
    for step in run_network(proofs.network, inputs).steps:
        deviation = step.step.form.specification.deviation
        assert step.is_right, f"{case} on {machine}: {step.error}"
        assert not step.deviation or deviation, f"{case} on {machine}: {step.deviation}"
    return _text(network)


def _text(network: AcceleratorNetwork) -> str:
    """Return who computes the operators; the caller's images may change their layout besides."""
    host = any(isinstance(step, HostStep) for step in network.steps)
    if not network.programs:
        return "host"
    parts = any(step.host for step in network.programs)
    return "partly" if host or parts else "yes"


if __name__ == "__main__":
    for name in sys.argv[1:] or CASES:
        cells = [outcome(name, machine) for machine in MACHINES]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
