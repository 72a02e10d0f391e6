"""Tables of what ``networks.py`` measured."""

from __future__ import annotations

import math
import statistics
from typing import Any

from cpembed.runtime.measurement.environment import provenance_lines

CPEMBED = "cpembed"

Row = dict[str, Any]


def markdown(document: Row) -> str:
    """Return the document of ``networks.py`` as a page."""
    rows: list[Row] = document["rows"]
    parts = [
        "# Whole networks",
        "",
        "Written by `networks.py`, which says what is counted.",
        "",
    ]
    for threads in sorted({row["threads"] for row in rows}):
        rows_of_threads = [row for row in rows if row["threads"] == threads]
        parts += [
            f"## {threads} thread{'s' if threads > 1 else ''}",
            "",
            *_table(rows_of_threads),
            "",
        ]
        parts += [*_summary(rows_of_threads), ""]
    versions = dict(version for row in rows for version in row["versions"].items())
    versions.pop(CPEMBED, None)
    parts += provenance_lines(document, "every runtime in a process of its own, by turns")
    parts += [f"- {', '.join(f'{name} {number}' for name, number in versions.items())}", ""]
    return "\n".join(parts)


def _table(rows: list[Row]) -> list[str]:
    names = list(dict.fromkeys(name for row in rows for name in row["seconds"]))
    lines = [
        f"| network | {', ms | '.join(names)}, ms | fastest other | its time over ours | rounds |",
        "|" + " --- |" * (len(names) + 4),
    ]
    for row in rows:
        times = [_milliseconds(row["seconds"].get(name)) for name in names]
        ratio = fastest_ratio(row)
        lines.append(
            f"| {row['model'].removesuffix('_int8')} | {' | '.join(times)} | {row['fastest']} | "
            f"{'' if ratio is None else f'{ratio:.2f}'} | {row['rounds']} of {row['of']} |"
        )
    return lines


def _milliseconds(times: dict[str, float] | None) -> str:
    """Return the median, and the quartiles if they are more than a twentieth apart."""
    if times is None:
        return ""
    low, median, high = (times[key] * 1e3 for key in ("low", "median", "high"))
    spread = f" ({low:.3g} to {high:.3g})" if high > 1.05 * low else ""
    return f"{median:.3g}{spread}"


def fastest_ratio(row: Row) -> float | None:
    """Return the fastest other runtime's time over ours; None if ours was not measured."""
    return row["ratios"].get(row["fastest"]) if row["over"] == CPEMBED else None


def _summary(rows: list[Row]) -> list[str]:
    ratios = {row["model"]: ratio for row in rows if (ratio := fastest_ratio(row)) is not None}
    lines: list[str] = []
    if ratios:
        mean = math.exp(statistics.fmean(map(math.log, ratios.values())))
        worst = min(ratios, key=lambda model: ratios[model])
        lines.append(
            f"Geometric mean of {len(ratios)} networks {mean:.2f}, worst {ratios[worst]:.2f} "
            f"({worst})."
        )
    missing: dict[str, dict[str, str]] = {}
    for row in rows:
        for name, why in row["missing"].items():
            missing.setdefault(name, {})[row["model"]] = why
    differing = {
        f"{row['model']}: {name}, {difference:.2f} away from the result without optimizations"
        for row in rows
        for name, difference in row["difference"].items()
        if difference > 0.1
    }
    for name, reasons in missing.items():
        model, why = next(iter(reasons.items()))
        more = f" and {len(reasons) - 1} more" if len(reasons) > 1 else ""
        lines.append(f"- {name} is left out for {model}{more}: {why}")
    lines += [f"- {text}" for text in sorted(differing)]
    return lines
