"""Turn products of floats and blocked dequantizations into products of packed weights."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from cpembed.graph.graph import Array, Graph, Operator
from cpembed.graph.kinds import (
    BlockDequantize,
    GroupedFormat,
    GroupedProduct,
    Product,
    Reshape,
)
from cpembed.graph.kinds.base import axis_of
from cpembed.graph.kinds.grouped import BITS
from cpembed.graph.passes.rewriting import Rewriting, producer_of
from cpembed.ir.computation import Computation


def grouped_products(graph: Graph) -> Graph:
    """Multiply by packed weights where the second factor is a constant dequantized in blocks.

    The blocks have to lie along the axis that is summed over. Weights have as few bits as their
    integers need. Results differ by roundings of float32. Any other product gets weights of floats.
    """
    rewriting = Rewriting(graph)
    for operator in graph.operators:
        match operator.kind:
            case Product(epilogue=None, zero_points=(0, 0)) as product:
                _convert(rewriting, operator, product)
            case _:
                pass
    return rewriting.graph()


def _convert(rewriting: Rewriting, operator: Operator, product: Product) -> None:
    graph = rewriting.source
    producer = producer_of(graph, operator.inputs[1], BlockDequantize)
    matrix = _matrix(product.computation)
    if producer is None or matrix is None or not _is_constant(graph, producer[0]):
        return
    dequantize, kind = producer
    integers, *parameters = (graph.constants[name] for name in dequantize.inputs)
    axis = axis_of(kind.axis, integers.ndim)
    if integers.ndim != 2 or axis != matrix.summed:
        return
    if axis == 0:
        integers, *parameters = (array.T for array in (integers, *parameters))
    packed = _packed(integers, parameters, kind.block)
    if packed is None:
        return
    form, arrays, zero = packed
    names = [
        rewriting.constant(f"{dequantize.inputs[0]} {label}", array)
        for label, array in zip(("packed", "scales", "zero points"), arrays, strict=False)
    ]
    shape = (matrix.rows, form.rows)
    result = rewriting.fresh(f"{operator.output} of rows")
    grouped = GroupedProduct(shape, form, zero or 0.0, has_zeros=zero is None)
    rewriting.replace(
        operator,
        Operator(operator.name, grouped, (operator.inputs[0], *names), (result,)),
        Operator(f"{operator.name} shape", Reshape(product.shape), (result,), operator.outputs),
    )


def _is_constant(graph: Graph, operator: Operator) -> bool:
    return all(map(graph.is_constant, operator.inputs))


@dataclass(frozen=True)
class _Matrix:
    """Product of rows: their number, and the axis of the second operand that is summed over."""

    rows: int
    summed: int


def _matrix(computation: Computation) -> _Matrix | None:
    """Return a computation as ``C[..., n] += A[..., k] * B`` with a matrix B, if it is one."""
    if computation.output.dtype != "float32" or len(computation.inputs) != 2:
        return None
    iterators = [
        [index.single_iterator for index in computation.access(operand.name).index]
        for operand in (*computation.inputs, computation.output)
    ]
    first, second, output = iterators
    if None in (*first, *second, *output) or len(second) != 2 or not first or not output:
        return None
    # Rows of both other tensors have to lie one after the other, in one order.
    summed, column = first[-1], output[-1]
    if first[:-1] != output[:-1] or {*second} != {summed, column} or summed == column:
        return None
    if any(dtype != "float32" for dtype in (o.dtype for o in computation.inputs)):
        return None
    shape = computation.output.shape
    return _Matrix(math.prod(shape[:-1]), second.index(summed))


def _packed(
    integers: Array, parameters: list[Array], block: int
) -> tuple[GroupedFormat, list[Array], float | None] | None:
    """Return the format of a matrix, its packed arrays, and its zero point if there is one."""
    scales, *zeros = parameters
    info = np.iinfo(integers.dtype)
    if info.bits != 8:
        return None
    lowest, highest = int(integers.min()), int(integers.max())
    bits, offset = next(
        (bits, offset)
        for bits, offset in ((b, 1 << (b - 1) if info.min < 0 else 0) for b in BITS)
        if lowest + offset >= 0 and highest + offset < 1 << bits
    )
    # Signed integers of few bits become codes by an offset of half their range.
    codes = (integers.astype(np.int16) + offset).astype(np.uint8)
    rows, columns = codes.shape
    form = GroupedFormat(rows, columns, bits, block)
    scales = scales if scales.dtype == np.float16 else scales.astype(np.float32)
    arrays = [form.packed(codes), form.tiled(scales)]
    points = zeros[0].astype(np.float32) + np.float32(offset) if zeros else None
    if points is None or (points == points.flat[0]).all():
        return form, arrays, float(offset if points is None else points.flat[0])
    fits = zeros[0].dtype.kind in "iu" and points.min() >= 0 and points.max() <= 255
    return form, [*arrays, form.tiled(points.astype(np.uint8) if fits else points)], None
