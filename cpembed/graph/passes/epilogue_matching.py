"""What follows a product at every element of its result: factors and biases of the channels,
limits, and quantization."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.codegen.epilogue import channel_axes, channel_numbers
from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import Dequantize, Elementwise, Product, Quantize, Reshape
from cpembed.graph.kinds.elementwise import along
from cpembed.graph.passes.expressions import both_inputs, limited, limits, with_number
from cpembed.graph.passes.quantization import quantizing
from cpembed.graph.passes.rewriting import Array, only_reader, producer_of

Floats = NDArray[np.float64]


def result_vector(product: Product, shape: tuple[int, ...], array: Array) -> Floats | None:
    """An element for each channel, of an array that is broadcast to the result's ``shape``; None
    where it differs within a channel."""
    if array.size == 1:
        return np.full(product.channels, array.reshape(-1)[0], np.float64)
    if array.ndim > len(shape) or np.broadcast_shapes(array.shape, shape) != shape:
        return None
    numbers = channel_numbers(product.computation).reshape(shape)
    spread: NDArray[Any] = np.broadcast_to(array, shape)
    vector = np.zeros(product.channels, np.float64)
    vector[numbers] = spread
    return vector if np.array_equal(vector[numbers], spread) else None


def weights_vector(product: Product, array: Array) -> Floats | None:
    """An element for each channel, of an array of the second operand's size; None where it differs
    within a channel."""
    rows = by_channel(product, array)
    if rows is None or not np.array_equal(rows, np.broadcast_to(rows[:, :1], rows.shape)):
        return None
    return rows[:, 0].astype(np.float64)


def by_channel(product: Product, weights: Array) -> Array | None:
    """The second operand as a matrix: of each channel what it is multiplied with; None where a
    channel is no index of it."""
    order = _channels_first(product)
    if order is None:
        return None
    shape = product.computation.inputs[1].shape
    return weights.reshape(shape).transpose(order).reshape(product.channels, -1)


def weights_times(product: Product, weights: Array, factors: Floats) -> Floats | None:
    """The second operand with all of each channel multiplied by a number, in its own shape; None
    where a channel is no index of it."""
    order, rows = _channels_first(product), by_channel(product, weights)
    if order is None or rows is None:
        return None
    shape = product.computation.inputs[1].shape
    turned = (rows * factors[:, None]).reshape([shape[place] for place in order])
    return turned.transpose(np.argsort(order)).reshape(weights.shape)


def _channels_first(product: Product) -> list[int] | None:
    """The dimensions of the second operand, those of the channels in front."""
    operand = product.computation.inputs[1]
    index = product.computation.access(operand.name).index
    places = {i.single_iterator: place for place, i in enumerate(index)}
    axes = channel_axes(product.computation)
    if any(axis not in places for axis in axes):
        return None
    first = [places[axis] for axis in axes]
    return first + [place for place in range(len(index)) if place not in first]


def reduced(product: Product) -> int:
    """Products in each sum."""
    workload = product.computation
    return workload.macs // math.prod(workload.output.shape)


UNLIMITED = (-math.inf, math.inf)
RELU = (0.0, math.inf)


@dataclass(frozen=True)
class Chain:
    """``quantize(clip(sums * factor + addend))``, up to the operator ``last``.

    ``factor`` and ``addend`` have an element for each channel, or are None; ``integers`` are the
    addend's integers and their scales, an element of each for each channel, where it is dequantized
    from such. ``limits`` are those of the clipping, ``shape`` is the last tensor's.
    """

    product: Product
    shape: tuple[int, ...]
    last: Operator
    factor: Floats | None = None
    addend: Floats | None = None
    integers: tuple[Floats, Floats] | None = None
    limits: tuple[float, float] = UNLIMITED
    quantize: Quantize | None = None


def chains(graph: Graph, operator: Operator, product: Product) -> Iterator[Chain]:
    """The chain after a product, step by step, each longer than the one before; first that of the
    product alone."""
    chain = Chain(product, product.shape, operator)
    while True:
        yield chain
        reader = only_reader(graph, chain.last.output)
        if reader is None or chain.quantize is not None:
            return
        found = _longer(graph, chain, reader)
        if found is None:
            return
        chain = replace(found, last=reader, shape=graph.types[reader.output].shape)


def _longer(graph: Graph, chain: Chain, reader: Operator) -> Chain | None:
    match reader.kind:
        case Reshape():
            return chain
        case Quantize():
            kind = quantizing(reader)
            return None if kind is None else replace(chain, quantize=kind)
        case Elementwise() as kind:
            dtypes = [graph.types[name].dtype for name in reader.inputs]
            if kind.dtype != "float32" or kind.computes_in(dtypes) != "float32":
                return None
            return _elementwise(graph, chain, reader, kind)
        case _:
            return None


def _elementwise(graph: Graph, chain: Chain, reader: Operator, kind: Elementwise) -> Chain | None:
    if len(reader.inputs) == 1:
        found = limits(kind.expression)
        if found is not None:
            return replace(chain, limits=limited(chain.limits, found))
    if chain.limits != UNLIMITED:
        return None
    for operation in ("add", "mul"):
        vector = _vector(graph, chain, reader, kind, operation)
        if vector is None:
            continue
        if operation == "mul":
            factor = vector if chain.factor is None else chain.factor * vector
            addend = None if chain.addend is None else chain.addend * vector
            return replace(chain, factor=factor, addend=addend, integers=None)
        whole = vector if chain.addend is None else chain.addend + vector
        integers = None if chain.addend is not None else _integers(graph, chain, reader)
        return replace(chain, addend=whole, integers=integers)
    return None


def _vector(
    graph: Graph, chain: Chain, reader: Operator, kind: Elementwise, operation: str
) -> Floats | None:
    """What each channel is combined with."""
    number = with_number(kind.expression, operation)
    if number is not None and len(reader.inputs) == 1:
        return np.full(chain.product.channels, np.float32(number), np.float64)
    if len(reader.inputs) != 2 or not both_inputs(kind.expression, operation):
        return None
    other = _other(chain, reader)
    array = value_of(graph, other)
    if array is None or graph.types[reader.output].shape != chain.shape:
        return None
    return result_vector(chain.product, chain.shape, array)


def _other(chain: Chain, reader: Operator) -> str:
    first, second = reader.inputs
    return second if first == chain.last.output else first


def _integers(graph: Graph, chain: Chain, reader: Operator) -> tuple[Floats, Floats] | None:
    """The integers without a zero point that the addend is dequantized from, and their scales."""
    if len(reader.inputs) != 2:
        return None
    found = producer_of(graph, _other(chain, reader), Dequantize)
    if found is None or any(found[1].zero_point):
        return None
    operator, kind = found
    integers = graph.constants.get(operator.inputs[0])
    if integers is None:
        return None
    scales = along(kind.scale, kind.axis, integers.ndim, "float32")
    values, factors = (
        result_vector(chain.product, chain.shape, array)
        for array in (integers, np.broadcast_to(scales, integers.shape))
    )
    return None if values is None or factors is None else (values, factors)


def before_limits(graph: Graph, tensor: str) -> tuple[str, tuple[float, float]]:
    """The tensor of floats that becomes another by limits alone, which only the next one reads
    each, and these limits; the tensor itself where there are none."""
    clip = UNLIMITED
    while (found := producer_of(graph, tensor, Elementwise)) is not None:
        operator, kind = found
        inner = limits(kind.expression) if len(operator.inputs) == 1 else None
        if inner is None or kind.dtype != "float32" or not only_reader(graph, tensor):
            break
        clip, tensor = limited(inner, clip), operator.inputs[0]
    return tensor, clip


def value_of(graph: Graph, tensor: str) -> Array | None:
    """A constant, dequantized where it is one of integers."""
    if tensor in graph.constants:
        return graph.constants[tensor]
    found = producer_of(graph, tensor, Dequantize)
    if found is None or found[0].inputs[0] not in graph.constants:
        return None
    (array,) = found[1].evaluate([graph.constants[found[0].inputs[0]]])
    return array
