"""Blocks of a transposition in vector registers: rows are read and written as full vectors.

Element by element, one side of a transposition is a load or a store for each element. A block of R
rows by L columns is read as R vectors; each of log2(R) perfect shuffles interleaves the rows of the
first half with those of the second, after which every column's R elements are neighbours (Stone
1971, "Parallel processing with the perfect shuffle").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cpembed.codegen.plan import Script, storage_dtype
from cpembed.ir.dtypes import size_bytes

# For bytes a 128-bit lane, within which shuffles are cheapest.
_GROUP = 16
"""Maximum number of neighbouring elements that are interleaved together."""
_VECTOR_BYTES = 64
_MAX_ROWS = 16
_SMALLEST = 4
"""Minimum number of rows and of columns of a block."""

Element = Callable[[str, str], str]
"""Index of an element, from its row and its column."""


@dataclass(frozen=True)
class Blocks:
    """Blocks of ``rows`` by ``columns``; the last ones of a side are moved back to end with it."""

    rows: int
    columns: int

    @staticmethod
    def largest(rows: int, columns: int, dtype: str) -> Blocks | None:
        """Return the largest blocks that fit; None if they would be too small."""
        lanes = _VECTOR_BYTES // size_bytes(dtype)
        blocks = Blocks(_power_of_two(min(rows, _MAX_ROWS)), _power_of_two(min(columns, lanes)))
        return blocks if min(blocks.rows, blocks.columns) >= _SMALLEST else None

    @property
    def group(self) -> int:
        """Number of columns that are interleaved together."""
        return min(self.columns, _GROUP)


def write_transposition(
    script: Script,
    blocks: Blocks,
    dtype: str,
    rows: tuple[int, int],
    columns: tuple[int, int],
    source: tuple[str, Element],
    target: tuple[str, Element],
) -> None:
    """Write statements that copy a matrix between buffers of which one is the other's transpose.

    Parameters
    ----------
    script, blocks : Script, Blocks
        Text to write to, and blocks of vectors.
    dtype : str
        Element type.
    rows, columns : tuple of int
        The first row or column and the end.
    source, target : tuple of str and Element
        Name and index of the buffers; columns are contiguous in the first, rows in the second.
    """
    starts = (_starts(rows, blocks.rows, "rb"), _starts(columns, blocks.columns, "cb"))
    with script.nested(*(f"for {name} in T.serial({count}):" for name, count, _ in starts)):
        (_, _, row), (_, _, column) = starts
        size, vector = blocks.rows * blocks.columns, storage_dtype(dtype)
        with script.nested('with T.sblock("block"):'):
            script.line(f"T.reads({source[0]}[0])")
            script.line(f"T.writes({target[0]}[0])")
            depth = blocks.rows.bit_length() - 1  # log2(R)
            for number in range(depth + 1):
                script.line(
                    f'stage{number} = T.sblock_alloc_buffer(({size},), "{vector}", scope="local")'
                )
            for number in range(blocks.rows):
                element = source[1](f"({row} + {number})", column)
                script.line(
                    f"{_ramp('stage0', number * blocks.columns, blocks.columns)} = "
                    f"{source[0]}[T.Ramp({element}, 1, {blocks.columns})]"
                )
            for number in range(depth):
                _interleave(script, blocks, number)
            _store(script, blocks, f"stage{depth}", row, column, target)


def _interleave(script: Script, blocks: Blocks, number: int) -> None:
    """Write one stage: rows i and i + R/2 become rows 2i and 2i + 1."""
    length, group = blocks.columns, blocks.group
    half = group // 2
    lanes_of_parts: list[list[int]] = []
    for part in range(2):
        lanes: list[int] = []
        for first in range(part * half, length, group):
            for at in range(first, first + half):
                lanes += [at, length + at]
        lanes_of_parts.append(lanes)
    for row in range(blocks.rows // 2):
        pair = ", ".join(
            _ramp(f"stage{number}", source * length, length)
            for source in (row, row + blocks.rows // 2)
        )
        for part, lanes in enumerate(lanes_of_parts):
            place = _ramp(f"stage{number + 1}", (2 * row + part) * length, length)
            script.line(f"{place} = T.Shuffle([{pair}], {lanes})")


def _store(
    script: Script, blocks: Blocks, stage: str, row: str, column: str, target: tuple[str, Element]
) -> None:
    """Write the columns, which consecutive rows of the last stage hold group by group."""
    # Element `at * rows + part` of a group is the first of a piece of column `first + at`.
    rows, length, group = blocks.rows, blocks.columns, blocks.group
    piece = min(rows, group)
    for first in range(0, length, group):
        for at in range(group):
            for part in range(0, rows, piece):
                row_of_stage, inside = divmod(at * rows + part, group)
                column_part = _ramp(stage, row_of_stage * length + first + inside, piece)
                element = target[1](f"({row} + {part})", f"({column} + {first + at})")
                script.line(f"{target[0]}[T.Ramp({element}, 1, {piece})] = {column_part}")


def _starts(bounds: tuple[int, int], size: int, name: str) -> tuple[str, int, str]:
    """Return a loop over blocks: its name, its count, and the start of each block."""
    first, end = bounds
    count = -(-(end - first) // size)
    start = f"{name} * {size} + {first}" if first else f"{name} * {size}"
    if (end - first) % size:
        start = f"T.min({start}, {end - size})"
    return name, count, f"({start})"


def _ramp(buffer: str, first: int, lanes: int) -> str:
    return f"{buffer}[T.Ramp({first}, 1, {lanes})]"


def _power_of_two(limit: int) -> int:
    """Return the largest power of two not above a positive limit; 0 for no limit."""
    return 1 << (limit.bit_length() - 1) if limit > 0 else 0
