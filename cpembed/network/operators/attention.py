"""Kernel of attention in tiles: the softmax between the two products of a target's instruction.

A task computes a block of rows of one head. For each tile of keys it multiplies query and key,
takes the powers of the scores, and adds the product with the values: with the maximum and the sum
so far, by which earlier results are scaled where the maximum rises. Products are kernels of tiles,
functions of addresses that the text calls; what a tile needs stays in memory of the thread.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager

import numpy as np

from cpembed.codegen.plan import storage_dtype
from cpembed.codegen.prefetch import request_line
from cpembed.codegen.values import Value, converted
from cpembed.graph.kinds import Attention
from cpembed.network.operators.attention_softmax import LOWEST, STATISTICS, TileSoftmax, vectors
from cpembed.network.operators.attention_tiles import TileProduct, Tiles
from cpembed.network.operators.emission import LANE, Operands, chunk_bounds
from cpembed.network.operators.tiled_kernel import AttentionPlan, TiledKernel, identifier

_LINE_BYTES = 64
_LANES = 32
"""Maximum number of elements per vector of sums."""


def attention_plan(
    kind: Attention, operands: Operands, tiles: Tiles, scores: TileProduct, values: TileProduct
) -> AttentionPlan:
    """Return the kernel of an attention.

    Parameters
    ----------
    kind : Attention
    operands : Operands
    tiles : Tiles
    scores : TileProduct
        Product ``S = Q K^T`` of a block of rows and a tile of keys.
    values : TileProduct
        Product ``Y = S V`` of a tile.
    """
    return _AttentionKernel(kind, operands, tiles, (scores, values)).written()


class _AttentionKernel(TiledKernel):
    """Text of an attention while it is written."""

    def __init__(
        self,
        kind: Attention,
        operands: Operands,
        tiles: Tiles,
        products: tuple[TileProduct, TileProduct],
    ) -> None:
        super().__init__(operands, tiles, products)
        self.kind = kind
        mask = operands.inputs[3] if kind.masked else None
        self.softmax = TileSoftmax(self.kernel, kind, tiles, mask, self._start)

    # -------------------------------------------------------------------------------- memory

    def _own_buffers(self) -> Iterator[tuple[str, int, str, int]]:
        tiles, depth = self.tiles, self.tiles.extents["d"]
        for name, elements in (
            ("S", tiles.rows * tiles.keys),
            ("Y", tiles.rows * depth),
            ("statistics", STATISTICS * tiles.rows),
            *([("sums", tiles.rows * depth)] if tiles.tiles > 1 else []),
        ):
            copies = tiles.tasks if name in self._partial else self.chunks
            yield name, elements, "float32", copies
        if self.softmax.weights != "S":
            dtype = storage_dtype(self.kind.factors)
            yield self.softmax.weights, tiles.rows * tiles.keys, dtype, self.chunks

    @property
    def _partial(self) -> tuple[str, ...]:
        """Buffers that hold the results of a part of the keys until all are combined."""
        return ("statistics", "sums") if self.tiles.parts > 1 else ()

    def _start(self, name: str) -> str:
        """Return the first place of the thread's or the task's part of a buffer."""
        if name in self._partial:
            return f"task * {self.scratch[identifier(name)].elements // self.tiles.tasks}"
        return super()._start(name)

    # --------------------------------------------------------------------------------- tasks

    def _write_task(self) -> None:
        script, tiles = self.kernel.script, self.tiles
        self._write_block("task" if tiles.parts == 1 else f"(task // {tiles.parts})")
        self._write_query_packing()
        if tiles.tiles > 1:
            self._clear()
            with script.nested(f"for tile in T.serial({self._tile_range()}):"):
                script.line(f"first_key: T.let = {self._first_key('tile')}")
                condition = self.softmax.any_visible()
                with script.nested(*([f"if {condition}:"] if condition else [])):
                    self._write_tile()
        else:
            script.line("first_key: T.let = 0")
            self._write_tile()
        if tiles.parts == 1:
            self._write_results()

    def _tile_range(self) -> str:
        """Return the limits of the tiles of a task."""
        count, parts = self._tile_count(), self.tiles.parts
        if parts == 1:
            return f"0, {count}"
        return f"task % {parts} * {count} // {parts}, (task % {parts} + 1) * {count} // {parts}"

    def _tile_count(self) -> str:
        """Return the number of tiles that the rows of a block have keys in."""
        tiles, causal = self.tiles, self.kind.causal
        if causal is None or tiles.row_axis == "h":
            return str(tiles.tiles)
        # The last row has the most keys.
        keys = f"first_row + {tiles.rows + causal}"
        return f"T.max(0, T.min({tiles.tiles}, ({keys} + {tiles.keys - 1}) // {tiles.keys}))"

    def _clear(self) -> None:
        """Write the start of the sums and statistics of rows."""
        tiles = self.tiles
        for row in self._each_row():
            self.kernel.script.line(f"{self.softmax.statistic(0, row)} = {LOWEST}")
            self.kernel.script.line(f"{self.softmax.statistic(1, row)} = T.float32(0)")
            for at, size in vectors(self.kernel, tiles.extents["d"], _LANES):
                with self.kernel.vectorized(size):
                    place = self._place("sums", row, tiles.extents["d"], at)
                    self.kernel.script.line(f"{place} = T.float32(0)")

    # --------------------------------------------------------------------------------- tiles

    def _write_tile(self) -> None:
        tiles = self.tiles
        # Values come while scores are computed, and the next keys while values are multiplied.
        self._request("V", "first_key")
        self._write_product(0, self.softmax.weights)
        self.softmax.write()
        self._request("K", f"T.min(first_key + {tiles.keys}, {tiles.extents['n'] - tiles.keys})")
        self._write_product(1, self.softmax.weights)
        if tiles.tiles == 1:
            return
        depth = tiles.extents["d"]
        for row in self._each_row():
            for at, size in vectors(self.kernel, depth, _LANES):
                with self.kernel.vectorized(size):
                    total = self._place("sums", row, depth, at)
                    added = self._place("Y", row, depth, at)
                    scaled = f"{total} * {self.softmax.statistic(2, row)}"
                    self.kernel.script.line(f"{total} = {scaled} + {added}")

    def _request(self, name: str, first: str) -> None:
        """Write requests of the lines of a tile's keys or values, if they are read once."""
        tiles, script, number = self.tiles, self.kernel.script, "QKV".index(name)
        steps = tiles.strides[name]
        itemsize = np.dtype(self.operands.inputs[number].storage_dtype).itemsize
        if not tiles.streams or steps["d"] != 1:
            return
        depth = tiles.extents["k" if name == "K" else "d"]
        line = _LINE_BYTES // itemsize
        with script.nested(
            f"for key in T.serial({tiles.keys}):", f"for line in T.serial({-(-depth // line)}):"
        ):
            place = f"batch * {steps['b']} + head * {steps['h']} + ({first} + key) * {steps['s']}"
            request_line(script, f"in{number}", f"{place} + line * {line}")

    # ------------------------------------------------------------------------------- results

    def _write_results(self) -> None:
        """Write the quotients of a block's rows, except those of the previous block."""
        tiles, depth = self.tiles, self.tiles.extents["d"]
        sums = "sums" if tiles.tiles > 1 else "Y"
        for row in self._each_row("block_start - first_row"):
            total = self.kernel.opaque(self.softmax.statistic(1, row), "float32")
            with self._quotient(total) as quotient:
                for at, size in vectors(self.kernel, depth, _LANES):
                    with self.kernel.vectorized(size):
                        self._store(row, at, quotient(self._place(sums, row, depth, at)))

    @contextmanager
    def _quotient(self, total: str) -> Generator[Callable[[str], str]]:
        """Yield a function from the text of a sum to that of its quotient by a total."""
        share = self.kernel.opaque(f"T.float32(1) / {total}", "float32")
        empty = "T.float32(0)" if self.kind.zero_rows else 'T.float32("nan")'
        yield lambda value: f"T.Select({total} == T.float32(0), {empty}, {value} * {share})"

    def _store(self, row: str, at: str, value: str) -> None:
        place = self._row_place("O", f"first_row + {row}")
        step = self.tiles.strides["O"]["d"]
        rounded = Value(self.kernel.bind(value), "float32")
        value = converted(self.kernel.bind, rounded, self.kind.dtype)
        self.kernel.script.line(f"out0[{place} + ({at} + {LANE}) * {step}] = {value}")

    def _write_end(self) -> None:
        """Write the results of all blocks from those of parts of their keys."""
        if self.tiles.parts == 1:
            return
        kernel, script, tiles = self.kernel, self.kernel.script, self.tiles
        depth, count = tiles.extents["d"], tiles.all_blocks
        chunks = min(self.operands.threads, count)
        bounds = ", ".join(chunk_bounds(count, chunks))
        with script.nested(
            f"for chunk in T.parallel({chunks}):", f"for block in T.serial({bounds}):"
        ):
            self._write_block("block")
            for row in self._each_row("block_start - first_row"):
                total = self._weigh_parts(row)
                with self._quotient(total) as quotient:
                    for at, size in vectors(kernel, depth, _LANES):
                        combined = kernel.accumulators(size, "float32", "T.float32(0)")
                        with self._each_part(), kernel.vectorized(size):
                            weighted = f"{self._place('sums', row, depth, at)} * "
                            weighted += self.softmax.statistic(0, row)
                            script.line(f"{combined}[{LANE}] = {combined}[{LANE}] + {weighted}")
                        with kernel.vectorized(size):
                            self._store(row, at, quotient(f"{combined}[{LANE}]"))

    @contextmanager
    def _each_part(self) -> Generator[None]:
        """Write a loop over the parts of a block, whose tasks have their results."""
        parts = self.tiles.parts
        with self.kernel.script.nested(f"for part in T.serial({parts}):"):
            self.kernel.script.line(f"task: T.let = block * {parts} + part")
            yield

    def _weigh_parts(self, row: str) -> str:
        """Replace the maximum of a row in each part by its weight, and return the sum of all."""
        kernel, script = self.kernel, self.kernel.script
        largest = kernel.accumulators(1, "float32", LOWEST)
        with self._each_part():
            maximum = self.softmax.statistic(0, row)
            script.line(f"{largest}[0] = T.max({maximum}, {largest}[0])")
        centre = kernel.opaque(
            f"T.Select({largest}[0] == {LOWEST}, T.float32(0), {largest}[0])", "float32"
        )
        total = kernel.accumulators(1, "float32", "T.float32(0)")
        with self._each_part():
            maximum = self.softmax.statistic(0, row)
            weight = self.softmax.power(maximum, centre)
            script.line(f"{maximum} = {weight}")
            script.line(f"{total}[0] = {total}[0] + {self.softmax.statistic(1, row)} * {weight}")
        return f"{total}[0]"
