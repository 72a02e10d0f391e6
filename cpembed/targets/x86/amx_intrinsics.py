"""AMX tensor intrinsics, generated for a nest: what the blocks of a task mean, and the code.

Each intrinsic covers a whole register block. Its description is the nest's own inner loops over
flat buffers, so whatever layout the program derived, TVM checks that the block it replaces is
exactly what the instructions do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cpembed.codegen.emit import staged
from cpembed.codegen.instruction import (
    Intrinsic,
    element,
    loop_headers,
    update_statement,
    write_block,
)
from cpembed.codegen.nest import KernelOperand, Nest
from cpembed.codegen.script import HEADER, Script, storage_dtype, zero
from cpembed.ir.index import IndexExpr
from cpembed.targets.x86.tiles import TileGrid
from cpembed.transform.program import Loop


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
    cache (TILELOADDT1)."""
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
    multiplied with all of them."""

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
    access = IndexExpr.of([term for term in operand.access.terms if term.iterator in extents])
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
    only initialises them. ``scope`` is that of what is written beside them."""
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
