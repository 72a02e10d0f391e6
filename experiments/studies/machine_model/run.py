"""The machine-neutral estimate against simulated cycles of VTA and a CPU's calibrated model.

    python -m experiments.studies.machine_model.run              # all rows that are missing
    python -m experiments.studies.machine_model.run vta_1x16x16/deepbench:11 --trials 16

Writes ``results.json``, ``results.md`` and, if matplotlib is installed, ``results.svg`` into
``--output``, by default beside this file; README.md says what is counted.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from cpembed.codegen.packing import packed_before
from cpembed.cost.machine.estimate import Estimate, estimate_program, machine_of
from cpembed.cost.ranking import RankedCandidate
from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.solve import solve
from cpembed.errors import CpembedError
from cpembed.hw.machine import Hierarchy
from cpembed.targets.cpu.calibration import DIRECTORY_VARIABLE, calibration
from cpembed.targets.registry import open_target
from cpembed.targets.vta.target import VtaTarget
from cpembed.targets.vta.timing import time_program
from cpembed.workloads.suites import layer, suite
from experiments.common import Experiment, Row, bars, described, geometric_mean

VTA, CPU = "vta_1x16x16", "avx512_vnni"
MACHINES = {VTA: "pynq_z1", CPU: "xeon_8480"}
SUITES = {VTA: ("deepbench",), CPU: ("unit16", "resnet50")}
CONSTRAINTS = {VTA: "fused", CPU: "fused"}
REFERENCES = {VTA: "simulated cycles", CPU: "the calibrated model (one thread)"}
BEST = 5
"""Number of a layer's candidates that are the best by overheads.

The others are taken at equal distances among the rest.
"""
ROWS = tuple(
    f"{target}/{name}:{item.index}"
    for target, names in SUITES.items()
    for name in names
    for item in suite(name)
)


def compute(key: str, trials: int) -> Row:
    """Return the neutral estimates of a layer's candidates, with what they are compared with."""
    target, named = key.split("/")
    spec = hardware_spec(target)
    suite_name, number = named.split(":")
    computation = workload([named], target=spec)
    solved = solve(
        computation,
        spec,
        constraints=CONSTRAINTS[target],
        top=None,
        keep=lambda ranked: sample(ranked, trials),
    )
    machine = machine_of(spec, MACHINES[target])
    if target == CPU:
        machine = one_core(machine)
    entries: list[dict[str, Any]] = []
    left_out = 0
    with environment():
        for item in solved.embeddings:
            try:
                reference = referred(target, item)
            except CpembedError:
                left_out += 1
                continue
            program = item.candidate.program
            estimate = estimate_program(program, machine, ahead=packed_before(program.workload))
            entries.append(
                {"id": item.candidate.identifier, "rank": item.rank, "score": item.score}
            )
            entries[-1] |= compared(target, estimate, reference)
    return {
        "layer": layer(suite_name, int(number)).label,
        "macs": computation.macs,
        "trials": len(entries),
        "found": solved.count,
        "left_out": left_out,
        "candidates": entries,
        **summary(entries),
    }


def sample(ranked: tuple[RankedCandidate, ...], most: int) -> tuple[RankedCandidate, ...]:
    """Return the best :data:`BEST`, and of the others so many that there are ``most``."""
    best, rest = ranked[:BEST], ranked[BEST:]
    more = max(0, min(most - len(best), len(rest)))
    return (*best[:most], *(rest[(2 * n + 1) * len(rest) // (2 * more)] for n in range(more)))


def one_core(machine: Hierarchy) -> Hierarchy:
    """Return the machine with a single unit of each level."""
    memories = {name: replace(m, units=1) for name, m in machine.memories.items()}
    return replace(machine, memories=memories)


def environment() -> Any:
    """Return one thread, and published figures instead of what was measured here."""
    calibration.cache_clear()
    folder = Path(tempfile.gettempdir()) / "cpembed_no_calibration"
    return patch.dict(os.environ, {"TVM_NUM_THREADS": "1", DIRECTORY_VARIABLE: str(folder)})


def referred(target: str, item: RankedCandidate) -> dict[str, float]:
    """Return what the estimate is compared with, of the schedule that runs untuned.

    ``kernel``: simulated cycles, or microseconds by the calibrated model; ``total``: with packing
    and unpacking, by the calibrated model alone.
    """
    opened = open_target(hardware_spec(target))
    lowered = opened.lower(item.candidate.program)
    best = opened.space(lowered).best()
    if isinstance(opened, VtaTarget):
        image = lowered.lowered(best.schedule).empty_image()
        return {"kernel": float(time_program(image, opened.memory).cycles)}
    return {"kernel": best.parts["us"], "total": best.cost}


def compared(target: str, estimate: Estimate, reference: dict[str, float]) -> dict[str, Any]:
    """Return the estimate and the reference of a candidate.

    Parameters
    ----------
    target : str
        Name of the target.
    estimate : Estimate
        The neutral estimate.
    reference : dict of str to float
        Times of :func:`referred`.
    """
    estimate_value = estimate.cycles if target == VTA else estimate.us
    entry = {
        "estimate": estimate_value,
        "bound": estimate.bound,
        "exact": estimate.exact,
        **reference,
    }
    if target == CPU:
        entry["estimate_total"] = estimate.total_us
    return entry


def summary(entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return correlations between the candidates of a layer, and errors.

    ``loss``: how much longer than the best that candidate takes, by the reference, that comes first
    by the estimate (or by overheads).
    """
    kernel = [entry["kernel"] for entry in entries]
    estimate = [entry["estimate"] for entry in entries]
    score = [entry["score"] for entry in entries]
    total = [entry.get("total", entry["kernel"]) for entry in entries]
    estimate_total = [entry.get("estimate_total", entry["estimate"]) for entry in entries]
    return {
        "spearman": spearman(estimate, kernel),
        "spearman_overheads": spearman(score, kernel),
        "spearman_total": spearman(estimate_total, total),
        "spearman_total_overheads": spearman(score, total),
        "ratio": geometric_mean([e / k for e, k in zip(estimate, kernel, strict=True)]),
        "loss": _loss(estimate_total, total),
        "loss_overheads": _loss(score, total),
    }


def spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return the rank correlation; None if nothing can be ranked.

    That is so for fewer than three candidates, or if all have one value. Values within a thousandth
    of each other are equal.

    >>> spearman([1, 2, 3, 4], [10, 30, 20, 40])
    0.8
    >>> spearman([1, 1, 1], [1, 2, 3]) is None
    True
    """
    ranks = [_ranks(values) for values in (first, second)]
    if len(first) < 3 or any(np.ptp(rank) == 0 for rank in ranks):
        return None
    return round(float(np.corrcoef(ranks[0], ranks[1])[0, 1]), 6)


def _ranks(values: Sequence[float]) -> np.ndarray:
    """Places in ascending order; equal values share the mean of theirs."""
    order = sorted(range(len(values)), key=lambda n: values[n])
    ranks = np.zeros(len(values))
    start = 0
    for end in range(1, len(order) + 1):
        at_end = end == len(order)
        if at_end or values[order[end]] > values[order[end - 1]] * 1.001 + 1e-12:
            ranks[order[start:end]] = (start + end - 1) / 2
            start = end
    return ranks


def markdown(rows: list[Row]) -> list[str]:
    """Return the tables and totals."""
    lines = [
        "# The machine-neutral estimate beside other models",
        "",
        "Written by `run.py`; README.md says what is counted. *rho*: Spearman's rank correlation",
        "between the candidates of a layer, of the estimate and, for comparison, of the score by",
        "overheads; *ratio*: the estimate over the reference, geometric mean of the candidates;",
        "*loss*: how much longer the candidate takes that comes first.",
    ]
    for target, reference in REFERENCES.items():
        target_rows = [row for row in rows if row["key"].startswith(f"{target}/")]
        if target_rows:
            lines += [
                "",
                f"## {target} against {reference}",
                "",
                *_totals(target_rows),
                "",
                *_table(target_rows),
            ]
    return lines


def _totals(rows: list[Row]) -> list[str]:
    """Return the totals of all layers."""
    lines: list[str] = []
    for name, words in (
        ("spearman", "executions with their transfers"),
        ("spearman_total", "with packing and unpacking"),
    ):
        both = [(row[name], row[f"{name}_overheads"]) for row in rows if row[name] is not None]
        if both and (name == "spearman" or any("total" in row["candidates"][0] for row in rows)):
            estimate, overheads = zip(*both, strict=True)
            lines.append(
                f"- rho, {words}: {_spread(estimate)}; of the overheads "
                f"{_spread([value for value in overheads if value is not None])}"
            )
    ranked = sum(row["spearman"] is not None for row in rows)
    lines.append(
        f"- {ranked} of {len(rows)} layers have something to rank: at least three candidates that "
        "neither measure takes for equal"
    )
    ratios = [row["ratio"] for row in rows]
    entries = [entry for row in rows for entry in row["candidates"]]
    errors = sorted(abs(entry["estimate"] / entry["kernel"] - 1) for entry in entries)
    lines.append(
        f"- ratio: geometric mean {geometric_mean(ratios):.3f}, {min(ratios):.3f} to "
        f"{max(ratios):.3f}; error of a candidate: median {errors[len(errors) // 2]:.1%}, "
        f"ninth decile {errors[len(errors) * 9 // 10]:.1%} ({len(entries)} candidates)"
    )
    for name, words in (("loss", "the estimate"), ("loss_overheads", "the overheads")):
        losses = [1 + row[name] for row in rows]
        lines.append(
            f"- loss of the first by {words}: {geometric_mean(losses) - 1:.1%} in the geometric "
            f"mean, {max(losses) - 1:.1%} at most"
        )
    return lines


def _spread(values: Sequence[float]) -> str:
    ordered = sorted(values)
    below = sum(value < 0 for value in ordered)
    mean, median = sum(ordered) / len(ordered), ordered[len(ordered) // 2]
    return f"mean {mean:.2f}, median {median:.2f}, below 0 in {below} of {len(ordered)}"


def _table(rows: list[Row]) -> list[str]:
    lines = [
        "| layer | candidates | rho | of overheads | ratio | loss | of overheads | bound by |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        name = row["key"].split("/")[1]
        first = min(row["candidates"], key=lambda entry: entry["estimate"])
        lines.append(
            f"| {name} `{row['layer']}` | {row['trials']} of {row['found']} "
            f"| {_number(row['spearman'])} | {_number(row['spearman_overheads'])} "
            f"| {row['ratio']:.2f} | {row['loss']:.1%} | {row['loss_overheads']:.1%} "
            f"| {first['bound']} |"
        )
    return lines


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def plot(rows: list[Row], folder: Path) -> bool:
    """Draw the estimate over the reference."""
    title = "The neutral estimate over the reference, geometric mean of a layer's candidates"
    values = {"estimate / reference": [row["ratio"] for row in rows]}
    return bars(
        [row["key"].split("/")[1] for row in rows], values, folder / "results.svg", title=title
    )


def _loss(measure: Sequence[float], reference: Sequence[float]) -> float:
    """Return the reference's value of the first by one measure over its best, minus 1."""
    return reference[measure.index(min(measure))] / min(reference) - 1


EXPERIMENT = Experiment(
    **described(__file__, __doc__),
    keys=ROWS,
    compute=compute,
    markdown=markdown,
    plot=plot,
    trial_unit="candidates of a layer",
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
