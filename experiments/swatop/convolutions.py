"""Figures 5 to 8 and table 1: convolutions by three methods, at three batches, estimated.

    python -m experiments.swatop.convolutions [--jobs 2]

Hours of processor time; it resumes. README.md says what is compared with what.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from cpembed.errors import LoweringError, WorkloadError
from cpembed.ir.computation import Computation
from cpembed.targets.scratchpad.methods import method_plan
from cpembed.transform.methods.convolution import Rewritten, explicit
from cpembed.transform.methods.winograd import winograd
from experiments.swatop import paper
from experiments.swatop.layers import Convolution, listing_1, networks
from experiments.swatop.planning import best, efficiency, machine, peak
from experiments.swatop.rows import Part, Row, percent, table

METHODS: Mapping[str, Callable[[Computation], Rewritten]] = {
    "explicit": explicit,
    "winograd_2x2": lambda workload: winograd(workload, 2),
    "winograd_4x4": lambda workload: winograd(workload, 4),
}

GROUPS = ("VGG16", "ResNet", "Yolo", "listing 1")


@cache
def layers() -> dict[str, Convolution]:
    """By key."""
    return {layer.key: layer for layer in networks(paper.BATCHES) + listing_1(paper.BATCHES)}


def layouts(batch: int) -> tuple[str, ...]:
    """Those that make sense: a batch contiguous where there is one, channels, pixels."""
    return ("HWCN", "NHWC", "NCHW") if batch > 1 else ("NHWC", "NCHW")


def compute(key: str) -> Row:
    layer = layers()[key]
    found: dict[str, Any] = {}
    if not layer.first:
        found["implicit"] = implicit(layer)
    names = ["explicit"] if layer.taps > 1 or layer.first else []
    if layer.taps == 3 and layer.stride == 1 and not layer.first:
        names += ["winograd_2x2", "winograd_4x4"]
    for name in names:
        method = rewritten(layer, METHODS[name])
        if method is not None:
            found[name] = method
    return {"group": layer.group, "batch": layer.batch, "macs": layer.macs, "methods": found}


def implicit(layer: Convolution) -> Row:
    names = layouts(layer.batch)
    planned = best([layer.computation(name) for name in names])
    return {
        "us": round(planned.us, 3),
        "efficiency": round(efficiency(layer.macs, planned.us), 4),
        "layout": names[planned.option],
        "plan": planned.words,
        "compared": planned.compared,
    }


def rewritten(layer: Convolution, method: Callable[[Computation], Rewritten]) -> Row | None:
    """The layout in which the parts and the product together are fastest; None where no layout has
    generated parts.
    """
    found: Row | None = None
    for layout in ("NHWC", "NCHW"):
        try:
            parts = method_plan(method(layer.computation(layout)), machine())
            if found is not None and parts.parts_us + parts.product.macs / peak() > found["us"]:
                continue
            product = best([parts.product])
        except (LoweringError, WorkloadError):
            continue
        us = parts.parts_us + product.us
        if found is None or us < found["us"]:
            found = {
                "us": round(us, 3),
                "efficiency": round(efficiency(layer.macs, us), 4),
                "layout": layout,
                "parts_us": round(parts.parts_us, 3),
                "product_us": round(product.us, 3),
                "product_efficiency": round(efficiency(parts.product.macs, product.us), 4),
                "plan": product.words,
            }
    return found


# ------------------------------------------------------------------------------------------ tables


def markdown(rows: Sequence[Row]) -> list[str]:
    lines = [
        "All times are **estimated**, of one core group; efficiency is that of a direct",
        "convolution, of 742 GFlops. The paper's figures were measured on four core groups.",
    ]
    for group in GROUPS:
        own = [row for row in rows if row["group"] == group]
        if own:
            lines += ["", f"## {group}", "", *_summary(own, group)]
    return [*lines, "", *_layouts(rows)]


def _summary(rows: Sequence[Row], group: str) -> list[str]:
    head = ["method", "batch", "cases", "mean efficiency", "geometric mean", "least", "most"]
    listed = group == "listing 1"
    lines: list[list[str]] = []
    for name in ("implicit", "explicit", "winograd_2x2", "winograd_4x4", "best of all"):
        for batch in paper.BATCHES:
            values = efficiencies(rows, name, batch)
            if not values:
                continue
            line = [name, str(batch), str(len(values)), percent(sum(values) / len(values))]
            line += [percent(geometric(values)), percent(min(values)), percent(max(values))]
            if listed:
                given = paper.EFFICIENCY.get(name, {}).get(batch)
                line += ["-" if given is None else f"{given:.0%}".replace("%", " %")]
                line += [paper.TABLE_1.get(name, {}).get(batch, "-")]
            lines.append(line)
    more = ["paper's efficiency (figure 8)", "paper's cases faster (table 1)"] if listed else []
    return table(head + more, lines)


def efficiencies(rows: Sequence[Row], method: str, batch: int) -> list[float]:
    """Of the rows of a batch that have a method; of the fastest one, ``best of all``."""
    own = [row["methods"] for row in rows if row["batch"] == batch]
    if method == "best of all":
        return [max(found["efficiency"] for found in each.values()) for each in own]
    return [each[method]["efficiency"] for each in own if method in each]


def geometric(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def _layouts(rows: Sequence[Row]) -> list[str]:
    """Which layout and which method is the fastest, by batch."""
    lines: list[list[Any]] = []
    for batch in paper.BATCHES:
        own = [row["methods"] for row in rows if row["batch"] == batch]
        chosen = [each["implicit"]["layout"] for each in own if "implicit" in each]
        fastest = [max(each, key=lambda name: each[name]["efficiency"]) for each in own]
        lines.append(
            [
                batch,
                ", ".join(f"{name} {chosen.count(name)}" for name in ("HWCN", "NHWC", "NCHW")),
                ", ".join(f"{name} {fastest.count(name)}" for name in ("implicit", *METHODS)),
            ]
        )
    return ["## Choices", "", *table(["batch", "layout (implicit)", "fastest method"], lines)]


def part() -> Part:
    keys = tuple(layers())
    quick = ("VGG16 8 b1 c512 k512 14x14 f3 s1", "listing 1 - b32 c64 k64 16x16 f3 s1")
    title = "Convolutions on SW26010 (figures 5 to 8, table 1)"
    return Part("convolutions", title, keys, quick, compute, markdown)


if __name__ == "__main__":
    sys.exit(part().main())
