"""Parts around the product of a rewritten convolution: their estimated time, and their C text.

A part goes over blocks of an array. A processing element takes every block whose turn is its own:
it fetches the box that the block reads, computes the box that it writes, and stores it, while what
the next block reads is being transferred (swATOP, section 3: transformations on the CPE cluster).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from cpembed.errors import LoweringError
from cpembed.ir.index import row_major_strides
from cpembed.targets.scratchpad.boxes import Box, BoxDimension, Operand
from cpembed.targets.scratchpad.emit import as_text, boxes_text
from cpembed.targets.scratchpad.machine import VECTOR_BYTES, ScratchpadMachine
from cpembed.targets.scratchpad.model import pattern
from cpembed.targets.scratchpad.schedule import PLACED_BYTES
from cpembed.transform.methods.cook_toom import Matrix, Step, straight_line

ELEMENT = "float32"
_BYTES = 4
_C_TYPE = "float"

LinearSum = tuple[int, Mapping[str, int]]
"""A constant, and factors by loop."""


def _aligned(size: int) -> int:
    return -(-size // PLACED_BYTES) * PLACED_BYTES


@dataclass(frozen=True)
class Loop:
    """A loop over an axis of a part, in blocks of ``block`` points."""

    name: str
    extent: int
    block: int = 1

    @property
    def count(self) -> int:
        return -(-self.extent // self.block)

    @property
    def points(self) -> int:
        """Number of points of a full block."""
        return min(self.block, self.extent)


@dataclass(frozen=True)
class Dimension:
    """A dimension of an array.

    ``first`` is the first place of a block's box in it, over the loops' first points, ``places``
    the number of its places, over the points of a block.
    """

    size: int
    first: LinearSum
    places: LinearSum


@dataclass(frozen=True)
class Transform:
    """Multiplication by a matrix along one dimension of a tile, by straight-line code."""

    name: str
    matrix: Matrix

    @property
    def shape(self) -> tuple[int, int]:
        """Number of results and of inputs."""
        return len(self.matrix), len(self.matrix[0])


@dataclass(frozen=True, kw_only=True)
class Part:
    """Transforms of the blocks of an array."""

    name: str
    loops: tuple[Loop, ...]
    """Loops over blocks."""
    source: tuple[Dimension, ...]
    """Dimensions of the array that is read."""
    target: tuple[Dimension, ...]
    """Dimensions of the array that is written."""
    transforms: tuple[Transform, ...]
    """Transforms along the nest of a point's inputs, outermost first."""
    nest: tuple[tuple[int, int], ...]
    """Dimension of the source along which each transform reads, and the distance of its inputs."""
    into: tuple[tuple[int, int], ...]
    """Dimension of the target along which each transform writes, and the distance of its
    results."""
    walks: Mapping[str, tuple[tuple[int, int], tuple[int, int]]]
    """Dimensions of source and target that a loop's points walk, with the distance of their
    steps."""

    @property
    def units(self) -> int:
        """Number of blocks."""
        return math.prod(loop.count for loop in self.loops)

    def places(self, dimensions: Sequence[Dimension]) -> tuple[int, ...]:
        """Return the places of the box of a full block."""
        points = {loop.name: loop.points for loop in self.loops}
        return tuple(
            d.places[0] + sum(f * points[name] for name, f in d.places[1].items())
            for d in dimensions
        )

    @cached_property
    def bytes(self) -> tuple[int, int]:
        """Bytes of the boxes of a full block in source and target."""
        source, target = self.places(self.source), self.places(self.target)
        return math.prod(source) * _BYTES, math.prod(target) * _BYTES

    @property
    def operations(self) -> int:
        """Additions and multiplications of a full block, or loads and stores if these are more."""
        shapes = [transform.shape for transform in self.transforms]
        total = 0
        for number, transform in enumerate(self.transforms):
            repetitions = math.prod(
                shape[0 if place < number else 1]
                for place, shape in enumerate(shapes)
                if place != number
            )
            total += straight_line(transform.matrix).operations * repetitions
        # They are in different pipelines, so that the longer one hides the other.
        moved = math.prod(s[1] for s in shapes) + math.prod(s[0] for s in shapes)
        return math.prod(loop.points for loop in self.loops) * max(total, moved)

    def cycles(self, machine: ScratchpadMachine) -> float:
        """Estimate the cycles of the part on a machine."""
        # Transfers of all PEs share main memory; every PE computes its own blocks.
        rounds, engines = -(-self.units // machine.elements), list(machine.engines.values())
        transferring = 0.0
        for dimensions, engine in ((self.source, engines[0]), (self.target, engines[-1])):
            # The same model of transfers as that of products.
            calls = pattern(*_box(dimensions, self.places(dimensions)))
            moved = self.units * float(calls.moved(engine.transaction_bytes)[0])
            transferring += moved / engine.bytes_per_cycle
            transferring += rounds * float(calls.calls[0]) * engine.latency_cycles
        executing = rounds * self.operations / (VECTOR_BYTES / _BYTES)
        # Double buffering overlaps all rounds but one.
        return max(transferring, executing) + (transferring + executing) / max(1, rounds)


def _box(dimensions: Sequence[Dimension], places: Sequence[int]) -> tuple[Box, dict[str, int]]:
    """Return a box of an array for the model of transfers, and the points held of its axes."""
    sizes = [d.size for d in dimensions]
    operand = Operand(
        name="",
        tensor="",
        role="",
        dtype=ELEMENT,
        shape=tuple(sizes),
        index=(),
        memory=0,
        cut=None,
        is_output=False,
        constant=False,
    )
    box_dimensions = tuple(
        BoxDimension(
            walks={str(n): 1},
            starts={str(n): 1},
            constant=0,
            step=1,
            size=size,
            stride_bytes=stride,
        )
        for n, (size, stride) in enumerate(zip(sizes, operand.strides, strict=True))
    )
    return Box(operand, box_dimensions, False), {str(n): count for n, count in enumerate(places)}


def blocked(part: Part, machine: ScratchpadMachine) -> Part:
    """Return the part with the fastest blocks that fit, twice for double buffering.

    Raises :class:`LoweringError` if not even the smallest blocks fit.
    """
    # Two buffers of each array: one is transferred while the other is computed.
    room = machine.capacities[0] // 2
    best: tuple[float, Part] | None = None
    # Of the sizes of a loop that give equally many blocks, the smallest stands for all.
    options = [
        sorted({-(-loop.extent // n) for n in range(1, loop.extent + 1)}) if loop.block > 1 else [1]
        for loop in part.loops
    ]
    # All combinations: the number of sizes of a loop grows with the square root of its extent.
    for blocks in itertools.product(*options):
        loops = tuple(replace(o, block=b) for o, b in zip(part.loops, blocks, strict=True))
        candidate = replace(part, loops=loops)
        if sum(map(_aligned, candidate.bytes)) > room:
            continue
        cycles = candidate.cycles(machine)
        if best is None or cycles < best[0]:
            best = cycles, candidate
    if best is None:
        raise LoweringError(
            f"{part.name}: not even one tile of one channel fits twice into the "
            f"{machine.capacities[0]:,} bytes of {machine.memories[0]} in each PE: use --method "
            "implicit"
        )
    return best[1]


def part_text(part: Part) -> str:
    """Return the C text of a part: ``operand[0]`` is its source, ``operand[1]`` its target."""
    size = max(len(part.source), len(part.target))
    head = [
        f"/* {part.name}: {part.units} blocks. */",
        "#include <stdint.h>",
        '#include "scratchpad.h"',
        f"#define BOX_DIMENSIONS {size}",
        boxes_text(),
    ]
    parts = (
        _blocks(part),
        *map(_transform, part.transforms),
        _mover("get", part.source),
        _mover("put", part.target),
        _compute(part),
        _kernel(part),
    )
    return "\n".join([*head, *map(as_text, parts)])


def _blocks(part: Part) -> Iterator[str]:
    names = [loop.name for loop in part.loops]
    yield "/* A block: its first point along each axis, and how many it has. */"
    yield from ("struct block {", f"  long {', '.join(names)};")
    yield from (f"  long {', '.join(f'points_{name}' for name in names)};", "};", "")
    yield "static void locate(long unit, struct block *b) {"
    for loop in reversed(part.loops):
        yield from (
            f"  b->{loop.name} = unit % {loop.count} * {loop.block}, unit /= {loop.count};",
            f"  b->points_{loop.name} = least({loop.block}, {loop.extent} - b->{loop.name});",
        )
    yield "}"


def _transform(transform: Transform) -> Iterator[str]:
    """Return the function that multiplies a matrix by a vector."""
    code, name = straight_line(transform.matrix), transform.name
    yield f"static void {name}(const {_C_TYPE} *in, long from, {_C_TYPE} *out, long to) {{"
    for number in range(code.inputs):
        yield f"  const {_C_TYPE} v{number} = in[{number} * from];"
    for step in code.steps:
        yield f"  const {_C_TYPE} v{step.number} = {_step_sum(step)};"
    for number, value in enumerate(code.outputs):
        yield f"  out[{number} * to] = {'0' if value is None else f'v{value}'};"
    yield "}"


def _step_sum(step: Step) -> str:
    return " + ".join(
        f"v{value}" if factor == 1 else f"{float(factor)!r}f * v{value}"
        for factor, value in step.terms
    )


def _mover(direction: str, dimensions: Sequence[Dimension]) -> Iterator[str]:
    """Return the function that transfers the box of a block; ``direction`` is "get" or "put"."""
    parameters = "char *here, char *memory, const struct block *at, dma_reply *reply"
    yield f"static int {direction}({parameters}) {{"
    yield f"  struct box b = {{.dimensions = {len(dimensions)}}};"
    # From the innermost dimension outwards: each one's distance follows from the sizes inside.
    stride = f"(long)sizeof({_C_TYPE})"
    for number, dimension in reversed(list(enumerate(dimensions))):
        yield from (
            f"  b.first[{number}] = {_sum_text(dimension.first, 'at->')};",
            f"  b.held[{number}] = {_sum_text(dimension.places, 'at->points_')};",
            f"  b.size[{number}] = {dimension.size}, b.step[{number}] = 1;",
            f"  b.apart[{number}] = {stride};",
        )
        stride = f"{dimension.size} * b.apart[{number}]"
    stores = int(direction == "put")
    yield from (f"  return move_box({stores}, here, memory, &b, sizeof({_C_TYPE}), reply);", "}")


def _sum_text(linear: LinearSum, prefix: str) -> str:
    constant, factors = linear
    terms = [
        f"{prefix}{name}" if factor == 1 else f"{factor} * {prefix}{name}"
        for name, factor in factors.items()
    ]
    if constant or not terms:
        terms.insert(0, str(constant))
    return " + ".join(terms)


def _strides(letter: str, dimensions: Sequence[Dimension]) -> Iterator[str]:
    """Yield the elements between neighbours along each dimension of a box."""
    stride = "1"
    for number, dimension in reversed(list(enumerate(dimensions))):
        yield f"  const long {letter}{number} = {stride};"
        stride = f"{letter}{number} * ({_sum_text(dimension.places, 'b->points_')})"


def _compute(part: Part) -> Iterator[str]:
    """Yield the lines of the C function that transforms the points of a block."""
    parameters = f"const {_C_TYPE} *source, {_C_TYPE} *target, const struct block *b"
    yield from (
        f"static void compute({parameters}) {{",
        *_strides("s", part.source),
        *_strides("t", part.target),
    )
    addresses = (["source"], ["target"])
    for loop in part.loops:
        # A loop of one point a block moves where the block begins, and nothing within it.
        if loop.name not in part.walks:
            continue
        name = f"i_{loop.name}"
        yield f"  for (long {name} = 0; {name} < b->points_{loop.name}; {name}++)"
        for terms, letter, (dimension, distance) in zip(
            addresses, "st", part.walks[loop.name], strict=True
        ):
            terms.append(f"{name} * {distance} * {letter}{dimension}")
    source, target = (" + ".join(terms) for terms in addresses)
    yield from ("  {", f"    const {_C_TYPE} *from = {source};", f"    {_C_TYPE} *to = {target};")
    yield from (*_transform_calls(part), "  }", "}")


def _transform_calls(part: Part) -> Iterator[str]:
    """Yield calls of one transform after the other along the nest of a point's inputs."""
    # Through local arrays: each transform is repeated for the results of those before and the
    # inputs of those after it.
    shapes = [transform.shape for transform in part.transforms]
    source = "from"
    source_steps = [f"{reach} * s{dimension}" for dimension, reach in part.nest]
    for number, transform in enumerate(part.transforms):
        sizes = [shape[0 if n <= number else 1] for n, shape in enumerate(shapes)]
        if number == len(shapes) - 1:
            target = "to"
            target_steps = [f"{reach} * t{dimension}" for dimension, reach in part.into]
        else:
            target = f"made{number}"
            target_steps = [str(step) for step in row_major_strides(sizes)]
            yield f"    {_C_TYPE} {target}[{math.prod(sizes)}];"
        loops, inputs, results = "", [source], [target]
        for n, size in enumerate(sizes):
            if n != number:
                loops += f"for (long j{n} = 0; j{n} < {size}; j{n}++) "
                inputs.append(f"j{n} * {source_steps[n]}")
                results.append(f"j{n} * {target_steps[n]}")
        yield (
            f"    {loops}{transform.name}({' + '.join(inputs)}, {source_steps[number]}, "
            f"{' + '.join(results)}, {target_steps[number]});"
        )
        source, source_steps = target, target_steps


def _kernel(part: Part) -> Iterator[str]:
    """Return the walk over blocks, with two buffers each in the first memory of every PE."""
    source, target = map(_aligned, part.bytes)
    first, second = 2 * source, 2 * source + target
    yield from (
        "void kernel(const struct arguments *a) {",
        f"  char *source[2] = {{scratchpad(0, 0), scratchpad(0, {source})}};",
        f"  char *target[2] = {{scratchpad(0, {first}), scratchpad(0, {second})}};",
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
        f"    compute((const {_C_TYPE} *)source[in], ({_C_TYPE} *)target[in], &now);",
        "    storing[in] = put(target[in], a->operand[1], &now, &stored[in]);",
        "  }",
        "  for (int k = 0; k < 2; k++)",
        "    if (storing[k]) dma_wait(&stored[k], storing[k]);",
        "}",
    )
