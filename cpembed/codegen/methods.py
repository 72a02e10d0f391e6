"""Kernels of Winograd's transforms.

They walk the tiles of one block, whose number they read from a buffer of one element, and in a tile
vectors of channels: all places of the tile in one channel are the same lane of as many vectors. V
is ``[e, g, x, c]`` and M ``[e, g, x, k]``, with x over the tiles of a block.

A padded image has no special tiles. Of an image in its own layout, those pixels are tested that lie
beyond its halo in some tile. Outputs are written where they exist, through an epilogue if there is
one. Integers are computed in the types of V and M, which hold every value: pixels are converted on
the way in, and results divided by the scale on the way out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction

from cpembed.codegen.epilogue import Epilogue
from cpembed.codegen.epilogue_text import result_text
from cpembed.codegen.instruction import vector_parameter
from cpembed.codegen.method_layouts import ImageTiles, TensorMemory
from cpembed.codegen.plan import KernelPlan, Script, buffer
from cpembed.ir.dtypes import is_integer, size_bytes
from cpembed.ir.index import row_major_strides
from cpembed.transform.methods.cook_toom import Matrix, Step, straight_line
from cpembed.transform.methods.winograd import Tiling, Winograd

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


# -------------------------------------------------------------------------------------- transforms


def image_transform(
    method: Winograd, blocks: TileBlocks, image: ImageTiles | None = None
) -> KernelPlan:
    """Plan ``main(Image, At, V)``: the tiles of a block.

    Parameters
    ----------
    method : Winograd
        Method.
    blocks : TileBlocks
        Blocks of its tiles.
    image : ImageTiles, optional
        Image in memory; by default padded, with its channels last.
    """
    conv, tilings = method.convolution, method.tilings
    image = image or ImageTiles.of_padded(method)
    groups, channels = conv.size(conv.groups), conv.size(conv.channels)
    depth = method.product.extents["c"]
    text = _Text(method.product.operand("V").dtype, channels, blocks)
    v = buffer("V", method.places * groups * blocks.size * depth, text.dtype)
    source = buffer("Image", image.memory.elements, conv.image.dtype)
    with text.tiles(method, [source], v):
        for number, piece in enumerate(_points([t.pieces for t in tilings])):
            reads = _Reads.of_piece(tilings, image, piece)
            conditions = {key: text.bound(test) for key, test in reads.tests()}
            with text.vectors(groups):
                text.script.line(f"base: T.let = {reads.base(image)}")
                values = {
                    place: text.bound(text.pixel(image, conv.image.dtype, place, conditions))
                    for place in _places(method)
                }
                for axis, tiling in enumerate(tilings):
                    values = text.applied(tiling.form.input, values, axis)
                first = _sum([("g", blocks.size * depth), ("x", depth)])
                text.script.line(f"to: T.let = {first} + {number * channels} + c")
                for e, place in enumerate(_places(method)):
                    target = f"to + {e * groups * blocks.size * depth}"
                    text.script.line(f"{text.element('V', target)} = {values[place]}")
    return KernelPlan("winograd.image", text.script.text())


@dataclass(frozen=True)
class _Reads:
    """Pixels of a tile under a piece of the filter, by window.

    ``first`` is the first pixel of the first tile, and there are ``counts`` tiles of ``sizes``
    pixels, ``steps`` apart. Pixels ``inside`` exist.
    """

    first: tuple[int, ...]
    steps: tuple[int, ...]
    counts: tuple[int, ...]
    sizes: tuple[int, ...]
    inside: tuple[tuple[int, int], ...]

    @classmethod
    def of_piece(cls, tilings: Sequence[Tiling], image: ImageTiles, piece: Place) -> _Reads:
        first = tuple(
            begin + tiling.form.taps * number
            for begin, tiling, number in zip(image.first, tilings, piece, strict=True)
        )
        counts = tuple(tiling.count for tiling in tilings)
        sizes = tuple(tiling.form.multiplications for tiling in tilings)
        return cls(first, image.steps, counts, sizes, image.inside)

    def tests(self) -> Iterator[tuple[tuple[int, int], str]]:
        """Yield tests whether a tile's pixel exists, by window and place, where a tile lacks it."""
        for axis, (low, high) in enumerate(self.inside):
            step, last_tile = self.steps[axis], self.steps[axis] * (self.counts[axis] - 1)
            for place in range(self.sizes[axis]):
                pixel = self.first[axis] + place
                index = f"t{axis} * {step} + {pixel}"
                tests = [f"{index} >= {low}"] if pixel < low else []
                tests += [f"{index} < {high}"] if pixel + last_tile >= high else []
                if tests:
                    yield (axis, place), " and ".join(tests)

    def base(self, image: ImageTiles) -> str:
        """Return the position of the tile's first pixel, which may lie outside of the buffer."""
        memory = image.memory
        pixels = sum(p * stride for p, stride in zip(self.first, memory.pixels, strict=True))
        windows = [
            (f"t{n}", step * stride)
            for n, (step, stride) in enumerate(zip(self.steps, memory.pixels, strict=True))
        ]
        terms = [("g", memory.group), ("n", memory.sample), *windows]
        return f"{_sum(terms)} + {memory.offset + pixels} + {memory.channel('c')}"


def weights_transform(method: Winograd) -> KernelPlan:
    """Plan ``main(Weights, U)``: all filters, in float64, rounded once.

    Weights are ``[g, c, taps of each window, k]``.
    """
    conv, tilings = method.convolution, method.tilings
    groups, channels, filters = (
        conv.size(part) for part in (conv.groups, conv.channels, conv.filters)
    )
    transformed_dtype, depth = method.product.operand("U").dtype, method.product.extents["c"]
    shape = groups, channels, *(t.pieces * t.form.taps for t in tilings), filters
    strides = row_major_strides(shape)
    text = _Text("float64", filters, TileBlocks(1, 1))
    weights = buffer("Weights", math.prod(shape), conv.weights.dtype)
    transformed = buffer("U", method.places * groups * depth * filters, transformed_dtype)
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
                    values[place] = text.bound(f'T.cast({element}, "float64")')
                for axis, tiling in enumerate(tilings):
                    values = text.applied(tiling.form.filter, values, axis)
                first = _sum([("g", depth * filters), ("channel", filters)])
                script.line(f"to: T.let = {first} + {number * channels * filters} + c")
                for e, place in enumerate(_places(method)):
                    target = text.element("U", f"to + {e * groups * depth * filters}")
                    script.line(f'{target} = T.cast({values[place]}, "{transformed_dtype}")')
    return KernelPlan("winograd.weights", script.text())


@dataclass(frozen=True)
class OutputMemory:
    """Memory in which a method stores its results, through an epilogue.

    Attributes
    ----------
    memory : TensorMemory
        Memory of the output.
    epilogue : Epilogue, optional
        Steps between the sums and the output; the sums are stored if there is none.
    residual : TensorMemory, optional
        Memory of the tensor that the epilogue adds.
    """

    memory: TensorMemory
    epilogue: Epilogue | None = None
    residual: TensorMemory | None = None


def output_transform(
    method: Winograd, blocks: TileBlocks, output: OutputMemory | None = None
) -> KernelPlan:
    """Plan ``main(M, At, [Bias,] [Scale,] [Residual,] Found)``: a block's outputs that exist.

    Parameters
    ----------
    method : Winograd
        Method.
    blocks : TileBlocks
        Blocks of its tiles.
    output : OutputMemory, optional
        Output in memory; by default with its channels last, and without an epilogue.
    """
    conv, tilings = method.convolution, method.tilings
    groups, filters = conv.size(conv.groups), conv.size(conv.filters)
    if output is None:
        sizes = [tiling.window.outputs for tiling in tilings]
        samples = conv.size(conv.samples)
        output = OutputMemory(TensorMemory.channels_last(groups, samples, sizes, filters))
    epilogue, sums = output.epilogue, conv.output.dtype
    text = _Text(method.product.operand("M").dtype, filters, blocks)
    parameters = [buffer("M", method.places * groups * blocks.size * filters, text.dtype)]
    further: list[str] = []
    if epilogue is not None:
        further += [
            buffer(vector_parameter(name), groups * filters, epilogue.vector_dtype(name, sums))
            for name in epilogue.vectors
        ]
    if output.residual is not None:
        assert epilogue is not None
        assert epilogue.residual is not None
        further.append(buffer("Residual", output.residual.elements, epilogue.residual.dtype))
    stored = sums if epilogue is None else epilogue.dtype
    result = buffer("Found", output.memory.elements, stored)
    with text.tiles(method, parameters, *further, result), text.vectors(groups):
        first = _sum([("g", blocks.size * filters), ("x", filters)])
        text.script.line(f"base: T.let = {first} + c")
        values = {
            place: text.bound(text.element("M", f"base + {e * groups * blocks.size * filters}"))
            for e, place in enumerate(_places(method))
        }
        # Axis by axis, since a nested transform is the product of the transforms of its windows.
        for axis, tiling in enumerate(tilings):
            values = text.applied(tiling.form.output, values, axis)
        values = {place: text.sum(value, method) for place, value in values.items()}
        text.script.line(f"to: T.let = {_begin(tilings, output.memory)}")
        if output.residual is not None:
            text.script.line(f"addend: T.let = {_begin(tilings, output.residual)}")
        text.script.line(f"channel: T.let = g * {filters} + c")
        _store(text, tilings, values, output, sums)
    return KernelPlan("winograd.output", text.script.text())


def _begin(tilings: Sequence[Tiling], memory: TensorMemory) -> str:
    """Return the position of a tile's first output."""
    windows = [(f"t{n}", t.form.outputs * memory.pixels[n]) for n, t in enumerate(tilings)]
    terms = _sum([("g", memory.group), ("n", memory.sample), *windows])
    return f"{terms} + {memory.offset} + {memory.channel('c')}"


def _store(
    text: _Text,
    tilings: Sequence[Tiling],
    values: Mapping[Place, str],
    output: OutputMemory,
    sums: str,
) -> None:
    """Write the outputs of a tile that exist: the last tile of a window may have fewer.

    Parameters
    ----------
    text : _Text
    tilings : sequence of Tiling
    values : mapping from tuple of int to str
        Sums of a tile by position, of type ``sums``.
    output : OutputMemory
    sums : str
    """

    def store(axis: int, place: Place) -> None:
        if axis == len(tilings):
            offset = _distance(place, output.memory)
            target = text.element("Found", f"to + {offset}")
            text.script.line(f"{target} = {text.stored(values[place], sums, output, place)}")
            return
        m, outputs = tilings[axis].form.outputs, tilings[axis].window.outputs
        # So many outputs the last tile has as well; only those after them need a condition.
        always = outputs % m or m
        for number in range(m):
            inside = [] if number < always else [f"if t{axis} * {m} + {number} < {outputs}:"]
            with text.script.nested(*inside):
                store(axis + 1, (*place, number))

    store(0, ())


def _distance(place: Place, memory: TensorMemory) -> int:
    """Return the distance of a pixel or output from the first one of its tile."""
    return sum(p * stride for p, stride in zip(place, memory.pixels, strict=True))


class _Text:
    """Text of a transform while it is written."""

    def __init__(self, dtype: str, channels: int, blocks: TileBlocks) -> None:
        self.script = Script()
        self.dtype = dtype
        self.channels = channels
        self.blocks = blocks
        most = min(channels, blocks.vector_bytes // size_bytes(dtype))
        self.lanes = 1 << (most.bit_length() - 1)  # a power of two
        # Threads that have no tiles of a small block share the channels of those that there are.
        self.chunks = max(1, min(blocks.threads, blocks.size))
        self.parts = max(1, min(blocks.threads // self.chunks, self.vector_count))
        self._names = 0

    @property
    def vector_count(self) -> int:
        """Number of vectors of the channels of a group."""
        return -(-self.channels // self.lanes)

    @contextmanager
    def tiles(self, method: Winograd, sources: Sequence[str], *targets: str) -> Generator[None]:
        """Write the loop over every tile x of the block.

        It binds the tile's sample n, and its position t0, t1 ... in each window. Of the function's
        parameters ``sources`` come before the number of the block, ``targets`` after it.
        """
        blocks, script, conv = self.blocks, self.script, method.convolution
        counts = [("n", conv.size(conv.samples))]
        counts += [(f"t{n}", tiling.count) for n, tiling in enumerate(method.tilings)]
        chunks, parts = self.chunks, self.parts
        kind = "parallel" if chunks * parts > 1 else "serial"
        with (
            script.function((*sources, buffer(AT, 1, "int32"), *targets)),
            script.nested(f"for task in T.{kind}({chunks * parts}):"),
        ):
            script.line(f"chunk: T.let = task // {parts}")
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
        """Write the loop over vectors of channels, and over the lanes of one.

        The last vector ends with the channels.
        """
        count, parts = self.vector_count, self.parts
        bounds = f"0, {count}"
        if parts > 1:
            bounds = (
                f"task % {parts} * {count} // {parts}, (task % {parts} + 1) * {count} // {parts}"
            )
        with self.script.nested(
            f"for g in T.serial({groups}):", f"for vector in T.serial({bounds}):"
        ):
            start = f"vector * {self.lanes}"
            # The last vector is moved back: it computes some channels again, with equal results.
            if self.channels % self.lanes:
                start = f"T.min({start}, {self.channels - self.lanes})"
            lanes = [f"for lane in T.vectorized({self.lanes}):"] if self.lanes > 1 else []
            self.script.line(f"c: T.let = {start}")
            with self.script.nested(*lanes):
                yield

    def element(self, name: str, index: str) -> str:
        return f"{name}[{index}]" if self.lanes == 1 else f"{name}[{index} + lane]"

    def bound(self, value: str) -> str:
        """Bind a value and return the variable's name."""
        self._names += 1
        self.script.line(f"v{self._names}: T.let = {value}")
        return f"v{self._names}"

    def pixel(
        self,
        image: ImageTiles,
        dtype: str,
        place: Place,
        conditions: Mapping[tuple[int, int], str],
    ) -> str:
        """Return a pixel of a tile in the type of the sums, or the padding where there is none.

        Parameters
        ----------
        image : ImageTiles
        dtype : str
            Type of its pixels.
        place : tuple of int
            Position of the pixel in the tile.
        conditions : mapping of (int, int) to str
            Tests by window and position.
        """
        value = self.element("Image", f"base + {_distance(place, image.memory)}")
        if dtype != self.dtype:
            value = f'T.cast({value}, "{self.dtype}")'
        tests = [conditions[key] for key in enumerate(place) if key in conditions]
        if not tests:
            return value
        padding = self.constant(Fraction(image.padding))
        return f"T.if_then_else({' and '.join(tests)}, {value}, {padding})"

    def sum(self, value: str, method: Winograd) -> str:
        """Return a result in the type of the convolution's sums, without the method's scale."""
        scale, sums = method.scale, method.convolution.output.dtype
        if scale > 1:
            # Results are multiples of it, so that no bits are lost.
            shift = scale.bit_length() - 1
            is_shift = scale == 1 << shift
            divided = "T.shift_right" if is_shift else "T.truncdiv"
            value = f"{divided}({value}, T.{self.dtype}({shift if is_shift else scale}))"
        return self.bound(value if sums == self.dtype else f'T.cast({value}, "{sums}")')

    def stored(self, value: str, sums: str, output: OutputMemory, place: Place) -> str:
        """Return the expression that an epilogue stores for a sum.

        Parameters
        ----------
        value, sums : str
            Sum and its type.
        output : OutputMemory
        place : tuple of int
            Position of the output in its tile.
        """
        if output.epilogue is None:
            return value
        channel = "channel" if self.lanes == 1 else "channel + lane"
        addend = ""
        if output.residual is not None:
            addend = self.element("Residual", f"addend + {_distance(place, output.residual)}")
        return result_text(output.epilogue, value, sums, channel, addend)

    def constant(self, value: Fraction) -> str:
        number = int(value) if is_integer(self.dtype) else float(value)
        return f"T.{self.dtype}({number!r})"

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
            elif is_integer(self.dtype):
                total = f"{total} + {self.constant(weight)} * {values[number]}"
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


def _sum(terms: Sequence[tuple[str, int]]) -> str:
    return " + ".join(f"{name} * {step}" for name, step in terms)
