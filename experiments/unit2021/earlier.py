"""Earlier measurements of the layers and networks of figures 8, 10 and 13 on processors with VNNI.

    python -m experiments.unit2021.earlier

Writes ``earlier.md`` beside this file from ``benchmarks/onednn`` and ``benchmarks/networks.json``;
it measures nothing. Those compare with oneDNN and with other runtimes what runs untuned, so that of
figure 10 they have the model's step alone.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.documents import Row, read_document
from benchmarks.network_tables import CPEMBED
from benchmarks.onednn import cpu_of, stored_parts
from cpembed.files import write_whole
from cpembed.runtime.measurement.environment import provenance_lines
from experiments.common import geometric_mean, markdown_table
from experiments.cpu import PAPER_TARGET
from experiments.unit2021.paper import FIGURE8_MEANS, FIGURE13_MEAN, NETWORKS

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
PAGE = Path(__file__).resolve().parent / "earlier.md"

RATIO = "primitive_ratio"
"""oneDNN's own time over ours, both without packing."""

ABOUT = """\
# UNIT's layers and networks, measured earlier with VNNI

Written by `earlier.py` from [benchmarks/onednn.md](../../benchmarks/onednn.md) and
[benchmarks/networks.md](../../benchmarks/networks.md), which say what is counted. Above 1 ours is
faster. * disturbed by other work, and not part of a mean."""


def onednn_parts(suite: str, parts: Iterable[Row]) -> list[Row]:
    """Return the parts of a suite with the paper's instruction and sums as results."""
    return [
        part
        for part in parts
        if (words := part["part"].split("/"))[:2] == [suite, PAPER_TARGET] and len(words) == 3
    ]


def onednn_table(parts: Sequence[Row], first_index: int) -> list[str]:
    """Return a table of layers with a column for each part, and the means.

    ``first_index`` is the paper's number of the first layer.
    """
    head = ["#", "layer", *(f"{cpu_of(part)}, {_threads(part)}" for part in parts)]
    layers = {row["index"]: row["layer"] for part in parts for row in part["rows"]}
    cells = [
        [
            str(index + first_index),
            f"`{label}`",
            *(_cell(_row(part, index)) for part in parts),
        ]
        for index, label in sorted(layers.items())
    ]
    cells.append(["", "geometric mean", *(_mean(_counted(part)) for part in parts)])
    return markdown_table(head, cells)


def _mean(ratios: Sequence[float]) -> str:
    return f"{geometric_mean(ratios):.2f}" if ratios else "—"


def _threads(part: Row) -> str:
    number = int(part["part"].split("/")[2])
    return f"{number} thread{'s' * (number > 1)}"


def _row(part: Row, index: int) -> Row | None:
    return next((row for row in part["rows"] if row["index"] == index), None)


def _cell(row: Row | None) -> str:
    if row is None or row.get(RATIO) is None:
        return "—"
    return f"{row[RATIO]:.2f}{'*' * bool(row['noisy'])}"


def _counted(part: Row) -> list[float]:
    return [row[RATIO] for row in part["rows"] if row.get(RATIO) is not None and not row["noisy"]]


def network_tables(document: dict[str, Any]) -> list[str]:
    """Return a table of the paper's networks for each number of threads."""
    builders = {builder: name for name, builder in NETWORKS.items()}
    lines: list[str] = []
    for threads in sorted({row["threads"] for row in document["rows"]}):
        rows = {
            builders[builder]: row
            for row in document["rows"]
            if row["threads"] == threads
            and (builder := row["model"].removesuffix("_int8")) in builders
        }
        names = list(dict.fromkeys(name for row in rows.values() for name in row["ratios"]))
        cells = [
            [
                key,
                f"{rows[key]['seconds'][CPEMBED]['median'] * 1e3:.3g}",
                *(f"{rows[key]['ratios'][name]:.2f}" for name in names),
            ]
            for key in NETWORKS
            if key in rows
        ]
        means = (geometric_mean([row["ratios"][name] for row in rows.values()]) for name in names)
        cells.append(["geometric mean", "", *(f"{mean:.2f}" for mean in means)])
        head = ["network", "ours ms", *(f"{name} over ours" for name in names)]
        lines += [f"{threads} thread{'s' * (threads > 1)}:", "", *markdown_table(head, cells), ""]
    return lines


def page() -> str:
    """Return the page."""
    parts = list(stored_parts(BENCHMARKS).values())
    networks = read_document(BENCHMARKS / "networks.json")
    stated = " and over ".join(f"{name}: {mean}" for name, mean in FIGURE8_MEANS.items())
    lines = [*ABOUT.splitlines(), "", "## Figure 8: networks", ""]
    lines += [f"The paper: UNIT over {stated} (means of nine networks).", ""]
    lines += [*network_tables(networks), *provenance_lines(networks, "every runtime by turns")]
    sections = (
        ("unit16", 1, "Figure 10, the model's step: oneDNN's time over ours", ""),
        (
            "unit_conv3d",
            0,
            "Figure 13: oneDNN's time over ours",
            f"The paper: UNIT over oneDNN {FIGURE13_MEAN} on average.",
        ),
    )
    for suite, first_index, title, statement in sections:
        selected = onednn_parts(suite, parts)
        lines += ["", f"## {title}", "", *([statement, ""] if statement else [])]
        lines += [*onednn_table(selected, first_index), ""]
        for part in selected:
            lines += provenance_lines(part["provenance"], _threads(part))
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write the page; return the exit code."""
    write_whole(PAGE, page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
