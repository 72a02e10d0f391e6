"""Kernels that move an operand between its original layout and the packed one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from cpembed.backends.script import HEADER, Script, buffer, grid, zero
from cpembed.ir.computation import Computation
from cpembed.ir.index import IndexExpr
from cpembed.transform.index_algebra import simplify
from cpembed.transform.program import PackedOperand

_INNER_ELEMENTS = 64
"""Elements moved at least between two decodings of a row number."""
_ROW_ELEMENTS = 2**15
"""Elements of a row at most where a row is to hold a transposition: what stays in a near cache."""
_UNROLLED = 8
"""An innermost loop of so few steps is unrolled, so that the loop around it is vectorised."""


def packed_before(workload: Computation) -> list[str]:
    """Inputs that are packed once, ahead of time, unless told otherwise: the second one (W, B)."""
    return [operand.name for operand in workload.inputs[1:2]]


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

    @property
    def row_count(self) -> int:
        return math.prod(self.operand.shape[: self.rows])

    @property
    def extents(self) -> dict[str, int]:
        return dict(zip(self.names, self.operand.shape, strict=True))

    @property
    def packed_element(self) -> str:
        pairs = zip(self.names, self.operand.strides, strict=True)
        return f"Packed[{' + '.join(f'{name} * {stride}' for name, stride in pairs)}]"

    @property
    def original_element(self) -> str:
        """Digits that are neighbours in the original, of one packed dimension, are one term: what
        moves is then seen to be contiguous."""
        total = IndexExpr()
        step = 1
        for index, size in reversed(
            list(zip(self.source, self.operand.original_shape, strict=True))
        ):
            total = (
                IndexExpr.of([t.times(step) for t in index.terms], index.constant * step) + total
            )
            step *= size
        return f"Original[{simplify(total, self.extents)}]"

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

    @staticmethod
    def _leading_digit(index: IndexExpr) -> tuple[str | None, int]:
        """The iterator and divisor of ``iterator // divisor + constant``."""
        if len(index.terms) == 1:
            (term,) = index.terms
            if term.inner is None and term.coefficient == 1 and term.modulus is None:
                return term.iterator, term.divisor
        return None, 1


def packing_source(operand: PackedOperand, chunks: int, direction: Direction) -> str:
    """TVMScript of ``main(source, target)``: pack reads the original, unpack the packed buffer.

    Packing writes zero where the layout lies outside the original shape; unpacking drops it.
    """
    move = _plan(operand)
    original = buffer("Original", math.prod(operand.original_shape), operand.dtype)
    packed = buffer("Packed", operand.elements, operand.dtype)
    packs = direction is Direction.PACK
    parameters = f"{original}, {packed}" if packs else f"{packed}, {original}"
    regions = ("T.reads(Original[0])", "T.writes(Packed[0])")
    if not packs:
        regions = ("T.reads(Packed[0])", "T.writes(Original[0])")
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
            with script.nested(f"for row in T.serial({bounds}):", 'with T.sblock("row"):'):
                _bind_row(script, move)
                for region in regions:
                    script.line(region)
                if packs:
                    _pack_row(script, move)
                else:
                    _unpack_row(script, move)
    return script.text()


def _plan(operand: PackedOperand) -> _Move:
    """A row ends where it holds enough elements, and takes in the dimension that walks the
    original's last one where that is not far: then a transposition stays within a row."""
    names = tuple(f"d{number}" for number in range(len(operand.dimensions)))
    renamed = {d.name: name for d, name in zip(operand.dimensions, names, strict=True)}
    source = tuple(index.rename(lambda name: renamed[name]) for index in operand.source)
    rows = len(names)
    while rows > 1 and math.prod(operand.shape[rows:]) < _INNER_ELEMENTS:
        rows -= 1
    rows = min(rows, len(names) - 1)
    order = list(names[rows:])
    near = source[-1].terms[0].iterator if source and len(source[-1].terms) == 1 else None
    if near in names[:-1] and source[-1].coefficient(near) == 1:
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
        inside //= extent
        script.line(f"{name} = T.axis.spatial({extent}, row // {inside} % {extent})")


def _loops(move: _Move, ranges: Mapping[str, tuple[int, int]]) -> list[str]:
    headers: list[str] = []
    for name in move.order:
        first, end = ranges.get(name, (0, move.extents[name]))
        small = name == move.order[-1] and end - first <= _UNROLLED
        bounds = f"{first}, {end}" if first else str(end)
        headers.append(f"for {name} in T.{'unroll' if small else 'serial'}({bounds}):")
    return headers


def _pack_row(script: Script, move: _Move) -> None:
    """The row's condition is tested once; a row with a margin is cleared before it is filled."""
    of_row, ranges, of_element = move.bounds()
    clear = f"{move.packed_element} = {zero(move.operand.dtype)}"
    plain = grid(move.names[move.rows :], move.operand.shape[move.rows :])
    guard = [f"if {' and '.join(of_element)}:"] if of_element else []

    def fill() -> None:
        if ranges or of_element:
            with script.nested(*plain):
                script.line(clear)
        with script.nested(*_loops(move, ranges), *guard):
            script.line(f"{move.packed_element} = {move.original_element}")

    if not of_row:
        fill()
        return
    with script.nested(f"if {' and '.join(of_row)}:"):
        fill()
    with script.nested("else:", *plain):
        script.line(clear)


def _unpack_row(script: Script, move: _Move) -> None:
    of_row, ranges, of_element = move.bounds()
    outside = [f"if {' and '.join(of_row)}:"] if of_row else []
    guard = [f"if {' and '.join(of_element)}:"] if of_element else []
    with script.nested(*outside, *_loops(move, ranges), *guard):
        script.line(f"{move.original_element} = {move.packed_element}")
