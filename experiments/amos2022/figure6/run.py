"""AMOS's figure 6: operators beside PyTorch (parts a and b), convolutions beside cuDNN (part c).

    python -m experiments.amos2022.figure6.run                          # the model's estimates
    python -m experiments.amos2022.figure6.run --results results.json   # measured by a pack

The pack is ``cpembed bench amos --target mma_f16 --pack``, or, for part c alone,
``python -m benchmarks.gpu.pack --suite amos12``. A library's time is PyTorch's call of cuDNN or
cuBLAS, where it has one. Writes ``results.json`` and ``results.md``; estimates take a minute of
processor time.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from cpembed.workloads.suites import suite
from experiments.common import Row, markdown_table
from experiments.gpu_figures import (
    BEST,
    FigureLayer,
    cell,
    figure_parser,
    figure_rows,
    mean_of,
    ratios,
    with_products,
    write_figure,
)

FOLDER = Path(__file__).resolve().parent

LIBRARIES = ("cuDNN", "cuBLAS")
PAPER = {
    "PyTorch, 15 operators, A100": 2.80,
    "PyTorch, 15 operators, V100": 2.50,
    "cuDNN, C2D in NCHW, A100": 2.38,
}
"""AMOS's speed-up in the geometric mean (section 7.3)."""

IN_TENSOR_CORES = (
    "GMV",
    "GMM",
    "C1D",
    "C2D",
    "C3D",
    "T2D",
    "GRP",
    "DIL",
    "DEP",
    "CAP",
    "BCV",
    "GFC",
)
"""Operators of the suite with products, in the order of the paper; the pack_layers only add."""


def layers() -> dict[str, tuple[str, FigureLayer]]:
    """Return the operator of each layer, and the layer, by its name in a pack."""
    by_name: dict[str, tuple[str, FigureLayer]] = {}
    for layer in suite("amos"):
        operator = layer.application
        if operator in IN_TENSOR_CORES:
            name = f"amos:{layer.index}"
            by_name[name] = operator, FigureLayer(name, with_products(layer.label))
    return by_name


def with_packs_names(rows: Mapping[str, Row]) -> dict[str, Row]:
    """Return rows under the suite's names; the pack of part c has another for the same layers."""
    return {
        name.replace("amos12:", "amos:").removesuffix(" batch 1"): row for name, row in rows.items()
    }


def fastest_library(rows: Mapping[str, Row]) -> dict[str, float]:
    """Return the time of the fastest library over ours, by layer."""
    by_library = [ratios(rows, name) for name in LIBRARIES]
    return {
        key: min(speed_ups[key] for speed_ups in by_library if key in speed_ups)
        for key in rows
        if any(key in speed_ups for speed_ups in by_library)
    }


def markdown(rows: Mapping[str, Row], origin: str) -> tuple[list[str], dict[str, float | None]]:
    """Return the page and the means."""
    lines = [
        f"# Operators on Tensor Cores (AMOS, figure 6), {origin}",
        "",
        "*ours* is the geometric mean of the microseconds of an operator, *library* that of",
        "a library over ours: above 1, ours is faster. The paper has bars without numbers; its",
        "text states the means.",
        "",
    ]
    table: list[list[str]] = []
    speed_ups = fastest_library(rows)
    for operator in IN_TENSOR_CORES:
        names = [name for name, (kind, _) in layers().items() if kind == operator and name in rows]
        us = {name: rows[name]["us"][BEST] for name in names if BEST in rows[name]["us"]}
        library = {name: speed_ups[name] for name in names if name in speed_ups}
        table.append([operator, str(len(us)), cell(mean_of(us)), cell(mean_of(library))])
    lines += markdown_table(["operator", "layers", "ours, us", "library"], table)
    convolutions = {n: r for n, r in rows.items() if n in layers() and layers()[n][0] == "C2D"}
    figures = {
        "PyTorch, all operators": mean_of(speed_ups),
        "cuDNN, C2D": mean_of(ratios(convolutions, "cuDNN")),
    }
    means = [[name, cell(value)] for name, value in figures.items()]
    lines += ["", *markdown_table(["speed-up over", "ours"], means)]
    paper = [[name, cell(value)] for name, value in PAPER.items()]
    return [*lines, "", *markdown_table(["the paper's speed-up over", "measured"], paper)], figures


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    options = figure_parser(__doc__, FOLDER).parse_args(arguments)
    figure_layers = [layer for _, layer in layers().values()]
    if options.results is not None:
        pack_layers = [
            FigureLayer(f"{layer.name.replace('amos:', 'amos12:')} batch 1", layer.words)
            for layer in figure_layers
        ]
        figure_layers = [*figure_layers, *pack_layers]
    rows, origin = figure_rows(figure_layers, options)
    rows = with_packs_names(rows)
    lines, figures = markdown(rows, origin)
    write_figure(options, rows, lines, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
