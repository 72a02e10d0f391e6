"""Loop: an operator that executes a graph, its body, a number of times.

Recurrent layers, scans, while loops and branches are loops, so that a sequence of any length has
one body.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from cpembed.errors import WorkloadError
from cpembed.graph.graph import Graph, Operator, evaluate
from cpembed.graph.kinds import Kind, Product, TensorType
from cpembed.graph.kinds.base import Array
from cpembed.ir.dtypes import numpy_dtype

T = TypeVar("T")

COUNT = TensorType((), "int64")
"""Type of a number of steps, and of the number of a step."""

CONDITION = TensorType((), "bool")
"""Type of a condition."""


@dataclass(frozen=True, eq=False)
class Loop(Kind):
    """Repeated execution of a graph with states, slices of tensors, and invariant tensors.

    The operator reads, in this order: the number of steps if ``limited``, the condition of the
    first step if ``conditional``, the initial states, the scanned tensors, and tensors that stay
    the same. It writes the final states, then the scanned results.

    The body's inputs are the number of the step if ``numbered``, the states, a slice of each
    scanned tensor, and the invariant tensors. Its outputs are the condition of the next step if
    ``conditional``, the new states, and a slice of each scanned result. Slices are along axis 0.

    Two loops are equal only if they are one object: bodies have constants, which graphs do not
    compare.

    Attributes
    ----------
    body : Graph
    steps : int, optional
        Number of steps, or the largest one; None if only the condition ends the loop.
    states : int
        Number of states.
    scanned, results : tuple of bool
        For each scanned tensor and each scanned result, True if it begins at the end.
    numbered, limited, conditional : bool
        See above.
    padded : bool
        True if results have ``steps`` slices however few steps are executed: those of the other
        steps are zeros. Scanned tensors end with the slice of the last step that is executed.
    """

    body: Graph
    steps: int | None
    states: int
    scanned: tuple[bool, ...] = ()
    results: tuple[bool, ...] = ()
    numbered: bool = False
    limited: bool = False
    conditional: bool = False
    padded: bool = False

    @property
    def label(self) -> str:
        if self.steps is None or self.limited or self.conditional:
            most = "" if self.steps is None else f", at most {self.steps}"
            return f"loop while true{most}" if self.conditional else f"loop{most}"
        return f"loop of {self.steps}"

    @property
    def is_fixed(self) -> bool:
        """True if the number of steps is the same in every run."""
        return self.steps is not None and not self.limited and not self.conditional

    @property
    def counted_steps(self) -> int:
        """Number of steps in costs: the largest one, or 1 if only a condition ends the loop."""
        return 1 if self.steps is None else self.steps

    def with_body(self, body: Graph) -> Loop:
        """Return the loop with another body of the same inputs and outputs."""
        return replace(self, body=body)

    # -- ports ------------------------------------------------------------------------------------

    @property
    def controls(self) -> int:
        """Number of the operator's inputs before the states."""
        return int(self.limited) + int(self.conditional)

    def split_inputs(
        self, inputs: Sequence[T]
    ) -> tuple[Sequence[T], Sequence[T], Sequence[T], Sequence[T]]:
        """Return the operator's inputs as controls, states, scanned and invariant ones."""
        a, b = self.controls, self.controls + self.states
        c = b + len(self.scanned)
        return inputs[:a], inputs[a:b], inputs[b:c], inputs[c:]

    @property
    def body_inputs(self) -> tuple[Sequence[str], Sequence[str], Sequence[str], Sequence[str]]:
        """The body's inputs: the number of the step, states, slices, invariant tensors."""
        names = tuple(self.body.inputs)
        a, b = int(self.numbered), int(self.numbered) + self.states
        c = b + len(self.scanned)
        return names[:a], names[a:b], names[b:c], names[c:]

    @property
    def body_outputs(self) -> tuple[Sequence[str], Sequence[str], Sequence[str]]:
        """The body's outputs: the condition, states, slices of results."""
        names = self.body.outputs
        a, b = int(self.conditional), int(self.conditional) + self.states
        return names[:a], names[a:b], names[b:]

    # -- types ------------------------------------------------------------------------------------

    def types(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        controls, states, scanned, invariant = self.split_inputs(inputs)
        expected = [COUNT] * self.limited + [CONDITION] * self.conditional
        if [*controls] != expected:
            raise WorkloadError(f"a loop is controlled by {[*map(str, controls)]}")
        if self.results and not self.is_fixed and not self.padded:
            raise WorkloadError(
                "the number of steps is computed while the network runs, so that results with a "
                "slice for each step have no fixed size: return states only, or fix the number"
            )
        if self.scanned and self.steps is None:
            raise WorkloadError("a loop over a tensor has a number of steps")
        slices = [self._slice_type(kind) for kind in scanned]
        numbers = [COUNT] * self.numbered
        if [*self.body.inputs.values()] != [*numbers, *states, *slices, *invariant]:
            raise WorkloadError("the inputs of a loop are not those of its body")
        conditions, ends, parts = (
            [self.body.types[name] for name in names] for names in self.body_outputs
        )
        if conditions != [CONDITION] * self.conditional:
            raise WorkloadError(f"a loop ends by {conditions[0]}, which is no condition")
        for begin, end in zip(states, ends, strict=True):
            if begin != end:
                raise WorkloadError(
                    f"a state of a loop is {begin} before a step and {end} after it: states keep "
                    "their type"
                )
        steps = self.steps or 0
        return (*states, *(TensorType((steps, *part.shape), part.dtype) for part in parts))

    def _slice_type(self, kind: TensorType) -> TensorType:
        if not kind.shape or kind.shape[0] != self.steps:
            raise WorkloadError(f"{kind} is scanned in {self.steps} steps along axis 0")
        return TensorType(kind.shape[1:], kind.dtype)

    # -- definition -------------------------------------------------------------------------------

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        types = self.types([TensorType.of_array(array) for array in inputs])
        _, states, _, _ = self.split_inputs(inputs)
        results = [np.zeros(kind.shape, numpy_dtype(kind.dtype)) for kind in types[self.states :]]
        limit = self.limit(inputs)
        for number, step in enumerate(self.run(inputs)):
            _, states, parts = step
            for part, result, backwards in zip(parts, results, self.results, strict=True):
                result[self.place(number, backwards, limit)] = part
        return (*states, *results)

    def limit(self, controls: Sequence[Array]) -> int | None:
        """Return the largest number of steps of a run from the operator's inputs, if there is one.

        A number that is read from the first input may be less than :attr:`steps`.
        """
        if not self.limited:
            return self.steps
        counted = max(0, int(controls[0]))
        return counted if self.steps is None else min(self.steps, counted)

    def run(
        self, inputs: Sequence[Array]
    ) -> Iterator[tuple[Sequence[Array], Sequence[Array], Sequence[Array]]]:
        """Yield the condition, the states and the slices of results after each step."""
        controls, states, scanned, invariant = self.split_inputs(inputs)
        goes_on = not self.conditional or bool(controls[-1])
        limit = self.limit(inputs)
        number = 0
        while goes_on and (limit is None or number < limit):
            slices = [
                array[self.place(number, backwards, limit)]
                for array, backwards in zip(scanned, self.scanned, strict=True)
            ]
            numbers = [np.asarray(number, np.int64)] * self.numbered
            arrays = [*numbers, *states, *map(np.ascontiguousarray, slices), *invariant]
            shaped = zip(self.body.inputs.items(), arrays, strict=True)
            values = evaluate(
                self.body,
                {name: array.reshape(kind.shape) for (name, kind), array in shaped},
                keep=_nothing,
            )
            conditions, states, parts = (
                [values[name] for name in names] for names in self.body_outputs
            )
            yield conditions, states, parts
            goes_on = not self.conditional or bool(conditions[0])
            number += 1

    def place(self, number: int, backwards: bool, limit: int | None) -> int:
        """Return the index of the slice of a step in a run of at most ``limit`` steps."""
        end = (limit if self.padded else self.steps) or 0
        return end - 1 - number if backwards else number


def _nothing(name: str) -> bool:
    return False


# -- graphs inside graphs -----------------------------------------------------------------------


def with_bodies(graph: Graph, change: Callable[[Graph], Graph]) -> Graph:
    """Return a graph whose loops have changed bodies; the graph itself if it has no loop."""
    if not any(isinstance(operator.kind, Loop) for operator in graph.operators):
        return graph
    return graph.with_operators(
        replace(operator, kind=operator.kind.with_body(change(operator.kind.body)))
        if isinstance(operator.kind, Loop)
        else operator
        for operator in graph.operators
    )


def nested_operators(graph: Graph, times: int = 1) -> Iterator[tuple[Operator, Graph, int]]:
    """Yield each operator, those inside loops after their loop, with its graph.

    The number is how often it is executed in a run; a loop that only a condition ends counts once.
    """
    for operator in graph.operators:
        yield operator, graph, times
        if isinstance(operator.kind, Loop):
            steps = operator.kind.counted_steps
            yield from nested_operators(operator.kind.body, times * steps)


def nested_graphs(graph: Graph) -> Iterator[Graph]:
    """Yield a graph and the bodies of its loops, at any depth."""
    yield graph
    for operator in graph.operators:
        if isinstance(operator.kind, Loop):
            yield from nested_graphs(operator.kind.body)


def multiplications(graph: Graph) -> int:
    """Return the number of multiplications of products in a run."""
    return sum(
        times * operator.kind.computation.macs
        for operator, _, times in nested_operators(graph)
        if isinstance(operator.kind, Product)
    )
