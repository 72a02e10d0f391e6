"""Table 2 and figure 11: the 559 matrix products of listing 2, in place, estimated.

    python -m experiments.swatop.products

A few minutes. README.md says what is compared with what.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from cpembed.targets.scratchpad.space import ScratchpadSpace
from experiments.swatop import paper
from experiments.swatop.borders import padded, without, zeroing_us
from experiments.swatop.layers import Product, listing_2
from experiments.swatop.planning import best, efficiency
from experiments.swatop.rows import Part, Row, percent, table

PARTNERS = dict(zip(paper.LISTING_2["unaligned"], (256, 512, 1024, 2048, 4096, 8192), strict=True))
"""The aligned size nearest to an unaligned one."""


@cache
def products() -> dict[str, Product]:
    """By key."""
    return {product.key: product for product in listing_2()}


def compute(key: str) -> Row:
    product = products()[key]
    planned = best([product.computation()], ahead=False)
    plans = ScratchpadSpace(planned.product, ahead=False).ranked()
    ideal = without(planned.product, plans)
    return {
        "group": product.group,
        "us": round(planned.us, 3),
        "efficiency": round(efficiency(product.macs, planned.us), 4),
        "without_borders_us": round(ideal, 3),
        "border": round(planned.us / ideal - 1, 4),
        "padded": round(padded(planned.product), 4),
        "zeroing": round(zeroing_us(planned.plan) / planned.us, 5),
        "plan": planned.words,
    }


# ------------------------------------------------------------------------------------------ tables


def markdown(rows: Sequence[Row]) -> list[str]:
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
        given = paper.TABLE_2[group]
        faster = f"{given['faster']} faster (+{percent(given['by'], 1)}), "
        slower = f"{given['slower']} slower (-{percent(given['slower_by'], 1)})"
        mean = sum(values) / len(values)
        line = [group, len(values), percent(mean, 1), percent(min(values), 1)]
        lines.append([*line, percent(max(values), 1), faster + slower])
    head = ["products", "number", "mean efficiency", "least", "most"]
    return table([*head, "paper: swATOP beside xMath (table 2), measured"], lines)


def partner(row: Row, by: dict[str, Row]) -> float | None:
    """How much more time than at the efficiency of the aligned product next to it."""
    sizes = [PARTNERS[int(size)] for size in row["key"].split()]
    other = by.get(" ".join(map(str, sizes)))
    return None if other is None else other["efficiency"] / row["efficiency"] - 1


def _borders(rows: Sequence[Row]) -> list[str]:
    unaligned = [row for row in rows if row["group"] == "unaligned"]
    by = {row["key"]: row for row in rows}

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
        own = [row for row in unaligned if holds(row)]
        if not own:
            continue
        beside = [found for row in own if (found := partner(row, by)) is not None]
        line: list[Any] = [name, len(own), _spread(own)]
        for values in (
            [row["padded"] for row in own],
            [row["zeroing"] for row in own],
            beside,
        ):
            mean = sum(values) / len(values) if values else 0.0
            line.append(f"{percent(mean, 1)}, worst {percent(max(values, default=0.0), 1)}")
        lines.append([*line, f"{sum(row['border'] < paper.PADDING for row in own)}"])
    head = ["products", "number", "borders", "padded products", "filling with zeros"]
    return table([*head, "beside aligned ones", "borders below 5 %"], lines)


def _spread(rows: Sequence[Row]) -> str:
    values = [row["border"] for row in rows]
    together = sum(row["us"] for row in rows) / sum(row["without_borders_us"] for row in rows) - 1
    mean = percent(sum(values) / len(values), 1)
    return f"{mean}, worst {percent(max(values), 1)}, together {percent(together, 1)}"


def part() -> Part:
    quick = ("1000 1000 1000", "1024 1024 1024", "500 2000 200", "512 2048 256")
    title = "Matrix products on SW26010 (table 2, figure 11)"
    return Part("products", title, tuple(products()), quick, compute, markdown)


if __name__ == "__main__":
    sys.exit(part().main())
