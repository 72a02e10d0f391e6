"""How much the shape of a matrix product still matters, the freer embeddings are.

    python experiments/shapes/run.py

Writes ``results.md`` and ``results.json`` into ``--output``, by default beside this file; README.md
says what is compared. All figures are computed, none is measured.
"""

from __future__ import annotations

import argparse
import json
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
from cpembed.exploration.shapes.shape import Extents, Model, Scope, Shape, read_layers
from cpembed.runtime.cluster import open_workers
from cpembed.runtime.measurement.environment import provenance, provenance_lines

HERE = Path(__file__).resolve().parent
SUITES = ("resnet50", "deepbench", "mobilenet", "gemm")
MACS = (256, 1024)
SETS = ("strict", "in_place_padded", "relaxed", "complete")
SIDE = 16
"""Of the shape that is shown beside the best: 16 x 16 x (MACs / 256), that of Tensor Cores."""

SECONDS = 120.0
"""For three shapes."""


def examine(suite: str, macs: int, constraints: str) -> dict[str, Any]:
    """One suite under one set at one budget."""
    started = time.perf_counter()
    scope, chosen = Scope(macs), load_constraint_set(constraints)
    layers = read_layers(Model(suite))
    with open_workers() as workers:
        tables = tabulate(layers, Question(scope, 3, chosen), workers, silent)
    used = [n for n, found in enumerate(tables) if found.reason is None]
    costs = weighted(layers, tables, used)
    useful = sum(layers.workloads[n].macs * layers.weight(n) for n in used)
    shapes = scope.shapes
    kept = undominated(costs, shapes.prod(axis=1))
    totals = costs.sum(axis=0)
    few = costs[:, kept]
    found = [best_one(few), best_two(few), best_sets(few, 3, SECONDS)]
    best = float(totals.min())
    return {
        "suite": suite,
        "macs": macs,
        "constraints": constraints,
        "layers": sum(layer.computation in used for layer in layers.layers),
        "left_out": sum(layer.computation not in used for layer in layers.layers),
        "shapes": len(shapes),
        "not_dominated": len(kept),
        "ideal": math.ceil(useful / macs),
        "best": [of_sets(item, shapes[kept]) for item in found],
        "square": ratio(totals, shapes, [SIDE, SIDE, macs // SIDE**2], best),
        "whole_powers": spread(totals[whole_powers(shapes, macs)], best),
        "maximal": spread(totals[maximal(shapes, macs)], best),
        "worst_not_dominated": spread(totals[kept], best)["worst"],
        "seconds": round(time.perf_counter() - started, 2),
    }


def silent(what: str, done: int, total: int) -> None:
    """No progress."""


def of_sets(found: SetChoice, shapes: Extents) -> dict[str, Any]:
    names = [str(Shape(*map(int, shapes[n]))) for n in found.sets[0]]
    return {"shapes": names, "executions": int(found.costs[0]), "proven": found.proven}


def whole_powers(shapes: Extents, macs: int) -> NDArray[np.bool_]:
    """Shapes of powers of two that use the whole budget."""
    powers = (shapes & (shapes - 1) == 0).all(axis=1)
    return powers & (shapes.prod(axis=1) == macs)


def maximal(shapes: Extents, macs: int) -> NDArray[np.bool_]:
    """Shapes of which no extent can grow by one within the budget."""
    product = shapes.prod(axis=1)
    grown = [product // shapes[:, axis] * (shapes[:, axis] + 1) for axis in range(3)]
    return np.minimum.reduce(grown) > macs


def ratio(totals: Costs, shapes: Extents, wanted: list[int], best: float) -> float | None:
    """Executions of one shape relative to the best; None where it does not fit every layer."""
    (place,) = np.flatnonzero((shapes == wanted).all(axis=1))
    return finite(float(totals[place]) / best)


def spread(totals: Costs, best: float) -> dict[str, Any]:
    """Executions of several shapes relative to the best."""
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
    return value if math.isfinite(value) else None


def markdown(document: dict[str, Any]) -> str:
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
    for found in row["best"]:
        mark = "" if found["proven"] else " (not proven)"
        cells += [" ".join(found["shapes"]) + mark, f"{found['executions'] / row['ideal']:.4f}"]
    cells += [f"{row['not_dominated']} of {row['shapes']:,}", _times(row["square"])]
    for name in ("whole_powers", "maximal"):
        found = row[name]
        fit = f"{found['fitting']:,} of {found['shapes']:,}"
        cells += [fit, _times(found["median"]), _times(found["worst"])]
    near = row["maximal"]
    cells.append(f"{near['within_5_percent'] / near['shapes']:.0%}")
    return "| " + " | ".join(cells) + " |"


def _times(value: float | None) -> str:
    return "none" if value is None else f"x{value:.3f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--output", type=Path, default=HERE, help="folder of the results")
    folder: Path = parser.parse_args().output
    started = time.perf_counter()
    rows: list[dict[str, Any]] = []
    for suite in SUITES:
        for macs in MACS:
            for constraints in SETS:
                rows.append(examine(suite, macs, constraints))
                print(suite, macs, constraints, rows[-1]["seconds"], file=sys.stderr)
    seconds = round(time.perf_counter() - started, 1)
    document: dict[str, Any] = {"rows": rows, "seconds": seconds, **provenance()}
    text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    (folder / "results.json").write_text(text, encoding="utf-8")
    (folder / "results.md").write_text(markdown(document), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
