"""Intel AMX: tile products with the accumulators kept in tile registers."""

from __future__ import annotations

import math
from collections.abc import Set
from functools import partial
from typing import NamedTuple

from cpembed.codegen.emit import kernel_plan, staged
from cpembed.codegen.epilogue import Epilogue
from cpembed.codegen.instruction import INIT, STORE, UPDATE, InstructionText
from cpembed.codegen.nest import KernelOperand, Nest
from cpembed.codegen.passes import split_axes
from cpembed.codegen.plan import KernelPlan
from cpembed.codegen.program_nest import kernel_nest
from cpembed.errors import LoweringError
from cpembed.ir.dtypes import size_bytes
from cpembed.targets.cpu.calibration import Calibration, model_constants
from cpembed.targets.cpu.estimate import BlockStep
from cpembed.targets.cpu.register_blocks import (
    LaneRoles,
    RegisterModel,
    column_loops,
    digits,
    lane_roles,
    row_loops,
    useful_depth,
)
from cpembed.targets.x86.amx_tiles import (
    MAX_ROWS,
    ROW_BYTES,
    TILES,
    call,
    configuration_statements,
    fits,
    init_intrinsic,
    store_intrinsic,
    tile_grid,
    update_intrinsic,
)
from cpembed.targets.x86.down_converting_store import ATTRIBUTES as STORE_ATTRIBUTES
from cpembed.targets.x86.down_converting_store import vectors_per_store, write_narrow
from cpembed.transform.program import DerivedProgram


class _Product(NamedTuple):
    """Tile product; ``timed`` is the calibrated one that takes as long."""

    instruction: str
    timed: str
    group: int
    """Number of depth steps in a 32-bit word of B."""


_PRODUCTS = {
    ("uint8", "uint8", "int32"): _Product("tdpbuud", "tdpbusd", 4),
    ("uint8", "int8", "int32"): _Product("tdpbusd", "tdpbusd", 4),
    ("int8", "uint8", "int32"): _Product("tdpbsud", "tdpbusd", 4),
    ("int8", "int8", "int32"): _Product("tdpbssd", "tdpbusd", 4),
    ("bfloat16", "bfloat16", "float32"): _Product("tdpbf16ps", "tdpbf16ps", 2),
}

ATTRIBUTES = ("+amx-tile", "+amx-int8", "+amx-bf16", *STORE_ATTRIBUTES)

# LLVM's post-allocation scheduler, which some CPU models enable, renames registers to break
# dependencies. It does not know that a tile register has a configured shape, so it must not run.
OPTIONS = ("-disable-post-ra:bool=true",)
"""Options for the compiler of every kernel with tiles."""


def lane_nest(program: DerivedProgram, epilogue: Epilogue | None = None) -> Nest:
    """Return the nest with lanes in digits, the depth split into 32-bit words of B."""
    depth = lane_roles(program).depth
    if depth is None:
        raise LoweringError(f"{program.instruction.name} has no depth, and a tile of AMX has")
    return split_axes(kernel_nest(program, epilogue), {depth: (_product(program).group,)})


def plan(program: DerivedProgram, nest: Nest) -> KernelPlan:
    """Return the plan of a kernel on tiles.

    Raises :class:`LoweringError` if the layout does not suit them.
    """
    roles, product = lane_roles(program), _product(program)
    depth = useful_depth(program, roles, product.group)
    grid = tile_grid(staged(nest), roles, product.group, depth)
    text = InstructionText(
        "x86.amx",
        vectorized={digits(nest, roles.column)[-1].name},
        intrinsics={
            INIT: (init_intrinsic(nest, grid), 0),
            UPDATE: (update_intrinsic(nest, grid, product.instruction), len(nest.reductions)),
            STORE: (store_intrinsic(nest, grid), 0),
        },
        setup=configuration_statements(grid),
        teardown=[call("tilerelease")],
        opaque=True,
        # Every CPU with AMX converts to bfloat16, also an emulated one.
        store=partial(write_narrow, has_bf16=True),
        attributes=ATTRIBUTES,
        options=OPTIONS,
    )
    return kernel_plan(nest, text)


def _product(program: DerivedProgram) -> _Product:
    first, second, output = (operand.dtype for operand in kernel_nest(program).operands)
    product = _PRODUCTS.get((first, second, output))
    if product is None:
        raise LoweringError(f"AMX has no product {first} x {second} -> {output}")
    return product


def register_model(program: DerivedProgram) -> RegisterModel:
    """Return the cost of blocks of tiles in a program."""
    product, roles = _product(program), lane_roles(program)
    depth = useful_depth(program, roles, product.group)
    constants = model_constants()

    def step(nest: Nest, machine: Calibration, rows: int, columns: int) -> BlockStep:
        first, second_rows = nest.operands[0], depth // product.group
        tile_rows = math.prod(loop.extent for loop in digits(nest, roles.row))
        row_loops_inside = {loop.name for loop in digits(nest, roles.depth)}
        row_bytes = depth * 4 // product.group
        split = _split_share(first, row_loops_inside, row_bytes, nest.line_bytes)
        # The two lines of a split row are loaded one after the other.
        line_ns = machine.tile_line_ns[0]
        row_ns = line_ns + split * max(0.0, machine.split_line_ns - line_ns)
        missing_rows = min(MAX_ROWS - tile_rows, constants.tile_rows_saved)
        saved_ns = machine.product_row_ns[product.timed] * missing_rows
        product_ns = machine.product_ns[product.timed] - saved_ns
        # Rows beyond half a page from each other are separate streams for hardware prefetch.
        distance = _row_distance_bytes(first, roles)
        close_rows = constants.stream_bytes
        streams = rows * tile_rows * min(close_rows, distance) / close_rows
        farthest = max(_row_distance_bytes(o, roles) for o in (first, nest.operands[2]))
        doublings = math.log2(max(1, farthest) / constants.rows_near_bytes)
        return BlockStep(
            products_ns=max(rows * columns * product_ns, machine.latency_ns[product.timed]),
            loads_ns=rows * tile_rows * row_ns + columns * second_rows * line_ns,
            line_ns=machine.tile_line_ns,
            stored_lines=rows * tile_rows * _stored_lines(nest, roles, columns),
            loaded_lines=(rows * tile_rows, columns * second_rows),
            streams=math.ceil(streams),
            slowdown=constants.rows_apart * max(0.0, doublings),
        )

    # The tiles of a block are stored at constant offsets, so only loops that move the results by a
    # constant form blocks.
    rows, columns = partial(row_loops, results=True), partial(column_loops, results=True)
    return RegisterModel(fits, step, TILES, product.timed, rows=rows, columns=columns, streams=True)


def _stored_lines(nest: Nest, roles: LaneRoles, columns: int) -> float:
    """Cost of storing a row of the results of ``columns`` tiles, in rows of unconverted sums."""
    if nest.epilogue is None:
        return columns
    lanes = math.prod(loop.extent for loop in digits(nest, roles.column))
    are_neighbours = any(nest.operands[2].stride(o.name) == lanes for o in column_loops(nest))
    limit = vectors_per_store(nest) if are_neighbours else 1
    left, total = columns, 0.0
    vector_bytes = ROW_BYTES // 4 * size_bytes(nest.epilogue.dtype)
    # As write_narrow groups them: the widest stores first, which cost the least per row.
    for vectors in (4, 2, 1):
        count = left // vectors if vectors <= limit else 0
        cost = model_constants().converted_store.get(vector_bytes * vectors, 1.0)
        total += count * vectors * cost
        left -= count * vectors
    return total


def _row_distance_bytes(operand: KernelOperand, roles: LaneRoles) -> int:
    """Bytes from one row of a tile to the next."""
    if roles.row is None:
        return 0
    return abs(operand.stride(roles.row)) * size_bytes(operand.dtype)


def _split_share(
    factor: KernelOperand, row_loops_inside: Set[str], row_bytes: int, line_bytes: int
) -> float:
    """Fraction of a factor's rows that span two cache lines.

    Rows begin at all multiples, within a line, of the greatest common divisor of the distances
    between them. ``row_loops_inside`` are the loops along a row, which do not move its beginning.
    """
    element_bytes = size_bytes(factor.dtype)
    distances = [
        abs(term.coefficient) * element_bytes
        for term in factor.access.terms
        if not row_loops_inside & set(term.iterators)
    ]
    granule = math.gcd(line_bytes, *distances)
    starts = line_bytes // granule
    unsplit_starts = max(0, line_bytes - row_bytes) // granule + 1
    return 1 - min(starts, unsplit_starts) / starts
