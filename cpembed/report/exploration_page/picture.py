"""Points of an exploration as a scatter plot in SVG; each point links to its card."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from cpembed.report.axes import Scale, number, scale
from cpembed.report.exploration_page.document import Exploration, PointRow
from cpembed.report.html_page import html

WIDTH, HEIGHT = 560, 380
"""Size of a plot in pixels."""

_LEFT, _RIGHT, _TOP, _BOTTOM = 92, 24, 16, 56
# Room between ticks, below which every other one loses its label.
_TICK_ROOM = 56

LABELS = {
    "cycles": "cycles",
    "time_us": "time (µs)",
    "energy_mj": "energy (mJ)",
    "area_mm2": "area (mm²)",
    "power_w": "power (W)",
    "edp_mj_ms": "energy times time (mJ ms)",
}
"""Names of objectives with their units."""


def label(key: str) -> str:
    """Return the name of an objective with its unit; that of a parameter is its key."""
    return LABELS.get(key, key)


def kind(exploration: Exploration, point: PointRow) -> str:
    """Return the class of a point: on the front, evaluated, or above a limit."""
    if point.number in exploration.front:
        return "front"
    return "evaluated" if point.beyond is None else "beyond"


def summary(point: PointRow) -> str:
    """Return a line with a point's parameters and objectives."""
    parameters = ", ".join(f"{name} = {value}" for name, value in point.parameters.items())
    values = ", ".join(f"{label(key)}: {number(value)}" for key, value in point.objectives.items())
    left_out = f"; without {len(point.left_out)} layers" if point.left_out else ""
    above = f"; above {point.beyond}" if point.beyond else ""
    return f"point {point.number}: {parameters}; {values}{left_out}{above}"


def plot(exploration: Exploration, first: str, second: str) -> str:
    """Return the plot of two objectives.

    Parameters
    ----------
    exploration
        The exploration.
    first, second
        Objectives across and up; the first is empty for the numbers of the points.
    """
    points = sorted(exploration.rows, key=lambda p: kind(exploration, p) == "front")
    value = _value(first)
    xs, ys = [value(p) for p in points], [p.objectives[second] for p in points]
    across, up = scale(min(xs), max(xs)), scale(min(ys), max(ys))
    title = f"{label(second)} over {label(first) or 'the number of the point'}"
    marks = [
        _mark(exploration, point, _x(across, x), _y(up, y))
        for point, x, y in zip(points, xs, ys, strict=True)
    ]
    size = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
    return "\n".join(
        [
            f'<svg class="plot" {size} role="group" aria-label="{html(title)}">',
            *_horizontal(across, label(first) or "number of the point"),
            *_vertical(up, label(second)),
            *_steps(exploration, points, across, up, (value, second)),
            *marks,
            "</svg>",
        ]
    )


def _value(key: str) -> Callable[[PointRow], float]:
    return (lambda point: point.objectives[key]) if key else (lambda point: float(point.number))


def _x(axis: Scale, value: float) -> float:
    return _LEFT + axis.share(value) * (WIDTH - _LEFT - _RIGHT)


def _y(axis: Scale, value: float) -> float:
    return HEIGHT - _BOTTOM - axis.share(value) * (HEIGHT - _TOP - _BOTTOM)


def _mark(exploration: Exploration, point: PointRow, x: float, y: float) -> str:
    kind_of = kind(exploration, point)
    text = html(summary(point))
    return (
        f'<a class="point {kind_of}" href="#point-{point.number}" data-point="{point.number}" '
        f'aria-label="{text}"><title>{text}</title>'
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{6 if kind_of == "front" else 4}"></circle></a>'
    )


def _horizontal(axis: Scale, text: str) -> Iterator[str]:
    bottom = HEIGHT - _BOTTOM
    last = -float(WIDTH)
    for tick in axis.ticks:
        x = _x(axis, tick)
        yield f'<path class="grid" d="M{x:.1f} {_TOP} V{bottom}"></path>'
        if x - last >= _TICK_ROOM:
            yield f'<text class="middle" x="{x:.1f}" y="{bottom + 18}">{number(tick)}</text>'
            last = x
    centre = (_LEFT + WIDTH - _RIGHT) / 2
    logarithmic = ", logarithmic" if axis.logarithmic else ""
    yield (
        f'<text class="middle dim" x="{centre:g}" y="{HEIGHT - 12}">{html(text + logarithmic)}'
        "</text>"
    )


def _vertical(axis: Scale, text: str) -> Iterator[str]:
    for tick in axis.ticks:
        y = _y(axis, tick)
        yield f'<path class="grid" d="M{_LEFT} {y:.1f} H{WIDTH - _RIGHT}"></path>'
        yield f'<text class="end" x="{_LEFT - 8}" y="{y + 4:.1f}">{number(tick)}</text>'
    centre = (_TOP + HEIGHT - _BOTTOM) / 2
    logarithmic = ", logarithmic" if axis.logarithmic else ""
    yield (
        f'<text class="middle dim" transform="translate(14 {centre:g}) rotate(-90)">'
        f"{html(text + logarithmic)}</text>"
    )


def _steps(
    exploration: Exploration,
    points: Sequence[PointRow],
    across: Scale,
    up: Scale,
    values: tuple[Callable[[PointRow], float], str],
) -> Iterator[str]:
    """Yield the border of the region that the front dominates in these two objectives."""
    value, second = values
    places = sorted(
        (value(p), p.objectives[second]) for p in points if kind(exploration, p) == "front"
    )
    least, path = float("inf"), ""
    for x, y in places if len(exploration.objectives) == 2 else []:
        if y < least:
            at, height = _x(across, x), _y(up, y)
            path += f"H{at:.1f} V{height:.1f} " if path else f"M{at:.1f} {height:.1f} "
            least = y
    if path:
        yield f'<path class="steps" d="{path.strip()}"></path>'
