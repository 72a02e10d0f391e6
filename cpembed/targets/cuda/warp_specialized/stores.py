"""Results that TMA stores, as TensorIR.

A warp applies the epilogue to the sums of a box in its registers and writes the results to shared
memory, in the order that the map's swizzle prescribes and that keeps banks apart: 16-bit results by
``stmatrix``, words in pairs. One lane then has the box copied, and waits before the buffer is
written again.
"""

from __future__ import annotations

from cpembed.ir.dtypes import size_bytes
from cpembed.targets.cuda.epilogue import ResultVector, write_results
from cpembed.targets.cuda.results import Strip
from cpembed.targets.cuda.tma.stores import StoreView
from cpembed.targets.cuda.warp_specialized.layouts import CHUNK, PATTERN_ROWS
from cpembed.targets.cuda.warp_specialized.loads import map_name
from cpembed.targets.cuda.warp_specialized.schedule import SpecializedPlan
from cpembed.targets.cuda.writer import (
    Writer,
    index_script,
    register_pointer,
    shared_pointer,
    tile_values,
)

TILE_SUMS = 4
"""Number of a lane's sums in an instruction tile's 16 rows: two neighbours in each of two rows."""


class BoxStores:
    """Writer of a warp's stores by TMA.

    The script has the variables ``stage``, the byte at which the warp's buffers begin, and
    ``lane``.

    Parameters
    ----------
    writer : Writer
    plan : SpecializedPlan
        Plan of the kernel, with stores by TMA.
    strip : Strip
        Rows and columns of the box ``strip``.
    """

    def __init__(self, writer: Writer, plan: SpecializedPlan, strip: Strip) -> None:
        assert plan.store is not None
        self.writer, self.script, self.plan = writer, writer.script, plan
        self.strip, self.product, self.image = strip, plan.product, plan.store_image
        self.view: StoreView = plan.store
        self.halves = size_bytes(self.product.output_dtype) == 2

    def locate(self) -> None:
        """Write ``box_place``, the byte of a lane's first results in the first buffer."""
        chunks = self.image.span // CHUNK
        if self.halves:
            # The lanes of four matrices of eight rows, of two tiles.
            place = self.image.place("lane % 16", "lane // 16")
        else:
            # Half of the rows that a warp writes at a time begin with the other half of the tiles,
            # or their pairs would lie in the same banks.
            place = self.image.place("lane // 4", "lane % 4 // 2")
            if chunks > 2:
                rows = PATTERN_ROWS // chunks
                self.script.line(f"exchanged = lane // {4 * rows} % 2")
                place = f"T.bitwise_xor({place}, exchanged * {chunks // 2 * CHUNK})"
            place += " + lane % 2 * 8"
        self.script.line(f"box_place = stage + {place}")

    def store(self, sums: str) -> None:
        """Write the store of the box ``strip``.

        Parameters
        ----------
        sums : str
            Array of all sums, or of those of the strip alone: ``total``.
        """
        with self.script.nested("if lane == 0:"):
            self.writer.call(f"cpembed_bulk_wait_read_{self.plan.schedule.store_buffers - 1}")
        self.writer.warp_barrier()
        registers = self.view.tiles * self.product.instruction.registers[2]
        first = f"strip * {registers}" if sums == "sums" else "0"
        array = sums
        if self.product.epilogue is not None:
            (array,) = write_results(self.writer, self.product, self._vector(sums, first))
            first = "0"
        if self.halves:
            self._stage_matrices(array, first)
        else:
            self._stage_pairs(array, first)
        # What all lanes wrote is visible to the copy that one of them issues behind the barrier.
        self.writer.call("cpembed_proxy_fence")
        self.writer.warp_barrier()
        with self.script.nested("if lane == 0:"):
            self._issue()

    @property
    def _buffer(self) -> str:
        """Expression of the distance of the box's buffer from the first one."""
        return f"strip % {self.plan.schedule.store_buffers} * {self.image.content_bytes}"

    def _vector(self, sums: str, first: str) -> ResultVector:
        """Return a lane's sums of the box, tile by tile."""
        product = self.product
        _, _, columns, _ = product.tiles
        block = self.plan.schedule.block[1] * self.plan.schedule.cluster[1]

        def channel(number: int) -> str:
            assert product.channels is not None
            tile, column = number // TILE_SUMS, number % 2
            values = self._values(f"{self.strip.column_tile} + {tile}")
            values[product.axes[1]] = f"lane % 4 * 2 + {column}"
            index = index_script(product.channels, values, product.program.extents)
            count = product.channel_count
            # Blocks may go on beyond the result.
            if columns % block == 0 and columns * product.instruction.n == count:
                return index
            return f"T.min({index}, {count - 1})"

        length = self.view.tiles * TILE_SUMS
        return ResultVector(
            sums=sums, length=length, first=first, channel=channel, residual=lambda _: "0"
        )

    def _values(self, column_tile: str) -> dict[str, str]:
        """Return all iterators at the first row of the box and a tile of columns."""
        values = tile_values(self.product, self.strip.row_tile, column_tile)
        return values | {self.product.axes[0]: self.strip.first_row}

    def _stage_matrices(self, array: str, first: str) -> None:
        """Write 16-bit results, two tiles at a time, of which a lane has four words."""
        with self.script.nested(f"for pair in T.unroll({self.view.tiles // 2}):"):
            is_packed = array != "result" and self.product.sums == "float16"
            words = f"pair * {TILE_SUMS if is_packed else 2 * TILE_SUMS}"
            self.writer.call(
                "cpembed_stmatrix_x4",
                shared_pointer(f"T.bitwise_xor(box_place, pair * {2 * CHUNK}) + {self._buffer}"),
                register_pointer(array, f"{first} + {words}"),
            )

    def _stage_pairs(self, array: str, first: str) -> None:
        """Write results of 32 bits, two neighbours at a time."""
        tiles, dtype = self.view.tiles, self.product.output_dtype
        exchanges = tiles > 1
        if exchanges:
            self.script.line(f'words = T.alloc_buffer((2,), "{dtype}", scope="local")')
        for tile in range(tiles):
            for half in range(2):
                source, place = array, f"{first} + {tile * TILE_SUMS + half * 2}"
                if exchanges:
                    partner = f"{first} + {(tile ^ tiles // 2) * TILE_SUMS + half * 2}"
                    for n in range(2):
                        value = f"{array}[{partner} + {n}], {array}[{place} + {n}]"
                        self.script.line(f"words[{n}] = T.Select(exchanged == 1, {value})")
                    source, place = "words", "0"
                moved = f"T.bitwise_xor(box_place, {tile * 2 * CHUNK})"
                row = half * PATTERN_ROWS * self.image.span
                self.writer.call(
                    "cpembed_shared_store_8",
                    shared_pointer(f"{moved} + {self._buffer} + {row}"),
                    register_pointer(source, place),
                )

    def _issue(self) -> None:
        """Write the copy of the box, unless it is beyond the result, as a group of its own."""
        product, tiles = self.product, (self.strip.row_tile, self.strip.column_tile)
        _, rows, columns, _ = product.tiles
        values, extents = self._values(self.strip.column_tile), product.program.extents
        inside = f"{tiles[0]} < {rows} and {tiles[1]} < {columns}"
        with self.script.nested(f"if {inside}:"):
            coordinates = [index_script(index, values, extents) for index in self.view.coordinates]
            self.writer.call(
                f"cpembed_tensor_store_{len(coordinates)}d",
                f"T.address_of({map_name('C')})",
                *coordinates,
                shared_pointer(f"stage + {self._buffer}"),
            )
        self.writer.call("cpembed_bulk_commit")

    def finish(self) -> None:
        """Write the wait for the last stores, behind which shared memory may be given back."""
        with self.script.nested("if lane == 0:"):
            self.writer.call("cpembed_bulk_wait_read_0")
