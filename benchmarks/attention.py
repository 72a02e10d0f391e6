"""Compare attention with PyTorch's scaled_dot_product_attention, each in a process of its own.

    python -m benchmarks.attention [--cases bert:128 decoder:4096 ...] [--threads 1 2] [--rounds 15]

A case is a model and a number of tokens: the heads of BERT-base, those of ViT-B, a decoder with 32
heads of queries and 8 of keys (``decoder``: all tokens at once, causal; ``decode``: one row with as
many keys). All is float32. The processes take turns, and a time is the median of a case's rounds.
Results are compared. PyTorch is looked for as Python does, so that ``PYTHONPATH`` may name it.

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
RUNTIMES = ("cpembed", "torch")
TOLERANCE = 2e-5
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
)


def arrays(case: str) -> tuple[Shape, list[Array]]:
    """Return the heads of a case, and its query, key and value in the order of ``bhsd``."""
    model, _, tokens = case.partition(":")
    shape, random = MODELS[model], np.random.default_rng(0)
    rows = shape.rows or int(tokens)
    sizes = [(shape.heads, rows)] + 2 * [(shape.key_heads, int(tokens))]
    return shape, [
        random.standard_normal((1, *size, shape.depth)).astype(np.float32) for size in sizes
    ]


def run_cpembed(case: str, threads: int) -> tuple[str, Callable[[], Array]]:
    """Compile the kernel of a case; return the target and the call."""
    os.environ["TVM_NUM_THREADS"] = str(threads)
    from importlib.metadata import version

    from cpembed.codegen.runtime import compile_plan, empty, from_array
    from cpembed.driver.matching import network_units
    from cpembed.graph.kinds import Attention, TensorType
    from cpembed.network.attention import AttentionChoice
    from cpembed.network.kernel_cache import Cache
    from cpembed.network.operators import PlacedTensor
    from cpembed.network.product_kernels import ProductKernels
    from cpembed.targets.registry import native_target, open_target

    shape, tensors = arrays(case)
    kind = Attention(1 / math.sqrt(shape.depth), causal=0 if shape.causal else None)
    types = tuple(map(TensorType.of_array, tensors))
    spec = native_target(["float32", "float32"])
    choice = AttentionChoice(kind, types, ProductKernels(network_units(spec), Cache(None)), threads)
    (result,) = kind.types(types)
    placed = [PlacedTensor.plain(t) for t in types]
    kernel = choice.kernel(open_target(spec), placed, [PlacedTensor.plain(result)])
    output = empty(result.elements, "float32")
    scratch = [empty(memory.elements, memory.dtype) for memory in kernel.planned.scratch]
    function = compile_plan(kernel.planned.plan)
    call = function.bound(*map(from_array, tensors), output, *scratch)

    def run() -> Array:
        call()
        return output.numpy().reshape(result.shape)

    return f"{version('cpembed')} {spec.name} {kernel.tiles.rows}x{kernel.tiles.keys}", run


def run_torch(case: str, threads: int) -> tuple[str, Callable[[], Array]]:
    """Return the version of PyTorch and the call."""
    import torch as module

    # PyTorch is optional, and its types are not all there.
    torch: Any = module
    torch.set_num_threads(threads)
    shape, tensors = arrays(case)
    query, key, value = map(torch.from_numpy, tensors)
    attend = torch.nn.functional.scaled_dot_product_attention
    grouped = shape.heads != shape.key_heads

    def run() -> Array:
        with torch.inference_mode():
            return attend(query, key, value, is_causal=shape.causal, enable_gqa=grouped).numpy()

    return torch.__version__, run


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
    version, run = (run_cpembed if runtime == "cpembed" else run_torch)(case, threads)
    np.save(result, run())
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
    if error > TOLERANCE * float(np.abs(reference).max()):
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
        "ratio": round(medians["torch"] / medians["cpembed"], 3),
        "max_difference": error,
        "versions": versions,
    }


def markdown(document: Mapping[str, Any]) -> str:
    """Return the table of a document's rows."""
    rows = document["rows"]
    lines = [
        "# Attention",
        "",
        *provenance_lines(document, "float32, medians of rounds that take turns"),
        "",
        "| case | threads | cpembed | PyTorch | PyTorch / cpembed |",
        "| --- | --: | --: | --: | --: |",
    ]
    lines += [
        f"| {row['case']} | {row['threads']} | {row['us']['cpembed']:,.0f} us | "
        f"{row['us']['torch']:,.0f} us | {row['ratio']:.2f} |"
        for row in rows
    ]
    mean = math.exp(statistics.fmean(math.log(row["ratio"]) for row in rows))
    return "\n".join([*lines, "", f"Geometric mean: {mean:.2f}."]) + "\n"


def main() -> None:
    """Measure the cases that the command line names."""
    parser = argparse.ArgumentParser(description="Compare attention with PyTorch's.")
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
