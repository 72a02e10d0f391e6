"""Kernels that only move elements: reshapes, transpositions, parts put together, other layouts.

Where neighbours of the result are no neighbours of the input, blocks are transposed in vector
registers (:mod:`cpembed.codegen.transposition`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from cpembed.codegen.plan import KernelPlan
from cpembed.graph.kinds import Concat, Expand, Pad, Reshape, Slice, Transpose
from cpembed.graph.kinds.base import Kind, axis_of
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.network.layout import Layout
from cpembed.network.operators.copies import write_copy
from cpembed.network.operators.elementwise import broadcast_index
from cpembed.network.operators.emission import Kernel, chunks_for
from cpembed.network.operators.nest import Nest, View, axes, axis_name, digit, nest_over
from cpembed.network.operators.placed import Placed, memory_of, numbers, row_major_strides
from cpembed.network.operators.values import literal


@dataclass(frozen=True)
class Part:
    """Elements of the output that come from one input, or are one value (``source`` None)."""

    nest: Nest
    source: int | None
    value: float | int = 0


def move_plan(
    kind: Kind, inputs: Sequence[Placed], outputs: Sequence[Placed], threads: int
) -> KernelPlan:
    """Of a kind that moves elements between places that are known beforehand."""
    (output,) = outputs
    return _plan(kind.label, _parts(kind, inputs, output), inputs, output, threads)


def conversion_plan(source: Placed, target: Placed, threads: int) -> KernelPlan:
    """A tensor in another layout."""
    given = axes(len(target.shape))
    nest = nest_over(target.shape, [View(target.layout, given), View(source.layout, given)])
    return _plan("conversion", [Part(nest, 0)], [source], target, threads)


def _plan(
    label: str, parts: Sequence[Part], inputs: Sequence[Placed], output: Placed, threads: int
) -> KernelPlan:
    kernel = Kernel(inputs, [output], chunks_for([output], [output], threads))
    with kernel.written():
        for part in parts:
            if part.source is not None:
                write_copy(kernel, part.nest, f"in{part.source}", output.stored)
                continue
            value = literal(memory_of(numbers([part.value], output.dtype))[0].item(), output.stored)
            with kernel.points(part.nest):
                kernel.script.line(f"out0[{part.nest.places[0]}] = {value}")
    return kernel.plan(label)


def _parts(kind: Kind, inputs: Sequence[Placed], output: Placed) -> list[Part]:
    source, rank = inputs[0], len(output.shape)
    if isinstance(kind, Reshape):
        return [Part(_reshaped(source, output), 0)]
    if isinstance(kind, Concat):
        return _concatenated(kind, inputs, output)
    if isinstance(kind, Pad):
        return _padded(kind, source, output)
    given = axes(rank)
    if isinstance(kind, Transpose):
        index = [IndexExpr()] * rank
        for axis, of_source in enumerate(kind.order):
            index[of_source] = given[axis]
    elif isinstance(kind, Slice):
        steps = zip(given, kind.starts, kind.steps, strict=True)
        index = [e.times(step) + start for e, start, step in steps]
    else:
        assert isinstance(kind, Expand)
        index = broadcast_index(source.shape, rank)
    views = [View(output.layout, given), View(source.layout, tuple(index))]
    return [Part(nest_over(output.shape, views), 0)]


def _reshaped(source: Placed, output: Placed) -> Nest:
    """Along the factors that both shapes consist of; else by the row-major number of an element,
    which is its place where one of both is row-major."""
    flat = Layout.plain((source.type.elements,))
    both = source.is_row_major, output.is_row_major
    if all(both):
        return nest_over(flat.shape, [View(flat, axes(1)), View(flat, axes(1))])
    factors = common_factors(source.shape, output.shape)
    if factors is not None:
        views = [View(tensor.layout, grouped(tensor.shape, factors)) for tensor in (output, source)]
        return nest_over(factors, views)
    if both[1] and not both[0]:
        number = _number(source.shape)
        views = [View(flat, (number,)), View(source.layout, axes(len(source.shape)))]
        return nest_over(source.shape, views)
    number = _number(output.shape)
    given = View(output.layout, axes(len(output.shape)))
    if both[0]:
        return nest_over(output.shape, [given, View(flat, (number,))])
    index = tuple(
        digit(number, step, size)
        for step, size in zip(row_major_strides(source.shape), source.shape, strict=True)
    )
    return nest_over(output.shape, [given, View(source.layout, index)])


def _number(shape: Sequence[int]) -> IndexExpr:
    """An element's number in row-major order."""
    steps = row_major_strides(tuple(shape))
    return IndexExpr.of([IndexTerm(axis_name(k), step) for k, step in enumerate(steps)])


def common_factors(first: Sequence[int], second: Sequence[int]) -> tuple[int, ...] | None:
    """The coarsest shape of which both are groups of neighbouring axes; None where there is none.

    >>> common_factors((12, 64), (3, 4, 64)), common_factors((4, 6), (6, 4))
    ((3, 4, 64), None)
    """
    steps = {step for shape in (first, second) for step in row_major_strides(tuple(shape))}
    ordered = sorted({*steps, math.prod(first), 1})
    sizes: list[int] = []
    for low, high in itertools.pairwise(ordered):
        if high % low:
            return None
        sizes.append(high // low)
    return tuple(reversed(sizes))


def grouped(shape: Sequence[int], factors: Sequence[int]) -> tuple[IndexExpr, ...]:
    """The indices of axes that are groups of factors."""
    inside = row_major_strides(tuple(factors))
    found: list[IndexExpr] = []
    for step, size in zip(row_major_strides(tuple(shape)), shape, strict=True):
        terms = [
            IndexTerm(axis_name(k), low // step)
            for k, (low, factor) in enumerate(zip(inside, factors, strict=True))
            if factor > 1 and low % step == 0 and low < step * size
        ]
        found.append(IndexExpr.of(terms))
    return tuple(found)


def _concatenated(kind: Concat, inputs: Sequence[Placed], output: Placed) -> list[Part]:
    rank = len(output.shape)
    axis, first = axis_of(kind.axis, rank), 0
    given, parts = axes(rank), list[Part]()
    for number, source in enumerate(inputs):
        moved = tuple(e + first if k == axis else e for k, e in enumerate(given))
        views = [View(output.layout, moved), View(source.layout, given)]
        parts.append(Part(nest_over(source.shape, views), number))
        first += source.shape[axis]
    return parts


def _padded(kind: Pad, source: Placed, output: Placed) -> list[Part]:
    """The input, and around it the margins of one axis after the other: inside the axes before it
    and along all of those after it."""
    rank, sizes = len(output.shape), source.shape
    given = axes(rank)
    inside = tuple(e + before for e, before in zip(given, kind.before, strict=True))
    views = [View(output.layout, inside), View(source.layout, given)]
    parts = [Part(nest_over(sizes, views), 0)]
    for axis in range(rank):
        before, size = kind.before[axis], sizes[axis]
        for first, width in ((0, before), (before + size, kind.after[axis])):
            shape = (*sizes[:axis], width, *output.shape[axis + 1 :])
            if not math.prod(shape):
                continue
            moved = (*inside[:axis], given[axis] + first, *given[axis + 1 :])
            parts.append(Part(nest_over(shape, [View(output.layout, moved)]), None, kind.value))
    return parts
