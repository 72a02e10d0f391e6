"""The table of candidates, as wide as the terminal allows."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult

from cpembed.cost.ranking import RankedCandidate
from cpembed.report import words
from cpembed.report.blocks import table

_GAP = 2
"""Columns between two cells."""


class CandidateTable:
    """One row a candidate: rank, mapping, the given cells, identifier.

    Where lines are too short, first the identifiers go (commands take ranks, and ``--json`` has
    them), then a mapping takes several lines, each of whole instruction axes.
    """

    def __init__(
        self,
        columns: Sequence[str],
        rows: Sequence[tuple[RankedCandidate, Sequence[str]]],
    ) -> None:
        self.embeddings = [item.candidate.embedding for item, _ in rows]
        self.columns = ["rank>", *columns, "id"]
        self.rows = [
            [str(item.rank), *cells, item.candidate.embedding.identifier()] for item, cells in rows
        ]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widest = max(cell_len(words.mapping(e)) for e in self.embeddings)
        narrowest = max(cell_len(part) for e in self.embeddings for part in words.feeds(e))
        last = len(self.columns)
        if widest > self._room(last, options.max_width):
            last -= 1
        width = max(self._room(last, options.max_width), narrowest)
        rank, *others = self.columns[:last]
        result = table(
            [rank, "mapping", *others],
            (
                [row[0], words.mapping(embedding, width), *row[1:last]]
                for row, embedding in zip(self.rows, self.embeddings, strict=True)
            ),
        )
        for column in result.columns:
            column.no_wrap = True
        yield result

    def _room(self, last: int, width: int) -> int:
        """What the first ``last`` columns leave of a line to the mapping."""
        for position, name in enumerate(self.columns[:last]):
            cells = (cell_len(row[position]) for row in self.rows)
            width -= max(len(name.removesuffix(">")), *cells) + _GAP
        return width
