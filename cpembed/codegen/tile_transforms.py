"""Kernels of Winograd's transforms: tiles of an image into V, and M into tiles of an output.

Both walk the tiles of one block, whose number they read from a buffer of one element, and in a tile
vectors of channels: all places of the tile in one channel are the same lane of as many vectors. The
image comes padded with zeros and channels last, ``[g, n, pixels of each window, c]``, so that no
tile is special; outputs are written channels last, ``[g, n, outputs of each window, k]``, where
they exist. V is ``[e, g, x, c]`` and M ``[e, g, x, k]``, with x over the tiles of a block.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction

from cpembed.codegen.plan import KernelPlan
from cpembed.codegen.script import HEADER, Script, buffer
from cpembed.ir.dtypes import size_bytes
from cpembed.transform.methods.cook_toom import Matrix
from cpembed.transform.methods.straight_line import Step, straight_line
from cpembed.transform.methods.winograd import Tiling, Winograd

AT = "At"
"""The buffer that holds the number of a block."""
Place = tuple[int, ...]


@dataclass(frozen=True)
class Blocks:
    """Tiles in blocks of ``size``, of which ``count`` hold all ``tiles``; the last may hold
    fewer. ``threads`` share the tiles of a block; a vector has ``vector_bytes``."""

    tiles: int
    size: int
    threads: int = 1
    vector_bytes: int = 64

    @property
    def count(self) -> int:
        return -(-self.tiles // self.size)


def padded_shape(method: Winograd) -> tuple[int, ...]:
    """The image as the transform reads it: ``[g, n, pixels of each window, c]``."""
    conv = method.convolution
    read = (pixels(tiling) for tiling in method.tilings)
    return conv.size(conv.groups), conv.size(conv.samples), *read, conv.size(conv.channels)


def pixels(tiling: Tiling) -> int:
    """Pixels that all tiles of a window read; of a window of one tap only those that it reads."""
    form = tiling.form
    last = (tiling.count - 1) * form.outputs + (tiling.pieces - 1) * form.taps
    return last + form.multiplications


def image_transform(method: Winograd, blocks: Blocks) -> KernelPlan:
    """``main(Padded, At, V)``: the tiles of a block."""
    conv, shape = method.convolution, padded_shape(method)
    groups, channels = shape[0], shape[-1]
    depth = method.product.extents["c"]
    elements = method.places * groups * blocks.size * depth
    text = _Text(conv.image.dtype, channels, blocks)
    strides = _strides(shape)
    given = buffer("Padded", math.prod(shape), text.dtype)
    with text.tiles(method, given, buffer("V", elements, text.dtype)):
        base = _sum(
            [("g", strides[0]), ("n", strides[1])]
            + [
                (f"t{n}", tiling.form.outputs * strides[2 + n])
                for n, tiling in enumerate(method.tilings)
            ]
        )
        pieces = itertools.product(*(range(tiling.pieces) for tiling in method.tilings))
        for number, piece in enumerate(pieces):
            with text.vectors(groups):
                text.script.line(f"base: T.let = {base} + c")
                values: dict[Place, str] = {}
                for place in _places(method):
                    offset = sum(
                        (tiling.form.taps * part + at) * stride
                        for tiling, part, at, stride in zip(
                            method.tilings, piece, place, strides[2:], strict=False
                        )
                    )
                    values[place] = text.let(text.element("Padded", f"base + {offset}"))
                for axis, tiling in enumerate(method.tilings):
                    values = text.applied(tiling.form.input, values, axis)
                first = _sum([("g", blocks.size * depth), ("x", depth)])
                text.script.line(f"to: T.let = {first} + {number * channels} + c")
                for e, place in enumerate(_places(method)):
                    target = f"to + {e * groups * blocks.size * depth}"
                    text.script.line(f"{text.element('V', target)} = {values[place]}")
    return KernelPlan("winograd.image", text.script.text())


def weights_transform(method: Winograd) -> KernelPlan:
    """``main(Weights, U)``: all filters, ``[g, c, taps of each window, k]``, in float64, rounded
    once."""
    conv, tilings = method.convolution, method.tilings
    groups, channels, filters = (
        conv.size(part) for part in (conv.groups, conv.channels, conv.filters)
    )
    dtype, depth = conv.weights.dtype, method.product.extents["c"]
    shape = groups, channels, *(t.pieces * t.form.taps for t in tilings), filters
    strides = _strides(shape)
    text = _Text("float64", filters, Blocks(1, 1))
    of_lanes = "" if text.lanes == 1 else f"x{text.lanes}"
    given = buffer("Weights", math.prod(shape), dtype)
    found = buffer("U", method.places * groups * depth * filters, dtype)
    script = text.script
    script.line(HEADER)
    with script.nested(f"def main({given}, {found}):"):
        script.line('T.func_attr({"tirx.noalias": True, "global_symbol": "main"})')
        with script.nested(f"for channel in T.serial({channels}):"):
            pieces = itertools.product(*(range(tiling.pieces) for tiling in tilings))
            for number, piece in enumerate(pieces):
                with text.vectors(groups):
                    begin = _sum([("g", strides[0]), ("channel", strides[1])])
                    script.line(f"base: T.let = {begin} + c")
                    values: dict[Place, str] = {}
                    for place in itertools.product(*(range(t.form.taps) for t in tilings)):
                        offset = sum(
                            (tiling.form.taps * part + at) * stride
                            for tiling, part, at, stride in zip(
                                tilings, piece, place, strides[2:], strict=False
                            )
                        )
                        element = text.element("Weights", f"base + {offset}")
                        values[place] = text.let(f'T.cast({element}, "float64{of_lanes}")')
                    for axis, tiling in enumerate(tilings):
                        values = text.applied(tiling.form.filter, values, axis)
                    first = _sum([("g", depth * filters), ("channel", filters)])
                    script.line(f"to: T.let = {first} + {number * channels * filters} + c")
                    for e, place in enumerate(_places(method)):
                        target = text.element("U", f"to + {e * groups * depth * filters}")
                        script.line(f'{target} = T.cast({values[place]}, "{dtype}{of_lanes}")')
    return KernelPlan("winograd.weights", script.text())


def output_transform(method: Winograd, blocks: Blocks) -> KernelPlan:
    """``main(M, At, Found)``: the outputs of a block's tiles that exist."""
    conv = method.convolution
    groups, filters = conv.size(conv.groups), conv.size(conv.filters)
    outputs = tuple(tiling.window.outputs for tiling in method.tilings)
    shape = groups, conv.size(conv.samples), *outputs, filters
    strides = _strides(shape)
    elements = method.places * groups * blocks.size * filters
    text = _Text(conv.output.dtype, filters, blocks)
    found = buffer("Found", math.prod(shape), text.dtype)
    with text.tiles(method, buffer("M", elements, text.dtype), found), text.vectors(groups):
        first = _sum([("g", blocks.size * filters), ("x", filters)])
        text.script.line(f"base: T.let = {first} + c")
        values = {
            place: text.let(text.element("M", f"base + {e * groups * blocks.size * filters}"))
            for e, place in enumerate(_places(method))
        }
        for axis, tiling in enumerate(method.tilings):
            values = text.applied(tiling.form.output, values, axis)
        to = _sum(
            [("g", strides[0]), ("n", strides[1])]
            + [
                (f"t{n}", tiling.form.outputs * strides[2 + n])
                for n, tiling in enumerate(method.tilings)
            ]
        )
        text.script.line(f"to: T.let = {to} + c")
        _store(text, method.tilings, values, strides[2:])
    return KernelPlan("winograd.output", text.script.text())


def _store(
    text: _Text, tilings: Sequence[Tiling], values: Mapping[Place, str], strides: Sequence[int]
) -> None:
    """The outputs of a tile; in the last tile of a window those that it has."""

    def at(axis: int, offset: int, place: Place) -> None:
        if axis == len(tilings):
            target = text.element("Found", f"to + {offset}")
            text.script.line(f"{target} = {values[place]}")
            return
        m, outputs = tilings[axis].form.outputs, tilings[axis].window.outputs
        always = outputs % m or m
        for number in range(m):
            further = offset + number * strides[axis]
            inside = [] if number < always else [f"if t{axis} * {m} + {number} < {outputs}:"]
            with text.script.nested(*inside):
                at(axis + 1, further, (*place, number))

    at(0, 0, ())


class _Text:
    """The text of a transform while it is written."""

    def __init__(self, dtype: str, channels: int, blocks: Blocks) -> None:
        self.script = Script()
        self.dtype = dtype
        self.channels = channels
        self.blocks = blocks
        most = min(channels, blocks.vector_bytes // size_bytes(dtype))
        self.lanes = 1 << (most.bit_length() - 1)
        self._names = 0

    @contextmanager
    def tiles(self, method: Winograd, given: str, found: str) -> Generator[None]:
        """For every tile x of the block: its sample n, and its place t0, t1 ... in each window."""
        blocks, script = self.blocks, self.script
        script.line(HEADER)
        at = buffer(AT, 1, "int32")
        with script.nested(f"def main({given}, {at}, {found}):"):
            script.line('T.func_attr({"tirx.noalias": True, "global_symbol": "main"})')
            chunks = max(1, min(blocks.threads, blocks.size))
            kind = "parallel" if chunks > 1 else "serial"
            with script.nested(f"for chunk in T.{kind}({chunks}):"):
                first, end = (
                    f"({part}) * {blocks.size} // {chunks}" for part in ("chunk", "chunk + 1")
                )
                last = f"{blocks.tiles} - {AT}[0] * {blocks.size}"
                end = f"T.max({first}, T.min({end}, {last}))" if blocks.tiles % blocks.size else end
                with script.nested(f"for x in T.serial({first}, {end}):"):
                    script.line(f"tile: T.let = {AT}[0] * {blocks.size} + x")
                    inside = blocks.tiles
                    for name, count in self._counts(method):
                        inside //= count
                        script.line(f"{name}: T.let = tile // {inside} % {count}")
                    yield

    @staticmethod
    def _counts(method: Winograd) -> list[tuple[str, int]]:
        conv = method.convolution
        tilings = [(f"t{n}", tiling.count) for n, tiling in enumerate(method.tilings)]
        return [("n", conv.size(conv.samples)), *tilings]

    @contextmanager
    def vectors(self, groups: int) -> Generator[None]:
        """For every vector of channels, which begins at c; the last one ends with the channels."""
        count = -(-self.channels // self.lanes)
        with self.script.nested(
            f"for g in T.serial({groups}):", f"for vector in T.serial({count}):"
        ):
            start = f"vector * {self.lanes}"
            if self.channels % self.lanes:
                start = f"T.min({start}, {self.channels - self.lanes})"
            self.script.line(f"c: T.let = {start}")
            yield

    def element(self, name: str, index: str) -> str:
        return (
            f"{name}[{index}]" if self.lanes == 1 else f"{name}[T.Ramp({index}, 1, {self.lanes})]"
        )

    def let(self, value: str) -> str:
        self._names += 1
        self.script.line(f"v{self._names}: T.let = {value}")
        return f"v{self._names}"

    def constant(self, value: Fraction) -> str:
        text = f"T.{self.dtype}({float(value)!r})"
        return text if self.lanes == 1 else f"T.Broadcast({text}, {self.lanes})"

    def applied(self, matrix: Matrix, values: Mapping[Place, str], axis: int) -> dict[Place, str]:
        """A matrix along an axis of the places."""
        code = straight_line(matrix)
        found: dict[Place, str] = {}
        lines = {(*place[:axis], *place[axis + 1 :]): None for place in values}
        for rest in lines:
            row = [values[(*rest[:axis], number, *rest[axis:])] for number in range(code.inputs)]
            results = code.computed(row, self._sum)
            for number, result in enumerate(results):
                name = self.constant(Fraction(0)) if result is None else result
                found[(*rest[:axis], number, *rest[axis:])] = name
        return found

    def _sum(self, step: Step, known: list[str]) -> str:
        (factor, first), *others = step.terms
        total = known[first] if factor == 1 else f"{self.constant(factor)} * {known[first]}"
        for other, number in others:
            if abs(other) == 1:
                total = f"{total} {'+' if other > 0 else '-'} {known[number]}"
            else:
                total = f"T.fma({self.constant(other)}, {known[number]}, {total})"
        return self.let(total)


def _places(method: Winograd) -> list[Place]:
    return list(
        itertools.product(*(range(tiling.form.multiplications) for tiling in method.tilings))
    )


def _strides(shape: Sequence[int]) -> list[int]:
    return [math.prod(shape[n + 1 :]) for n in range(len(shape))]


def _sum(terms: Sequence[tuple[str, int]]) -> str:
    return " + ".join(f"{name} * {step}" for name, step in terms)
