"""Kernels that bring a factor into the layout that the product reads: a thread moves an element."""

from __future__ import annotations

import math

from cpembed.codegen.script import HEADER, buffer, storage_dtype
from cpembed.ir.dtypes import size_bytes
from cpembed.targets.cuda.lower import Stored
from cpembed.targets.cuda.text import quotient, remainder, written
from cpembed.targets.cuda.writer import Writer, at, chosen

THREADS = 256
"""Of a block."""


def packing_kernel(stored: Stored, name: str) -> Writer:
    """``pack(original, packed)``: zero where a packed element has no original."""
    layout, writer = stored.layout, Writer()
    script, size = writer.script, size_bytes(layout.dtype)
    original = math.prod(layout.original_shape)
    blocks = -(-layout.elements // THREADS)
    declared = [
        buffer(f"{name}_original", original, layout.dtype),
        buffer(name, layout.elements, layout.dtype),
    ]
    script.line(HEADER)
    with (
        script.nested(f"def main({', '.join(declared)}):"),
        script.nested(
            f'for bx in T.thread_binding({blocks}, thread="blockIdx.x"):',
            f'for tx in T.thread_binding({THREADS}, thread="threadIdx.x"):',
            'with T.sblock("packing"):',
        ),
    ):
        script.line(f"group = T.axis.spatial({blocks}, bx)")
        script.line(f"thread = T.axis.spatial({THREADS}, tx)")
        script.line(f"T.reads({name}_original[0 : {original}])")
        script.line(f"T.writes({name}[0 : {layout.elements}])")
        script.line(f"number = group * {THREADS} + thread")
        values: dict[str, str] = {
            dimension.name: remainder(quotient("number", stride), dimension.extent)
            for dimension, stride in zip(layout.dimensions, layout.strides, strict=True)
        }
        extents = {d.name: d.extent for d in layout.dimensions}
        inside, address, stride = [f"number < {layout.elements}"], "0", 1
        found = list(zip(layout.source, layout.original_shape, strict=True))
        for index, extent in reversed(found):
            at_index = written(index, values, extents)
            inside += [f"0 <= {at_index}", f"{at_index} < {extent}"]
            address = f"{address} + ({at_index}) * {stride}"
            stride *= extent
        script.lines(chosen(inside, address))
        dtype = storage_dtype(layout.dtype)
        script.line(f'one = T.alloc_buffer((1,), "{dtype}", scope="local")')
        source = f"T.address_of({name}_original[place])"
        writer.call(f"cpembed_load_{size}", at("one", "0"), source, "valid")
        script.line(f"exists = T.Select(number < {layout.elements}, 1, 0)")
        script.line("target = T.Select(exists == 1, number, 0)")
        writer.call(
            f"cpembed_store_{size}", f"T.address_of({name}[target])", at("one", "0"), "exists"
        )
    return writer


def packing_blocks(stored: Stored) -> int:
    return -(-stored.layout.elements // THREADS)
