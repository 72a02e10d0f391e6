"""Figure 10: what prefetching gains, estimated.

    python -m experiments.swatop.prefetching

Of the configurations of each size and each number of filters the one whose best plan without
prefetching is the most efficient (the paper: "given Ro, Co, we select 8 parameters where baseline
version performs best"); of those, the eight best.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache

from experiments.swatop import paper
from experiments.swatop.convolutions import layouts
from experiments.swatop.layers import Convolution, listing_1
from experiments.swatop.planning import best, efficiency
from experiments.swatop.rows import Part, Row, percent, table

NUMBER = 8
BATCHES = (32,)


@cache
def layers() -> dict[str, Convolution]:
    return {layer.key: layer for layer in listing_1(BATCHES)}


def compute(key: str) -> Row:
    layer = layers()[key]
    options = [layer.computation(name) for name in layouts(layer.batch)]
    chosen = best(options)
    plain = best([options[chosen.option]], buffers=(1,))
    parts = chosen.scored.parts
    return {
        "rows": layer.rows,
        "filters": layer.filters,
        "us": round(chosen.us, 3),
        "efficiency": round(efficiency(layer.macs, chosen.us), 4),
        "plan": chosen.words,
        "same_plan_us": round(parts["transferring_us"] + parts["executing_us"], 3),
        "without_us": round(plain.us, 3),
        "without_efficiency": round(efficiency(layer.macs, plain.us), 4),
        "without": plain.words,
    }


def chosen(rows: Sequence[Row]) -> list[Row]:
    """The eight of the figure."""
    best_of: dict[tuple[int, int], Row] = {}
    for row in rows:
        pair = row["rows"], row["filters"]
        if pair not in best_of or row["without_efficiency"] > best_of[pair]["without_efficiency"]:
            best_of[pair] = row
    return sorted(best_of.values(), key=lambda row: -row["without_efficiency"])[:NUMBER]


def gain(row: Row) -> float:
    """Beyond the best plan of one buffer, which has larger tiles."""
    return row["without_us"] / row["us"] - 1


def gain_of_plan(row: Row) -> float:
    """Beyond the same tiles, computed and transferred in turns."""
    return row["same_plan_us"] / row["us"] - 1


def markdown(rows: Sequence[Row]) -> list[str]:
    eight = chosen(rows)
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
    mean, all_ = (sum(map(gain, some)) / len(some) for some in (eight, rows))
    same, all_same = (sum(map(gain_of_plan, some)) / len(some) for some in (eight, rows))
    return [
        "All times are **estimated**, of one core group. Without prefetching boxes have one",
        "buffer and tiles are chosen anew, larger. *Of the same tiles*: those of the",
        "double-buffered plan, transferred and computed in turns.",
        "",
        *table(head, lines),
        "",
        f"Mean gain of the {len(eight)}: {percent(mean, 1)}, of the same tiles {percent(same, 1)}",
        f"(paper, measured: {percent(paper.PREFETCHING, 1)}). Of all {len(rows)} configurations of",
        f"this batch {percent(all_, 1)}, at most {percent(max(map(gain, rows)), 1)}; of the same",
        f"tiles {percent(all_same, 1)}, at most {percent(max(map(gain_of_plan, rows)), 1)}.",
    ]


def part() -> Part:
    keys = tuple(layers())
    quick = ("listing 1 - b32 c64 k64 16x16 f3 s1",)
    return Part("prefetching", "Prefetching (figure 10)", keys, quick, compute, markdown)


if __name__ == "__main__":
    sys.exit(part().main())
