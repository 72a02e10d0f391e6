"""Assignment problems: options of operators, layouts of tensors, and their cost.

Costs have one unit, usually microseconds. The layouts of a tensor are only numbers here, and a
conversion from one to another has a cost or is impossible.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from cpembed.errors import InvariantError

ANY = -1
"""Layout of a port that accepts, or writes, any layout."""


@dataclass(frozen=True)
class Option:
    """Execution of an operator.

    ``layouts`` has the number of the layout of each port, reads before writes. A port with ``ANY``
    reads every layout, or writes the one that is best.
    """

    name: str
    layouts: tuple[int, ...]
    cost: float


@dataclass(frozen=True)
class Node:
    """Operator with its options; ``reads`` and ``writes`` name a tensor per port."""

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    options: tuple[Option, ...]

    @property
    def ports(self) -> tuple[str, ...]:
        """Tensors of an option's layouts, in their order."""
        return self.reads + self.writes


@dataclass(frozen=True)
class Tensor:
    """Tensor that nodes write and read.

    Attributes
    ----------
    layouts : tuple of str
        Names of the layouts, which are numbered from 0.
    conversion : mapping from (int, int) to float
        Cost from one layout to another; absent if impossible, free from a layout to itself.
    input_layout : int, optional
        Layout of a network's input; None if a node writes the tensor.
    output_layouts : tuple of int
        Layouts in which a network's output has to exist in the end.
    """

    name: str
    layouts: tuple[str, ...]
    conversion: Mapping[tuple[int, int], float] = field(
        default_factory=dict[tuple[int, int], float]
    )
    input_layout: int | None = None
    output_layouts: tuple[int, ...] = ()

    def conversion_cost(self, written: int, needed: int) -> float:
        """Return the cost of providing a layout from the written one; infinite if impossible."""
        return 0.0 if written == needed else self.conversion.get((written, needed), math.inf)


@dataclass(frozen=True)
class Problem:
    """Nodes in topological order, and all of their tensors.

    Each node takes one option. A tensor is written in the layout of its producer's option, and a
    reader needs it in the layout of its own option. Each conversion, from the written layout to a
    needed one, is paid once, however many nodes read the result; conversions are never chained.
    """

    nodes: tuple[Node, ...]
    tensors: tuple[Tensor, ...]

    def __post_init__(self) -> None:
        _unique("node", (node.name for node in self.nodes))
        _unique("tensor", (tensor.name for tensor in self.tensors))
        for tensor in self.tensors:
            _check_tensor(tensor)
        # In topological order, so that every tensor is written before a node reads it.
        written = {tensor.name for tensor in self.tensors if tensor.input_layout is not None}
        for node in self.nodes:
            self._check_node(node, written)
            written.update(node.writes)
        for tensor in self.tensors:
            if tensor.name not in written:
                raise InvariantError(f"tensor {tensor.name}: neither given nor written by a node")

    def _check_node(self, node: Node, written: set[str]) -> None:
        for name in node.reads:
            if name not in written:
                raise InvariantError(f"node {node.name}: reads {name} before it is there")
        for name in node.writes:
            if name not in self.tensor_of:
                raise InvariantError(f"node {node.name}: writes {name}, which is no tensor")
            if name in written or node.writes.count(name) > 1:
                raise InvariantError(f"node {node.name}: writes {name} a second time")
        if not node.options:
            raise InvariantError(f"node {node.name}: has no option")
        tensors = [self.tensor_of[name] for name in node.ports]
        for option in node.options:
            where = f"node {node.name}, option {option.name}"
            if len(option.layouts) != len(tensors):
                raise InvariantError(f"{where}: {len(option.layouts)} layouts, not {len(tensors)}")
            if not math.isfinite(option.cost):
                raise InvariantError(f"{where}: its cost is not finite")
            for tensor, layout in zip(tensors, option.layouts, strict=True):
                if not ANY <= layout < len(tensor.layouts):
                    raise InvariantError(f"{where}: {tensor.name} has no layout {layout}")

    @cached_property
    def tensor_of(self) -> dict[str, Tensor]:
        return {tensor.name: tensor for tensor in self.tensors}

    @cached_property
    def producer_of(self) -> dict[str, tuple[int, int]]:
        """Node and port that write each tensor; inputs of the network have none."""
        return {
            name: (index, len(node.reads) + place)
            for index, node in enumerate(self.nodes)
            for place, name in enumerate(node.writes)
        }

    @cached_property
    def readers_of(self) -> dict[str, list[tuple[int, int]]]:
        """Nodes and ports that read each tensor."""
        readers: dict[str, list[tuple[int, int]]] = {tensor.name: [] for tensor in self.tensors}
        for index, node in enumerate(self.nodes):
            for port, name in enumerate(node.reads):
                readers[name].append((index, port))
        return readers


@dataclass(frozen=True)
class Conversion:
    """Copy of a tensor from the written layout to another one, both by number."""

    tensor: str
    source: int
    target: int


@dataclass(frozen=True)
class Assignment:
    """Solution of a problem.

    Attributes
    ----------
    options : mapping from str to int
        Option of each node.
    written : mapping from str to int
        Layout in which each tensor is written, or in which the network's caller passes it.
    cost, bound : float
        Total cost, and a lower bound on the cost of any assignment.
    proven : bool
        True if the cost is optimal.
    seconds : float
        Time of the search.
    solver_entries : int
        Number of table entries that the exact reductions left to the solver.
    """

    options: Mapping[str, int]
    written: Mapping[str, int]
    conversions: tuple[Conversion, ...]
    cost: float
    bound: float
    proven: bool
    seconds: float
    solver_entries: int

    @property
    def gap(self) -> float:
        """Relative distance between the cost and its lower bound."""
        if self.cost == self.bound:
            return 0.0
        return (self.cost - self.bound) / abs(self.cost) if self.cost else math.inf


def _unique(label: str, names: Iterable[str]) -> None:
    earlier: set[str] = set()
    for name in names:
        if name in earlier:
            raise InvariantError(f"{label} {name}: there are two of this name")
        earlier.add(name)


def _check_tensor(tensor: Tensor) -> None:
    count = len(tensor.layouts)
    inputs = () if tensor.input_layout is None else (tensor.input_layout,)
    for layout in (
        *inputs,
        *tensor.output_layouts,
        *(end for pair in tensor.conversion for end in pair),
    ):
        if not 0 <= layout < count:
            raise InvariantError(f"tensor {tensor.name}: has no layout {layout}")
    for (source, target), cost in tensor.conversion.items():
        # Pruning relies on costs that are not negative.
        if not 0 <= cost < math.inf:
            raise InvariantError(
                f"tensor {tensor.name}: converting {source} to {target} costs {cost}; leave it out "
                "where it is impossible"
            )


@dataclass(frozen=True)
class Outcome:
    """Cost of one option per node.

    If a conversion is impossible, ``cost`` is infinite and ``obstacle`` names the first tensor
    that cannot be converted.
    """

    written: Mapping[str, int]
    conversions: tuple[Conversion, ...]
    cost: float
    obstacle: str | None = None


def evaluate(problem: Problem, options: Sequence[int]) -> Outcome:
    """Compute the cost of one option per node, by which all solvers are checked.

    A tensor whose producer writes any layout gets the cheapest one, of several the first.
    """
    written: dict[str, int] = {}
    conversions: list[Conversion] = []
    costs = [node.options[k].cost for node, k in zip(problem.nodes, options, strict=True)]
    obstacle = None
    for tensor in problem.tensors:
        layout, impossible, cost = tensor_cost(problem, tensor, options)
        written[tensor.name] = layout
        costs.append(math.inf if impossible else cost)
        if impossible and obstacle is None:
            obstacle = tensor.name
        needed = _needed_layouts(problem, tensor, options)
        conversions += [Conversion(tensor.name, layout, k) for k in sorted(needed - {layout})]
    return Outcome(written, tuple(conversions), math.fsum(costs), obstacle)


def _needed_layouts(problem: Problem, tensor: Tensor, options: Sequence[int]) -> set[int]:
    """Return the layouts in which readers and the network's caller need a tensor."""
    needed = set(tensor.output_layouts)
    for node, port in problem.readers_of[tensor.name]:
        needed.add(problem.nodes[node].options[options[node]].layouts[port])
    return needed - {ANY}


def tensor_cost(problem: Problem, tensor: Tensor, options: Sequence[int]) -> tuple[int, int, float]:
    """Return a tensor's written layout, its impossible conversions, and the cost of the others.

    Parameters
    ----------
    problem : Problem
    tensor : Tensor
    options : sequence of int
        One option per node.

    Returns
    -------
    tuple of int, int, float
        Layout, number of impossible conversions, and cost of the possible ones.
    """
    layout = tensor.input_layout
    if layout is None:
        node, port = problem.producer_of[tensor.name]
        layout = problem.nodes[node].options[options[node]].layouts[port]
    needed = _needed_layouts(problem, tensor, options)
    layouts = range(len(tensor.layouts)) if layout == ANY else (layout,)
    # Impossible conversions count more than any cost; the last component breaks ties.
    impossible, cost, best = min((*_converting(tensor, k, needed), k) for k in layouts)
    return best, impossible, cost


def _converting(tensor: Tensor, written: int, needed: set[int]) -> tuple[int, float]:
    costs = [tensor.conversion_cost(written, layout) for layout in needed]
    possible = [cost for cost in costs if cost < math.inf]
    return len(costs) - len(possible), math.fsum(possible)
