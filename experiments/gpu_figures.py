"""Rows of figures about GPUs: measured ones from a pack's results, else the model's estimates.

``cpembed bench --pack`` and ``benchmarks.gpu.pack`` write kernels for a machine with a GPU, whose
``run.py`` writes ``results.json``. A figure's script takes this file (``--results``) and shows what
was measured; without it, it shows the estimates of the kernels that ``cpembed run`` chooses, which
are stored in the figure's ``results.json`` and computed once. Every table says which it has.
"""

from __future__ import annotations

import argparse
import itertools
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.documents import read_document
from cpembed.cost.ranking import RankedCandidate
from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.solve import solve
from cpembed.errors import LoweringError
from cpembed.runtime.measurement.environment import provenance, provenance_lines
from cpembed.targets.choice import choices
from cpembed.targets.cuda.lower import TiledProduct
from cpembed.targets.cuda.multistage.schedule import KernelSchedule, Plan
from cpembed.targets.cuda.multistage.traffic import work_of
from cpembed.targets.cuda.target import CudaTarget
from experiments.common import Row, geometric_mean, results_parser, write_results

TARGET, MACHINE = "mma_f16", "a100"
CONSTRAINTS = "fused"
"""Set of the embeddings, that of the packs."""

BEST = "cpembed"
"""Name of the fastest of our kernels among a row's times."""


LAYOUTS = {"conv1d": "NWC", "conv2d": "NHWC", "conv3d": "NDHWC", "depthwise": "NHWC"}
"""Layouts of operators that have one with channels last."""


@dataclass(frozen=True)
class FigureLayer:
    """A layer of a figure: its name in packs, and the words of its workload, channels last."""

    name: str
    words: str


def with_products(words: str) -> str:
    """Return a workload as Tensor Cores compute it, channels last where there is such a layout.

    A depthwise convolution has products for a Tensor Core only with an axis of filters for each
    channel, with which AMOS writes it.

    >>> with_products("conv1d n=1 c=64 w=16 k=64 s=3")
    'conv1d n=1 c=64 w=16 k=64 s=3 layout=NWC'
    >>> with_products("depthwise n=1 c=32 h=9 w=9 r=3 s=3 pad=1")
    'conv2d n=1 c=1 h=9 w=9 r=3 s=3 pad=1 k=1 groups=32 layout=NHWC'
    """
    operator, sizes = words.split(maxsplit=1)
    if operator == "depthwise" and " m=" not in sizes:
        operator, sizes = "conv2d", re.sub(r"\bc=(\d+)(.*)", r"c=1\2 k=1 groups=\1", sizes)
    layout = LAYOUTS.get(operator)
    return f"{operator} {sizes}" + (f" layout={layout}" if layout else "")


def figure_parser(docstring: str | None, folder: Path) -> argparse.ArgumentParser:
    """Return the parser of a figure's script."""
    parser = results_parser(docstring, folder)
    parser.add_argument("--results", type=Path, help="results.json that a pack's run.py wrote")
    parser.add_argument("--machine", default=MACHINE, help="GPU of the estimates")
    parser.add_argument("--again", action="store_true", help="estimate stored layers again, too")
    parser.add_argument("--limit", type=int, help="estimate no more than so many layers in a run")
    return parser


def measured_rows(path: Path) -> tuple[dict[str, Row], str]:
    """Return the rows of a pack's results by the names of the layers, and the device's name.

    A row has the microseconds of each implementation that was timed, and of our fastest as
    :data:`BEST`; kernels with further roles (fixed mappings) are there under each of them.
    """
    document = read_document(path)
    rows: dict[str, Row] = {}
    for entry in document["layers"]:
        us = {name: timed["us"] for name, timed in entry["times"].items()}
        for variant in entry["variants"]:
            if variant["name"] in us:
                us |= dict.fromkeys(variant["also"], us[variant["name"]])
        kernel_us = [us[v["name"]] for v in entry["variants"] if v["name"] in us]
        if kernel_us:
            rows[entry["name"]] = {"key": entry["name"], "us": {**us, BEST: min(kernel_us)}}
    return rows, document["device"]["device"]


def estimated_row(layer: FigureLayer, machine: str) -> Row:
    """Return the estimated microseconds of the kernel that ``cpembed run`` chooses for a layer."""
    spec = hardware_spec(TARGET, machine=machine)
    target, computation = CudaTarget(spec), workload(layer.words, target=spec)
    solved = solve(computation, spec, constraints=CONSTRAINTS, top=target.policy.considered)
    candidates = distinct(target, solved.embeddings)
    if not candidates:
        return {"key": layer.name, "us": {}}
    choice = choices(target, candidates, first_only=True)[0]
    return {"key": layer.name, "us": {BEST: choice.estimated}}


PROBES = tuple(
    KernelSchedule((2, 2), (2, 4), depth, stages, splits=splits)
    for depth, stages, splits in ((1, 2, 1), (2, 3, 2), (4, 2, 1))
)
"""Schedules in which all that the model counts of a product shows."""


def distinct(target: CudaTarget, candidates: Sequence[RankedCandidate]) -> list[RankedCandidate]:
    """Return candidates without those whose kernels do the same work as those of an earlier one.

    Parameters
    ----------
    target : CudaTarget
        Tensor Cores of a GPU.
    candidates : sequence of RankedCandidate
        Candidates, best first.
    """
    by_work: dict[object, RankedCandidate] = {}
    for ranked in candidates:
        try:
            product = target.lower(ranked.candidate.program)
        except LoweringError:
            continue
        by_work.setdefault(work_key(target, product), ranked)
    return list(by_work.values())


def work_key(target: CudaTarget, product: TiledProduct) -> object:
    """Return a hashable value that is equal for products of nearly equal estimates.

    Many embeddings differ in the names or the order of axes alone. The value is the work of a few
    schedules, with every layout of the factors. Other schedules may read other sectors. On GPUs
    with TMA, where it matters which tensors its maps can describe, no two products have the same.
    """
    if target.gpu.architecture >= "sm_90":
        return product
    layouts = itertools.product(range(len(product.first)), range(len(product.second)))
    plans = [Plan(product, replace(probe, layouts=pair)) for pair in layouts for probe in PROBES]
    return tuple(work_of(plan, target.gpu) for plan in plans)


def figure_rows(
    layers: Sequence[FigureLayer],
    options: argparse.Namespace,
    figure_name: Callable[[str], str] = str,
) -> tuple[dict[str, Row], str]:
    """Return the rows of a figure's layers, and how they came about.

    Parameters
    ----------
    layers : sequence of FigureLayer
        Layers of the figure.
    options : Namespace
        From :func:`figure_parser`.
    figure_name : callable
        Returns a layer's name in the figure from that in a pack.

    Returns
    -------
    tuple of dict and str
        Rows by layer, and the words that name their origin: ``measured on …`` or ``estimated for
        an a100``.
    """
    if options.results is not None:
        packed, device = measured_rows(options.results)
        names = {layer.name for layer in layers}
        rows = {figure_name(name): row for name, row in packed.items()}
        return {name: row for name, row in rows.items() if name in names}, f"measured on {device}"
    rows = stored_rows(options)
    missing = [layer for layer in layers if layer.name not in rows][: options.limit]
    for number, layer in enumerate(missing, 1):
        started = time.monotonic()
        rows[layer.name] = estimated_row(layer, options.machine)
        seconds = time.monotonic() - started
        print(f"{number} of {len(missing)}: {layer.name}, {seconds:.0f} s", file=sys.stderr)
        # An interrupted run goes on where it was stopped.
        write_results(options.output, estimated_document(rows, options.machine), "not finished\n")
    return rows, f"estimated for an {options.machine}"


def stored_rows(options: argparse.Namespace) -> dict[str, Row]:
    """Return the estimates of an earlier run for the same machine; none if there are none."""
    path = options.output / "results.json"
    if options.again or not path.exists():
        return {}
    document = read_document(path)
    machine = document.get("machine_of_estimates")
    if document.get("provenance") != "estimated" or machine != options.machine:
        return {}
    return {row["key"]: row for row in document["rows"]}


def estimated_document(rows: Mapping[str, Row], machine: str) -> dict[str, Any]:
    """Return the document of estimated rows."""
    return {
        **provenance(),
        "provenance": "estimated",
        "machine_of_estimates": machine,
        "rows": list(rows.values()),
    }


def write_figure(
    options: argparse.Namespace,
    rows: Mapping[str, Row],
    lines: Sequence[str],
    figures: Mapping[str, Any],
) -> None:
    """Write ``results.json`` and ``results.md`` of a figure.

    Parameters
    ----------
    options : Namespace
        From :func:`figure_parser`.
    rows : mapping of str to Row
        From :func:`figure_rows`.
    lines : sequence of str
        The page, without provenance.
    figures : mapping of str to Any
        The means, beside those of the paper.
    """
    measured = options.results is not None
    document = estimated_document(rows, options.machine)
    if measured:
        document |= {"provenance": "measured", "machine_of_estimates": None}
    about = "measured by the pack on another machine" if measured else "nothing was measured"
    page = [*lines, "", *provenance_lines(document, about)]
    write_results(options.output, {**document, "figures": dict(figures)}, "\n".join(page) + "\n")


def ratios(rows: Mapping[str, Row], name: str) -> dict[str, float]:
    """Return how many times as long as our fastest kernel something takes, by layer."""
    return {
        key: row["us"][name] / row["us"][BEST]
        for key, row in rows.items()
        if name in row["us"] and BEST in row["us"]
    }


def mean_of(values: Mapping[str, float]) -> float | None:
    """Return the geometric mean; None of nothing."""
    return geometric_mean(values.values()) if values else None


def cell(value: float | None, digits: int = 2) -> str:
    """Return a number as a cell of a table, a hyphen where there is none.

    >>> cell(None), cell(1.234)
    ('-', '1.23')
    """
    return "-" if value is None else f"{value:,.{digits}f}"
