"""The few shapes that reports are made of: headers, tables, lists."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.padding import Padding
from rich.table import Table
from rich.text import Text


def header(rows: Iterable[tuple[str, str]]) -> Table:
    """Labels with their values; a value that is longer than the line folds under itself."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in rows:
        table.add_row(label, Text(value))
    return table


def table(columns: Iterable[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table with a rule below its head; a column whose name ends in ``>`` is aligned right."""
    result = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
        collapse_padding=True,
        header_style="bold",
    )
    for name in columns:
        justify = "right" if name.endswith(">") else "left"
        result.add_column(name.removesuffix(">"), justify=justify, overflow="fold")
    for row in rows:
        result.add_row(*(Text(cell) for cell in row))
    return result


def heading(text: str) -> Text:
    return Text(text, style="bold")


def bullets(lines: Iterable[str]) -> Table:
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for line in lines:
        grid.add_row("  -", Text(line))
    return grid


def indented(text: str) -> Padding:
    """Preformatted text; never folded, so that its columns stay aligned."""
    return Padding(Text(text, no_wrap=True, overflow="ignore"), (0, 0, 0, 2))
