"""Compare pairs of operators in one kernel with two kernels, on layers of networks.

    TVM_NUM_THREADS=N python -m benchmarks.pairs [--layers v1.2 v2.6 ...] [--types float32 int8]

A layer of MobileNet is a depthwise convolution of 3x3 and the pointwise one after it, each with
ReLU6; those of MobileNet-V2 have no activation at the end. The others are a convolution with ReLU6
and pooling: maxima, or the mean of an image. Both libraries are loaded in one process and take
turns; a time is the median, over the rounds, of what the calls of both operators take in a run of
the library (the copy of the input into its layout is left out). ``predicted`` are the estimates on
which the choice is made, and ``pair`` says whether it would be one kernel.

Writes ``pairs.json`` and ``pairs.md`` into ``--output``, by default beside this file.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.documents import write_document
from cpembed.codegen.runtime import thread_count
from cpembed.driver.matching import network_units
from cpembed.files import write_whole
from cpembed.frontends.products import Window, convolution
from cpembed.graph.graph import Array, Graph, Operator
from cpembed.graph.kinds import (
    Dequantize,
    Elementwise,
    Input,
    Kind,
    Pool,
    Product,
    Quantize,
    TensorType,
)
from cpembed.ir.scalars import apply
from cpembed.network.build import (
    CompiledNetwork,
    RunningNetwork,
    compile_network,
    prepared_and_named,
)
from cpembed.network.kernel_cache import Cache, default_folder
from cpembed.network.pair_executions import PairPolicy
from cpembed.network.plan import Planning, plan_network
from cpembed.runtime.measurement.environment import provenance, provenance_lines

FOLDER = Path(__file__).resolve().parent
LAYERS = {
    # Channels, filters, rows and columns of the image, stride.
    **{
        f"v1.{number}": sizes
        for number, sizes in enumerate(
            (
                (32, 64, 112, 1),
                (64, 128, 112, 2),
                (128, 128, 56, 1),
                (128, 256, 56, 2),
                (256, 256, 28, 1),
                (256, 512, 28, 2),
                (512, 512, 14, 1),
                (512, 1024, 14, 2),
                (1024, 1024, 7, 1),
            ),
            1,
        )
    },
    **{
        f"v2.{number}": sizes
        for number, sizes in enumerate(
            (
                (32, 16, 112, 1),
                (96, 24, 112, 2),
                (144, 24, 56, 1),
                (144, 32, 56, 2),
                (192, 32, 28, 1),
                (192, 64, 28, 2),
                (384, 64, 14, 1),
                (384, 96, 14, 1),
                (576, 96, 14, 1),
                (576, 160, 14, 2),
                (960, 160, 7, 1),
                (960, 320, 7, 1),
            ),
            1,
        )
    },
}
POOLED = {
    # Channels, filters, rows and columns of the image, taps and stride; taps, stride and padding of
    # the pooling, whose window is the whole image without taps.
    "resnet.stem": (3, 64, 224, 7, 2, 3, 2, 1),
    "squeezenet.stem": (3, 64, 224, 3, 2, 3, 2, 0),
    "vgg.1": (64, 64, 224, 3, 1, 2, 2, 0),
    "vgg.2": (128, 128, 112, 3, 1, 2, 2, 0),
    "vgg.3": (256, 256, 56, 3, 1, 2, 2, 0),
    "vgg.4": (512, 512, 28, 3, 1, 2, 2, 0),
    "vgg.5": (512, 512, 14, 3, 1, 2, 2, 0),
    "v2.mean": (320, 1280, 7, 1, 1, 0, 1, 0),
}
POLICIES: tuple[PairPolicy, PairPolicy] = ("always", "never")
RELU6 = apply("min", apply("max", Input(0), 0.0), 6.0)
ADD = apply("add", Input(0), Input(1))
# Scales of images, of the sums' range, and of weights.
IMAGE_SCALE, WEIGHT_SCALE = 6 / 255, 0.01


class Layers:
    """Graph of a layer in the making, as front ends write it."""

    def __init__(self, dtype: str) -> None:
        self.random = np.random.default_rng(0)
        self.is_quantized = dtype == "int8"
        self.constants: dict[str, Array] = {}
        self.operators: list[Operator] = []

    def add(self, kind: Kind, *inputs: str) -> str:
        name = f"t{len(self.operators)}"
        self.operators.append(Operator(f"op{len(self.operators)}", kind, inputs, (name,)))
        return name

    def constant(self, array: Array) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = array
        return name

    def rounded(self, tensor: str) -> str:
        """Quantize and dequantize a tensor of a quantized network."""
        if not self.is_quantized:
            return tensor
        bits = self.add(Quantize((IMAGE_SCALE,), (0,), "uint8"), tensor)
        return self.add(Dequantize((IMAGE_SCALE,), (0,)), bits)

    def convolution(
        self, tensor: str, shape: Sequence[int], weights: Sequence[int], window: Window
    ) -> str:
        """Add a convolution with a bias.

        Parameters
        ----------
        tensor : str
            Image.
        shape, weights : sequence of int
            Shapes of the image and of the weights.
        window : Window
        """
        groups = shape[1] // weights[1]
        form = convolution(tuple(shape), tuple(weights), window, groups=groups)
        if self.is_quantized:
            filters = self.random.integers(-127, 128, tuple(weights)).astype(np.int8)
            name = self.add(Dequantize((WEIGHT_SCALE,), (0,)), self.constant(filters))
        else:
            size = math.prod(weights[1:])
            floats = self.random.standard_normal(tuple(weights)) / math.sqrt(size)
            name = self.constant(floats.astype(np.float32))
        bias = self.random.standard_normal((weights[0], 1, 1)).astype(np.float32)
        sums = self.add(form.product, tensor, name)
        return self.add(Elementwise(ADD, "float32"), sums, self.constant(bias))


def window(taps: int, stride: int, padding: int) -> Window:
    """Return a square window.

    Parameters
    ----------
    taps, stride, padding : int
        Of each axis; the padding is that of each side, in elements.
    """
    return Window(
        taps=(taps, taps),
        strides=(stride, stride),
        dilations=(1, 1),
        before=(padding, padding),
        after=(padding, padding),
    )


def pooled_layer(name: str, dtype: str) -> Graph:
    """Return the graph of a convolution and pooling on ``dtype``, float32 or int8."""
    channels, filters, size, taps, stride, pooled, step, padding = POOLED[name]
    net, shape = Layers(dtype), (1, channels, size, size)
    image = net.add(Dequantize((IMAGE_SCALE,), (0,)), "image") if net.is_quantized else "image"
    weights = (filters, channels, taps, taps)
    y = net.convolution(image, shape, weights, window(taps, stride, taps // 2))
    y = net.rounded(net.add(Elementwise(RELU6, "float32"), y))
    operation = "max" if pooled else "mean"
    y = net.add(window(pooled or -(-size // stride), step, padding).pool(operation), y)
    kind = TensorType(shape, "uint8" if net.is_quantized else "float32")
    return Graph(name, {"image": kind}, (net.rounded(y),), net.constants, tuple(net.operators))


def layer(name: str, dtype: str) -> Graph:
    """Return the graph of a layer on ``dtype``, float32 or int8."""
    if name in POOLED:
        return pooled_layer(name, dtype)
    channels, filters, size, stride = LAYERS[name]
    net, shape = Layers(dtype), (1, channels, size, size)
    windows = [window(taps, step, taps // 2) for taps, step in ((3, stride), (1, 1))]
    image = net.add(Dequantize((IMAGE_SCALE,), (0,)), "image") if net.is_quantized else "image"
    deep = net.convolution(image, shape, (channels, 1, 3, 3), windows[0])
    deep = net.rounded(net.add(Elementwise(RELU6, "float32"), deep))
    inner = (1, channels, -(-size // stride), -(-size // stride))
    wide = net.convolution(deep, inner, (filters, channels, 1, 1), windows[1])
    if name.startswith("v1"):
        wide = net.add(Elementwise(RELU6, "float32"), wide)
    kind = TensorType(shape, "uint8" if net.is_quantized else "float32")
    outputs = (net.rounded(wide),)
    return Graph(name, {"image": kind}, outputs, net.constants, tuple(net.operators))


def products_us(compiled: CompiledNetwork, running: RunningNetwork, image: Array) -> float:
    """Return the microseconds of the calls of products and pooling in a run."""
    steps = running.library.run_timed(*running.in_order({"image": image}))[1]
    plan = compiled.plan
    names = [o.name for o in plan.graph.operators if isinstance(o.kind, Product | Pool)]
    ranges = [compiled.network.calls[name] for name in names]
    return sum(float(sum(steps[first:last])) for first, last in ranges) / 1e3


def measured(name: str, dtype: str, rounds: int) -> dict[str, Any]:
    """Return the row of a layer: medians of both libraries, which take turns.

    Parameters
    ----------
    name, dtype : str
        Layer and element type.
    rounds : int
        Number of rounds.
    """
    graph = layer(name, dtype)
    random = np.random.default_rng(1)
    shape = graph.inputs["image"].shape
    image = (
        random.integers(0, 256, shape).astype(np.uint8)
        if dtype == "int8"
        else random.standard_normal(shape).astype(np.float32)
    )
    cache = Cache(default_folder())
    times: dict[str, list[float]] = {policy: [] for policy in POLICIES}
    with tempfile.TemporaryDirectory() as folder:
        networks = {
            policy: compile_network(
                graph, "native", Path(folder) / policy, Planning(pairs=policy, cache=cache)
            )
            for policy in POLICIES
        }
        running = {policy: compiled.open() for policy, compiled in networks.items()}
        (fused,), (separate,) = (
            running[policy].run({"image": image}).values() for policy in POLICIES
        )
        for number in range(rounds):
            for policy in POLICIES if number % 2 else POLICIES[::-1]:
                times[policy].append(products_us(networks[policy], running[policy], image))
        for each in running.values():
            each.close()
    error = float(np.abs(fused.astype(np.float64) - separate).max())
    if error > (0 if dtype == "int8" else 1e-4 * float(np.abs(separate).max())):
        raise SystemExit(f"{name}: results differ by {error}")
    medians = {policy: statistics.median(values) for policy, values in times.items()}
    predicted = {policy: _predicted_us(compiled) for policy, compiled in networks.items()}
    return {
        "layer": name,
        "dtype": dtype,
        "threads": thread_count(),
        "rows": _rows(networks["always"]),
        "us": {policy: round(value, 1) for policy, value in medians.items()},
        "predicted": {policy: round(value, 1) for policy, value in predicted.items()},
        "ratio": round(medians["never"] / medians["always"], 3),
        "pair": _is_selected(graph, cache),
        "max_difference": error,
    }


def _predicted_us(compiled: CompiledNetwork) -> float:
    plan = compiled.plan
    operators = (o for o in plan.graph.operators if isinstance(o.kind, Product | Pool))
    return sum(plan.execution(operator).cost_us for operator in operators)


def _is_selected(graph: Graph, cache: Cache) -> bool:
    """Return True if the assignment of layouts takes one kernel."""
    units = network_units("native")
    plan = plan_network(prepared_and_named(graph, units), units, Planning(cache=cache))
    return any(execution.pair is not None for execution in plan.executions.values())


def _rows(compiled: CompiledNetwork) -> int:
    """Return the number of rows of a band; 0 without a pair."""
    pairs = (execution.pair for execution in compiled.plan.executions.values())
    return next((pair.bands.rows for pair in pairs if pair is not None), 0)


def markdown(document: Mapping[str, Any]) -> str:
    """Return the table of a document's rows."""
    rows = document["rows"]
    lines = [
        "# Pairs of operators",
        "",
        *provenance_lines(document, "medians of rounds that take turns"),
        "",
        "| layer | type | threads | rows | one kernel | two | two / one | predicted | selected |",
        "| --- | --- | --: | --: | --: | --: | --: | --: | --- |",
    ]
    lines += [
        f"| {row['layer']} | {row['dtype']} | {row['threads']} | {row['rows']} | "
        f"{row['us']['always']:,.0f} us | {row['us']['never']:,.0f} us | {row['ratio']:.2f} | "
        f"{row['predicted']['never'] / row['predicted']['always']:.2f} | "
        f"{'one' if row['pair'] else 'two'} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure the layers that the command line names."""
    parser = argparse.ArgumentParser(description="Compare pairs with two kernels.")
    parser.add_argument(
        "--layers", nargs="+", choices=[*LAYERS, *POOLED], default=[*LAYERS, *POOLED]
    )
    parser.add_argument("--types", nargs="+", default=["float32", "int8"])
    parser.add_argument("--rounds", type=int, default=51)
    parser.add_argument("--output", type=Path, default=FOLDER)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for dtype in options.types:
        for name in options.layers:
            rows.append(measured(name, dtype, options.rounds))
            print(rows[-1], flush=True)
            document = {**provenance(), "rows": rows}
            write_document(options.output / "pairs.json", document)
            write_whole(options.output / "pairs.md", markdown(document))


if __name__ == "__main__":
    main()
