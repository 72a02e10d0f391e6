"""Several targets side by side: a row for each layer, and a row for each target."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from cpembed.blocks import Block, Bullets, Heading, Table
from cpembed.driver.across import Figure, Line, Time, TimeSum
from cpembed.driver.bench_across import Across
from cpembed.report.messages import layer_numbers, percent
from cpembed.wording import amount, count, data_size, plural

LEGEND = (
    "used: mean share of the instruction's MACs that is useful, of the embedded layers; "
    "by MACs: of all that the instructions multiply\n"
    "moved: bytes that packing and unpacking read and write; microseconds include them, except for "
    "weights, which are packed ahead; cycles do not"
)

_LAYER_WIDTH = 48

OUTCOMES = {"no": "not embedded", "stopped": "stopped by the time limit", "failed": "search failed"}
"""Texts of the outcomes of searches without an embedding."""


def report(result: Across) -> Iterator[Block]:
    """Yield the report of ``cpembed bench`` on several targets."""
    rows = [(str(number), label) for number, label in enumerate(result.layers)]
    yield layer_table(rows, ("#>", "layer"), result.targets, result.figures)
    yield ""
    yield target_table(result.lines)
    yield ""
    yield from _reasons(result)
    yield LEGEND


def _reasons(result: Across) -> Iterator[Block]:
    """Yield why layers are not embedded, once for each reason."""
    for target in result.targets:
        reasons: dict[str, list[int]] = {}
        for number, figure in enumerate(result.figures[target]):
            if figure is not None and figure.embedded_on is None:
                reasons.setdefault(figure.reason or "unknown reason", []).append(number)
        if reasons:
            yield Heading(f"Not embedded on {target}")
            yield Bullets(
                f"layer{'s' * (len(layers) > 1)} {layer_numbers(layers)}: {reason}"
                for reason, layers in reasons.items()
            )
            yield ""


def layer_table(
    layers: Sequence[tuple[str, ...]],
    head: Sequence[str],
    targets: Sequence[str],
    figures: Mapping[str, Sequence[Figure | None]],
) -> Table:
    """Return a table with a row for each layer and two columns for each target: the used share of
    the instruction, and the time.

    Parameters
    ----------
    layers
        First cells of each row.
    head
        Names of their columns.
    targets
        Names of the targets.
    figures
        Results by target, one for each layer; None where a target has no such layer.
    """
    columns = [*head, *(name for target in targets for name in (f"{target}>", "time>"))]
    rows = (
        [*cells, *(text for target in targets for text in _cells(target, figures[target][number]))]
        for number, cells in enumerate(layers)
    )
    return Table(columns, rows, dict.fromkeys(head, _LAYER_WIDTH), keys=len(head))


def _cells(target: str, figure: Figure | None) -> tuple[str, str]:
    if figure is None:
        return "", ""
    if figure.embedded_on is None:
        return OUTCOMES.get(figure.outcome, figure.outcome), ""
    alternative = "" if figure.embedded_on == target else f"{figure.embedded_on} "
    time = "" if figure.time is None else time_text(figure.time)
    return alternative + percent(figure.utilisation), time


def target_table(lines: Iterable[Line]) -> Table:
    """Return a table with a row for each target: layers, used share, bytes of packing, times and
    their origin.
    """
    return Table(
        ("target", "embedded>", "MACs>", "used>", "by MACs>", "moved>", "time"),
        (
            (
                line.target,
                f"{line.embedded} of {line.layers}",
                share_text(line.embedded_macs, line.macs),
                percent(line.use),
                percent(line.use_by_macs),
                data_size(line.moved_bytes),
                times_text(line),
            )
            for line in lines
        ),
    )


def time_text(time: Time) -> str:
    """Return ``12.3 us`` or ``2,609 cycles``."""
    return amount(time.amount, time.unit)


def times_text(line: Line) -> str:
    """Return ``1.2 ms measured (18 layers), 30 us estimated (2 layers)``; the numbers of layers
    only if not all have the same kind of time.
    """

    def text(origin: str, total: TimeSum) -> str:
        time = f"{amount(total.amount, total.unit)} {origin.removesuffix(f' in {total.unit}')}"
        is_of_all = total.layers == line.layers
        return time if is_of_all else f"{time} ({plural(total.layers, 'layer')})"

    return ", ".join(text(origin, total) for origin, total in line.times.items()) or "unknown"


def share_text(part: float, total: float) -> str:
    return f"{part / total:.1%}" if total else "none"


def macs_text(macs: int) -> str:
    return count(macs) if macs else ""
