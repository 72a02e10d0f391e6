"""Blocks of a report as data, and results that show themselves by their reports.

Reports and targets yield blocks, and nothing here loads rich before a block is printed. A block
adapts to the width of the terminal: text folds at words, and columns that do not fit follow in a
second table.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table as RichTable

# Number of spaces between two columns.
_GAP = 2

# Width down to which a text column is folded before other columns move to a second table.
_PREFERRED_WIDTH = 24

# Maximum number of characters of a word that is kept on one line where a column is folded.
_LONGEST_WORD = 32

# Maximum width of the labels of a header.
_LABEL_WIDTH = 32


class Printable(Protocol):
    """A part of a report that rich prints."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult: ...


Block = str | Printable
"""A part of a report; a string is a line of text, the empty string a blank line."""


@dataclass(frozen=True)
class Header:
    """Labels with their values; a value that is longer than the line folds below itself."""

    rows: Iterable[tuple[str, str]]

    def __post_init__(self) -> None:
        # Rows may come from a generator, and a block may be printed more than once.
        object.__setattr__(self, "rows", tuple(self.rows))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.table import Table as Grid
        from rich.text import Text

        grid = Grid.grid(padding=(0, _GAP, 0, 0))
        grid.add_column(style="bold", overflow="fold")
        grid.add_column(overflow="fold")
        # Fixed, or rich would give long values the room of the labels.
        labels = max((len(label) for label, _ in self.rows), default=0)
        grid.columns[0].width = min(labels, _LABEL_WIDTH)
        for label, value in self.rows:
            grid.add_row(Text(label), Text(value))
        yield grid


@dataclass(frozen=True)
class Bullets:
    """List items, each of which folds below itself."""

    lines: Iterable[str]

    def __post_init__(self) -> None:
        object.__setattr__(self, "lines", tuple(self.lines))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.table import Table as Grid
        from rich.text import Text

        grid = Grid.grid(padding=(0, 1, 0, 0))
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        for line in self.lines:
            grid.add_row("  -", Text(line))
        yield grid


@dataclass(frozen=True)
class Heading:
    """A line in bold above a block."""

    text: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        yield Text(self.text, style="bold")


@dataclass(frozen=True)
class Preformatted:
    """Indented lines whose columns stay aligned; only a line beyond the width is folded."""

    text: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        for line in self.text.splitlines():
            indent = " " * (2 + len(line) - len(line.lstrip()))
            folded = textwrap.wrap(
                f"  {line}",
                options.max_width,
                subsequent_indent=f"{indent}    ",
                drop_whitespace=False,
            )
            yield Text("\n".join(part.rstrip() for part in folded))


@dataclass(frozen=True)
class Table:
    """Columns with a rule below their heads; right-aligned where the name ends in ``>``.

    Parameters
    ----------
    columns
        Names of the columns.
    rows
        Cells of each row, as many as there are columns.
    max_widths
        Maximum width of text columns, by name, on lines of any length: a few long reasons do not
        push the other columns apart.
    keys
        Number of leading columns that each part of a split table repeats.
    breaks
        Numbers of columns before which a table is split first, if it has to be.
    stacked
        Number of the column from which on all cells of a row become lines of one cell, if the
        columns do not fit side by side.
    """

    columns: Sequence[str]
    rows: Iterable[Sequence[str]]
    max_widths: Mapping[str, int] = field(default_factory=dict[str, int])
    keys: int = 1
    breaks: tuple[int, ...] = ()
    stacked: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", tuple(map(tuple, self.rows)))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = options.max_width
        widths = [_Widths.measure(self, number) for number in range(len(self.columns))]
        # Stacked cells keep a row together, which a split table does not.
        if self.stacked is not None and _total(width.natural for width in widths) > room:
            yield self._stacked(self.stacked)
            return
        for number, part in enumerate(self._parts(widths, room)):
            if number:
                yield ""
            yield self._printed(part, [widths[column] for column in part], room)

    def _parts(self, widths: Sequence[_Widths], room: int) -> list[list[int]]:
        """Return the numbers of the columns of each table that this one is split into."""
        if _total(width.preferred for width in widths) <= room:
            return [list(range(len(widths)))]
        keys = list(range(self.keys))
        parts: list[list[int]] = [[]]
        for column in range(self.keys, len(widths)):
            wider = [*keys, *parts[-1], column]
            is_full = _total(widths[number].preferred for number in wider) > room
            # A table that has to be split is split where its columns belong apart.
            if parts[-1] and (is_full or column in self.breaks):
                parts.append([])
            parts[-1].append(column)
        return [keys + part for part in parts]

    def _printed(self, part: Sequence[int], widths: Sequence[_Widths], room: int) -> RichTable:
        from rich import box
        from rich.table import Table as RichTable
        from rich.text import Text

        table = RichTable(
            box=box.SIMPLE_HEAD,
            pad_edge=False,
            show_edge=False,
            collapse_padding=True,
            header_style="bold",
        )
        for column, width in zip(part, _shrunk(widths, room), strict=True):
            name = self.columns[column]
            table.add_column(
                Text(name.removesuffix(">")),
                justify="right" if name.endswith(">") else "left",
                overflow="fold",
                width=width,
            )
        for row in self.rows:
            table.add_row(*(Text(row[column]) for column in part))
        return table

    def _stacked(self, first: int) -> Table:
        """Return the table whose last cells are lines of one cell."""
        name = ", ".join(column.removesuffix(">") for column in self.columns[first:])
        rows = [(*row[:first], "\n".join(filter(None, row[first:]))) for row in self.rows]
        return Table((*self.columns[:first], name), rows, self.max_widths, self.keys)


@dataclass(frozen=True)
class _Widths:
    """Widths of a column: unfolded, folded as far as it reads well, as far as words allow."""

    natural: int
    preferred: int
    least: int

    @classmethod
    def measure(cls, table: Table, column: int) -> _Widths:
        from rich.cells import cell_len

        name = table.columns[column]
        head = name.removesuffix(">")
        lines = [line for row in table.rows for line in row[column].splitlines()]
        cells = max(map(cell_len, lines), default=0)
        natural = min(max(cells, cell_len(head)), table.max_widths.get(name, 10**6))
        words = max(map(cell_len, head.split()), default=0)
        if name.endswith(">"):
            # Numbers are never folded, heads of several words are.
            least = max(cells, words)
            return cls(natural, least, least)
        longest = max((cell_len(word) for line in lines for word in line.split()), default=0)
        least = min(natural, max(words, min(longest, _LONGEST_WORD)))
        return cls(natural, max(least, min(natural, _PREFERRED_WIDTH)), least)


def _total(widths: Iterable[int]) -> int:
    """Return the width of a table of columns."""
    listed = list(widths)
    return sum(listed) + _GAP * (len(listed) - 1)


def _shrunk(widths: Sequence[_Widths], room: int) -> list[int]:
    """Return the widths with which columns fit, the widest ones folded first.

    >>> _shrunk([_Widths(10, 10, 10), _Widths(40, 24, 8), _Widths(20, 20, 9)], 50)
    [10, 18, 18]
    """
    current = [width.natural for width in widths]
    # Only where not even the words fit is a word broken.
    for floors in ([width.least for width in widths], [1] * len(widths)):
        while _total(current) > room:
            wide = [number for number, width in enumerate(current) if width > floors[number]]
            if not wide:
                break
            # One by one from the widest: columns end up as equal as they can.
            current[max(wide, key=lambda number: current[number])] -= 1
    return current


# -- results --------------------------------------------------------------------------------------

# Module that renders results. It is named, and imported when a result is shown: how results look is
# known a floor above them, and loading it takes longer than most searches.
_REPORTS = "cpembed.report.display"


class Displayed:
    """Base of results that a person looks at.

    Their text is what the command of the same name prints.
    """

    def __repr__(self) -> str:
        return import_module(_REPORTS).text(self)

    __str__ = __repr__

    def _repr_html_(self) -> str:
        """Return the text's tables as HTML, and a picture if there is one: Jupyter's protocol."""
        return import_module(_REPORTS).html(self)

    def __rich_console__(self, console: Any, options: Any) -> Any:
        """Yield the parts of the report: Rich's protocol."""
        yield from import_module(_REPORTS).parts(self)
