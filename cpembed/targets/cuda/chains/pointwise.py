"""The function between the products, element by element: bias, scale, activation, conversion."""

from __future__ import annotations

import re

from cpembed.codegen.epilogue import Epilogue
from cpembed.codegen.epilogue_text import float_text, result_text
from cpembed.codegen.plan import bfloat16_bits
from cpembed.ir.dtypes import is_integer, size_bytes
from cpembed.targets.cuda.chains.plan import ChainPlan
from cpembed.targets.cuda.expressions import ExpressionWriter
from cpembed.targets.cuda.lane_places import place
from cpembed.targets.cuda.multistage.schedule import CHUNK
from cpembed.targets.cuda.writer import (
    Writer,
    index_script,
    register_pointer,
    shared_pointer,
    tile_values,
)
from cpembed.workloads.chains import BIAS, MIDDLE, SCALE, SUM, VECTOR, Pointwise


def converted(value: str, dtype: str) -> str:
    """Return a float32 as an element of the operand between, as it is in memory."""
    if dtype == "bfloat16":
        return f'T.cast({bfloat16_bits(value)}, "uint16")'
    return f'T.cast({value}, "{dtype}")'


def write_pointwise(writer: Writer, plan: ChainPlan, step: str) -> None:
    """Write ``middle`` of all sums of a chunk, or its stores to shared memory.

    Parameters
    ----------
    writer, plan : Writer, ChainPlan
    step : str
        Number of the chunk.
    """
    script, rows = writer.script, plan.schedule.rows
    with script.nested(f"for i in T.unroll({rows}):"):
        if plan.schedule.via == "registers":
            _write_registers(writer, plan, step)
        else:
            _write_stores(writer, plan, step)


def _write_registers(writer: Writer, plan: ChainPlan, step: str) -> None:
    """Write each register of the second product's factor from the sum that it couples with."""
    sums = plan.second.instruction.registers[2]
    tiles, coupling = plan.column_tiles, plan.coupling
    count = len(coupling.sources)
    with writer.script.nested(f"for inner in T.unroll({plan.schedule.chunk}):"):
        for register, source in enumerate(coupling.sources):
            tile = f"inner * {coupling.results[1]} + {source // sums}"
            score = f"scores[(i * {tiles} + {tile}) * {sums} + {source % sums}]"
            value = _value(
                writer, plan, score, f"{step} * {tiles} + {tile}", (register, source % sums)
            )
            target = f"middle[(i * {plan.schedule.chunk} + inner) * {count} + {register}]"
            writer.script.line(f"{target} = {value}")


def _write_stores(writer: Writer, plan: ChainPlan, step: str) -> None:
    """Write the stores of all sums of a warp, in pairs of neighbours of a row."""
    instruction, size = plan.second.instruction, size_bytes(plan.chain.factors)
    sums, tiles = instruction.registers[2], plan.warp_column_tiles
    script = writer.script
    with script.nested(f"for j in T.unroll({tiles}):"):
        for pair in range(0, sums, 2):
            row, column = place(instruction.fragments[2], pair)
            tile = f"warp_column * {tiles} + j"
            for element in range(2):
                source = f"scores[(i * {tiles} + j) * {sums} + {pair + element}]"
                number = f"{step} * {plan.column_tiles} + {tile}"
                value = _value(writer, plan, source, number, (pair + element, pair + element))
                script.line(f"middle[{element}] = {value}")
            line = f"(warp_row * {plan.schedule.rows} + i) * {instruction.m} + {row}"
            byte = f"(({tile}) * {instruction.n} + {column}) * {size}"
            at = plan.middle.place(line, f"{byte} // {CHUNK}")
            at = f"{plan.rows_factor.tile.bytes} + {at} + {byte} % {CHUNK}"
            writer.call(
                f"cpembed_shared_store_{2 * size}",
                shared_pointer(at),
                register_pointer("middle", "0"),
            )


def _value(
    writer: Writer, plan: ChainPlan, source: str, tile: str, numbers: tuple[int, int]
) -> str:
    """Write what the function of a sum needs, and return the function.

    Parameters
    ----------
    writer, plan : Writer, ChainPlan
    source : str
        The sum.
    tile : str
        Number of its tile of columns.
    numbers : tuple of int
        Number of the statement, which distinguishes names, and of the sum in its tile.
    """
    number, element = numbers
    function = plan.chain.function
    assert isinstance(function, Pointwise)
    product, dtype = plan.first, plan.chain.factors
    channel = ""
    if function.bias or function.scale or function.vectors:
        program = product.program
        values = tile_values(product, columns=f"({tile})")
        values[product.axes[1]] = place(product.instruction.fragments[2], element)[1]
        index = index_script(product.output.layout.access[-1], values, program.extents)
        extent = product.output.layout.original_shape[-1]
        writer.script.line(f"channel{number} = {index}")
        # Beyond the last column any vector's element will do: the second factor is zero there.
        channel = f"T.Select(channel{number} < {extent}, channel{number}, 0)"
    if is_integer(dtype) and function.expression == SUM:
        epilogue = Epilogue(dtype, scale=function.scale, bias=function.bias)
        return _own_vectors(result_text(epilogue, source, product.sums, channel))
    steps = Epilogue("float32", scale=function.scale, bias=function.bias)
    expressions = ExpressionWriter(writer.script, f"value_{number}")
    text = _own_vectors(float_text(steps, source, product.sums, channel))
    texts = [text, *(f"{MIDDLE}{VECTOR}{n}[{channel}]" for n in range(function.vectors))]
    registers = {n: expressions.register(each, "float32") for n, each in enumerate(texts)}
    value = expressions.value(function.expression, registers)
    return expressions.stored(value, dtype)


def _own_vectors(text: str) -> str:
    """Return the text of an epilogue with the vectors of the function between the products."""
    # Those of the kernel's end have the names that the text uses.
    return re.sub(rf"\b({BIAS}|{SCALE})\[", rf"{MIDDLE}\1[", text)
