"""The tables of ``results.md``, and the requirements that the figures must meet."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cpembed.runtime.measurement.environment import provenance_lines

GROWTH = 2.0
"""Maximum ratio of the nodes of AB to those at its easiest channel count."""
SECONDS_STRICT = 0.1
"""Maximum median wall time of a search under the strict set."""
TITLES = {
    "late": "late: memory accesses checked on whole assignments, first solution",
    "strict": "strict: every constraint posted, all solutions",
}

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Check:
    """A requirement, what was measured, and whether it holds."""

    words: str
    measured: str
    holds: bool


def checks(document: Mapping[str, Any]) -> list[Check]:
    """Return the requirements with what was measured."""
    check_list: list[Check] = []
    for formulation in TITLES:
        ratios = {
            layout: spread(document["rows"], formulation, layout, "AB")
            for layout in layouts(document["rows"])
        }
        check_list.append(
            Check(
                f"{formulation}: nodes of AB, most / least over the channels, at most {GROWTH:g}",
                ", ".join(f"{layout} {ratio:.2f}" for layout, ratio in ratios.items()),
                max(ratios.values()) <= GROWTH,
            )
        )
    plain = [
        row["wall_ms"]
        for row in document["rows"]
        if (row["formulation"], row["strategy"]) == ("strict", "plain")
    ]
    for subject, walls in (
        ("scalar model, plain, presolve off", plain),
        ("as `solve` searches", [row["wall_ms"] for row in document["solve"]]),
    ):
        median = statistics.median(walls)
        check_list.append(
            Check(
                f"strict: median wall time, {subject}, under {SECONDS_STRICT:g} s",
                f"{median / 1e3:.4f} s",
                median < SECONDS_STRICT * 1e3,
            )
        )
    return check_list


def layouts(rows: list[Row]) -> list[str]:
    """Return the layouts in the order of the rows."""
    return list(dict.fromkeys(row["layout"] for row in rows))


def series(rows: list[Row], formulation: str, layout: str, strategy: str) -> list[Row]:
    """Return the rows of one curve, by channels."""
    curve = (formulation, layout, strategy)
    return [r for r in rows if (r["formulation"], r["layout"], r["strategy"]) == curve]


def spread(rows: list[Row], formulation: str, layout: str, strategy: str) -> float:
    """Return the largest number of nodes over the smallest."""
    nodes = [row["nodes"] for row in series(rows, formulation, layout, strategy)]
    return max(nodes) / max(1, min(nodes))


def pivot(rows: list[Row], formulation: str, key: str) -> list[str]:
    """Return a table with a row per layout and strategy, a column per channel count."""
    rows = [row for row in rows if row["formulation"] == formulation]
    channels = list(dict.fromkeys(row["channels"] for row in rows))
    lines = [
        "| layout | search | " + " | ".join(map(str, channels)) + " |",
        "| --- | --- |" + " ---: |" * len(channels),
    ]
    for layout in layouts(rows):
        for strategy in dict.fromkeys(row["strategy"] for row in rows):
            cells = [
                f"{row[key]:,}" + ("" if row["winner"] else " (stopped)")
                for row in series(rows, formulation, layout, strategy)
            ]
            lines.append(f"| {layout} | {strategy} | " + " | ".join(cells) + " |")
    return lines


def claims(rows: list[Row]) -> list[str]:
    """Return the paper's statements about figure 8, and our counts in *late*."""

    def nodes(layout: str, strategy: str, at: int) -> int:
        return series(rows, "late", layout, strategy)[at]["nodes"]

    def each(strategy: str) -> str:
        return "; ".join(
            f"{layout} {nodes(layout, strategy, 0):,} to {nodes(layout, strategy, -1):,} "
            f"(x{nodes(layout, strategy, -1) / nodes(layout, strategy, 0):.2f})"
            for layout in layouts(rows)
        )

    def largest(strategy: str) -> str:
        counts = [nodes(layout, strategy, -1) for layout in layouts(rows)]
        return f"{max(counts):,} / {min(counts):,} = {max(counts) / min(counts):.1f}"

    return [
        "| the paper, figure 8 | nodes here, fewest to most channels |",
        "| --- | --- |",
        f"| plain: upwards in every layout | {each('plain')} |",
        f"| plain: large difference between layouts | {largest('plain')} at most channels |",
        f"| A: clear reduction, near the ideal layout for many channels | {each('A')} |",
        f"| A: smaller difference between layouts | {largest('A')} at most channels |",
        f"| B: limits the growth, most for many channels | {each('B')} |",
        f"| AB: stable | {each('AB')} |",
    ]


def markdown(document: Mapping[str, Any]) -> str:
    """Return all tables."""
    rows = document["rows"]
    lines = ["# Search effort of the scalar model", "", "Written by `run.py`; see README.md.", ""]
    lines += ["## Required", "", "| requirement | measured | |", "| --- | --- | --- |"]
    lines += [
        f"| {check.words} | {check.measured} | {'holds' if check.holds else 'FAILS'} |"
        for check in checks(document)
    ]
    lines += ["", "## The paper's figure 8", "", *claims(rows), ""]
    for formulation, title in TITLES.items():
        lines += [f"## {title}", "", "Search nodes", "", *pivot(rows, formulation, "nodes"), ""]
        if formulation == "late":
            lines += ["Assignments refused by the check", "", *pivot(rows, "late", "refused"), ""]
        lines += ["Nodes of all assets", "", *pivot(rows, formulation, "nodes_all"), ""]
        lines += ["Wall time in ms, with building the model", ""]
        lines += [*pivot(rows, formulation, "wall_ms"), ""]
    run = "presolve off, fixed search; the assets of *late* one after the other"
    return "\n".join([*lines, *provenance_lines(document, run), ""])
