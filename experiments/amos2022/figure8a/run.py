"""AMOS's figure 8a: convolutions of ResNet-18 on AVX-512 VNNI, beside TVM's MetaSchedule.

    python -m experiments.amos2022.figure8a.run              # all rows that are missing
    python -m experiments.amos2022.figure8a.run C8 C8/1      # a layer of 16 images, and of one
    python -m experiments.amos2022.figure8a.run --quick      # one layer, printed only

Writes ``results.json``, ``results.md`` and, if matplotlib is installed, ``results.svg`` into
``--output``, by default beside this file; README.md says what is counted.
"""

from __future__ import annotations

import sys
from pathlib import Path

from experiments.common import Experiment, Row, bars, described, markdown_table
from experiments.cpu import (
    LABELS,
    byte_target,
    comparison_cells,
    comparison_head,
    mean_line,
    measured_layer,
    missing_target,
    notes,
    ratio,
)

LAYERS = Path(__file__).resolve().parent / "layers.csv"
"""Layers C0 to C11 of table 5, of 16 images as there and, behind them, of one."""
COUNT, BATCH = 12, 16
KEYS = tuple(f"C{n}" for n in range(COUNT)) + tuple(f"C{n}/1" for n in range(COUNT))
"""C0 to C11 of 16 images, then of one."""

PAPER_MEAN = 1.37
"""Speed-up of AMOS over TVM's hand-written template for VNNI (section 7.5)."""
PAPER_SLOWER = "C2"
"""The only layer on which AMOS is slower than TVM (section 7.5)."""
PAPER_MACHINE = "Intel Xeon Silver 4110 (section 7.1)"

ABOUT = """\
# Convolutions on AVX-512 VNNI beside TVM's MetaSchedule (AMOS, figure 8a)

Written by `run.py`. Measured here: the contraction on packed operands, in turns with each library
on its own packed operands, on all cores of the process. MetaSchedule tunes each layer by 100
trials; oneDNN has no part in the paper's figure. Above 1 ours is faster. Each result was compared
with the reference bit for bit. * disturbed by other work."""


def compute(key: str) -> Row:
    """Time a layer on all cores in turns with MetaSchedule, tuned by 100 trials, and oneDNN."""
    target = byte_target()
    assert target is not None
    return measured_layer(str(LAYERS), KEYS.index(key), target, list(LABELS))


def markdown(rows: list[Row]) -> list[str]:
    """Return a table for each number of images, and what the paper states."""
    lines = ABOUT.splitlines()
    for images in (BATCH, 1):
        part = [row for row in rows if images_of(row["key"]) == images]
        if part:
            lines += ["", f"## {images} image{'s' * (images > 1)}", "", *_table(part), ""]
            stated = f"the paper's AMOS over TVM: {PAPER_MEAN} on average"
            lines.append(mean_line(part, "tvm", stated))
            lines.append(mean_line(part, "onednn", "no counterpart in the paper"))
    return [
        *lines,
        "",
        f"- the paper measured on {PAPER_MACHINE}, beside TVM's hand-written template, and",
        f"  states the mean and that AMOS is faster on all layers but {PAPER_SLOWER}; its bars are",
        "  drawn only",
        *notes(rows),
    ]


def images_of(key: str) -> int:
    """Return the number of images of a row."""
    return 1 if key.endswith("/1") else BATCH


def _table(rows: list[Row]) -> list[str]:
    head = ["layer", ""]
    for name in LABELS:
        head += comparison_head(name)
    cells: list[list[str]] = []
    for row in rows:
        cells.append([row["key"], f"`{row['layer']}`"])
        for name in LABELS:
            cells[-1] += comparison_cells(row, name)
    return markdown_table(head, cells)


def plot(rows: list[Row], folder: Path) -> bool:
    """Draw the ratios to each library, with the paper's mean; nothing if none was compared."""
    names = [name for name in LABELS if any(ratio(row, name) for row in rows)]
    if not names:
        return False
    values = {LABELS[name]: [ratio(row, name) or 0.0 for row in rows] for name in names}
    values["AMOS's mean over TVM as stated"] = [PAPER_MEAN] * len(rows)
    title = "Convolutions of ResNet-18: a library's time over ours"
    return bars([row["key"] for row in rows], values, folder / "results.svg", title=title)


EXPERIMENT = Experiment(
    **described(__file__, __doc__),
    keys=KEYS,
    compute=compute,
    markdown=markdown,
    plot=plot,
    trials=None,
    missing=lambda key: missing_target(),
    quick=("C10/1",),
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
