"""Low-channel and dilated convolutions, the smallest footprint: table 4 of Rieber et al. 2021.

    python -m experiments.rieber2021.table4.run       # all rows that are missing
    python -m experiments.rieber2021.table4.run 1 4   # these

Writes ``results.json``, ``results.md`` and, where matplotlib is installed, ``results.svg`` into
``--output``, by default beside this file; README.md says what is compared.
"""

from __future__ import annotations

import sys
from typing import Any

from cpembed.hw.loader import load_hardware_spec
from experiments.rieber2021.comparison import compare, table_experiment
from experiments.rieber2021.footprints.run import Case, cases
from experiments.rieber2021.mappings import smallest

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


def compute(key: str, trials: int) -> dict[str, Any]:
    """Tune the mapping of ``relaxed`` with the smallest image and weights together."""
    case = CASES[key]
    instruction = load_hardware_spec(case.target).instruction
    return compare(case, smallest(case.workload, instruction, 1), trials)


EXPERIMENT = table_experiment(
    __file__,
    __doc__,
    title="Table 4: low-channel and dilated convolutions, smallest footprint",
    cases=CASES,
    compute=compute,
    paper=PAPER,
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
