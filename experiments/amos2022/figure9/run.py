"""AMOS's figure 9: a free choice of the mapping beside two fixed ones and cuDNN.

    python -m experiments.amos2022.figure9.run                          # the model's estimates
    python -m experiments.amos2022.figure9.run --results results.json   # measured by a pack

The pack is ``python -m benchmarks.gpu.pack --suite amos12``: the twelve convolutions of ResNet-18
at batch 1 and 16, channels last. Estimates of fixed mappings are those of ../tensor_core_mappings,
which has the figure's own instruction, WMMA. Writes ``results.json`` and ``results.md``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.documents import read_document
from cpembed.workloads.suites import suite
from experiments.common import Row, markdown_table
from experiments.gpu_figures import (
    BEST,
    cell,
    figure_parser,
    mean_of,
    measured_rows,
    ratios,
    write_figure,
)

FOLDER = Path(__file__).resolve().parent
MAPPINGS = FOLDER.parent / "tensor_core_mappings" / "results.json"

PAPER = {"im2col": 1 / (1 - 0.368), "fuse_hw": 1 / (1 - 0.319), "cuDNN": 2.38}
"""Times over AMOS's own, A100, geometric means.

Section 7.6 states that the performance of the fixed mappings drops by 36.8 % and 31.9 %, section
7.3 the speed-up over cuDNN on the same layers.
"""

BATCHES = (1, 16)


def layers() -> dict[str, tuple[int, int]]:
    """Return the batch and the number among C0 to C11 of each layer, by its name in the pack."""
    convolutions = [layer for layer in suite("amos") if layer.application == "C2D"]
    return {
        f"amos12:{layer.index} batch {batch}": (batch, number)
        for batch in BATCHES
        for number, layer in enumerate(convolutions)
    }


def estimated_rows() -> dict[str, Row]:
    """Return the estimates of the free and the fixed mappings, by the layer's name in the pack."""
    rows = read_document(MAPPINGS)["rows"]
    return {
        f"amos12:{row['layer']} batch {row['batch']}": {
            "key": f"amos12:{row['layer']} batch {row['batch']}",
            "us": {BEST if name == "free" else name: us for name, us in row["us"].items()},
        }
        for row in rows
    }


def markdown(rows: Mapping[str, Row], origin: str) -> tuple[list[str], dict[str, float | None]]:
    """Return the page and the means."""
    lines = [
        f"# Free and fixed mappings (AMOS, figure 9), {origin}",
        "",
        "Times over those of the fastest of our kernels; geometric means. *im2col* is the paper's",
        "AMOS-fixM1, *fuse_hw* its AMOS-fixM2.",
        "",
    ]
    figures: dict[str, float | None] = {}
    for batch in BATCHES:
        some = {
            name: rows[name]
            for name, (size, _) in layers().items()
            if size == batch and name in rows
        }
        for name in PAPER:
            figures[f"{name} batch {batch}"] = mean_of(ratios(some, name))
    table = [
        [name, *(cell(figures[f"{name} batch {batch}"]) for batch in BATCHES), cell(value)]
        for name, value in PAPER.items()
    ]
    lines += markdown_table(["", "batch 1", "batch 16", "paper (batch 1, measured)"], table)
    lines.append("")
    cells: list[list[str]] = []
    for name, (batch, number) in layers().items():
        if name in rows:
            us = rows[name]["us"]
            times_over = [us[key] / us[BEST] if key in us else None for key in PAPER]
            cells.append([f"C{number}", str(batch), cell(us[BEST]), *map(cell, times_over)])
    return [*lines, *markdown_table(["layer", "batch", "us", *PAPER], cells)], figures


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    options = figure_parser(__doc__, FOLDER).parse_args(arguments)
    if options.results is None:
        rows, origin = estimated_rows(), "estimated for an a100"
    else:
        rows, device = measured_rows(options.results)
        origin = f"measured on {device}"
    lines, figures = markdown(rows, origin)
    write_figure(options, rows, lines, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
