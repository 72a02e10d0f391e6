"""Complete enumeration of DeepBench's layers: how many embeddings, how long, all proven.

For each target and layer: the complete enumeration of a constraint set, optionally with every
program derived and proven, and the ten best alone. Times are wall clock in one warm process after
one solve that is not counted; they include building the model.

    python benchmarks/enumeration.py [--targets NAME ...] [--layers 0-107] [--prove]
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from collections.abc import Iterator

from cpembed.api.solve import default_dtypes, hardware_spec, solve
from cpembed.embedding.constraint_set import load_constraint_set
from cpembed.embedding.search import find_embeddings
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.transform.derive import LayoutCache, derive
from cpembed.transform.proof import require
from cpembed.workloads.suites import suite

TARGETS = ["vta_1x16x16", "vta_8x8x8", "avx512_vnni", "amx_int8", "wmma_f16"]


def workloads(spec: HardwareSpec, wanted: range) -> Iterator[Computation]:
    for layer in suite("deepbench"):
        if layer.index in wanted:
            yield layer.workload(default_dtypes(spec))


def enumerate_layer(
    workload: Computation, spec: HardwareSpec, name: str, prove: bool
) -> tuple[float, int]:
    """Seconds and number of embeddings; with ``prove`` each program is derived and proven."""
    constraints = load_constraint_set(name)
    started = time.perf_counter()
    found = find_embeddings(workload, spec.instruction, constraints)
    assert found.complete
    if prove:
        cache: LayoutCache = {}
        for embedding in found.embeddings:
            require(derive(workload, spec.instruction, embedding, cache))
    return time.perf_counter() - started, len(found.embeddings)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--targets", nargs="+", default=TARGETS)
    parser.add_argument("--constraints", default="relaxed")
    parser.add_argument("--layers", default="0-107")
    parser.add_argument("--prove", action="store_true", help="derive and prove every program")
    arguments = parser.parse_args()
    first, _, last = arguments.layers.partition("-")
    wanted = range(int(first), int(last or first) + 1)
    print("target       | layers | embeddings median / max | complete s median / max | top 10 s")
    for name in arguments.targets:
        spec = hardware_spec(name)
        layers = list(workloads(spec, wanted))
        solve(layers[0], spec, arguments.constraints, top=1)
        runs = [enumerate_layer(w, spec, arguments.constraints, arguments.prove) for w in layers]
        seconds, counts = [s for s, _ in runs], [n for _, n in runs]
        best: list[float] = []
        for workload in layers:
            started = time.perf_counter()
            solve(workload, spec, arguments.constraints, top=10)
            best.append(time.perf_counter() - started)
        print(
            f"{name:12} | {len(layers):6} | {statistics.median(counts):10.0f} / {max(counts):<10} |"
            f" {statistics.median(seconds):10.3f} / {max(seconds):<10.3f} |"
            f" {statistics.median(best):.3f} / {max(best):.3f}",
            flush=True,
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"constraints {arguments.constraints}, proven: {arguments.prove}, peak {peak:.0f} MiB")


if __name__ == "__main__":
    main()
