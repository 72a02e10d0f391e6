"""Enumerate DeepBench's layers completely: numbers of embeddings, times, all proven.

For each target and layer: the complete enumeration of a constraint set, optionally with every
program derived and proven, and the ten best alone. Times are wall clock in warm processes after one
solve that is not counted; they include building the model. Programs are shared out between
``--processes``, each of which enumerates for itself; lemmas are kept within a process.

    python -m benchmarks.enumeration [--targets NAME ...] [--layers 0-107] [--prove]

Writes ``enumeration.json`` after every layer and ``enumeration.md`` into ``--output``, by default
beside this file. Layers that the file has at the same commit and options are not run again.
"""

from __future__ import annotations

import argparse
import itertools
import os
import resource
import statistics
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.documents import read_document, table, write_document
from cpembed.bulk import without_collection
from cpembed.driver.named import default_dtypes, hardware_spec
from cpembed.driver.solve import solve
from cpembed.embedding.constraint_set import load_constraint_set
from cpembed.embedding.search import find_embeddings
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.runtime.measurement.environment import provenance, provenance_lines
from cpembed.transform.derive import LayoutCache, derive
from cpembed.transform.proof import SharedLemmas, require
from cpembed.workloads.suites import layer

FOLDER = Path(__file__).resolve().parent
TARGETS = ["vta_1x16x16", "vta_8x8x8", "avx512_vnni", "amx_int8", "wmma_f16"]
SPREADS = {"embeddings": 0, "complete_s": 3, "cpu_s": 3, "best_s": 3}
"""Columns of the table and their decimals."""

Row = dict[str, Any]


@cache
def spec_of(target: str) -> HardwareSpec:
    """Return the specification of a target."""
    return hardware_spec(target)


def workload_of(target: str, index: int) -> Computation:
    """Return a layer of DeepBench in a target's types."""
    return layer("deepbench", index).workload(default_dtypes(spec_of(target)))


def peak_mib() -> float:
    """Return the process's peak of memory in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@without_collection()
def enumerate_share(
    target: str, index: int, constraints: str, share: tuple[int, int] | None
) -> tuple[int, float, float]:
    """Enumerate a layer, and derive and prove a share of its embeddings.

    Parameters
    ----------
    target : str
        Name of the target.
    index : int
        Number of the layer.
    constraints : str
        Name of the constraint set.
    share : tuple of int or None
        Number of the share, and number of shares; None to prove nothing.

    Returns
    -------
    tuple
        Number of embeddings, seconds of the processor, the process's peak of memory in MiB.
    """
    started = time.process_time()
    workload, instruction = workload_of(target, index), spec_of(target).instruction
    search = find_embeddings(workload, instruction, load_constraint_set(constraints))
    assert search.complete
    count = len(search.embeddings)
    if share is not None:
        # Neighbours share layouts: consecutive embeddings belong to one share.
        number, shares = share
        first, last = number * count // shares, (number + 1) * count // shares
        layouts: LayoutCache = {}
        proven_lemmas = SharedLemmas()
        for embedding in itertools.islice(search.embeddings, first, last):
            require(derive(workload, instruction, embedding, layouts), proven_lemmas)
    return count, time.process_time() - started, peak_mib()


def measure(pool: ProcessPoolExecutor, options: Mapping[str, Any], target: str, index: int) -> Row:
    """Measure one layer: its complete enumeration, then the ten best alone.

    Parameters
    ----------
    pool : ProcessPoolExecutor
        Processes that share the proofs.
    options : mapping
        Constraint set, number of processes, and whether to prove.
    target : str
        Name of the target.
    index : int
        Number of the layer.
    """
    busy = os.getloadavg()[0]
    constraints, processes = options["constraints"], options["processes"]
    shares = [(n, processes) for n in range(processes)] if options["prove"] else [None]
    started = time.perf_counter()
    runs = [pool.submit(enumerate_share, target, index, constraints, share) for share in shares]
    results = [run.result() for run in runs]
    complete = time.perf_counter() - started
    started = time.perf_counter()
    solve(workload_of(target, index), spec_of(target), constraints=constraints, top=10)
    best = time.perf_counter() - started
    return {
        "target": target,
        "layer": index,
        "embeddings": results[0][0],
        "complete_s": round(complete, 4),
        "cpu_s": round(max(seconds for _, seconds, _ in results), 4),
        "best_s": round(best, 4),
        "peak_mib": round(sum(peak for *_, peak in results) + peak_mib()),
        "load": round(busy, 1),
    }


def spread(rows: list[Row], column: str) -> str:
    """Return median and largest of a column."""
    values, digits = [row[column] for row in rows], SPREADS[column]
    return f"{statistics.median(values):,.{digits}f} / {max(values):,.{digits}f}"


def markdown(document: Mapping[str, Any]) -> str:
    """Return the table."""
    rows: list[Row] = document["rows"]
    options = document["options"]
    groups = {name: [r for r in rows if r["target"] == name] for name in TARGETS}
    lines = [
        "# Complete enumerations of DeepBench",
        "",
        f"Written by `enumeration.py`. Constraint set `{options['constraints']}`, every program",
        f"{'proven' if options['prove'] else 'counted only'}; median / largest over the layers.",
        "*CPU* is the processor time of the process that took longest: the wall clock of an idle",
        "machine.",
        "",
        "| target | layers | embeddings | complete, s | complete, CPU s | top 10 alone, s |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, group in {**groups, "all": rows}.items():
        if group:
            cells = " | ".join(spread(group, column) for column in SPREADS)
            lines.append(f"| {name} | {len(group)} | {cells} |")
    loads = [row["load"] for row in rows]
    run = (
        f"{options['processes']} processes, at most {max(r['peak_mib'] for r in rows)} MiB "
        f"together; load average before a layer {min(loads)} to {max(loads)}"
    )
    return "\n".join([*lines, "", *provenance_lines(document, run)]) + "\n"


def resumed(path: Path, document: Row) -> list[Row]:
    """Return the rows of an earlier run that can be used again.

    Commit, machine and options have to be the same, and the source must have no other changes.
    """
    try:
        earlier = read_document(path)
    except (OSError, ValueError):
        return []
    same = ("options", "git_commit", "machine", "versions")
    clean = not str(document["git_commit"]).endswith("+")
    return earlier["rows"] if clean and all(earlier[k] == document[k] for k in same) else []


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--targets", nargs="+", default=TARGETS)
    parser.add_argument("--constraints", default="relaxed")
    parser.add_argument("--layers", default="0-107")
    parser.add_argument("--prove", action="store_true", help="derive and prove every program")
    parser.add_argument("--processes", type=int, default=2, help="that share the proofs")
    parser.add_argument("--output", type=Path, default=FOLDER, help="folder of the results")
    arguments = parser.parse_args()
    first, _, last = arguments.layers.partition("-")
    names = ("constraints", "prove", "processes")
    options = {name: getattr(arguments, name) for name in names}
    document: Row = {**provenance(), "options": options}
    path: Path = arguments.output / "enumeration.json"
    rows = document["rows"] = resumed(path, document)
    measured_layers = {(row["target"], row["layer"]) for row in rows}
    with ProcessPoolExecutor(arguments.processes) as pool:
        for target in arguments.targets:
            warm = False
            for index in range(int(first), int(last or first) + 1):
                if (target, index) in measured_layers:
                    continue
                if not warm:
                    measure(pool, options, target, index)
                    warm = True
                rows.append(measure(pool, options, target, index))
                write_document(path, {**document, "rows": table(rows)})
    text = markdown(document)
    (arguments.output / "enumeration.md").write_text(text, encoding="utf-8")
    print(text, end="")


if __name__ == "__main__":
    main()
