"""Rows of tables 3 to 5: mappings of a workload against the reference strategy with padding."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cpembed.errors import LoweringError
from cpembed.hw.loader import load_hardware_spec
from cpembed.ir.computation import Computation
from cpembed.targets.vta.estimate import store_cycles
from cpembed.targets.vta.specification import vta_config
from cpembed.targets.vta.timing import MemorySystem
from experiments.common import Experiment, Row, bars, described, geometric_mean
from experiments.rieber2021.execution import Execution
from experiments.rieber2021.footprints.run import Case
from experiments.rieber2021.mappings import Mapping, digits_text
from experiments.rieber2021.tuning import Target, tune, tune_reference

KINDS = {"operator": "Op.", "transformation": "Transf.", "combined": "Combined"}
"""The paper's columns."""

PASSES = 4
"""Cycles for each accumulator beside its products: reset, shift, and two for clipping."""

Times = dict[str, float]
"""Microseconds by :data:`KINDS`."""


def compare(case: Case, mappings: list[Mapping], trials: int) -> Row:
    """Return a row: every mapping tuned, beside the reference.

    Mappings that could still be the best combined are executed, and their transformations timed.
    """
    reference = _reference(case.naive, case.target, trials)
    target = Target.open(case.target, case.workload)
    execution = Execution(case.workload)
    entries: list[dict[str, Any]] = []
    tuned = []
    for mapping in mappings:
        try:
            tuned.append((mapping, tune(mapping.candidate, target, trials)))
        except LoweringError as error:
            entries.append({**_mapping_entry(mapping), "refused": str(error)})
    fastest = float("inf")
    for mapping, result in sorted(tuned, key=lambda item: item[1].cycles):
        row = {**_mapping_entry(mapping), **result.to_json()}
        if result.cycles / target.clock_mhz < fastest:
            row |= execution.times(result.lowered)
            fastest = min(fastest, times(row, target.clock_mhz)["combined"])
        entries.append(row)
    return {
        "workload": str(case.workload),
        "extents": dict(case.workload.extents),
        "image": list(case.workload.operand("I").shape),
        "target": case.target,
        "clock_mhz": target.clock_mhz,
        "trials": trials,
        "verified": True,
        "reference": reference,
        "candidates": entries,
    }


def _reference(workload: Computation, target_name: str, trials: int) -> dict[str, Any]:
    target = Target.open(target_name, workload)
    tuned = tune_reference(workload, target, trials)
    packed = {t.name: t.packed.elements for t in tuned.lowered.nest.factors}
    moves = Execution(workload).times(tuned.lowered)
    return {**tuned.to_json(), **moves, "elements": packed}


def _mapping_entry(mapping: Mapping) -> dict[str, Any]:
    return {
        "id": mapping.identifier,
        "mapping": digits_text(mapping.candidate.embedding),
        "found_in": list(mapping.found_in),
        "elements": mapping.elements,
    }


def times(entry: dict[str, Any], clock_mhz: float) -> Times:
    """Return the operator's simulated time, the transformations' measured time, and their sum."""
    operator = entry["cycles"] / clock_mhz
    transformation = entry["packing_us"] + entry["unpacking_us"]
    return {
        "operator": operator,
        "transformation": transformation,
        "combined": operator + transformation,
    }


def best_candidate(row: Row) -> dict[str, Any]:
    """Return the candidate with the best combined time."""
    measured = [entry for entry in row["candidates"] if "packing_us" in entry]
    return min(measured, key=lambda entry: times(entry, row["clock_mhz"])["combined"])


def speedups(row: Row) -> Times:
    """Return the speed-ups of the best candidate; 1 if neither side moves anything."""
    clock = row["clock_mhz"]
    reference, candidate = times(row["reference"], clock), times(best_candidate(row), clock)
    return {kind: reference[kind] / candidate[kind] if candidate[kind] else 1.0 for kind in KINDS}


def executions_ratio(row: Row) -> float:
    """Return the reference's executions over the best candidate's.

    It bounds the operator's speed-up if both keep the GEMM core busy.
    """
    return row["reference"]["executions"] / best_candidate(row)["executions"]


def limit(row: Row) -> float:
    """Return the largest gain that any mapping could have over a reference at its lower bound.

    The ideal mapping multiplies no padding, but resets, shifts and clips its accumulators all the
    same, and stores its results.
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


def operator_remark(rows: list[Row]) -> str:
    """Return a line of Markdown: the gain of the operator alone, and its limit by executions."""
    fastest = [min(_timed_candidates(row), key=lambda entry: entry["cycles"]) for row in rows]
    pairs = list(zip(rows, fastest, strict=True))
    gain, allowed_gain = (
        geometric_mean(row["reference"][count] / entry[count] for row, entry in pairs)
        for count in ("cycles", "executions")
    )
    return (
        f"- operator alone, of the mapping with the fewest cycles: {gain:.2f} in the geometric "
        f"mean; its executions alone would allow {allowed_gain:.2f}"
    )


def _timed_candidates(row: Row) -> list[dict[str, Any]]:
    return [entry for entry in row["candidates"] if "cycles" in entry]


def over_ideal(row: Row) -> float:
    """Return the speed-up over a reference that reaches its own lower bound."""
    return row["reference"]["bound"] / best_candidate(row)["cycles"]


def memory_ratio(row: Row) -> dict[str, float]:
    """Return data, weights and both relative to the reference as it is packed."""
    candidate, reference = best_candidate(row)["elements"], row["reference"]["elements"]
    return {
        "data": candidate["I"] / reference["I"],
        "weights": candidate["W"] / reference["W"],
        "total": sum(candidate.values()) / sum(reference.values()),
    }


def case_label(row: Row) -> str:
    """Return image and filters as the paper writes them."""
    extents = row["extents"]
    image = ", ".join(map(str, row["image"]))
    return f"({image}) ({extents['k']}, {extents['c']}, {extents['r']}, {extents['s']})"


def table(rows: list[Row], paper: Callable[[Row], Times]) -> list[str]:
    """Return the lines of a table with the paper's numbers, and geometric means in the last one."""
    columns = (
        *("row, image, filters", "op. paper", "op.", "transf. paper", "transf."),
        *("combined paper", "combined", "data / weights / total", "reference, ms", "ours, ms"),
        *("executions", "ideal ref.", "limit", "mapping"),
    )
    lines = [f"| {' | '.join(columns)} |", "|" + " --- |" * len(columns)]
    for row in rows:
        stated, speedup, memory = paper(row), speedups(row), memory_ratio(row)
        candidate = best_candidate(row)
        cells = [f"{stated[kind]:.3f} | {speedup[kind]:.3f}" for kind in KINDS]
        ratios = " / ".join(f"{memory[part]:.3f}" for part in ("data", "weights", "total"))
        clock = row["clock_mhz"] * 1e3
        noisy = " *" * any(f["noisy"] for f in (row["reference"], candidate))
        lines.append(
            f"| {row['key']} {case_label(row)} | {' | '.join(cells)}{noisy} | {ratios} "
            f"| {row['reference']['cycles'] / clock:.3f} | {candidate['cycles'] / clock:.3f} "
            f"| {executions_ratio(row):.2f} | {over_ideal(row):.2f} "
            f"| {limit(row):.2f} | {candidate['mapping']} |"
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


def table_experiment(
    script: str,
    docstring: str | None,
    *,
    title: str,
    cases: dict[str, Case],
    compute: Callable[[str, int], Row],
    paper: Sequence[Sequence[float]],
    remarks: Callable[[list[Row]], list[str]] = lambda rows: [],
) -> Experiment:
    """Return the experiment of one of the paper's tables.

    Parameters
    ----------
    script, docstring : str
        File of the experiment, and its docstring.
    title : str
        Title of the page.
    cases : dict of str to Case
        Rows of the paper's table by key.
    compute : callable
        Function from a key and a number of trials to a row of :func:`compare`.
    paper : sequence of sequences of float
        Speed-ups that the paper states, row by row, in the order of :data:`KINDS`.
    remarks : callable
        Function from the rows to lines below the table.
    """

    def stated_speedups(row: Row) -> Times:
        return dict(zip(KINDS, paper[int(row["key"]) - 1], strict=True))

    def markdown(rows: list[Row]) -> list[str]:
        return [f"# {title}", "", *LEGEND, "", *table(rows, stated_speedups), *remarks(rows)]

    def plot(rows: list[Row], folder: Path) -> bool:
        return _plot(rows, stated_speedups, folder)

    return Experiment(
        **described(script, docstring),
        keys=tuple(cases),
        compute=compute,
        markdown=markdown,
        plot=plot,
    )


def _plot(rows: list[Row], paper: Callable[[Row], Times], folder: Path) -> bool:
    series = {
        f"{kind}{source}": [speedup_of(row)[kind] for row in rows]
        for kind in ("operator", "combined")
        for source, speedup_of in ((", paper", paper), ("", speedups))
    }
    labels = [f"{row['key']} {case_label(row)}" for row in rows]
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
