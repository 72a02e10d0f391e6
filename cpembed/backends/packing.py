"""Kernels that move an operand between its original layout and the packed one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from cpembed.backends.script import HEADER, Script, buffer, grid, zero
from cpembed.ir.index import IndexExpr
from cpembed.transform.program import PackedOperand

_INNER_ELEMENTS = 64
"""Elements moved at least between two decodings of a row number."""


class Direction(Enum):
    PACK = "pack"
    UNPACK = "unpack"


@dataclass(frozen=True)
class _Move:
    """An operand with identifiers for its packed dimensions: rows outside, ``inner`` inside."""

    operand: PackedOperand
    names: tuple[str, ...]
    source: tuple[IndexExpr, ...]
    rows: int
    """How many leading dimensions are walked as one row number."""

    @property
    def row_count(self) -> int:
        return math.prod(self.operand.shape[: self.rows])

    @property
    def packed_index(self) -> str:
        pairs = zip(self.names, self.operand.strides, strict=True)
        return " + ".join(f"{name} * {stride}" for name, stride in pairs)

    @property
    def original_index(self) -> str:
        parts: list[str] = []
        step = 1
        for index, size in reversed(
            list(zip(self.source, self.operand.original_shape, strict=True))
        ):
            parts.append(f"({index}) * {step}")
            step *= size
        return " + ".join(reversed(parts)) or "0"

    def bounds(self) -> tuple[list[str], list[str]]:
        """Conditions for being inside the original shape: those of a row, those of an element."""
        extents = dict(zip(self.names, self.operand.shape, strict=True))
        row_names = set(self.names[: self.rows])
        of_row: list[str] = []
        of_element: list[str] = []
        for index, size in zip(self.source, self.operand.original_shape, strict=True):
            low, high = index.bounds(extents)
            conditions = of_row if set(index.iterators) <= row_names else of_element
            if low < 0:
                conditions.append(f"{index} >= 0")
            if high >= size:
                conditions.append(f"{index} < {size}")
        return of_row, of_element


def packing_source(operand: PackedOperand, chunks: int, direction: Direction) -> str:
    """TVMScript of ``main(source, target)``: pack reads the original, unpack the packed buffer.

    Packing writes zero where the layout lies outside the original shape; unpacking drops it.
    """
    move = _plan(operand)
    original = buffer("Original", math.prod(operand.original_shape), operand.dtype)
    packed = buffer("Packed", operand.elements, operand.dtype)
    first, second = (original, packed) if direction is Direction.PACK else (packed, original)
    reads, writes = ("Original", "Packed")
    if direction is Direction.UNPACK:
        reads, writes = writes, reads
    chunks = min(chunks, move.row_count)
    script = Script()
    script.line(HEADER)
    with script.nested(f"def main({first}, {second}):"):
        script.line('T.func_attr({"tirx.noalias": True, "global_symbol": "main"})')
        with script.nested(f"for chunk in T.parallel({chunks}):", 'with T.sblock("chunk"):'):
            script.line(f"part = T.axis.spatial({chunks}, chunk)")
            script.line(f"T.reads({reads}[0])")
            script.line(f"T.writes({writes}[0])")
            total = move.row_count
            bounds = f"part * {total} // {chunks}, (part + 1) * {total} // {chunks}"
            with script.nested(f"for row in T.serial({bounds}):", 'with T.sblock("row"):'):
                _bind_row(script, move)
                script.line(f"T.reads({reads}[0])")
                script.line(f"T.writes({writes}[0])")
                _move_row(script, move, direction)
    return script.text()


def _plan(operand: PackedOperand) -> _Move:
    names = tuple(f"d{number}" for number in range(len(operand.dimensions)))
    renamed = {d.name: name for d, name in zip(operand.dimensions, names, strict=True)}
    source = tuple(index.rename(lambda name: renamed[name]) for index in operand.source)
    rows = len(names)
    while rows > 1 and math.prod(operand.shape[rows:]) < _INNER_ELEMENTS:
        rows -= 1
    return _Move(operand, names, source, min(rows, len(names) - 1))


def _bind_row(script: Script, move: _Move) -> None:
    inside = move.row_count
    for name, extent in zip(move.names[: move.rows], move.operand.shape, strict=False):
        inside //= extent
        script.line(f"{name} = T.axis.spatial({extent}, row // {inside} % {extent})")


def _move_row(script: Script, move: _Move, direction: Direction) -> None:
    """The row's condition is tested once, outside the element loops."""
    of_row, of_element = move.bounds()
    names = move.names[move.rows :]
    loops = grid(names, move.operand.shape[move.rows :])
    packed = f"Packed[{move.packed_index}]"
    original = f"Original[{move.original_index}]"
    inside = " and ".join(of_element)
    if direction is Direction.UNPACK:
        conditions = " and ".join([*of_row, *of_element])
        guard = [f"if {conditions}:"] if conditions else []
        with script.nested(*loops, *guard):
            script.line(f"{original} = {packed}")
        return
    nothing = zero(move.operand.dtype)
    value = f"T.if_then_else({inside}, {original}, {nothing})" if inside else original
    if not of_row:
        with script.nested(*loops):
            script.line(f"{packed} = {value}")
        return
    with script.nested(f"if {' and '.join(of_row)}:", *loops):
        script.line(f"{packed} = {value}")
    with script.nested("else:", *loops):
        script.line(f"{packed} = {nothing}")
