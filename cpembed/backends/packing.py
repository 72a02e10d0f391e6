"""Kernels that move an operand between its original layout and the packed one."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property, lru_cache

from cpembed.backends.script import HEADER, Script, buffer, grid, zero
from cpembed.backends.traffic import LINE_BYTES
from cpembed.backends.transposition import Blocks, Element, write_transposition
from cpembed.backends.window_packing import Windows
from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import size_bytes
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.transform.index_algebra import simplify
from cpembed.transform.program import PackedOperand

_INNER_ELEMENTS = 64
"""Elements moved at least between two decodings of a row number."""
_COPIED_ELEMENTS = 2**14
"""Elements of a row at most where a row is a copy of several runs: finding out where a row is, and
whether it is inside, takes as long as copying a few lines."""
_ROW_ELEMENTS = 2**15
"""Elements of a row at most where a row is to hold a transposition: what stays in a near cache."""
_UNROLLED = 8
"""An innermost loop of so few steps is unrolled, so that the loop around it is vectorised."""


def packed_before(workload: Computation) -> list[str]:
    """Inputs that are packed once, ahead of time, unless told otherwise: the second one (W, B),
    unless it varies."""
    return [operand.name for operand in workload.inputs[1:2] if not operand.varies]


_TRANSPOSED, SCATTERED, _COMPUTED = 6.0, 14.0, 120.0
"""What an element takes that is transposed in vector registers, whose neighbours go elsewhere, or
whose place is computed by divisions, in units of one that is copied (measured on Sapphire Rapids:
0.2, 0.46 and 4 ns beside 0.034)."""


_RUN_LINES = 0.2
"""What it takes to copy a run of neighbours, in lines that are copied meanwhile: no more than the
line takes that they fill, where they are few (measured on Sapphire Rapids: windows with 3 to 5 runs
a line take 1.0 to 1.1 times as long as copying what they fill; before runs were copied by single
vectors, 3.6 times)."""


ORIGINAL, PACKED = "Original", "Packed"
"""Names of the buffers in the text."""


class Direction(Enum):
    PACK = "pack"
    UNPACK = "unpack"


@dataclass(frozen=True)
class _Move:
    """An operand with identifiers for its packed dimensions.

    The first ``rows`` dimensions are walked as one row number; ``order`` are the others in loop
    order, outermost first.
    """

    operand: PackedOperand
    names: tuple[str, ...]
    source: tuple[IndexExpr, ...]
    rows: int
    order: tuple[str, ...]
    base: IndexExpr = field(default_factory=IndexExpr)
    """Where the packed operand begins in its buffer."""
    packed: str = PACKED
    windows: Windows | None = None
    """The order of the elements of a row, where they are digits of one number."""

    @property
    def row_count(self) -> int:
        return math.prod(self.operand.shape[: self.rows])

    @property
    def extents(self) -> dict[str, int]:
        return dict(zip(self.names, self.operand.shape, strict=True))

    @cached_property
    def packed_index(self) -> IndexExpr:
        """Into the flat packed buffer."""
        pairs = zip(self.names, self.operand.strides, strict=True)
        return IndexExpr.of([IndexTerm(name, stride) for name, stride in pairs]) + self.base

    @property
    def packed_element(self) -> str:
        return f"{self.packed}[{self.packed_index}]"

    @cached_property
    def original_index(self) -> IndexExpr:
        """Into the flat original. Digits that are neighbours there, of one packed dimension, are
        one term: what moves is then seen to be contiguous."""
        total = IndexExpr()
        step = 1
        for index, size in reversed(
            list(zip(self.source, self.operand.original_shape, strict=True))
        ):
            total = (
                IndexExpr.of([t.times(step) for t in index.terms], index.constant * step) + total
            )
            step *= size
        return simplify(total, self.extents)

    @property
    def original_element(self) -> str:
        return f"{ORIGINAL}[{self.original_index}]"

    def bounds(self) -> tuple[list[str], dict[str, tuple[int, int]], list[str]]:
        """What keeps a move inside the original shape: conditions on the row, ranges of single
        loops, and conditions on an element for what neither expresses."""
        extents = self.extents
        of_row: list[str] = []
        ranges: dict[str, tuple[int, int]] = {}
        of_element: list[str] = []
        for index, size in zip(self.source, self.operand.original_shape, strict=True):
            low, high = index.bounds(extents)
            if low >= 0 and high < size:
                continue
            name, divisor = self._leading_digit(index)
            if name in self.order and name not in ranges:
                first = max(0, -index.constant) * divisor
                end = min(extents[name], (size - index.constant) * divisor)
                ranges[name] = (first, max(first, end))
                continue
            conditions = (
                of_row if set(index.iterators) <= set(self.names[: self.rows]) else (of_element)
            )
            conditions += [f"{index} >= 0"] if low < 0 else []
            conditions += [f"{index} < {size}"] if high >= size else []
        return of_row, ranges, of_element

    @property
    def copies(self) -> bool:
        """Whether neighbours stay neighbours."""
        moving = [name for name, extent in self.extents.items() if extent > 1]
        last = moving[-1] if moving else self.names[-1]
        along = [t for t in self.original_index.terms if last in t.iterators]
        return [(t.is_affine, t.coefficient) for t in along] == [(True, 1)]

    def sides(self) -> tuple[str, str] | None:
        """The loops along which the packed layout and the original are contiguous, of a move that
        is a transposition: other loops, and every element at a place that needs no division."""
        if len(self.order) < 2:
            return None
        packed, original = self.names[-1], self.order[-1]
        affine = all(term.is_affine for term in self.original_index.terms)
        one = self.original_index.coefficient(original) == 1
        if packed not in self.order or packed == original or not (affine and one):
            return None
        return packed, original

    @staticmethod
    def _leading_digit(index: IndexExpr) -> tuple[str | None, int]:
        """The iterator and divisor of ``iterator // divisor + constant``."""
        if len(index.terms) == 1:
            (term,) = index.terms
            if term.inner is None and term.coefficient == 1 and term.modulus is None:
                return term.iterator, term.divisor
        return None, 1


def _blocks(move: _Move, direction: Direction) -> Blocks | None:
    """Of a transposition in vector registers; None where the move is none, or small."""
    sides = move.sides()
    _, ranges, of_element = move.bounds()
    if sides is None or of_element:
        return None
    packed, original = (_range(move, ranges, name) for name in sides)
    rows, columns = (packed, original) if direction is Direction.PACK else (original, packed)
    return Blocks.of(rows[1] - rows[0], columns[1] - columns[0], move.operand.dtype)


def _range(move: _Move, ranges: Mapping[str, tuple[int, int]], name: str) -> tuple[int, int]:
    return ranges.get(name, (0, move.extents[name]))


@lru_cache(1 << 10)
def effort(operand: PackedOperand) -> float:
    """How long an element takes to move, in units of one that is copied beside its neighbours."""
    if not operand.dimensions:
        return 1.0
    move = _plan(operand)
    if move.copies:
        return 1.0
    if move.windows is not None:
        lines = move.windows.size * size_bytes(operand.dtype) / LINE_BYTES
        return max(1.0, _RUN_LINES * move.windows.copied / lines)
    moving = [t for t in move.original_index.terms if set(t.iterators) & set(move.order)]
    if not all(term.is_affine for term in moving) or move.bounds()[2]:
        return _COMPUTED
    return SCATTERED if _blocks(move, Direction.PACK) is None else _TRANSPOSED


@lru_cache(1 << 10)
def runs(operand: PackedOperand) -> int:
    """Runs of neighbours that packing copies for windows; 0 where it does not."""
    windows = _plan(operand).windows if operand.dimensions else None
    return 0 if windows is None else operand.elements // windows.size * windows.copied


def packing_source(operand: PackedOperand, chunks: int, direction: Direction) -> str:
    """TVMScript of ``main(source, target)``: pack reads the original, unpack the packed buffer.

    Packing writes zero where the layout lies outside the original shape; unpacking drops it.
    """
    move = _plan(operand)
    original = buffer(ORIGINAL, math.prod(operand.original_shape), operand.dtype)
    packed = buffer(PACKED, operand.elements, operand.dtype)
    packs = direction is Direction.PACK
    parameters = f"{original}, {packed}" if packs else f"{packed}, {original}"
    source, target = (ORIGINAL, PACKED) if packs else (PACKED, ORIGINAL)
    regions = (f"T.reads({source}[0])", f"T.writes({target}[0])")
    total = move.row_count
    chunks = min(chunks, total)
    script = Script()
    script.line(HEADER)
    with script.nested(f"def main({parameters}):"):
        script.line('T.func_attr({"tirx.noalias": True, "global_symbol": "main"})')
        with script.nested(f"for chunk in T.parallel({chunks}):", 'with T.sblock("chunk"):'):
            script.line(f"part = T.axis.spatial({chunks}, chunk)")
            for region in regions:
                script.line(region)
            bounds = f"part * {total} // {chunks}, (part + 1) * {total} // {chunks}"
            with _row(script, move, bounds, regions):
                if packs:
                    _pack_row(script, move)
                else:
                    _unpack_row(script, move)
    return script.text()


def rows_of(operand: PackedOperand) -> tuple[int, int]:
    """How many rows :func:`packed_rows` walks, and over how many of the outermost dimensions."""
    move = _plan(operand)
    return move.row_count, move.rows


def packed_rows(
    script: Script,
    operand: PackedOperand,
    rows: tuple[str, str],
    packed: str,
    base: IndexExpr,
) -> None:
    """Pack rows, a first one and an end, of an operand from the buffer :data:`ORIGINAL` into
    ``packed``, where it begins at ``base``."""
    first, end = rows
    move = replace(_plan(operand), base=base, packed=packed)
    regions = (f"T.reads({ORIGINAL}[0])", f"T.writes({packed}[0])")
    with _row(script, move, f"{first}, {end}", regions):
        _pack_row(script, move)


@contextmanager
def _row(script: Script, move: _Move, bounds: str, regions: Sequence[str]) -> Generator[None]:
    """The loop over rows, each a block that knows its place."""
    with script.nested(f"for row in T.serial({bounds}):", 'with T.sblock("row"):'):
        _bind_row(script, move)
        for region in regions:
            script.line(region)
        yield


def _plan(operand: PackedOperand) -> _Move:
    """A row ends where it holds enough elements, and takes in the dimension that walks the
    original's last one where that is not far: then a transposition stays within a row."""
    names = tuple(f"d{number}" for number in range(len(operand.dimensions)))
    renamed = {d.name: name for d, name in zip(operand.dimensions, names, strict=True)}
    extents = dict(zip(names, operand.shape, strict=True))
    source = tuple(
        simplify(index.rename(lambda name: renamed[name]), extents) for index in operand.source
    )
    windows = Windows.of(extents, source, operand.original_shape)
    if windows is not None and windows.walked[0] != names[0]:
        first = names.index(windows.walked[0])
        return _Move(operand, names, source, first, names[first:], windows=windows)
    rows = len(names)
    while rows > 1 and math.prod(operand.shape[rows:]) < _INNER_ELEMENTS:
        rows -= 1
    rows = min(rows, len(names) - 1)
    while rows > 1 and math.prod(operand.shape[rows - 1 :]) <= _COPIED_ELEMENTS:
        longer = _Move(operand, names, source, rows - 1, names[rows - 1 :])
        if not longer.copies or longer.bounds()[2]:
            break
        rows -= 1
    order = list(names[rows:])
    last = source[-1].terms if source else ()
    steps = [t.iterator for t in last if t.is_affine and t.coefficient == 1]
    near = steps[0] if len(steps) == 1 else None
    if near in names[:-1]:
        place = min(rows, names.index(near))
        if math.prod(operand.shape[place:]) <= _ROW_ELEMENTS and place > 0:
            rows = place
            inner = operand.shape[-1] if operand.shape[-1] <= _UNROLLED else 0
            order = [name for name in names[rows:] if name != near]
            order.insert(len(order) - 1 if inner else len(order), near)
    return _Move(operand, names, source, rows, tuple(order))


def _bind_row(script: Script, move: _Move) -> None:
    inside = move.row_count
    for name, extent in zip(move.names[: move.rows], move.operand.shape, strict=False):
        whole, inside = inside, inside // extent
        place = "row" if inside == 1 else f"row // {inside}"
        place += "" if whole == move.row_count else f" % {extent}"
        script.line(f"{name} = T.axis.spatial({extent}, {'0' if extent == 1 else place})")


def _loops(move: _Move, ranges: Mapping[str, tuple[int, int]]) -> list[str]:
    headers: list[str] = []
    for name in move.order:
        first, end = _range(move, ranges, name)
        small = name == move.order[-1] and end - first <= _UNROLLED
        bounds = f"{first}, {end}" if first else str(end)
        headers.append(f"for {name} in T.{'unroll' if small else 'serial'}({bounds}):")
    return headers


def _pack_row(script: Script, move: _Move) -> None:
    """The row's condition is tested once; a row's margins are cleared, or all of it where they are
    scattered."""
    if move.windows is not None:
        _pack_window(script, move, move.windows)
        return
    of_row, ranges, of_element = move.bounds()
    clear = f"{move.packed_element} = {zero(move.operand.dtype)}"
    names, extents = move.names[move.rows :], move.operand.shape[move.rows :]
    plain = grid(names, extents)
    guard = [f"if {' and '.join(of_element)}:"] if of_element else []

    def fill() -> None:
        for loops in [plain] if of_element else _margins(names, extents, ranges):
            with script.nested(*loops):
                script.line(clear)
        if not _transpose(script, move, Direction.PACK):
            with script.nested(*_loops(move, ranges), *guard):
                script.line(f"{move.packed_element} = {move.original_element}")

    if not of_row:
        fill()
        return
    with script.nested(f"if {' and '.join(of_row)}:"):
        fill()
    with script.nested("else:", *plain):
        script.line(clear)


def _margins(
    names: Sequence[str], extents: Sequence[int], ranges: Mapping[str, tuple[int, int]]
) -> Iterator[list[str]]:
    """The loops over each margin of a row: what lies before and after a loop's range."""
    for name, (first, end) in ranges.items():
        extent = extents[names.index(name)]
        for begin, stop in (0, min(first, extent)), (end, extent):
            if begin < stop:
                bounds = {n: (0, e) for n, e in zip(names, extents, strict=True)}
                bounds[name] = begin, stop
                yield [f"for {n} in T.serial({a}, {b}):" for n, (a, b) in bounds.items()]


def _pack_window(script: Script, move: _Move, windows: Windows) -> None:
    begin = [t for t in move.packed_index.terms if t.iterator not in windows.walked]
    windows.write(
        script,
        lambda index: f"{ORIGINAL}[{index}]",
        lambda index: f"{move.packed}[{index}]",
        IndexExpr.of(begin, move.packed_index.constant),
        dict(zip(move.names, move.operand.strides, strict=True)),
        zero(move.operand.dtype),
        [name for name in move.order if name not in windows.walked],
    )


def _unpack_row(script: Script, move: _Move) -> None:
    of_row, ranges, of_element = move.bounds()
    outside = [f"if {' and '.join(of_row)}:"] if of_row else []
    guard = [f"if {' and '.join(of_element)}:"] if of_element else []
    with script.nested(*outside):
        if not _transpose(script, move, Direction.UNPACK):
            with script.nested(*_loops(move, ranges), *guard):
                script.line(f"{move.original_element} = {move.packed_element}")


def _transpose(script: Script, move: _Move, direction: Direction) -> bool:
    """Write the move of a row as a transposition; False where it is none."""
    blocks, sides = _blocks(move, direction), move.sides()
    if blocks is None or sides is None:
        return False
    _, ranges, _ = move.bounds()
    packed, original = sides
    packs = direction is Direction.PACK
    rows, columns = (packed, original) if packs else (original, packed)

    def at(index: IndexExpr) -> Element:
        def element(row: str, column: str) -> str:
            places = {rows: row, columns: column}
            return str(index.rename(lambda name: places.get(name, name)))

        return element

    ends = (ORIGINAL, at(move.original_index)), (move.packed, at(move.packed_index))
    source, target = ends if packs else reversed(ends)
    outer = [name for name in move.order if name not in sides]
    bounds = [(name, *_range(move, ranges, name)) for name in outer]
    with script.nested(*(f"for {name} in T.serial({a}, {b}):" for name, a, b in bounds)):
        write_transposition(
            script,
            blocks,
            move.operand.dtype,
            _range(move, ranges, rows),
            _range(move, ranges, columns),
            source,
            target,
        )
    return True
