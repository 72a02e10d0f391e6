"""Tools of the passes: collected replacements, queries about a graph, dimensions of reshapes.

A pass walks the operators of a graph, records replacements of some, and builds the new graph from
all records at once. Tensors keep their names; operators that nothing reads any more are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from cpembed.graph.graph import Array, Graph, Operator, needed_operators, unused_name
from cpembed.graph.kinds import Kind, Product

K = TypeVar("K", bound=Kind)


class Rewriting:
    """Changes of a graph, recorded one by one and applied by :meth:`graph`.

    Replacements are inserted at the position of the operator that they replace, so that they may
    read whatever it could. Together they write its outputs, unless :meth:`redirect` sends the
    readers of its outputs to other tensors.
    """

    def __init__(self, source: Graph) -> None:
        self.source = source
        self.constants: dict[str, Array] = {}
        self._replaced: dict[str, tuple[Operator, ...]] = {}
        self._redirected: dict[str, str] = {}
        self._outputs: dict[str, str] = {}
        self._names = {*source.inputs, *source.constants, *source.producers}

    def fresh(self, preferred: str) -> str:
        """Reserve a tensor name: the preferred one, numbered if it is in use."""
        name = unused_name(preferred, self._names, ".")
        self._names.add(name)
        return name

    def constant(self, preferred: str, array: Array) -> str:
        """Add a constant and return its name; equal new constants are added once."""
        for name, existing in self.constants.items():
            if existing.dtype == array.dtype and np.array_equal(existing, array):
                return name
        name = self.fresh(preferred)
        self.constants[name] = array
        return name

    def replace(self, operator: Operator, *replacements: Operator) -> None:
        """Replace an operator by others."""
        self._replaced[operator.outputs[0]] = replacements

    def is_replaced(self, operator: Operator) -> bool:
        """True if an operator was replaced or redirected."""
        return operator.outputs[0] in self._replaced

    def redirect(self, tensor: str, target: str) -> bool:
        """Let all readers of ``tensor`` read ``target``, and drop the operator that wrote it.

        ``target`` has to be written earlier. Returns False, and changes nothing, if both are
        visible from outside: a network's output that is one of its inputs, or another output.
        """
        target = self.name_of(target)
        # An output keeps its name: the target is renamed, or a constant copied under that name.
        if tensor in self.source.outputs:
            if target in self.source.constants or target in self.constants:
                constants = {**self.source.constants, **self.constants}
                self.constants[tensor] = constants[target]
            elif (
                target in self.source.inputs
                or target in self.source.outputs
                or target in self._outputs
            ):
                return False
            else:
                self._outputs[target] = tensor
            self._replaced[tensor] = ()
            return True
        self._redirected[tensor] = target
        self._replaced[tensor] = ()
        return True

    def name_of(self, tensor: str) -> str:
        """Return the tensor that readers of ``tensor`` are redirected to, or itself."""
        while tensor in self._redirected:
            tensor = self._redirected[tensor]
        return tensor

    def graph(self) -> Graph:
        """Return the graph with all changes, without operators that nothing reads."""
        # The same object, by which callers see that nothing changed.
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
    """Apply a change to every operator, repeatedly until it replaces none."""
    while True:
        rewriting = Rewriting(graph)
        for operator in graph.operators:
            change(rewriting, operator)
        changed = rewriting.graph()
        if changed is graph:
            return graph
        graph = changed


def rewritten_float_products(
    graph: Graph, change: Callable[[Rewriting, Operator, Product], None]
) -> Graph:
    """Apply a change once to every product of floats without an epilogue."""
    rewriting = Rewriting(graph)
    for operator in graph.operators:
        match operator.kind:
            case Product(epilogue=None) as product if product.dtype == "float32":
                change(rewriting, operator, product)
            case _:
                pass
    return rewriting.graph()


def live(source: Graph, operators: Sequence[Operator], constants: Mapping[str, Array]) -> Graph:
    """Return a graph of the operators that its outputs depend on.

    Parameters
    ----------
    source : Graph
        Graph whose inputs and outputs the result has.
    operators : sequence of Operator
        Operators in order, some of which may be dead.
    constants : mapping from str to ndarray
        Further constants; unread ones are dropped.
    """
    return source.with_operators(needed_operators(operators, source.outputs), constants)


def producer_of(graph: Graph, tensor: str, kind: type[K]) -> tuple[Operator, K] | None:
    """Return the operator that writes a tensor, with its kind, if that is of a class.

    Parameters
    ----------
    graph : Graph
    tensor : str
    kind : type
        Class of the kind.
    """
    operator = graph.producers.get(tensor)
    if operator is None or not isinstance(operator.kind, kind):
        return None
    return operator, operator.kind


def only_reader(graph: Graph, tensor: str) -> Operator | None:
    """Return the only reader of a tensor that is no output of the network, else None."""
    readers = graph.readers[tensor]
    if len(readers) != 1 or tensor in graph.outputs:
        return None
    return readers[0]


@dataclass(frozen=True)
class Segment:
    """Adjacent dimensions of two shapes that hold the same elements."""

    outer: tuple[int, ...]
    inner: tuple[int, ...]


def segments(outer: Sequence[int], inner: Sequence[int]) -> list[Segment]:
    """Split two row-major shapes of the same elements into their shortest segments.

    Dimensions of one element belong to no segment.

    >>> segments((12, 128, 64), (1, 12, 128, 64))[0]
    Segment(outer=(0,), inner=(1,))
    >>> segments((6, 4), (2, 3, 4)), segments((2, 3), (6, 1))
    ([Segment(outer=(0,), inner=(0, 1)), Segment(outer=(1,), inner=(2,))], \
[Segment(outer=(0, 1), inner=(0,))])
    """
    # The shorter side takes its next dimension until both hold equally many elements.
    left, right = ([k for k, size in enumerate(shape) if size > 1] for shape in (outer, inner))
    result: list[Segment] = []
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
        result.append(Segment(tuple(firsts), tuple(seconds)))
    return result


def broadcastable(
    outer: Sequence[int], present: Sequence[bool], inner: Sequence[int]
) -> tuple[int, ...] | None:
    """Return the shape in which a tensor over some dimensions of ``outer`` broadcasts to ``inner``.

    Parameters
    ----------
    outer, inner : sequence of int
        Shapes of the same elements in row-major order.
    present : sequence of bool
        Dimensions of ``outer`` that the tensor has.

    Returns
    -------
    tuple of int or None
        None if a dimension of ``inner`` is present only in part.

    Examples
    --------
    >>> broadcastable((12, 128, 64), (True, True, False), (1, 12, 128, 64))
    (1, 12, 128, 1)
    """
    shape = [1] * len(inner)
    for segment in segments(outer, inner):
        # A segment that is present in part has no axis of its own in the other shape.
        flags = {present[dimension] for dimension in segment.outer}
        if len(flags) > 1:
            return None
        if flags.pop():
            for dimension in segment.inner:
                shape[dimension] = inner[dimension]
    return tuple(shape)
