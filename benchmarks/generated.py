"""Measure generated kernels on this machine: time and traffic of operators between products.

    python -m benchmarks.generated [--threads N]

Each kernel is called until its best time stands; the traffic is that of the tensors' elements, read
once and written once.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from cpembed.codegen.plan import KernelPlan
from cpembed.codegen.runtime import compile_plan, empty
from cpembed.graph.kinds import (
    Apply,
    Concat,
    Elementwise,
    Input,
    Kind,
    LayerNorm,
    Number,
    Pool,
    Quantize,
    Reduce,
    Reshape,
    Softmax,
    Table,
    TensorType,
    Transpose,
)
from cpembed.network.layout import Layout
from cpembed.network.operators import PlacedTensor, conversion_plan, generated_plan

_SECONDS = 0.2
"""Seconds for which a kernel is called."""


def image(shape: tuple[int, ...], dtype: str, *, last: bool = True, halo: int = 0) -> PlacedTensor:
    """Return an image, channels last or as its axes are.

    Parameters
    ----------
    shape : tuple of int
        Batch, channels, rows, columns.
    dtype : str
        Element type.
    last : bool
        True for channels last.
    halo : int
        Rows and columns of zeros on each side.
    """
    layout = Layout.plain(shape)
    layout = layout.channels_last() if last else layout
    return PlacedTensor(
        TensorType(shape, dtype), layout.with_halo((halo, halo)) if halo else layout
    )


def placed(shape: tuple[int, ...], dtype: str) -> PlacedTensor:
    """Return a tensor in row-major order."""
    return PlacedTensor.plain(TensorType(shape, dtype))


def operators() -> Iterator[tuple[str, Kind, list[PlacedTensor], PlacedTensor]]:
    """Yield names, kinds, inputs and outputs of operators."""
    block = (1, 256, 56, 56)
    add = Apply("add", (Input(0), Input(1)))
    halved = Apply("mul", (add, Number(0.5)))
    two = [image(block, "uint8")] * 2
    yield "add bytes", Elementwise(add, "uint8"), two, two[0]
    scaled = Elementwise(halved, "uint8", "float32")
    yield "add bytes in float32", scaled, two, two[0]
    floats = image(block, "float32")
    yield "relu", Elementwise(Apply("max", (Input(0), Number(0))), "float32"), [floats], floats
    hidden = placed((128, 3072), "float32")
    for name in ("erf", "exp", "tanh", "sigmoid"):
        yield name, Elementwise(Apply(name, (Input(0),)), "float32"), [hidden], hidden
    yield "quantize", Quantize((0.1,), (3,), "uint8"), [floats], two[0]
    yield "table", Table(tuple(range(256)), "uint8"), [two[0]], two[0]
    stem = (1, 64, 112, 112)
    pool = Pool("max", (3, 3), (2, 2), (1, 1), (1, 1), (1, 1))
    pooled = (1, 64, 56, 56)
    yield "max pool 3x3", pool, [image(stem, "uint8")], image(pooled, "uint8")
    plain = [image(stem, "uint8", last=False)], image(pooled, "uint8", last=False)
    yield "max pool 3x3, NCHW", pool, *plain
    mean = Reduce("mean", (2, 3), True)
    yield "mean 7x7", mean, [image((1, 2048, 7, 7), "uint8")], image((1, 2048, 1, 1), "uint8")
    heads = placed((12, 128, 128), "float32")
    yield "softmax", Softmax(-1), [heads], heads
    rows = placed((128, 768), "float32")
    vector = placed((768,), "float32")
    yield "layer norm", LayerNorm(-1, 1e-5), [rows, vector, vector], rows
    half = (1, 128, 28, 28)
    halves = [image(half, "uint8")] * 2
    yield "concat", Concat(1), halves, image((1, 256, 28, 28), "uint8")
    groups = (1, 2, 116, 28, 28)
    shuffled = Transpose((0, 2, 1, 3, 4))
    turned = (1, 116, 2, 28, 28)
    yield "shuffle of rows", shuffled, [placed(groups, "uint8")], placed(turned, "uint8")
    last = PlacedTensor(TensorType(groups, "uint8"), Layout(groups, (0, 3, 4, 1, 2), 1, (0,) * 5))
    mixed = PlacedTensor(TensorType(turned, "uint8"), Layout(turned, (0, 3, 4, 1, 2), 1, (0,) * 5))
    yield "shuffle, channels last", shuffled, [last], mixed
    yield (
        "heads",
        Transpose((1, 0, 2)),
        [placed((128, 12, 64), "float32")],
        placed((12, 128, 64), "float32"),
    )
    yield (
        "flatten",
        Reshape((1, 64 * 56 * 56)),
        [image(pooled, "uint8")],
        placed((1, 64 * 56 * 56), "uint8"),
    )


def conversions() -> Iterator[tuple[str, PlacedTensor, PlacedTensor]]:
    """Yield names and both layouts of conversions."""
    shape = (1, 256, 56, 56)
    for dtype in ("uint8", "float32"):
        last, plain = image(shape, dtype), image(shape, dtype, last=False)
        halo = image(shape, dtype, halo=1)
        blocked = PlacedTensor(last.type, Layout.plain(shape).blocked(16))
        yield f"NCHW to NHWC, {dtype}", plain, last
        yield f"NHWC to NCHW, {dtype}", last, plain
        yield f"NHWC to NHWC with a halo, {dtype}", last, halo
        yield f"NCHW to NHWC with a halo, {dtype}", plain, halo
        yield f"NHWC to NCHW16c, {dtype}", last, blocked
    picture = (1, 3, 224, 224)
    yield "NCHW to NHWC, 3 channels", image(picture, "uint8", last=False), image(picture, "uint8")


def best_us(plan: KernelPlan, tensors: list[PlacedTensor]) -> float:
    """Return the time of the fastest of many calls."""
    generator = np.random.default_rng(0)
    buffers: list[Any] = []
    for tensor in tensors:
        buffer = empty(tensor.layout.elements, tensor.storage_dtype)
        values = generator.integers(0, 100, tensor.layout.elements).astype(tensor.storage_dtype)
        buffer.copyfrom(values)
        buffers.append(buffer)
    call: Callable[[], Any] = compile_plan(plan).bound(*buffers)
    best, end = math.inf, time.perf_counter() + _SECONDS
    while time.perf_counter() < end:
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best * 1e6


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--threads", type=int, default=1)
    threads: int = parser.parse_args().threads
    print(f"{'':36}{'us':>9}{'GB/s':>9}")

    def row(name: str, plan: KernelPlan, tensors: list[PlacedTensor], moved: int) -> None:
        us = best_us(plan, tensors)
        print(f"{name:36}{us:9.1f}{moved / us / 1e3:9.1f}", flush=True)

    for name, kind, inputs, output in operators():
        plan = generated_plan(kind, inputs, [output], threads)
        tensors = [*inputs, output]
        row(name, plan, tensors, sum(tensor.bytes for tensor in tensors))
    for name, source, target in conversions():
        plan = conversion_plan(source, target, threads)
        row(name, plan, [source, target], source.bytes + target.bytes)


if __name__ == "__main__":
    main()
