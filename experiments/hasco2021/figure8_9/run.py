"""Arrays and banks, exhaustively: HASCO's figures 8 and 9.

    python -m experiments.hasco2021.figure8_9.run --workers 2

Writes ``results.json``, ``results.md`` and, if matplotlib is installed, ``figure8.svg`` and
``figure9.svg`` into ``--output``, by default beside this file; some 20 minutes on one core. What is
computed is kept in ``--results`` and used again.
"""

from __future__ import annotations

import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from cpembed.exploration.explore import open_exploration
from cpembed.exploration.objectives import read_objectives
from cpembed.runtime.cluster import open_workers
from cpembed.runtime.measurement.environment import provenance, provenance_lines
from experiments.common import load_document, pyplot, results_parser, save_figure, write_results

FOLDER = Path(__file__).resolve().parent
SHARED = FOLDER.parent
"""Folder of the files that several experiments on HASCO share."""

SPACES = {"conv2d": "conv_array_banks.toml", "gemm": "gemm_array_banks.toml"}
NAMES = ("latency", "power", "area")
UNITS = ("cycles", "W", "mm2")
LOW_LATENCY = 0.05
"""Share of the largest latency up to which the paper compares power."""

PAPER_RATIO = 121.16


def evaluate(space: str, workers: int, results: Path) -> list[list[float]]:
    """Return rows, columns, banks, cycles, W and mm2 of every point."""
    exploration = open_exploration(
        SHARED / space,
        str(SHARED / "xception6.csv"),
        objectives=["cycles", "power", "area"],
        bounds=False,
        results=results,
    )
    with open_workers(workers, compiles=False) as crew:
        for step in exploration.run(crew):
            print(
                f"\r{space}: {step.doing} {step.completed}/{step.total}   ", end="", file=sys.stderr
            )
    print(file=sys.stderr)
    objectives = read_objectives(["cycles", "power", "area"])
    return [
        [
            *(int(point.point[name]) for name in ("pe_rows", "pe_columns", "banks")),
            *(float(f"{point.value(objective):.6g}") for objective in objectives),
        ]
        for point in sorted(exploration.evaluated, key=lambda point: point.number)
    ]


def ranks(values: np.ndarray) -> np.ndarray:
    """Return the places of values in ascending order; equal values share the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2)[inverse]


def spearman(first: np.ndarray, second: np.ndarray) -> float:
    """Return the rank correlation."""
    return float(np.corrcoef(ranks(first), ranks(second))[0, 1])


def summary(rows: list[list[float]]) -> dict[str, Any]:
    """Return what the paper states of its figures, of these points."""
    table = np.array(rows)
    elements, banks = table[:, 0] * table[:, 1], table[:, 2]
    values = {name: table[:, 3 + n] for n, name in enumerate(NAMES)}
    fast = values["latency"] <= LOW_LATENCY * values["latency"].max()
    least = table[values["latency"] == values["latency"].min()]
    smallest = least[np.argmin(least[:, 0] * least[:, 1] * 100 + least[:, 2])]
    statistics: dict[str, Any] = {
        "points": len(rows),
        "correlation": {
            f"{first}, {second}": spearman(values[first], values[second])
            for first, second in (("latency", "power"), ("latency", "area"), ("power", "area"))
        },
        "correlation_with_elements": {n: spearman(elements, v) for n, v in values.items()},
        "correlation_with_banks": {n: spearman(banks, v) for n, v in values.items()},
        "power_ratio_at_low_latency": float(
            values["power"][fast].max() / values["power"][fast].min()
        ),
        "points_at_low_latency": int(fast.sum()),
        "power_ratio": float(values["power"].max() / values["power"].min()),
        "least_latency": {
            "pe_rows": int(smallest[0]),
            "pe_columns": int(smallest[1]),
            "banks": int(smallest[2]),
            "cycles": float(smallest[3]),
        },
    }
    statistics["longer_with_more"] = {
        name: _longer(table, axis) for axis, name in enumerate(("rows", "columns", "banks"))
    }
    statistics["latency_of_the_largest"] = float(values["latency"][-1] / values["latency"].min())
    return statistics


def _longer(table: np.ndarray, axis: int) -> float:
    """Return the share of neighbours along an axis of which the larger machine takes longer."""
    lines: dict[tuple[float, ...], list[tuple[float, float]]] = {}
    for row in table:
        key = tuple(row[n] for n in range(3) if n != axis)
        lines.setdefault(key, []).append((row[axis], row[3]))
    pairs = [pair for line in lines.values() for pair in pairwise(sorted(line))]
    return sum(after[1] > before[1] * (1 + 1e-9) for before, after in pairs) / len(pairs)


def markdown(document: dict[str, Any]) -> str:
    """Return the paper's statements with the paper's figures and ours."""
    conv, gemm = (document["spaces"][name]["summary"] for name in SPACES)

    def row(words: str, paper: str, *path: str, form: str = "{:.2f}") -> str:
        cells: list[str] = []
        for space in (conv, gemm):
            value: Any = space
            for key in path:
                value = value[key]
            cells.append(form.format(value))
        return f"| {words} | {paper} | {' | '.join(cells)} |"

    def place(space: dict[str, Any]) -> str:
        least = space["least_latency"]
        return f"{least['pe_rows']} x {least['pe_columns']}, {least['banks']} banks"

    return "\n".join(
        [
            "# Figures 8 and 9 of HASCO: arrays and banks, exhaustively",
            "",
            f"Six convolutions of Xception on {conv['points']:,} points of each space; estimated.",
            "",
            *provenance_lines(document, "estimated by the neutral model"),
            "",
            "| | paper (CONV2D) | CONV2D | GEMM |",
            "| --- | --- | ---: | ---: |",
            row("power and area, rank correlation", "positive", "correlation", "power, area"),
            row("latency and power", "-", "correlation", "latency, power"),
            row("latency and area", "-", "correlation", "latency, area"),
            row("power and elements", "grows", "correlation_with_elements", "power"),
            row("power and banks", "grows", "correlation_with_banks", "power"),
            row("area and elements", "grows", "correlation_with_elements", "area"),
            row("area and banks", "grows", "correlation_with_banks", "area"),
            row("latency and elements", "has a least", "correlation_with_elements", "latency"),
            row("latency and banks", "has a least", "correlation_with_banks", "latency"),
            row(
                f"power, largest over smallest at {LOW_LATENCY} of the largest latency and less",
                f"{PAPER_RATIO}x",
                "power_ratio_at_low_latency",
                form="{:.2f}x",
            ),
            row("points there", "-", "points_at_low_latency", form="{}"),
            row("power, largest over smallest of all", "-", "power_ratio", form="{:.1f}x"),
            f"| least latency at | inside | {place(conv)} | {place(gemm)} |",
            row(
                "latency of 32 x 32 with 8 banks over the least",
                "above 1",
                "latency_of_the_largest",
                form="{:.3f}",
            ),
            *(
                row(
                    f"neighbours of which the one with more {name} takes longer",
                    "-",
                    "longer_with_more",
                    name,
                    form="{:.1%}",
                )
                for name in ("rows", "columns", "banks")
            ),
            "",
        ]
    )


def plot(document: dict[str, Any], folder: Path) -> bool:
    """Draw both plots; return False if matplotlib is not installed."""
    plt = pyplot()
    if plt is None:
        return False
    tables = {name: np.array(document["spaces"][name]["rows"]) for name in SPACES}
    figure, panels = plt.subplots(len(SPACES), 3, figsize=(12, 7))
    for line, (name, table) in zip(panels, tables.items(), strict=True):
        normal = table[:, 3:] / table[:, 3:].max(axis=0)
        for panel, (x, y) in zip(line, ((0, 1), (0, 2), (2, 1)), strict=True):
            panel.scatter(normal[:, x], normal[:, y], s=4, rasterized=True)
            panel.set_xlabel(f"{NAMES[x]} (normalised)")
            panel.set_ylabel(f"{NAMES[y]} (normalised)")
            panel.set_title(name.upper(), fontsize=9)
    figure.tight_layout()
    save_figure(figure, folder / "figure8.svg")
    figure, panels = plt.subplots(len(SPACES), 3, figsize=(12, 8))
    for line, (name, table) in zip(panels, tables.items(), strict=True):
        _maps(figure, line, name, table)
    figure.tight_layout()
    save_figure(figure, folder / "figure9.svg")
    return True


def _maps(figure: Any, panels: Any, name: str, table: np.ndarray) -> None:
    """Draw the values of arrays, in the order of their elements, by banks."""
    arrays = sorted({(int(r), int(c)) for r, c in table[:, :2]}, key=lambda a: (a[0] * a[1], a))
    place = {array: n for n, array in enumerate(arrays)}
    for n, panel in enumerate(panels):
        image = np.full((len(arrays), int(table[:, 2].max())), np.nan)
        for row in table:
            image[place[int(row[0]), int(row[1])], int(row[2]) - 1] = row[3 + n]
        picture = panel.imshow(
            np.log10(image) if n == 0 else image,
            aspect="auto",
            origin="lower",
            # A pixel for each point: what matplotlib interpolates takes ten times the bytes.
            interpolation="none",
            extent=(0.5, image.shape[1] + 0.5, 0, len(arrays)),
        )
        ticks = np.linspace(0, len(arrays) - 1, 6).astype(int)
        panel.set_yticks(ticks + 0.5, [f"{arrays[t][0]} x {arrays[t][1]}" for t in ticks])
        panel.set_xlabel("banks")
        unit = f"log10 of {UNITS[n]}" if n == 0 else UNITS[n]
        panel.set_title(f"{name.upper()}: {NAMES[n]} ({unit})", fontsize=9)
        figure.colorbar(picture, ax=panel)


def main() -> None:
    """Run the command."""
    parser = results_parser(__doc__, FOLDER)
    parser.add_argument("--results", type=Path, help="folder that keeps what is computed")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--rewrite", action="store_true", help="tables and plots from the JSON")
    options = parser.parse_args()
    if options.rewrite:
        document = load_document(options.output)
    else:
        with tempfile.TemporaryDirectory() as scratch:
            results = options.results or Path(scratch)
            spaces = {
                name: {"rows": evaluate(file, options.workers, results)}
                for name, file in SPACES.items()
            }
        document = {**provenance(), "spaces": spaces}
    for space in document["spaces"].values():
        space["summary"] = summary(space["rows"])
    write_results(options.output, document, markdown(document))
    plot(document, options.output)


if __name__ == "__main__":
    main()
