"""UNIT's figure 13: the convolutions of ResNet-18 made three-dimensional, beside oneDNN.

    python -m experiments.unit2021.figure13.run            # all rows that are missing
    python -m experiments.unit2021.figure13.run --quick    # one layer, printed only

Writes ``results.json``, ``results.md`` and, if matplotlib is installed, ``results.svg`` into
``--output``, by default beside this file; ../README.md says what is counted.
"""

from __future__ import annotations

import sys
from pathlib import Path

from cpembed.workloads.suites import suite
from experiments.common import Experiment, Row, bars, described, markdown_table
from experiments.cpu import (
    byte_target,
    comparison_cells,
    comparison_head,
    mean_line,
    measured_layer,
    missing_target,
    notes,
    ratio,
)
from experiments.unit2021.paper import FIGURE13_CUT, FIGURE13_MEAN, VNNI_MACHINE

SUITE, LIBRARY = "unit_conv3d", "onednn"


def compute(key: str) -> Row:
    """Time a layer on all cores in turns with oneDNN."""
    target = byte_target()
    assert target is not None
    return measured_layer(SUITE, int(key), target, [LIBRARY])


def markdown(rows: list[Row]) -> list[str]:
    """Return the table, the mean, and what the paper states."""
    cut = ", ".join(map(str, FIGURE13_CUT))
    head = ("layer", "", *comparison_head(LIBRARY))
    cells = [(row["key"], f"`{row['layer']}`", *comparison_cells(row, LIBRARY)) for row in rows]
    stated = f"the paper's UNIT over oneDNN: {FIGURE13_MEAN} on average"
    return [
        "# 3-D convolutions beside oneDNN (UNIT, figure 13)",
        "",
        "Written by `run.py`. Measured here: the contraction on packed operands and oneDNN's own",
        "account of its computation, in turns, on all cores of the process. Above 1 ours is",
        "faster. Each result was compared with the reference bit for bit. * disturbed by other",
        "work.",
        "",
        *markdown_table(head, cells),
        "",
        mean_line(rows, LIBRARY, stated),
        f"- the paper measured on {VNNI_MACHINE}; its text states the mean, and its chart the bars",
        f"  that leave the axis, {cut} times oneDNN, without naming the layers of the others",
        *notes(rows),
    ]


def plot(rows: list[Row], folder: Path) -> bool:
    """Draw the ratios beside the paper's mean."""
    compared = [row for row in rows if ratio(row, LIBRARY) is not None]
    if not compared:
        return False
    values = {
        "ours": [ratio(row, LIBRARY) or 0.0 for row in compared],
        "UNIT's mean as stated": [FIGURE13_MEAN] * len(compared),
    }
    labels = [row["key"] for row in compared]
    title = "3-D convolutions of ResNet-18: oneDNN's time over ours"
    return bars(labels, values, folder / "results.svg", title=title)


EXPERIMENT = Experiment(
    **described(__file__, __doc__),
    keys=tuple(str(layer.index) for layer in suite(SUITE)),
    compute=compute,
    markdown=markdown,
    plot=plot,
    trials=None,
    missing=lambda key: missing_target(),
    quick=("3",),
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
