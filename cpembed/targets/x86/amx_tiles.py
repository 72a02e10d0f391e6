"""Tensor intrinsics of AMX, generated for a nest: geometry of a task's tiles, and their code.

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

# Limits of palette 1, the only one that processors have so far.
TILES = 8
MAX_ROWS = 16
ROW_BYTES = 64


def fits(rows: int, columns: int) -> bool:
    """True if a block of accumulators leaves tiles for its shorter side and one of the longer."""
    return rows * columns + min(rows, columns) + 1 <= TILES


# ------------------------------------------------------------------------------ geometry


@dataclass(frozen=True, kw_only=True)
class TileGrid:
    """Tiles of a register block: their positions, and the geometry of one of each operand.

    ``rows``, ``columns`` and ``depth`` are the extents of a tile product, ``group`` the depth steps
    in a 32-bit word of B. Offsets are elements from a task's first tile of an operand to each tile
    (those of C by row and column), strides elements from one row of a tile to the next.
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

    # Accumulators have the lowest registers; the tiles of the shorter side follow, which stay
    # loaded for a step; those of the longer side take turns in the registers left.

    def accumulator(self, row: int, column: int) -> int:
        return row * self.column_tiles + column

    @property
    def rows_resident(self) -> bool:
        """True if the tiles of A stay loaded for a step, False if those of B do."""
        return self.row_tiles <= self.column_tiles

    def a_tile(self, row: int) -> int:
        return self._factor_tile(row, resident=self.rows_resident)

    def b_tile(self, column: int) -> int:
        return self._factor_tile(column, resident=not self.rows_resident)

    def _factor_tile(self, number: int, *, resident: bool) -> int:
        first = self.row_tiles * self.column_tiles
        if resident:
            return first + number
        first += min(self.row_tiles, self.column_tiles)
        return first + number % (TILES - first)

    def configuration(self) -> bytes:
        """Return the 64 bytes of LDTILECFG: palette 1, bytes per row and rows of each tile."""
        shapes: dict[int, tuple[int, int]] = {}
        for row, column in itertools.product(range(self.row_tiles), range(self.column_tiles)):
            shapes[self.accumulator(row, column)] = (self.rows, self.columns * 4)
        for row in range(self.row_tiles):
            shapes[self.a_tile(row)] = (self.rows, self.depth * self.element_bytes)
        for column in range(self.column_tiles):
            shapes[self.b_tile(column)] = (self.depth // self.group, self.columns * 4)
        data = bytearray(64)
        # Byte 0 is the palette; for each tile, two bytes from byte 16 on are the bytes per row, and
        # one from byte 48 on the rows.
        data[0] = 1
        for tile, (rows, row_bytes) in shapes.items():
            data[16 + 2 * tile : 18 + 2 * tile] = row_bytes.to_bytes(2, "little")
            data[48 + tile] = rows
        return bytes(data)


def tile_grid(nest: Nest, roles: LaneRoles, group: int, depth_used: int) -> TileGrid:
    """Return the geometry of a scheduled nest.

    Parameters
    ----------
    nest : Nest
        Nest with lanes in digits.
    roles : LaneRoles
        Roles of its lanes.
    group : int
        Number of depth steps in a 32-bit word of B.
    depth_used : int
        Number of depth steps that tiles hold; beyond these all products are zero.

    Raises
    ------
    LoweringError
        If the rows of a tile are not at a constant distance, or the tile is too large.
    """
    first, second, output = nest.operands
    rows, columns, depth = (digits(nest, lane) for lane in (roles.row, roles.column, roles.depth))
    height, width, length = (
        math.prod(loop.extent for loop in loops) for loops in (rows, columns, depth)
    )
    if height > MAX_ROWS or width * 4 > ROW_BYTES or length * 4 // group > ROW_BYTES:
        raise LoweringError(f"a tile of {height}x{width}x{length} is beyond AMX")
    if length % group:
        raise LoweringError(f"a depth of {length} does not fill words of {group} elements")
    word_loops, depth_rows = _split_at_words(depth, group)
    # Loads and stores take rows at any distance, but the elements of a row are neighbours.
    _require_stride(first, depth, 1, "depth")
    _require_stride(second, word_loops, 1, "depth within a word")
    _require_stride(second, columns, group, "columns")
    _require_stride(output, columns, 1, "columns")
    # Loops over the tiles of a register block.
    steps = [loop for loop in nest.inner if loop.name.endswith("_step")]
    row_steps = [loop for loop in steps if first.stride(loop.name)]
    column_steps = [loop for loop in steps if not first.stride(loop.name)]
    c_stride = _uniform_stride(output, rows, "rows")
    if height > 1 and abs(c_stride) < width:
        raise LoweringError("the rows of the output overlap")
    column_offsets = _offsets(output, column_steps)
    return TileGrid(
        rows=height,
        columns=width,
        # A shorter depth saves loads of rows of B that meet only padding.
        depth=min(length, depth_used),
        group=group,
        a_offsets=_offsets(first, row_steps),
        b_offsets=_offsets(second, column_steps),
        c_offsets=tuple(
            tuple(row + column for column in column_offsets) for row in _offsets(output, row_steps)
        ),
        a_stride=_uniform_stride(first, rows, "rows"),
        b_stride=_uniform_stride(second, depth_rows, "depth"),
        c_stride=c_stride,
    )


def _split_at_words(depth: Sequence[Loop], group: int) -> tuple[list[Loop], list[Loop]]:
    """Separate the depth digits inside a 32-bit word of B from those outside."""
    inside: list[Loop] = []
    size = 1
    for loop in reversed(depth):
        if size < group:
            inside.insert(0, loop)
        size *= loop.extent
    return inside, [loop for loop in depth if loop not in inside]


def _offsets(operand: KernelOperand, steps: Sequence[Loop]) -> tuple[int, ...]:
    """Return the element offsets of all points of the steps, the first step outermost."""
    # A term with a division or remainder moves the tiles by different amounts.
    names = {loop.name for loop in steps}
    if any(names & set(t.iterators) and not t.is_affine for t in operand.access.terms):
        raise LoweringError(f"the tiles of operand {operand.parameter} lie at no constant distance")
    points = itertools.product(*(range(loop.extent) for loop in steps))
    strides = [operand.stride(loop.name) for loop in steps]
    return tuple(sum(i * s for i, s in zip(point, strides, strict=True)) for point in points)


def _uniform_stride(operand: KernelOperand, loops: Sequence[Loop], subject: str) -> int:
    """Return the elements between consecutive points of digits, outermost first; 0 for one point.

    Raises :class:`LoweringError`, naming the ``subject``, if the distance is not constant.
    """
    distance: int | None = None
    size = 1
    for loop in reversed([loop for loop in loops if loop.extent > 1]):
        stride = operand.stride(loop.name)
        if distance is None:
            distance = stride
        elif stride != distance * size:
            raise LoweringError(
                f"the {subject} of operand {operand.parameter} lie at no constant distance"
            )
        size *= loop.extent
    if distance is not None and distance < 0:
        raise LoweringError(
            f"the {subject} of operand {operand.parameter} are at stride {distance}: it must not "
            "be negative"
        )
    return distance or 0


def _require_stride(
    operand: KernelOperand, loops: Sequence[Loop], required: int, subject: str
) -> None:
    stride = _uniform_stride(operand, loops, subject)
    if any(loop.extent > 1 for loop in loops) and stride != required:
        raise LoweringError(
            f"AMX needs the {subject} of operand {operand.parameter} at stride {required}, "
            f"not {stride}"
        )


# ------------------------------------------------------------------------------ code


def call(intrinsic: str, *arguments: str) -> str:
    """Return a call of an x86 intrinsic for its side effect."""
    number = f'T.llvm_lookup_intrinsic_id("llvm.x86.{intrinsic}")'
    return f'T.evaluate(T.call_llvm_intrin({", ".join((number, *arguments))}, dtype="void"))'


def tile_access(intrinsic: str, tile: int, address: str, stride_bytes: int) -> str:
    """Return a load or store of a tile.

    Parameters
    ----------
    intrinsic, tile : str, int
        x86 intrinsic and tile register.
    address, stride_bytes : str, int
        First element in memory, and the bytes from one row to the next.
    """
    place = f"T.address_of({address})"
    return call(intrinsic, f"T.int8({tile})", place, f"T.int64({stride_bytes})")


def tile_product(instruction: str, *tiles: int) -> str:
    """Return a product of tiles: the accumulator, then the factors."""
    return call(instruction, *(f"T.int8({tile})" for tile in tiles))


def configuration_statements(grid: TileGrid) -> list[str]:
    """Return the statements that load the tile configuration from the stack."""
    data = grid.configuration()
    words = [int.from_bytes(data[i : i + 8], "little", signed=True) for i in range(0, 64, 8)]
    return [
        # LDTILECFG reads its operand from memory.
        'cfg = T.sblock_alloc_buffer((8,), "int64", scope="local")',
        *(f"cfg[{number}] = T.int64({word})" for number, word in enumerate(words)),
        call("ldtilecfg", "T.address_of(cfg[0])"),
    ]


def init_intrinsic(nest: Nest, grid: TileGrid) -> Intrinsic:
    """Return the intrinsic that clears the accumulators."""
    accumulator = f"acc[{nest.accumulator_access}]"
    tiles = range(grid.row_tiles * grid.column_tiles)
    return _intrinsic(
        nest,
        loops=nest.spatial_inner,
        statement=f"{accumulator} = {zero(nest.sums)}",
        implementation=[call("tilezero", f"T.int8({tile})") for tile in tiles],
    )


def update_intrinsic(nest: Nest, grid: TileGrid, product: str) -> Intrinsic:
    """Return the intrinsic that loads the tiles of a step and multiplies them.

    Parameters
    ----------
    nest : Nest
        Scheduled nest. Its non-temporal factor is loaded past the nearest cache (TILELOADDT1).
    grid : TileGrid
        Its geometry.
    product : str
        Instruction that multiplies two tiles.
    """
    factors = [_inner_part(operand, nest) for operand in nest.operands[:2]]
    inner = replace(nest, operands=(*factors, nest.operands[2]))
    return _intrinsic(
        nest,
        reads=factors,
        loops=nest.inner,
        statement=update_statement(inner),
        implementation=_products(grid, product, nest.non_temporal),
    )


def store_intrinsic(nest: Nest, grid: TileGrid) -> Intrinsic:
    """Return the intrinsic that stores the accumulators, for an epilogue to a local buffer."""
    scope, nest = "local" if nest.epilogue else "", staged(nest)
    output = _inner_part(nest.operands[2], nest)
    statements = [
        tile_access(
            "tilestored64",
            grid.accumulator(row, column),
            f"{output.parameter}[{offset}]",
            grid.c_stride * 4,
        )
        for row, offsets in enumerate(grid.c_offsets)
        for column, offset in enumerate(offsets)
    ]
    return _intrinsic(
        nest,
        output=output,
        loops=nest.spatial_inner,
        statement=f"{element(output)} = acc[{nest.accumulator_access}]",
        implementation=statements,
        scope=scope,
    )


def _products(grid: TileGrid, product: str, non_temporal: int | None) -> list[str]:
    """Return the loads and products of a step.

    The tiles of the shorter side are loaded first and stay. Each tile of the other side is then
    loaded once and multiplied with all of them.
    """

    def load(operand: str, number: int) -> str:
        is_first = operand == "A"
        tile = grid.a_tile(number) if is_first else grid.b_tile(number)
        offset = (grid.a_offsets if is_first else grid.b_offsets)[number]
        stride = grid.a_stride if is_first else grid.b_stride
        # T1 is the hint that the data will not be needed again soon.
        name = "tileloaddt164" if non_temporal == (0 if is_first else 1) else "tileloadd64"
        return tile_access(name, tile, f"{operand}[{offset}]", stride * grid.element_bytes)

    sides = {"A": range(grid.row_tiles), "B": range(grid.column_tiles)}
    resident, passing = ("A", "B") if grid.rows_resident else ("B", "A")
    statements = [load(resident, number) for number in sides[resident]]
    for number in sides[passing]:
        statements.append(load(passing, number))
        for loaded in sides[resident]:
            row, column = (loaded, number) if grid.rows_resident else (number, loaded)
            tiles = grid.accumulator(row, column), grid.a_tile(row), grid.b_tile(column)
            statements.append(tile_product(product, *tiles))
    return statements


def _inner_part(operand: KernelOperand, nest: Nest) -> KernelOperand:
    """Return the operand as a task's inner loops see it, from the task's first element to its last.

    The description of an intrinsic must not depend on the loops around it.
    """
    extents = {loop.name: loop.extent for loop in nest.inner}
    access = IndexExpr.sum([term for term in operand.access.terms if term.iterator in extents])
    return replace(operand, access=access, elements=access.bounds(extents)[1] + 1)


def _intrinsic(
    nest: Nest,
    *,
    loops: Sequence[Loop],
    statement: str,
    implementation: Sequence[str],
    reads: Sequence[KernelOperand] = (),
    output: KernelOperand | None = None,
    scope: str = "",
) -> Intrinsic:
    """Return an intrinsic on the accumulators; without ``output`` it writes these.

    ``statement`` in ``loops`` is the description, ``scope`` the memory of the output.
    """
    accumulator = f"acc[0:{nest.accumulators}]"
    read_regions = [f"{operand.parameter}[0:{operand.elements}]" for operand in reads]
    # The accumulators are read by products and stores, but not where they are cleared.
    if reads or output is not None:
        read_regions.insert(0, accumulator)
    written = accumulator if output is None else f"{output.parameter}[0:{output.elements}]"
    dtype = storage_dtype(nest.sums)
    parameters = [
        *(_parameter(operand) for operand in reads),
        f'acc: T.Buffer(({nest.accumulators},), "{dtype}", offset_factor=1, scope="local")',
        *([] if output is None else [_parameter(output, scope)]),
    ]

    def function(*, is_description: bool) -> str:
        script = Script()
        script.line(HEADER)
        header = f"def intrinsic({', '.join(parameters)}):"
        with script.nested(header, 'with T.sblock("root"):'):
            script.line(f"T.reads({', '.join(read_regions)})")
            script.line(f"T.writes({written})")
            if is_description:
                with script.nested(*loop_headers(loops)):
                    write_block(script, "scalar", loops, statement)
            else:
                script.lines(implementation)
        return script.text()

    return Intrinsic(function(is_description=True), function(is_description=False))


def _parameter(operand: KernelOperand, scope: str = "") -> str:
    dtype = storage_dtype(operand.dtype)
    memory = f', scope="{scope}"' if scope else ""
    return (
        f'{operand.parameter}: T.Buffer(({operand.elements},), "{dtype}", offset_factor=1{memory})'
    )
