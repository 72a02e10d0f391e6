"""Kernels and layouts of convolution methods: Winograd's transforms, and what parts are packed to.

The transforms walk the tiles of one block, whose number they read from a buffer of one element, and
in a tile vectors of channels: all places of the tile in one channel are the same lane of as many
vectors. The image comes padded with zeros and channels last, ``[g, n, pixels of each window, c]``,
so that no tile is special; outputs are written channels last, ``[g, n, outputs of each window,
k]``, where they exist. V is ``[e, g, x, c]`` and M ``[e, g, x, k]``, with x over the tiles of a
block.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction

from cpembed.codegen.plan import KernelPlan, Script, buffer
from cpembed.ir.dtypes import size_bytes
from cpembed.ir.index import IndexExpr, IndexTerm, row_major_strides
from cpembed.transform.methods.convolution import Convolution, Im2col, Window
from cpembed.transform.methods.cook_toom import Matrix, Step, straight_line
from cpembed.transform.methods.winograd import Tiling, Winograd
from cpembed.transform.program import PackedDimension, PackedOperand

AT = "At"
"""Name of the buffer that holds the number of a block."""
Place = tuple[int, ...]
"""Position in a tile, an index per window."""


@dataclass(frozen=True)
class TileBlocks:
    """Blocks of ``size`` of all ``tiles``; the last may hold fewer.

    ``threads`` share the tiles of a block; a vector has ``vector_bytes``.
    """

    tiles: int
    size: int
    threads: int = 1
    vector_bytes: int = 64

    @property
    def count(self) -> int:
        """Number of blocks."""
        return -(-self.tiles // self.size)


# ----------------------------------------------------------------------------------------- layouts
#
# They are packed operands, so that the kernels that pack for a product also convert for a method.


def padded_image(method: Winograd) -> PackedOperand:
    """Return the image as its transform reads it: ``[g, n, pixels of each window, c]``."""
    conv = method.convolution
    index = {
        window.output: IndexExpr.sum(
            [IndexTerm(window.output, window.stride if window.taps == 1 else 1)], window.first
        )
        for window in conv.windows
    }
    extents = {t.window.output: _pixels(t) for t in method.tilings}
    names = [*conv.groups, *conv.samples, *extents, *conv.channels]
    return _image(conv, names, extents, index)


def window_matrix(method: Im2col) -> PackedOperand:
    """Return the layout of im2col's matrix V, which has the taps and channels of each window."""
    conv = method.convolution
    index = {window.output: _read(window) for window in conv.windows}
    outputs = [window.output for window in conv.windows]
    taps = {window.tap: window.taps for window in conv.windows if window.tap}
    columns = [*taps, *conv.channels] if method.orders.last else [*conv.channels, *taps]
    rows = [*outputs, *columns] if method.orders.last else [*columns, *outputs]
    return _image(conv, [*conv.groups, *conv.samples, *rows], taps, index)


def weights_layout(method: Winograd | Im2col) -> PackedOperand:
    """Return the weights as Winograd's transform reads them, or U of im2col.

    The former are ``[g, c, taps of each window, k]``, with zeros that fill the last piece.
    """
    conv = method.convolution
    taps = {window.tap: window.taps for window in conv.windows if window.tap}
    if isinstance(method, Winograd):
        taps = {t.window.tap: t.pieces * t.form.taps for t in method.tilings if t.window.tap}
        names = [*conv.groups, *conv.channels, *taps, *conv.filters]
    elif method.orders.last:
        names = [*conv.groups, *taps, *conv.channels, *conv.filters]
    else:
        names = [*conv.groups, *conv.filters, *conv.channels, *taps]
    source = conv.workload.access(conv.weights.name).index
    return _operand(conv, conv.weights.name, names, taps, source)


def result_layout(conv: Convolution, *, channels_last: bool) -> PackedOperand:
    """Return the output as a method leaves it.

    It is ``[g, n, outputs of each window, k]``, or has k before the outputs.
    """
    outputs = [window.output for window in conv.windows]
    last = [*outputs, *conv.filters] if channels_last else [*conv.filters, *outputs]
    names = [*conv.groups, *conv.samples, *last]
    source = conv.workload.access(conv.output.name).index
    return _operand(conv, conv.output.name, names, {}, source)


def _read(window: Window) -> IndexExpr:
    terms = [IndexTerm(window.output, window.stride)]
    terms += [IndexTerm(window.tap, window.dilation)] if window.tap else []
    return IndexExpr.sum(terms, window.first)


def _image(
    conv: Convolution,
    names: Sequence[str],
    extents: Mapping[str, int],
    index: Mapping[str, IndexExpr],
) -> PackedOperand:
    """Return a layout of the image; ``index`` has those of the windows by their outputs."""
    source = [
        next((windowed for name, windowed in index.items() if name in access.iterators), access)
        for access in conv.workload.access(conv.image.name).index
    ]
    return _operand(conv, conv.image.name, names, extents, source)


def _operand(
    conv: Convolution,
    name: str,
    names: Sequence[str],
    extents: Mapping[str, int],
    source: Sequence[IndexExpr],
) -> PackedOperand:
    operand, extent_of = conv.workload.operand(name), {**conv.workload.extents, **extents}
    return PackedOperand(
        name=name,
        dtype=operand.dtype,
        original_shape=operand.shape,
        dimensions=tuple(PackedDimension(axis, extent_of[axis]) for axis in names),
        source=tuple(source),
        access=tuple(map(IndexExpr.iterator, names)),
    )


def _pixels(tiling: Tiling) -> int:
    """Return the number of pixels that all tiles of a window read."""
    # Of a window of one tap, only those that its outputs read: F(1, 1) has one multiplication.
    form = tiling.form
    last = (tiling.count - 1) * form.outputs + (tiling.pieces - 1) * form.taps
    return last + form.multiplications


# -------------------------------------------------------------------------------------- transforms


def image_transform(method: Winograd, blocks: TileBlocks) -> KernelPlan:
    """Plan ``main(Padded, At, V)``: the tiles of a block."""
    conv, tilings = method.convolution, method.tilings
    groups, channels = conv.size(conv.groups), conv.size(conv.channels)
    shape = groups, conv.size(conv.samples), *map(_pixels, tilings), channels
    depth = method.product.extents["c"]
    elements = method.places * groups * blocks.size * depth
    text = _Text(conv.image.dtype, channels, blocks)
    strides = row_major_strides(shape)
    padded = buffer("Padded", math.prod(shape), text.dtype)
    with text.tiles(method, padded, buffer("V", elements, text.dtype)):
        base = _sum(_tile_terms(tilings, strides))
        for number, piece in enumerate(_points([t.pieces for t in tilings])):
            with text.vectors(groups):
                text.script.line(f"base: T.let = {base} + c")
                values = {
                    place: text.bound(text.element("Padded", f"base + {offset}"))
                    for place, offset in _offsets(tilings, piece, _places(method), strides[2:])
                }
                for axis, tiling in enumerate(tilings):
                    values = text.applied(tiling.form.input, values, axis)
                first = _sum([("g", blocks.size * depth), ("x", depth)])
                text.script.line(f"to: T.let = {first} + {number * channels} + c")
                for e, place in enumerate(_places(method)):
                    target = f"to + {e * groups * blocks.size * depth}"
                    text.script.line(f"{text.element('V', target)} = {values[place]}")
    return KernelPlan("winograd.image", text.script.text())


def weights_transform(method: Winograd) -> KernelPlan:
    """Plan ``main(Weights, U)``: all filters, in float64, rounded once.

    Weights are ``[g, c, taps of each window, k]``.
    """
    conv, tilings = method.convolution, method.tilings
    groups, channels, filters = (
        conv.size(part) for part in (conv.groups, conv.channels, conv.filters)
    )
    dtype, depth = conv.weights.dtype, method.product.extents["c"]
    shape = groups, channels, *(t.pieces * t.form.taps for t in tilings), filters
    strides = row_major_strides(shape)
    text = _Text("float64", filters, TileBlocks(1, 1))
    lanes = "" if text.lanes == 1 else f"x{text.lanes}"
    weights = buffer("Weights", math.prod(shape), dtype)
    transformed = buffer("U", method.places * groups * depth * filters, dtype)
    script = text.script
    with (
        script.function((weights, transformed)),
        script.nested(f"for channel in T.serial({channels}):"),
    ):
        for number, piece in enumerate(_points([t.pieces for t in tilings])):
            with text.vectors(groups):
                begin = _sum([("g", strides[0]), ("channel", strides[1])])
                script.line(f"base: T.let = {begin} + c")
                taps = _points([t.form.taps for t in tilings])
                values: dict[Place, str] = {}
                for place, offset in _offsets(tilings, piece, taps, strides[2:]):
                    element = text.element("Weights", f"base + {offset}")
                    values[place] = text.bound(f'T.cast({element}, "float64{lanes}")')
                for axis, tiling in enumerate(tilings):
                    values = text.applied(tiling.form.filter, values, axis)
                first = _sum([("g", depth * filters), ("channel", filters)])
                script.line(f"to: T.let = {first} + {number * channels * filters} + c")
                for e, place in enumerate(_places(method)):
                    target = text.element("U", f"to + {e * groups * depth * filters}")
                    script.line(f'{target} = T.cast({values[place]}, "{dtype}{lanes}")')
    return KernelPlan("winograd.weights", script.text())


def output_transform(method: Winograd, blocks: TileBlocks) -> KernelPlan:
    """Plan ``main(M, At, Found)``: the outputs of a block's tiles that exist."""
    conv, tilings = method.convolution, method.tilings
    groups, filters = conv.size(conv.groups), conv.size(conv.filters)
    outputs = tuple(tiling.window.outputs for tiling in tilings)
    shape = groups, conv.size(conv.samples), *outputs, filters
    strides = row_major_strides(shape)
    elements = method.places * groups * blocks.size * filters
    text = _Text(conv.output.dtype, filters, blocks)
    result = buffer("Found", math.prod(shape), text.dtype)
    with text.tiles(method, buffer("M", elements, text.dtype), result), text.vectors(groups):
        first = _sum([("g", blocks.size * filters), ("x", filters)])
        text.script.line(f"base: T.let = {first} + c")
        values = {
            place: text.bound(text.element("M", f"base + {e * groups * blocks.size * filters}"))
            for e, place in enumerate(_places(method))
        }
        # Axis by axis, since a nested transform is the product of the transforms of its windows.
        for axis, tiling in enumerate(tilings):
            values = text.applied(tiling.form.output, values, axis)
        text.script.line(f"to: T.let = {_sum(_tile_terms(tilings, strides))} + c")
        _store(text, tilings, values, strides[2:])
    return KernelPlan("winograd.output", text.script.text())


def _store(
    text: _Text, tilings: Sequence[Tiling], values: Mapping[Place, str], strides: Sequence[int]
) -> None:
    """Write the outputs of a tile that exist: the last tile of a window may have fewer."""

    def store(axis: int, offset: int, place: Place) -> None:
        if axis == len(tilings):
            target = text.element("Found", f"to + {offset}")
            text.script.line(f"{target} = {values[place]}")
            return
        m, outputs = tilings[axis].form.outputs, tilings[axis].window.outputs
        # So many outputs the last tile has as well; only those after them need a condition.
        always = outputs % m or m
        for number in range(m):
            further = offset + number * strides[axis]
            inside = [] if number < always else [f"if t{axis} * {m} + {number} < {outputs}:"]
            with text.script.nested(*inside):
                store(axis + 1, further, (*place, number))

    store(0, 0, ())


class _Text:
    """Text of a transform while it is written."""

    def __init__(self, dtype: str, channels: int, blocks: TileBlocks) -> None:
        self.script = Script()
        self.dtype = dtype
        self.channels = channels
        self.blocks = blocks
        most = min(channels, blocks.vector_bytes // size_bytes(dtype))
        self.lanes = 1 << (most.bit_length() - 1)  # a power of two
        self._names = 0

    @contextmanager
    def tiles(self, method: Winograd, source: str, target: str) -> Generator[None]:
        """Write the loop over every tile x of the block.

        It binds the tile's sample n, and its position t0, t1 ... in each window.
        """
        blocks, script, conv = self.blocks, self.script, method.convolution
        counts = [("n", conv.size(conv.samples))]
        counts += [(f"t{n}", tiling.count) for n, tiling in enumerate(method.tilings)]
        chunks = max(1, min(blocks.threads, blocks.size))
        kind = "parallel" if chunks > 1 else "serial"
        with (
            script.function((source, buffer(AT, 1, "int32"), target)),
            script.nested(f"for chunk in T.{kind}({chunks}):"),
        ):
            first, end = (
                f"({part}) * {blocks.size} // {chunks}" for part in ("chunk", "chunk + 1")
            )
            last = f"{blocks.tiles} - {AT}[0] * {blocks.size}"
            # Chunks beyond the last tile of a partial block are empty.
            end = f"T.max({first}, T.min({end}, {last}))" if blocks.tiles % blocks.size else end
            with script.nested(f"for x in T.serial({first}, {end}):"):
                script.line(f"tile: T.let = {AT}[0] * {blocks.size} + x")
                inside = blocks.tiles
                for name, count in counts:
                    inside //= count
                    script.line(f"{name}: T.let = tile // {inside} % {count}")
                yield

    @contextmanager
    def vectors(self, groups: int) -> Generator[None]:
        """Write the loop over vectors of channels; the last one ends with the channels."""
        count = -(-self.channels // self.lanes)
        with self.script.nested(
            f"for g in T.serial({groups}):", f"for vector in T.serial({count}):"
        ):
            start = f"vector * {self.lanes}"
            # The last vector is moved back: it computes some channels again, with equal results.
            if self.channels % self.lanes:
                start = f"T.min({start}, {self.channels - self.lanes})"
            self.script.line(f"c: T.let = {start}")
            yield

    def element(self, name: str, index: str) -> str:
        at = index if self.lanes == 1 else f"T.Ramp({index}, 1, {self.lanes})"
        return f"{name}[{at}]"

    def bound(self, value: str) -> str:
        """Bind a value and return the variable's name."""
        self._names += 1
        self.script.line(f"v{self._names}: T.let = {value}")
        return f"v{self._names}"

    def constant(self, value: Fraction) -> str:
        text = f"T.{self.dtype}({float(value)!r})"
        return text if self.lanes == 1 else f"T.Broadcast({text}, {self.lanes})"

    def applied(self, matrix: Matrix, values: Mapping[Place, str], axis: int) -> dict[Place, str]:
        """Apply a matrix along an axis of the places."""
        code = straight_line(matrix)
        transformed: dict[Place, str] = {}
        lines = {(*place[:axis], *place[axis + 1 :]): None for place in values}
        for rest in lines:
            row = [values[(*rest[:axis], number, *rest[axis:])] for number in range(code.inputs)]
            for number, result in enumerate(code.computed(row, self._sum)):
                name = self.constant(Fraction(0)) if result is None else result
                transformed[(*rest[:axis], number, *rest[axis:])] = name
        return transformed

    def _sum(self, step: Step, values: list[str]) -> str:
        (factor, first), *addends = step.terms
        total = values[first] if factor == 1 else f"{self.constant(factor)} * {values[first]}"
        for weight, number in addends:
            if abs(weight) == 1:
                total = f"{total} {'+' if weight > 0 else '-'} {values[number]}"
            else:
                total = f"T.fma({self.constant(weight)}, {values[number]}, {total})"
        return self.bound(total)


def _points(extents: Sequence[int]) -> Iterator[Place]:
    return itertools.product(*map(range, extents))


def _places(method: Winograd) -> list[Place]:
    return list(_points([tiling.form.multiplications for tiling in method.tilings]))


def _offsets(
    tilings: Sequence[Tiling], piece: Place, places: Iterable[Place], strides: Sequence[int]
) -> Iterator[tuple[Place, int]]:
    """Yield positions under a piece of the filter with their offsets in a buffer."""
    # A piece begins `taps` pixels after the one before it; strides end with that of channels.
    for place in places:
        windows = zip(tilings, piece, place, strides, strict=False)
        yield place, sum((t.form.taps * part + at) * step for t, part, at, step in windows)


def _tile_terms(tilings: Sequence[Tiling], strides: Sequence[int]) -> list[tuple[str, int]]:
    """Return the variables that locate a tile in an image or an output, with their strides."""
    windows = [(f"t{n}", tiling.form.outputs * strides[2 + n]) for n, tiling in enumerate(tilings)]
    return [("g", strides[0]), ("n", strides[1]), *windows]


def _sum(terms: Sequence[tuple[str, int]]) -> str:
    return " + ".join(f"{name} * {step}" for name, step in terms)
