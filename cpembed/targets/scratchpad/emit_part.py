"""C of a part: one text that every processing element runs over its own blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from cpembed.targets.scratchpad.parts import Dimension, Part, Transform
from cpembed.targets.scratchpad.text import Lines, boxes_text
from cpembed.transform.methods.cook_toom import Step, straight_line

KIND = "float"


def part_text(part: Part) -> str:
    """The text; ``operand[0]`` is what it reads, ``operand[1]`` what it makes."""
    size = max(len(part.source), len(part.target))
    parts = [
        f"/* {part.name}: {part.units} blocks. */",
        "#include <stdint.h>",
        '#include "scratchpad.h"',
        f"#define BOX_DIMENSIONS {size}",
        boxes_text(),
        _blocks(part),
        *(_line_by_line(transform) for transform in part.transforms),
        _mover(part, "get", part.source),
        _mover(part, "put", part.target),
        _compute(part),
        _kernel(part),
    ]
    return "\n".join(parts)


def _blocks(part: Part) -> str:
    lines, names = Lines(), [loop.name for loop in part.loops]
    lines.line("/* A block: its first point along each axis, and how many it has. */")
    lines.line("struct block {", f"  long {', '.join(names)};")
    lines.line(f"  long {', '.join(f'points_{name}' for name in names)};", "};", "")
    lines.line("static void locate(long unit, struct block *b) {")
    for loop in reversed(part.loops):
        lines.line(
            f"  b->{loop.name} = unit % {loop.count} * {loop.block}, unit /= {loop.count};",
            f"  b->points_{loop.name} = least({loop.block}, {loop.extent} - b->{loop.name});",
        )
    lines.line("}")
    return lines.text()


def _line_by_line(transform: Transform) -> str:
    """A matrix times a vector, values ``from`` and ``to`` apart."""
    code, name = straight_line(transform.matrix), transform.name
    lines = Lines()
    lines.line(f"static void {name}(const {KIND} *in, long from, {KIND} *out, long to) {{")
    for number in range(code.inputs):
        lines.line(f"  const {KIND} v{number} = in[{number} * from];")
    for step in code.steps:
        lines.line(f"  const {KIND} v{step.number} = {_sum(step)};")
    for number, value in enumerate(code.outputs):
        lines.line(f"  out[{number} * to] = {'0' if value is None else f'v{value}'};")
    lines.line("}")
    return lines.text()


def _sum(step: Step) -> str:
    terms = [
        f"v{value}" if factor == 1 else f"{float(factor)!r}f * v{value}"
        for factor, value in step.terms
    ]
    return " + ".join(terms)


def _mover(part: Part, way: str, dimensions: Sequence[Dimension]) -> str:
    lines = Lines()
    lines.line(
        f"static int {way}(char *here, char *memory, const struct block *at, dma_reply *reply) {{",
        f"  struct box b = {{.dimensions = {len(dimensions)}}};",
    )
    apart = "(long)sizeof(" + KIND + ")"
    rows: list[str] = []
    for number, dimension in reversed(list(enumerate(dimensions))):
        rows += [
            f"  b.first[{number}] = {_sum_of(dimension.first, 'at->')};",
            f"  b.held[{number}] = {_sum_of(dimension.places, 'at->points_')};",
            f"  b.size[{number}] = {dimension.size}, b.step[{number}] = 1;",
            f"  b.apart[{number}] = {apart};",
        ]
        apart = f"{dimension.size} * b.apart[{number}]"
    lines.line(*rows)
    put = int(way == "put")
    lines.line(f"  return move_box({put}, here, memory, &b, sizeof({KIND}), reply);", "}")
    return lines.text()


def _sum_of(given: tuple[int, Mapping[str, int]], prefix: str) -> str:
    constant, factors = given
    terms = [
        f"{prefix}{name}" if factor == 1 else f"{factor} * {prefix}{name}"
        for name, factor in factors.items()
    ]
    if constant or not terms:
        terms.insert(0, str(constant))
    return " + ".join(terms)


def _strides(letter: str, dimensions: Sequence[Dimension]) -> Iterator[str]:
    """Elements between neighbours of each dimension of a box."""
    inner = "1"
    for number, dimension in reversed(list(enumerate(dimensions))):
        yield f"  const long {letter}{number} = {inner};"
        inner = f"{letter}{number} * ({_sum_of(dimension.places, 'b->points_')})"


def _compute(part: Part) -> str:
    """Transforms along the nest of a tile's places, from the outermost, through local arrays."""
    lines = Lines()
    lines.line(
        f"static void compute(const {KIND} *source, {KIND} *target, const struct block *b) {{",
        *_strides("s", part.source),
        *_strides("t", part.target),
    )
    offsets: tuple[list[str], list[str]] = ([], [])
    for loop in part.loops:
        if loop.name not in part.walks:
            continue
        name = f"i_{loop.name}"
        lines.line(f"  for (long {name} = 0; {name} < b->points_{loop.name}; {name}++)")
        for terms, letter, (dimension, far) in zip(
            offsets, "st", part.walks[loop.name], strict=True
        ):
            terms.append(f"{name} * {far} * {letter}{dimension}")
    lines.line("  {")
    lines.line(f"    const {KIND} *from = {' + '.join(['source', *offsets[0]])};")
    lines.line(f"    {KIND} *to = {' + '.join(['target', *offsets[1]])};")
    lines.line(*_nested(part), "  }", "}")
    return lines.text()


def _nested(part: Part) -> Iterator[str]:
    """One transform after the other, each along one dimension of what is left of the others."""
    shapes = [transform.shape for transform in part.transforms]
    last = len(shapes) - 1
    place = "from"
    far = [f"{reach} * s{dimension}" for dimension, reach in part.nest]
    for number, transform in enumerate(part.transforms):
        sizes = [shape[0 if n <= number else 1] for n, shape in enumerate(shapes)]
        if number == last:
            name, steps = "to", [f"{reach} * t{dimension}" for dimension, reach in part.into]
        else:
            name = f"made{number}"
            total, steps = 1, list[str]()
            for size in reversed(sizes):
                steps.insert(0, str(total))
                total *= size
            yield f"    {KIND} {name}[{total}];"
        loops, one, other = "", [place], [name]
        for n, size in enumerate(sizes):
            if n != number:
                loops += f"for (long j{n} = 0; j{n} < {size}; j{n}++) "
                one.append(f"j{n} * {far[n]}")
                other.append(f"j{n} * {steps[n]}")
        yield (
            f"    {loops}{transform.name}({' + '.join(one)}, {far[number]}, "
            f"{' + '.join(other)}, {steps[number]});"
        )
        place, far = name, steps


def _kernel(part: Part) -> str:
    """Two buffers of each, in the first memory of every PE."""
    one, other = (-(-size // 32) * 32 for size in part.bytes)
    lines = Lines()
    lines.line(
        "void kernel(const struct arguments *a) {",
        f"  char *source[2] = {{scratchpad(0, 0), scratchpad(0, {one})}};",
        f"  char *target[2] = {{scratchpad(0, {2 * one}), scratchpad(0, {2 * one + other})}};",
        "  dma_reply got[2] = {0}, stored[2] = {0};",
        "  int getting[2] = {0}, storing[2] = {0}, in = 0;",
        "  const long step = (long)PE_ROWS * PE_COLUMNS;",
        "  struct block now, next;",
        "  long unit = (long)PE_ROW * PE_COLUMNS + PE_COLUMN;",
        f"  if (unit < {part.units}) {{",
        "    locate(unit, &now);",
        "    getting[0] = get(source[0], a->operand[0], &now, &got[0]);",
        "  }",
        f"  for (; unit < {part.units}; unit += step, in = !in, now = next) {{",
        f"    if (unit + step < {part.units}) {{",
        "      locate(unit + step, &next);",
        "      getting[!in] = get(source[!in], a->operand[0], &next, &got[!in]);",
        "    }",
        "    if (getting[in]) dma_wait(&got[in], getting[in]);",
        "    if (storing[in]) dma_wait(&stored[in], storing[in]);",
        f"    compute((const {KIND} *)source[in], ({KIND} *)target[in], &now);",
        "    storing[in] = put(target[in], a->operand[1], &now, &stored[in]);",
        "  }",
        "  for (int k = 0; k < 2; k++)",
        "    if (storing[k]) dma_wait(&stored[k], storing[k]);",
        "}",
    )
    return lines.text()
