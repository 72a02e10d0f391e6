"""Kernel of attention on integers: a block of rows with all of its keys at a time.

A weight is rounded to an integer once its row's maximum and sum are known, so that no tile of keys
can be finished before the last one. Sums of 32 bits, scores and weights of a block stay in cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from cpembed.codegen.approximations import exp_below
from cpembed.codegen.plan import storage_dtype
from cpembed.codegen.scalar_text import ScalarWriter
from cpembed.codegen.values import (
    Value,
    clamped,
    converted,
    literal,
    load_as,
    nan_to_zero,
    round_to_even,
    whole_cast,
)
from cpembed.graph.kinds import Elementwise, QuantizedAttention
from cpembed.graph.passes.quantized_attention import expressions_of_sums
from cpembed.ir.index import row_major_strides
from cpembed.network.operators.attention_softmax import (
    LOWEST,
    MAXIMUM_LANES,
    POWER_LANES,
    added,
    larger,
    vectors,
)
from cpembed.network.operators.attention_tiles import TileProduct, Tiles
from cpembed.network.operators.emission import LANE, Operands, combined_lanes, vector_size
from cpembed.network.operators.tiled_kernel import AttentionPlan, TiledKernel

_FAR = 2.0**23
"""Limit of rounded weights before their zero point is added, whose sum is exact below."""


@dataclass(frozen=True)
class Broadcast:
    """Axes of a tensor that elementwise operators combine with sums.

    Attributes
    ----------
    letters : tuple of str
        Letter of :class:`~cpembed.network.operators.attention_tiles.Tiles` of each axis of the
        result that the tensor broadcasts to; empty for axes of one element.
    """

    letters: tuple[str, ...]

    def place(self, shape: Sequence[int], indices: Mapping[str, str]) -> str:
        """Return the place of an element of a tensor that broadcasts.

        >>> Broadcast(("b", "h", "s", "n")).place((1, 1, 1, 8), {"n": "j"})
        'j'
        """
        letters = self.letters[len(self.letters) - len(shape) :]
        steps = zip(letters, shape, row_major_strides(shape), strict=True)
        terms = [
            indices[letter] if step == 1 else f"({indices[letter]}) * {step}"
            for letter, size, step in steps
            if size > 1
        ]
        return " + ".join(terms) or "0"


@dataclass(frozen=True)
class Broadcasts:
    """Axes of the scores and of the result, by letter."""

    scores: Broadcast
    result: Broadcast


def quantized_attention_plan(
    kind: QuantizedAttention,
    operands: Operands,
    tiles: Tiles,
    products: tuple[TileProduct, TileProduct],
    broadcasts: Broadcasts,
) -> AttentionPlan:
    """Return the kernel of an attention on integers.

    Parameters
    ----------
    kind : QuantizedAttention
    operands : Operands
    tiles : Tiles
        Blocks of rows, with one tile of all keys.
    products : tuple of two TileProduct
        Products ``S = Q K^T`` and ``Y = P V`` of a block.
    broadcasts : Broadcasts
    """
    return _QuantizedKernel(kind, operands, tiles, products, broadcasts).written()


class _QuantizedKernel(TiledKernel):
    """Text of an attention on integers while it is written."""

    def __init__(
        self,
        kind: QuantizedAttention,
        operands: Operands,
        tiles: Tiles,
        products: tuple[TileProduct, TileProduct],
        broadcasts: Broadcasts,
    ) -> None:
        super().__init__(operands, tiles, products)
        self.kind, self.broadcasts = kind, broadcasts
        self.scaling, self.result = expressions_of_sums(kind)

    def _own_buffers(self) -> Iterator[tuple[str, int, str, int]]:
        tiles = self.tiles
        scores = tiles.rows * tiles.keys
        yield "S", scores, "int32", self.chunks
        yield "F", scores, "float32", self.chunks
        yield "P", scores, storage_dtype(self.kind.weights.dtype), self.chunks
        yield "Y", tiles.rows * tiles.extents["d"], "int32", self.chunks
        yield "totals", tiles.rows, "int32", self.chunks

    # --------------------------------------------------------------------------------- tasks

    def _write_task(self) -> None:
        self._write_block("task")
        self.kernel.script.line("first_key: T.let = 0")
        self._write_query_packing()
        self._write_product(0, "P")
        for row in self._each_row():
            self._write_scores(row)
            self._write_weights(row, self._maximum(row))
        self._write_product(1, "P")
        for row in self._each_row("block_start - first_row"):
            self._write_result(row)

    def _element(self, buffer: str, row: str, width: int, at: str) -> str:
        return f"{buffer}[{self._start(buffer)} + {row} * {width} + {at}]"

    def _indices(self, row: str, key: str, column: str) -> dict[str, str]:
        """Return the index along each axis, by letter."""
        return {
            "b": "batch",
            "h": "query_head",
            "s": f"first_row + {row}",
            "n": key,
            "d": column,
        }

    def _computed(
        self,
        kind: Elementwise,
        sums: Sequence[str],
        first: int,
        places: tuple[Broadcast, Mapping[str, str]],
    ) -> Value:
        """Write an elementwise operator on sums and the kernel's inputs from ``first`` on.

        Parameters
        ----------
        kind : Elementwise
        sums : sequence of str
            Elements of sums of 32 bits, its first inputs.
        first : int
            Number of the kernel's input that follows them.
        places : tuple of Broadcast and mapping
            Axes of the result, and the index along each.
        """
        broadcast, indices = places
        computing = kind.computing or "float32"
        bind = self.kernel.bind
        values = {
            number: Value(bind(load_as(text, "int32", computing)), computing)
            for number, text in enumerate(sums)
        }
        count = self.kind.masks if kind is self.scaling else len(self.operands.inputs) - first
        for number in range(count):
            tensor = self.operands.inputs[first + number]
            dtype = "bool" if tensor.dtype == "bool" else computing
            element = f"in{first + number}[{broadcast.place(tensor.shape, indices)}]"
            text = load_as(element, tensor.dtype, dtype)
            value = Value(text if dtype == "bool" else bind(text), dtype)
            values[len(sums) + number] = value
        return ScalarWriter(self.kernel, computing).value(kind.expression, values)

    # ------------------------------------------------------------------------------- softmax

    def _write_scores(self, row: str) -> None:
        """Write the scores of a row from its sums, in a loop that LLVM vectorizes."""
        script, keys = self.kernel.script, self.tiles.keys
        with script.nested(f"for key in T.serial({keys}):"):
            sums = [self._element("S", row, keys, "key")]
            indices = self._indices(row, "key", "0")
            places = (self.broadcasts.scores, indices)
            value = self._computed(self.scaling, sums, 3, places)
            text = converted(self.kernel.bind, value, "float32")
            script.line(f"{self._element('F', row, keys, 'key')} = {text}")

    def _maximum(self, row: str) -> str:
        """Write the maximum of a row's scores, without NaN, and return it."""
        kernel, keys = self.kernel, self.tiles.keys
        lanes = vector_size(keys, MAXIMUM_LANES)
        top = kernel.accumulators(lanes, "float32", LOWEST)
        for at, size in vectors(kernel, keys, lanes):
            with kernel.vectorized(size):
                score = self._element("F", row, keys, f"{at} + {LANE}")
                kernel.script.line(f"{top}[{LANE}] = T.max({score}, {top}[{LANE}])")
        return kernel.opaque(combined_lanes(kernel, top, lanes, "float32", larger), "float32")

    def _write_weights(self, row: str, largest: str) -> None:
        """Write the rounded weights of a row, and their sum."""
        kernel, script, keys = self.kernel, self.kernel.script, self.tiles.keys
        lanes = vector_size(keys, POWER_LANES)
        total = kernel.accumulators(lanes, "float32", "T.float32(0)")
        for at, size in vectors(kernel, keys, lanes):
            with kernel.vectorized(size):
                place = self._element("F", row, keys, f"{at} + {LANE}")
                # Of an infinite maximum differences are NaN, and so are all weights, as defined.
                power = exp_below(kernel.bind, kernel.bind(f"{place} - {largest}"))
                script.line(f"{place} = {power}")
                script.line(f"{total}[{LANE}] = {total}[{LANE}] + {power}")
        summed = kernel.opaque(combined_lanes(kernel, total, lanes, "float32", added), "float32")
        counted = kernel.accumulators(lanes, "int32", "0")
        for at, size in vectors(kernel, keys, lanes):
            with kernel.vectorized(size):
                power = self._element("F", row, keys, f"{at} + {LANE}")
                # Quotients, as the definition has them: of equal scores they are equal bit for bit.
                weight = kernel.bind(self._quantized(f"{power} / {summed}"))
                script.line(f"{self._element('P', row, keys, f'{at} + {LANE}')} = {weight}")
                if self.kind.weight_sums is not None:
                    addend = f'T.cast({weight}, "int32")'
                    script.line(f"{counted}[{LANE}] = {counted}[{LANE}] + {addend}")
        if self.kind.weight_sums is not None:
            place = f"totals[{self._start('totals')} + {row}]"
            script.line(f"{place} = {combined_lanes(kernel, counted, lanes, 'int32', added)}")

    def _quantized(self, share: str) -> str:
        """Write a weight's rounding to an integer, and return it."""
        kind, bind = self.kind.weights, self.kernel.bind
        scale, zero = (
            literal(float(number[0]), "float32") for number in (kind.scale, kind.zero_point)
        )
        rounded = bind(round_to_even(f"{bind(share)} / {scale}"))
        near = bind(clamped(rounded, "float32", -_FAR, _FAR))
        near = nan_to_zero(bind, f"{near} + {zero}", "float32")
        low, high = (-128, 127) if kind.dtype == "int8" else (0, 255)
        return whole_cast(clamped(near, "float32", low, high), kind.dtype)

    # ------------------------------------------------------------------------------- results

    def _write_result(self, row: str) -> None:
        """Write a row of the result from its sums."""
        script, depth = self.kernel.script, self.tiles.extents["d"]
        output = self.operands.outputs[0]
        with script.nested(f"for column in T.serial({depth}):"):
            sums = [self._element("Y", row, depth, "column")]
            if self.kind.weight_sums is not None:
                sums.append(f"totals[{self._start('totals')} + {row}]")
            places = (self.broadcasts.result, self._indices(row, "0", "column"))
            value = self._computed(self.result, sums, 3 + self.kind.masks, places)
            text = converted(self.kernel.bind, value, output.dtype)
            place = self._row_place("O", f"first_row + {row}")
            script.line(f"out0[{place} + column * {self.tiles.strides['O']['d']}] = {text}")
