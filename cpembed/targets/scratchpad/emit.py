"""C text of a plan, which every PE runs, on the interface of ``scratchpad.h``.

The text walks over tiles; while one is computed, the boxes that the next one needs and that differ
are transferred. The last tile along an axis is a box of fewer points: transfers and executions take
its sizes (swATOP 4.5.3); only a granule that is not full is filled up with zeros, in the scratchpad
(light padding).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from cpembed.errors import LoweringError
from cpembed.targets.scratchpad.boxes import Axis, Box, BoxDimension, Operand
from cpembed.targets.scratchpad.schedule import Plan

C_TYPES = {
    "float32": "float",
    "float64": "double",
    **{f"{sign}int{bits}": f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    # Emulated with one in each byte.
    "int4": "int8_t",
    "uint4": "uint8_t",
}
"""Type of each element that C has a type for."""

WIDENED = {"float16": "h", "bfloat16": "b", "float8_e4m3fn": "e", "float8_e5m2": "d"}
"""Types of ``elements.h``, which are widened to float32, with the letter of their code there."""

NARROWED = ("float16", "bfloat16")
"""Widened types that an output may have: each addition is rounded to it."""


def as_text(lines: Iterable[str]) -> str:
    """Return lines of C as a text."""
    return "\n".join(lines) + "\n"


@cache
def boxes_text() -> str:
    """Return ``boxes.h``, which is a part of every text."""
    return (Path(__file__).parent / "boxes.h").read_text(encoding="utf-8")


def c_text(plan: Plan) -> str:
    """Return the text of a plan.

    Raises :class:`~cpembed.errors.LoweringError` for element types that C does not have.
    """
    return _Writer(plan).write()


def _identifier(name: str) -> str:
    return re.sub(r"\W", "_", name)


def _factor(factor: int) -> str:
    return "" if factor == 1 else f"{factor} * "


@cache
def elements_text() -> str:
    """Return ``elements.h``, which is a part of texts whose elements C has no type for."""
    return (Path(__file__).parent / "native" / "elements.h").read_text(encoding="utf-8")


def _c_type(operand: Operand, *, sized: bool) -> str:
    """Return the type of an operand's elements; raise :class:`LoweringError` if there is none."""
    dtype = operand.dtype
    sums = {"int32", "int64", "float32", "float64"} if sized else {*C_TYPES, *NARROWED}
    if operand.is_output and dtype not in sums - {"int4", "uint4"}:
        raise LoweringError(
            f"{operand.name} is of {dtype}, in which no sums are kept: give the output one of "
            f"{', '.join(sorted(sums - {'int4', 'uint4'}))}"
        )
    return dtype if dtype in WIDENED else C_TYPES[dtype]


class _Writer:
    """Writer of a plan's text; its methods are in the order of the text."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.product = plan, plan.product
        self.machine, self.form = plan.product.machine, plan.form
        self.axes = list(plan.product.axes.values())
        self.names = {axis.name: _identifier(axis.name) for axis in self.axes}
        sized = self.machine.sized
        self.types = [_c_type(operand, sized=sized) for operand in self.product.operands]
        self.operands = [_identifier(operand.name) for operand in self.product.operands]

    def write(self) -> str:
        parts = [self._tiles()]
        if not self.machine.sized:
            parts.append(self._instruction())
        parts += map(self._mover, self.form.boxes, self.types)
        texts = map(as_text, (*parts, self._compute(), self._kernel()))
        return "\n".join([self._head(), *self._constants(), *texts])

    def _head(self) -> str:
        program = self.product.program
        memories = ", ".join(
            f"{used:,} of {room:,} bytes of {name}"
            for name, used, room in zip(
                self.machine.memories, self.plan.used, self.machine.capacities, strict=True
            )
        )
        lines = [
            f"/* {program.unfused}, by {program.instruction.name} on {self.machine.name}:",
            f"   {self.plan.schedule}.",
            f"   Scratchpads of a PE: {memories}. */",
            "#include <stdint.h>",
        ]
        if any(kind in WIDENED for kind in self.types):
            lines.append(elements_text())
        for letter, kind in zip("ABC", self.types, strict=True) if self.machine.sized else ():
            lines.append(f"#define ELEMENT_{letter} {kind}")
            if kind in WIDENED:
                code = f"'{WIDENED[kind]}' * 256 + sizeof({kind})"
                lines.append(f"#define ELEMENT_CODE_{letter} ({code})")
        dimensions = max(1, *(len(box.dimensions) for box in self.form.boxes))
        lines += ['#include "scratchpad.h"', "", f"#define BOX_DIMENSIONS {dimensions}"]
        return "\n".join([*lines, boxes_text()])

    def _constants(self) -> Iterator[str]:
        yield "/* Extents of axes, points of a tile, of a granule, and parts that the mesh cuts. */"
        for axis in self.axes:
            n, points = self.names[axis.name], self.plan.tile[axis.name]
            yield (
                f"enum {{ EXTENT_{n} = {axis.extent}, TILE_{n} = {points}, "
                f"GRANULE_{n} = {axis.granule}, PARTS_{n} = {axis.parts} }};"
            )

    def _tiles(self) -> Iterator[str]:
        """Return the type of a tile, and the step to the next one."""
        names = list(self.names.values())
        yield from ("", "/* A tile: its first point and, of each PE, the points that it holds. */")
        yield from ("struct tile {", f"  long {', '.join(f'first_{n}' for n in names)};")
        yield from (f"  long {', '.join(f'held_{n}' for n in names)};", "};", "")
        yield "static void measure(struct tile *t) {"
        for n in names:
            yield (
                f"  t->held_{n} = share(least(TILE_{n}, EXTENT_{n} - t->first_{n}), "
                f"GRANULE_{n}, PARTS_{n});"
            )
        yield from ("}", "", "/* The tile after this one; 0 where it is the last. */")
        yield "static int advance(struct tile *t) {"
        for axis in reversed(self.plan.loops):
            n = self.names[axis.name]
            yield f"  if ((t->first_{n} += TILE_{n}) < EXTENT_{n}) {{ measure(t); return 1; }}"
            yield f"  t->first_{n} = 0;"
        yield from ("  return 0;", "}")

    # ---------------------------------------------------------------- an instruction of fixed size

    def _instruction_name(self) -> str:
        return _identifier(f"execute_{self.product.program.instruction.name}")

    def _instruction(self) -> Iterator[str]:
        """Return the instruction in plain C, which a port replaces by the machine's own."""
        instruction = self.product.program.instruction
        extents = {axis.name: axis.maximum for axis in instruction.axes}
        parameters, touches, elements = list[str](), list[str](), list[str]()
        for letter, operand, kind in zip("abc", self.product.operands, self.types, strict=True):
            distances = self.machine.distances[operand.role]
            parameters.append(f"{'const ' * (not operand.is_output)}{kind} *{letter}")
            # A distance that the instruction fixes is none of its parameters.
            parameters += [f"long {letter}_{n}" for n, fixed in distances.items() if fixed is None]
            places = {
                lane: f"at_{lane} * {letter}_{lane}" if fixed is None else f"at_{lane} * {fixed}"
                for lane, fixed in distances.items()
            }
            # One check a row, where the last axis of a tile is contiguous.
            rows, length = list(distances), 1
            if rows and distances[rows[-1]] == 1:
                length = extents[rows.pop()]
            row = " + ".join([letter, *(places[lane] for lane in rows)])
            loops = "".join(f"{self._loop(lane, extents[lane])} " for lane in rows)
            touches.append(f"  {loops}touch_read({row}, {length} * sizeof({kind}));")
            if operand.is_output:
                touches.append(f"  {loops}touch_write({row}, {length} * sizeof({kind}));")
            terms = list(places.values())
            elements.append(f"{letter}[{' + '.join(terms) or '0'}]")
        sizes = ", ".join(str(extents.get(lane, 1)) for lane in self.product.lanes)
        yield from ("", f"/* {instruction.computation}. */")
        yield f"static INSTRUCTION void {self._instruction_name()}({', '.join(parameters)}) {{"
        yield from (*touches, f'  touch_call("{instruction.name}", {sizes});')
        for depth, (lane, extent) in enumerate(extents.items(), 1):
            yield f"{'  ' * depth}{self._loop(lane, extent)}"
        indent, (a, b, c), kind = "  " * (len(extents) + 1), elements, self.types[2]
        a, b = (
            f"value_of_{factor}({element})" if factor in WIDENED else element
            for factor, element in zip(self.types[:2], (a, b), strict=True)
        )
        if kind in WIDENED:
            yield f"{indent}{c} = {kind}_of(value_of_{kind}({c}) + {a} * {b});"
        else:
            yield f"{indent}{c} += ({kind}){a} * ({kind}){b};"
        yield "}"

    @staticmethod
    def _loop(lane: str, extent: int) -> str:
        return f"for (long at_{lane} = 0; at_{lane} < {extent}; at_{lane}++)"

    # ---------------------------------------------------------------- transfers (swATOP 4.5.1)

    def _mover(self, box: Box, kind: str) -> Iterator[str]:
        """Yield the function that transfers the box of a PE for a tile."""
        operand = box.operand
        name = "put" if operand.is_output else "get"
        yield from ("", f"/* {operand.name}, {' x '.join(map(str, operand.shape))}. */")
        yield (
            f"static int {name}_{_identifier(operand.name)}"
            "(char *here, char *memory, const struct tile *t, dma_reply *reply) {"
        )
        if box.tiled:
            yield from self._tiled_transfer(box, kind)
        else:
            yield from self._transfer(box, kind)
        yield "}"

    def _transfer(self, box: Box, kind: str) -> Iterator[str]:
        """Yield the transfer of a box from main memory's own layout, block after block."""
        blocks = [d for d in box.dimensions if d.blocked]
        within = [d for d in box.dimensions if not d.blocked]
        stores, cut = int(box.operand.is_output), dict[str, str]()
        if blocks:
            yield "  int transfers = 0;"
        for dimension in blocks:
            (name,) = dimension.walks
            n = cut[name] = self.names[name]
            step = dimension.blocked
            yield f"  for (long at_{n} = 0; at_{n} < t->held_{n}; at_{n} += {step})"
        indent = "  "
        if blocks:
            yield "  {"
            indent = "    "
        yield f"{indent}struct box b = {{.dimensions = {len(within)}}};"
        for number, dimension in enumerate(within):
            yield from (indent + line for line in self._dimension(box, number, dimension, cut))
        if within and within[-1].room:
            yield f"{indent}b.row = {within[-1].room};"
        call = f"move_box({stores}, here, memory, &b, sizeof({kind}), reply)"
        if not blocks:
            yield f"  return {call};"
            return
        size = " * ".join([*self._factors(box, "t->", len(blocks) - 1), f"(long)sizeof({kind})"])
        yield f"    transfers += {call};"
        yield f"    here += {size};"
        yield from ("  }", "  return transfers;")

    def _dimension(
        self, box: Box, number: int, dimension: BoxDimension, cut: Mapping[str, str]
    ) -> Iterator[str]:
        """Yield a dimension of a transfer; ``cut`` are the axes of which it moves one block."""
        first: list[str] = []
        for name, factor in dimension.starts.items():
            start = self._start(box.operand, name)
            start += f" + at_{cut[name]}" if name in cut else ""
            first.append(f"{_factor(factor)}({start})")
        if dimension.constant or not first:
            first.append(str(dimension.constant))
        yield f"b.first[{number}] = {' + '.join(first)};"
        yield f"b.held[{number}] = {self._places(dimension, 't->')};"
        yield f"b.size[{number}] = {dimension.size};"
        step, stride = dimension.step, dimension.stride_bytes
        yield f"b.step[{number}] = {step}, b.apart[{number}] = {stride};"

    def _start(self, operand: Operand, name: str) -> str:
        """Return the first point of this PE's part."""
        axis, n = self.product.axes[name], self.names[name]
        if axis.parts == 1 or operand.cut is None or axis.lane not in operand.cut:
            return f"t->first_{n}"
        place = "PE_ROW" if operand.cut[0] == axis.lane else "PE_COLUMN"
        part = place if axis.weight == 1 else f"({place} / {axis.weight})"
        if axis.weight * axis.parts != self.machine.parts(axis.lane or ""):
            part = f"({part} % {axis.parts})"
        return f"t->first_{n} + {part} * t->held_{n}"

    def _tiled_transfer(self, box: Box, kind: str) -> Iterator[str]:
        # Boxes lie one after the other, by tile, then by PE; each has the room of a full one.
        tile = ""
        for axis in self.axes:
            if axis.name in box.operand.axes:
                n, count = self.names[axis.name], self.plan.count(axis)
                tile = f"({tile}) * {count} +" if tile else ""
                tile += f" t->first_{n} / TILE_{n}"
        places = " * ".join(self._factors(box, "t->")) or "1"
        yield f"  long tile = {tile.strip() or '0'};"
        yield f"  long size = {places} * (long)sizeof({kind});"
        yield "  long place = (tile * PE_ROWS + PE_ROW) * PE_COLUMNS + PE_COLUMN;"
        yield f"  memory += place * {box.elements(self.plan.pe_points)}L * (long)sizeof({kind});"
        yield "  dma_get(here, memory, size, size, size, reply);"
        yield "  return 1;"

    def _places(self, dimension: BoxDimension, tile: str) -> str:
        """Return the number of places of a box's dimension; ``tile`` is "t->" or "now."."""
        if dimension.within:
            return str(dimension.within)
        if dimension.blocked:
            (name,) = dimension.walks
            return f"{tile}held_{self.names[name]} / {dimension.blocked}"
        walks = [(factor, f"{tile}held_{self.names[n]}") for n, factor in dimension.walks.items()]
        if [factor for factor, _ in walks] == [1]:
            return walks[0][1]
        return " + ".join(["1", *(f"{_factor(factor)}({points} - 1)" for factor, points in walks)])

    def _factors(self, box: Box, tile: str, after: int = -1) -> list[str]:
        """Return the numbers of places of the dimensions after one, which multiply to a stride."""
        places = [
            str(dimension.room) if dimension.room else self._places(dimension, tile)
            for dimension in box.dimensions[after + 1 :]
            if dimension.walks or dimension.room
        ]
        return [f"({text})" if " " in text else text for text in places]

    def _stride(self, box: Box, axis: Axis) -> str:
        """Return the elements between neighbours along an axis, in the box of tile ``t``."""
        terms: list[str] = []
        for number, factor in box.walk(axis.name):
            factors = [] if factor == 1 else [str(factor)]
            terms.append(" * ".join([*factors, *self._factors(box, "t->", number)]) or "1")
        return " + ".join(terms) or "0"

    # ---------------------------------------------------------------- products of a tile

    def _compute(self) -> Iterator[str]:
        yield from ("", "/* All products of a tile. */")
        parameters = ", ".join(
            f"{'const ' * (not o.is_output)}{kind} *{letter}"
            for letter, o, kind in zip("ABC", self.product.operands, self.types, strict=True)
        )
        yield f"static void compute({parameters}, const struct tile *t) {{"
        addresses = [["A"], ["B"], ["C"]]
        for axis in self.form.repeated:
            n = self.names[axis.name]
            for terms, letter, box in zip(addresses, "abc", self.form.boxes, strict=True):
                blocks = box.block_dimension(axis.name)
                if blocks is not None:
                    distance = " * ".join(self._factors(box, "t->", blocks))
                    yield f"  const long {letter}_{n} = {distance};"
                    terms.append(f"at_{n} / {axis.grain} * {letter}_{n}")
                elif box.walk(axis.name):
                    yield f"  const long {letter}_{n} = {self._stride(box, axis)};"
                    terms.append(f"at_{n} * {letter}_{n}")
        depth = 1
        for axis in self.form.repeated:
            n, step = self.names[axis.name], 1 if self.machine.sized else axis.grain
            loop = f"for (long at_{n} = 0; at_{n} < t->held_{n}; at_{n} += {step})"
            yield f"{'  ' * depth}{loop}"
            depth += 1
        call = self._gemm if self.machine.sized else self._execute
        yield from (f"{'  ' * depth}{call([' + '.join(terms) for terms in addresses])};", "}")

    def _gemm(self, addresses: Sequence[str]) -> str:
        """Return a call of the primitive, with leading dimensions and variant of the boxes."""
        (x, y, z), (a, b, c) = self.product.lanes, self.form.boxes
        chains = self.form.chains

        def sizes_of(lane: str) -> list[str]:
            return [f"t->held_{self.names[axis.name]}" for axis in chains[lane]]

        def is_unit(box: Box, lane: str) -> bool:
            return not chains[lane] or box.is_unit(chains[lane][0].name)

        def leading(box: Box, lane: str, contiguous: str) -> str:
            # Distance between columns, or rows, as in BLAS; a single one has none, so its length.
            if chains[lane]:
                return self._stride(box, chains[lane][0])
            return " * ".join(sizes_of(contiguous)) or "1"

        variants = {"A_COLUMN_MAJOR": is_unit(a, x), "B_COLUMN_MAJOR": is_unit(b, z)}
        variant = " | ".join(name for name, holds in variants.items() if holds) or "0"
        leading_a = leading(a, *((z, x) if is_unit(a, x) else (x, z)))
        leading_b = leading(b, *((y, z) if is_unit(b, z) else (z, y)))
        sizes = (" * ".join([str(self.machine.parts(lane)), *sizes_of(lane)]) for lane in (x, y, z))
        return (
            f"gemm({', '.join(sizes)}, {addresses[0]}, {leading_a}, {addresses[1]}, {leading_b}, "
            f"{addresses[2]}, {leading(c, y, x)}, {variant})"
        )

    def _execute(self, addresses: Sequence[str]) -> str:
        """Return an execution of one granule, with the strides that it walks."""
        arguments: list[str] = []
        for address, box in zip(addresses, self.form.boxes, strict=True):
            arguments.append(address)
            for lane, distance in self.machine.distances[box.operand.role].items():
                if distance is not None:
                    continue
                chain = self.form.chains.get(lane, ())
                arguments.append(self._stride(box, chain[0]) if chain else "0")
        return f"{self._instruction_name()}({', '.join(arguments)})"

    # ---------------------------------------------------------------- walk over tiles

    def _kernel(self) -> Iterator[str]:
        buffers, names = self.plan.buffers, self.operands
        yield from ("", "void kernel(const struct arguments *a) {")
        for buffer, n in zip(buffers, names, strict=True):
            memory, count = buffer.box.operand.memory, len(buffer.offsets)
            # Where elements share a byte of the machine, each has one in the emulated memory.
            scale = self.machine.spread[memory]
            places = ", ".join(
                f"scratchpad({memory}, {offset * scale})" for offset in buffer.offsets
            )
            yield f"  char *{n}_box[{count}] = {{{places}}};"
            yield f"  dma_reply {n}_reply[{count}] = {{0}};"
            yield f"  int {n}_moving[{count}] = {{0}}, {n}_in = 0;"
        yield from ("  struct tile now = {0}, next;", "  measure(&now);")
        # The first boxes have nothing to overlap with.
        for number, n in enumerate(names[:2]):
            yield f"  {self._get(number, n, '0', 'now')}"
        # The next tile is inferred from the loops (swATOP 4.5.2), so that the boxes which it needs
        # are requested before this one is computed.
        yield from ("  for (int begins = 1, more = 1; more;) {", "    next = now;")
        yield "    more = advance(&next);"
        for number, n in enumerate(names[:2]):
            yield from self._prefetch(number, n)
        for n in names[:2]:
            yield from self._wait(n)
        yield from self._sum()
        for number, n in enumerate(names[:2]):
            yield from self._turn(number, n)
        yield from ("    now = next;", "  }")
        # The kernel ends only when its last results have arrived in main memory.
        n = names[2]
        yield from (
            f"  for (int k = 0; k < {len(buffers[2].offsets)}; k++)",
            f"    if ({n}_moving[k]) dma_wait(&{n}_reply[k], {n}_moving[k]);",
            "}",
        )

    def _get(self, number: int, n: str, buffer: str, tile: str) -> str:
        call = f"get_{n}({n}_box[{buffer}], a->operand[{number}], &{tile}, &{n}_reply[{buffer}])"
        return f"{n}_moving[{buffer}] = {call};"

    def _wait(self, n: str, indent: str = "    ") -> Iterator[str]:
        yield f"{indent}if ({n}_moving[{n}_in]) dma_wait(&{n}_reply[{n}_in], {n}_moving[{n}_in]);"
        yield f"{indent}{n}_moving[{n}_in] = 0;"

    def _changes(self, operand: Operand) -> str:
        """Return the condition under which the next tile needs another box."""
        names = [self.names[a.name] for a in self.plan.loops if a.name in operand.axes]
        return " || ".join(f"next.first_{n} != now.first_{n}" for n in names) or "0"

    def _prefetch(self, number: int, n: str) -> Iterator[str]:
        changes = self._changes(self.product.operands[number])
        yield f"    const int {n}_changes = more && ({changes});"
        # The second buffer receives the next box while this tile is computed.
        if len(self.plan.buffers[number].offsets) == 2:
            yield f"    if ({n}_changes)"
            yield f"      {self._get(number, n, f'!{n}_in', 'next')}"

    def _turn(self, number: int, n: str) -> Iterator[str]:
        """Yield the change to the next box, which a single buffer receives only now."""
        if len(self.plan.buffers[number].offsets) == 2:
            yield f"    if ({n}_changes) {n}_in = !{n}_in;"
        elif any(a.name in self.product.operands[number].axes for a in self.plan.loops):
            yield f"    if ({n}_changes)"
            yield f"      {self._get(number, n, '0', 'next')}"

    def _sum(self) -> Iterator[str]:
        """Yield the products of a tile, with the start and the storing of its sums."""
        n, result = self.operands[2], self.form.boxes[2]
        places = " * ".join([*self._factors(result, "now."), f"(long)sizeof({self.types[2]})"])
        # Sums begin at zero, in a buffer whose last contents have been stored.
        yield "    if (begins) {"
        yield from self._wait(n, "      ")
        yield f"      zero({n}_box[{n}_in], {places});"
        yield "    }"
        arguments = ", ".join(
            f"({'const ' * (k < 2)}{kind} *){name}_box[{name}_in]"
            for k, (kind, name) in enumerate(zip(self.types, self.operands, strict=True))
        )
        yield f"    compute({arguments}, &now);"
        # Sums are stored when the next tile belongs to others, which is when they are complete:
        # reductions are the innermost loops.
        yield f"    begins = !more || ({self._changes(self.product.output)});"
        yield "    if (begins) {"
        call = f"put_{n}({n}_box[{n}_in], a->operand[2], &now, &{n}_reply[{n}_in])"
        yield f"      {n}_moving[{n}_in] = {call};"
        if len(self.plan.buffers[2].offsets) == 2:
            yield f"      {n}_in = !{n}_in;"
        yield "    }"
