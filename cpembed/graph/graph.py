"""A network: tensors by name, and operators in an order in which each follows what it reads."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from numpy.typing import NDArray

from cpembed.errors import InvariantError, WorkloadError
from cpembed.graph.kinds.base import Kind, TensorType

Array = NDArray[Any]


@dataclass(frozen=True)
class Operator:
    """``outputs = kind(inputs)``, all tensors by their names; ``name`` says where it stands in the
    model, in the model's own words."""

    name: str
    kind: Kind
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def output(self) -> str:
        """The only output."""
        (name,) = self.outputs
        return name


@dataclass(frozen=True)
class Graph:
    """``inputs`` and ``outputs`` of the network, by tensor; ``types`` of the inputs; ``constants``:
    tensors that are the same in every call.

    Raises :class:`InvariantError` for a tensor that is written twice or read before it is written.
    """

    name: str
    inputs: Mapping[str, TensorType]
    outputs: tuple[str, ...]
    constants: Mapping[str, Array] = field(default_factory=dict[str, Array], compare=False)
    operators: tuple[Operator, ...] = ()

    def __post_init__(self) -> None:
        known = {*self.inputs, *self.constants}
        for operator in self.operators:
            for name in operator.inputs:
                if name not in known:
                    raise InvariantError(f"{self.name}: {operator.name} reads {name} too early")
            for name in operator.outputs:
                if name in known:
                    raise InvariantError(f"{self.name}: {operator.name} writes {name} again")
                known.add(name)
        for name in self.outputs:
            if name not in known:
                raise InvariantError(f"{self.name}: nothing writes the output {name}")

    @cached_property
    def types(self) -> dict[str, TensorType]:
        """The type of every tensor.

        Raises :class:`WorkloadError`, which names the operator, where a kind refuses its inputs.
        """
        found = dict(self.inputs)
        found |= {name: TensorType.of(array) for name, array in self.constants.items()}
        for operator in self.operators:
            try:
                results = operator.kind.types([found[name] for name in operator.inputs])
            except WorkloadError as error:
                raise WorkloadError(f"{self.name}: {operator.name}: {error}") from error
            found |= zip(operator.outputs, results, strict=True)
        return found

    @cached_property
    def producers(self) -> dict[str, Operator]:
        """The operator that writes a tensor."""
        return {name: operator for operator in self.operators for name in operator.outputs}

    @cached_property
    def readers(self) -> dict[str, tuple[Operator, ...]]:
        """The operators that read a tensor, each once; empty for one that nothing reads."""
        found: dict[str, list[Operator]] = {name: [] for name in self.types}
        for operator in self.operators:
            for name in dict.fromkeys(operator.inputs):
                found[name].append(operator)
        return {name: tuple(operators) for name, operators in found.items()}

    def is_constant(self, name: str) -> bool:
        return name in self.constants

    def with_operators(
        self, operators: Iterable[Operator], constants: Mapping[str, Array] | None = None
    ) -> Graph:
        """Other operators, and further constants; of all constants those that are read."""
        operators = tuple(operators)
        needed = {name for operator in operators for name in operator.inputs} | {*self.outputs}
        everything = {**self.constants, **(constants or {})}
        kept = {name: array for name, array in everything.items() if name in needed}
        return replace(self, operators=operators, constants=kept)


def unused_name(wanted: str, taken: Container[str], mark: str = "#") -> str:
    """The wanted name, or where that is taken the first one with a number after it.

    >>> unused_name("x", {"x", "x#2"})
    'x#3'
    """
    name, number = wanted, 1
    while name in taken:
        number += 1
        name = f"{wanted}{mark}{number}"
    return name


def needed_operators(operators: Sequence[Operator], outputs: Iterable[str]) -> tuple[Operator, ...]:
    """Those that outputs depend on, in their order."""
    wanted, kept = {*outputs}, list[Operator]()
    for operator in reversed(operators):
        if wanted.intersection(operator.outputs):
            wanted.update(operator.inputs)
            kept.append(operator)
    return tuple(reversed(kept))


def evaluate(
    graph: Graph,
    inputs: Mapping[str, Array],
    keep: Callable[[str], bool] = lambda name: True,
) -> dict[str, Array]:
    """Every tensor of a network on given inputs, by each kind's own definition: the reference that
    kernels are compared with. ``keep``: of which tensors the array is returned.

    Raises :class:`WorkloadError` for an input that is missing or of another type.
    """
    check_inputs(graph, inputs)
    values: dict[str, Array] = {**graph.constants, **inputs}
    last = {name: k for k, operator in enumerate(graph.operators) for name in operator.inputs}
    for k, operator in enumerate(graph.operators):
        results = operator.kind.evaluate([values[name] for name in operator.inputs])
        values |= zip(operator.outputs, results, strict=True)
        for name in {*operator.inputs}:
            if last[name] == k and name not in graph.outputs and not keep(name):
                del values[name]
    return {n: a for n, a in values.items() if n in graph.outputs or keep(n)}


def check_inputs(graph: Graph, inputs: Mapping[str, Array]) -> None:
    """Raise :class:`WorkloadError` where arrays are not the inputs of a network."""
    for name, kind in graph.inputs.items():
        if name not in inputs:
            raise WorkloadError(f"{graph.name}: input {name} ({kind}) is missing")
        found = TensorType.of(inputs[name])
        if found != kind:
            raise WorkloadError(f"{graph.name}: input {name} is {found}, the network has {kind}")
    unknown = [name for name in inputs if name not in graph.inputs]
    if unknown:
        known = ", ".join(graph.inputs)
        raise WorkloadError(f"{graph.name} has no input {unknown[0]}: its inputs are {known}")
