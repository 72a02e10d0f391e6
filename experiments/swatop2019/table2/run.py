"""The 559 matrix products of listing 2, in place, estimated: table 2 and figure 11.

    python -m experiments.swatop2019.table2.run

A few minutes. README.md says what is compared with what.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from cpembed.targets.scratchpad.space import ScratchpadSpace
from experiments.common import Experiment, Row, markdown_table, percent
from experiments.swatop2019 import paper
from experiments.swatop2019.borders import cost_without_borders, padded, zeroing_us
from experiments.swatop2019.layers import Product, listing_2
from experiments.swatop2019.planning import best, efficiency

PARTNERS = dict(zip(paper.LISTING_2["unaligned"], (256, 512, 1024, 2048, 4096, 8192), strict=True))
"""Aligned size nearest to an unaligned one."""


@cache
def products() -> dict[str, Product]:
    """Return all products by key."""
    return {product.key: product for product in listing_2()}


def compute(key: str) -> Row:
    """Plan a product."""
    product = products()[key]
    planned = best([product.computation()], ahead=False)
    plans = ScratchpadSpace(planned.product, ahead=False).ranked()
    ideal = cost_without_borders(planned.product, plans)
    return {
        "group": product.group,
        "us": round(planned.us, 3),
        "efficiency": round(efficiency(product.macs, planned.us), 4),
        "without_borders_us": round(ideal, 3),
        "border": round(planned.us / ideal - 1, 4),
        "padded": round(padded(planned.product), 4),
        "zeroing": round(zeroing_us(planned.plan) / planned.us, 5),
        "plan": planned.text,
    }


# ------------------------------------------------------------------------------------------ tables


def markdown(rows: Sequence[Row]) -> list[str]:
    """Return the tables."""
    return [
        "All times are **estimated**, of one core group; efficiency is of 742 GFlops.",
        "",
        *_efficiencies(rows),
        "",
        "## Borders of the unaligned ones",
        "",
        "Of the time: what borders cost beyond the same product on a machine without borders;",
        "what filling boxes with zeros takes (the counterpart of the paper's padding, which",
        "copies); what the product takes beyond the rate of the nearest aligned sizes (256 for",
        "200 and so on). Borders: mean, worst, and of the time of all of them together.",
        "",
        *_borders(rows),
    ]


def _efficiencies(rows: Sequence[Row]) -> list[str]:
    lines: list[list[Any]] = []
    for group in paper.LISTING_2:
        values = [row["efficiency"] for row in rows if row["group"] == group]
        if not values:
            continue
        published = paper.TABLE_2[group]
        faster = f"{published['faster']} faster (+{percent(published['by'], 1)}), "
        slower = f"{published['slower']} slower (-{percent(published['slower_by'], 1)})"
        mean = sum(values) / len(values)
        line = [group, len(values), percent(mean, 1), percent(min(values), 1)]
        lines.append([*line, percent(max(values), 1), faster + slower])
    head = ["products", "number", "mean efficiency", "least", "most"]
    return markdown_table([*head, "paper: swATOP beside xMath (table 2), measured"], lines)


def partner(row: Row, by_key: dict[str, Row]) -> float | None:
    """Return how much more time a product takes than at the efficiency of the aligned one."""
    sizes = [PARTNERS[int(size)] for size in row["key"].split()]
    aligned = by_key.get(" ".join(map(str, sizes)))
    return None if aligned is None else aligned["efficiency"] / row["efficiency"] - 1


def _borders(rows: Sequence[Row]) -> list[str]:
    unaligned = [row for row in rows if row["group"] == "unaligned"]
    by_key = {row["key"]: row for row in rows}

    def which(row: Row) -> tuple[bool, int]:
        sizes = [int(size) for size in row["key"].split()]
        return sizes[1] == 200, min(sizes)

    kinds: list[tuple[str, Callable[[Row], bool]]] = [
        ("all", lambda row: True),
        ("n = 200", lambda row: which(row)[0]),
        ("n from 500, smallest size 200", lambda row: not which(row)[0] and which(row)[1] == 200),
        ("smallest size 500", lambda row: which(row)[1] == 500),
        ("smallest size from 1000", lambda row: which(row)[1] >= 1000),
    ]
    lines: list[list[Any]] = []
    for name, holds in kinds:
        kind_rows = [row for row in unaligned if holds(row)]
        if not kind_rows:
            continue
        beside_aligned = [
            excess for row in kind_rows if (excess := partner(row, by_key)) is not None
        ]
        line: list[Any] = [name, len(kind_rows), _spread(kind_rows)]
        for values in (
            [row["padded"] for row in kind_rows],
            [row["zeroing"] for row in kind_rows],
            beside_aligned,
        ):
            mean = sum(values) / len(values) if values else 0.0
            line.append(f"{percent(mean, 1)}, worst {percent(max(values, default=0.0), 1)}")
        lines.append([*line, f"{sum(row['border'] < paper.PADDING for row in kind_rows)}"])
    head = ["products", "number", "borders", "padded products", "filling with zeros"]
    return markdown_table([*head, "beside aligned ones", "borders below 5 %"], lines)


def _spread(rows: Sequence[Row]) -> str:
    values = [row["border"] for row in rows]
    total = sum(row["us"] for row in rows) / sum(row["without_borders_us"] for row in rows) - 1
    mean = percent(sum(values) / len(values), 1)
    return f"{mean}, worst {percent(max(values), 1)}, together {percent(total, 1)}"


EXPERIMENT = Experiment(
    folder=Path(__file__).resolve().parent,
    description="Matrix products on SW26010 (table 2, figure 11)",
    keys=tuple(products()),
    compute=compute,
    markdown=markdown,
    trials=None,
    quick=("1000 1000 1000", "1024 1024 1024", "500 2000 200", "512 2048 256"),
    one_origin=True,
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
