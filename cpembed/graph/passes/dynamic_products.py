"""Convert products of tensors that are quantized in each call to products of their integers.

The scale s and the zero point z of such a tensor are computed while the network runs, so that a
dequantization is an elementwise operator ``(q - z) s``. With weights ``w t`` of constant scales t,
``sum (q - z) s w t = (sum q w - z sum w) s t``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from cpembed.codegen.epilogue import BYTES, channel_numbers
from cpembed.graph.graph import Array, Graph, Operator
from cpembed.graph.kinds import Apply, Elementwise, Input, Product, Reshape, Scalar, Transpose
from cpembed.graph.passes.epilogue_matching import reduction_length, without_constant_axes
from cpembed.graph.passes.integer_products import (
    LARGEST_PRODUCT,
    LARGEST_SUM,
    QuantizedWeights,
    quantized_weights,
)
from cpembed.graph.passes.rewriting import (
    Rewriting,
    producer_of,
    rewritten_float_products,
    until_unchanged,
)
from cpembed.graph.passes.zero_points import weight_sums
from cpembed.ir.scalars import apply


def dynamic_products(graph: Graph) -> Graph:
    """Multiply the integers of tensors whose scale and zero point are computed in each call.

    Sums are exact; results differ from the graph's by the roundings of float32. Products stay in
    floats if the weights vary, or have zero points that do not fit eight bits.
    """
    return rewritten_float_products(until_unchanged(graph, _sink), _convert)


@dataclass(frozen=True)
class _Dynamic:
    """Tensor of integers with the tensors of its scale, and of its zero point if it has one."""

    integers: str
    scale: str
    zero_point: str | None


def _dynamic(graph: Graph, tensor: str) -> _Dynamic | None:
    """Return the integers that an elementwise operator dequantizes, if it does nothing else."""
    producer = producer_of(graph, tensor, Elementwise)
    if producer is None or producer[1].dtype != "float32":
        return None
    operator, kind = producer
    match kind.expression:
        case Apply("mul", (Apply("sub", (Input(q), Input(z))), Input(s))):
            numbers = q, s, z
        case Apply("mul", (Input(q), Input(s))):
            numbers = q, s, None
        case _:
            return None
    integers, scale = (operator.inputs[number] for number in numbers[:2])
    zero_point = None if numbers[2] is None else operator.inputs[numbers[2]]
    types = graph.types
    scalars = [scale] if zero_point is None else [scale, zero_point]
    if types[integers].dtype not in BYTES or types[scale].dtype != "float32":
        return None
    if zero_point is not None and types[zero_point].dtype not in BYTES:
        return None
    # One scale for all elements, or sums would have no factor in common.
    if any(types[name].elements != 1 for name in scalars):
        return None
    return _Dynamic(integers, scale, zero_point)


def _sink(rewriting: Rewriting, operator: Operator) -> None:
    """Move a dequantization below an operator that moves the elements of one tensor."""
    if not isinstance(operator.kind, Reshape | Transpose):
        return
    graph = rewriting.source
    dynamic = _dynamic(graph, operator.inputs[0])
    if dynamic is None or operator.output in graph.outputs:
        return
    (before, kind) = producer_of(graph, operator.inputs[0], Elementwise) or (None, None)
    assert before is not None
    assert kind is not None
    moved = rewriting.fresh(f"{operator.output} integers")
    inputs = tuple(moved if name == dynamic.integers else name for name in before.inputs)
    rewriting.replace(
        operator,
        replace(operator, inputs=(dynamic.integers,), outputs=(moved,)),
        Operator(operator.name, kind, inputs, operator.outputs),
    )


def _convert(rewriting: Rewriting, operator: Operator, product: Product) -> None:
    graph = rewriting.source
    first = _dynamic(graph, operator.inputs[0])
    second = quantized_weights(graph, operator.inputs[1], product)
    if first is None or second is None or second.zero_point:
        return
    # Twice: the sums, and the zero point's share of them.
    if 2 * reduction_length(product) * LARGEST_PRODUCT > LARGEST_SUM:
        return
    weights = second.centred if second.centred is not None else graph.constants.get(second.tensor)
    if weights is None:
        return
    name = second.tensor
    if second.centred is not None:
        name = rewriting.constant(f"{second.tensor} for {operator.name}", second.centred)
    sums = _integers(product, graph.types[first.integers].dtype, second)
    output = operator.output
    total = rewriting.fresh(f"{output} sums")
    operators = [replace(operator, kind=sums, inputs=(first.integers, name), outputs=(total,))]
    if first.zero_point is not None:
        # Where the window leaves an image, floats are 0, which is the zero point: no share of it.
        inside = _weight_sums(sums, graph.types[first.integers].shape, weights)
        corrected = rewriting.fresh(f"{output} centred")
        shares = rewriting.constant(f"{output} sums of weights", without_constant_axes(inside))
        expression = apply("sub", Input(0), apply("mul", Input(1), Input(2)))
        zero = _scalar(rewriting, first.zero_point, operators)
        operators.append(
            Operator(
                operator.name,
                Elementwise(expression, "int32", "int32"),
                (total, zero, shares),
                (corrected,),
            )
        )
        total = corrected
    scales = without_constant_axes(_along_channels(sums, second))
    factors = rewriting.constant(f"{output} scales", scales)
    scaled: Scalar = apply("mul", Input(0), apply("mul", Input(1), Input(2)))
    scale = _scalar(rewriting, first.scale, operators)
    operators.append(
        Operator(
            operator.name,
            Elementwise(scaled, "float32", "float32"),
            (total, scale, factors),
            operator.outputs,
        )
    )
    rewriting.replace(operator, *operators)


def _integers(product: Product, first: str, second: QuantizedWeights) -> Product:
    """Return the product of the integers, which stores sums of 32 bits."""
    a, b = (operand.name for operand in product.computation.inputs)
    dtypes = {a: first, b: second.dtype, product.computation.output.name: "int32"}
    return replace(product, computation=product.computation.with_dtypes(dtypes))


def _scalar(rewriting: Rewriting, tensor: str, operators: list[Operator]) -> str:
    """Return a tensor of one element without axes; a reshape is appended if it has some."""
    if not rewriting.source.types[tensor].shape:
        return tensor
    name = rewriting.fresh(f"{tensor} as a number")
    operators.append(Operator(name, Reshape(()), (tensor,), (name,)))
    return name


def _weight_sums(sums: Product, shape: tuple[int, ...], weights: Array) -> Array:
    """Return, for each element of the result, the sum of the weights that it is multiplied by."""
    first = sums.computation.inputs[0]
    if not first.zero_outside:
        vector = weight_sums(sums, weights).astype(np.int32)
        return vector[channel_numbers(sums.computation)].reshape(sums.shape)
    # At the border of an image fewer weights are multiplied.
    (result,) = sums.evaluate([np.ones(shape, first.dtype), weights])
    return result


def _along_channels(sums: Product, second: QuantizedWeights) -> Array:
    """Return, for each element of the result, the scale of its channel's weights."""
    scales = second.scale.astype(np.float32)
    return scales[channel_numbers(sums.computation)].reshape(sums.shape)
