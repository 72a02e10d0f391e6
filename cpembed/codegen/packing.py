"""Packing and unpacking: an operand between its original layout and the packed one.

:func:`plan_transform` decides the order in which elements are copied, :func:`packing_source` writes
it as a kernel.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property, partial

from cpembed.codegen.im2col_packing import Im2colPacking
from cpembed.codegen.plan import Script, buffer, grid, zero
from cpembed.codegen.transposition import Blocks, Element, write_transposition
from cpembed.ir.computation import Computation
from cpembed.ir.index import IndexExpr, IndexTerm, flat_index, row_major_strides
from cpembed.transform.index_algebra import simplify
from cpembed.transform.program import PackedOperand

# Decoding a row's number takes divisions, which are spread over its elements.
_INNER_ELEMENTS = 64
"""Minimum number of elements of a row."""
# Finding a row, and testing whether it lies inside, takes as long as copying a few lines.
_COPIED_ELEMENTS = 2**14
"""Maximum number of elements of a row that is a copy of several runs."""
# Both sides of a transposition have to stay in a near cache.
_ROW_ELEMENTS = 2**15
"""Maximum number of elements of a row that contains a transposition."""
# Unrolled, so that the loop around it is vectorised.
_UNROLLED = 8
"""Maximum number of steps of an innermost loop that is unrolled."""

ORIGINAL, PACKED = "Original", "Packed"
"""Names of the buffers in the text."""


class Direction(Enum):
    """Packing reads the original layout, unpacking writes it."""

    PACK = "pack"
    UNPACK = "unpack"


@dataclass(frozen=True)
class LayoutTransform:
    """Order in which an operand is packed or unpacked.

    ``names`` identify the packed dimensions, and ``source`` is the original index over them. The
    first ``rows`` dimensions are walked as one row number, the others by loops in ``order``,
    outermost first. The operand begins at ``base`` in the buffer ``packed``. ``windows`` are the
    runs of a row whose elements are digits of one number.
    """

    operand: PackedOperand
    names: tuple[str, ...]
    source: tuple[IndexExpr, ...]
    rows: int
    order: tuple[str, ...]
    base: IndexExpr = field(default_factory=IndexExpr)
    packed: str = PACKED
    windows: Im2colPacking | None = None

    @property
    def row_count(self) -> int:
        return math.prod(self.operand.shape[: self.rows])

    @property
    def extents(self) -> dict[str, int]:
        return dict(zip(self.names, self.operand.shape, strict=True))

    @cached_property
    def packed_index(self) -> IndexExpr:
        """Index into the flat packed buffer."""
        return IndexExpr.sum(map(IndexTerm, self.names, self.operand.strides)) + self.base

    @property
    def packed_element(self) -> str:
        """Element of the packed buffer in the text."""
        return f"{self.packed}[{self.packed_index}]"

    @cached_property
    def original_index(self) -> IndexExpr:
        """Index into the flat original."""
        # Simplified, so that neighbouring digits of one packed dimension are one term, which shows
        # what is contiguous.
        strides = row_major_strides(self.operand.original_shape)
        return simplify(flat_index(self.source, strides), self.extents)

    @property
    def original_element(self) -> str:
        """Element of the original in the text."""
        return f"{ORIGINAL}[{self.original_index}]"

    def bounds(self) -> tuple[list[str], dict[str, tuple[int, int]], list[str]]:
        """Return the limits that keep a transform inside the original shape.

        They are conditions on the row, ranges of single loops, and conditions on an element for
        what neither of these expresses.
        """
        extents = self.extents
        of_row: list[str] = []
        ranges: dict[str, tuple[int, int]] = {}
        of_element: list[str] = []
        for index, size in zip(self.source, self.operand.original_shape, strict=True):
            low, high = index.bounds(extents)
            if low >= 0 and high < size:
                continue
            # A range costs nothing in its loop, a condition on the row one test a row; one on an
            # element is tested for each.
            name, divisor = self._leading_digit(index)
            if name in self.order and name not in ranges:
                first = max(0, -index.constant) * divisor
                end = min(extents[name], (size - index.constant) * divisor)
                ranges[name] = (first, max(first, end))
                continue
            is_of_row = set(index.iterators) <= set(self.names[: self.rows])
            conditions = of_row if is_of_row else of_element
            conditions += [f"{index} >= 0"] if low < 0 else []
            conditions += [f"{index} < {size}"] if high >= size else []
        return of_row, ranges, of_element

    def range_of(self, ranges: Mapping[str, tuple[int, int]], name: str) -> tuple[int, int]:
        """Return the first step of a loop and its end, within the ranges of :meth:`bounds`."""
        return ranges.get(name, (0, self.extents[name]))

    @property
    def copies(self) -> bool:
        """True if neighbours in the packed layout are neighbours in the original."""
        walking = [name for name, extent in self.extents.items() if extent > 1]
        last = walking[-1] if walking else self.names[-1]
        along = [t for t in self.original_index.terms if last in t.iterators]
        return [(t.is_affine, t.coefficient) for t in along] == [(True, 1)]

    def sides(self) -> tuple[str, str] | None:
        """Return the loops along which the packed layout and the original are contiguous.

        None unless the transform is a transposition: the loops differ, and the place of every
        element needs no division.
        """
        if len(self.order) < 2:
            return None
        packed, original = self.names[-1], self.order[-1]
        affine = all(term.is_affine for term in self.original_index.terms)
        contiguous = self.original_index.coefficient(original) == 1
        if packed not in self.order or packed == original or not (affine and contiguous):
            return None
        return packed, original

    @staticmethod
    def _leading_digit(index: IndexExpr) -> tuple[str | None, int]:
        """Return the iterator and the divisor of ``iterator // divisor + constant``."""
        if len(index.terms) == 1:
            (term,) = index.terms
            if term.inner is None and term.coefficient == 1 and term.modulus is None:
                return term.iterator, term.divisor
        return None, 1


def blocks_of(transform: LayoutTransform, direction: Direction) -> Blocks | None:
    """Return the blocks of a transposition in vector registers.

    None if the transform is no transposition, or a small one.
    """
    sides = transform.sides()
    _, ranges, of_element = transform.bounds()
    # Conditions on single elements cannot be tested for a vector.
    if sides is None or of_element:
        return None
    packed, original = (transform.range_of(ranges, name) for name in sides)
    rows, columns = (packed, original) if direction is Direction.PACK else (original, packed)
    return Blocks.largest(rows[1] - rows[0], columns[1] - columns[0], transform.operand.dtype)


def plan_transform(operand: PackedOperand) -> LayoutTransform:
    """Return the order in which an operand is packed."""
    names = tuple(f"d{number}" for number in range(len(operand.dimensions)))
    renamed = {d.name: name for d, name in zip(operand.dimensions, names, strict=True)}
    extents = dict(zip(names, operand.shape, strict=True))
    source = tuple(
        simplify(index.rename(lambda name: renamed[name]), extents) for index in operand.source
    )
    transform = partial(LayoutTransform, operand, names, source)
    windows = Im2colPacking.detect(extents, source, operand.original_shape)
    if windows is not None and windows.numbering[0] != names[0]:
        first = names.index(windows.numbering[0])
        return transform(rows=first, order=names[first:], windows=windows)
    # Finding a row takes divisions, so a row has some elements at least.
    rows = len(names)
    while rows > 1 and math.prod(operand.shape[rows:]) < _INNER_ELEMENTS:
        rows -= 1
    rows = min(rows, len(names) - 1)
    # Plain copies profit from longer rows as long as they need no condition on an element.
    while rows > 1 and math.prod(operand.shape[rows - 1 :]) <= _COPIED_ELEMENTS:
        longer = transform(rows=rows - 1, order=names[rows - 1 :])
        if not longer.copies or longer.bounds()[2]:
            break
        rows -= 1
    order = list(names[rows:])
    last = source[-1].terms if source else ()
    steps = [t.iterator for t in last if t.is_affine and t.coefficient == 1]
    near = steps[0] if len(steps) == 1 else None
    # The dimension that walks the original's last one joins the row if it is not far, so that a
    # transposition stays within a row.
    if near in names[:-1]:
        place = min(rows, names.index(near))
        if math.prod(operand.shape[place:]) <= _ROW_ELEMENTS and place > 0:
            rows = place
            order = [name for name in names[rows:] if name != near]
            # A short innermost loop is unrolled inside the contiguous one.
            short = operand.shape[-1] <= _UNROLLED
            order.insert(len(order) - 1 if short else len(order), near)
    return transform(rows=rows, order=tuple(order))


def packed_before(workload: Computation) -> list[str]:
    """Return the inputs that are packed ahead of time by default: weights, the second input."""
    return [operand.name for operand in workload.inputs[1:2] if not operand.varies]


def packing_source(operand: PackedOperand, chunks: int, direction: Direction) -> str:
    """Return TVMScript of ``main(source, target)``.

    Packing writes zero where the layout lies outside the original shape; unpacking drops it.

    Parameters
    ----------
    operand : PackedOperand
        Operand with both layouts.
    chunks : int
        Maximum number of parallel chunks of rows.
    direction : Direction
        Pack or unpack.
    """
    transform = plan_transform(operand)
    original = buffer(ORIGINAL, math.prod(operand.original_shape), operand.dtype)
    packed = buffer(PACKED, operand.elements, operand.dtype)
    packs = direction is Direction.PACK
    source, target = (ORIGINAL, PACKED) if packs else (PACKED, ORIGINAL)
    regions = (f"T.reads({source}[0])", f"T.writes({target}[0])")
    total = transform.row_count
    chunks = min(chunks, total)
    script = Script()
    with (
        script.function((original, packed) if packs else (packed, original)),
        script.nested(f"for chunk in T.parallel({chunks}):", 'with T.sblock("chunk"):'),
    ):
        script.line(f"part = T.axis.spatial({chunks}, chunk)")
        script.lines(regions)
        bounds = f"part * {total} // {chunks}, (part + 1) * {total} // {chunks}"
        with _row(script, transform, bounds, regions):
            if packs:
                _pack_row(script, transform)
            else:
                _unpack_row(script, transform)
    return script.text()


def rows_of(operand: PackedOperand) -> tuple[int, int]:
    """Return the number of rows of :func:`packed_rows`, and of the dimensions that they walk."""
    transform = plan_transform(operand)
    return transform.row_count, transform.rows


def packed_rows(
    script: Script,
    operand: PackedOperand,
    rows: tuple[str, str],
    packed: str,
    base: IndexExpr,
) -> None:
    """Write the packing of some rows of an operand from the buffer ``ORIGINAL``.

    Parameters
    ----------
    script, operand : Script, PackedOperand
        Text to write to, and operand with both layouts.
    rows : tuple of str
        The first row and the end.
    packed, base : str, IndexExpr
        Buffer to pack into, and index at which the operand begins there.
    """
    transform = replace(plan_transform(operand), base=base, packed=packed)
    regions = (f"T.reads({ORIGINAL}[0])", f"T.writes({packed}[0])")
    with _row(script, transform, ", ".join(rows), regions):
        _pack_row(script, transform)


@contextmanager
def _row(
    script: Script, transform: LayoutTransform, bounds: str, regions: Sequence[str]
) -> Generator[None]:
    """Write the loop over rows, each a block that binds the row's dimensions."""
    with script.nested(f"for row in T.serial({bounds}):", 'with T.sblock("row"):'):
        inside = transform.row_count
        shape = transform.operand.shape
        for name, extent in zip(transform.names[: transform.rows], shape, strict=False):
            outside, inside = inside, inside // extent
            place = "row" if inside == 1 else f"row // {inside}"
            place += "" if outside == transform.row_count else f" % {extent}"
            script.line(f"{name} = T.axis.spatial({extent}, {'0' if extent == 1 else place})")
        script.lines(regions)
        yield


def _loops(transform: LayoutTransform, ranges: Mapping[str, tuple[int, int]]) -> list[str]:
    headers: list[str] = []
    for name in transform.order:
        first, end = transform.range_of(ranges, name)
        small = name == transform.order[-1] and end - first <= _UNROLLED
        bounds = f"{first}, {end}" if first else str(end)
        headers.append(f"for {name} in T.{'unroll' if small else 'serial'}({bounds}):")
    return headers


def _pack_row(script: Script, transform: LayoutTransform) -> None:
    """Write the packing of a row."""
    if transform.windows is not None:
        _pack_window(script, transform, transform.windows)
        return
    # The row's condition is tested once. Its margins are cleared, or all of it if conditions on
    # elements scatter them.
    of_row, ranges, of_element = transform.bounds()
    clear = f"{transform.packed_element} = {zero(transform.operand.dtype)}"
    names, extents = transform.names[transform.rows :], transform.operand.shape[transform.rows :]
    plain = grid(names, extents)
    guard = [f"if {' and '.join(of_element)}:"] if of_element else []

    def fill() -> None:
        for loops in [plain] if of_element else _margins(names, extents, ranges):
            with script.nested(*loops):
                script.line(clear)
        if not _transpose(script, transform, Direction.PACK):
            with script.nested(*_loops(transform, ranges), *guard):
                script.line(f"{transform.packed_element} = {transform.original_element}")

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
    """Yield the loops over each margin of a row: the parts before and after a loop's range."""
    for name, (first, end) in ranges.items():
        extent = extents[names.index(name)]
        for begin, stop in (0, min(first, extent)), (end, extent):
            if begin < stop:
                bounds = {n: (0, e) for n, e in zip(names, extents, strict=True)}
                bounds[name] = begin, stop
                yield [f"for {n} in T.serial({a}, {b}):" for n, (a, b) in bounds.items()]


def _pack_window(script: Script, transform: LayoutTransform, windows: Im2colPacking) -> None:
    begin = [t for t in transform.packed_index.terms if t.iterator not in windows.numbering]
    windows.write(
        script,
        original=lambda index: f"{ORIGINAL}[{index}]",
        packed=lambda index: f"{transform.packed}[{index}]",
        base=IndexExpr.sum(begin, transform.packed_index.constant),
        strides=dict(zip(transform.names, transform.operand.strides, strict=True)),
        zero=zero(transform.operand.dtype),
        loops=[name for name in transform.order if name not in windows.numbering],
    )


def _unpack_row(script: Script, transform: LayoutTransform) -> None:
    of_row, ranges, of_element = transform.bounds()
    outside = [f"if {' and '.join(of_row)}:"] if of_row else []
    guard = [f"if {' and '.join(of_element)}:"] if of_element else []
    with script.nested(*outside):
        if not _transpose(script, transform, Direction.UNPACK):
            with script.nested(*_loops(transform, ranges), *guard):
                script.line(f"{transform.original_element} = {transform.packed_element}")


def _transpose(script: Script, transform: LayoutTransform, direction: Direction) -> bool:
    """Write the transform of a row as a transposition; return False if it is none."""
    blocks, sides = blocks_of(transform, direction), transform.sides()
    if blocks is None or sides is None:
        return False
    _, ranges, _ = transform.bounds()
    packed, original = sides
    packs = direction is Direction.PACK
    rows, columns = (packed, original) if packs else (original, packed)

    def at(index: IndexExpr) -> Element:
        def element(row: str, column: str) -> str:
            places = {rows: row, columns: column}
            return str(index.rename(lambda name: places.get(name, name)))

        return element

    ends = (ORIGINAL, at(transform.original_index)), (transform.packed, at(transform.packed_index))
    source, target = ends if packs else reversed(ends)
    outer = [name for name in transform.order if name not in sides]
    bounds = [(name, *transform.range_of(ranges, name)) for name in outer]
    with script.nested(*(f"for {name} in T.serial({a}, {b}):" for name, a, b in bounds)):
        write_transposition(
            script,
            blocks,
            transform.operand.dtype,
            rows=transform.range_of(ranges, rows),
            columns=transform.range_of(ranges, columns),
            source=source,
            target=target,
        )
    return True
