"""Effect of the shape of a matrix product, the freer embeddings are.

    python -m experiments.studies.shapes.run

Writes ``results.md`` and ``results.json`` into ``--output``, by default beside this file; README.md
says what is compared. All figures are computed, none is measured.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.embedding.constraint_set import load_constraint_set
from cpembed.exploration.shapes.choice import (
    Costs,
    SetChoice,
    best_one,
    best_sets,
    best_two,
    undominated,
)
from cpembed.exploration.shapes.question import Question, tabulate, weighted
from cpembed.exploration.shapes.shape import Extents, Model, Scope, Shape, read_layers, template
from cpembed.runtime.cluster import open_workers
from cpembed.runtime.measurement.environment import provenance, provenance_lines
from cpembed.steps import silent
from experiments.common import results_parser, write_results

FOLDER = Path(__file__).resolve().parent
SUITES = ("resnet50", "deepbench", "mobilenet", "gemm")
MACS = (256, 1024)
SETS = ("strict", "in_place_padded", "relaxed", "complete")
SIDE = 16
"""Rows and columns of the shape that is compared with the best.

Its depth is MACs / 256; for 256 MACs it is that of Tensor Cores.
"""

SECONDS = 120.0
"""Time limit of the search for three shapes."""


def examine(suite: str, macs: int, constraints: str) -> dict[str, Any]:
    """Examine one suite under one set at one budget.

    Parameters
    ----------
    suite : str
        Name of the suite.
    macs : int
        Maximum product of a shape's extents.
    constraints : str
        Name of the constraint set.
    """
    started = time.perf_counter()
    scope, constraint_set = Scope(macs), load_constraint_set(constraints)
    layers = read_layers(Model(suite), template())
    with open_workers() as workers:
        tables = tabulate(layers, Question(scope, 3, constraint_set), workers, silent)
    used = [n for n, table in enumerate(tables) if table.reason is None]
    costs = weighted(layers, tables, used)
    useful = sum(layers.workloads[n].macs * layers.weight(n) for n in used)
    shapes = scope.shapes
    undominated_shapes = undominated(costs, shapes.prod(axis=1))
    totals = costs.sum(axis=0)
    few = costs[:, undominated_shapes]
    choices = [best_one(few), best_two(few), best_sets(few, 3, SECONDS)]
    best = float(totals.min())
    return {
        "suite": suite,
        "macs": macs,
        "constraints": constraints,
        "layers": sum(layer.computation in used for layer in layers.layers),
        "left_out": sum(layer.computation not in used for layer in layers.layers),
        "shapes": len(shapes),
        "not_dominated": len(undominated_shapes),
        "ideal": math.ceil(useful / macs),
        "best": [of_sets(choice, shapes[undominated_shapes]) for choice in choices],
        "square": ratio(totals, shapes, [SIDE, SIDE, macs // SIDE**2], best),
        "whole_powers": spread(totals[full_powers(shapes, macs)], best),
        "maximal": spread(totals[maximal(shapes, macs)], best),
        "worst_not_dominated": spread(totals[undominated_shapes], best)["worst"],
        "seconds": round(time.perf_counter() - started, 2),
    }


def of_sets(choice: SetChoice, shapes: Extents) -> dict[str, Any]:
    """Return the best set of shapes of a choice."""
    names = [str(Shape(*map(int, shapes[n]))) for n in choice.sets[0]]
    return {"shapes": names, "executions": int(choice.costs[0]), "proven": choice.proven}


def full_powers(shapes: Extents, macs: int) -> NDArray[np.bool_]:
    """Return the shapes of powers of two that use the entire budget, as a mask."""
    powers = (shapes & (shapes - 1) == 0).all(axis=1)
    return powers & (shapes.prod(axis=1) == macs)


def maximal(shapes: Extents, macs: int) -> NDArray[np.bool_]:
    """Return the shapes of which no extent can grow by one within the budget, as a mask."""
    product = shapes.prod(axis=1)
    grown = [product // shapes[:, axis] * (shapes[:, axis] + 1) for axis in range(3)]
    return np.minimum.reduce(grown) > macs


def ratio(totals: Costs, shapes: Extents, shape: list[int], best: float) -> float | None:
    """Return the executions of one shape relative to the best; None if it does not fit every layer.

    Parameters
    ----------
    totals : Costs
        Executions of each shape.
    shapes : Extents
        All shapes.
    shape : list of int
        Extents of the one shape.
    best : float
        Least executions of all shapes.
    """
    (place,) = np.flatnonzero((shapes == shape).all(axis=1))
    return finite(float(totals[place]) / best)


def spread(totals: Costs, best: float) -> dict[str, Any]:
    """Return the executions of several shapes relative to the best."""
    fitting = totals[np.isfinite(totals)] / best
    listed = sorted(fitting.tolist())
    return {
        "shapes": len(totals),
        "fitting": len(listed),
        "median": statistics.median(listed) if listed else None,
        "worst": listed[-1] if listed else None,
        "within_5_percent": sum(value <= 1.05 for value in listed),
    }


def finite(value: float) -> float | None:
    """Return a value, or None for infinity."""
    return value if math.isfinite(value) else None


def markdown(document: dict[str, Any]) -> str:
    """Return the tables."""
    return "\n".join(_lines(document)) + "\n"


def _lines(document: dict[str, Any]) -> Iterator[str]:
    yield "# Shapes of a matrix product"
    yield ""
    yield "Computed by `run.py`; README.md says what the columns are."
    for suite in SUITES:
        for macs in MACS:
            rows = [r for r in document["rows"] if (r["suite"], r["macs"]) == (suite, macs)]
            yield ""
            yield f"## {suite}, {macs:,} MACs: {rows[0]['layers']} layers"
            yield ""
            yield (
                "| set | ideal | best shape | / ideal | two | / ideal | three | / ideal | not "
                f"dominated | {SIDE}x{SIDE}x{macs // SIDE**2} | powers: fit | median | worst | "
                "maximal: fit | median | worst | within 5 % |"
            )
            yield "| --- |" + " ---: |" * 16
            yield from map(_row, rows)
    yield ""
    yield from provenance_lines(document, f"computed in {document['seconds']:.0f} s")


def _row(row: dict[str, Any]) -> str:
    cells = [row["constraints"], f"{row['ideal']:,}"]
    for choice in row["best"]:
        mark = "" if choice["proven"] else " (not proven)"
        cells += [" ".join(choice["shapes"]) + mark, f"{choice['executions'] / row['ideal']:.4f}"]
    cells += [f"{row['not_dominated']} of {row['shapes']:,}", _times(row["square"])]
    for name in ("whole_powers", "maximal"):
        shapes = row[name]
        fit = f"{shapes['fitting']:,} of {shapes['shapes']:,}"
        cells += [fit, _times(shapes["median"]), _times(shapes["worst"])]
    near = row["maximal"]
    cells.append(f"{near['within_5_percent'] / near['shapes']:.0%}")
    return "| " + " | ".join(cells) + " |"


def _times(value: float | None) -> str:
    return "none" if value is None else f"x{value:.3f}"


def main() -> int:
    """Run the command; return its exit code."""
    folder: Path = results_parser(__doc__, FOLDER).parse_args().output
    started = time.perf_counter()
    rows: list[dict[str, Any]] = []
    for suite in SUITES:
        for macs in MACS:
            for constraints in SETS:
                rows.append(examine(suite, macs, constraints))
                print(suite, macs, constraints, rows[-1]["seconds"], file=sys.stderr)
    seconds = round(time.perf_counter() - started, 1)
    document: dict[str, Any] = {"rows": rows, "seconds": seconds, **provenance()}
    write_results(folder, document, markdown(document))
    return 0


if __name__ == "__main__":
    sys.exit(main())
