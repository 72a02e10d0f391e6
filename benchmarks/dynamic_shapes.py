"""Check and measure a library for ranges of sizes beside libraries for single sizes.

    python -m benchmarks.dynamic_shapes MODEL --shape batch=1..16 --shape sequence=1..512

First the outputs at both ends of the ranges and at random sizes, ``--check`` in all, are compared
with ONNX Runtime's (``.onnx``) or the definitions. Then, at ``--sizes`` of these sizes, a library
for just that size is built too. Each library runs in a process of its own, and they take turns,
every other round backwards; the ratio of a round is the time with ranges over that of the single
size, and the median of rounds is reported. A call is counted from arrays of numpy to arrays of
numpy, by wall time or, on a machine with other work, by the time of one thread's processor
(``--clock process --threads 1``). Writes ``dynamic_shapes.json`` into ``--output``; exit code 1 if
a size is wrong.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.documents import write_document
from cpembed.cli.model_options import parsed_shapes
from cpembed.export.library import Library
from cpembed.export.loader import Library as OpenLibrary
from cpembed.frontends import load_network
from cpembed.graph.family import Family, Sizes
from cpembed.graph.graph import Array, Graph, evaluate
from cpembed.ir.dtypes import as_stored
from cpembed.network.build import compile_network
from cpembed.network.family import CompiledFamily, FamilyPlan, Ranges, compile_family
from cpembed.runtime.measurement.environment import provenance

FOLDER = Path(__file__).resolve().parent
Row = dict[str, Any]
CLOCKS: Mapping[str, Callable[[], float]] = {
    "wall": time.perf_counter,
    "process": time.process_time,
}

# Largest error relative to the largest magnitude of an output that is taken for another order of
# sums.
_TOLERANCE = 2e-3


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--target", default="native")
    parser.add_argument("--shape", action="append", default=[], metavar="NAME=SIZES")
    parser.add_argument("--loss", type=float, default=Ranges().loss)
    parser.add_argument("--instances", type=int, default=Ranges().instances)
    parser.add_argument("--sizes", type=int, default=12)
    parser.add_argument("--check", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--round-ms", type=float, default=40.0)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--clock", choices=sorted(CLOCKS), default="wall")
    parser.add_argument("--highest", type=int, default=1000, help="largest integer of an input")
    parser.add_argument("--output", type=Path, default=FOLDER)
    options = parser.parse_args()
    family = load_network(options.model, parsed_shapes(options.shape))
    if not isinstance(family, Family):
        parser.error("give a range: --shape batch=1..16")
    with tempfile.TemporaryDirectory() as scratch:
        started = time.perf_counter()
        ranges = Ranges(options.loss, options.instances)
        plans: list[FamilyPlan] = []
        compiled = compile_family(
            family,
            options.target,
            Path(scratch) / "ranges",
            ranges=ranges,
            check=lambda plan, _: plans.append(plan),
        )
        seconds = time.perf_counter() - started
        errors = _errors(family, compiled, options)
        rows = _rows(family, compiled, options) if options.sizes else []
        library = sum(path.stat().st_size for path in compiled.library.folder.iterdir())
    wrong = {family.text(at): error for at, error in errors.items() if not error <= _TOLERANCE}
    ratios = [row["ratio"] for row in rows] or [float("nan")]
    document = {
        "model": options.model.name,
        "target": compiled.target,
        "ranges": family.ranges_text,
        "instances": [family.named(p.instance.sizes) for p in plans[0].instances],
        "predicted_loss": {"largest": plans[0].loss.largest, "mean": plans[0].loss.mean},
        "built_s": round(seconds, 1),
        "library_bytes": library,
        "checked_sizes": len(errors),
        "wrong_sizes": wrong,
        "largest_error": max(errors.values(), default=None),
        "clock": options.clock,
        "threads": options.threads,
        "largest_ratio": max(ratios),
        "mean_ratio": statistics.fmean(ratios),
        "rows": rows,
        **provenance(),
    }
    write_document(options.output / "dynamic_shapes.json", document)
    print(
        f"{len(errors)} sizes compared, {len(wrong)} wrong; largest error "
        f"{document['largest_error']}; largest ratio {max(ratios):.3f}, mean "
        f"{statistics.fmean(ratios):.3f}"
    )
    return 1 if wrong else 0


def _inputs(graph: Graph, seed: int, highest: int) -> dict[str, Array]:
    """Return random inputs; integers are indices or masks, up to ``highest``.

    The first element of each row of a mask is no filling: a softmax of none is NaN in some runtimes
    and not in others.
    """
    random = np.random.default_rng(seed)
    inputs: dict[str, Array] = {}
    for name, kind in graph.inputs.items():
        if kind.dtype.startswith("float"):
            inputs[name] = random.normal(size=kind.shape).astype(kind.dtype)
            continue
        is_mask = "mask" in name or kind.dtype == "bool"
        inputs[name] = random.integers(0, 2 if is_mask else highest, kind.shape).astype(kind.dtype)
        if is_mask and kind.shape:
            inputs[name][..., 0] = 1
    return inputs


# -- correctness ----------------------------------------------------------------------------------


def _errors(
    family: Family, compiled: CompiledFamily, options: argparse.Namespace
) -> dict[Sizes, float]:
    """Return the largest error at each size, relative to the largest magnitude of an output."""
    reference = _reference(family, options.model)
    errors: dict[Sizes, float] = {}
    with compiled.open(options.threads) as running:
        for number, sizes in enumerate(family.random_sizes(options.check, 2)):
            inputs = _inputs(family.graph(sizes), number, options.highest)
            expected, actual = reference(sizes, inputs), running.run(inputs)
            errors[sizes] = max(
                errors.get(sizes, 0.0), *(_error(actual[n], array) for n, array in expected.items())
            )
    return errors


def _reference(
    family: Family, model: Path
) -> Callable[[Sizes, Mapping[str, Array]], Mapping[str, Array]]:
    """Return the function that computes what outputs should be."""
    if model.suffix != ".onnx":
        return lambda sizes, inputs: evaluate(family.graph(sizes), inputs, lambda name: False)
    import onnxruntime

    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda _, inputs: dict(zip(names, session.run(None, dict(inputs)), strict=True))


def _error(actual: Array, expected: Array) -> float:
    if actual.shape != expected.shape:
        return float("inf")
    a, b = actual.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):
        distances = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
    size = float(np.abs(b[np.isfinite(b)]).max(initial=0.0)) or 1.0
    return float(np.nan_to_num(distances, nan=np.inf).max(initial=0.0)) / size


# -- times ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Timer:
    """Process that has loaded a library, and times it on request."""

    process: Any
    connection: Connection

    @classmethod
    def started(cls, library: Library, threads: int, clock: str) -> Timer:
        """Start a process for a library."""
        context = multiprocessing.get_context("spawn")
        requests, replies = context.Pipe()
        arguments = (replies, library.path, library.name, threads, clock)
        process = context.Process(target=_serve, args=arguments, daemon=True)
        process.start()
        return cls(process, requests)

    def us(self, inputs: Mapping[str, Array] | None, milliseconds: float) -> float:
        """Return the microseconds of a call, on average over a round; None: the inputs before."""
        self.connection.send((inputs, milliseconds))
        return self.connection.recv()

    def close(self) -> None:
        """End the process."""
        self.connection.send(None)
        self.process.join()


def _serve(connection: Connection, path: Path, name: str, threads: int, clock: str) -> None:
    now = CLOCKS[clock]
    inputs: Sequence[Array] = ()
    with OpenLibrary(path, name, threads=threads) as library:
        while (request := connection.recv()) is not None:
            arrays, milliseconds = request
            if arrays is not None:
                inputs = [arrays[info.name] for info in library.inputs]
            began, started, count = time.perf_counter(), now(), 0
            while not count or (time.perf_counter() - began) * 1e3 < milliseconds:
                library.run(*inputs)
                count += 1
            connection.send((now() - started) * 1e6 / count)


def _rows(family: Family, compiled: CompiledFamily, options: argparse.Namespace) -> list[Row]:
    """Return the times at some sizes."""
    sizes = list(family.random_sizes(options.sizes, 1))
    ranges = Timer.started(compiled.library, options.threads, options.clock)
    try:
        return [_row(family, ranges, at, options) for at in sizes]
    finally:
        ranges.close()


def _row(family: Family, ranges: Timer, sizes: Sizes, options: argparse.Namespace) -> Row:
    """Return the times of a run with ranges and of one with just its sizes."""
    graph = family.graph(sizes)
    inputs = _inputs(graph, 0, options.highest)
    with tempfile.TemporaryDirectory() as folder:
        network = compile_network(graph, options.target, Path(folder))
        single = Timer.started(network.library, options.threads, options.clock)
        timers = {"ranges": ranges, "single": single}
        try:
            for timer in timers.values():
                timer.us({name: as_stored(array) for name, array in inputs.items()}, 0)
                timer.us(None, 0)
            rounds: list[dict[str, float]] = []
            for number in range(options.rounds):
                order = list(timers) if number % 2 else list(reversed(timers))
                rounds.append({name: timers[name].us(None, options.round_ms) for name in order})
        finally:
            single.close()
    ratio = statistics.median(times["ranges"] / times["single"] for times in rounds)
    medians = {n: round(statistics.median(times[n] for times in rounds), 2) for n in timers}
    print(f"{family.text(sizes)}: {ratio:.3f} {medians}", flush=True)
    return {"sizes": family.named(sizes), "ratio": ratio, "us": medians}


if __name__ == "__main__":
    sys.exit(main())
