"""C of a plan: one text that every PE runs, on the interface of ``scratchpad.h``.

The text walks over tiles; while one is computed, what the next one needs and has not is on its way
(swATOP 4.5.2: the place of the next tile is inferred from the loops). The last tile along an axis
is a box of fewer points: transfers and executions take its sizes (4.5.3); only a granule that is
not full is filled up with zeros, in the scratchpad (light padding).
"""

from __future__ import annotations

from collections.abc import Iterator

from cpembed.targets.scratchpad.emit_compute import compute, instruction
from cpembed.targets.scratchpad.emit_kernel import kernel
from cpembed.targets.scratchpad.emit_transfers import mover
from cpembed.targets.scratchpad.schedule import Plan
from cpembed.targets.scratchpad.text import Lines, Writer, boxes_text


def c_text(plan: Plan) -> str:
    """Raises :class:`~cpembed.errors.LoweringError` for element types that C has not."""
    writer = Writer(plan)
    parts = [_head(writer), *_constants(writer), _tiles(writer)]
    if not writer.machine.sized:
        parts.append(instruction(writer))
    parts += [
        mover(writer, box, kind) for box, kind in zip(plan.form.boxes, writer.types, strict=True)
    ]
    parts += [compute(writer), kernel(writer)]
    return "\n".join(parts)


def _head(writer: Writer) -> str:
    program = writer.product.program
    dimensions = max(1, *(len(box.dimensions) for box in writer.plan.form.boxes))
    words = [
        f"/* {program.unfused}, by {program.instruction.name} on {writer.machine.name}:",
        f"   {writer.plan.schedule}.",
        f"   Scratchpads of a PE: {_memory_plan(writer.plan)}. */",
        "#include <stdint.h>",
    ]
    if writer.machine.sized:
        words += [
            f"#define ELEMENT_{letter} {kind}"
            for letter, kind in zip("ABC", writer.types, strict=True)
        ]
    return "\n".join(
        [
            *words,
            '#include "scratchpad.h"',
            "",
            f"#define BOX_DIMENSIONS {dimensions}",
            boxes_text(),
        ]
    )


def _constants(writer: Writer) -> Iterator[str]:
    yield "/* Extents of axes, points of a tile, of a granule, and parts that the mesh cuts. */"
    for axis in writer.axes:
        n, points = writer.names[axis.name], writer.plan.tile[axis.name]
        yield (
            f"enum {{ EXTENT_{n} = {axis.extent}, TILE_{n} = {points}, "
            f"GRANULE_{n} = {axis.granule}, PARTS_{n} = {axis.parts} }};"
        )


def _tiles(writer: Writer) -> str:
    """A tile, and the one after it."""
    script = Lines()
    script.line("", "/* A tile: its first point and, of each PE, the points that it holds. */")
    names = list(writer.names.values())
    script.line("struct tile {", f"  long {', '.join(f'first_{n}' for n in names)};")
    script.line(f"  long {', '.join(f'held_{n}' for n in names)};", "};", "")
    script.line("static void measure(struct tile *t) {")
    for n in names:
        script.line(
            f"  t->held_{n} = share(least(TILE_{n}, EXTENT_{n} - t->first_{n}), "
            f"GRANULE_{n}, PARTS_{n});"
        )
    script.line("}", "", "/* The tile after this one; 0 where it is the last. */")
    script.line("static int advance(struct tile *t) {")
    for axis in reversed(writer.plan.loops):
        n = writer.names[axis.name]
        script.line(f"  if ((t->first_{n} += TILE_{n}) < EXTENT_{n}) {{ measure(t); return 1; }}")
        script.line(f"  t->first_{n} = 0;")
    script.line("  return 0;", "}")
    return script.text()


def _memory_plan(plan: Plan) -> str:
    return ", ".join(
        f"{used:,} of {room:,} bytes of {name}"
        for name, used, room in zip(
            plan.product.machine.memories, plan.used, plan.product.machine.capacities, strict=True
        )
    )
