"""Numbers that belong to the channels of a product: biases and scales as vectors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.codegen.epilogue import channel_axes, channel_numbers
from cpembed.graph.kinds import Product
from cpembed.graph.passes.rewriting import Array

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
