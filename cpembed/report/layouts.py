"""Report of ``cpembed layouts``."""

from __future__ import annotations

from collections.abc import Iterator

from cpembed.blocks import Block, Bullets, Header, Heading, Table
from cpembed.driver.layout_rows import LayoutRow, LayoutsResult
from cpembed.report.messages import mapping_text, percent
from cpembed.wording import data_size, duration

_COLUMNS = (
    *("", "layout", "total>", "contraction>", "packing>", "unpacking>"),
    *("used>", "moved>", "contiguous>", "mapping"),
)


def report(result: LayoutsResult) -> Iterator[Block]:
    """Yield a row for each layout, the best one marked, and why it is the best."""
    yield Table(_COLUMNS, (_row(row, result) for row in result.rows), keys=2)
    yield ""
    rows = [("workload", f"{result.workload} on {result.target}"), ("why", result.why)]
    origin = _origin(result)
    yield Header([*rows, ("times", origin)] if origin else rows)
    noisy = [row.name for row in result.rows if row.times is not None and row.times.noisy]
    if noisy:
        yield f"noisy: other work on the machine disturbed {', '.join(noisy)}; measure again"
    failed = [f"{row.name}: {row.reason}" for row in result.rows if row.reason]
    failed += [f"{name}: {why}" for name, why in result.refused.items()]
    if failed:
        yield ""
        yield Heading("Not compared")
        yield Bullets(failed)
    yield ""
    yield (
        "moved: bytes that packing and unpacking read and write, weights included; contiguous: "
        "bytes next to each other of\nthe first input that one execution reads"
    )


def _row(row: LayoutRow, result: LayoutsResult) -> tuple[str, ...]:
    mark = "best" if row is result.best else "same" if row in result.as_fast else ""
    name = row.name if row.on in (None, result.target) else f"{row.name} ({row.on})"
    cells = (
        percent(row.utilisation),
        "" if row.moved_bytes is None else data_size(row.moved_bytes),
        "" if row.run_bytes is None else f"{row.run_bytes:.3g} B",
        "" if row.embedding is None else mapping_text(row.embedding),
    )
    times = row.times
    if times is None:
        return mark, name, "", "", "", "", *cells
    packing, unpacking = _text(times.packing), _text(times.unpacking)
    if times.packing is None and times.moving is not None:
        # The machine model estimates packing and unpacking as one sum.
        packing, unpacking = f"{_text(times.moving)} both", ""
    return mark, name, _text(times.total), _text(times.contraction), packing, unpacking, *cells


def _text(us: float | None) -> str:
    return "" if us is None else duration(us)


def _origin(result: LayoutsResult) -> str:
    """Return how the times were determined, and what they leave out."""
    origins = dict.fromkeys(
        row.times.provenance.value if row.times.machine is None
        # Packing of a simulated machine is estimated too, for the described one.
        else f"{row.times.provenance.value} for the described {row.times.machine}"
        for row in result.rows
        if row.times is not None
    )  # fmt: skip
    return f"{', '.join(origins)}; weights are packed ahead and not counted" if origins else ""
