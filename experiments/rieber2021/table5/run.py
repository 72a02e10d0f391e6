"""Convolutions of batch 1 on 8x8x8, the best combined: table 5 of Rieber et al. 2021.

    python -m experiments.rieber2021.table5.run       # all rows that are missing
    python -m experiments.rieber2021.table5.run 1 4   # these

Writes ``results.json``, ``results.md`` and, where matplotlib is installed, ``results.svg`` into
``--output``, by default beside this file; README.md says what is compared.
"""

from __future__ import annotations

import sys
from typing import Any

from experiments.rieber2021.comparison import compare, table_experiment
from experiments.rieber2021.footprints.run import Case, cases
from experiments.rieber2021.mappings import best_by_score

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


def compute(key: str, trials: int) -> dict[str, Any]:
    """Tune the best five mappings of each constraint set by score."""
    case = CASES[key]
    return compare(case, best_by_score(case.workload, case.target), trials)


EXPERIMENT = table_experiment(
    __file__,
    __doc__,
    title="Table 5: batch 1 on 8x8x8, best combined",
    cases=CASES,
    compute=compute,
    paper=PAPER,
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
