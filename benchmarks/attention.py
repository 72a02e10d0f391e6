"""Compare attention with PyTorch's and ONNX Runtime's, each in a process of its own.

    python -m benchmarks.attention [--cases bert:128 decoder:4096:bfloat16 ...] [--threads 1 2]

A case is a model, a number of tokens and perhaps a type: the heads of BERT-base, those of ViT-B, a
decoder with 32 heads of queries and 8 of keys (``decoder``: all tokens at once, causal; ``decode``:
one row with as many keys); ``float32`` unless it is ``bfloat16`` or ``int8``. Of floats the other
runtime is PyTorch's scaled_dot_product_attention; of ``int8`` it is ONNX Runtime on the same model,
with quantizations around both products. The processes take turns, and a time is the median of a
case's rounds. Results are compared. PyTorch is looked for as Python does, so that ``PYTHONPATH``
may name it.

Writes ``attention.json`` and ``attention.md`` into ``--output``, by default beside this file.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.documents import write_document
from cpembed.files import write_whole
from cpembed.runtime.measurement.environment import provenance, provenance_lines

FOLDER = Path(__file__).resolve().parent
RUNTIMES = ("cpembed", "peer")
TOLERANCE = {"float32": 2e-5, "bfloat16": 2.0**-6, "int8": 2.0}
"""Largest differences: of floats relative to the largest result, of integers in steps."""
ROUND_SECONDS = 0.05
Array = NDArray[Any]


@dataclass(frozen=True)
class Shape:
    """Heads of an attention; ``rows`` is 0 for as many as there are tokens."""

    heads: int
    key_heads: int
    depth: int
    causal: bool = False
    rows: int = 0


MODELS = {
    "bert": Shape(12, 12, 64),
    "vit": Shape(12, 12, 64),
    "decoder": Shape(32, 8, 128, causal=True),
    "decode": Shape(32, 8, 128, rows=1),
}
CASES = (
    *(f"bert:{tokens}" for tokens in (128, 256, 512)),
    "vit:197",
    *(f"{model}:{tokens}" for model in ("decoder", "decode") for tokens in (128, 512, 1024, 4096)),
    *(f"{case}:bfloat16" for case in ("bert:128", "vit:197", "decoder:1024", "decode:1024")),
    *(f"{case}:int8" for case in ("bert:128", "bert:512", "vit:197")),
)


def arrays(case: str) -> tuple[Shape, list[Array]]:
    """Return the heads of a case, and its query, key and value in the order of ``bhsd``."""
    model, tokens, *_ = case.split(":")
    shape, random = MODELS[model], np.random.default_rng(0)
    rows = shape.rows or int(tokens)
    sizes = [(shape.heads, rows)] + 2 * [(shape.key_heads, int(tokens))]
    return shape, [
        random.standard_normal((1, *size, shape.depth)).astype(np.float32) for size in sizes
    ]


def type_of(case: str) -> str:
    """Return the element type of a case.

    >>> type_of("bert:128"), type_of("vit:197:int8")
    ('float32', 'int8')
    """
    return [*case.split(":"), "float32"][2]


def quantized_model(case: str, path: Path) -> dict[str, Array]:
    """Write attention on bytes as an ONNX model, and return its inputs."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    shape, tensors = arrays(case)
    constants: list[Any] = []
    nodes: list[Any] = []

    def constant(value: Any, dtype: str) -> str:
        constants.append(numpy_helper.from_array(np.asarray(value, dtype), f"c{len(constants)}"))
        return constants[-1].name

    def node(operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"t{len(nodes)}"
        nodes.append(helper.make_node(operator, inputs, [name], name, **attributes))
        return name

    def parameters(scale: float, zero: int) -> tuple[str, str]:
        return constant(scale, "float32"), constant(zero, "uint8")

    def rounded(x: str, scale: float, zero: int) -> str:
        pair = parameters(scale, zero)
        return node("DequantizeLinear", node("QuantizeLinear", x, *pair), *pair)

    inputs = {
        name: np.clip(np.rint(array * 30 + 128), 0, 255).astype(np.uint8)
        for name, array in zip("qkv", tensors, strict=True)
    }
    query, key, value = (node("DequantizeLinear", n, *parameters(1 / 30, 128)) for n in "qkv")
    scores = node("MatMul", query, node("Transpose", key, perm=[0, 1, 3, 2]))
    scores = rounded(scores, math.sqrt(shape.depth) / 25, 128)
    scores = node("Mul", scores, constant(1 / math.sqrt(shape.depth), "float32"))
    weights = rounded(node("Softmax", scores, axis=-1), 1 / 255, 0)
    result = node("QuantizeLinear", node("MatMul", weights, value), *parameters(1 / 60, 128))
    described = [
        helper.make_tensor_value_info(name, TensorProto.UINT8, array.shape)
        for name, array in inputs.items()
    ]
    output = helper.make_tensor_value_info(result, TensorProto.UINT8, None)
    graph = helper.make_graph(nodes, "attention", described, [output], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    path.write_bytes(onnx.shape_inference.infer_shapes(model).SerializeToString())
    return inputs


def run_quantized(runtime: str, case: str, threads: int) -> tuple[str, Callable[[], Array]]:
    """Return the version and the call of a runtime on the quantized model.

    Parameters
    ----------
    runtime, case : str
        Names of the runtime and of the case.
    threads : int
        Number of threads.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "attention.onnx"
        inputs = quantized_model(case, path)
        if runtime == "peer":
            import onnxruntime as module

            onnxruntime: Any = module
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = threads
            session = onnxruntime.InferenceSession(path, options)
            return f"ONNX Runtime {onnxruntime.__version__}", lambda: session.run(None, inputs)[0]
        os.environ["TVM_NUM_THREADS"] = str(threads)
        from importlib.metadata import version

        import cpembed

        compiled = cpembed.compile(path)
    return f"{version('cpembed')} native", lambda: next(iter(compiled.run(inputs).values()))


def run_cpembed(case: str, threads: int) -> tuple[str, Callable[[], Array]]:
    """Compile the kernel of a case; return the target and the call."""
    if type_of(case) == "int8":
        return run_quantized("cpembed", case, threads)
    os.environ["TVM_NUM_THREADS"] = str(threads)
    from importlib.metadata import version

    from cpembed.codegen.plan import storage_dtype
    from cpembed.codegen.runtime import compile_plan, empty, from_array
    from cpembed.driver.matching import network_units
    from cpembed.graph.kinds import Attention, TensorType
    from cpembed.ir.dtypes import as_stored, numpy_dtype
    from cpembed.network.attention import AttentionChoice
    from cpembed.network.kernel_cache import Cache
    from cpembed.network.operators import PlacedTensor
    from cpembed.network.product_kernels import ProductKernels
    from cpembed.targets.registry import native_target, open_target

    shape, tensors = arrays(case)
    dtype = type_of(case)
    tensors = [array.astype(numpy_dtype(dtype)) for array in tensors]
    causal = 0 if shape.causal else None
    kind = Attention(1 / math.sqrt(shape.depth), causal=causal, factors=dtype, dtype=dtype)
    types = tuple(map(TensorType.of_array, tensors))
    spec = native_target([dtype, dtype])
    choice = AttentionChoice(kind, types, ProductKernels(network_units(spec), Cache(None)), threads)
    (result,) = kind.types(types)
    placed = [PlacedTensor.plain(t) for t in types]
    kernel = choice.kernel(open_target(spec), placed, [PlacedTensor.plain(result)])
    output = empty(result.elements, storage_dtype(dtype))
    scratch = [empty(memory.elements, memory.dtype) for memory in kernel.planned.scratch]
    function = compile_plan(kernel.planned.plan)
    call = function.bound(*(from_array(as_stored(array)) for array in tensors), output, *scratch)

    def run() -> Array:
        call()
        return output.numpy().view(numpy_dtype(dtype)).reshape(result.shape)

    return f"{version('cpembed')} {spec.name} {kernel.tiles.rows}x{kernel.tiles.keys}", run


def run_peer(case: str, threads: int) -> tuple[str, Callable[[], Array]]:
    """Return the version of the other runtime and the call: PyTorch, of int8 ONNX Runtime."""
    if type_of(case) == "int8":
        return run_quantized("peer", case, threads)
    import torch as module

    # PyTorch is optional, and its types are not all there.
    torch: Any = module
    torch.set_num_threads(threads)
    shape, tensors = arrays(case)
    dtype = getattr(torch, type_of(case))
    query, key, value = (torch.from_numpy(array).to(dtype) for array in tensors)
    attend = torch.nn.functional.scaled_dot_product_attention
    grouped = shape.heads != shape.key_heads

    def run() -> Array:
        with torch.inference_mode():
            result = attend(query, key, value, is_causal=shape.causal, enable_gqa=grouped)
            # NumPy has no bfloat16.
            return (result.float() if dtype is torch.bfloat16 else result).numpy()

    return f"PyTorch {torch.__version__}", run


def serve(runtime: str, case: str, threads: int, result: Path) -> None:
    """Write a case's result, then answer each number of calls with the seconds of one.

    Parameters
    ----------
    runtime, case : str
        Names of the runtime and of the case.
    threads : int
        Number of threads.
    result : Path
        File of the result, which is written once.
    """
    version, run = (run_cpembed if runtime == "cpembed" else run_peer)(case, threads)
    np.save(result, run().astype(np.float32))
    print(json.dumps({"version": version}), flush=True)
    for line in sys.stdin:
        count = int(line)
        started = time.perf_counter()
        for _ in range(count):
            run()
        print(json.dumps({"seconds": (time.perf_counter() - started) / count}), flush=True)


class Process:
    """Runtime of a case in a process of its own."""

    def __init__(self, runtime: str, case: str, threads: int, result: Path) -> None:
        self.name = f"{runtime} of {case}"
        command = [sys.executable, "-m", "benchmarks.attention", "--serve", runtime]
        command += ["--cases", case, "--threads", str(threads), "--result", str(result)]
        self.child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=FOLDER.parent
        )
        self.version = str(self.answer()["version"])

    def answer(self) -> dict[str, Any]:
        assert self.child.stdout is not None
        line = self.child.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended early")
        return json.loads(line)

    def seconds(self, count: int) -> float:
        """Return the seconds of one of some calls."""
        assert self.child.stdin is not None
        self.child.stdin.write(f"{count}\n")
        self.child.stdin.flush()
        return float(self.answer()["seconds"])

    def close(self) -> None:
        assert self.child.stdin is not None
        self.child.stdin.close()
        self.child.wait()


def measured(case: str, threads: int, rounds: int) -> dict[str, Any]:
    """Return the row of a case: medians of both runtimes that take turns.

    Parameters
    ----------
    case : str
        Name of the case.
    threads : int
        Number of threads of each runtime.
    rounds : int
        Number of rounds.
    """
    with tempfile.TemporaryDirectory() as folder:
        results = {runtime: Path(folder) / f"{runtime}.npy" for runtime in RUNTIMES}
        processes = {
            runtime: Process(runtime, case, threads, path) for runtime, path in results.items()
        }
        result, reference = (np.load(path) for path in results.values())
    error = float(np.abs(result - reference).max())
    is_whole = type_of(case) == "int8"
    if error > TOLERANCE[type_of(case)] * (1.0 if is_whole else float(np.abs(reference).max())):
        raise SystemExit(f"{case}: results differ by {error}")
    counts = {
        runtime: max(1, int(ROUND_SECONDS / process.seconds(1)))
        for runtime, process in processes.items()
    }
    times: dict[str, list[float]] = {runtime: [] for runtime in RUNTIMES}
    for number in range(rounds):
        order = RUNTIMES if number % 2 else RUNTIMES[::-1]
        for runtime in order:
            times[runtime].append(processes[runtime].seconds(counts[runtime]))
    versions = {runtime: process.version for runtime, process in processes.items()}
    for process in processes.values():
        process.close()
    medians = {runtime: 1e6 * statistics.median(values) for runtime, values in times.items()}
    return {
        "case": case,
        "threads": threads,
        "us": {runtime: round(value, 1) for runtime, value in medians.items()},
        "ratio": round(medians["peer"] / medians["cpembed"], 3),
        "max_difference": error,
        "versions": versions,
    }


def markdown(document: Mapping[str, Any]) -> str:
    """Return the table of a document's rows."""
    rows = document["rows"]
    lines = [
        "# Attention",
        "",
        *provenance_lines(document, "medians of rounds that take turns"),
        "",
        "| case | threads | cpembed | peer | peer's time | peer / cpembed |",
        "| --- | --: | --: | --- | --: | --: |",
    ]
    lines += [
        f"| {row['case']} | {row['threads']} | {row['us']['cpembed']:,.0f} us | "
        f"{row['versions']['peer']} | {row['us']['peer']:,.0f} us | {row['ratio']:.2f} |"
        for row in rows
    ]
    mean = math.exp(statistics.fmean(math.log(row["ratio"]) for row in rows))
    return "\n".join([*lines, "", f"Geometric mean: {mean:.2f}."]) + "\n"


def main() -> None:
    """Measure the cases that the command line names."""
    parser = argparse.ArgumentParser(description="Compare attention with other runtimes'.")
    parser.add_argument("--cases", nargs="+", default=CASES)
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--output", type=Path, default=FOLDER)
    parser.add_argument("--serve", choices=RUNTIMES, help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.cases[0], options.threads[0], options.result)
        return
    rows: list[dict[str, Any]] = []
    for threads in options.threads:
        for case in options.cases:
            rows.append(measured(case, threads, options.rounds))
            print(rows[-1]["case"], threads, rows[-1]["us"], rows[-1]["ratio"], flush=True)
            document = {**provenance(), "rows": rows}
            write_document(options.output / "attention.json", document)
            write_whole(options.output / "attention.md", markdown(document))


if __name__ == "__main__":
    main()
