"""Table 3: how many schedules implicit convolutions have, and how long planning takes.

    python -m experiments.swatop.planning_time

Processor time of this machine, of the distinct layers of the networks without the first; minutes.
What all methods take is what ``convolutions`` stored.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from functools import cache
from typing import Any

from cpembed.targets.scratchpad.space import ScratchpadSpace
from experiments.swatop import convolutions, paper
from experiments.swatop.layers import Convolution, networks
from experiments.swatop.planning import best, products
from experiments.swatop.rows import HERE, Part, Row, load, table

BATCH = 32
LAYOUT = "NHWC"


@cache
def layers() -> dict[str, Convolution]:
    return {layer.key: layer for layer in networks((BATCH,)) if not layer.first}


def compute(key: str) -> Row:
    layer = layers()[key]
    started = time.process_time()
    best([layer.computation(name) for name in convolutions.layouts(BATCH)])
    implicit = time.process_time() - started
    every = load(HERE, "convolutions")[key]["seconds"]
    workload = layer.computation(LAYOUT)
    number = sum(ScratchpadSpace(product).number for product in products(workload))
    return {
        "group": layer.group,
        "implicit_s": round(implicit, 2),
        "all_methods_s": every,
        "schedules": number,
    }


def markdown(rows: Sequence[Row]) -> list[str]:
    lines: list[list[Any]] = []
    for group, given in paper.TABLE_3.items():
        own = [row for row in rows if row["group"] == group]
        if not own:
            continue
        schedules: list[int] = [row["schedules"] for row in own]
        implicit: list[float] = [row["implicit_s"] for row in own]
        every: float = sum(row["all_methods_s"] for row in own)
        lines.append(
            [
                group,
                str(len(own)),
                f"{sum(schedules):,}",
                f"{sum(schedules) / len(own):,.0f}",
                f"{sum(implicit):.0f} s (longest {max(implicit):.1f} s)",
                f"{every:.0f} s",
                f"{given['total']:,} ({given['average']} a layer)",
                f"{given['swatop_min']} min",
                given["black_box"],
            ]
        )
    head = ["network", "layers", "schedules", "a layer", "implicit, three layouts"]
    theirs = ["paper: schedules", "paper: swATOP", "paper: black box"]
    return [
        f"Processor time, **measured** on this machine, one process; a batch of {BATCH}. Schedules",
        f"are of {LAYOUT}, of the 32 embeddings that are considered.",
        "",
        *table([*head, "all methods, all layouts", *theirs], lines),
    ]


def part() -> Part:
    keys = tuple(layers())
    title = "Spaces and planning time (table 3)"
    return Part("planning_time", title, keys, keys[7:8], compute, markdown)


if __name__ == "__main__":
    sys.exit(part().main())
