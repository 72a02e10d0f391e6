"""Number of schedules of implicit convolutions, and the time of planning: table 3.

    python -m experiments.swatop2019.table3.run

Processor time of this machine, of the distinct layers of the networks without the first; minutes.
The time of all methods is that of the rows of ``figures5_8``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from cpembed.targets.scratchpad.space import ScratchpadSpace
from experiments.common import Experiment, Row, load, markdown_table
from experiments.swatop2019 import paper
from experiments.swatop2019.figures5_8.run import layouts
from experiments.swatop2019.layers import Convolution, networks
from experiments.swatop2019.planning import best, products

BATCH = 32
LAYOUT = "NHWC"


@cache
def layers() -> dict[str, Convolution]:
    """Return the layers of the networks but the first, by key."""
    return {layer.key: layer for layer in networks((BATCH,)) if not layer.first}


def compute(key: str) -> Row:
    """Plan a layer, and count its schedules."""
    layer = layers()[key]
    started = time.process_time()
    best([layer.computation(name) for name in layouts(BATCH)])
    implicit = time.process_time() - started
    stored = load(Path(__file__).resolve().parents[1] / "figures5_8")
    seconds_of_all = stored[key]["seconds"]
    workload = layer.computation(LAYOUT)
    number = sum(ScratchpadSpace(product).number for product in products(workload))
    return {
        "group": layer.group,
        "implicit_s": round(implicit, 2),
        "all_methods_s": seconds_of_all,
        "schedules": number,
    }


def markdown(rows: Sequence[Row]) -> list[str]:
    """Return the table."""
    lines: list[list[Any]] = []
    for group, published in paper.TABLE_3.items():
        group_rows = [row for row in rows if row["group"] == group]
        if not group_rows:
            continue
        schedules: list[int] = [row["schedules"] for row in group_rows]
        implicit: list[float] = [row["implicit_s"] for row in group_rows]
        every: float = sum(row["all_methods_s"] for row in group_rows)
        lines.append(
            [
                group,
                str(len(group_rows)),
                f"{sum(schedules):,}",
                f"{sum(schedules) / len(group_rows):,.0f}",
                f"{sum(implicit):.0f} s (longest {max(implicit):.1f} s)",
                f"{every:.0f} s",
                f"{published['total']:,} ({published['average']} a layer)",
                f"{published['swatop_min']} min",
                published["black_box"],
            ]
        )
    head = ["network", "layers", "schedules", "a layer", "implicit, three layouts"]
    paper_head = ["paper: schedules", "paper: swATOP", "paper: black box"]
    return [
        f"Processor time, **measured** on this machine, one process; a batch of {BATCH}. Schedules",
        f"are of {LAYOUT}, of the 32 embeddings that are considered.",
        "",
        *markdown_table([*head, "all methods, all layouts", *paper_head], lines),
    ]


EXPERIMENT = Experiment(
    folder=Path(__file__).resolve().parent,
    description="Spaces and planning time (table 3)",
    keys=tuple(layers()),
    compute=compute,
    markdown=markdown,
    trials=None,
    quick=tuple(layers())[7:8],
    one_origin=True,
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
