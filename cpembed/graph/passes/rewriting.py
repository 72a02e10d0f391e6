"""What passes share: replacing operators of a graph, and questions about what stands around one.

A pass looks at the operators of a graph, writes down what takes the place of some of them, and
makes the new graph of all of that at once. Tensors keep their names; what nothing reads any more is
left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from cpembed.graph.graph import Graph, Operator, needed_operators, unused_name
from cpembed.graph.kinds import Kind

Array = NDArray[Any]
K = TypeVar("K", bound=Kind)


class Rewriting:
    """Changes of a graph that are collected, then made by :meth:`graph`.

    The operators that take another's place stand where it stood, so that they may read all that it
    could. Between them they write its outputs, or these are said to be other tensors
    (:meth:`equal`).
    """

    def __init__(self, source: Graph) -> None:
        self.source = source
        self.constants: dict[str, Array] = {}
        self._replaced: dict[str, tuple[Operator, ...]] = {}
        self._equal: dict[str, str] = {}
        self._outputs: dict[str, str] = {}
        self._names = {*source.inputs, *source.constants, *source.producers}

    def fresh(self, wanted: str) -> str:
        """A name that no tensor has yet: the wanted one, numbered where it is in use."""
        name = unused_name(wanted, self._names, ".")
        self._names.add(name)
        return name

    def constant(self, wanted: str, array: Array) -> str:
        """The name of a new constant; one that was made of the same numbers is taken again."""
        for name, known in self.constants.items():
            if known.dtype == array.dtype and np.array_equal(known, array):
                return name
        name = self.fresh(wanted)
        self.constants[name] = array
        return name

    def replace(self, operator: Operator, *others: Operator) -> None:
        self._replaced[operator.outputs[0]] = others

    def is_replaced(self, operator: Operator) -> bool:
        return operator.outputs[0] in self._replaced

    def equal(self, tensor: str, other: str) -> bool:
        """Whoever reads ``tensor`` reads ``other``, which is written before it, and the operator
        that wrote it is left out.

        False, and nothing is changed, where both are to be seen from outside: an output of the
        network that is an input of it, or another output.
        """
        other = self.name_of(other)
        if tensor in self.source.outputs:
            if other in self.source.constants or other in self.constants:
                self.constants[tensor] = self.constants.get(other, self.source.constants.get(other))  # pyright: ignore[reportArgumentType]
            elif (
                other in self.source.inputs
                or other in self.source.outputs
                or other in self._outputs
            ):
                return False
            else:
                self._outputs[other] = tensor
            self._replaced[tensor] = ()
            return True
        self._equal[tensor] = other
        self._replaced[tensor] = ()
        return True

    def name_of(self, tensor: str) -> str:
        """The tensor that a tensor was said to be equal to, or itself."""
        while tensor in self._equal:
            tensor = self._equal[tensor]
        return tensor

    def graph(self) -> Graph:
        """The graph with all changes, and without operators that nothing reads."""
        if not self._replaced:
            return self.source
        operators = [
            new
            for old in self.source.operators
            for new in self._replaced.get(old.outputs[0], (old,))
        ]

        def final(name: str) -> str:
            name = self.name_of(name)
            return self._outputs.get(name, name)

        renamed = [
            replace(
                operator,
                inputs=tuple(map(final, operator.inputs)),
                outputs=tuple(map(final, operator.outputs)),
            )
            for operator in operators
        ]
        return live(self.source, renamed, {**self.source.constants, **self.constants})


def until_unchanged(graph: Graph, change: Callable[[Rewriting, Operator], None]) -> Graph:
    """The graph after a change of each operator, made again until it replaces none."""
    while True:
        rewriting = Rewriting(graph)
        for operator in graph.operators:
            change(rewriting, operator)
        changed = rewriting.graph()
        if changed is graph:
            return graph
        graph = changed


def live(source: Graph, operators: Sequence[Operator], constants: Mapping[str, Array]) -> Graph:
    """A graph of the operators that something reads, and of the constants that these read."""
    return source.with_operators(needed_operators(operators, source.outputs), constants)


def producer_of(graph: Graph, tensor: str, kind: type[K]) -> tuple[Operator, K] | None:
    """The operator that writes a tensor, and its kind, where that is of a class."""
    operator = graph.producers.get(tensor)
    if operator is None or not isinstance(operator.kind, kind):
        return None
    return operator, operator.kind


def only_reader(graph: Graph, tensor: str) -> Operator | None:
    """The operator that alone reads a tensor, which is no output of the network."""
    readers = graph.readers[tensor]
    if len(readers) != 1 or tensor in graph.outputs:
        return None
    return readers[0]


@dataclass(frozen=True)
class Segment:
    """Neighbouring dimensions of one shape, and of the other, that hold the same elements."""

    outer: tuple[int, ...]
    inner: tuple[int, ...]


def segments(outer: Sequence[int], inner: Sequence[int]) -> list[Segment]:
    """The shortest segments, in their order; dimensions of one element are in none.

    >>> segments((12, 128, 64), (1, 12, 128, 64))[0]
    Segment(outer=(0,), inner=(1,))
    >>> segments((6, 4), (2, 3, 4)), segments((2, 3), (6, 1))
    ([Segment(outer=(0,), inner=(0, 1)), Segment(outer=(1,), inner=(2,))], \
[Segment(outer=(0, 1), inner=(0,))])
    """
    left, right = ([k for k, size in enumerate(shape) if size > 1] for shape in (outer, inner))
    found: list[Segment] = []
    while left and right:
        firsts, seconds = [left.pop(0)], [right.pop(0)]
        a, b = outer[firsts[0]], inner[seconds[0]]
        while a != b:
            if a < b:
                firsts.append(left.pop(0))
                a *= outer[firsts[-1]]
            else:
                seconds.append(right.pop(0))
                b *= inner[seconds[-1]]
        found.append(Segment(tuple(firsts), tuple(seconds)))
    return found


def broadcastable(
    outer: Sequence[int], kept: Sequence[bool], inner: Sequence[int]
) -> tuple[int, ...] | None:
    """Of a tensor that has, of the shape ``outer``, the dimensions that are ``kept``, the shape in
    which it broadcasts to ``inner``; None where a dimension of that is kept in part.

    >>> broadcastable((12, 128, 64), (True, True, False), (1, 12, 128, 64))
    (1, 12, 128, 1)
    """
    shape = [1] * len(inner)
    for segment in segments(outer, inner):
        stays = {kept[place] for place in segment.outer}
        if len(stays) > 1:
            return None
        if stays.pop():
            for place in segment.inner:
                shape[place] = inner[place]
    return tuple(shape)
