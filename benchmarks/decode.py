"""Measure a stack of layers with int4 weights, one row of activations, against reading its bytes.

    python -m benchmarks.decode [--weights 1e9] [--threads 2] [--accuracy-level 4] [--seconds 10]
    python -m benchmarks.decode --keys 4096 [--type bfloat16] [--threads 2] [--seconds 10]

The stack is a chain of MatMulNBits of a decoder's shapes, of about so many weights in total, 1e7 by
default. Calls of the library, of ONNX Runtime on the same file, and of a sum over as many bytes
with as many threads alternate, each in this process; the median of each counts. A stack that fits a
cache is read from it: give more weights than that for the time of memory.

With ``--keys`` it is attention of one row instead, of the decoder of ``benchmarks.attention``,
against reading its keys and values.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

BLOCK = 32
"""Columns of a group."""

_SHAPES = ((4, 1), (1, 4), (1, 1), (1, 1))
"""Rows and columns of the products of a layer, in units of its width."""


@dataclass(frozen=True)
class Stack:
    """Chain of products.

    Attributes
    ----------
    width, layers : int
        Elements of a row of activations between layers, and number of layers.
    """

    width: int
    layers: int

    @classmethod
    def of_weights(cls, weights: float) -> Stack:
        """Return a stack of about so many weights, of 4 to 16 layers if they are many."""
        units = sum(rows * columns for rows, columns in _SHAPES)
        width = 4096
        while width > 256 and 4 * units * width * width > weights:
            width //= 2
        return cls(width, max(1, round(weights / (units * width * width))))

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """Rows and columns of each product."""
        layer = [(rows * self.width, columns * self.width) for rows, columns in _SHAPES]
        return layer * self.layers

    @property
    def weights(self) -> int:
        return sum(rows * columns for rows, columns in self.sizes)

    @property
    def bytes(self) -> int:
        """Bytes of codes and scales."""
        return self.weights // 2 + 4 * self.weights // BLOCK


def save(stack: Stack, path: Path, level: int) -> None:
    """Write the stack as an ONNX file with its weights beside it.

    Parameters
    ----------
    stack : Stack
    path : Path
    level : int
        Accuracy level of the products.
    """
    import onnx
    from onnx import helper, numpy_helper

    random = np.random.default_rng(0)
    nodes: list[Any] = []
    constants: list[Any] = []
    tensor = "x"
    for number, (rows, columns) in enumerate(stack.sizes):
        packed = random.integers(0, 256, (rows, columns // BLOCK, BLOCK // 2), np.uint8)
        scale = 0.2 / np.sqrt(columns)
        scales = random.uniform(0.5 * scale, 1.5 * scale, rows * columns // BLOCK)
        constants += [
            numpy_helper.from_array(packed, f"w{number}"),
            numpy_helper.from_array(scales.astype(np.float32), f"s{number}"),
        ]
        output = f"y{number}"
        nodes.append(
            helper.make_node(
                "MatMulNBits",
                [tensor, f"w{number}", f"s{number}"],
                [output],
                domain="com.microsoft",
                K=columns,
                N=rows,
                bits=4,
                block_size=BLOCK,
                accuracy_level=level,
            )
        )
        tensor = output
    types = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, (1, size))
        for name, size in (("x", stack.width), (tensor, stack.sizes[-1][0]))
    ]
    graph = helper.make_graph(nodes, "decode", types[:1], types[1:], constants)
    versions = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=versions, ir_version=10)
    onnx.save_model(
        model, str(path), save_as_external_data=True, location=f"{path.name}.data",
        size_threshold=1024,
    )  # fmt: skip


def reader(size: int, threads: int) -> Callable[[], object]:
    """Return a function that reads so many bytes once, on several threads.

    Parameters
    ----------
    size : int
    threads : int
    """
    memory = np.ones(size // 8, np.int64)
    parts = np.array_split(memory, threads)
    pool = ThreadPoolExecutor(threads)
    # numpy's maximum reads with vectors, and releases the interpreter.
    return lambda: list(pool.map(np.max, parts))


def contenders(path: Path, stack: Stack, threads: int, folder: Path) -> dict[str, Any]:
    """Return the functions to time by name.

    Parameters
    ----------
    path : Path
        File of the stack.
    stack : Stack
    threads : int
    folder : Path
        Folder of the library.
    """
    import cpembed

    x = np.random.default_rng(1).standard_normal((1, stack.width)).astype(np.float32)
    network = cpembed.compile(path, "native", folder=folder, threads=threads)
    functions: dict[str, Any] = {
        "read": reader(stack.bytes, threads),
        "cpembed": lambda: network.library.run(x),
    }
    try:
        import onnxruntime
    except ImportError:
        return functions
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(path), options)
    functions["onnxruntime"] = lambda: session.run(None, {"x": x})
    (result,), (expected,) = functions["cpembed"](), functions["onnxruntime"]()
    error = float(np.abs(result - expected).max() / np.abs(expected).max())
    if error > 0.05:
        raise SystemExit(f"results differ by {error:.2g} of the largest")
    return functions


def attention_contenders(case: str, threads: int) -> tuple[int, dict[str, Any]]:
    """Return the bytes of keys and values of a case, and the functions to time by name."""
    from benchmarks.attention import arrays, run_cpembed, type_of

    _, (_, *cache) = arrays(case)
    itemsize = 2 if type_of(case) == "bfloat16" else 4
    size = itemsize * sum(array.size for array in cache)
    _, run = run_cpembed(case, threads)
    return size, {"read": reader(size, threads), "cpembed": run}


def measured(functions: dict[str, Any], seconds: float) -> dict[str, float]:
    """Return the median milliseconds of functions that are called in turn.

    Parameters
    ----------
    functions : dict of str to callable
    seconds : float
        Seconds for all calls.
    """
    times: dict[str, list[float]] = {name: [] for name in functions}
    for function in functions.values():
        function()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times["read"]) < 3:
        for name, function in functions.items():
            started = time.perf_counter()
            function()
            times[name].append(1e3 * (time.perf_counter() - started))
    return {name: statistics.median(values) for name, values in times.items()}


def compared(times: Mapping[str, float], size: int) -> dict[str, Any]:
    """Return the times of a document, and their ratios to that of reading so many bytes."""
    return {
        "milliseconds": {name: round(value, 4) for name, value in times.items()},
        "of_reading": {n: round(t / times["read"], 3) for n, t in times.items() if n != "read"},
        "read_gb_per_s": round(size / times["read"] / 1e6, 2),
    }


def main() -> None:
    """Measure and print one stack, or one attention."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", type=float, default=1e7, help="about how many weights")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--accuracy-level", type=int, default=0, help="4: activations in int8")
    parser.add_argument("--seconds", type=float, default=10.0, help="time of all calls")
    parser.add_argument("--keys", type=int, help="attention of one row with so many keys")
    parser.add_argument("--type", choices=("float32", "bfloat16"), default="float32")
    arguments = parser.parse_args()
    os.environ["TVM_NUM_THREADS"] = str(arguments.threads)
    if arguments.keys:
        case = f"decode:{arguments.keys}:{arguments.type}"
        size, functions = attention_contenders(case, arguments.threads)
        described = {"case": case, "bytes": size, "threads": arguments.threads}
        print(json.dumps(described | compared(measured(functions, arguments.seconds), size)))
        return
    stack = Stack.of_weights(arguments.weights)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "decode.onnx"
        save(stack, path, arguments.accuracy_level)
        functions = contenders(path, stack, arguments.threads, Path(name) / "library")
        times = measured(functions, arguments.seconds)
    document = {
        "width": stack.width,
        "layers": stack.layers,
        "weights": stack.weights,
        "bytes": stack.bytes,
        "threads": arguments.threads,
        "accuracy_level": arguments.accuracy_level,
    }
    print(json.dumps(document | compared(times, stack.bytes)))


if __name__ == "__main__":
    main()
