"""The parts of a method: im2col, and Winograd's transforms of the image and of the result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from cpembed.errors import LoweringError
from cpembed.targets.scratchpad.machine import ScratchpadMachine
from cpembed.targets.scratchpad.parts import ELEMENT, Dimension, Loop, Part, Transform, blocked
from cpembed.transform.methods.convolution import Rewritten
from cpembed.transform.methods.cook_toom import Matrix
from cpembed.transform.methods.im2col import Im2col
from cpembed.transform.methods.winograd import Tiling, Winograd


def parts_of(method: Rewritten, machine: ScratchpadMachine) -> tuple[Part | None, Part | None]:
    """The parts before and after the product; None where an array is the other already.

    Raises :class:`LoweringError` for what has no generated parts.
    """
    conv = method.convolution
    operands = (conv.image, conv.weights, conv.output)
    kinds = {operand.dtype for operand in operands}
    several = [a for a in (conv.groups, conv.samples, conv.channels, conv.filters) if len(a) > 1]
    if kinds != {ELEMENT} or not isinstance(method, Winograd | Im2col):
        other = next((o for o in operands if o.dtype != ELEMENT), conv.image)
        raise LoweringError(
            f"{method.name} is made for {ELEMENT} on machines with scratchpads, {other.name} is "
            f"{other.dtype}: use --method implicit"
        )
    if several:
        raise LoweringError(
            f"{method.name} is made for one axis each of groups, samples, channels and filters, "
            f"not {' and '.join(several[0])}: use --method implicit"
        )
    if isinstance(method, Im2col):
        return blocked(_windows(method), machine), _plain_result(method)
    return blocked(_input(method), machine), blocked(_output(method), machine)


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
    outputs = [window.output for window in conv.windows]
    pair = (outputs, conv.filters) if method.orders.last else (conv.filters, outputs)
    product = [*conv.groups, *conv.samples, *pair[0], *pair[1]]
    access = conv.workload.access(conv.output.name)
    output = [name for index in access.index for name in index.iterators]
    sizes = conv.workload.extents
    if [n for n in product if sizes[n] > 1] != [n for n in output if sizes[n] > 1]:
        raise LoweringError(
            f"{method.name}: {conv.output.name} is in another order than the product's result: "
            "use another layout, or --method implicit"
        )
