"""Graph of a network: named tensors, and operators in topological order."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from cpembed.errors import InvariantError, WorkloadError
from cpembed.graph.kinds.base import Array, Kind, TensorType


@dataclass(frozen=True)
class Operator:
    """Step of a network, ``outputs = kind(inputs)``; ``name`` is the model's name for it."""

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
    """Network as a value, whose operators follow those whose outputs they read.

    Attributes
    ----------
    inputs : mapping from str to TensorType
        Type of each input of the network.
    outputs : tuple of str
        Tensors that the network returns.
    constants : mapping from str to ndarray
        Tensors with the same elements in every call.

    Raises
    ------
    InvariantError
        If a tensor is written twice or read before it is written.
    """

    name: str
    inputs: Mapping[str, TensorType]
    outputs: tuple[str, ...]
    constants: Mapping[str, Array] = field(default_factory=dict[str, Array], compare=False)
    operators: tuple[Operator, ...] = ()

    def __post_init__(self) -> None:
        # Checked at once, since passes build graphs and a wrong one is hard to trace later.
        available = {*self.inputs, *self.constants}
        for operator in self.operators:
            for name in operator.inputs:
                if name not in available:
                    raise InvariantError(f"{self.name}: {operator.name} reads {name} too early")
            for name in operator.outputs:
                if name in available:
                    raise InvariantError(f"{self.name}: {operator.name} writes {name} again")
                available.add(name)
        for name in self.outputs:
            if name not in available:
                raise InvariantError(f"{self.name}: nothing writes the output {name}")

    @cached_property
    def types(self) -> dict[str, TensorType]:
        """Type of every tensor.

        Raises :class:`WorkloadError`, which names the operator, if a kind rejects its inputs.
        """
        types = dict(self.inputs)
        types |= {name: TensorType.of_array(array) for name, array in self.constants.items()}
        for operator in self.operators:
            try:
                results = operator.kind.types([types[name] for name in operator.inputs])
            except WorkloadError as error:
                raise WorkloadError(f"{self.name}: {operator.name}: {error}") from error
            types |= zip(operator.outputs, results, strict=True)
        return types

    @cached_property
    def producers(self) -> dict[str, Operator]:
        """Operator that writes each tensor."""
        return {name: operator for operator in self.operators for name in operator.outputs}

    @cached_property
    def readers(self) -> dict[str, tuple[Operator, ...]]:
        """Operators that read each tensor, each listed once."""
        readers: dict[str, list[Operator]] = {name: [] for name in self.types}
        for operator in self.operators:
            for name in dict.fromkeys(operator.inputs):
                readers[name].append(operator)
        return {name: tuple(operators) for name, operators in readers.items()}

    def is_constant(self, name: str) -> bool:
        """True if a tensor has the same elements in every call."""
        return name in self.constants

    def with_operators(
        self, operators: Iterable[Operator], constants: Mapping[str, Array] | None = None
    ) -> Graph:
        """Return the graph with other operators and further constants, without unread constants."""
        operators = tuple(operators)
        needed = {name for operator in operators for name in operator.inputs} | {*self.outputs}
        available = {**self.constants, **(constants or {})}
        read = {name: array for name, array in available.items() if name in needed}
        return replace(self, operators=operators, constants=read)


def unused_name(preferred: str, used: Container[str], mark: str = "#") -> str:
    """Return a name, numbered if it is in use.

    Parameters
    ----------
    preferred : str
        Name to start from.
    used : container of str
        Names that are in use.
    mark : str, default "#"
        Text between the name and its number.

    Examples
    --------
    >>> unused_name("x", {"x", "x#2"})
    'x#3'
    """
    name, number = preferred, 1
    while name in used:
        number += 1
        name = f"{preferred}{mark}{number}"
    return name


def needed_operators(operators: Sequence[Operator], outputs: Iterable[str]) -> tuple[Operator, ...]:
    """Return the operators that some outputs depend on, in their order."""
    # Backwards: an operator is needed if an output or a later, needed operator reads its result.
    needed, selected = {*outputs}, list[Operator]()
    for operator in reversed(operators):
        if needed.intersection(operator.outputs):
            needed.update(operator.inputs)
            selected.append(operator)
    return tuple(reversed(selected))


def evaluate(
    graph: Graph,
    inputs: Mapping[str, Array],
    keep: Callable[[str], bool] = lambda name: True,
) -> dict[str, Array]:
    """Compute every tensor of a network in numpy, as the reference for compiled kernels.

    Parameters
    ----------
    graph : Graph
    inputs : mapping from str to ndarray
        Array of each input, with exactly the network's types.
    keep : callable, default all tensors
        Predicate on the names of tensors to return besides the outputs.

    Raises
    ------
    WorkloadError
        If an input is missing or has another type.
    """
    check_inputs(graph, inputs)
    values: dict[str, Array] = {**graph.constants, **inputs}
    last = {name: k for k, operator in enumerate(graph.operators) for name in operator.inputs}
    for k, operator in enumerate(graph.operators):
        results = operator.kind.evaluate([values[name] for name in operator.inputs])
        values |= zip(operator.outputs, results, strict=True)
        # Dropped after their last reader, so that large networks fit into memory.
        for name in {*operator.inputs}:
            if last[name] == k and name not in graph.outputs and not keep(name):
                del values[name]
    return {n: a for n, a in values.items() if n in graph.outputs or keep(n)}


def check_inputs(graph: Graph, inputs: Mapping[str, Array]) -> None:
    """Raise :class:`WorkloadError` unless the arrays are exactly the inputs of a network."""
    for name, kind in graph.inputs.items():
        if name not in inputs:
            raise WorkloadError(f"{graph.name}: input {name} ({kind}) is missing")
        actual = TensorType.of_array(inputs[name])
        if actual != kind:
            raise WorkloadError(f"{graph.name}: input {name} is {actual}, the network has {kind}")
    unknown = [name for name in inputs if name not in graph.inputs]
    if unknown:
        expected = ", ".join(graph.inputs)
        raise WorkloadError(f"{graph.name} has no input {unknown[0]}: its inputs are {expected}")
