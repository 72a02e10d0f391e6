"""Which lane holds which element of a matrix in registers: the data of ``fragments.toml``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import msgspec

from cpembed.errors import InvariantError
from cpembed.hw.instruction import InstructionAxis, TileDimension, read_tile
from cpembed.hw.schema import read_table, spec_error
from cpembed.targets.cuda.instructions import LANES

PATH = Path(__file__).with_name("fragments.toml")

GROUPS, THREADS = 8, 4
"""Groups of a warp, and lanes of a group."""

MATRIX_ROWS = 8
"""Of a matrix that ``ldmatrix`` loads; each has 16 bytes."""


class FragmentTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[fragments.NAME]``: how many elements a lane holds, and where they are."""

    elements: int
    row: list[str]
    column: list[str]


class FragmentsTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    fragments: dict[str, FragmentTable]


@dataclass(frozen=True)
class Fragment:
    """A matrix of ``shape`` over a warp, ``elements`` to a lane, in the order of registers and of
    the bytes in them.

    ``row`` and ``column`` are digits, outermost first.
    """

    name: str
    elements: int
    row: tuple[TileDimension, ...]
    column: tuple[TileDimension, ...]

    @property
    def shape(self) -> tuple[int, int]:
        return _size(self.row, self.elements), _size(self.column, self.elements)

    def position(self, lane: int, element: int) -> tuple[int, int]:
        """Row and column of an element that a lane holds."""
        if not (0 <= lane < LANES and 0 <= element < self.elements):
            raise InvariantError(f"{self.name}: no element {element} in lane {lane}")
        values = {"groupID": lane // THREADS, "threadID_in_group": lane % THREADS, "i": element}
        return _number(self.row, values, self.elements), _number(self.column, values, self.elements)


def position(name: str, lane: int, element: int) -> tuple[int, int]:
    """Row and column of an element of a fragment, ``m16n8k16.a`` for instance."""
    return fragments()[name].position(lane, element)


def matrix_row(lane: int) -> tuple[int, int]:
    """The matrix, and the row of it, whose address a lane gives to ``ldmatrix``; with fewer than
    four matrices the addresses of later lanes are not used."""
    return lane // MATRIX_ROWS, lane % MATRIX_ROWS


@cache
def fragments() -> Mapping[str, Fragment]:
    """All of the file, by name."""
    return read_fragments(PATH)


def read_fragments(path: Path) -> Mapping[str, Fragment]:
    """Raises :class:`~cpembed.errors.SpecError` for an entry in which a matrix's elements are not
    each in one place of one lane."""
    table = read_table(path, FragmentsTable)
    return {name: _fragment(path, name, entry) for name, entry in table.fragments.items()}


def _fragment(path: Path, name: str, table: FragmentTable) -> Fragment:
    extents = _extents(table.elements)
    axes = {axis: InstructionAxis(axis, extent, extent) for axis, extent in extents.items()}
    error = partial(spec_error, str(path), ("fragments", name))
    digits = read_tile([*table.row, *table.column], tuple(axes), axes, error)
    rows = len(table.row)
    return Fragment(name, table.elements, digits[:rows], digits[rows:])


def _extents(elements: int) -> dict[str, int]:
    return {"groupID": GROUPS, "threadID_in_group": THREADS, "i": elements}


def _size(digits: Sequence[TileDimension], elements: int) -> int:
    size, extents = 1, _extents(elements)
    for digit in digits:
        size *= digit.size(extents[digit.axis])
    return size


def _number(digits: Sequence[TileDimension], values: Mapping[str, int], elements: int) -> int:
    number, extents = 0, _extents(elements)
    for digit in digits:
        size = digit.size(extents[digit.axis])
        number = number * size + values[digit.axis] // digit.divisor % size
    return number
