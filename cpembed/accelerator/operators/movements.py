"""Movements of elements as copies: views, transpositions, concatenations, padding, slices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from cpembed.accelerator.operators.forms import FormBuilder, Forms, NoForm, number
from cpembed.accelerator.operators.logical import dimension_order
from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import (
    Concat,
    Expand,
    Gather,
    Pad,
    Reshape,
    Resize,
    Slice,
    Transpose,
)
from cpembed.graph.kinds.base import axis_of


def is_view(operator: Operator, graph: Graph) -> bool:
    """True if an operator's result has its input's elements in the same order.

    Both are row-major in the order of :func:`dimension_order`.
    """
    if not isinstance(operator.kind, Reshape | Transpose) or graph.is_constant(operator.inputs[0]):
        return False
    kind, result = (graph.types[n] for n in (operator.inputs[0], operator.output))
    if kind.elements != result.elements:
        return False
    before = np.arange(kind.elements).reshape(kind.shape)
    (after,) = operator.kind.evaluate([before])
    first = before.transpose(dimension_order(graph, operator.inputs[0])).reshape(-1)
    second = after.transpose(dimension_order(graph, operator.output)).reshape(-1)
    return bool(np.array_equal(first, second))


def movement_forms(operator: Operator, graph: Graph) -> Forms:
    """Return the form of a movement as copies."""
    kind = operator.kind
    if isinstance(kind, Reshape | Transpose) and is_view(operator, graph):
        return _view(operator, graph)
    builder = FormBuilder(operator, graph)
    output = builder.tensor(operator.output, dimension_order(graph, operator.output))
    if isinstance(kind, Concat):
        return _concatenated(builder, kind, output)
    if isinstance(kind, Pad):
        return _padded(builder, kind, output)
    return _copied(builder, output)


def _view(operator: Operator, graph: Graph) -> Forms:
    """Return the copy of a view, over elements in their order."""
    elements = graph.types[operator.output].elements
    builder = FormBuilder(operator, graph)
    names = {
        placeholder: builder.tensor(name, dimension_order(graph, name), (elements,))
        for placeholder, name in (("X", operator.inputs[0]), ("Y", operator.output))
    }
    builder.add("Y[i] = X[i]", {"i": elements}, names)
    return (builder.form("view"),)


def _concatenated(builder: FormBuilder, kind: Concat, output: str) -> Forms:
    operator = builder.operator
    order = dimension_order(builder.graph, operator.output)
    place = order.index(axis_of(kind.axis, len(order)))
    offset = 0
    for name in operator.inputs:
        source = builder.tensor(name, order)
        extents = {f"i{k}": size for k, size in enumerate(builder.shapes[source])}
        index = list(extents)
        store = [
            f"{axis} + {offset}" if k == place and offset else axis for k, axis in enumerate(index)
        ]
        names = {"Y": output, "X": source}
        builder.add(f"Y[{','.join(store)}] = X[{','.join(index)}]", extents, names)
        offset += builder.shapes[source][place]
    return (builder.form(""),)


def _padded(builder: FormBuilder, kind: Pad, output: str) -> Forms:
    operator = builder.operator
    if kind.mode != "constant" or min((*kind.before, *kind.after)) < 0:
        return NoForm(f"{operator.name}: padding by {kind.mode} elements is no copy of a box")
    order = dimension_order(builder.graph, operator.output)
    source = builder.tensor(operator.inputs[0], order)
    names = {"Y": output, "X": source}
    before = [kind.before[d] for d in order]
    extents = {f"i{k}": size for k, size in enumerate(builder.shapes[output])}
    if kind.value == 0:
        read = [f"i{k} - {b}" if b else f"i{k}" for k, b in enumerate(before)]
        text = f"Y[{','.join(extents)}] = X[{','.join(read)}]"
        builder.add(text, extents, names, outside=("X",))
        return (builder.form(""),)
    is_float = builder.dtypes[output].startswith("float")
    value = number(float(kind.value)) if is_float else str(int(kind.value))
    builder.add(f"Y[{','.join(extents)}] = {value}", extents, names)
    inside = {f"i{k}": size for k, size in enumerate(builder.shapes[source])}
    store = [f"i{k} + {b}" if b else f"i{k}" for k, b in enumerate(before)]
    builder.add(f"Y[{','.join(store)}] = X[{','.join(inside)}]", inside, names)
    return (builder.form(""),)


def _copied(builder: FormBuilder, output: str) -> Forms:
    """Return the form of a copy whose index is affine in that of the result."""
    operator, graph, kind = builder.operator, builder.graph, builder.operator.kind
    name = operator.inputs[0]
    order = dimension_order(graph, operator.output)
    extents = {f"i{k}": size for k, size in enumerate(builder.shapes[output])}
    # Iterator of each dimension of the result, in the graph's order.
    axis = {dimension: f"i{k}" for k, dimension in enumerate(order)}
    shape = graph.types[name].shape
    reads: list[str] = []
    if isinstance(kind, Transpose):
        reads = [axis[kind.order.index(d)] for d in range(len(shape))]
    elif isinstance(kind, Slice):
        for d in range(len(shape)):
            start, step = kind.starts[d], kind.steps[d]
            reads.append(
                f"{step}*{axis[d]} + {start}" if step > 0 else f"{start} - {-step}*{axis[d]}"
            )
    elif isinstance(kind, Expand):
        first = len(order) - len(shape)
        reads = [axis[first + d] if size > 1 else "0" for d, size in enumerate(shape)]
    elif isinstance(kind, Gather) and graph.is_constant(operator.inputs[1]):
        indices = graph.constants[operator.inputs[1]]
        if indices.size != 1:
            return NoForm(f"{operator.name}: it gathers by a list of indices")
        at, place = int(indices.reshape(-1)[0]), axis_of(kind.axis, len(shape))
        at += shape[place] if at < 0 else 0
        rank = indices.ndim
        reads = [
            str(at) if d == place else axis[d if d < place else d - 1 + rank]
            for d in range(len(shape))
        ]
    elif isinstance(kind, Resize):
        return _resized(builder, kind, output)
    elif isinstance(kind, Reshape):
        return _reshaped(builder, output)
    else:
        return NoForm(f"{operator.name}: {kind.label} is no copy of a box")
    source_order = dimension_order(graph, name)
    names = {"Y": output, "X": builder.tensor(name, source_order)}
    read = ",".join(reads[d] for d in source_order)
    builder.add(f"Y[{','.join(extents)}] = X[{read}]", extents, names)
    return (builder.form(""),)


def _resized(builder: FormBuilder, kind: Resize, output: str) -> Forms:
    """Return the form of a magnification by whole factors, of the nearest elements."""
    operator, graph = builder.operator, builder.graph
    name = operator.inputs[0]
    shape = graph.types[name].shape
    first = len(shape) - len(kind.sizes)
    factors = [1] * first
    for size, result in zip(shape[first:], kind.sizes, strict=True):
        factor = result // size if size else 0
        exact = kind.mode == "nearest" and size and result == factor * size
        if not exact or not np.array_equal(kind.indices(size, result), np.arange(result) // factor):
            return NoForm(f"{operator.name}: it resizes {size} to {result} by {kind.mode} elements")
        factors.append(factor)
    order = dimension_order(graph, operator.output)
    source = builder.tensor(name, dimension_order(graph, name))
    extents = {f"i{k}": size for k, size in enumerate(builder.shapes[source])}
    store: list[str] = []
    for k, dimension in enumerate(order):
        factor = factors[dimension]
        if factor > 1:
            extents[f"j{k}"] = factor
        store.append(f"{factor}*i{k} + j{k}" if factor > 1 else f"i{k}")
    names = {"Y": output, "X": source}
    read = ",".join(f"i{k}" for k in range(len(order)))
    builder.add(f"Y[{','.join(store)}] = X[{read}]", extents, names)
    return (builder.form(""),)


def _reshaped(builder: FormBuilder, output: str) -> Forms:
    """Return the form of a reshape that moves elements, over the common parts of the dimensions."""
    operator, graph = builder.operator, builder.graph
    name = operator.inputs[0]
    shapes = [graph.types[n].shape for n in (name, operator.output)]
    parts = _common_parts(*shapes)
    if parts is None:
        return NoForm(f"{operator.name}: the dimensions {shapes[0]} and {shapes[1]} share no parts")
    extents = {f"i{k}": size for k, size in enumerate(parts) if size > 1}
    texts: list[str] = []
    for shape, tensor in zip(shapes, (name, operator.output), strict=True):
        index = _mixed_radix(shape, parts)
        texts.append(",".join(index[d] for d in dimension_order(graph, tensor)))
    names = {"Y": output, "X": builder.tensor(name, dimension_order(graph, name))}
    builder.add(f"Y[{texts[1]}] = X[{texts[0]}]", extents, names)
    return (builder.form(""),)


def _common_parts(first: Sequence[int], second: Sequence[int]) -> tuple[int, ...] | None:
    """Return sizes of which the dimensions of both shapes are products, outermost first.

    >>> _common_parts((6, 4), (3, 8)), _common_parts((2, 3), (3, 2))
    ((3, 2, 4), None)
    """
    strides = {math.prod(shape[k:]) for shape in (first, second) for k in range(len(shape) + 1)}
    ordered = sorted(strides, reverse=True)
    if any(outer % inner for outer, inner in itertools.pairwise(ordered)):
        return None
    return tuple(outer // inner for outer, inner in itertools.pairwise(ordered))


def _mixed_radix(shape: Sequence[int], parts: Sequence[int]) -> list[str]:
    """Return the index of each dimension as a sum of its parts."""
    texts: list[str] = []
    for dimension in range(len(shape)):
        inner, outer = math.prod(shape[dimension + 1 :]), math.prod(shape[dimension:])
        terms: list[str] = []
        for k, size in enumerate(parts):
            stride = math.prod(parts[k + 1 :])
            if inner <= stride < outer and size > 1:
                terms.append(f"{stride // inner}*i{k}")
        texts.append(" + ".join(terms) or "0")
    return texts
