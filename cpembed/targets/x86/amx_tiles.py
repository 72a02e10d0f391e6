"""AMX tensor intrinsics, generated for a nest: what the blocks of a task mean, and the code.

Each intrinsic covers a whole register block. Its description is the nest's own inner loops over
flat buffers, so whatever layout the program derived, TVM checks that the block it replaces is
exactly what the instructions do.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cpembed.codegen.emit import staged
from cpembed.codegen.instruction import (
    Intrinsic,
    element,
    loop_headers,
    update_statement,
    write_block,
)
from cpembed.codegen.nest import KernelOperand, Nest
from cpembed.codegen.plan import HEADER, Script, storage_dtype, zero
from cpembed.errors import LoweringError
from cpembed.ir.index import IndexExpr
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


def call(intrinsic: str, *arguments: str) -> str:
    """A call for its effect on the tile registers."""
    number = f'T.llvm_lookup_intrinsic_id("llvm.x86.{intrinsic}")'
    return f'T.evaluate(T.call_llvm_intrin({", ".join((number, *arguments))}, dtype="void"))'


def configuration_statements(grid: TileGrid) -> list[str]:
    """Load the tile configuration from the stack."""
    data = grid.configuration()
    words = [int.from_bytes(data[i : i + 8], "little", signed=True) for i in range(0, 64, 8)]
    return [
        'cfg = T.sblock_alloc_buffer((8,), "int64", scope="local")',
        *(f"cfg[{number}] = T.int64({word})" for number, word in enumerate(words)),
        call("ldtilecfg", "T.address_of(cfg[0])"),
    ]


def release_statements() -> list[str]:
    return [call("tilerelease")]


def init_intrinsic(nest: Nest, grid: TileGrid) -> Intrinsic:
    """Accumulator tiles to zero."""
    loops = nest.spatial_inner
    accumulator = f"acc[{nest.accumulator_access}]"
    statement = f"{accumulator} = {zero(nest.sums)}"
    tiles = range(grid.row_tiles * grid.column_tiles)
    return _intrinsic(
        nest, (), (), True, loops, statement, [call("tilezero", f"T.int8({t})") for t in tiles]
    )


def update_intrinsic(nest: Nest, grid: TileGrid, product: str) -> Intrinsic:
    """Load the block's tiles and multiply them; those of the non-temporal factor past the nearest
    cache (TILELOADDT1).
    """
    factors = [_inner_part(operand, nest) for operand in nest.operands[:2]]
    inner = replace(nest, operands=(*factors, nest.operands[2]))
    return _intrinsic(
        nest,
        factors,
        (),
        True,
        nest.inner,
        update_statement(inner),
        _products(grid, product, nest.non_temporal),
    )


def store_intrinsic(nest: Nest, grid: TileGrid) -> Intrinsic:
    """Accumulator tiles to the output, or to the local buffer of what an epilogue stores."""
    scope, nest = "local" if nest.epilogue else "", staged(nest)
    output = _inner_part(nest.operands[2], nest)
    stride = f"T.int64({grid.c_stride * 4})"
    statements = [
        call(
            "tilestored64",
            f"T.int8({grid.accumulator(row, column)})",
            f"T.address_of({output.parameter}[{offset}])",
            stride,
        )
        for row, offsets in enumerate(grid.c_offsets)
        for column, offset in enumerate(offsets)
    ]
    statement = f"{element(output)} = acc[{nest.accumulator_access}]"
    return _intrinsic(nest, (), (output,), False, nest.spatial_inner, statement, statements, scope)


def _products(grid: TileGrid, product: str, non_temporal: int | None) -> list[str]:
    """One side's tiles are loaded first and stay; each tile of the other side is loaded once and
    multiplied with all of them.
    """

    def load_a(row: int) -> str:
        stride = grid.a_stride * grid.element_bytes
        return _load(grid.a_tile(row), f"A[{grid.a_offsets[row]}]", stride, past=non_temporal == 0)

    def load_b(column: int) -> str:
        stride = grid.b_stride * grid.element_bytes
        return _load(
            grid.b_tile(column), f"B[{grid.b_offsets[column]}]", stride, past=non_temporal == 1
        )

    def multiply(row: int, column: int) -> str:
        tiles = (grid.accumulator(row, column), grid.a_tile(row), grid.b_tile(column))
        return call(product, *(f"T.int8({tile})" for tile in tiles))

    rows, columns = range(grid.row_tiles), range(grid.column_tiles)
    statements: list[str] = []
    if grid.rows_resident:
        statements += [load_a(row) for row in rows]
        for column in columns:
            statements += [load_b(column), *(multiply(row, column) for row in rows)]
    else:
        statements += [load_b(column) for column in columns]
        for row in rows:
            statements += [load_a(row), *(multiply(row, column) for column in columns)]
    return statements


def _load(tile: int, address: str, stride_bytes: int, *, past: bool) -> str:
    """``past``: with the hint that the data will not be needed again soon."""
    name = "tileloaddt164" if past else "tileloadd64"
    return call(name, f"T.int8({tile})", f"T.address_of({address})", f"T.int64({stride_bytes})")


def _inner_part(operand: KernelOperand, nest: Nest) -> KernelOperand:
    """The operand as a task's inner loops see it: from the task's first element, up to the last."""
    extents = {loop.name: loop.extent for loop in nest.inner}
    access = IndexExpr.sum([term for term in operand.access.terms if term.iterator in extents])
    return replace(operand, access=access, elements=access.bounds(extents)[1] + 1)


def _intrinsic(
    nest: Nest,
    reads: Sequence[KernelOperand],
    writes: Sequence[KernelOperand],
    accumulates: bool,
    loops: Sequence[Loop],
    statement: str,
    implementation: Sequence[str],
    scope: str = "",
) -> Intrinsic:
    """``accumulates`` says whether the accumulators are written; read they are unless the block
    only initialises them. ``scope`` is that of what is written beside them.
    """
    accumulator = f"acc[0:{nest.accumulators}]"
    read_regions = [f"{o.parameter}[0:{o.elements}]" for o in reads]
    if reads or not accumulates:
        read_regions.insert(0, accumulator)
    write_regions = [f"{o.parameter}[0:{o.elements}]" for o in writes]
    if accumulates:
        write_regions.insert(0, accumulator)
    dtype = storage_dtype(nest.sums)
    parameters = [
        *(_parameter(operand) for operand in reads),
        f'acc: T.Buffer(({nest.accumulators},), "{dtype}", offset_factor=1, scope="local")',
        *(_parameter(operand, scope) for operand in writes),
    ]

    def function(fill: bool) -> str:
        script = Script()
        script.line(HEADER)
        header = f"def intrinsic({', '.join(parameters)}):"
        with script.nested(header, 'with T.sblock("root"):'):
            script.line(f"T.reads({', '.join(read_regions)})")
            script.line(f"T.writes({', '.join(write_regions)})")
            if fill:
                for line in implementation:
                    script.line(line)
            else:
                with script.nested(*loop_headers(loops)):
                    write_block(script, "scalar", loops, statement)
        return script.text()

    return Intrinsic(function(fill=False), function(fill=True))


def _parameter(operand: KernelOperand, scope: str = "") -> str:
    dtype = storage_dtype(operand.dtype)
    where = f', scope="{scope}"' if scope else ""
    return (
        f'{operand.parameter}: T.Buffer(({operand.elements},), "{dtype}", offset_factor=1{where})'
    )
