"""Several targets beside each other: a table by layer, and a line for each target."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.console import RenderableType
from rich.markup import escape

from cpembed.driver.across import Figure, Line, Time, TimeSum
from cpembed.driver.bench_across import Across
from cpembed.report.blocks import bullets, heading, table
from cpembed.wording import count, data_size, duration, plural

_FOLDED = 48
_LISTED = 12
"""Layer numbers that are listed before the rest is only counted."""


def report(found: Across) -> Iterator[RenderableType]:
    """Of ``cpembed bench`` on several targets."""
    rows = [(str(number), label) for number, label in enumerate(found.layers)]
    yield from by_layer(rows, ("#>", "layer"), found.targets, found.figures)
    yield ""
    yield lines(found.lines)
    yield ""
    yield from _reasons(found)
    yield LEGEND


def _reasons(found: Across) -> Iterator[RenderableType]:
    """Why layers are not embedded, once for each reason."""
    for target in found.targets:
        reasons: dict[str, list[int]] = {}
        for number, figure in enumerate(found.figures[target]):
            if figure is not None and figure.embedded_on is None:
                reasons.setdefault(figure.reason or "not known", []).append(number)
        if reasons:
            yield heading(f"Not embedded on {target}")
            yield bullets(f"{_numbers(which)}: {why}" for why, which in reasons.items())
            yield ""


def _numbers(layers: Sequence[int]) -> str:
    listed = ", ".join(map(str, layers[:_LISTED]))
    more = len(layers) - _LISTED
    return f"layer{'s' * (len(layers) > 1)} {listed}" + (f" and {more} more" if more > 0 else "")


def by_layer(
    layers: Sequence[tuple[str, ...]],
    head: Sequence[str],
    targets: Sequence[str],
    figures: Mapping[str, Sequence[Figure | None]],
) -> Iterator[RenderableType]:
    """A row a layer, which begins with its cells under ``head``; two columns a target: how much of
    the instruction is used, and the time. ``figures`` has, by target, one for each layer; None
    where there is no such layer."""
    pairs = ((f"{escape(target)}>", "time>") for target in targets)
    columns = [*head, *(name for pair in pairs for name in pair)]
    rows = (
        [*cells, *(text for target in targets for text in _cells(target, figures[target][number]))]
        for number, cells in enumerate(layers)
    )
    result = table(columns, rows)
    for column in result.columns[: len(head)]:
        column.max_width = _FOLDED
    yield result


def _cells(target: str, figure: Figure | None) -> tuple[str, str]:
    if figure is None:
        return "", ""
    if figure.embedded_on is None:
        return figure.outcome, ""
    used = "" if figure.utilisation is None else f"{figure.utilisation:.1%}"
    other = "" if figure.embedded_on == target else f"{figure.embedded_on} "
    return other + used, "" if figure.time is None else time_text(figure.time)


def lines(found: Iterable[Line]) -> RenderableType:
    """A row a target: how many layers, how much is used, what is moved, the time and how it came
    about."""
    return table(
        ("target", "embedded>", "MACs>", "used>", "by MACs>", "moved>", "time"),
        (
            (
                line.target,
                f"{line.embedded} of {line.layers}",
                share(line.embedded_macs, line.macs),
                percent(line.use),
                percent(line.use_by_macs),
                data_size(line.moved_bytes),
                times_text(line),
            )
            for line in found
        ),
    )


LEGEND = (
    "used: mean share of the instruction's MACs that is useful, of the layers that are embedded; "
    "by MACs: of all that the instructions multiply\n"
    "moved: bytes that packing and unpacking read and write; microseconds count them, but for "
    "weights, which are packed ahead; cycles do not"
)


def time_text(time: Time) -> str:
    """``12.3 us``; cycles are said to be cycles."""
    return amount_text(time.amount, time.unit)


def amount_text(amount: float, unit: str) -> str:
    return duration(amount) if unit == "us" else f"{amount:,.0f} {unit}"


def times_text(line: Line) -> str:
    """``1.2 ms measured (18 layers), 30 us estimated (2 layers)``, with the layers where not all
    have the same kind of time."""

    def said(how: str, found: TimeSum) -> str:
        text = f"{amount_text(found.amount, found.unit)} {how.removesuffix(f' in {found.unit}')}"
        return text if found.layers == line.layers else f"{text} ({plural(found.layers, 'layer')})"

    return ", ".join(said(how, found) for how, found in line.times.items()) or "none known"


def share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "none"


def percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def macs_text(macs: int) -> str:
    return count(macs) if macs else ""
