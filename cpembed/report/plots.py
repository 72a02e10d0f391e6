"""SVG plots with matplotlib: a suite against its baselines, and a front of explored machines."""
# pyright: basic

# What it imports is an extra, which a type checker need not find.
# pyright: reportMissingImports=false

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import AbstractContextManager
from importlib.util import find_spec
from itertools import combinations
from typing import TYPE_CHECKING, Any

from cpembed.errors import BackendUnavailable
from cpembed.report.messages import short_names

if TYPE_CHECKING:
    from cpembed.driver.bench_rows import BenchRow
    from cpembed.exploration.explore import ExploreResult
    from cpembed.exploration.objectives import EvaluatedPoint

_LAYER_INCHES, _MINIMUM_INCHES, _BASELINE_HEIGHT = 0.32, 5.0, 3.2
# Width of a bar, as a share of the distance between two layers.
_BAR = 0.4

_HATCH = "/////"
_DISTURBED = "disturbed by other work on the machine (hatched), not in the means"

_SERIES = (("packing excluded", ""), ("packing counted", "_with_packing"))

# Inches of a plot of two objectives.
_FRONT_WIDTH, _FRONT_HEIGHT = 4.6, 3.6

# Inches of a line below the plots.
_LINE_HEIGHT = 0.13

# Maximum number of points of a front whose parameters are listed below.
_NAMED_POINTS = 24


def require_matplotlib() -> None:
    """Raise :class:`BackendUnavailable` if nothing can be drawn; called before long work starts."""
    if find_spec("matplotlib") is None:
        raise BackendUnavailable(
            "drawing needs matplotlib, which is not installed: pip install 'cpembed[bench]'"
        )


def _reproducible() -> AbstractContextManager[None]:
    """Return a context in which the same data gives the same file, and text stays text."""
    import matplotlib

    return matplotlib.rc_context({"svg.hashsalt": "cpembed", "svg.fonttype": "none"})


def _svg(figure: Any) -> str:
    page = io.StringIO()
    figure.savefig(page, format="svg", metadata={"Date": None})
    return page.getvalue()


def baselines_svg(rows: Sequence[BenchRow], title: str) -> str:
    """Return a plot with a bar for each layer, one part for each baseline.

    A bar is the ratio of the baseline's own account of the computation to ours, or of its call if
    it keeps no account. Disturbed rows are hollow and hatched, in the legend too, and counted
    below.
    """
    require_matplotlib()
    from matplotlib.figure import Figure

    compared = [(row.index, row.run.baselines) for row in rows if row.run and row.run.baselines]
    # In the order in which they were named, which a set would lose.
    names = list(dict.fromkeys(name for _, baselines in compared for name in baselines))
    width = max(_MINIMUM_INCHES, 1.2 + _LAYER_INCHES * len(compared))
    with _reproducible():
        size = (width, _BASELINE_HEIGHT * max(1, len(names)))
        figure = Figure(figsize=size, layout="constrained")
        for part, name in enumerate(names):
            axes = figure.add_subplot(len(names), 1, part + 1)
            measured = [(index, each[name]) for index, each in compared if name in each]
            _draw_ratios(axes, name, measured)
            axes.set_title(f"{title}: {name}", fontsize=10)
        return _svg(figure)


def _draw_ratios(axes: Any, name: str, rows: Sequence[tuple[int, Any]]) -> None:
    from matplotlib.patches import Patch

    # The library's own account leaves out what its call adds; not every library keeps one.
    kind = "primitive" if any(row.primitive_ratio for _, row in rows) else "call"
    drawn = [(index, row) for index, row in rows if getattr(row, f"{kind}_ratio") is not None]
    for series, (_, suffix) in enumerate(_SERIES):
        ratios = [getattr(row, f"{kind}_ratio{suffix}").median for _, row in drawn]
        places = [place + (series - 0.5) * _BAR for place in range(len(drawn))]
        # Bars grow from 1 both ways: the axis is logarithmic and has no zero.
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
        # matplotlib would take the look of the first bar, even of a hatched one.
        handles = [Patch(color=f"C{n}", label=label) for n, (label, _) in enumerate(_SERIES)]
        if disturbed:
            handles.append(Patch(fc="none", ec="grey", hatch=_HATCH, label="disturbed"))
        axes.legend(handles=handles, fontsize=7, frameon=False)


def front_svg(result: ExploreResult) -> str:
    """Return a plot of the evaluated points for each pair of objectives.

    Points above a limit are hollow; those of the front have their numbers and parameters. Sampling
    methods have one more plot, of the hypervolume over the trials.
    """
    require_matplotlib()
    from matplotlib.figure import Figure

    # A single objective is plotted against itself.
    pairs = list(combinations(range(len(result.objectives)), 2)) or [(0, 0)]
    over_trials = (result.hypervolume() or {}).get("over_trials")
    parts = len(pairs) + bool(over_trials)
    with _reproducible():
        named = [_point_name(result, point) for point in result.front[:_NAMED_POINTS]]
        named += [f"and {len(result.front) - _NAMED_POINTS} more"] * (
            len(result.front) > _NAMED_POINTS
        )
        height = _FRONT_HEIGHT + _LINE_HEIGHT * len(named)
        figure = Figure(figsize=(_FRONT_WIDTH * parts, height), layout="constrained")
        # Below the plots, as names beside marks would lie on each other.
        figure.supxlabel("\n".join(named), fontsize=7, x=0.01, ha="left")
        for part, (first, second) in enumerate(pairs):
            _draw_front(figure.add_subplot(1, parts, part + 1), result, first, second)
        if over_trials:
            axes = figure.add_subplot(1, parts, parts)
            axes.step(range(1, len(over_trials) + 1), over_trials, where="post", color="C0")
            axes.set_xlabel("trial")
            axes.set_ylabel("hypervolume")
        kinds = sorted({kind for point in result.evaluated for kind in point.provenances})
        title = f"{result.method}, costs {' and '.join(kinds)}"
        figure.suptitle(f"{result.space.name}, {result.suite}: {title}", fontsize=10)
        return _svg(figure)


def _draw_front(axes: Any, result: ExploreResult, first: int, second: int) -> None:
    front = {point.number for point in result.front}
    within = [point for point in result.evaluated if point.beyond is None]
    groups = {
        "front": ([p for p in result.evaluated if p.number in front], {"color": "C3"}),
        "evaluated": ([p for p in within if p.number not in front], {"color": "0.7"}),
        "above a limit": (
            [p for p in result.evaluated if p.beyond is not None],
            {"facecolors": "none", "edgecolors": "0.7"},
        ),
    }
    # Drawn last, the front lies above the other points.
    for label, (points, look) in reversed(groups.items()):
        if points:
            vectors = [result.vector(point) for point in points]
            xs, ys = [v[first] for v in vectors], [v[second] for v in vectors]
            axes.scatter(xs, ys, s=14, label=label, **look)
    for objective, place, axis, label in (
        (result.objectives[first], first, axes.xaxis, axes.set_xlabel),
        (result.objectives[second], second, axes.yaxis, axes.set_ylabel),
    ):
        _draw_axis(axis, [result.vector(point)[place] for point in result.evaluated])
        label(f"{objective.label} {f'({objective.unit})' if objective.unit else ''}".strip())
    axes.tick_params(labelsize=7)
    for point in result.front[:_NAMED_POINTS]:
        vector = result.vector(point)
        place = vector[first], vector[second]
        offset = {"xytext": (3, 3), "textcoords": "offset points"}
        axes.annotate(f"{point.number}", place, fontsize=6, **offset)
    axes.legend(fontsize=7, frameon=False)


def _draw_axis(axis: Any, values: Sequence[float]) -> None:
    """Give an axis round ticks with thousands, and logarithms where the span is large."""
    from matplotlib.ticker import FixedLocator, NullLocator

    from cpembed.report.axes import number, scale

    if not values:
        return
    drawn = scale(min(values), max(values))
    axes = axis.axes
    is_x = axis is axes.xaxis
    (axes.set_xscale if is_x else axes.set_yscale)("log" if drawn.logarithmic else "linear")
    (axes.set_xlim if is_x else axes.set_ylim)(drawn.first, drawn.last)
    # After the scale, which sets locators of its own.
    axis.set_major_locator(FixedLocator(drawn.ticks))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: number(value))


def _point_name(result: ExploreResult, point: EvaluatedPoint) -> str:
    """Return the number of a point with the values of its parameters, by their short names."""
    names = list(result.space.parameters)
    pairs = zip(short_names(names), names, strict=True)
    values = ", ".join(f"{short} {_text(point.point[name])}" for short, name in pairs)
    return f"{point.number}: {values}"


def _text(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int | float) else str(value)
