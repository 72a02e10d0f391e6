"""Intel AMX: tile products with the accumulators kept in tile registers."""

from __future__ import annotations

import math
from collections.abc import Set
from functools import partial

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
    configuration_statements,
    fits,
    init_intrinsic,
    release_statements,
    store_intrinsic,
    tile_grid,
    update_intrinsic,
)
from cpembed.targets.x86.down_converting_store import ATTRIBUTES as STORES
from cpembed.targets.x86.down_converting_store import stored_together, write_narrow
from cpembed.transform.program import DerivedProgram

_PRODUCTS = {
    ("uint8", "uint8", "int32"): "tdpbuud",
    ("uint8", "int8", "int32"): "tdpbusd",
    ("int8", "uint8", "int32"): "tdpbsud",
    ("int8", "int8", "int32"): "tdpbssd",
    ("bfloat16", "bfloat16", "float32"): "tdpbf16ps",
}
_TIMED = {"tdpbf16ps": "tdpbf16ps"}
"""Whose time a product takes; that of ``tdpbusd`` where not listed."""
_GROUPS = {"tdpbf16ps": 2}
"""Depth steps in a 32-bit word of B; four where not listed."""

_ROWS, _COLUMNS = partial(row_loops, results=True), partial(column_loops, results=True)
"""A block of tiles is stored at constant distances."""

ATTRIBUTES = ("+amx-tile", "+amx-int8", "+amx-bf16", *STORES)

OPTIONS = ("-disable-post-ra:bool=true",)
"""LLVM's post-allocation scheduler, which some CPU models enable, renames registers to break
dependencies. It does not know that a tile register has a configured shape, so it must not run."""


def plan(program: DerivedProgram, nest: Nest) -> KernelPlan:
    """A kernel on AMX tiles; raises :class:`LoweringError` where the layout does not suit them."""
    roles, product = lane_roles(program), _product(program)
    group = _GROUPS.get(product, 4)
    grid = tile_grid(staged(nest), roles, group, useful_depth(program, roles, group))
    text = InstructionText(
        "x86.amx",
        vectorized={digits(nest, roles.column)[-1].name},
        intrinsics={
            INIT: (init_intrinsic(nest, grid), 0),
            UPDATE: (update_intrinsic(nest, grid, product), len(nest.reductions)),
            STORE: (store_intrinsic(nest, grid), 0),
        },
        setup=configuration_statements(grid),
        teardown=release_statements(),
        opaque=True,
        store=write_narrow,
        attributes=ATTRIBUTES,
        options=OPTIONS,
    )
    return kernel_plan(nest, text)


def register_model(program: DerivedProgram) -> RegisterModel:
    """What blocks of tiles cost in a program."""
    product, roles = _product(program), lane_roles(program)
    depth = useful_depth(program, roles, _GROUPS.get(product, 4))
    step = partial(_step, roles, product, depth)
    return RegisterModel(
        fits, step, TILES, _timed(product), rows=_ROWS, columns=_COLUMNS, streams=True
    )


def _step(
    roles: LaneRoles,
    product: str,
    depth: int,
    nest: Nest,
    machine: Calibration,
    rows: int,
    columns: int,
) -> BlockStep:
    """A tile row that does not end in the cache line in which it begins lies in two, which are
    loaded one after the other.
    """
    first, constants = nest.operands[0], model_constants()
    tile_rows = math.prod(loop.extent for loop in digits(nest, roles.row))
    group = _GROUPS.get(product, 4)
    inside = {loop.name for loop in digits(nest, roles.depth)}
    split = _split_share(first, inside, depth, group, nest.line_bytes)
    line_ns = machine.tile_line_ns[0]
    row_ns = line_ns + split * max(0.0, machine.split_line_ns - line_ns)
    timed = _timed(product)
    missing_rows = min(MAX_ROWS - tile_rows, constants.tile_rows_saved)
    per_product = machine.product_ns[timed] - machine.product_row_ns[timed] * missing_rows
    distance = _rows_apart(first, roles) * size_bytes(first.dtype)
    apart = max(_rows_apart(o, roles) * size_bytes(o.dtype) for o in nest.operands[::2])
    return BlockStep(
        products_ns=max(rows * columns * per_product, machine.latency_ns[timed]),
        loads_ns=rows * tile_rows * row_ns + columns * (depth // group) * line_ns,
        line_ns=machine.tile_line_ns,
        stored_lines=rows * tile_rows * _stored(nest, roles, columns),
        loaded_lines=(rows * tile_rows, columns * (depth // group)),
        streams=math.ceil(
            rows * tile_rows * min(constants.stream_bytes, distance) / constants.stream_bytes
        ),
        slowdown=constants.rows_apart
        * max(0.0, math.log2(max(1, apart) / constants.rows_near_bytes)),
    )


def _stored(nest: Nest, roles: LaneRoles, columns: int) -> float:
    """What storing a row of the results of ``columns`` tiles takes, in rows of sums."""
    if nest.epilogue is None:
        return columns
    lanes = math.prod(loop.extent for loop in digits(nest, roles.column))
    neighbours = any(nest.operands[2].stride(o.name) == lanes for o in column_loops(nest))
    most = stored_together(nest.epilogue, nest.sums) if neighbours else 1
    left, total = columns, 0.0
    alone = ROW_BYTES // 4 * size_bytes(nest.epilogue.dtype)
    for together in (4, 2, 1):
        count = left // together if together <= most else 0
        total += count * together * model_constants().converted_store.get(alone * together, 1.0)
        left -= count * together
    return total


def _rows_apart(operand: KernelOperand, roles: LaneRoles) -> int:
    """Elements from a row of a tile to the next."""
    return 0 if roles.row is None else abs(operand.stride(roles.row))


def _split_share(
    factor: KernelOperand, inside: Set[str], depth: int, group: int, line_bytes: int
) -> float:
    """Of the rows of a factor's tiles, ``depth`` steps each, those in two lines: rows begin at all
    multiples, in a line, of what divides every distance between them; ``inside`` are the loops
    along a row.
    """
    size = 4 // group
    moves = [
        abs(term.coefficient) * size
        for term in factor.access.terms
        if not inside & set(term.iterators)
    ]
    step = math.gcd(line_bytes, *moves)
    begins = line_bytes // step
    within = max(0, line_bytes - depth * size) // step + 1
    return 1 - min(begins, within) / begins


def _timed(product: str) -> str:
    """The product whose time is known, which another takes as well."""
    return _TIMED.get(product, "tdpbusd")


def _product(program: DerivedProgram) -> str:
    """The product instruction for the operands' types."""
    first, second, output = (operand.dtype for operand in kernel_nest(program).operands)
    product = _PRODUCTS.get((first, second, output))
    if product is None:
        raise LoweringError(f"AMX has no product {first} x {second} -> {output}")
    return product


def lane_nest(program: DerivedProgram, epilogue: Epilogue | None = None) -> Nest:
    """Lanes in digits, the depth cut where a 32-bit word of B ends."""
    group = _GROUPS.get(_product(program), 4)
    depth = lane_roles(program).depth
    if depth is None:
        raise LoweringError(f"{program.instruction.name} has no depth, and a tile of AMX has")
    return split_axes(kernel_nest(program, epilogue), {depth: (group,)})
