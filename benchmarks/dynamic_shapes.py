"""Measure a library for ranges of sizes beside libraries for single sizes.

    python -m benchmarks.dynamic_shapes MODEL --target T --shape batch=1..16 --shape sequence=1..512

At both ends of the ranges and at random sizes, ``--sizes`` in all, a library for just that size is
built too. Both run in one process and take turns, every other round backwards; the ratio of a round
is the time with ranges over that of the single size, and the median of rounds is reported. A call
is counted from arrays of numpy to arrays of numpy. ``--check N`` compares the outputs at N random
sizes with ONNX Runtime before. Writes ``dynamic_shapes.json`` into ``--output``.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.documents import write_document
from cpembed.cli.model_options import parsed_shapes
from cpembed.frontends import load_network
from cpembed.graph.family import Family, Sizes
from cpembed.graph.graph import Array, Graph
from cpembed.network.build import compile_network
from cpembed.network.family import Ranges, RunningFamily, compile_family
from cpembed.runtime.measurement.environment import provenance

FOLDER = Path(__file__).resolve().parent
Row = dict[str, Any]


def main() -> None:
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
    parser.add_argument("--highest", type=int, default=1000, help="largest integer of an input")
    parser.add_argument("--output", type=Path, default=FOLDER)
    options = parser.parse_args()
    family = load_network(options.model, parsed_shapes(options.shape))
    if not isinstance(family, Family):
        parser.error("give a range: --shape batch=1..16")
    with tempfile.TemporaryDirectory() as scratch:
        started = time.perf_counter()
        ranges = Ranges(options.loss, options.instances)
        compiled = compile_family(family, options.target, Path(scratch) / "ranges", ranges=ranges)
        seconds = time.perf_counter() - started
        with compiled.open() as running:
            error = _largest_error(family, running, options) if options.check else None
            rows = [_row(family, running, sizes, options) for sizes in _sizes(family, options)]
        library = sum(path.stat().st_size for path in compiled.library.folder.iterdir())
    ratios = [row["ratio"] for row in rows]
    document = {
        "model": options.model.name,
        "target": compiled.target,
        "ranges": family.ranges_text,
        "built_s": round(seconds, 1),
        "library_bytes": library,
        "checked_sizes": options.check,
        "largest_error": error,
        "largest_ratio": max(ratios),
        "mean_ratio": statistics.fmean(ratios),
        "rows": rows,
        **provenance(),
    }
    write_document(options.output / "dynamic_shapes.json", document)
    print(f"largest ratio {max(ratios):.3f}, mean {statistics.fmean(ratios):.3f}, error {error}")


def _sizes(family: Family, options: argparse.Namespace) -> list[Sizes]:
    return list(dict.fromkeys(family.random_sizes(options.sizes, 1)))


def _inputs(graph: Graph, seed: int, highest: int) -> dict[str, Array]:
    """Return random inputs; integers are indices or masks, up to ``highest``."""
    random = np.random.default_rng(seed)
    return {
        name: random.normal(size=kind.shape).astype(kind.dtype)
        if kind.dtype.startswith("float")
        else random.integers(0, 2 if "mask" in name else highest, kind.shape).astype(kind.dtype)
        for name, kind in graph.inputs.items()
    }


def _largest_error(family: Family, running: RunningFamily, options: argparse.Namespace) -> float:
    """Return the largest error beside ONNX Runtime, relative to the largest magnitude."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(options.model), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    worst = 0.0
    for number, sizes in enumerate(family.random_sizes(options.check, 2)):
        inputs = _inputs(family.graph(sizes), number, options.highest)
        expected = dict(zip(names, session.run(None, inputs), strict=True))
        for name, array in running.run(inputs).items():
            size = float(np.abs(expected[name]).max(initial=1e-6))
            difference = array.astype(np.float64) - expected[name]
            worst = max(worst, float(np.abs(difference).max(initial=0.0)) / size)
    return worst


def _row(family: Family, running: RunningFamily, sizes: Sizes, options: argparse.Namespace) -> Row:
    """Return the times of a run with ranges and of one with just its sizes."""
    graph = family.graph(sizes)
    inputs = _inputs(graph, 0, options.highest)
    with (
        tempfile.TemporaryDirectory() as folder,
        compile_network(graph, options.target, Path(folder)).open() as single,
    ):
        calls: Mapping[str, Callable[[], object]] = {
            "ranges": lambda: running.run(inputs),
            "single": lambda: single.run(inputs),
        }
        for call in calls.values():
            call()
            call()
        rounds: list[dict[str, float]] = []
        for number in range(options.rounds):
            order = list(calls) if number % 2 else list(reversed(calls))
            rounds.append({name: _us(calls[name], options.round_ms) for name in order})
    ratio = statistics.median(times["ranges"] / times["single"] for times in rounds)
    medians = {n: round(statistics.median(times[n] for times in rounds), 2) for n in calls}
    print(f"{family.text(sizes)}: {ratio:.3f} {medians}", flush=True)
    return {"sizes": family.named(sizes), "ratio": ratio, "us": medians}


def _us(call: Callable[[], object], milliseconds: float) -> float:
    """Return the microseconds of a call, on average over a round."""
    started = time.perf_counter()
    count = 0
    while True:
        call()
        count += 1
        passed = time.perf_counter() - started
        if passed * 1e3 >= milliseconds:
            return passed * 1e6 / count


if __name__ == "__main__":
    main()
