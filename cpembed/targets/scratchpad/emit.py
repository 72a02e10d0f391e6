"""C of a plan: one text that every PE runs, on the interface of ``scratchpad.h``.

The text walks over tiles; while one is computed, what the next one needs and has not is on its way
(swATOP 4.5.2: the place of the next tile is inferred from the loops). The last tile along an axis
is a box of fewer points: transfers and executions take its sizes (4.5.3); only a granule that is
not full is filled up with zeros, in the scratchpad (light padding).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from cpembed.errors import LoweringError
from cpembed.targets.scratchpad.boxes import Box, BoxDimension
from cpembed.targets.scratchpad.lower import Axis, Operand
from cpembed.targets.scratchpad.schedule import Plan

C_TYPES = {
    "float32": "float",
    "float64": "double",
    **{f"{sign}int{bits}": f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}


class Lines:
    """Lines of C."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def line(self, *texts: str) -> None:
        self._lines += texts

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"


def c_text(plan: Plan) -> str:
    """Raises :class:`LoweringError` for element types that C has not."""
    return _Text(plan).text()


@cache
def boxes_text() -> str:
    return (Path(__file__).parent / "boxes.h").read_text(encoding="utf-8")


class _Text:
    def __init__(self, plan: Plan) -> None:
        self.plan, self.product = plan, plan.product
        self.machine = plan.product.machine
        self.axes = list(plan.product.axes.values())
        self.names = {axis.name: _identifier(axis.name) for axis in self.axes}
        self.types = [_c_type(operand) for operand in self.product.operands]

    def text(self) -> str:
        parts = [self._head(), *self._constants(), self._tiles()]
        if not self.machine.sized:
            parts.append(self._instruction())
        parts += [
            self._mover(box, kind)
            for box, kind in zip(self.plan.form.boxes, self.types, strict=True)
        ]
        parts += [self._compute(), self._kernel()]
        return "\n".join(parts)

    # ------------------------------------------------------------------------------ declarations

    def _head(self) -> str:
        program = self.product.program
        dimensions = max(1, *(len(box.dimensions) for box in self.plan.form.boxes))
        words = [
            f"/* {program.unfused}, by {program.instruction.name} on {self.machine.name}:",
            f"   {self.plan.schedule}.",
            f"   Scratchpads of a PE: {_memory_plan(self.plan)}. */",
            "#include <stdint.h>",
        ]
        if self.machine.sized:
            words += [
                f"#define ELEMENT_{letter} {kind}"
                for letter, kind in zip("ABC", self.types, strict=True)
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

    def _constants(self) -> Iterator[str]:
        yield "/* Extents of axes, points of a tile, of a granule, and parts that the mesh cuts. */"
        for axis in self.axes:
            n, points = self.names[axis.name], self.plan.tile[axis.name]
            yield (
                f"enum {{ EXTENT_{n} = {axis.extent}, TILE_{n} = {points}, "
                f"GRANULE_{n} = {axis.granule}, PARTS_{n} = {axis.parts} }};"
            )

    def _tiles(self) -> str:
        """A tile, and the one after it."""
        script = Lines()
        script.line("", "/* A tile: its first point and, of each PE, the points that it holds. */")
        names = list(self.names.values())
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
        for axis in reversed(self.plan.loops):
            n = self.names[axis.name]
            script.line(
                f"  if ((t->first_{n} += TILE_{n}) < EXTENT_{n}) {{ measure(t); return 1; }}"
            )
            script.line(f"  t->first_{n} = 0;")
        script.line("  return 0;", "}")
        return script.text()

    # --------------------------------------------------------------------------------- transfers

    def _mover(self, box: Box, kind: str) -> str:
        operand = box.operand
        name = "put" if operand.is_output else "get"
        script = Lines()
        script.line("", f"/* {operand.name}, {' x '.join(map(str, operand.shape))}. */")
        script.line(
            f"static int {name}_{_identifier(operand.name)}"
            "(char *here, char *memory, const struct tile *t, dma_reply *reply) {"
        )
        if box.tiled:
            script.line(*self._tiled(box, kind))
        else:
            script.line(f"  struct box b = {{.dimensions = {len(box.dimensions)}}};")
            for number, dimension in enumerate(box.dimensions):
                script.line(*self._dimension(operand, number, dimension))
            put = int(operand.is_output)
            script.line(f"  return move_box({put}, here, memory, &b, sizeof({kind}), reply);")
        script.line("}")
        return script.text()

    def _dimension(self, operand: Operand, number: int, dimension: BoxDimension) -> Iterator[str]:
        first = [
            f"{_times(factor)}({self._start(operand, name)})"
            for name, factor in dimension.starts.items()
        ]
        if dimension.constant or not first:
            first.append(str(dimension.constant))
        yield f"  b.first[{number}] = {' + '.join(first)};"
        yield f"  b.held[{number}] = {self._places(dimension, 't')};"
        yield f"  b.size[{number}] = {dimension.size};"
        yield f"  b.step[{number}] = {dimension.step}, b.apart[{number}] = {dimension.apart};"

    def _start(self, operand: Operand, name: str) -> str:
        """The first point of this PE's part."""
        axis, n = self.product.axes[name], self.names[name]
        part = self._part(operand, axis)
        return f"t->first_{n}" + ("" if part is None else f" + {part} * t->held_{n}")

    def _part(self, operand: Operand, axis: Axis) -> str | None:
        if axis.parts == 1 or operand.cut is None or axis.lane not in operand.cut:
            return None
        place = "PE_ROW" if operand.cut[0] == axis.lane else "PE_COLUMN"
        whole = axis.weight * axis.parts == self.machine.parts(axis.lane or "")
        text = place if axis.weight == 1 else f"({place} / {axis.weight})"
        return text if whole else f"({text} % {axis.parts})"

    def _places(self, dimension: BoxDimension, tile: str) -> str:
        walks = [(factor, f"{tile}->held_{self.names[n]}") for n, factor in dimension.walks.items()]
        if [factor for factor, _ in walks] == [1]:
            return walks[0][1]
        terms = [f"{_times(factor)}({held} - 1)" for factor, held in walks]
        return " + ".join(["1", *terms])

    def _tiled(self, box: Box, kind: str) -> Iterator[str]:
        """Boxes lie one after the other, by tile, then by PE; each has the room of a whole one."""
        tile: list[str] = []
        for axis in self.axes:
            if axis.name in box.operand.axes:
                n, count = self.names[axis.name], self.plan.count(axis)
                tile = [
                    f"({' '.join(tile)}) * {count} +" if tile else "",
                    f"t->first_{n} / TILE_{n}",
                ]
        places = " * ".join(self._product(box, "t")) or "1"
        whole = box.elements(self.plan.held)
        yield f"  long tile = {' '.join(filter(None, tile)) or '0'};"
        yield f"  long size = {places} * (long)sizeof({kind});"
        yield "  long place = (tile * PE_ROWS + PE_ROW) * PE_COLUMNS + PE_COLUMN;"
        yield f"  memory += place * {whole}L * (long)sizeof({kind});"
        yield "  dma_get(here, memory, size, size, size, reply);"
        yield "  return 1;"

    def _product(self, box: Box, tile: str, after: int = -1) -> list[str]:
        places = [
            self._places(dimension, tile)
            for dimension in box.dimensions[after + 1 :]
            if dimension.walks
        ]
        return [f"({text})" if " " in text else text for text in places]

    # --------------------------------------------------------------------------------- computing

    def _stride(self, box: Box, axis: Axis) -> str:
        """Elements between neighbours along an axis, in the box of tile ``t``."""
        terms: list[str] = []
        for number, factor in box.walk(axis.name):
            factors = [] if factor == 1 else [str(factor)]
            terms.append(" * ".join([*factors, *self._product(box, "t", number)]) or "1")
        return " + ".join(terms) or "0"

    def _compute(self) -> str:
        script = Lines()
        script.line("", "/* All products of a tile. */")
        given = ", ".join(
            f"{'const ' * (not o.is_output)}{kind} *{letter}"
            for letter, o, kind in zip("ABC", self.product.operands, self.types, strict=True)
        )
        script.line(f"static void compute({given}, const struct tile *t) {{")
        boxes = self.plan.form.boxes
        offsets: list[list[str]] = [[], [], []]
        depth = 1
        for axis in self.plan.form.repeated:
            n = self.names[axis.name]
            for number, (letter, box) in enumerate(zip("abc", boxes, strict=True)):
                if box.walk(axis.name):
                    script.line(f"  const long {letter}_{n} = {self._stride(box, axis)};")
                    offsets[number].append(f"at_{n} * {letter}_{n}")
        for axis in self.plan.form.repeated:
            n, step = self.names[axis.name], 1 if self.machine.sized else axis.grain
            script.line(
                f"{'  ' * depth}for (long at_{n} = 0; at_{n} < t->held_{n}; at_{n} += {step})"
            )
            depth += 1
        places = [
            " + ".join([letter, *terms]) for letter, terms in zip("ABC", offsets, strict=True)
        ]
        call = self._gemm(places) if self.machine.sized else self._execute(places)
        script.line(f"{'  ' * depth}{call};", "}")
        return script.text()

    def _gemm(self, places: Sequence[str]) -> str:
        x, y, z = self.product.lanes
        one, other, result = self.plan.form.boxes
        chains = self.plan.form.chains

        def size(lane: str) -> str:
            terms = [f"t->held_{self.names[axis.name]}" for axis in chains[lane]]
            return " * ".join([str(self.machine.parts(lane)), *terms])

        def unit(box: Box, lane: str) -> bool:
            return not chains[lane] or box.is_unit(chains[lane][0].name)

        def leading(box: Box, lane: str, other: str) -> str:
            """Between columns, or rows; where there is one only, the length of it."""
            if chains[lane]:
                return self._stride(box, chains[lane][0])
            return " * ".join(f"t->held_{self.names[axis.name]}" for axis in chains[other]) or "1"

        variant = [
            name
            for name, holds in (
                ("A_COLUMN_MAJOR", unit(one, x)),
                ("B_COLUMN_MAJOR", unit(other, z)),
            )
            if holds
        ]
        a = leading(one, *((z, x) if unit(one, x) else (x, z)))
        b = leading(other, *((y, z) if unit(other, z) else (z, y)))
        c = leading(result, y, x)
        sizes = ", ".join(size(lane) for lane in (x, y, z))
        return (
            f"gemm({sizes}, {places[0]}, {a}, {places[1]}, {b}, {places[2]}, "
            f"{c}, {' | '.join(variant) or '0'})"
        )

    def _execute(self, places: Sequence[str]) -> str:
        """One granule, with the distances that it walks."""
        arguments: list[str] = []
        for place, box in zip(places, self.plan.form.boxes, strict=True):
            arguments.append(place)
            for lane in self.product.program.instruction.memory[box.operand.role].axes:
                chain = self.plan.form.chains.get(lane, ())
                arguments.append(self._stride(box, chain[0]) if chain else "0")
        return f"{self._name()}({', '.join(arguments)})"

    def _name(self) -> str:
        return _identifier(f"execute_{self.product.program.instruction.name}")

    def _instruction(self) -> str:
        """The instruction in plain C; a port puts the machine's own in its place."""
        instruction = self.product.program.instruction
        extents = {axis.name: axis.maximum for axis in instruction.axes}
        letters = dict(zip((o.role for o in self.product.operands), "abc", strict=True))
        given: list[str] = []
        for operand, kind in zip(self.product.operands, self.types, strict=True):
            letter = letters[operand.role]
            given.append(f"{'const ' * (not operand.is_output)}{kind} *{letter}")
            given += [f"long {letter}_{lane}" for lane in instruction.memory[operand.role].axes]
        script = Lines()
        script.line("", f"/* {instruction.computation}. */")
        script.line(f"static INSTRUCTION void {self._name()}({', '.join(given)}) {{")
        for operand, kind in zip(self.product.operands, self.types, strict=True):
            script.line(
                *_touches(
                    letters[operand.role],
                    kind,
                    operand,
                    instruction.memory[operand.role].axes,
                    extents,
                )
            )
        sizes = ", ".join(str(extents.get(lane, 1)) for lane in self.product.lanes)
        script.line(f'  touch_call("{instruction.name}", {sizes});')
        depth = 1
        for lane, extent in extents.items():
            script.line(
                f"{'  ' * depth}for (long at_{lane} = 0; at_{lane} < {extent}; at_{lane}++)"
            )
            depth += 1
        at: list[str] = []
        for operand in self.product.operands:
            letter = letters[operand.role]
            terms = [
                f"at_{lane} * {letter}_{lane}" for lane in instruction.memory[operand.role].axes
            ]
            at.append(f"{letter}[{' + '.join(terms) or '0'}]")
        kind = self.types[2]
        script.line(f"{'  ' * depth}{at[2]} += ({kind}){at[0]} * ({kind}){at[1]};", "}")
        return script.text()

    # ------------------------------------------------------------------------------------ kernel

    def _kernel(self) -> str:
        script, buffers = Lines(), self.plan.buffers
        operands = self.product.operands
        names = [_identifier(o.name) for o in operands]
        script.line("", "void kernel(const struct arguments *a) {")
        for buffer, n in zip(buffers, names, strict=True):
            memory, count = buffer.box.operand.memory, len(buffer.offsets)
            places = ", ".join(f"scratchpad({memory}, {offset})" for offset in buffer.offsets)
            script.line(f"  char *{n}_box[{count}] = {{{places}}};")
            script.line(f"  dma_reply {n}_reply[{count}] = {{0}};")
            script.line(f"  int {n}_moving[{count}] = {{0}}, {n}_in = 0;")
        script.line("  struct tile now = {0}, next;", "  measure(&now);")
        for number, n in enumerate(names[:2]):
            script.line(
                f"  {n}_moving[0] = get_{n}({n}_box[0], a->operand[{number}], &now, &{n}_reply[0]);"
            )
        script.line("  for (int begins = 1, more = 1; more;) {", "    next = now;")
        script.line("    more = advance(&next);")
        for number, n in enumerate(names[:2]):
            script.line(*self._prefetch(number, n))
        for n in names[:2]:
            script.line(
                f"    if ({n}_moving[{n}_in]) dma_wait(&{n}_reply[{n}_in], {n}_moving[{n}_in]);",
                f"    {n}_moving[{n}_in] = 0;",
            )
        script.line(*self._summing(names))
        for number, n in enumerate(names[:2]):
            script.line(*self._turn(number, n))
        script.line("    now = next;", "  }")
        n = names[2]
        script.line(
            f"  for (int k = 0; k < {len(buffers[2].offsets)}; k++)",
            f"    if ({n}_moving[k]) dma_wait(&{n}_reply[k], {n}_moving[k]);",
            "}",
        )
        return script.text()

    def _changes(self, operand: Operand) -> str:
        """Whether the next tile needs another box."""
        moving = [self.names[a.name] for a in self.plan.loops if a.name in operand.axes]
        return " || ".join(f"next.first_{n} != now.first_{n}" for n in moving) or "0"

    def _prefetch(self, number: int, n: str) -> Iterator[str]:
        buffers = self.plan.buffers[number].offsets
        changes = self._changes(self.product.operands[number])
        yield f"    const int {n}_changes = more && ({changes});"
        if len(buffers) == 2:
            yield f"    if ({n}_changes)"
            yield (
                f"      {n}_moving[!{n}_in] = get_{n}({n}_box[!{n}_in], a->operand[{number}], "
                f"&next, &{n}_reply[!{n}_in]);"
            )

    def _turn(self, number: int, n: str) -> Iterator[str]:
        if len(self.plan.buffers[number].offsets) == 2:
            yield f"    if ({n}_changes) {n}_in = !{n}_in;"
        elif any(a.name in self.product.operands[number].axes for a in self.plan.loops):
            yield f"    if ({n}_changes)"
            call = f"get_{n}({n}_box[0], a->operand[{number}], &next, &{n}_reply[0])"
            yield f"      {n}_moving[0] = {call};"

    def _summing(self, names: Sequence[str]) -> Iterator[str]:
        """Sums begin at zero in a buffer whose last contents are stored, and go when complete."""
        n, result = names[2], self.plan.form.boxes[2]
        count = len(self.plan.buffers[2].offsets)
        places = " * ".join([*self._product(result, "now"), f"(long)sizeof({self.types[2]})"])
        places = places.replace("now->", "now.")
        kinds = [f"({'const ' * (k < 2)}{kind} *)" for k, kind in enumerate(self.types)]
        yield "    if (begins) {"
        yield f"      if ({n}_moving[{n}_in]) dma_wait(&{n}_reply[{n}_in], {n}_moving[{n}_in]);"
        yield f"      {n}_moving[{n}_in] = 0;"
        yield f"      zero({n}_box[{n}_in], {places});"
        yield "    }"
        given = ", ".join(
            f"{kind}{name}_box[{name}_in]" for kind, name in zip(kinds, names, strict=True)
        )
        yield f"    compute({given}, &now);"
        yield f"    begins = !more || ({self._changes(self.product.output)});"
        yield "    if (begins) {"
        call = f"put_{n}({n}_box[{n}_in], a->operand[2], &now, &{n}_reply[{n}_in])"
        yield f"      {n}_moving[{n}_in] = {call};"
        if count == 2:
            yield f"      {n}_in = !{n}_in;"
        yield "    }"


def _touches(
    letter: str, kind: str, operand: Operand, lanes: Sequence[str], extents: dict[str, int]
) -> Iterator[str]:
    """What an execution reads, and writes, by rows of the last axis of its tile."""
    rows, last = lanes[:-1], lanes[-1] if lanes else None
    at = " + ".join([letter, *(f"at_{lane} * {letter}_{lane}" for lane in rows)])
    loops = "".join(
        f"for (long at_{lane} = 0; at_{lane} < {extents[lane]}; at_{lane}++) " for lane in rows
    )
    size = f"{extents[last] if last else 1} * sizeof({kind})"
    yield f"  {loops}touch_read({at}, {size});"
    if operand.is_output:
        yield f"  {loops}touch_write({at}, {size});"


def _memory_plan(plan: Plan) -> str:
    return ", ".join(
        f"{used:,} of {room:,} bytes of {name}"
        for name, used, room in zip(
            plan.product.machine.memories, plan.used, plan.product.machine.capacities, strict=True
        )
    )


def _identifier(name: str) -> str:
    return re.sub(r"\W", "_", name)


def _times(factor: int) -> str:
    return "" if factor == 1 else f"{factor} * "


def _c_type(operand: Operand) -> str:
    if operand.dtype not in C_TYPES:
        raise LoweringError(
            f"{operand.name} is of {operand.dtype}; in C there are {', '.join(C_TYPES)}"
        )
    return C_TYPES[operand.dtype]
