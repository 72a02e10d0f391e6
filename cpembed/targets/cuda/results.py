"""Epilogue and stores of the product, and the kernel that adds the parts of a split reduction.

A warp stores the sums of one row of instruction tiles at a time in its part of shared memory, reads
them back in vectors along the dimension in which results are contiguous, applies the epilogue in
registers, and stores the vectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from cpembed.codegen.epilogue import channel_axes
from cpembed.codegen.plan import HEADER, buffer, storage_dtype
from cpembed.ir.dtypes import size_bytes
from cpembed.targets.cuda.instructions import LANES, position
from cpembed.targets.cuda.lower import TiledProduct
from cpembed.targets.cuda.schedule import Plan
from cpembed.targets.cuda.writer import (
    PARTIAL,
    Writer,
    digits,
    epilogue_parameters,
    guarded_place,
    index_script,
    inside_conditions,
    register_pointer,
    remainder,
    shared_pointer,
)

WIDTHS = (16, 8, 4, 2, 1)
"""Widths of accesses in bytes."""

REDUCTION_THREADS = 256
"""Number of threads of a block that adds parts."""


def write_results(writer: Writer, plan: Plan) -> None:
    """Write the end of the product kernel, when every stage of shared memory is free."""
    script, staging = writer.script, plan.staging
    rows, _ = plan.schedule.tile
    script.line(f"stage = thread // {LANES} * {staging.bytes}")
    with script.nested(f"for strip in T.unroll({rows}):"):
        _stage_sums(writer, plan)
        writer.warp_barrier()
        _store_strip(writer, plan)
        writer.warp_barrier()


def _stage_sums(writer: Writer, plan: Plan) -> None:
    """Write the stores of a row of tiles into the warp's part of shared memory."""
    instruction, staging = plan.product.instruction, plan.staging
    columns, registers = plan.schedule.tile[1], instruction.registers[2]
    size = size_bytes(staging.dtype)
    with writer.script.nested(f"for j in T.unroll({columns}):"):
        first = f"(strip * {columns} + j) * {registers}"
        if instruction.kind == "wmma":
            writer.call(
                instruction.store_function,
                shared_pointer(f"stage + j * {instruction.n * size}"),
                register_pointer("sums", first),
                str(staging.pitch),
            )
            return
        # A lane's sums are pairs of neighbours in a row.
        for pair in range(instruction.m * instruction.n // LANES // 2):
            row, column = _pair_position(plan, pair)
            place = f"stage + (({row}) * {staging.pitch} + j * {instruction.n} + {column}) * {size}"
            register = f"{first} + {pair * 2 if size == 4 else pair}"
            writer.call(
                f"cpembed_shared_store_{2 * size}",
                shared_pointer(place),
                register_pointer("sums", register),
            )


def _pair_position(plan: Plan, pair: int) -> tuple[str, str]:
    """Return row and column of a pair of a lane's sums, over the lane."""
    name = plan.product.instruction.fragments[2]
    # The fragment's map is affine in the group of four lanes and in the lane of a group.
    (row, column), next_lane, next_group = (position(name, lane, 2 * pair) for lane in (0, 1, 4))
    rows = f"lane // 4 * {next_group[0] - row} + lane % 4 * {next_lane[0] - row} + {row}"
    columns = (
        f"lane // 4 * {next_group[1] - column} + lane % 4 * {next_lane[1] - column} + {column}"
    )
    return rows, columns


def _store_strip(writer: Writer, plan: Plan) -> None:
    """Write the vectors of a strip: read back from shared memory, epilogue, store."""
    product, staging, script = plan.product, plan.staging, writer.script
    output = product.output
    along_columns = output.along == product.axes[1]
    length, m = output.length, product.instruction.m
    vectors = (staging.columns if along_columns else m) // length
    slots = staging.columns * m // length
    with script.nested(f"for turn in T.unroll({-(-slots // LANES)}):"):
        script.line(f"slot = turn * {LANES} + lane")
        across, along = f"slot // {vectors}", f"slot % {vectors} * {length}"
        row, column = (across, along) if along_columns else (along, across)
        script.lines((f"result_row = {row}", f"result_column = {column}"))
        values = _iterator_values(writer, plan)
        _, row_tiles, column_tiles, _ = product.tiles
        conditions = [f"slot < {slots}"] * bool(slots % LANES)
        conditions += [f"row_tile < {row_tiles}", f"column_tile < {column_tiles}"]
        extents = product.program.extents
        conditions += inside_conditions(output, values, extents)
        script.lines(guarded_place(conditions, index_script(output.address, values, extents)))
        _read_back(writer, plan, along_columns=along_columns)
        _finish_vector(writer, plan, values)


def _iterator_values(writer: Writer, plan: Plan) -> dict[str, str]:
    """Write the tile of ``result_row`` and ``result_column``, and return the values of loops and
    axes there.
    """
    product, (rows, columns) = plan.product, plan.schedule.tile
    n = product.instruction.n
    writer.script.lines(
        (
            f"row_tile = row + warp_row * {rows} + strip",
            f"column_tile = column + warp_column * {columns} + result_column // {n}",
        )
    )
    return {
        **dict.fromkeys((loop.name for loop in product.program.loops), "0"),
        **digits("batch", product.batch),
        **digits("row_tile", product.rows),
        **digits("column_tile", product.columns),
        product.axes[0]: "result_row",
        product.axes[1]: remainder("result_column", n),
    }


def _read_back(writer: Writer, plan: Plan, *, along_columns: bool) -> None:
    """Write the load of a vector of staged sums into ``held``."""
    staging, length, script = plan.staging, plan.product.output.length, writer.script
    size = size_bytes(staging.dtype)
    script.line(f'held = T.alloc_buffer(({length},), "{staging.dtype}", scope="local")')
    # Slots beyond the last one read any staged sum.
    exceeds = staging.columns * staging.rows // length % LANES != 0
    row = f"result_row % {staging.rows}" if exceeds else "result_row"
    column = f"result_column % {staging.columns}" if exceeds else "result_column"
    start = f"({row}) * {staging.pitch} + {column}"
    if along_columns:
        width = next(w for w in WIDTHS if w <= length * size)
        offsets = [(first, first) for first in range(0, length, width // size)]
    else:
        width = size
        offsets = [(number, number * staging.pitch) for number in range(length)]
    for register, offset in offsets:
        writer.call(
            f"cpembed_shared_load_{width}",
            register_pointer("held", str(register)),
            shared_pointer(f"stage + ({start} + {offset}) * {size}"),
        )


def _finish_vector(writer: Writer, plan: Plan, values: dict[str, str]) -> None:
    """Write the epilogue of a vector, and its store."""
    product, script = plan.product, writer.script
    length, extents = product.output.length, product.program.extents
    if plan.schedule.splits > 1:
        place = f"part * {product.output.layout.elements} + place"
        _store_vector(writer, (PARTIAL, place), "held", product.sums, length)
        return
    if product.epilogue is None:
        _store_vector(writer, ("C", "place"), "held", product.sums, length)
        return
    dtype = storage_dtype(product.output_dtype)
    script.line(f'result = T.alloc_buffer(({length},), "{dtype}", scope="local")')
    axis = product.output.along

    def channel(number: int) -> str:
        assert product.channels is not None
        moved = values | {axis: f"{values[axis]} + {number}"}
        return f"T.Select(valid == 1, {index_script(product.channels, moved, extents)}, 0)"

    def residual(number: int) -> str:
        return f"Residual[T.Select(valid == 1, place + {number}, 0)]"

    for number in range(length):
        expression = _result_expression(product, f"held[{number}]", number, channel, residual)
        script.line(f"result[{number}] = {expression}")
    _store_vector(writer, ("C", "place"), "result", dtype, length)


def _result_expression(
    product: TiledProduct,
    value: str,
    number: int,
    channel: Callable[[int], str],
    residual: Callable[[int], str],
) -> str:
    """Return the result of a sum; ``channel`` and ``residual`` are of element ``number``."""
    epilogue, sums = product.epilogue, product.sums
    if epilogue is None:
        return value
    if sums == "float16":
        value, sums = f'T.cast({value}, "float32")', "float32"
    at_channel = channel(number) if epilogue.vectors else ""
    addend = residual(number) if epilogue.residual is not None else ""
    return epilogue.expression(value, sums, at_channel, addend)


def _store_vector(
    writer: Writer, target: tuple[str, str], registers: str, dtype: str, length: int
) -> None:
    """Write stores of ``length`` registers to a buffer and its first place, where ``valid``."""
    size, (name, place) = size_bytes(dtype), target
    width = next(w for w in WIDTHS if w <= length * size)
    for first in range(0, length, width // size):
        writer.call(
            f"cpembed_store_{width}",
            f"T.address_of({name}[T.Select(valid == 1, {place} + {first}, 0)])",
            register_pointer(registers, str(first)),
            "valid",
        )


def reduction_kernel(plan: Plan) -> Writer:
    """Return the function ``main`` that adds the parts of a split reduction."""
    product = plan.product
    elements = product.output.layout.elements
    writer = Writer()
    declared = [
        buffer(PARTIAL, plan.schedule.splits * elements, product.sums),
        *epilogue_parameters(product),
        buffer("C", elements, product.output_dtype),
    ]
    writer.script.line(HEADER)
    with writer.script.nested(f"def main({', '.join(declared)}):"):
        writer.script.line('T.func_attr({"tirx.noalias": True, "global_symbol": "main"})')
        _write_reduction(writer, plan)
    return writer


def _write_reduction(writer: Writer, plan: Plan) -> None:
    product, script = plan.product, writer.script
    elements, splits, sums = product.output.layout.elements, plan.schedule.splits, product.sums
    blocks = -(-elements // REDUCTION_THREADS)
    with script.nested(
        f'for rx in T.thread_binding({blocks}, thread="blockIdx.x"):',
        f'for ry in T.thread_binding({REDUCTION_THREADS}, thread="threadIdx.x"):',
        'with T.sblock("reduction"):',
    ):
        script.line(f"group = T.axis.spatial({blocks}, rx)")
        script.line(f"thread = T.axis.spatial({REDUCTION_THREADS}, ry)")
        script.line(f"T.reads({PARTIAL}[0 : {splits * elements}])")
        script.line(f"T.writes(C[0 : {elements}])")
        script.line(f"number = group * {REDUCTION_THREADS} + thread")
        script.lines(guarded_place([f"number < {elements}"], "number"))
        script.line(f'total = T.alloc_buffer((1,), "{sums}", scope="local")')
        script.line(f'one = T.alloc_buffer((1,), "{sums}", scope="local")')
        script.line(f"total[0] = T.{sums}(0)")
        with script.nested(f"for other in T.serial({splits}):"):
            pointer = f"T.address_of({PARTIAL}[other * {elements} + place])"
            register = register_pointer("one", "0")
            writer.call(f"cpembed_load_{size_bytes(sums)}", register, pointer, "valid")
            script.line("total[0] = total[0] + one[0]")
        dtype = storage_dtype(product.output_dtype)
        script.line(f'result = T.alloc_buffer((1,), "{dtype}", scope="local")')
        expression = _result_expression(
            product,
            "total[0]",
            0,
            lambda _: flat_channel(product, "place"),
            lambda _: "Residual[place]",
        )
        script.line(f"result[0] = {expression}")
        _store_vector(writer, ("C", "place"), "result", dtype, 1)


def flat_channel(product: TiledProduct, place: str) -> str:
    """Return the channel of an element of the result, by its number in the original layout."""
    output = product.program.unfused
    dimensions = [i.single_iterator for i in output.access(output.output.name).index]
    shape = output.output.shape
    terms: list[str] = []
    stride = 1
    for axis in reversed(channel_axes(output)):
        dimension = dimensions.index(axis)
        inner = math.prod(shape[dimension + 1 :])
        terms.append(f"({place}) // {inner} % {shape[dimension]} * {stride}")
        stride *= output.extents[axis]
    return " + ".join(terms) or "0"
