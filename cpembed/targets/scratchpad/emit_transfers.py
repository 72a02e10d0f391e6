"""C of transfers: the box of each operand that a PE holds for a tile (swATOP 4.5.1)."""

from __future__ import annotations

from collections.abc import Iterator

from cpembed.targets.scratchpad.boxes import Box, BoxDimension
from cpembed.targets.scratchpad.lower import Axis, Operand
from cpembed.targets.scratchpad.text import Lines, Writer, identifier, times


def mover(writer: Writer, box: Box, kind: str) -> str:
    operand = box.operand
    name = "put" if operand.is_output else "get"
    script = Lines()
    script.line("", f"/* {operand.name}, {' x '.join(map(str, operand.shape))}. */")
    script.line(
        f"static int {name}_{identifier(operand.name)}"
        "(char *here, char *memory, const struct tile *t, dma_reply *reply) {"
    )
    if box.tiled:
        script.line(*_tiled(writer, box, kind))
    else:
        script.line(f"  struct box b = {{.dimensions = {len(box.dimensions)}}};")
        for number, dimension in enumerate(box.dimensions):
            script.line(*_dimension(writer, operand, number, dimension))
        put = int(operand.is_output)
        script.line(f"  return move_box({put}, here, memory, &b, sizeof({kind}), reply);")
    script.line("}")
    return script.text()


def _dimension(
    writer: Writer, operand: Operand, number: int, dimension: BoxDimension
) -> Iterator[str]:
    first = [
        f"{times(factor)}({_start(writer, operand, name)})"
        for name, factor in dimension.starts.items()
    ]
    if dimension.constant or not first:
        first.append(str(dimension.constant))
    yield f"  b.first[{number}] = {' + '.join(first)};"
    yield f"  b.held[{number}] = {writer.places(dimension, 't')};"
    yield f"  b.size[{number}] = {dimension.size};"
    yield f"  b.step[{number}] = {dimension.step}, b.apart[{number}] = {dimension.apart};"


def _start(writer: Writer, operand: Operand, name: str) -> str:
    """The first point of this PE's part."""
    axis, n = writer.product.axes[name], writer.names[name]
    part = _part(writer, operand, axis)
    return f"t->first_{n}" + ("" if part is None else f" + {part} * t->held_{n}")


def _part(writer: Writer, operand: Operand, axis: Axis) -> str | None:
    if axis.parts == 1 or operand.cut is None or axis.lane not in operand.cut:
        return None
    place = "PE_ROW" if operand.cut[0] == axis.lane else "PE_COLUMN"
    whole = axis.weight * axis.parts == writer.machine.parts(axis.lane or "")
    text = place if axis.weight == 1 else f"({place} / {axis.weight})"
    return text if whole else f"({text} % {axis.parts})"


def _tiled(writer: Writer, box: Box, kind: str) -> Iterator[str]:
    """Boxes lie one after the other, by tile, then by PE; each has the room of a whole one."""
    tile: list[str] = []
    for axis in writer.axes:
        if axis.name in box.operand.axes:
            n, count = writer.names[axis.name], writer.plan.count(axis)
            tile = [
                f"({' '.join(tile)}) * {count} +" if tile else "",
                f"t->first_{n} / TILE_{n}",
            ]
    places = " * ".join(writer.product_of(box, "t")) or "1"
    whole = box.elements(writer.plan.held)
    yield f"  long tile = {' '.join(filter(None, tile)) or '0'};"
    yield f"  long size = {places} * (long)sizeof({kind});"
    yield "  long place = (tile * PE_ROWS + PE_ROW) * PE_COLUMNS + PE_COLUMN;"
    yield f"  memory += place * {whole}L * (long)sizeof({kind});"
    yield "  dma_get(here, memory, size, size, size, reply);"
    yield "  return 1;"
