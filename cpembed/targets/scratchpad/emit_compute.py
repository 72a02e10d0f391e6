"""C of computing a tile: calls of the primitive, or of the instruction of a fixed size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cpembed.targets.scratchpad.boxes import Box
from cpembed.targets.scratchpad.lower import Operand
from cpembed.targets.scratchpad.text import Lines, Writer, identifier


def compute(writer: Writer) -> str:
    script = Lines()
    script.line("", "/* All products of a tile. */")
    given = ", ".join(
        f"{'const ' * (not o.is_output)}{kind} *{letter}"
        for letter, o, kind in zip("ABC", writer.product.operands, writer.types, strict=True)
    )
    script.line(f"static void compute({given}, const struct tile *t) {{")
    boxes = writer.plan.form.boxes
    offsets: list[list[str]] = [[], [], []]
    depth = 1
    for axis in writer.plan.form.repeated:
        n = writer.names[axis.name]
        for number, (letter, box) in enumerate(zip("abc", boxes, strict=True)):
            if box.walk(axis.name):
                script.line(f"  const long {letter}_{n} = {writer.stride(box, axis)};")
                offsets[number].append(f"at_{n} * {letter}_{n}")
    for axis in writer.plan.form.repeated:
        n, step = writer.names[axis.name], 1 if writer.machine.sized else axis.grain
        script.line(f"{'  ' * depth}for (long at_{n} = 0; at_{n} < t->held_{n}; at_{n} += {step})")
        depth += 1
    places = [" + ".join([letter, *terms]) for letter, terms in zip("ABC", offsets, strict=True)]
    call = _gemm(writer, places) if writer.machine.sized else _execute(writer, places)
    script.line(f"{'  ' * depth}{call};", "}")
    return script.text()


def _gemm(writer: Writer, places: Sequence[str]) -> str:
    x, y, z = writer.product.lanes
    one, other, result = writer.plan.form.boxes
    chains = writer.plan.form.chains

    def size(lane: str) -> str:
        terms = [f"t->held_{writer.names[axis.name]}" for axis in chains[lane]]
        return " * ".join([str(writer.machine.parts(lane)), *terms])

    def unit(box: Box, lane: str) -> bool:
        return not chains[lane] or box.is_unit(chains[lane][0].name)

    def leading(box: Box, lane: str, other: str) -> str:
        """Between columns, or rows; where there is one only, the length of it."""
        if chains[lane]:
            return writer.stride(box, chains[lane][0])
        return " * ".join(f"t->held_{writer.names[axis.name]}" for axis in chains[other]) or "1"

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


def _execute(writer: Writer, places: Sequence[str]) -> str:
    """One granule, with the distances that it walks."""
    arguments: list[str] = []
    for place, box in zip(places, writer.plan.form.boxes, strict=True):
        arguments.append(place)
        for lane in writer.product.program.instruction.memory[box.operand.role].axes:
            chain = writer.plan.form.chains.get(lane, ())
            arguments.append(writer.stride(box, chain[0]) if chain else "0")
    return f"{_name(writer)}({', '.join(arguments)})"


def _name(writer: Writer) -> str:
    return identifier(f"execute_{writer.product.program.instruction.name}")


def instruction(writer: Writer) -> str:
    """The instruction in plain C; a port puts the machine's own in its place."""
    instruction = writer.product.program.instruction
    extents = {axis.name: axis.maximum for axis in instruction.axes}
    letters = dict(zip((o.role for o in writer.product.operands), "abc", strict=True))
    given: list[str] = []
    for operand, kind in zip(writer.product.operands, writer.types, strict=True):
        letter = letters[operand.role]
        given.append(f"{'const ' * (not operand.is_output)}{kind} *{letter}")
        given += [f"long {letter}_{lane}" for lane in instruction.memory[operand.role].axes]
    script = Lines()
    script.line("", f"/* {instruction.computation}. */")
    script.line(f"static INSTRUCTION void {_name(writer)}({', '.join(given)}) {{")
    for operand, kind in zip(writer.product.operands, writer.types, strict=True):
        script.line(
            *_touches(
                letters[operand.role],
                kind,
                operand,
                instruction.memory[operand.role].axes,
                extents,
            )
        )
    sizes = ", ".join(str(extents.get(lane, 1)) for lane in writer.product.lanes)
    script.line(f'  touch_call("{instruction.name}", {sizes});')
    depth = 1
    for lane, extent in extents.items():
        script.line(f"{'  ' * depth}for (long at_{lane} = 0; at_{lane} < {extent}; at_{lane}++)")
        depth += 1
    at: list[str] = []
    for operand in writer.product.operands:
        letter = letters[operand.role]
        terms = [f"at_{lane} * {letter}_{lane}" for lane in instruction.memory[operand.role].axes]
        at.append(f"{letter}[{' + '.join(terms) or '0'}]")
    kind = writer.types[2]
    script.line(f"{'  ' * depth}{at[2]} += ({kind}){at[0]} * ({kind}){at[1]};", "}")
    return script.text()


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
