"""Rows of tables 3 to 5: mappings of a workload against the reference strategy with padding."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from cpembed.errors import LoweringError
from cpembed.hw.loader import load_hardware_spec
from cpembed.ir.computation import Computation
from cpembed.targets.vta.estimate import store_cycles
from cpembed.targets.vta.specification import vta_config
from cpembed.targets.vta.timing import MemorySystem
from experiments.footprints.run import Case
from experiments.vta_evaluation.mappings import Mapping, in_words
from experiments.vta_evaluation.moves import Execution
from experiments.vta_evaluation.plot import bars
from experiments.vta_evaluation.rows import Row, geometric_mean
from experiments.vta_evaluation.tuning import Target, tune, tune_reference

KINDS = {"operator": "Op.", "transformation": "Transf.", "combined": "Combined"}
"""The paper's columns."""

PASSES = 4
"""Cycles for each accumulator beside its products: reset, shift, and two for clipping."""

Times = dict[str, float]
"""Microseconds by :data:`KINDS`."""


def compare(case: Case, mappings: list[Mapping], trials: int) -> Row:
    """Every mapping tuned; those that could still be the best combined are executed and their
    transformations timed.
    """
    reference = _reference(case.naive, case.target, trials)
    target = Target.of(case.target, case.workload)
    execution = Execution(case.workload)
    found: list[dict[str, Any]] = []
    tuned = []
    for mapping in mappings:
        try:
            tuned.append((mapping, tune(mapping.candidate, target, trials)))
        except LoweringError as error:
            found.append({**_about(mapping), "refused": str(error)})
    fastest = float("inf")
    for mapping, result in sorted(tuned, key=lambda item: item[1].cycles):
        row = {**_about(mapping), **result.to_json()}
        if result.cycles / target.clock_mhz < fastest:
            row |= execution.times(result.lowered)
            fastest = min(fastest, times(row, target.clock_mhz)["combined"])
        found.append(row)
    return {
        "workload": str(case.workload),
        "extents": dict(case.workload.extents),
        "image": list(case.workload.operand("I").shape),
        "target": case.target,
        "clock_mhz": target.clock_mhz,
        "trials": trials,
        "verified": True,
        "reference": reference,
        "candidates": found,
    }


def _reference(workload: Computation, name: str, trials: int) -> dict[str, Any]:
    target = Target.of(name, workload)
    tuned = tune_reference(workload, target, trials)
    packed = {t.name: t.packed.elements for t in tuned.lowered.nest.factors}
    moves = Execution(workload).times(tuned.lowered)
    return {**tuned.to_json(), **moves, "elements": packed}


def _about(mapping: Mapping) -> dict[str, Any]:
    return {
        "id": mapping.identifier,
        "mapping": in_words(mapping.candidate.embedding),
        "found_in": list(mapping.found_in),
        "elements": mapping.elements,
    }


def times(found: dict[str, Any], clock_mhz: float) -> Times:
    """The operator's simulated time, the transformations' measured time, and both."""
    operator = found["cycles"] / clock_mhz
    transformation = found["packing_us"] + found["unpacking_us"]
    return {
        "operator": operator,
        "transformation": transformation,
        "combined": operator + transformation,
    }


def chosen(row: Row) -> dict[str, Any]:
    """The candidate with the best combined time."""
    measured = [found for found in row["candidates"] if "packing_us" in found]
    return min(measured, key=lambda found: times(found, row["clock_mhz"])["combined"])


def speedups(row: Row) -> Times:
    """Of the chosen candidate over the reference; where nothing is moved by either, 1."""
    clock = row["clock_mhz"]
    theirs, ours = times(row["reference"], clock), times(chosen(row), clock)
    return {kind: theirs[kind] / ours[kind] if ours[kind] else 1.0 for kind in KINDS}


def executions_ratio(row: Row) -> float:
    """How many times the chosen candidate's executions the reference has: what the operator's
    speed-up is bounded by where both keep the GEMM core busy.
    """
    return row["reference"]["executions"] / chosen(row)["executions"]


def limit(row: Row) -> float:
    """The most that any mapping could gain over a reference that reaches its lower bound: one
    that multiplies no padding, whose accumulators are reset, shifted and clipped all the same, and
    whose results are stored.
    """
    spec = load_hardware_spec(row["target"])
    config = vta_config(spec)
    memory = MemorySystem.from_machine(spec.machine) if spec.machine else MemorySystem()
    extents = row["extents"]
    results = math.prod(extents[axis] for axis in "nkpq")
    products = results * math.prod(extents[axis] for axis in "crs")
    tiles = math.ceil(results / (config.batch * config.block))
    compute = products / (config.batch * config.block**2) + PASSES * tiles
    write = int(store_cycles(np.array(tiles), config, memory))
    return row["reference"]["bound"] / max(compute, write)


def operator_alone(rows: list[Row]) -> str:
    """What the mapping with the fewest cycles gains where transformations do not count, beside
    what executions would allow: a line of Markdown.
    """
    fastest = [min(_timed(row), key=lambda found: found["cycles"]) for row in rows]
    pairs = list(zip(rows, fastest, strict=True))
    gains, allowed = (
        geometric_mean(row["reference"][what] / found[what] for row, found in pairs)
        for what in ("cycles", "executions")
    )
    return (
        f"- operator alone, of the mapping with the fewest cycles: {gains:.2f} in the geometric "
        f"mean; its executions alone would allow {allowed:.2f}"
    )


def _timed(row: Row) -> list[dict[str, Any]]:
    return [found for found in row["candidates"] if "cycles" in found]


def over_ideal(row: Row) -> float:
    """Speed-up over a reference that reaches its own lower bound."""
    return row["reference"]["bound"] / chosen(row)["cycles"]


def memory_ratio(row: Row) -> dict[str, float]:
    """Data, weights and both relative to the reference as it is packed."""
    ours, theirs = chosen(row)["elements"], row["reference"]["elements"]
    return {
        "data": ours["I"] / theirs["I"],
        "weights": ours["W"] / theirs["W"],
        "total": sum(ours.values()) / sum(theirs.values()),
    }


def name(row: Row) -> str:
    """Image and filters as the paper writes them."""
    extents = row["extents"]
    image = ", ".join(map(str, row["image"]))
    return f"({image}) ({extents['k']}, {extents['c']}, {extents['r']}, {extents['s']})"


def table(rows: list[Row], paper: Callable[[Row], Times]) -> list[str]:
    """Lines of Markdown, the paper's numbers beside; the last line has geometric means."""
    columns = (
        *("row, image, filters", "op. paper", "op.", "transf. paper", "transf."),
        *("combined paper", "combined", "data / weights / total", "reference, ms", "ours, ms"),
        *("executions", "ideal ref.", "limit", "mapping"),
    )
    lines = [f"| {' | '.join(columns)} |", "|" + " --- |" * len(columns)]
    for row in rows:
        stated, found, memory = paper(row), speedups(row), memory_ratio(row)
        cells = [f"{stated[kind]:.3f} | {found[kind]:.3f}" for kind in KINDS]
        ratios = " / ".join(f"{memory[part]:.3f}" for part in ("data", "weights", "total"))
        clock = row["clock_mhz"] * 1e3
        noisy = " *" * any(f["noisy"] for f in (row["reference"], chosen(row)))
        lines.append(
            f"| {row['key']} {name(row)} | {' | '.join(cells)}{noisy} | {ratios} "
            f"| {row['reference']['cycles'] / clock:.3f} | {chosen(row)['cycles'] / clock:.3f} "
            f"| {executions_ratio(row):.2f} | {over_ideal(row):.2f} "
            f"| {limit(row):.2f} | {chosen(row)['mapping']} |"
        )
    means = [
        f"{geometric_mean(paper(row)[kind] for row in rows):.3f} "
        f"| {geometric_mean(speedups(row)[kind] for row in rows):.3f}"
        for kind in KINDS
    ]
    bounds = [
        f"{geometric_mean(map(ratio, rows)):.2f}" for ratio in (executions_ratio, over_ideal, limit)
    ]
    lines.append(f"| geometric mean | {' | '.join(means)} | | | | {' | '.join(bounds)} | |")
    return lines


def plot_table(rows: list[Row], paper: Callable[[Row], Times], folder: Path) -> bool:
    """Operator and combined speed-ups, the paper's beside."""
    series = {
        f"{kind}{source}": [speedup_of(row)[kind] for row in rows]
        for kind in ("operator", "combined")
        for source, speedup_of in ((", paper", paper), ("", speedups))
    }
    labels = [f"{row['key']} {name(row)}" for row in rows]
    title = "Speed-up over the padded reference: operator simulated, transformations measured"
    return bars(labels, series, folder / "results.svg", title=title, logarithmic=True)


LEGEND = (
    "Speed-ups over the padded reference strategy, tuned with at most as many simulations. *op.*:",
    "simulated cycles; *transf.*: packing of the image and unpacking of the result, measured on",
    "the CPU named below (weights are packed ahead); *combined*: cycles at the target's clock plus",
    "the measured time. *executions*: the ratio of instructions executed, which bounds the",
    "operator's speed-up where both keep the GEMM core busy; *ideal ref.*: speed-up over a",
    "reference that reaches its own lower bound. *limit*: the most that any mapping could gain",
    "over that: each accumulator is reset, shifted, clipped and stored on both sides.",
    "\\*: the measured times varied by more than half.",
)
