"""Gains of prefetching, estimated: figure 10.

    python -m experiments.swatop2019.figure10.run

Of the configurations of each size and each number of filters the one whose best plan without
prefetching is the most efficient (the paper: "given Ro, Co, we select 8 parameters where baseline
version performs best"); of those, the eight best.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from experiments.common import Experiment, Row, markdown_table, percent
from experiments.swatop2019 import paper
from experiments.swatop2019.figures5_8.run import layouts
from experiments.swatop2019.layers import Convolution, listing_1
from experiments.swatop2019.planning import best, efficiency

NUMBER = 8
BATCHES = (32,)


@cache
def layers() -> dict[str, Convolution]:
    """Return the configurations by key."""
    return {layer.key: layer for layer in listing_1(BATCHES)}


def compute(key: str) -> Row:
    """Plan a configuration with two buffers and with one."""
    layer = layers()[key]
    options = [layer.computation(name) for name in layouts(layer.batch)]
    double_buffered = best(options)
    single_buffered = best([options[double_buffered.option]], buffers=(1,))
    parts = double_buffered.scored.parts
    return {
        "rows": layer.rows,
        "filters": layer.filters,
        "us": round(double_buffered.us, 3),
        "efficiency": round(efficiency(layer.macs, double_buffered.us), 4),
        "plan": double_buffered.text,
        "same_plan_us": round(parts["transferring_us"] + parts["executing_us"], 3),
        "without_us": round(single_buffered.us, 3),
        "without_efficiency": round(efficiency(layer.macs, single_buffered.us), 4),
        "without": single_buffered.text,
    }


def figure_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the eight of the figure."""
    best_of: dict[tuple[int, int], Row] = {}
    for row in rows:
        pair = row["rows"], row["filters"]
        if pair not in best_of or row["without_efficiency"] > best_of[pair]["without_efficiency"]:
            best_of[pair] = row
    return sorted(best_of.values(), key=lambda row: -row["without_efficiency"])[:NUMBER]


def gain(row: Row) -> float:
    """Return the gain over the best plan of one buffer, which has larger tiles."""
    return row["without_us"] / row["us"] - 1


def gain_of_plan(row: Row) -> float:
    """Return the gain over the same tiles, computed and transferred in turns."""
    return row["same_plan_us"] / row["us"] - 1


def markdown(rows: Sequence[Row]) -> list[str]:
    """Return the table and the means."""
    eight = figure_rows(rows)
    lines = [
        [
            row["key"].removeprefix("listing 1 - "),
            percent(row["without_efficiency"]),
            percent(row["efficiency"]),
            "+" + percent(gain(row), 1),
            "+" + percent(gain_of_plan(row), 1),
        ]
        for row in eight
    ]
    head = ["configuration", "best of one buffer", "double-buffered", "gain", "of the same tiles"]
    mean, all_mean = (sum(map(gain, group)) / len(group) for group in (eight, rows))
    same, same_all = (sum(map(gain_of_plan, group)) / len(group) for group in (eight, rows))
    most = max(map(gain, rows))
    return [
        "All times are **estimated**, of one core group. Without prefetching boxes have one",
        "buffer and tiles are chosen anew, larger. *Of the same tiles*: those of the",
        "double-buffered plan, transferred and computed in turns.",
        "",
        *markdown_table(head, lines),
        "",
        f"Mean gain of the {len(eight)}: {percent(mean, 1)}, of the same tiles {percent(same, 1)}",
        f"(paper, measured: {percent(paper.PREFETCHING, 1)}). Of all {len(rows)} configurations of",
        f"this batch {percent(all_mean, 1)}, at most {percent(most, 1)}; of the same",
        f"tiles {percent(same_all, 1)}, at most {percent(max(map(gain_of_plan, rows)), 1)}.",
    ]


EXPERIMENT = Experiment(
    folder=Path(__file__).resolve().parent,
    description="Prefetching (figure 10)",
    keys=tuple(layers()),
    compute=compute,
    markdown=markdown,
    trials=None,
    quick=("listing 1 - b32 c64 k64 16x16 f3 s1",),
    one_origin=True,
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
