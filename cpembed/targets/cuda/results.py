"""End of a product kernel as TensorIR: sums become results.

A warp stores a row of instruction tiles of its sums (a strip) at a time in its part of shared
memory, reads it back in vectors along the dimension in which results are contiguous, applies the
epilogue in registers, and stores the vectors.
"""

from __future__ import annotations

from dataclasses import dataclass

from cpembed.ir.dtypes import size_bytes
from cpembed.targets.cuda.epilogue import ResultVector, input_parameters, store_results
from cpembed.targets.cuda.instructions import LANES, TensorCoreInstruction
from cpembed.targets.cuda.lane_places import place
from cpembed.targets.cuda.lower import TiledProduct
from cpembed.targets.cuda.multistage.schedule import Plan, Staging
from cpembed.targets.cuda.writer import (
    PARTIAL,
    WIDTHS,
    Writer,
    guarded_place,
    index_script,
    inside_conditions,
    register_pointer,
    remainder,
    shared_pointer,
    store_vector,
    tile_values,
)

MAX_UNROLLED_TURNS, MAX_UNROLLED_INPUTS = 2, 8
"""Maximum number of a lane's vectors of a strip whose stores are unrolled, and of their elements if
other inputs are added to each."""


@dataclass(frozen=True, kw_only=True)
class Strip:
    """Rows of results that a warp stages and stores at a time.

    The script has a variable ``stage``, the byte at which the warp's part of shared memory begins.
    """

    product: TiledProduct
    staging: Staging
    row_tile: str
    """Expression of the number of the instruction tile that holds the rows."""
    column_tile: str
    """Expression of the number of the first instruction tile along columns."""
    first_row: str = "0"
    """Expression of the strip's first row within its tile."""
    splits: int = 1
    """Number of parts of the reduction; the variable ``part`` says which of them is stored."""


def write_results(writer: Writer, plan: Plan) -> None:
    """Write the end of the product kernel, when every stage of shared memory is free."""
    script, staging = writer.script, plan.staging
    rows, columns = plan.schedule.tile
    strip = Strip(
        product=plan.product,
        staging=staging,
        row_tile=f"row + warp_row * {rows} + strip",
        column_tile=f"column + warp_column * {columns}",
        splits=plan.schedule.splits,
    )
    warp = f"warp_row * {plan.schedule.warps[1]} + warp_column"
    script.line(f"stage = ({warp}) * {staging.bytes}")
    with script.nested(f"for strip in T.unroll({rows}):"):
        store_strip(writer, strip)


def store_strip(writer: Writer, strip: Strip, sums: str = "sums") -> None:
    """Write the stores of the strip ``strip`` of a warp's sums, through shared memory.

    Parameters
    ----------
    writer : Writer
    strip : Strip
    sums : str
        Array of the sums, strip by strip; another array than ``sums`` has those of one alone.
    """
    _stage_sums(writer, strip.product.instruction, strip.staging, sums)
    # Lanes read what others staged, and stage the next strip in its place: a warp is enough, as no
    # part of the staging is shared with other warps.
    writer.warp_barrier()
    _store_vectors(writer, strip)
    writer.warp_barrier()


def _stage_sums(
    writer: Writer, instruction: TensorCoreInstruction, staging: Staging, sums: str
) -> None:
    """Write the stores of a strip of a warp's sums into its part of shared memory."""
    columns = staging.columns // instruction.n
    registers, size = instruction.registers[2], size_bytes(staging.dtype)
    with writer.script.nested(f"for j in T.unroll({columns}):"):
        tile = f"(strip * {columns} + j)" if sums == "sums" else "j"
        first = f"{tile} * {registers}"
        if instruction.kind == "wmma":
            writer.call(
                instruction.store_function,
                shared_pointer(f"stage + j * {instruction.n * size}"),
                register_pointer(sums, first),
                str(staging.pitch),
            )
            return
        # A lane's sums are pairs of neighbours in a row.
        for pair in range(instruction.m * instruction.n // instruction.threads // 2):
            row, column = place(instruction.fragments[2], 2 * pair)
            element = f"({row}) * {staging.pitch} + j * {instruction.n} + {column}"
            register = f"{first} + {pair * 2 if size == 4 else pair}"
            writer.call(
                f"cpembed_shared_store_{2 * size}",
                shared_pointer(f"stage + ({element}) * {size}"),
                register_pointer(sums, register),
            )


def _store_vectors(writer: Writer, strip: Strip) -> None:
    """Write the vectors of a strip: read back from shared memory, epilogue, store."""
    product, staging, script = strip.product, strip.staging, writer.script
    output = product.output
    along_columns = output.along == product.axes[1]
    length = output.length
    vectors = (staging.columns if along_columns else staging.rows) // length
    slots = staging.columns * staging.rows // length
    turns = -(-slots // LANES)
    # ptxas computes the addresses of all unrolled turns ahead, for which there are no registers.
    unrolled = turns <= MAX_UNROLLED_TURNS
    if input_parameters(product):
        unrolled = turns == 1 or turns * length <= MAX_UNROLLED_INPUTS
    loop = f"T.unroll({turns})" if unrolled else f"T.serial({turns}, unroll=False)"
    with script.nested(f"for turn in {loop}:"):
        script.line(f"slot = turn * {LANES} + lane")
        across, along = f"slot // {vectors}", f"slot % {vectors} * {length}"
        row, column = (across, along) if along_columns else (along, across)
        script.lines((f"result_row = {row}", f"result_column = {column}"))
        values = _iterator_values(writer, strip)
        _, row_tiles, column_tiles, _ = product.tiles
        conditions = [f"slot < {slots}"] * bool(slots % LANES)
        conditions += [f"row_tile < {row_tiles}", f"column_tile < {column_tiles}"]
        extents = product.program.extents
        conditions += inside_conditions(output, values, extents)
        script.lines(guarded_place(conditions, index_script(output.address, values, extents)))
        _read_back(writer, strip, along_columns=along_columns)
        _finish_vector(writer, strip, values)


def _iterator_values(writer: Writer, strip: Strip) -> dict[str, str]:
    """Write the tile of ``result_row`` and ``result_column``; return all iterators there."""
    product = strip.product
    n = product.instruction.n
    writer.script.lines(
        (
            f"row_tile = {strip.row_tile}",
            f"column_tile = {strip.column_tile} + result_column // {n}",
        )
    )
    row = "result_row" if strip.first_row == "0" else f"{strip.first_row} + result_row"
    inside = {product.axes[0]: row, product.axes[1]: remainder("result_column", n)}
    return tile_values(product, "row_tile", "column_tile") | inside


def _read_back(writer: Writer, strip: Strip, *, along_columns: bool) -> None:
    """Write the load of a vector of staged sums into ``held``."""
    staging, length, script = strip.staging, strip.product.output.length, writer.script
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


def _finish_vector(writer: Writer, strip: Strip, values: dict[str, str]) -> None:
    """Write the epilogue of a vector, and its store."""
    product = strip.product
    length, extents = product.output.length, product.program.extents
    if strip.splits > 1:
        place = f"part * {product.output.layout.elements} + place"
        store_vector(writer, (PARTIAL, place), "held", product.sums, length)
        return
    axis = product.output.along

    def channel(number: int) -> str:
        assert product.channels is not None
        moved = values | {axis: f"{values[axis]} + {number}"}
        return f"T.Select(valid == 1, {index_script(product.channels, moved, extents)}, 0)"

    def residual(number: int) -> str:
        return f"T.Select(valid == 1, place + {number}, 0)"

    vector = ResultVector(sums="held", length=length, channel=channel, residual=residual)
    store_results(writer, product, vector)
