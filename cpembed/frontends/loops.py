"""The body of a loop while a front end writes it.

>>> from cpembed.graph.graph import evaluate
>>> from cpembed.graph.kinds import Apply, Elementwise, Input, TensorType
>>> outer = Builder("sums")
>>> x = outer.input("x", TensorType((3, 2), "float32"))
>>> loop = LoopBody(outer, "sum", 3)
>>> total = loop.state(outer.constant(np.zeros(2, np.float32)))
>>> add = Elementwise(Apply("add", (Input(0), Input(1))), "float32")
>>> total = loop.builder.add(add, [total, loop.slice(x)], "add")
>>> (last,), (sums,) = loop.emit([total], [(total, False)])
>>> graph = outer.graph({"last": last, "sums": sums})
>>> evaluate(graph, {"x": np.eye(3, 2, dtype="float32")})["sums"].tolist()
[[1.0, 0.0], [1.0, 1.0], [1.0, 1.0]]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from cpembed.errors import WorkloadError
from cpembed.frontends.builder import Builder, with_distinct_names, zeros_of
from cpembed.graph.graph import Graph, needed_operators
from cpembed.graph.kinds import Apply, Elementwise, Input, TensorType
from cpembed.graph.loop import CONDITION, COUNT, Loop


class LoopBody:
    """Loop whose body is written with a builder of its own, and then added to the outer graph.

    Parameters
    ----------
    outer : Builder
        Graph around the loop.
    name : str
        Name of the loop.
    steps : int, optional
        Number of steps, or the largest one; None if only a condition ends the loop.
    limit : str, optional
        Tensor of the outer graph with the number of steps.
    condition : str, optional
        Tensor of the outer graph that says whether there is a first step. The body has to compute
        whether there is a next one.
    """

    def __init__(
        self,
        outer: Builder,
        name: str,
        steps: int | None,
        *,
        limit: str | None = None,
        condition: str | None = None,
    ) -> None:
        self.outer = outer
        self.builder = Builder(name)
        self.name = name
        self.steps = steps
        self.limit = limit
        self.condition = condition
        self._number: str | None = None
        self._states: list[tuple[str, str]] = []
        self._slices: list[tuple[str, str, bool]] = []
        self._invariant: dict[str, str] = {}
        # States and results without elements are no part of the loop.
        self._empty: set[int] = set()

    def read(self, tensor: str) -> str:
        """Return a tensor of the outer graph, which is the same in every step, in the body."""
        if tensor not in self._invariant:
            if self.outer.is_constant(tensor):
                self._invariant[tensor] = self.outer.copy_constant(tensor, self.builder)
            else:
                self._invariant[tensor] = self._input(tensor, self.outer.types[tensor])
        return self._invariant[tensor]

    def number(self) -> str:
        """Return the number of the step, from 0."""
        if self._number is None:
            self._number = self._input("step", COUNT)
        return self._number

    def state(self, initial: str) -> str:
        """Add a state with its initial value, a tensor of the outer graph."""
        kind = self.outer.types[initial]
        name = self._input(f"{initial}/state", kind)
        if not kind.elements:
            self._empty.add(len(self._states))
        self._states.append((initial, name))
        return name

    def slice(self, tensor: str, backwards: bool = False) -> str:
        """Return the step's slice of a tensor along axis 0; the last one first if ``backwards``."""
        kind = self.outer.types[tensor]
        name = self._input(f"{tensor}/slice", TensorType(kind.shape[1:], kind.dtype))
        self._slices.append((tensor, name, backwards))
        return name

    def _input(self, stem: str, kind: TensorType) -> str:
        if not kind.elements:
            return self.builder.constant(zeros_of(kind), stem)
        name = self.builder.new_name(stem)
        self.builder.types[name] = kind
        return name

    def emit(
        self,
        states: Sequence[str],
        results: Sequence[tuple[str, bool]] = (),
        again: str | None = None,
    ) -> tuple[list[str], list[str]]:
        """Add the loop to the outer graph.

        Parameters
        ----------
        states : sequence of str
            Tensors of the body: the states after the step.
        results : sequence of (str, bool)
            Tensors of the body that are collected along a new axis 0; True begins at the end.
        again : str, optional
            Condition of the next step.

        Returns
        -------
        tuple of two lists
            The final states and the collected results, tensors of the outer graph.

        Raises
        ------
        WorkloadError
            If a state changes its type, or results have no fixed size.
        """
        self._check_states(states)
        types = [self.builder.types[name] for name, _ in results]
        wholes = [TensorType((self.steps or 0, *kind.shape), kind.dtype) for kind in types]
        if self.steps == 0:
            initial = [tensor for tensor, _ in self._states]
            return initial, [self._constant(zeros_of(kind)) for kind in wholes]
        nonempty = [k for k in range(len(self._states)) if k not in self._empty]
        collected = [k for k, kind in enumerate(wholes) if kind.elements or not self._is_fixed]
        if not nonempty and not collected:
            outputs: tuple[str, ...] = ()
        else:
            outputs = self._added(
                [self._states[k] for k in nonempty],
                [states[k] for k in nonempty],
                [results[k] for k in collected],
                again,
            )
        finals = [tensor for tensor, _ in self._states]
        for k, output in zip(nonempty, outputs, strict=False):
            finals[k] = output
        parts = dict(zip(collected, outputs[len(nonempty) :], strict=True))
        return finals, [
            parts[k] if k in parts else self._constant(zeros_of(kind))
            for k, kind in enumerate(wholes)
        ]

    @property
    def _is_fixed(self) -> bool:
        return self.steps is not None and self.limit is None and self.condition is None

    def _constant(self, array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> str:
        return self.outer.constant(array, f"{self.name}/empty")

    def _check_states(self, states: Sequence[str]) -> None:
        for (initial, name), after in zip(self._states, states, strict=True):
            kind, new = self.builder.types[name], self.builder.types[after]
            if kind != new:
                raise WorkloadError(
                    f"the state that begins as {initial} is {kind} before a step and {new} after "
                    "it: states keep their type"
                )

    def _added(
        self,
        begun: Sequence[tuple[str, str]],
        states: Sequence[str],
        results: Sequence[tuple[str, bool]],
        again: str | None,
    ) -> tuple[str, ...]:
        """Add the loop without tensors that have no elements."""
        conditions = [] if again is None else [again]
        outputs = (*conditions, *states, *(name for name, _ in results))
        builder = self.builder
        operators = needed_operators(builder.operators, outputs)
        read = {name for operator in operators for name in operator.inputs} | {*outputs}
        slices = [(t, n, b) for t, n, b in self._slices if n in read and n not in builder.constants]
        invariant = [(t, n) for t, n in self._invariant.items()
                     if n in read and not builder.is_constant(n)]  # fmt: skip
        number = self._number
        numbers = [number] if number is not None and number in read else []
        names = (*numbers, *(n for _, n in begun), *(n for _, n, _ in slices),
                 *(n for _, n in invariant))  # fmt: skip
        body = Graph(
            self.name,
            {name: builder.types[name] for name in names},
            outputs,
            {name: array for name, array in builder.constants.items() if name in read},
            # Names say that an operator is inside this loop.
            tuple(replace(o, name=f"{self.name}/{o.name}") for o in with_distinct_names(operators)),
        )
        loop = Loop(
            body=body,
            steps=self.steps,
            states=len(states),
            scanned=tuple(backwards for _, _, backwards in slices),
            results=tuple(backwards for _, backwards in results),
            numbered=bool(numbers),
            limited=self.limit is not None,
            conditional=self.condition is not None,
        )
        controls = [name for name in (self.limit, self.condition) if name is not None]
        inputs = [*controls, *(t for t, _ in begun), *(t for t, _, _ in slices),
                  *(t for t, _ in invariant)]  # fmt: skip
        assert self.condition is None or self.outer.types[self.condition] == CONDITION
        return self.outer.add_all(loop, inputs, self.name, f"{self.name}/loop")


def branched(
    outer: Builder,
    name: str,
    condition: str,
    branches: Sequence[Callable[[LoopBody], Sequence[str]]],
) -> list[str]:
    """Add two branches, of which a condition selects one: loops of at most one step.

    Parameters
    ----------
    outer : Builder
    name : str
        Name of the operator.
    condition : str
        Boolean tensor without dimensions.
    branches : sequence of callable
        Two functions that write a branch, if the condition is true and if it is false, to the body
        of a loop, and return its results.

    Returns
    -------
    list of str
        The results, tensors of the outer graph.

    Raises
    ------
    WorkloadError
        If the branches have results of two types.
    """
    opposite = Elementwise(Apply("not", (Input(0),)), "bool")
    conditions = condition, outer.add(opposite, [condition], f"{name}/not")
    results: list[str] | None = None
    for label, decisive, branch in zip(("then", "else"), conditions, branches, strict=True):
        loop = LoopBody(outer, f"{name}/{label}", 1, condition=decisive)
        outputs = branch(loop)
        types = [loop.builder.types[tensor] for tensor in outputs]
        if results is None:
            # Before the first branch nothing is computed: one of the branches replaces these.
            results = [outer.constant(zeros_of(kind), f"{name}/none") for kind in types]
        before = [outer.types[tensor] for tensor in results]
        if before != types:
            texts = [", ".join(map(str, kinds)) for kinds in (before, types)]
            raise WorkloadError(
                f"its branches give {texts[0]} and {texts[1]}, and its condition is computed while "
                "the network runs: bind the input that decides it (--set), or export the model "
                "with branches of one type"
            )
        for tensor in results:
            loop.state(tensor)
        again = loop.builder.constant(np.asarray(False), "again")
        results, _ = loop.emit(outputs, again=again)
    assert results is not None
    return results
