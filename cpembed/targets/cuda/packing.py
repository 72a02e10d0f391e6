"""Kernels that pack a factor as TensorIR: each thread moves an element of the packed layout."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from cpembed.codegen.plan import HEADER, buffer, storage_dtype
from cpembed.ir.dtypes import size_bytes
from cpembed.ir.index import IndexExpr
from cpembed.targets.cuda.lower import GlobalOperand
from cpembed.targets.cuda.writer import (
    Functions,
    Writer,
    element_launch,
    element_nest,
    guarded_place,
    index_script,
    quotient,
    register_pointer,
    remainder,
)

Location = tuple[list[str], str]
"""Conditions under which an element of the packed layout has an original, and its address there."""


def packing(operand: GlobalOperand, name: str) -> Functions:
    """Return the kernel ``(original, packed)`` that packs a factor in its layout.

    Parameters
    ----------
    operand : GlobalOperand
        Factor in the packed layout.
    name : str
        Name of the packed buffer.
    """
    layout = operand.layout

    def locate(_: Writer) -> Location:
        values = {
            dimension.name: remainder(quotient("number", stride), dimension.extent)
            for dimension, stride in zip(layout.dimensions, layout.strides, strict=True)
        }
        extents = {d.name: d.extent for d in layout.dimensions}
        return original_location(operand, layout.source, values, extents)

    return gathering(operand, name, layout.elements, locate)


def gathering(
    operand: GlobalOperand, name: str, elements: int, locate: Callable[[Writer], Location]
) -> Functions:
    """Return the kernel ``(original, packed)`` whose threads fetch an element each.

    Parameters
    ----------
    operand : GlobalOperand
        Factor that is packed.
    name : str
        Name of the packed buffer.
    elements : int
        Number of its elements; one without an original is zero.
    locate : callable
        Writes variables, of the element ``number``, and returns where its original is.
    """
    writer, layout = Writer(), operand.layout
    script, original = writer.script, math.prod(layout.original_shape)
    declared = [
        buffer(f"{name}_original", original, layout.dtype),
        buffer(name, elements, layout.dtype),
    ]
    script.line(HEADER)
    reads, writes = {f"{name}_original": original}, {name: elements}
    with (
        script.nested(f"def main({', '.join(declared)}):"),
        element_nest(script, "packing", elements, reads, writes),
    ):
        conditions, address = locate(writer)
        script.lines(guarded_place([f"number < {elements}", *conditions], address))
        _move_element(writer, name, layout.dtype, elements)
    return {f"pack_{name}": (writer, element_launch(f"pack_{name}", elements))}


def _move_element(writer: Writer, name: str, dtype: str, elements: int) -> None:
    size, script = size_bytes(dtype), writer.script
    # Through a register, as device functions take pointers to registers.
    script.line(f'one = T.alloc_buffer((1,), "{storage_dtype(dtype)}", scope="local")')
    register = register_pointer("one", "0")
    writer.call(f"cpembed_load_{size}", register, f"T.address_of({name}_original[place])", "valid")
    # Elements without an original are stored as well: the load made them zero.
    script.line(f"exists = T.Select(number < {elements}, 1, 0)")
    script.line("target = T.Select(exists == 1, number, 0)")
    writer.call(f"cpembed_store_{size}", f"T.address_of({name}[target])", register, "exists")


def original_location(
    operand: GlobalOperand,
    coordinates: Sequence[IndexExpr],
    values: Mapping[str, str],
    extents: Mapping[str, int],
) -> Location:
    """Return the conditions and the address of an element in a factor's original.

    Parameters
    ----------
    operand : GlobalOperand
        Factor whose original is read.
    coordinates : sequence of IndexExpr
        Coordinates in the original.
    values : mapping of str to str
        TVMScript of each iterator.
    extents : mapping of str to int
    """
    conditions, address, stride = list[str](), "0", 1
    shape = operand.layout.original_shape
    # Row-major in the original: the last dimension has stride 1.
    for index, extent in reversed(list(zip(coordinates, shape, strict=True))):
        coordinate = index_script(index, values, extents)
        low, high = index.bounds(extents)
        conditions += [f"0 <= {coordinate}"] * (low < 0)
        conditions += [f"{coordinate} < {extent}"] * (high >= extent)
        address = f"{address} + ({coordinate}) * {stride}"
        stride *= extent
    return conditions, address
