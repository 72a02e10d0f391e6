"""Parts around the product of a rewritten convolution, and what they take on a machine.

A part goes over blocks of an array. A processing element takes every block whose turn is its own:
it brings the box that the block reads, computes the box that it makes, and stores it, while what
the next block reads is on its way (swATOP, section 3: transformations on the CPE cluster). Which
parts a method has: :mod:`cpembed.targets.scratchpad.method_parts`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from cpembed.errors import LoweringError
from cpembed.targets.scratchpad.boxes import Box, BoxDimension
from cpembed.targets.scratchpad.lower import Operand
from cpembed.targets.scratchpad.machine import ScratchpadMachine
from cpembed.targets.scratchpad.model import pattern
from cpembed.targets.scratchpad.requirements import LANES_BYTES
from cpembed.transform.methods.cook_toom import Matrix, straight_line

ELEMENT = "float32"
_BYTES = 4


@dataclass(frozen=True)
class Loop:
    """Over an axis of a part, in blocks of ``block`` points."""

    name: str
    extent: int
    block: int = 1

    @property
    def count(self) -> int:
        return -(-self.extent // self.block)


@dataclass(frozen=True)
class Dimension:
    """A dimension of an array: its size, and where a block's box begins in it and how many places
    it has, in sums ``(constant, factors of the loops' first points)`` and ``(constant, factors of
    the points of a block)``."""

    size: int
    first: tuple[int, Mapping[str, int]]
    places: tuple[int, Mapping[str, int]]


@dataclass(frozen=True)
class Transform:
    """Code along one dimension of a tile: a matrix, by its straight-line code."""

    name: str
    matrix: Matrix

    @property
    def shape(self) -> tuple[int, int]:
        """Results and inputs."""
        return len(self.matrix), len(self.matrix[0])


@dataclass(frozen=True)
class Part:
    """Blocks of ``loops``, the box of ``source`` that each reads and that of ``target`` it makes.

    Of each point of a block, by its loops of more than one point, an input is a nest of places: in
    dimension n of the source at ``point * steps[n] + place * reach[n]``. ``transforms`` are applied
    along the nest, outermost first; the results go to the target's dimensions ``into``, one for all
    (a row-major number) or one each, ``stride_out`` apart for neighbouring points.
    """

    name: str
    loops: tuple[Loop, ...]
    source: tuple[Dimension, ...]
    target: tuple[Dimension, ...]
    transforms: tuple[Transform, ...]
    nest: tuple[tuple[int, int], ...]
    """By transform: the source's dimension, and how far its inputs are from each other in it."""
    into: tuple[tuple[int, int], ...]
    """By transform: the target's dimension, and how far its results are from each other in it."""
    walks: Mapping[str, tuple[tuple[int, int], tuple[int, int]]]
    """By loop: the dimension of the source and of the target that its points walk, and how far."""

    @property
    def units(self) -> int:
        return math.prod(loop.count for loop in self.loops)

    def places(self, dimensions: Sequence[Dimension]) -> tuple[int, ...]:
        """Of the box of a whole block."""
        points = {loop.name: min(loop.block, loop.extent) for loop in self.loops}
        return tuple(
            d.places[0] + sum(f * points[name] for name, f in d.places[1].items())
            for d in dimensions
        )

    @cached_property
    def bytes(self) -> tuple[int, int]:
        """Of the boxes of a whole block."""
        one, other = self.places(self.source), self.places(self.target)
        return math.prod(one) * _BYTES, math.prod(other) * _BYTES

    @property
    def operations(self) -> int:
        """Additions and multiplications of a whole block, and its loads and stores, whichever are
        more: they are in different pipelines."""
        points = math.prod(min(loop.block, loop.extent) for loop in self.loops)
        shapes = [transform.shape for transform in self.transforms]
        total = 0
        for number, transform in enumerate(self.transforms):
            others = math.prod(
                shape[0 if place < number else 1]
                for place, shape in enumerate(shapes)
                if place != number
            )
            total += straight_line(transform.matrix).operations * others
        moved = math.prod(s[1] for s in shapes) + math.prod(s[0] for s in shapes)
        return points * max(total, moved)

    def cycles(self, machine: ScratchpadMachine) -> float:
        """Transfers of all PEs share main memory; every PE computes its own blocks."""
        rounds, engines = -(-self.units // machine.elements), list(machine.engines.values())
        transferring = 0.0
        for dimensions, engine in ((self.source, engines[0]), (self.target, engines[-1])):
            found = pattern(*_box(dimensions, self.places(dimensions)))
            moved = self.units * float(found.moved(engine.transaction_bytes)[0])
            transferring += moved / engine.bytes_per_cycle
            transferring += rounds * float(found.calls[0]) * engine.latency_cycles
        executing = rounds * self.operations / (LANES_BYTES / _BYTES)
        return max(transferring, executing) + (transferring + executing) / max(1, rounds)


def _box(dimensions: Sequence[Dimension], places: Sequence[int]) -> tuple[Box, dict[str, int]]:
    """A box of an array for the model of transfers."""
    sizes = [d.size for d in dimensions]
    apart = [_BYTES * math.prod(sizes[n + 1 :]) for n in range(len(sizes))]
    operand = Operand("", "", "", ELEMENT, tuple(sizes), (), 0, None, False, False)
    made = tuple(
        BoxDimension({str(n): 1}, {str(n): 1}, 0, 1, size, step)
        for n, (size, step) in enumerate(zip(sizes, apart, strict=True))
    )
    return Box(operand, made, False), {str(n): held for n, held in enumerate(places)}


def blocked(part: Part, machine: ScratchpadMachine) -> Part:
    """With the blocks of the least time that fit, twice for double buffering."""
    room = machine.capacities[0] // 2
    best: tuple[float, Part] | None = None
    options = [
        sorted({-(-loop.extent // n) for n in range(1, loop.extent + 1)}) if loop.block > 1 else [1]
        for loop in part.loops
    ]
    for blocks in itertools.product(*options):
        loops = tuple(replace(o, block=b) for o, b in zip(part.loops, blocks, strict=True))
        made = replace(part, loops=loops)
        if sum(-(-size // 32) * 32 for size in made.bytes) > room:
            continue
        cycles = made.cycles(machine)
        if best is None or cycles < best[0]:
            best = cycles, made
    if best is None:
        raise LoweringError(
            f"{part.name}: not even one tile of one channel fits twice into the "
            f"{machine.capacities[0]:,} bytes of {machine.memories[0]} in each PE: use --method "
            "implicit"
        )
    return best[1]
