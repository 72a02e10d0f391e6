"""Order of a tensor's dimensions in specifications: channels last for images.

Front ends order images as [n, channels, sizes], accelerators read neighbouring channels. A tensor
is an image if a convolution or a pooling reads or writes it, or an operator of elements connects it
to one.
"""

from __future__ import annotations

from collections.abc import Sequence

from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import (
    Concat,
    Dequantize,
    Elementwise,
    Pad,
    Pool,
    Product,
    Quantize,
    Resize,
    Slice,
    Table,
)

_ALIKE = (Concat, Dequantize, Elementwise, Pad, Quantize, Resize, Slice, Table)
"""Kinds whose results have the dimensions of their inputs."""

_images: list[tuple[Graph, frozenset[str]]] = []
"""Images of the graph that was looked at last."""


def images(graph: Graph) -> frozenset[str]:
    """Return the names of the tensors that are images."""
    if not _images or _images[0][0] is not graph:
        _images[:] = [(graph, _image_names(graph))]
    return _images[0][1]


def _image_names(graph: Graph) -> frozenset[str]:
    names = {n for operator in graph.operators for n in _windowed(operator, graph)}
    while True:
        connected: set[str] = set()
        for operator in graph.operators:
            alike = _same_dimensions(operator, graph)
            if names.intersection(alike):
                rank = len(graph.types[operator.outputs[0]].shape)
                connected.update(n for n in alike if len(graph.types[n].shape) == rank)
        if connected <= names:
            return frozenset(names)
        names |= connected


def _windowed(operator: Operator, graph: Graph) -> Sequence[str]:
    """Return the tensors that an operator reads by windows, and its result."""
    kind = operator.kind
    if isinstance(kind, Product):
        access = kind.computation.access(kind.computation.inputs[0].name)
        names = (operator.inputs[0], operator.output)
        if not any(len(index.iterators) > 1 for index in access.index):
            return ()
    elif isinstance(kind, Pool):
        names = (operator.inputs[0], operator.output)
    else:
        return ()
    return [n for n in names if len(graph.types[n].shape) >= 3]


def _same_dimensions(operator: Operator, graph: Graph) -> Sequence[str]:
    if isinstance(operator.kind, Product):
        # A residual is of the result's shape.
        shape = graph.types[operator.output].shape
        more = operator.inputs[2:]
        return [operator.output, *(n for n in more if graph.types[n].shape == shape)]
    if isinstance(operator.kind, _ALIKE):
        return [*operator.inputs, *operator.outputs]
    return ()


def dimension_order(graph: Graph, name: str) -> tuple[int, ...]:
    """Return the graph's dimensions of a tensor in the order that specifications have."""
    rank = len(graph.types[name].shape)
    if name in images(graph) and rank >= 3:
        return (0, *range(2, rank), 1)
    return tuple(range(rank))


def split_order(
    shape: Sequence[int], parts: Sequence[int], order: Sequence[int]
) -> tuple[int, ...] | None:
    """Return an order of the parts of dimensions that follows an order of the dimensions.

    >>> split_order((1, 6, 4, 4), (1, 2, 3, 4, 4), (0, 2, 3, 1))
    (0, 3, 4, 1, 2)

    Parameters
    ----------
    shape : sequence of int
        Sizes of the dimensions.
    parts : sequence of int
        Sizes of their parts, in the same order; dimensions of size 1 may have none.
    order : sequence of int
        Order of the dimensions.

    Returns
    -------
    tuple of int or None
        None where a part is of several dimensions.
    """
    groups: list[list[int]] = []
    at = 0
    for dimension, size in enumerate(shape):
        group: list[int] = []
        product = 1
        while product < size and at < len(parts):
            product *= parts[at]
            group.append(at)
            at += 1
        if product != size:
            return None
        # Parts of size 1 belong to the dimension of size 1 that is here, if one is.
        if size == 1 and at < len(parts) and parts[at] == 1:
            left = sum(s == 1 for s in shape[dimension:])
            if sum(p == 1 for p in parts[at:]) >= left:
                group.append(at)
                at += 1
        groups.append(group)
    for rest in range(at, len(parts)):
        if parts[rest] != 1:
            return None
        groups[-1].append(rest)
    return tuple(part for dimension in order for part in groups[dimension])
