"""Kernels of weight-only products: packed weights streamed once and unpacked in registers.

Few rows of activations are bound by memory: each thread reads its tiles of weights from the first
word to the last, and a group's scale is applied to its sums when the group is complete. For many
rows, a slab of weights is dequantized into a buffer that the nearest cache holds, and all rows are
multiplied by it in blocks of registers.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from cpembed.codegen.plan import KernelPlan
from cpembed.codegen.values import literal
from cpembed.graph.kinds.grouped import TILE, GroupedFormat, GroupedGather, GroupedProduct
from cpembed.network.operators.emission import LANE, SERIAL, VECTORIZED, Kernel, Operands
from cpembed.network.operators.grouped_instruction import float_lanes

FEW_ROWS = 4
"""Maximum number of rows of activations that share a stream of weights in registers."""

_SLAB = 128
"""Maximum number of columns of a slab: 16 KiB of floats, half of a first-level cache."""

# Rows of a block of registers. Of 16 registers of 8 lanes, 12 hold the sums of 6 rows and half a
# tile; of 32 registers of 16 lanes, 24 those of 12 rows and a tile.
_BLOCK_ROWS, _WIDE_BLOCK_ROWS, _WIDE_LANES = 6, 12, 16


@dataclass(frozen=True)
class Weights:
    """Packed weights of a kernel, as texts of values of a tile.

    Attributes
    ----------
    form : GroupedFormat
    number : int
        Input that has the words; scales and zero points follow it.
    zero : float
        Zero point where none follow.
    has_zeros : bool
    scale_dtype, zero_dtype : str
        Element types of scales and zero points.
    """

    form: GroupedFormat
    number: int
    zero: float
    has_zeros: bool
    scale_dtype: str
    zero_dtype: str = "float32"

    @classmethod
    def of_inputs(
        cls, kind: GroupedProduct | GroupedGather, number: int, operands: Operands
    ) -> Weights:
        """Return the weights whose words are input ``number`` of a kernel."""
        parameters = operands.inputs[number + 1 : number + 2 + kind.has_zeros]
        dtypes = [tensor.dtype for tensor in parameters]
        return cls(kind.weights, number, kind.zero, kind.has_zeros, dtypes[0], dtypes[-1])

    @property
    def is_centred(self) -> bool:
        """True if the zero point is the middle of the codes, which are integers with a sign."""
        return not self.has_zeros and self.zero == 2 ** (self.form.bits - 1)

    def place(self, group: str, number: str, lane: str) -> str:
        """Return the text of a word's place: its group, its number there, its row in the tile."""
        words = self.form.words
        return f"((tile * {self.form.groups} + {group}) * {words} + {number}) * {TILE} + {lane}"

    def word(self, group: str, number: str, lane: str) -> str:
        """Return the text of a word at a :meth:`place`."""
        return f"in{self.number}[{self.place(group, number, lane)}]"

    def _parameter(self, number: int, group: str, lane: str, dtype: str) -> str:
        text = f"in{number}[(tile * {self.form.groups} + {group}) * {TILE} + {lane}]"
        return text if dtype == "float32" else f'T.cast({text}, "float32")'

    def scale(self, group: str, lane: str) -> str:
        """Return the text of a group's scale for a row of the tile."""
        return self._parameter(self.number + 1, group, lane, self.scale_dtype)

    def zero_point(self, group: str, lane: str) -> str:
        """Return the text of a group's zero point for a row of the tile."""
        if not self.has_zeros:
            return literal(self.zero, "float32")
        return self._parameter(self.number + 2, group, lane, self.zero_dtype)

    def centred(self, word: str, inside: int, zero: str) -> str:
        """Return the text of a weight without its zero point, as a float.

        Parameters
        ----------
        word : str
            Text of the word.
        inside : int
            Column in the word.
        zero : str
            Text of the zero point.
        """
        bits, (_, bit) = self.form.bits, self.form.place(inside)
        if self.is_centred:
            # With its highest bit flipped, a code is the weight in two's complement.
            flipped = f"T.bitwise_xor({word}, T.int32({_repeated(1 << (bits - 1), bits)}))"
            left = 32 - bits - bit
            shifted = f"T.shift_left({flipped}, T.int32({left}))" if left else flipped
            return f'T.cast(T.shift_right({shifted}, T.int32({32 - bits})), "float32")'
        shifted = f"T.shift_right({word}, T.int32({bit}))" if bit else word
        code = f'T.cast(T.bitwise_and({shifted}, T.int32({2**bits - 1})), "float32")'
        return code if not self.has_zeros and not self.zero else f"({code} - {zero})"


def _repeated(code: int, bits: int) -> int:
    """Return a word of equal codes, as int32.

    >>> hex(_repeated(8, 4) & 0xFFFFFFFF)
    '0x88888888'
    """
    word = sum(code << bit for bit in range(0, 32, bits))
    return word - (1 << 32) if word >> 31 else word


def over_words(
    kernel: Kernel, form: GroupedFormat, count: int, write: Callable[[str, int], None]
) -> None:
    """Write a loop over the complete words of some columns, then the rest of them.

    Parameters
    ----------
    kernel : Kernel
    form : GroupedFormat
    count : int
        Number of columns.
    write : callable
        Writes the statements of a word from its number and the number of its columns.
    """
    _over_parts(kernel, "word", count, form.codes_per_word, write)


def over_groups(kernel: Kernel, form: GroupedFormat, write: Callable[[str, int], None]) -> None:
    """Write a loop over the complete groups of a row, then the last one if it has fewer columns.

    Parameters
    ----------
    kernel : Kernel
    form : GroupedFormat
    write : callable
        Writes the statements of a group from its number and the number of its columns.
    """
    _over_parts(kernel, "group", form.columns, form.block, write)


def _over_parts(
    kernel: Kernel, name: str, columns: int, size: int, write: Callable[[str, int], None]
) -> None:
    complete, rest = divmod(columns, size)
    if complete:
        with kernel.script.nested(f"for {name} in T.serial({complete}):"):
            write(name, size)
    if rest:
        write(str(complete), rest)


def rows_from(first: str, count: int) -> list[str]:
    """Return the texts of some rows of activations, whose sums are computed together."""
    return [f"({first} + {number})" for number in range(count)]


class ProductText:
    """Text of the kernel of a grouped product."""

    def __init__(self, kind: GroupedProduct, operands: Operands) -> None:
        self.kind, self.form = kind, kind.weights
        words = operands.inputs[kind.leading]
        # The time of a byte of weights grows with the rows that it is multiplied by.
        chunks = operands.chunks(max(1, kind.rows), [words])
        self.kernel = Kernel(operands, min(chunks, self.form.tiles))
        self.weights = Weights.of_inputs(kind, kind.leading, operands)
        self.bias = f"in{len(operands.inputs) - 1}" if kind.has_bias else None

    def write(self, tile: Callable[[int], None]) -> KernelPlan:
        """Return the kernel; ``tile`` writes the work of a tile with so many rows of weights."""
        form, kernel, script = self.form, self.kernel, self.kernel.script
        complete, rest = divmod(form.rows, TILE)
        with kernel.body():
            if complete:
                with script.nested(f"for tile in T.serial({kernel.share(complete)}):"):
                    tile(TILE)
            if rest:
                # The first chunk's share is never the larger one.
                with script.nested("if chunk == 0:"):
                    script.line(f"tile: T.let = T.int32({complete})")
                    tile(rest)
        return kernel.plan("grouped")

    def result(self, row: str, lane: str) -> str:
        """Return the text of a result."""
        return f"out0[{row} * {self.form.rows} + tile * {TILE} + {lane}]"

    def initial(self, lane: str) -> str:
        """Return the text of a bias, or 0."""
        return f"{self.bias}[tile * {TILE} + {lane}]" if self.bias else literal(0, "float32")

    def write_initial(self, count: int) -> None:
        """Write the results of a tile without any product; ``count`` rows of weights exist."""
        with (
            self.kernel.script.nested(f"for row in T.serial({self.kind.rows}):"),
            self.kernel.vectorized(count, _loop(count, TILE)),
        ):
            self.kernel.script.line(f"{self.result('row', LANE)} = {self.initial(LANE)}")

    def row_blocks(self, most: int) -> Iterator[list[str]]:
        """Write loops over blocks of at most so many rows; yield the rows of each inside."""
        complete, rest = divmod(self.kind.rows, most)
        if complete:
            with self.kernel.script.nested(f"for block in T.serial({complete}):"):
                yield rows_from(f"block * {most}", most)
        if rest:
            yield rows_from(str(complete * most), rest)

    @contextmanager
    def added_to(
        self, rows: Sequence[str], first: int, lanes: int, stored: int
    ) -> Generator[list[str]]:
        """Write loads of results before what is written inside this context, stores behind it.

        Parameters
        ----------
        rows : sequence of str
            Texts of rows of activations.
        first, lanes, stored : int
            First row of weights in the tile, number of them, and number of those that exist.

        Yields
        ------
        list of str
            Names of the results in registers, for each row of activations.
        """
        names = [self.kernel.registers(lanes, "float32") for _ in rows]
        pairs = [
            (f"{name}[{LANE}]", self.result(row, f"{first} + {LANE}"))
            for name, row in zip(names, rows, strict=True)
        ]
        for name, result in pairs:
            with self.kernel.vectorized(stored, _loop(stored, lanes)):
                self.kernel.script.line(f"{name} = {result}")
        yield names
        for name, result in pairs:
            with self.kernel.vectorized(stored, _loop(stored, lanes)):
                self.kernel.script.line(f"{result} = {name}")

    def multiply_add(self, target: str, value: str, factor: str, lanes: int) -> None:
        """Write the addition of products of a vector's elements to another vector.

        Parameters
        ----------
        target : str
            Name of the sums, at the first lane.
        value, factor : str
            Texts of the factors of a lane.
        lanes : int
        """
        with self.kernel.vectorized(lanes):
            self.kernel.script.line(f"{target} = {target} + {value} * {factor}")


def _loop(stored: int, lanes: int) -> str:
    """Return the kind of a loop over rows of weights; those behind the last have no results."""
    return VECTORIZED if stored == lanes else SERIAL


# ------------------------------------------------------------------------------------- few rows


def streaming_plan(kind: GroupedProduct, operands: Operands) -> KernelPlan:
    """Return the kernel of few rows of floats, whose sums stay in registers."""
    text = ProductText(kind, operands)
    # The sums of more rows of a complete tile would not fit into 16 registers.
    lanes = TILE if kind.rows <= 2 else TILE // 2

    def tile(count: int) -> None:
        for first in range(0, count, lanes):
            _streamed(text, first, lanes, min(lanes, count - first))

    return text.write(tile)


def _streamed(text: ProductText, first: int, lanes: int, stored: int) -> None:
    """Write the results of ``lanes`` rows of weights, of which some are stored."""
    kernel, form, weights = text.kernel, text.form, text.weights
    script, rows, lane = kernel.script, range(text.kind.rows), f"{first} + {LANE}"
    zero = literal(0, "float32")
    totals = [kernel.registers(lanes, "float32", zero) for _ in rows]

    def group(number: str, count: int) -> None:
        sums = [kernel.registers(lanes, "float32", zero) for _ in rows]
        value = kernel.registers(lanes, "float32")
        subtracted = weights.zero_point(number, lane)

        def word(place: str, columns: int) -> None:
            for inside in range(columns):
                with kernel.vectorized(lanes):
                    unpacked = weights.centred(
                        weights.word(number, place, lane), inside, subtracted
                    )
                    script.line(f"{value}[{LANE}] = {unpacked}")
                column = f"{number} * {form.block} + {place} * {form.codes_per_word} + {inside}"
                for row in rows:
                    factor = f"in0[{row * form.columns} + {column}]"
                    text.multiply_add(f"{sums[row]}[{LANE}]", f"{value}[{LANE}]", factor, lanes)

        over_words(kernel, form, count, word)
        for row in rows:
            scale = weights.scale(number, lane)
            text.multiply_add(f"{totals[row]}[{LANE}]", f"{sums[row]}[{LANE}]", scale, lanes)

    over_groups(kernel, form, group)
    store(text, totals, first, lanes, stored)


def store(text: ProductText, totals: Sequence[str], first: int, lanes: int, stored: int) -> None:
    """Write the stores of the totals of rows of activations, with the bias added.

    Parameters
    ----------
    text : ProductText
    totals : sequence of str
        Names of the totals, for each row.
    first, lanes : int
        First row of weights in the tile, and number of them.
    stored : int
        Number of those that exist.
    """
    for row, total in enumerate(totals):
        with text.kernel.vectorized(stored, _loop(stored, lanes)):
            value = f"{total}[{LANE}]"
            if text.bias:
                value += f" + {text.initial(f'{first} + {LANE}')}"
            text.kernel.script.line(f"{text.result(str(row), f'{first} + {LANE}')} = {value}")


# ------------------------------------------------------------------------------------ many rows


def tiled_plan(kind: GroupedProduct, operands: Operands) -> KernelPlan:
    """Return the kernel of many rows of floats, which dequantizes slabs of weights."""
    text = ProductText(kind, operands)
    kernel, form = text.kernel, text.form
    script = kernel.script
    # A slab is several groups, or a part of one in complete words.
    longest = max(1, _SLAB // form.codes_per_word) * form.codes_per_word
    several = max(1, longest // form.block)

    def tile(count: int) -> None:
        slab = kernel.local(
            max(several * form.block, min(longest, form.padded_block)) * TILE, "float32"
        )
        text.write_initial(count)

        def group(number: str, columns: int) -> None:
            for start in range(0, columns, longest):
                size = min(longest, columns - start)
                _dequantize(text, slab, _Part(number, start, size))
                _multiply(text, slab, f"{number} * {form.block} + {start}", size, count)

        complete = form.columns // form.block
        if several == 1:
            over_groups(kernel, form, group)
            return
        slabs = complete // several
        if slabs:
            with script.nested(f"for slab in T.serial({slabs}):"):
                with script.nested(f"for inner in T.serial({several}):"):
                    part = _Part(f"(slab * {several} + inner)", 0, form.block)
                    _dequantize(text, slab, part, f"inner * {form.block}")
                columns = several * form.block
                _multiply(text, slab, f"slab * {columns}", columns, count)
        for number in range(slabs * several, form.groups):
            group(str(number), form.columns_of(number))

    return text.write(tile)


@dataclass(frozen=True)
class _Part:
    """Columns of a group: its number, the first of them, which begins a word, and their number."""

    group: str
    start: int
    count: int


def _dequantize(text: ProductText, slab: str, part: _Part, column: str = "0") -> None:
    """Write the dequantization of a part of a group to a slab, from a column of the slab on."""
    kernel, form, weights = text.kernel, text.form, text.weights
    per_word = form.codes_per_word
    zero, scale = (f(part.group, LANE) for f in (weights.zero_point, weights.scale))

    def word(place: str, columns: int) -> None:
        packed = weights.word(part.group, f"{place} + {part.start // per_word}", LANE)
        for inside in range(columns):
            with kernel.vectorized(TILE):
                value = f"{weights.centred(packed, inside, zero)} * {scale}"
                target = f"({column} + {place} * {per_word} + {inside}) * {TILE} + {LANE}"
                kernel.script.line(f"{slab}[{target}] = {value}")

    over_words(kernel, form, part.count, word)


def _multiply(text: ProductText, slab: str, first: str, columns: int, count: int) -> None:
    """Write the addition of all rows' products with a slab to the results.

    Parameters
    ----------
    text : ProductText
    slab : str
        Name of the slab.
    first : str
        Text of its first column.
    columns, count : int
        Number of its columns, and of the rows of weights that exist.
    """
    is_wide = float_lanes() >= _WIDE_LANES
    lanes, most = (TILE, _WIDE_BLOCK_ROWS) if is_wide else (TILE // 2, _BLOCK_ROWS)
    for start in range(0, count, lanes):
        for rows in text.row_blocks(most):
            with (
                text.added_to(rows, start, lanes, min(lanes, count - start)) as sums,
                text.kernel.script.nested(f"for column in T.serial({columns}):"),
            ):
                value = f"{slab}[column * {TILE} + {start} + {LANE}]"
                for row, name in zip(rows, sums, strict=True):
                    factor = f"in0[{row} * {text.form.columns} + {first} + column]"
                    text.multiply_add(f"{name}[{LANE}]", value, factor, lanes)


# -------------------------------------------------------------------------------------- the rest


def grouped_product_plan(kind: GroupedProduct, operands: Operands) -> KernelPlan:
    """Return the kernel of a product of floats and packed weights."""
    return (streaming_plan if kind.rows <= FEW_ROWS else tiled_plan)(kind, operands)


def grouped_gather_plan(kind: GroupedGather, operands: Operands) -> KernelPlan:
    """Return the kernel of a gather; indices out of range read the first or last row."""
    form, weights = kind.weights, Weights.of_inputs(kind, 0, operands)
    (output,), indices = operands.outputs, operands.inputs[-1]
    kernel = Kernel(operands, operands.chunks(4, [output, output]))
    script, place = kernel.script, f"in{len(operands.inputs) - 1}"
    count = indices.type.elements
    with (
        kernel.body(),
        script.nested(f"for item in T.serial({kernel.share(count)}):"),
    ):
        script.line(f'index: T.let = T.cast({place}[item], "int32")')
        wrapped = f"index + T.Select(index < 0, {form.rows}, 0)"
        script.line(f"clamped: T.let = T.max(0, T.min({form.rows - 1}, {wrapped}))")
        script.line(f"tile: T.let = clamped // {TILE}")
        script.line(f"row: T.let = clamped % {TILE}")

        def group(number: str, columns: int) -> None:
            scale = kernel.bind(weights.scale(number, "row"))
            zero = kernel.bind(weights.zero_point(number, "row"))

            def word(place: str, inner: int) -> None:
                text = kernel.bind(weights.word(number, place, "row"))
                for inside in range(inner):
                    column = f"{number} * {form.block} + {place} * {form.codes_per_word} + {inside}"
                    value = f"{weights.centred(text, inside, zero)} * {scale}"
                    script.line(f"out0[item * {form.columns} + {column}] = {value}")

            over_words(kernel, form, columns, word)

        over_groups(kernel, form, group)
    return kernel.plan("grouped_gather")
