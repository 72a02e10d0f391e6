"""Compare estimated times of operators between products with measured ones, by kind.

    python -m benchmarks.operator_predictions [--cases N] [--threads N] [--seed N] [--kind NAME]
                                              [--seconds S] [--json FILE]

Random operators of each kind, in random layouts and sizes, are compiled and timed one by one; the
best of many calls counts, which other work on the machine disturbs least. Pin the process to a core
(``taskset -c 1``) for a single thread. Printed are quantiles of the ratio of the estimate to the
time, and the share of cases within a factor of two.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cpembed.codegen.plan import KernelPlan
from cpembed.codegen.runtime import compile_plan, empty
from cpembed.errors import CpembedError
from cpembed.graph import kinds
from cpembed.graph.kinds import Apply, Input, Kind, Number, Scalar, TensorType
from cpembed.hw.loader import load_hardware_spec
from cpembed.network.layout import BLOCK, Layout
from cpembed.network.operator_costs import estimate_copy_us, estimate_operator_us
from cpembed.network.operators import PlacedTensor, conversion_plan, generated_plan
from cpembed.targets.registry import open_target

_TARGET = "avx2_f32"
"""Target whose calibration is used: that of the machine."""

_FUNCTIONS = ("exp", "erf", "tanh", "sigmoid", "log", "sqrt")


@dataclass(frozen=True)
class Case:
    """Kernel with its estimate; ``kind`` groups cases in the table."""

    kind: str
    text: str
    plan: KernelPlan
    tensors: tuple[PlacedTensor, ...]
    estimated_us: float


class Cases:
    """Random cases.

    Parameters
    ----------
    seed, threads : int
    target : Target
        Target whose calibration is used.
    """

    def __init__(self, seed: int, threads: int, target: Any) -> None:
        self.random = np.random.default_rng(seed)
        self.threads = threads
        self.target = target

    def choose(self, *options: Any) -> Any:
        """Return one of the options."""
        return options[int(self.random.integers(len(options)))]

    def size(self, least: int, largest: int) -> int:
        """Return a size, its logarithm uniform; half of them are multiples of 8."""
        value = round(math.exp(self.random.uniform(math.log(least), math.log(largest))))
        return max(8, value // 8 * 8) if self.random.integers(2) and largest >= 8 else value

    def image(self) -> tuple[int, ...]:
        """Return a shape of an image: batch, channels, rows, columns."""
        side = self.size(4, 112)
        return (1, self.size(3, 512), side, max(2, side + int(self.random.integers(-1, 2))))

    def layout(self, shape: tuple[int, ...]) -> Layout:
        """Return a layout that networks use for a tensor of the shape."""
        plain = Layout.plain(shape)
        if len(shape) != 4:
            return plain
        layouts = [plain, plain.channels_last()]
        if shape[1] % BLOCK == 0:
            layouts.append(plain.blocked(BLOCK))
        layout = self.choose(*layouts)
        return layout.with_halo((1, 1)) if self.random.integers(4) == 0 else layout

    def tensor(self, shape: tuple[int, ...], dtype: str = "float32") -> PlacedTensor:
        """Return a tensor in a random layout."""
        return PlacedTensor(TensorType(shape, dtype), self.layout(shape))

    def like(self, tensor: PlacedTensor, dtype: str | None = None) -> PlacedTensor:
        """Return a tensor in the same layout, of another type if one is named."""
        return PlacedTensor(TensorType(tensor.shape, dtype or tensor.dtype), tensor.layout)

    def in_order_of(self, image: PlacedTensor, result: TensorType) -> PlacedTensor:
        """Return a tensor in the order of an image, without a halo."""
        layout = Layout.plain(result.shape)
        if image.layout.block > 1:
            layout = layout.blocked(BLOCK)
        elif image.layout.order != tuple(range(4)):
            layout = layout.channels_last()
        return PlacedTensor(result, layout)

    def matrix(self) -> tuple[int, ...]:
        """Return a shape of rows."""
        return (self.choose(1, 4, 12), self.size(8, 384), self.size(16, 1024))

    def case(self, kind: Kind, inputs: list[PlacedTensor], output: PlacedTensor) -> Case:
        """Return an operator as a case."""
        outputs = [output]
        plan = generated_plan(kind, inputs, outputs, self.threads)
        cost = estimate_operator_us(self.target, kind, inputs, outputs, self.threads)
        layouts = " ".join(f"{t.dtype}{list(t.shape)}:{t.layout}" for t in (*inputs, output))
        name = type(kind).__name__.lower()
        return Case(name, f"{kind.label} {layouts}", plan, (*inputs, output), cost)

    def result(self, kind: Kind, *inputs: PlacedTensor) -> PlacedTensor:
        """Return the result of a kind in a random layout."""
        (result,) = kind.types([tensor.type for tensor in inputs])
        return PlacedTensor(result, self.layout(result.shape))

    # ------------------------------------------------------------------------------- each kind

    def expression(self, inputs: int, depth: int) -> Scalar:
        """Return a random expression."""
        if depth == 0:
            return Input(int(self.random.integers(inputs)))
        inside = self.expression(inputs, depth - 1)
        match int(self.random.integers(5)):
            case 0:
                return Apply(self.choose(*_FUNCTIONS), (inside,))
            case 1:
                return Apply("max", (inside, Number(0.0)))
            case 2:
                return Apply("mul", (inside, Number(0.7)))
            case 3:
                return Apply("div", (inside, Number(3.3)))
            case _:
                second = self.expression(inputs, depth - 1)
                return Apply(self.choose("add", "mul", "sub"), (inside, second))

    def elementwise(self) -> Case:
        shape = self.choose(self.image(), self.matrix())
        first = self.tensor(shape, self.choose("float32", "float32", "uint8"))
        inputs = [
            first,
            *(self.like(first, "float32") for _ in range(int(self.random.integers(2)))),
        ]
        if self.random.integers(4) == 0:
            inputs.append(
                PlacedTensor.plain(TensorType((shape[1], *(1,) * (len(shape) - 2)), "float32"))
            )
        dtype = self.choose("float32", "float32", "float32", "uint8", "bfloat16")
        expression = self.expression(len(inputs), int(self.random.integers(1, 4)))
        kind = kinds.Elementwise(expression, dtype, "float32")
        return self.case(kind, inputs, self.like(first, dtype))

    def quantize(self) -> Case:
        x = self.tensor(self.choose(self.image(), self.matrix()))
        return self.case(kinds.Quantize((0.1,), (3,), "uint8"), [x], self.like(x, "uint8"))

    def dequantize(self) -> Case:
        x = self.tensor(self.choose(self.image(), self.matrix()), "int8")
        return self.case(kinds.Dequantize((0.1,), (3,)), [x], self.like(x, "float32"))

    def table(self) -> Case:
        x = self.tensor(self.choose(self.image(), self.matrix()), "uint8")
        return self.case(kinds.Table(tuple(range(256)), "uint8"), [x], self.like(x))

    def softmax(self) -> Case:
        shape = self.choose(self.matrix(), self.matrix(), (1, self.size(4, 64), 24, 24))
        x = self.tensor(shape)
        axis = self.choose(-1, -1, 1)
        return self.case(kinds.Softmax(axis), [x], self.like(x))

    def layernorm(self) -> Case:
        x = self.tensor(self.matrix())
        vector = PlacedTensor.plain(TensorType(x.shape[-1:], "float32"))
        return self.case(kinds.LayerNorm(-1, 1e-5), [x, vector, vector], self.like(x))

    def reduce(self) -> Case:
        dtype = self.choose("float32", "float32", "uint8")
        if self.random.integers(2):
            x, reduced = self.tensor(self.image(), dtype), self.choose((2, 3), (1,))
        else:
            x, reduced = self.tensor(self.matrix(), dtype), self.choose((2,), (1,))
        operation = self.choose("mean", "max", "sum", "argmax") if dtype == "float32" else "mean"
        reduced = reduced[:1] if operation == "argmax" else reduced
        kind = kinds.Reduce(operation, reduced, True)
        return self.case(kind, [x], self.result(kind, x))

    def pool(self) -> Case:
        taps, stride = self.choose((2, 2), (3, 2), (3, 1))
        pad = (taps - 1) // 2
        x = self.tensor(self.image(), self.choose("float32", "uint8"))
        kind = kinds.Pool(
            self.choose("max", "mean"), (taps,) * 2, (stride,) * 2, (pad,) * 2, (pad,) * 2, (1, 1)
        )
        (result,) = kind.types([x.type])
        return self.case(kind, [x], self.in_order_of(x, result))

    def transpose(self) -> Case:
        shape = self.choose((self.size(8, 256), self.size(2, 16), self.size(16, 64)), self.matrix())
        x = self.tensor(shape, self.choose("float32", "uint8"))
        kind = kinds.Transpose(self.choose((1, 0, 2), (0, 2, 1), (2, 1, 0)))
        return self.case(kind, [x], self.result(kind, x))

    def reshape(self) -> Case:
        x = self.tensor(self.image(), self.choose("float32", "uint8"))
        kind = kinds.Reshape((x.shape[1], x.shape[2] * x.shape[3]))
        return self.case(kind, [x], self.result(kind, x))

    def concat(self) -> Case:
        x = self.tensor(self.image(), self.choose("float32", "uint8"))
        inputs = [x, self.like(x)]
        kind = kinds.Concat(1)
        (result,) = kind.types([t.type for t in inputs])
        return self.case(kind, inputs, self.in_order_of(x, result))

    def slice(self) -> Case:
        x = self.tensor(self.image())
        step = self.choose(1, 1, 2)
        sizes = (1, max(1, x.shape[1] // 2), x.shape[2] // 2, x.shape[3])
        kind = kinds.Slice((0, 0, 0, 0), sizes, (1, 1, step, 1))
        return self.case(kind, [x], self.result(kind, x))

    def gather(self) -> Case:
        data = PlacedTensor.plain(
            TensorType((self.size(100, 20000), self.size(16, 768)), "float32")
        )
        indices = PlacedTensor.plain(TensorType((self.size(4, 512),), "int64"))
        kind = kinds.Gather(0)
        return self.case(kind, [data, indices], self.result(kind, data, indices))

    def resize(self) -> Case:
        shape = (1, self.size(3, 128), self.size(4, 40), self.size(4, 40))
        x = self.tensor(shape)
        mode = self.choose("nearest", "linear")
        kind = kinds.Resize((2 * shape[2], 2 * shape[3]), mode)
        return self.case(kind, [x], self.result(kind, x))

    def conversion(self) -> Case:
        shape, dtype = self.image(), self.choose("float32", "uint8")
        source, target = self.tensor(shape, dtype), self.tensor(shape, dtype)
        plan = conversion_plan(source, target, self.threads)
        cost = estimate_copy_us(self.target, source, target, self.threads)
        text = f"{dtype}{list(shape)}: {source.layout} to {target.layout}"
        return Case("conversion", text, plan, (source, target), cost)

    @property
    def makers(self) -> Mapping[str, Callable[[], Case]]:
        """Functions that make a case, by kind."""
        names = (
            *("elementwise", "quantize", "dequantize", "table", "softmax", "layernorm", "reduce"),
            *("pool", "transpose", "reshape", "concat", "slice", "gather", "resize", "conversion"),
        )
        return {name: getattr(self, name) for name in names}


def best_us(case: Case, seconds: float) -> float:
    """Return the microseconds of the fastest of many calls."""
    buffers: list[Any] = []
    for tensor in case.tensors:
        buffer = empty(max(1, tensor.layout.elements), tensor.storage_dtype)
        values = np.arange(tensor.layout.elements) % 3 + 1
        buffer.copyfrom(values.astype(tensor.storage_dtype))
        buffers.append(buffer)
    call = compile_plan(case.plan).bound(*buffers)
    call()
    started = time.perf_counter()
    call()
    # As many calls as the clock can tell apart.
    repeats = max(1, round(2e-5 / max(1e-7, time.perf_counter() - started)))
    best, end = math.inf, time.perf_counter() + seconds
    while time.perf_counter() < end:
        started = time.perf_counter()
        for _ in range(repeats):
            call()
        best = min(best, (time.perf_counter() - started) / repeats)
    return best * 1e6


Row = tuple[str, int, float, float, float, float]
"""Kind, count, 10th, 50th and 90th percentile, and the share within a factor of two."""


def table(ratios: Mapping[str, list[float]]) -> Iterator[Row]:
    """Yield a row for each kind and one for all."""
    everything = [ratio for values in ratios.values() for ratio in values]
    for kind, values in (*ratios.items(), ("all", everything)):
        low, middle, high = np.quantile(values, (0.1, 0.5, 0.9))
        share = float(np.mean([0.5 <= value <= 2.0 for value in values]))
        yield kind, len(values), float(low), float(middle), float(high), share


def main() -> None:
    """Run the cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=20, help="cases of each kind")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", help="only this kind, every case printed")
    parser.add_argument("--seconds", type=float, default=0.05, help="seconds of each case")
    parser.add_argument("--json", type=Path, help="file for every case")
    options = parser.parse_args()
    cases = Cases(options.seed, options.threads, open_target(load_hardware_spec(_TARGET)))
    makers = cases.makers if options.kind is None else {options.kind: cases.makers[options.kind]}
    ratios: dict[str, list[float]] = {}
    records: list[dict[str, Any]] = []
    for name, make in makers.items():
        for _ in range(options.cases):
            try:
                case = make()
            except CpembedError as error:
                print(f"{name}: {error}")
                continue
            measured = best_us(case, options.seconds)
            ratio = case.estimated_us / measured
            ratios.setdefault(name, []).append(ratio)
            records.append(
                {"kind": name, "text": case.text, "us": measured, "estimate": case.estimated_us}
            )
            if options.kind is not None or not 0.25 <= ratio <= 4.0:
                print(f"{ratio:6.2f} {measured:10.2f} us  {name}: {case.text}")
    print(f"{'kind':12} {'cases':>6} {'10%':>6} {'50%':>6} {'90%':>6}  within 2x")
    for kind, count, low, middle, high, share in table(ratios):
        print(f"{kind:12} {count:6} {low:6.2f} {middle:6.2f} {high:6.2f}  {share:6.0%}")
    if options.json is not None:
        options.json.write_text(json.dumps(records, indent=1) + "\n")


if __name__ == "__main__":
    main()
