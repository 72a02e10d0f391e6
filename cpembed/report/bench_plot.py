"""A drawing of a suite's comparison with its baselines."""
# pyright: basic

# What it imports is an extra, which a type checker need not find.
# pyright: reportMissingImports=false

from __future__ import annotations

import io
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from cpembed.driver.bench_rows import BenchRow
from cpembed.errors import BackendUnavailable

_INCHES_A_LAYER, _NARROWEST, _HEIGHT = 0.32, 5.0, 3.2
_BAR = 0.4
"""Of the distance between two layers."""

_HATCH = "/////"
_DISTURBED = "disturbed by other work on the machine (hatched), not in the means"

_SERIES = (("packing excluded", ""), ("packing counted", "_with_packing"))


def require_matplotlib() -> None:
    """Raise :class:`BackendUnavailable` where nothing can be drawn: before the suite runs."""
    if find_spec("matplotlib") is None:
        raise BackendUnavailable(
            "drawing needs matplotlib, which is not installed: pip install 'cpembed[bench]'"
        )


def plot_svg(rows: Sequence[BenchRow], title: str) -> str:
    """Bars of each layer's ratio, one part a baseline: its own account of the computation over
    ours, or its call where it keeps no account. Disturbed rows are hollow and hatched, in the
    legend and counted below the drawing."""
    require_matplotlib()
    import matplotlib
    from matplotlib.figure import Figure

    compared = [(row.index, row.run.baselines) for row in rows if row.run and row.run.baselines]
    names = list(dict.fromkeys(name for _, baselines in compared for name in baselines))
    width = max(_NARROWEST, 1.2 + _INCHES_A_LAYER * len(compared))
    # The same rows give the same file; text stays text.
    with matplotlib.rc_context({"svg.hashsalt": "cpembed", "svg.fonttype": "none"}):
        figure = Figure(figsize=(width, _HEIGHT * max(1, len(names))), layout="constrained")
        for part, name in enumerate(names):
            axes = figure.add_subplot(len(names), 1, part + 1)
            _draw(axes, name, [(index, found[name]) for index, found in compared if name in found])
            axes.set_title(f"{title}: {name}", fontsize=10)
        page = io.StringIO()
        figure.savefig(page, format="svg", metadata={"Date": None})
    return page.getvalue()


def _draw(axes: Any, name: str, rows: Sequence[tuple[int, Any]]) -> None:
    from matplotlib.patches import Patch

    kind = "primitive" if any(row.primitive_ratio for _, row in rows) else "call"
    drawn = [(index, row) for index, row in rows if getattr(row, f"{kind}_ratio") is not None]
    for series, (_, suffix) in enumerate(_SERIES):
        ratios = [getattr(row, f"{kind}_ratio{suffix}").median for _, row in drawn]
        places = [place + (series - 0.5) * _BAR for place in range(len(drawn))]
        # Bars grow from 1 both ways.
        heights = [ratio - 1.0 for ratio in ratios]
        colour = f"C{series}"
        bars = axes.bar(places, heights, _BAR, bottom=1.0, color=colour, edgecolor=colour)
        for bar, (_, row) in zip(bars, drawn, strict=True):
            if row.noisy:
                bar.set(facecolor="none", hatch=_HATCH)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_ylabel(f"{name}'s {kind} time / ours")
    disturbed = sum(row.noisy for _, row in drawn)
    axes.set_xlabel("layer" + (f"\n{disturbed} {_DISTURBED}" if disturbed else ""), fontsize=8)
    axes.set_xticks(range(len(drawn)), [str(index) for index, _ in drawn], fontsize=7)
    if drawn:
        # The first bar's own look would be taken, be it disturbed.
        handles = [Patch(color=f"C{n}", label=label) for n, (label, _) in enumerate(_SERIES)]
        if disturbed:
            handles.append(Patch(fc="none", ec="grey", hatch=_HATCH, label="disturbed"))
        axes.legend(handles=handles, fontsize=7, frameon=False)
