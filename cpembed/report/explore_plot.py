"""A drawing of a front among the points that were evaluated."""
# pyright: basic

# What it imports is an extra, which a type checker need not find.
# pyright: reportMissingImports=false

from __future__ import annotations

import io
from itertools import combinations
from typing import Any

from cpembed.exploration.explore import ExploreResult
from cpembed.report.bench_plot import require_matplotlib

_WIDTH, _HEIGHT = 4.2, 3.4
"""Inches of a part."""


def plot_svg(result: ExploreResult) -> str:
    """A part for each pair of objectives; one for the hypervolume over trials where there are
    trials. Points above a limit are hollow."""
    require_matplotlib()
    import matplotlib
    from matplotlib.figure import Figure

    pairs = list(combinations(range(len(result.objectives)), 2)) or [(0, 0)]
    volume = result.hypervolume() or {}
    over_trials = volume.get("over_trials")
    parts = len(pairs) + bool(over_trials)
    # The same points give the same file; text stays text.
    with matplotlib.rc_context({"svg.hashsalt": "cpembed", "svg.fonttype": "none"}):
        figure = Figure(figsize=(_WIDTH * parts, _HEIGHT), layout="constrained")
        for part, (first, second) in enumerate(pairs):
            _draw(figure.add_subplot(1, parts, part + 1), result, first, second)
        if over_trials:
            axes = figure.add_subplot(1, parts, parts)
            axes.step(range(1, len(over_trials) + 1), over_trials, where="post", color="C0")
            axes.set_xlabel("trial")
            axes.set_ylabel("hypervolume")
        figure.suptitle(f"{result.space.name}, {result.suite}: {_words(result)}", fontsize=10)
        page = io.StringIO()
        figure.savefig(page, format="svg", metadata={"Date": None})
    return page.getvalue()


def _words(result: ExploreResult) -> str:
    kinds = sorted({kind for point in result.evaluated for kind in point.provenances})
    return f"{result.method}, costs {' and '.join(kinds)}"


def _draw(axes: Any, result: ExploreResult, first: int, second: int) -> None:
    front = {point.number for point in result.front}
    groups = {
        "front": ([p for p in result.evaluated if p.number in front], {"color": "C3"}),
        "evaluated": (
            [p for p in result.evaluated if p.number not in front and p.beyond is None],
            {"color": "0.7"},
        ),
        "above a limit": (
            [p for p in result.evaluated if p.beyond is not None],
            {"facecolors": "none", "edgecolors": "0.7"},
        ),
    }
    # The front lies above the others.
    for label, (points, look) in reversed(groups.items()):
        if points:
            vectors = [result.vector(point) for point in points]
            axes.scatter(
                [v[first] for v in vectors],
                [v[second] for v in vectors],
                s=14,
                label=label,
                **look,
            )
    for one, scale, label in (
        (result.objectives[first], axes.set_xscale, axes.set_xlabel),
        (result.objectives[second], axes.set_yscale, axes.set_ylabel),
    ):
        scale("log")
        label(f"{one.words} {f'({one.unit})' if one.unit else ''}".strip())
    axes.legend(fontsize=7, frameon=False)
