"""Low-channel and dilated convolutions, the smallest footprint: table 4 of Rieber et al. 2021.

    python experiments/table4/run.py       # all rows that are missing
    python experiments/table4/run.py 1 4   # these

Writes ``results.json``, ``results.md`` and, where matplotlib is installed, ``results.svg`` into
``--output``, by default beside this file; README.md says what is compared.
"""

from __future__ import annotations

import sys
from pathlib import Path

from cpembed.hw.loader import load_hardware_spec
from experiments.footprints.run import Case, cases
from experiments.vta_evaluation.comparison import (
    KINDS,
    LEGEND,
    Times,
    compare,
    plot_table,
    table,
)
from experiments.vta_evaluation.mappings import smallest
from experiments.vta_evaluation.rows import Experiment, Row

PAPER = (
    (116.952, 0.049, 30.692),
    (103.393, 0.047, 26.665),
    (170.802, 0.020, 27.686),
    (1.139, 0.038, 0.272),
    (1.398, 0.046, 0.558),
    (1.023, 0.037, 0.466),
    (0.201, 0.037, 0.168),
    (10.793, 0.053, 1.137),
    (3.310, 0.046, 0.876),
    (3.041, 0.242, 2.191),
    (11.329, 0.023, 1.112),
    (1.816, 0.015, 0.569),
    (2.550, 0.139, 1.829),
    (23.770, 0.486, 18.369),
)
"""Speed-ups of operator, transformation and both, row by row."""

CASES: dict[str, Case] = {str(case.row): case for case in cases() if case.table == "3/4"}


def compute(key: str, trials: int) -> Row:
    """The smallest image and weights together of all mappings of ``relaxed``, tuned."""
    case = CASES[key]
    instruction = load_hardware_spec(case.target).instruction
    return compare(case, smallest(case.workload, instruction, 1), trials)


def paper(row: Row) -> Times:
    return dict(zip(KINDS, PAPER[int(row["key"]) - 1], strict=True))


def markdown(rows: list[Row]) -> list[str]:
    title = "# Table 4: low-channel and dilated convolutions, smallest footprint"
    return [title, "", *LEGEND, "", *table(rows, paper)]


def plot(rows: list[Row], folder: Path) -> bool:
    return plot_table(rows, paper, folder)


EXPERIMENT = Experiment.of_script(__file__, __doc__, tuple(CASES), compute, markdown, plot)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
