"""Low-channel and dilated convolutions, the best combined: table 3 of Rieber et al. 2021.

    python -m experiments.rieber2021.table3.run       # all rows that are missing
    python -m experiments.rieber2021.table3.run 1 4   # these

Writes ``results.json``, ``results.md`` and, where matplotlib is installed, ``results.svg`` into
``--output``, by default beside this file; README.md says what is compared.
"""

from __future__ import annotations

import sys
from typing import Any

from experiments.rieber2021.comparison import compare, operator_remark, table_experiment
from experiments.rieber2021.footprints.run import Case, cases
from experiments.rieber2021.mappings import best_by_score

PAPER = (
    (117.697, 0.095, 48.089),
    (104.199, 0.070, 35.411),
    (170.802, 0.020, 27.686),
    (1.139, 0.038, 0.272),
    (1.485, 0.053, 0.618),
    (1.023, 0.037, 0.466),
    (1.193, 0.013, 0.244),
    (10.793, 0.053, 1.137),
    (3.310, 0.046, 0.876),
    (13.599, 0.463, 6.973),
    (11.338, 0.089, 3.380),
    (11.355, 0.066, 2.737),
    (2.550, 0.139, 1.829),
    (23.770, 0.486, 18.369),
)
"""Speed-ups of operator, transformation and both, row by row."""

CASES: dict[str, Case] = {str(case.row): case for case in cases() if case.table == "3/4"}


def compute(key: str, trials: int) -> dict[str, Any]:
    """Tune the best five mappings of each constraint set by score."""
    case = CASES[key]
    return compare(case, best_by_score(case.workload, case.target), trials)


EXPERIMENT = table_experiment(
    __file__,
    __doc__,
    title="Table 3: low-channel and dilated convolutions, best combined",
    cases=CASES,
    compute=compute,
    paper=PAPER,
    remarks=lambda rows: ["", operator_remark(rows)],
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
