"""The parts around the product of a rewritten convolution: im2col, and Winograd's transforms.

A part goes over blocks of an array. A processing element takes every block whose turn is its own:
it brings the box that the block reads, computes the box that it makes, and stores it, while what
the next block reads is on its way (swATOP, section 3: transformations on the CPE cluster).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

import numpy as np

from cpembed.errors import LoweringError
from cpembed.methods.cook_toom import Matrix
from cpembed.methods.im2col import Im2col
from cpembed.methods.rewritten import Rewritten
from cpembed.methods.straight_line import straight_line
from cpembed.methods.winograd import Tiling, Winograd
from cpembed.targets.scratchpad.boxes import Box, BoxDimension
from cpembed.targets.scratchpad.lower import Operand
from cpembed.targets.scratchpad.machine import LANES_BYTES, ScratchpadMachine
from cpembed.targets.scratchpad.model import pattern

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
    """Code along one dimension of a tile: a matrix by its straight-line code, or None where every
    element is taken as it is."""

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
        engine, rounds = machine.engine, -(-self.units // machine.elements)
        moved, calls = 0.0, 0.0
        for dimensions in (self.source, self.target):
            found = pattern(*_box(dimensions, self.places(dimensions)))
            moved += float(found.moved(engine.transaction_bytes)[0])
            calls += float(found.calls[0])
        transferring = self.units * moved / engine.bytes_per_cycle
        transferring += rounds * calls * engine.latency_cycles
        executing = rounds * self.operations / (LANES_BYTES / _BYTES)
        return max(transferring, executing) + (transferring + executing) / max(1, rounds)


def _box(dimensions: Sequence[Dimension], places: Sequence[int]) -> tuple[Box, dict[str, int]]:
    """A box of an array for the model of transfers."""
    sizes = [d.size for d in dimensions]
    apart = [_BYTES * math.prod(sizes[n + 1 :]) for n in range(len(sizes))]
    operand = Operand("", "", ELEMENT, tuple(sizes), (), 0, None, False, False)
    made = tuple(
        BoxDimension({str(n): 1}, {str(n): 1}, 0, 1, size, step)
        for n, (size, step) in enumerate(zip(sizes, apart, strict=True))
    )
    return Box(operand, made, False), {str(n): held for n, held in enumerate(places)}


def parts_of(method: Rewritten, machine: ScratchpadMachine) -> tuple[Part | None, Part | None]:
    """The parts before and after the product; None where an array is the other already.

    Raises :class:`LoweringError` for what has no generated parts.
    """
    conv = method.convolution
    operands = (conv.image, conv.weights, conv.output)
    kinds = {operand.dtype for operand in operands}
    several = [a for a in (conv.groups, conv.samples, conv.channels, conv.filters) if len(a) > 1]
    if kinds != {ELEMENT} or several or not isinstance(method, Winograd | Im2col):
        raise LoweringError(
            f"{machine.name}: {method.name} has generated parts for {ELEMENT}, with one axis each "
            "of groups, samples, channels and filters: use --method implicit"
        )
    if isinstance(method, Im2col):
        return _blocked(_windows(method), machine), _plain_result(method)
    return _blocked(_input(method), machine), _blocked(_output(method), machine)


def _blocked(part: Part, machine: ScratchpadMachine) -> Part:
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
        raise LoweringError(f"{machine.name}: {part.name}: not even one point fits a scratchpad")
    return best[1]


class _Maker:
    """Loops and dimensions that the parts of a method share."""

    def __init__(self, method: Rewritten) -> None:
        self.method, self.conv = method, method.convolution
        conv = self.conv
        self.sizes = {
            "g": conv.size(conv.groups),
            "n": conv.size(conv.samples),
            "c": conv.size(conv.channels),
            "k": conv.size(conv.filters),
        }
        self.axes = {
            axis: loop
            for loop, names in zip(
                "gnck", (conv.groups, conv.samples, conv.channels, conv.filters), strict=True
            )
            for axis in names
        }
        self.last = len(conv.windows) - 1

    def loops(self, counts: Sequence[int], lanes: str, pieces: Sequence[int] = ()) -> list[Loop]:
        """Groups, samples, tiles of each window, pieces, channels or filters; blocks are of tiles
        of the last window and of channels or filters."""
        found = [Loop("g", self.sizes["g"]), Loop("n", self.sizes["n"])]
        found += [
            Loop(f"t{n}", count, count if n == self.last else 1) for n, count in enumerate(counts)
        ]
        found += [Loop(f"p{n}", count) for n, count in enumerate(pieces)]
        return [*found, Loop(lanes, self.sizes[lanes], self.sizes[lanes])]

    def places(self, operand: str, windows: Sequence[Dimension]) -> tuple[Dimension, ...]:
        """Dimensions of the image or the output in their own order."""
        access = self.conv.workload.access(operand)
        shape = self.conv.workload.operand(operand).shape
        found: list[Dimension] = []
        for index, size in zip(access.index, shape, strict=True):
            walked = [self.axes[name] for name in index.iterators if name in self.axes]
            if walked:
                found.append(_walked(size, walked[0]))
            else:
                found.append(windows[self.window_of(index.iterators)])
        return tuple(found)

    def window_of(self, iterators: Sequence[str]) -> int:
        return next(n for n, w in enumerate(self.conv.windows) if w.output in iterators)

    def dimension_of(self, operand: str, loop: str) -> int:
        """That a loop over an axis walks."""
        access = self.conv.workload.access(operand)
        return next(
            n
            for n, index in enumerate(access.index)
            if any(self.axes.get(name) == loop for name in index.iterators)
        )

    def dimension_of_window(self, operand: str, number: int) -> int:
        access = self.conv.workload.access(operand)
        output = self.conv.windows[number].output
        return next(n for n, index in enumerate(access.index) if output in index.iterators)

    def matrix(
        self, head: Sequence[Dimension], tiles: Dimension, lanes: Dimension
    ) -> tuple[tuple[Dimension, ...], int, int]:
        """Dimensions of V or M, and which are of tiles and of channels or filters."""
        group = [_walked(self.sizes["g"], "g")] if self.sizes["g"] > 1 else []
        whole = [*head, *group]
        pair = (tiles, lanes) if self.method.orders.last else (lanes, tiles)
        first = len(whole)
        places = (first, first + 1) if self.method.orders.last else (first + 1, first)
        return (*whole, *pair), *places


def _walked(size: int, loop: str) -> Dimension:
    """A dimension that a loop walks, place by place."""
    return Dimension(size, (0, {loop: 1}), (0, {loop: 1}))


def _inner(sizes: Sequence[int]) -> list[int]:
    """How far neighbours are apart, row-major."""
    return [math.prod(sizes[n + 1 :]) for n in range(len(sizes))]


def _input(method: Winograd) -> Part:
    """V of I: every tile's inputs, transformed."""
    make, tilings = _Maker(method), method.tilings
    counts = [t.count for t in tilings]
    pieces = [t.pieces for t in tilings]
    source = make.places(method.convolution.image.name, _input_windows(tilings, make.last))
    target, x, c = make.matrix(
        [Dimension(method.places, (0, {}), (method.places, {}))],
        _tiles(make, counts),
        Dimension(
            make.sizes["c"] * math.prod(pieces),
            (0, {"c": 1, **_factors("p", pieces, make.sizes["c"])}),
            (0, {"c": 1}),
        ),
    )
    image = method.convolution.image.name
    windows = [make.dimension_of_window(image, n) for n in range(len(tilings))]
    apart = _inner([t.form.multiplications for t in tilings])
    last = tilings[-1].form.outputs
    return Part(
        "input",
        tuple(make.loops(counts, "c", pieces)),
        source,
        target,
        tuple(Transform(f"input{n}", t.form.input) for n, t in enumerate(tilings)),
        tuple((window, 1) for window in windows),
        tuple((0, step) for step in apart),
        {
            f"t{make.last}": ((windows[-1], last), (x, 1)),
            "c": ((make.dimension_of(image, "c"), 1), (c, 1)),
        },
    )


def _output(method: Winograd) -> Part:
    """O of M: every tile's results, transformed."""
    make, tilings = _Maker(method), method.tilings
    counts = [t.count for t in tilings]
    source, x, k = make.matrix(
        [Dimension(method.places, (0, {}), (method.places, {}))],
        _tiles(make, counts),
        _walked(make.sizes["k"], "k"),
    )
    output = method.convolution.output.name
    sizes = [t.form.outputs for t in tilings]
    ends = [
        Dimension(
            t.window.outputs,
            (0, {f"t{n}": size}),
            (0, {f"t{n}": size}) if n == make.last else (size, {}),
        )
        for n, (t, size) in enumerate(zip(tilings, sizes, strict=True))
    ]
    windows = [make.dimension_of_window(output, n) for n in range(len(tilings))]
    apart = _inner([t.form.multiplications for t in tilings])
    return Part(
        "output",
        tuple(make.loops(counts, "k")),
        source,
        make.places(output, ends),
        tuple(Transform(f"output{n}", t.form.output) for n, t in enumerate(tilings)),
        tuple((0, step) for step in apart),
        tuple((window, 1) for window in windows),
        {
            f"t{make.last}": ((x, 1), (windows[-1], sizes[-1])),
            "k": ((k, 1), (make.dimension_of(output, "k"), 1)),
        },
    )


def _windows(method: Im2col) -> Part:
    """V of I: every window's elements, side by side."""
    make, windows = _Maker(method), method.convolution.windows
    counts, taps = [w.outputs for w in windows], [w.taps for w in windows]
    places = [
        Dimension(
            w.size,
            (w.first, {f"t{n}": w.stride}),
            (w.dilation * (w.taps - 1) + 1 - w.stride, {f"t{n}": w.stride})
            if n == make.last
            else (w.dilation * (w.taps - 1) + 1, {}),
        )
        for n, w in enumerate(windows)
    ]
    image, samples = method.convolution.image.name, make.sizes["n"]
    group = [_walked(make.sizes["g"], "g")] if make.sizes["g"] > 1 else []
    tap = Dimension(math.prod(taps), (0, {}), (math.prod(taps), {}))
    channels = _walked(make.sizes["c"], "c")
    if method.orders.last:
        target = (*group, _tiles(make, counts), tap, channels)
        x, into, c = len(group), len(group) + 1, len(group) + 2
    else:
        sample = [_walked(samples, "n")] if samples > 1 else []
        target = (*group, *sample, channels, tap, _tiles(make, counts, samples=False))
        c, into, x = (len(group) + len(sample) + n for n in range(3))
    dimensions = [make.dimension_of_window(image, n) for n in range(len(windows))]
    return Part(
        "windows",
        tuple(make.loops(counts, "c")),
        make.places(image, places),
        target,
        tuple(Transform(f"window{n}", _identity(w.taps)) for n, w in enumerate(windows)),
        tuple((d, w.dilation) for d, w in zip(dimensions, windows, strict=True)),
        tuple((into, step) for step in _inner(taps)),
        {
            f"t{make.last}": ((dimensions[-1], windows[-1].stride), (x, 1)),
            "c": ((make.dimension_of(image, "c"), 1), (c, 1)),
        },
    )


def _identity(size: int) -> Matrix:
    one, none = Fraction(1), Fraction(0)
    return tuple(tuple(one if i == j else none for j in range(size)) for i in range(size))


def _factors(letter: str, counts: Sequence[int], each: int) -> dict[str, int]:
    return {f"{letter}{n}": each * step for n, step in enumerate(_inner(counts))}


def _tiles(make: _Maker, counts: Sequence[int], *, samples: bool = True) -> Dimension:
    """Of samples and of the tiles of every window, the last fastest."""
    every = math.prod(counts)
    first = _factors("t", counts, 1)
    if samples:
        first["n"] = every
    size = every * (make.sizes["n"] if samples else 1)
    return Dimension(size, (0, first), (0, {f"t{make.last}": 1}))


def _input_windows(tilings: Sequence[Tiling], last: int) -> list[Dimension]:
    found: list[Dimension] = []
    for n, tiling in enumerate(tilings):
        window, form = tiling.window, tiling.form
        step = window.stride * form.outputs
        found.append(
            Dimension(
                window.size,
                (window.first, {f"t{n}": step, f"p{n}": form.taps}),
                (form.multiplications - step, {f"t{n}": step})
                if n == last
                else (form.multiplications, {}),
            )
        )
    return found


def _plain_result(method: Im2col) -> None:
    """M of im2col is O where the output's dimensions are in the product's order.

    Raises :class:`LoweringError` where they are not.
    """
    conv = method.convolution
    places = np.arange(math.prod(conv.output.shape)).reshape(method.product.operand("M").shape)
    if not np.array_equal(method.output_part(places).reshape(-1), places.reshape(-1)):
        raise LoweringError(
            f"{method.name}: {conv.output.name} is in another order than the product's result"
        )
