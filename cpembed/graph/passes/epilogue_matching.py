"""Match chains after a product: factors and biases per channel, clipping, quantization.

The passes that fuse such chains into epilogues decide how much of a chain they can take.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.codegen.epilogue import channel_axes, channel_numbers
from cpembed.graph.graph import Array, Graph, Operator
from cpembed.graph.kinds import Dequantize, Elementwise, Product, Quantize, Reshape
from cpembed.graph.kinds.elementwise import along
from cpembed.graph.passes.expressions import (
    clip_range,
    combines_inputs,
    composed_clip,
    number_operand,
)
from cpembed.graph.passes.quantization import byte_quantization
from cpembed.graph.passes.rewriting import only_reader, producer_of

Floats = NDArray[np.float64]
UNLIMITED = (-math.inf, math.inf)
RELU = (0.0, math.inf)


@dataclass(frozen=True)
class Chain:
    """Product and the operators after it, ``quantize(clip(sums * factor + addend))``.

    Attributes
    ----------
    shape : tuple of int
        Shape of the last operator's result.
    last : Operator
        Last operator of the chain.
    factor, addend : array of shape (channels,), optional
        Factor and addend of each channel.
    integers : pair of arrays of shape (channels,), optional
        Integers that the addend is dequantized from, and their scales.
    """

    product: Product
    shape: tuple[int, ...]
    last: Operator
    factor: Floats | None = None
    addend: Floats | None = None
    integers: tuple[Floats, Floats] | None = None
    clip: tuple[float, float] = UNLIMITED
    quantize: Quantize | None = None


def chains(graph: Graph, operator: Operator, product: Product) -> Iterator[Chain]:
    """Yield the chains after a product, from the product alone to the longest one.

    Parameters
    ----------
    graph : Graph
    operator : Operator
        Operator of the product.
    product : Product
        Its kind.
    """
    chain = Chain(product, product.shape, operator)
    while True:
        yield chain
        reader = only_reader(graph, chain.last.output)
        # Quantization ends a chain, since the operators after it read integers.
        if reader is None or chain.quantize is not None:
            return
        extended = _extended(graph, chain, reader)
        if extended is None:
            return
        chain = replace(extended, last=reader, shape=graph.types[reader.output].shape)


def _extended(graph: Graph, chain: Chain, reader: Operator) -> Chain | None:
    match reader.kind:
        case Reshape():
            return chain
        case Quantize():
            kind = byte_quantization(reader)
            return None if kind is None else replace(chain, quantize=kind)
        case Elementwise() as kind:
            dtypes = [graph.types[name].dtype for name in reader.inputs]
            if kind.dtype != "float32" or kind.computes_in(dtypes) != "float32":
                return None
            return _with_elementwise(graph, chain, reader, kind)
        case _:
            return None


def _with_elementwise(
    graph: Graph, chain: Chain, reader: Operator, kind: Elementwise
) -> Chain | None:
    if len(reader.inputs) == 1:
        clip = clip_range(kind.expression)
        if clip is not None:
            return replace(chain, clip=composed_clip(chain.clip, clip))
    # Epilogues clip after scale and bias, so none of these may follow a clip.
    if chain.clip != UNLIMITED:
        return None
    for operation in ("add", "mul"):
        vector = _operand_vector(graph, chain, reader, kind, operation)
        if vector is None:
            continue
        # A factor after an addend multiplies that too: (s f + a) g = s (f g) + a g.
        if operation == "mul":
            factor = vector if chain.factor is None else chain.factor * vector
            addend = None if chain.addend is None else chain.addend * vector
            return replace(chain, factor=factor, addend=addend, integers=None)
        total = vector if chain.addend is None else chain.addend + vector
        # The sum of two biases is no longer the integers of one of them.
        integers = None if chain.addend is not None else _integers(graph, chain, reader)
        return replace(chain, addend=total, integers=integers)
    return None


def _operand_vector(
    graph: Graph, chain: Chain, reader: Operator, kind: Elementwise, operation: str
) -> Floats | None:
    """Return the constant per channel that an operation combines with the chain, if it does."""
    number = number_operand(kind.expression, operation)
    if number is not None and len(reader.inputs) == 1:
        return np.full(chain.product.channels, np.float32(number), np.float64)
    if len(reader.inputs) != 2 or not combines_inputs(kind.expression, operation):
        return None
    array = _constant_value(graph, other_input(chain, reader))
    if array is None or graph.types[reader.output].shape != chain.shape:
        return None
    return result_vector(chain.product, chain.shape, array)


def other_input(chain: Chain, reader: Operator) -> str:
    """Return the input of a reader of two that is not the chain's result."""
    first, second = reader.inputs
    return second if first == chain.last.output else first


def _integers(graph: Graph, chain: Chain, reader: Operator) -> tuple[Floats, Floats] | None:
    """Return the integers (zero point 0) that an addend is dequantized from, and their scales."""
    if len(reader.inputs) != 2:
        return None
    producer = producer_of(graph, other_input(chain, reader), Dequantize)
    if producer is None or any(producer[1].zero_point):
        return None
    operator, kind = producer
    integers = graph.constants.get(operator.inputs[0])
    if integers is None:
        return None
    scales = along(kind.scale, kind.axis, integers.ndim, "float32")
    values, factors = (
        result_vector(chain.product, chain.shape, array)
        for array in (integers, np.broadcast_to(scales, integers.shape))
    )
    return None if values is None or factors is None else (values, factors)


def before_clip(graph: Graph, tensor: str) -> tuple[str, tuple[float, float]]:
    """Return the tensor of floats before any clipping, and the bounds of all clips together.

    Clips whose results have other readers stay.
    """
    clip = UNLIMITED
    while (producer := producer_of(graph, tensor, Elementwise)) is not None:
        operator, kind = producer
        inner = clip_range(kind.expression) if len(operator.inputs) == 1 else None
        if inner is None or kind.dtype != "float32" or not only_reader(graph, tensor):
            break
        clip, tensor = composed_clip(inner, clip), operator.inputs[0]
    return tensor, clip


def _constant_value(graph: Graph, tensor: str) -> Array | None:
    """Return the elements of a constant, dequantized if it is stored as integers."""
    if tensor in graph.constants:
        return graph.constants[tensor]
    producer = producer_of(graph, tensor, Dequantize)
    if producer is None or producer[0].inputs[0] not in graph.constants:
        return None
    (array,) = producer[1].evaluate([graph.constants[producer[0].inputs[0]]])
    return array


def result_vector(product: Product, shape: tuple[int, ...], array: Array) -> Floats | None:
    """Return one element per channel of an array that broadcasts to the result's shape.

    Parameters
    ----------
    product : Product
    shape : tuple of int
        Shape of the result.
    array : ndarray

    Returns
    -------
    array of shape (channels,), or None
        None if the array varies within a channel.
    """
    if array.size == 1:
        return np.full(product.channels, array.reshape(-1)[0], np.float64)
    if array.ndim > len(shape) or np.broadcast_shapes(array.shape, shape) != shape:
        return None
    numbers = channel_numbers(product.computation).reshape(shape)
    spread: NDArray[Any] = np.broadcast_to(array, shape)
    # One element per channel is written, and all are compared with it.
    vector = np.zeros(product.channels, np.float64)
    vector[numbers] = spread
    return vector if np.array_equal(vector[numbers], spread) else None


def without_constant_axes(array: Array) -> Array:
    """Return an array with one element along each axis on which nothing depends."""
    for axis in range(array.ndim):
        first = array.take([0], axis)
        if np.array_equal(np.broadcast_to(first, array.shape), array):
            array = first
    return array


def weights_vector(product: Product, array: Array) -> Floats | None:
    """Return one element per channel of an array like the weights; None if it varies within one."""
    rows = _weights_by_channel(product, array)
    if rows is None or not np.array_equal(rows, np.broadcast_to(rows[:, :1], rows.shape)):
        return None
    return rows[:, 0].astype(np.float64)


def _weights_by_channel(product: Product, weights: Array) -> Array | None:
    """Return the second operand with one row per channel; None if channels do not index it."""
    order = _channels_first(product)
    if order is None:
        return None
    shape = product.computation.inputs[1].shape
    return weights.reshape(shape).transpose(order).reshape(product.channels, -1)


def scaled_weights(product: Product, weights: Array, factors: Floats) -> Floats | None:
    """Return the second operand multiplied by one factor per channel.

    Parameters
    ----------
    product : Product
    weights : ndarray
        Second operand, whose shape the result has.
    factors : array of shape (channels,)

    Returns
    -------
    ndarray or None
        None if channels do not index the operand.
    """
    order, rows = _channels_first(product), _weights_by_channel(product, weights)
    if order is None or rows is None:
        return None
    shape = product.computation.inputs[1].shape
    turned = (rows * factors[:, None]).reshape([shape[dimension] for dimension in order])
    return turned.transpose(np.argsort(order)).reshape(weights.shape)


def _channels_first(product: Product) -> list[int] | None:
    """Return the dimensions of the second operand with those of the channels in front."""
    operand = product.computation.inputs[1]
    index = product.computation.access(operand.name).index
    dimension_of = {i.single_iterator: dimension for dimension, i in enumerate(index)}
    axes = channel_axes(product.computation)
    if any(axis not in dimension_of for axis in axes):
        return None
    first = [dimension_of[axis] for axis in axes]
    return first + [dimension for dimension in range(len(index)) if dimension not in first]


def reduction_length(product: Product) -> int:
    """Return the number of products in each sum."""
    workload = product.computation
    return workload.macs // math.prod(workload.output.shape)
