"""Convolutions by three methods, at three batches, estimated: figures 5 to 8 and table 1.

    python -m experiments.swatop2019.figures5_8.run [--jobs 2]

Hours of processor time; it resumes. README.md says what is compared with what.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from cpembed.errors import LoweringError, WorkloadError
from cpembed.ir.computation import Computation
from cpembed.targets.scratchpad.methods import method_plan
from cpembed.transform.methods.convolution import Rewritten, explicit
from cpembed.transform.methods.winograd import winograd
from experiments.common import Experiment, Row, geometric_mean, markdown_table, percent
from experiments.swatop2019 import paper
from experiments.swatop2019.layers import Convolution, listing_1, networks
from experiments.swatop2019.planning import best, efficiency, machine, peak

METHODS: Mapping[str, Callable[[Computation], Rewritten]] = {
    "explicit": explicit,
    "winograd_2x2": lambda workload: winograd(workload, 2),
    "winograd_4x4": lambda workload: winograd(workload, 4),
}

GROUPS = ("VGG16", "ResNet", "Yolo", "listing 1")


@cache
def layers() -> dict[str, Convolution]:
    """Return all layers by key."""
    return {layer.key: layer for layer in networks(paper.BATCHES) + listing_1(paper.BATCHES)}


def layouts(batch: int) -> tuple[str, ...]:
    """Return the layouts that make sense: a batch contiguous if there is one, channels, pixels."""
    return ("HWCN", "NHWC", "NCHW") if batch > 1 else ("NHWC", "NCHW")


def compute(key: str) -> Row:
    """Plan a layer by all methods that it has."""
    layer = layers()[key]
    results: dict[str, Any] = {}
    if not layer.first:
        results["implicit"] = implicit(layer)
    names = ["explicit"] if layer.taps > 1 or layer.first else []
    if layer.taps == 3 and layer.stride == 1 and not layer.first:
        names += ["winograd_2x2", "winograd_4x4"]
    for name in names:
        method = rewritten(layer, METHODS[name])
        if method is not None:
            results[name] = method
    return {"group": layer.group, "batch": layer.batch, "macs": layer.macs, "methods": results}


def implicit(layer: Convolution) -> Row:
    """Plan a layer by the implicit method, in its best layout."""
    names = layouts(layer.batch)
    planned = best([layer.computation(name) for name in names])
    return {
        "us": round(planned.us, 3),
        "efficiency": round(efficiency(layer.macs, planned.us), 4),
        "layout": names[planned.option],
        "plan": planned.text,
        "compared": planned.compared,
    }


def rewritten(layer: Convolution, method: Callable[[Computation], Rewritten]) -> Row | None:
    """Plan a layer by a method, in the layout in which parts and product are fastest.

    None if no layout has generated parts.
    """
    fastest: Row | None = None
    for layout in ("NHWC", "NCHW"):
        try:
            parts = method_plan(method(layer.computation(layout)), machine())
            if fastest is not None and parts.parts_us + parts.product.macs / peak() > fastest["us"]:
                continue
            product = best([parts.product])
        except (LoweringError, WorkloadError):
            continue
        us = parts.parts_us + product.us
        if fastest is None or us < fastest["us"]:
            fastest = {
                "us": round(us, 3),
                "efficiency": round(efficiency(layer.macs, us), 4),
                "layout": layout,
                "parts_us": round(parts.parts_us, 3),
                "product_us": round(product.us, 3),
                "product_efficiency": round(efficiency(parts.product.macs, product.us), 4),
                "plan": product.text,
            }
    return fastest


# ------------------------------------------------------------------------------------------ tables


def markdown(rows: Sequence[Row]) -> list[str]:
    """Return the tables of all groups."""
    lines = [
        "All times are **estimated**, of one core group; efficiency is that of a direct",
        "convolution, of 742 GFlops. The paper's figures were measured on four core groups.",
    ]
    for group in GROUPS:
        group_rows = [row for row in rows if row["group"] == group]
        if group_rows:
            lines += ["", f"## {group}", "", *_summary(group_rows, group)]
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
            line += [percent(geometric_mean(values)), percent(min(values)), percent(max(values))]
            if listed:
                published = paper.EFFICIENCY.get(name, {}).get(batch)
                line += ["-" if published is None else f"{published:.0%}".replace("%", " %")]
                line += [paper.TABLE_1.get(name, {}).get(batch, "-")]
            lines.append(line)
    more = ["paper's efficiency (figure 8)", "paper's cases faster (table 1)"] if listed else []
    return markdown_table(head + more, lines)


def efficiencies(rows: Sequence[Row], method: str, batch: int) -> list[float]:
    """Return the efficiencies of the rows of a batch that have a method.

    The method ``best of all`` is the fastest one.

    Parameters
    ----------
    rows : sequence of Row
        Stored rows.
    method : str
        Name of the method.
    batch : int
        Size of the batch.
    """
    methods_by_row = [row["methods"] for row in rows if row["batch"] == batch]
    if method == "best of all":
        return [
            max(entry["efficiency"] for entry in methods.values()) for methods in methods_by_row
        ]
    return [methods[method]["efficiency"] for methods in methods_by_row if method in methods]


def _layouts(rows: Sequence[Row]) -> list[str]:
    """Return which layout and which method is the fastest, by batch."""
    lines: list[list[Any]] = []
    for batch in paper.BATCHES:
        methods_by_row = [row["methods"] for row in rows if row["batch"] == batch]
        chosen_layouts = [
            methods["implicit"]["layout"] for methods in methods_by_row if "implicit" in methods
        ]
        fastest = [
            max(methods, key=lambda name: methods[name]["efficiency"]) for methods in methods_by_row
        ]
        lines.append(
            [
                batch,
                ", ".join(
                    f"{name} {chosen_layouts.count(name)}" for name in ("HWCN", "NHWC", "NCHW")
                ),
                ", ".join(f"{name} {fastest.count(name)}" for name in ("implicit", *METHODS)),
            ]
        )
    return [
        "## Choices",
        "",
        *markdown_table(["batch", "layout (implicit)", "fastest method"], lines),
    ]


EXPERIMENT = Experiment(
    folder=Path(__file__).resolve().parent,
    description="Convolutions on SW26010 (figures 5 to 8, table 1)",
    keys=tuple(layers()),
    compute=compute,
    markdown=markdown,
    trials=None,
    quick=("VGG16 8 b1 c512 k512 14x14 f3 s1", "listing 1 - b32 c64 k64 16x16 f3 s1"),
    one_origin=True,
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
