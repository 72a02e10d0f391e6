"""UNIT's figure 11: what each step of the space of schedules adds on Tensor Cores, 16 convolutions.

    python -m experiments.unit2021.figure11.run                          # the model's estimates
    python -m experiments.unit2021.figure11.run --results results.json   # cuDNN, ours: measured

The pack is ``python -m benchmarks.gpu.pack --suite unit16``. It has the fastest of our kernels,
that of fused rows and cuDNN; the steps between are estimates, which take a minute of processor
time, and their columns say so. Writes ``results.json`` and ``results.md``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.solve import solve
from cpembed.errors import LoweringError
from cpembed.runtime.tuning.space import Scored
from cpembed.targets.cuda.target import AnySchedule, CudaTarget
from cpembed.workloads.suites import suite
from experiments.common import Row, markdown_table
from experiments.gpu_figures import (
    BEST,
    CONSTRAINTS,
    TARGET,
    cell,
    estimated_document,
    figure_parser,
    mean_of,
    measured_rows,
    stored_rows,
    with_products,
    work_key,
    write_figure,
)

FOLDER = Path(__file__).resolve().parent

STEPS = {
    "generic": "Generic",
    "fused": "+ FuseDim",
    "split": "+ SplitK",
    "tune": "+ Tune",
}
"""Steps of section VI.B, each with what those before it have."""

TILE = 2
"""Largest number of instruction tiles of a warp along an axis: the paper's p (section VI.B)."""

SPLIT_DEPTH = 64
"""Elements of the reduction of a part (section VI.B)."""

MOST_EMBEDDINGS = 400
"""Maximum number of embeddings, more than the set has for any of these convolutions."""

PAPER = {
    "behind cuDNN": "#1 and #15",
    "largest step": "SplitK",
    "kernels served by it": "over 70 %",
}
"""Statements of section VI.B; bars have no numbers."""


def steps(words: str, machine: str) -> dict[str, float]:
    """Return the estimated microseconds of a convolution's best kernel at each step."""
    spec = hardware_spec(TARGET, machine=machine)
    target, computation = CudaTarget(spec), workload(words, target=spec)
    solved = solve(computation, spec, constraints=CONSTRAINTS, top=MOST_EMBEDDINGS)
    best: dict[str, float] = {}
    spaces: dict[Any, Sequence[Scored[AnySchedule]]] = {}
    for ranked in solved.embeddings:
        try:
            lowered = target.lower(ranked.candidate.program)
            key = work_key(target, lowered)
            if key not in spaces:
                spaces[key] = target.space(lowered).ranked()
        except LoweringError:
            continue
        rows = set(ranked.candidate.embedding.family["x"])
        depth = lowered.instruction.k * lowered.tiles[3]
        for scored in spaces[key]:
            for step in admitted(rows, depth, scored.schedule):
                best[step] = min(best.get(step, scored.cost), scored.cost)
    return best


def admitted(rows: set[str], depth: int, schedule: AnySchedule) -> list[str]:
    """Return the steps that have a schedule of a mapping, whose rows are some axes of the image.

    Parameters
    ----------
    rows : set of str
        Axes that feed the instruction's rows.
    depth : int
        Elements of the reduction.
    schedule : AnySchedule
        Its schedule.
    """
    steps = ["tune"]
    if max(schedule.tile) > TILE or not rows <= {"p", "q"}:
        return steps
    splits = {1, max(1, depth // SPLIT_DEPTH)}
    # The nearest number of parts that schedules have, for deep reductions.
    if schedule.splits in splits or depth // SPLIT_DEPTH > 16:
        steps.append("split")
    if schedule.splits == 1:
        steps.append("fused")
        if len(rows) <= 1:
            steps.append("generic")
    return steps


def estimated(options: Any) -> dict[str, Row]:
    """Return the steps of all layers, those of an earlier run included."""
    rows = stored_rows(options)
    missing = [layer for layer in suite("unit16") if f"unit16:{layer.index}" not in rows]
    for layer in missing[: options.limit]:
        started, key = time.monotonic(), f"unit16:{layer.index}"
        step_us = steps(with_products(layer.label), options.machine)
        rows[key] = {"key": key, "us": step_us}
        print(f"{key}: {time.monotonic() - started:.0f} s", file=sys.stderr)
        document = estimated_document(rows, options.machine)
        write_figure(options, rows, ["not finished"], document)
    return rows


def times_of(rows: Mapping[str, Row], key: str) -> Mapping[str, float]:
    """Return the microseconds of a row by name; none if there is no such row."""
    times: Mapping[str, float] = rows[key]["us"] if key in rows else {}
    return times


def markdown(
    rows: Mapping[str, Row], measured: Mapping[str, Row], origin: str
) -> tuple[list[str], dict[str, Any]]:
    """Return the page and the means.

    Parameters
    ----------
    rows : mapping of str to Row
        Estimated times of the steps, by layer.
    measured : mapping of str to Row
        Times of a pack by layer; empty without one.
    origin : str
        Where the times of the steps are from.
    """
    lines = [
        f"# What each step adds on Tensor Cores (UNIT, figure 11): steps {origin}",
        "",
        "Speed-ups over the first step, by estimate; the last columns are measured, where a pack's",
        "results were given: our fastest kernel, and cuDNN's time over it.",
        "",
    ]
    gains: dict[str, dict[str, float]] = {step: {} for step in STEPS}
    cells: list[list[str]] = []
    for layer in suite("unit16"):
        key = f"unit16:{layer.index}"
        us = times_of(rows, key)
        base = us.get("generic", us.get("fused"))
        line = [f"#{layer.index + 1}", cell(base)]
        for step in STEPS:
            ratio = base / us[step] if base is not None and step in us else None
            if ratio is not None:
                gains[step][key] = ratio
            line.append(cell(ratio))
        timed = times_of(measured, key)
        own_us, library_us = timed.get(BEST), timed.get("cuDNN")
        line += [cell(own_us, 1), cell(library_us / own_us if own_us and library_us else None)]
        cells.append(line)
    means = {step: mean_of(values) for step, values in gains.items()}
    head = ["layer", "Generic, us, estimated", *(f"{title}, estimated" for title in STEPS.values())]
    head += ["ours, us, measured", "cuDNN over ours, measured"]
    cells.append(["mean", "", *(cell(means[step]) for step in STEPS), "", ""])
    lines += markdown_table(head, cells)
    paper = [[name, value] for name, value in PAPER.items()]
    return [*lines, "", *markdown_table(["the paper", "measured on a V100"], paper)], means


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    options = figure_parser(__doc__, FOLDER).parse_args(arguments)
    path, options.results = options.results, None
    rows = estimated(options)
    measured, device = ({}, "") if path is None else measured_rows(path)
    origin = f"estimated for an {options.machine}" + (f", others measured on {device}" * bool(path))
    lines, means = markdown(rows, measured, origin)
    write_figure(options, rows, lines, means)
    return 0


if __name__ == "__main__":
    sys.exit(main())
