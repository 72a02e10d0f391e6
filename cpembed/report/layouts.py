"""The report of ``cpembed layouts``."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType

from cpembed.driver.layout_rows import LayoutRow, LayoutsResult
from cpembed.report import words
from cpembed.report.across import percent
from cpembed.report.blocks import bullets, header, heading, table
from cpembed.wording import data_size, duration

_COLUMNS = (
    *("", "layout", "total>", "contraction>", "packing>", "unpacking>"),
    *("used>", "moved>", "contiguous>", "mapping"),
)


def report(result: LayoutsResult) -> Iterator[RenderableType]:
    """One row a layout, the best one marked, and why it is the best."""
    yield table(_COLUMNS, (_row(row, result) for row in result.rows))
    yield ""
    rows = [("workload", f"{result.workload} on {result.target}"), ("why", result.why)]
    how = _how(result)
    yield header([*rows, ("times", how)] if how else rows)
    noisy = [row.name for row in result.rows if row.times is not None and row.times.noisy]
    if noisy:
        yield f"noisy: other work on the machine disturbed {', '.join(noisy)}; measure again"
    failed = [f"{row.name}: {row.reason}" for row in result.rows if row.reason]
    failed += [f"{name}: {why}" for name, why in result.refused.items()]
    if failed:
        yield ""
        yield heading("Not compared")
        yield bullets(failed)
    yield ""
    yield (
        "moved: bytes that packing and unpacking read and write, weights included; contiguous: "
        "bytes next to each other of\nthe first input that one execution reads"
    )


def _row(row: LayoutRow, result: LayoutsResult) -> tuple[str, ...]:
    mark = "best" if row is result.best else "same" if row in result.as_fast else ""
    name = row.name if row.on in (None, result.target) else f"{row.name} ({row.on})"
    mapping = "" if row.embedding is None else words.mapping(row.embedding)
    rest = (
        percent(row.utilisation),
        "" if row.moved_bytes is None else data_size(row.moved_bytes),
        "" if row.run_bytes is None else f"{row.run_bytes:.3g} B",
        mapping,
    )
    times = row.times
    if times is None:
        return mark, name, "", "", "", "", *rest
    if times.packing is None and times.moving is not None:
        # The model knows both together.
        moves = (f"{_text(times.moving)} both", "")
    else:
        moves = (_text(times.packing), _text(times.unpacking))
    return mark, name, _text(times.total), _text(times.contraction), *moves, *rest


def _text(us: float | None) -> str:
    return "" if us is None else duration(us)


def _how(result: LayoutsResult) -> str:
    """How the times came about, and what is not in them."""
    kinds = dict.fromkeys(
        row.times.provenance.value if row.times.machine is None
        # Of a simulated machine too, packing is estimated for the described one.
        else f"{row.times.provenance.value} for {row.times.machine} as it is described"
        for row in result.rows
        if row.times is not None
    )  # fmt: skip
    if not kinds:
        return ""
    return f"{', '.join(kinds)}; weights are packed ahead and not counted"
