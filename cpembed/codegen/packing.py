"""Packing and unpacking kernels: an operand between its original layout and the packed one."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from cpembed.codegen.im2col_packing import Im2colPacking
from cpembed.codegen.layout_transform import (
    ORIGINAL,
    PACKED,
    UNROLLED,
    Direction,
    LayoutTransform,
    blocks_of,
    plan_transform,
    range_of,
)
from cpembed.codegen.script import HEADER, Script, buffer, grid, zero
from cpembed.codegen.transposition import Element, write_transposition
from cpembed.ir.computation import Computation
from cpembed.ir.index import IndexExpr
from cpembed.transform.program import PackedOperand


def packed_before(workload: Computation) -> list[str]:
    """Inputs that are packed once, ahead of time, unless told otherwise: the second one (W, B),
    unless it varies."""
    return [operand.name for operand in workload.inputs[1:2] if not operand.varies]


def packing_source(operand: PackedOperand, chunks: int, direction: Direction) -> str:
    """TVMScript of ``main(source, target)``: pack reads the original, unpack the packed buffer.

    Packing writes zero where the layout lies outside the original shape; unpacking drops it.
    """
    transform = plan_transform(operand)
    original = buffer(ORIGINAL, math.prod(operand.original_shape), operand.dtype)
    packed = buffer(PACKED, operand.elements, operand.dtype)
    packs = direction is Direction.PACK
    parameters = f"{original}, {packed}" if packs else f"{packed}, {original}"
    source, target = (ORIGINAL, PACKED) if packs else (PACKED, ORIGINAL)
    regions = (f"T.reads({source}[0])", f"T.writes({target}[0])")
    total = transform.row_count
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
            with _row(script, transform, bounds, regions):
                if packs:
                    _pack_row(script, transform)
                else:
                    _unpack_row(script, transform)
    return script.text()


def rows_of(operand: PackedOperand) -> tuple[int, int]:
    """How many rows :func:`packed_rows` walks, and over how many of the outermost dimensions."""
    transform = plan_transform(operand)
    return transform.row_count, transform.rows


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
    transform = replace(plan_transform(operand), base=base, packed=packed)
    regions = (f"T.reads({ORIGINAL}[0])", f"T.writes({packed}[0])")
    with _row(script, transform, f"{first}, {end}", regions):
        _pack_row(script, transform)


@contextmanager
def _row(
    script: Script, transform: LayoutTransform, bounds: str, regions: Sequence[str]
) -> Generator[None]:
    """The loop over rows, each a block that knows its place."""
    with script.nested(f"for row in T.serial({bounds}):", 'with T.sblock("row"):'):
        _bind_row(script, transform)
        for region in regions:
            script.line(region)
        yield


def _bind_row(script: Script, transform: LayoutTransform) -> None:
    inside = transform.row_count
    for name, extent in zip(
        transform.names[: transform.rows], transform.operand.shape, strict=False
    ):
        whole, inside = inside, inside // extent
        place = "row" if inside == 1 else f"row // {inside}"
        place += "" if whole == transform.row_count else f" % {extent}"
        script.line(f"{name} = T.axis.spatial({extent}, {'0' if extent == 1 else place})")


def _loops(transform: LayoutTransform, ranges: Mapping[str, tuple[int, int]]) -> list[str]:
    headers: list[str] = []
    for name in transform.order:
        first, end = range_of(transform, ranges, name)
        small = name == transform.order[-1] and end - first <= UNROLLED
        bounds = f"{first}, {end}" if first else str(end)
        headers.append(f"for {name} in T.{'unroll' if small else 'serial'}({bounds}):")
    return headers


def _pack_row(script: Script, transform: LayoutTransform) -> None:
    """The row's condition is tested once; a row's margins are cleared, or all of it where they are
    scattered."""
    if transform.windows is not None:
        _pack_window(script, transform, transform.windows)
        return
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
    """The loops over each margin of a row: what lies before and after a loop's range."""
    for name, (first, end) in ranges.items():
        extent = extents[names.index(name)]
        for begin, stop in (0, min(first, extent)), (end, extent):
            if begin < stop:
                bounds = {n: (0, e) for n, e in zip(names, extents, strict=True)}
                bounds[name] = begin, stop
                yield [f"for {n} in T.serial({a}, {b}):" for n, (a, b) in bounds.items()]


def _pack_window(script: Script, transform: LayoutTransform, windows: Im2colPacking) -> None:
    begin = [t for t in transform.packed_index.terms if t.iterator not in windows.walked]
    windows.write(
        script,
        lambda index: f"{ORIGINAL}[{index}]",
        lambda index: f"{transform.packed}[{index}]",
        IndexExpr.of(begin, transform.packed_index.constant),
        dict(zip(transform.names, transform.operand.strides, strict=True)),
        zero(transform.operand.dtype),
        [name for name in transform.order if name not in windows.walked],
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
    """Write the transform of a row as a transposition; False where it is none."""
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
    bounds = [(name, *range_of(transform, ranges, name)) for name in outer]
    with script.nested(*(f"for {name} in T.serial({a}, {b}):" for name, a, b in bounds)):
        write_transposition(
            script,
            blocks,
            transform.operand.dtype,
            range_of(transform, ranges, rows),
            range_of(transform, ranges, columns),
            source,
            target,
        )
    return True
