"""AMX tile registers: what each of the eight holds, and the configuration that says so."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from cpembed.codegen.nest import KernelOperand, Nest
from cpembed.errors import LoweringError
from cpembed.targets.cpu.register_blocks import LaneRoles, digits
from cpembed.transform.program import Loop

TILES = 8
MAX_ROWS = 16
ROW_BYTES = 64


def fits(rows: int, columns: int) -> bool:
    """Whether a block of accumulators leaves tiles for the shorter side and one of the longer."""
    return rows * columns + min(rows, columns) + 1 <= TILES


@dataclass(frozen=True)
class TileGrid:
    """The tiles of a register block and the geometry of one of each kind.

    ``*_offsets`` are element offsets from a task's first tile to each tile; ``*_stride`` are
    elements from row to row of a tile (0: the same row again); ``group`` is how many depth steps
    share a word of B.
    """

    rows: int
    columns: int
    depth: int
    group: int
    a_offsets: tuple[int, ...]
    b_offsets: tuple[int, ...]
    c_offsets: tuple[tuple[int, ...], ...]
    a_stride: int
    b_stride: int
    c_stride: int

    @property
    def element_bytes(self) -> int:
        return 4 // self.group

    @property
    def row_tiles(self) -> int:
        return len(self.a_offsets)

    @property
    def column_tiles(self) -> int:
        return len(self.b_offsets)

    def accumulator(self, row: int, column: int) -> int:
        return row * self.column_tiles + column

    @property
    def rows_resident(self) -> bool:
        """Whether the tiles of A stay loaded while those of B pass by, or the reverse."""
        return self.row_tiles <= self.column_tiles

    def a_tile(self, row: int) -> int:
        return self._operand_tile(row, resident=self.rows_resident)

    def b_tile(self, column: int) -> int:
        return self._operand_tile(column, resident=not self.rows_resident)

    def _operand_tile(self, number: int, *, resident: bool) -> int:
        first = self.row_tiles * self.column_tiles
        if resident:
            return first + number
        first += min(self.row_tiles, self.column_tiles)
        return first + number % (TILES - first)

    def configuration(self) -> bytes:
        """The 64 bytes of ``ldtilecfg``: palette 1, bytes per row and rows of each tile."""
        shapes: dict[int, tuple[int, int]] = {}
        for row, column in itertools.product(range(self.row_tiles), range(self.column_tiles)):
            shapes[self.accumulator(row, column)] = (self.rows, self.columns * 4)
        for row in range(self.row_tiles):
            shapes[self.a_tile(row)] = (self.rows, self.depth * self.element_bytes)
        for column in range(self.column_tiles):
            shapes[self.b_tile(column)] = (self.depth // self.group, self.columns * 4)
        data = bytearray(64)
        data[0] = 1
        for tile, (rows, row_bytes) in shapes.items():
            data[16 + 2 * tile : 18 + 2 * tile] = row_bytes.to_bytes(2, "little")
            data[48 + tile] = rows
        return bytes(data)


def tile_grid(nest: Nest, roles: LaneRoles, group: int, depth_used: int) -> TileGrid:
    """Geometry of a blocked nest whose lanes are split into digits; tiles hold the first
    ``depth_used`` steps of the depth, beyond which all products are zero.

    Raises :class:`LoweringError` where a layout is not rows at one distance.
    """
    first, second, output = nest.operands
    rows, columns, depth = (
        digits(nest, roles.row),
        digits(nest, roles.column),
        digits(nest, roles.depth),
    )
    extents = [math.prod(loop.extent for loop in loops) for loops in (rows, columns, depth)]
    if (
        extents[0] > MAX_ROWS
        or extents[1] * 4 > ROW_BYTES
        or extents[2] * 4 // group > ROW_BYTES
        or extents[2] % group
    ):
        raise LoweringError(f"a tile of {extents[0]}x{extents[1]}x{extents[2]} is beyond AMX")
    within, outside = depth_parts(depth, group)
    _expect(first, depth, 1, "depth")
    _expect(second, within, 1, "depth within a word")
    _expect(second, columns, group, "columns")
    _expect(output, columns, 1, "columns")
    steps = [loop for loop in nest.inner if loop.name.endswith("_step")]
    row_steps = [loop for loop in steps if first.stride(loop.name)]
    column_steps = [loop for loop in steps if not first.stride(loop.name)]
    output_rows = offsets(output, row_steps)
    c_stride = uniform_stride(output, rows, "rows")
    if extents[0] > 1 and abs(c_stride) < extents[1]:
        raise LoweringError("the rows of the output overlap")
    return TileGrid(
        rows=extents[0],
        columns=extents[1],
        depth=min(extents[2], depth_used),
        group=group,
        a_offsets=offsets(first, row_steps),
        b_offsets=offsets(second, column_steps),
        c_offsets=tuple(
            tuple(row + column for column in offsets(output, column_steps)) for row in output_rows
        ),
        a_stride=uniform_stride(first, rows, "rows"),
        b_stride=uniform_stride(second, outside, "depth"),
        c_stride=c_stride,
    )


def depth_parts(depth: Sequence[Loop], group: int) -> tuple[list[Loop], list[Loop]]:
    """Depth digits inside and outside a 32-bit word of B."""
    inside: list[Loop] = []
    size = 1
    for loop in reversed(depth):
        if size < group:
            inside.insert(0, loop)
        size *= loop.extent
    return inside, [loop for loop in depth if loop not in inside]


def offsets(operand: KernelOperand, steps: Sequence[Loop]) -> tuple[int, ...]:
    """Element offsets over the points of the steps, first step outermost."""
    names = {loop.name for loop in steps}
    if any(names & set(t.iterators) and not t.is_affine for t in operand.access.terms):
        raise LoweringError(f"the tiles of operand {operand.parameter} lie at no constant distance")
    points = itertools.product(*(range(loop.extent) for loop in steps))
    strides = [operand.stride(loop.name) for loop in steps]
    return tuple(sum(i * s for i, s in zip(point, strides, strict=True)) for point in points)


def uniform_stride(operand: KernelOperand, loops: Sequence[Loop], what: str) -> int:
    """The distance between consecutive points of digits, outermost first; 0 for one point."""
    distance: int | None = None
    size = 1
    for loop in reversed([loop for loop in loops if loop.extent > 1]):
        stride = operand.stride(loop.name)
        if distance is None:
            distance = stride
        elif stride != distance * size:
            raise LoweringError(
                f"the {what} of operand {operand.parameter} lie at no constant distance"
            )
        size *= loop.extent
    if distance is not None and distance < 0:
        raise LoweringError(f"the {what} of operand {operand.parameter} run backwards")
    return distance or 0


def _expect(operand: KernelOperand, loops: Sequence[Loop], stride: int, what: str) -> None:
    found = uniform_stride(operand, loops, what)
    if any(loop.extent > 1 for loop in loops) and found != stride:
        raise LoweringError(
            f"AMX needs the {what} of operand {operand.parameter} at stride {stride}, not {found}"
        )
