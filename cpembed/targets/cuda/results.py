"""From sums in registers to results in memory: through shared memory, so that vectors are stored.

A warp stores the sums of one row of instruction tiles at a time in its own part of shared memory,
reads them back in vectors along the dimension in which results are neighbours, applies the epilogue
in registers, and stores.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from cpembed.codegen.epilogue import channel_axes
from cpembed.codegen.script import HEADER, buffer, storage_dtype
from cpembed.ir.dtypes import size_bytes
from cpembed.targets.cuda.fragments import position
from cpembed.targets.cuda.instructions import LANES
from cpembed.targets.cuda.lower import TiledProduct
from cpembed.targets.cuda.schedule import Plan
from cpembed.targets.cuda.text import digits, remainder, written
from cpembed.targets.cuda.writer import (
    PARTIAL,
    Writer,
    at,
    chosen,
    conditions,
    epilogue_parameters,
    in_shared,
)

WIDTHS = (16, 8, 4, 2, 1)


def write_results(writer: Writer, plan: Plan) -> None:
    """The end of the main kernel; every stage of shared memory is free."""
    script, staging = writer.script, plan.staging
    rows, _ = plan.schedule.tile
    script.line(f"stage = thread // {LANES} * {staging.bytes}")
    with script.nested(f"for strip in T.unroll({rows}):"):
        _stage(writer, plan)
        writer.warp_barrier()
        _store(writer, plan)
        writer.warp_barrier()


def _stage(writer: Writer, plan: Plan) -> None:
    """The sums of a row of tiles into the warp's part of shared memory."""
    instruction, staging = plan.product.instruction, plan.staging
    columns, count, size = (
        plan.schedule.tile[1],
        instruction.registers[2],
        size_bytes(staging.dtype),
    )
    with writer.script.nested(f"for j in T.unroll({columns}):"):
        held = f"(strip * {columns} + j) * {count}"
        if instruction.kind == "wmma":
            place = f"stage + j * {instruction.n * size}"
            writer.call(
                instruction.store_function,
                in_shared(place),
                at("sums", held),
                str(staging.pitch),
            )
            return
        # Two neighbours of a row at a time: the fragment's pairs.
        for pair in range(instruction.m * instruction.n // LANES // 2):
            row, column = _pair(plan, pair)
            place = f"stage + (({row}) * {staging.pitch} + j * {instruction.n} + {column}) * {size}"
            register = f"{held} + {pair * 2 if size == 4 else pair}"
            width = 2 * size
            writer.call(f"cpembed_shared_store_{width}", in_shared(place), at("sums", register))


def _pair(plan: Plan, pair: int) -> tuple[str, str]:
    """Row and column of a pair of a lane's sums, over the lane.

    The fragment's map is affine in groups of four lanes and in the lane of a group.
    """
    name = plan.product.instruction.fragments[2]
    here = [position(name, lane, 2 * pair) for lane in (0, 1, 4)]
    (row, column), one, group = here
    rows = f"lane // 4 * {group[0] - row} + lane % 4 * {one[0] - row} + {row}"
    columns = f"lane // 4 * {group[1] - column} + lane % 4 * {one[1] - column} + {column}"
    return rows, columns


def _store(writer: Writer, plan: Plan) -> None:
    """A strip's results, in vectors: read back from shared memory, finished, stored."""
    product, staging, script = plan.product, plan.staging, writer.script
    stored = product.output
    along_columns = stored.along == product.axes[1]
    length, m = stored.length, product.instruction.m
    across = (staging.columns if along_columns else m) // length
    slots = staging.columns * m // length
    with script.nested(f"for turn in T.unroll({-(-slots // LANES)}):"):
        script.line(f"slot = turn * {LANES} + lane")
        if along_columns:
            places = (f"slot // {across}", f"slot % {across} * {length}")
        else:
            places = (f"slot % {across} * {length}", f"slot // {across}")
        script.lines((f"result_row = {places[0]}", f"result_column = {places[1]}"))
        values = _locate(writer, plan)
        _, row_tiles, column_tiles, _ = product.tiles
        inside = [f"slot < {slots}"] * bool(slots % LANES)
        inside += [f"row_tile < {row_tiles}", f"column_tile < {column_tiles}"]
        inside += conditions(stored, values, product.program.extents)
        script.lines(chosen(inside, written(stored.address, values, product.program.extents)))
        _read_back(writer, plan, along_columns=along_columns)
        _finish(writer, plan, values)


def _locate(writer: Writer, plan: Plan) -> dict[str, str]:
    """The values of loops and axes at ``result_row`` and ``result_column`` of a strip."""
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
    """A vector of staged sums into ``held``."""
    staging, length = plan.staging, plan.product.output.length
    size = size_bytes(staging.dtype)
    script = writer.script
    script.line(f'held = T.alloc_buffer(({length},), "{staging.dtype}", scope="local")')
    slots = staging.columns * staging.rows // length
    row = "result_row" if slots % LANES == 0 else f"result_row % {staging.rows}"
    column = "result_column" if slots % LANES == 0 else f"result_column % {staging.columns}"
    start = f"({row}) * {staging.pitch} + {column}"
    if along_columns:
        width = next(w for w in WIDTHS if w <= length * size)
        step = width // size
        for first in range(0, length, step):
            place = f"stage + ({start} + {first}) * {size}"
            writer.call(f"cpembed_shared_load_{width}", at("held", str(first)), in_shared(place))
        return
    for number in range(length):
        place = f"stage + ({start} + {number * staging.pitch}) * {size}"
        writer.call(f"cpembed_shared_load_{size}", at("held", str(number)), in_shared(place))


def _finish(writer: Writer, plan: Plan, values: dict[str, str]) -> None:
    """The epilogue of a vector, and its store."""
    product, script = plan.product, writer.script
    length = product.output.length
    if plan.schedule.splits > 1:
        place = f"part * {product.output.layout.elements} + place"
        store_vector(writer, (PARTIAL, place, "held"), length, product.sums)
        return
    if product.epilogue is None:
        store_vector(writer, ("C", "place", "held"), length, product.sums)
        return
    dtype = storage_dtype(product.stored_dtype)
    script.line(f'result = T.alloc_buffer(({length},), "{dtype}", scope="local")')
    axis = product.output.along

    def channel(number: int) -> str:
        assert product.channels is not None
        moved = values | {axis: f"{values[axis]} + {number}"}
        return (
            f"T.Select(valid == 1, {written(product.channels, moved, product.program.extents)}, 0)"
        )

    def other(number: int) -> str:
        return f"Residual[T.Select(valid == 1, place + {number}, 0)]"

    for number in range(length):
        found = result_expression(product, f"held[{number}]", number, channel, other)
        script.line(f"result[{number}] = {found}")
    store_vector(writer, ("C", "place", "result"), length, dtype)


def result_expression(
    product: TiledProduct,
    value: str,
    number: int,
    channel: Callable[[int], str],
    other: Callable[[int], str],
) -> str:
    """What is stored of a sum."""
    epilogue, sums = product.epilogue, product.sums
    if epilogue is None:
        return value
    if sums == "float16":
        value, sums = f'T.cast({value}, "float32")', "float32"
    at_channel = channel(number) if epilogue.vectors else ""
    residual = other(number) if epilogue.residual is not None else ""
    return epilogue.expression(value, sums, at_channel, residual)


def store_vector(writer: Writer, move: tuple[str, str, str], length: int, dtype: str) -> None:
    """``(to, place, from)``: a vector of registers to global memory, where ``valid``."""
    to, place, registers = move
    size = size_bytes(dtype)
    width = next(w for w in WIDTHS if w <= length * size)
    step = width // size
    for first in range(0, length, step):
        writer.call(
            f"cpembed_store_{width}",
            f"T.address_of({to}[T.Select(valid == 1, {place} + {first}, 0)])",
            at(registers, str(first)),
            "valid",
        )


REDUCTION_THREADS = 256


def write_reduction(writer: Writer, plan: Plan) -> None:
    """A thread nest that adds the parts of a split reduction and stores the results."""
    product, script = plan.product, writer.script
    elements, splits = product.output.layout.elements, plan.schedule.splits
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
        script.lines(chosen([f"number < {elements}"], "number"))
        script.line(f'total = T.alloc_buffer((1,), "{product.sums}", scope="local")')
        script.line(f'one = T.alloc_buffer((1,), "{product.sums}", scope="local")')
        script.line(f"total[0] = T.{product.sums}(0)")
        size = size_bytes(product.sums)
        with script.nested(f"for other in T.serial({splits}):"):
            pointer = f"T.address_of({PARTIAL}[other * {elements} + place])"
            writer.call(f"cpembed_load_{size}", at("one", "0"), pointer, "valid")
            script.line("total[0] = total[0] + one[0]")
        dtype = storage_dtype(product.stored_dtype)
        script.line(f'result = T.alloc_buffer((1,), "{dtype}", scope="local")')
        found = result_expression(
            product,
            "total[0]",
            0,
            lambda _: flat_channel(product, "place"),
            lambda _: "Residual[place]",
        )
        script.line(f"result[0] = {found}")
        store_vector(writer, ("C", "place", "result"), 1, dtype)


def flat_channel(product: TiledProduct, place: str) -> str:
    """The channel of an element of the result, by its number in the original layout."""
    output = product.program.unfused
    dimensions = [i.single_iterator for i in output.access(output.output.name).index]
    shape = output.output.shape
    found: list[str] = []
    total = 1
    for axis in reversed(channel_axes(output)):
        where = dimensions.index(axis)
        inner = math.prod(shape[where + 1 :])
        found.append(f"({place}) // {inner} % {shape[where]} * {total}")
        total *= output.extents[axis]
    return " + ".join(found) or "0"


def reduction_kernel(plan: Plan) -> Writer:
    """The function ``main`` of the second step of a split reduction."""
    product = plan.product
    elements = product.output.layout.elements
    writer = Writer()
    declared = [
        buffer(PARTIAL, plan.schedule.splits * elements, product.sums),
        *epilogue_parameters(product),
        buffer("C", elements, product.stored_dtype),
    ]
    writer.script.line(HEADER)
    with writer.script.nested(f"def main({', '.join(declared)}):"):
        writer.script.line('T.func_attr({"tirx.noalias": True, "global_symbol": "main"})')
        write_reduction(writer, plan)
    return writer
