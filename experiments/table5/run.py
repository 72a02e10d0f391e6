"""Convolutions of batch 1 on 8x8x8, the best combined: table 5 of Rieber et al. 2021.

    python experiments/table5/run.py       # all rows that are missing
    python experiments/table5/run.py 1 4   # these

Writes ``results.json``, ``results.md`` and, where matplotlib is installed, ``results.svg`` into
``--output``, by default beside this file; README.md says what is compared.
"""

from __future__ import annotations

import sys
from pathlib import Path

from experiments.footprints.run import Case, cases
from experiments.vta_evaluation.comparison import (
    KINDS,
    LEGEND,
    Times,
    compare,
    plot_table,
    table,
)
from experiments.vta_evaluation.mappings import best_by_score
from experiments.vta_evaluation.rows import Experiment, Row

PAPER = (
    (1.60, 0.89, 1.13),
    (6.64, 3.31, 4.27),
    (12.65, 6.20, 7.71),
    (3.85, 1.47, 2.47),
    (12.00, 4.42, 8.22),
    (8.04, 11.93, 9.47),
    (5.62, 9.10, 8.44),
    (4.60, 4.12, 4.32),
    (10.27, 6.39, 6.73),
    (6.95, 5.14, 5.46),
)
"""Speed-ups of operator, transformation and both, row by row."""

CASES: dict[str, Case] = {str(case.row): case for case in cases() if case.table == "5"}


def compute(key: str, trials: int) -> Row:
    """The best five of each constraint set by score, tuned."""
    case = CASES[key]
    return compare(case, best_by_score(case.workload, case.target), trials)


def paper(row: Row) -> Times:
    return dict(zip(KINDS, PAPER[int(row["key"]) - 1], strict=True))


def markdown(rows: list[Row]) -> list[str]:
    title = "# Table 5: batch 1 on 8x8x8, best combined"
    return [title, "", *LEGEND, "", *table(rows, paper)]


def plot(rows: list[Row], folder: Path) -> bool:
    return plot_table(rows, paper, folder)


EXPERIMENT = Experiment.of_script(__file__, __doc__, tuple(CASES), compute, markdown, plot)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
