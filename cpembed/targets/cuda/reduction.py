"""Kernel that adds the parts of a split reduction: each thread makes one element."""

from __future__ import annotations

import math

from cpembed.codegen.epilogue import channel_axes
from cpembed.codegen.plan import buffer
from cpembed.ir.dtypes import size_bytes
from cpembed.targets.cuda.epilogue import (
    ResultVector,
    input_declarations,
    output_declarations,
    output_elements,
    store_results,
)
from cpembed.targets.cuda.lower import TiledProduct
from cpembed.targets.cuda.writer import (
    PARTIAL,
    Functions,
    Writer,
    element_launch,
    element_nest,
    guarded_place,
    register_pointer,
)

STATISTICS = "Statistics"
"""Name of the buffer of the statistics of parts of a softmax: of each part and row the largest
score, as the exponent of a power of two, and the sum of powers."""


def reduction(product: TiledProduct, splits: int, *, weighted: bool = False) -> Functions:
    """Return the kernel that adds the parts of a split reduction.

    Parameters
    ----------
    product : TiledProduct
    splits : int
        Number of parts.
    weighted : bool
        The first factor is a softmax, of which each part has some keys: parts are weighted by the
        statistics of their rows.
    """
    elements = product.output.layout.elements
    writer = Writer()
    declared = [buffer(PARTIAL, splits * elements, product.sums)]
    if weighted:
        declared.append(buffer(STATISTICS, 2 * splits * _rows(product), "float32"))
    declared += [
        *input_declarations(product),
        *output_declarations(product),
    ]
    with writer.script.function(declared):
        _write_reduction(writer, product, splits, weighted=weighted)
    return {"reduction": (writer, element_launch("reduction", elements))}


def _rows(product: TiledProduct) -> int:
    """Return the number of rows of the result, whose last dimension is one row."""
    return product.output.layout.elements // product.output.layout.original_shape[-1]


def _write_reduction(writer: Writer, product: TiledProduct, splits: int, *, weighted: bool) -> None:
    script = writer.script
    elements, sums = product.output.layout.elements, product.sums
    reads = {PARTIAL: splits * elements}
    with element_nest(script, "reduction", elements, reads, output_elements(product)):
        script.lines(guarded_place([f"number < {elements}"], "number"))
        script.line(f'total = T.alloc_buffer((1,), "{sums}", scope="local")')
        script.line(f'one = T.alloc_buffer((1,), "{sums}", scope="local")')
        script.line(f"total[0] = T.{sums}(0)")
        if weighted:
            _write_largest(writer, product, splits)
        with script.nested(f"for other in T.serial({splits}):"):
            pointer = f"T.address_of({PARTIAL}[other * {elements} + place])"
            register = register_pointer("one", "0")
            writer.call(f"cpembed_load_{size_bytes(sums)}", register, pointer, "valid")
            if weighted:
                _write_weight(writer, product)
                script.line("one[0] = one[0] * weight[0]")
            script.line("total[0] = total[0] + one[0]")
        if weighted:
            # A row that no part has a key of is zero.
            script.line("powers[0] = T.Select(powers[0] == T.float32(0), T.float32(1), powers[0])")
            script.line("total[0] = total[0] / powers[0]")
        vector = ResultVector(
            sums="total",
            length=1,
            channel=lambda _: flat_channel(product, "place"),
            residual=lambda _: "place",
        )
        store_results(writer, product, vector)


def _statistic(product: TiledProduct, part: str, number: int) -> str:
    length = product.output.layout.original_shape[-1]
    return f"{STATISTICS}[({part} * {_rows(product)} + place // {length}) * 2 + {number}]"


def _write_largest(writer: Writer, product: TiledProduct, splits: int) -> None:
    """Write the largest score of a row over all parts."""
    script = writer.script
    for name in ("largest", "powers", "weight"):
        script.line(f'{name} = T.alloc_buffer((1,), "float32", scope="local")')
    script.lines(('largest[0] = T.float32("-inf")', "powers[0] = T.float32(0)"))
    with script.nested(f"for other in T.serial({splits}):"):
        script.line(f"largest[0] = T.max(largest[0], {_statistic(product, 'other', 0)})")
    # Powers of a row without keys are zero, not NaN.
    script.line('largest[0] = T.Select(largest[0] == T.float32("-inf"), T.float32(0), largest[0])')


def _write_weight(writer: Writer, product: TiledProduct) -> None:
    """Write the weight of a part, and its share of the sum of powers."""
    script = writer.script
    script.line(f"weight[0] = {_statistic(product, 'other', 0)} - largest[0]")
    writer.call("cpembed_exp2", register_pointer("weight", "0"))
    script.line(f"powers[0] = powers[0] + {_statistic(product, 'other', 1)} * weight[0]")


def flat_channel(product: TiledProduct, place: str) -> str:
    """Return the channel of an element of the result, by its number in the original layout."""
    output = product.program.unfused
    dimensions = [i.single_iterator for i in output.access(output.output.name).index]
    shape = output.output.shape
    terms: list[str] = []
    stride = 1
    # Channels may be cut into blocks, as in NCHW16c: digits of the place, innermost first.
    for axis in reversed(channel_axes(output)):
        dimension = dimensions.index(axis)
        inner = math.prod(shape[dimension + 1 :])
        terms.append(f"({place}) // {inner} % {shape[dimension]} * {stride}")
        stride *= output.extents[axis]
    return " + ".join(terms) or "0"
