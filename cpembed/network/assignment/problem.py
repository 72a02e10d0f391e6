"""The choice of one way to execute each operator and one layout for each tensor, as a problem.

Costs are numbers of any one unit, microseconds as a rule. Nothing here knows what a layout is:
those of a tensor are numbered, and a conversion from one to another has a cost or is impossible.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from cpembed.errors import InvariantError

ANY = -1
"""Of a port in an option: any layout will do."""


@dataclass(frozen=True)
class Option:
    """One way to execute an operator. ``layouts``: the number of the layout of each port, reads
    first, then writes; ``ANY`` reads every layout, or writes whichever is chosen."""

    name: str
    layouts: tuple[int, ...]
    cost: float


@dataclass(frozen=True)
class Node:
    """An operator. ``reads`` and ``writes`` name tensors; one that is read at several ports is
    named as often."""

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    options: tuple[Option, ...]

    @property
    def ports(self) -> tuple[str, ...]:
        """The tensors of an option's layouts, in their order."""
        return self.reads + self.writes


@dataclass(frozen=True)
class Tensor:
    """What nodes write and read. ``layouts``: their names, numbered from 0. ``conversion``: the
    cost from one layout to another; impossible where absent, free from a layout to itself.
    ``given``: the layout of a network's input, None where a node writes the tensor. ``wanted``: the
    layouts in which a network's output has to exist in the end."""

    name: str
    layouts: tuple[str, ...]
    conversion: Mapping[tuple[int, int], float] = field(
        default_factory=dict[tuple[int, int], float]
    )
    given: int | None = None
    wanted: tuple[int, ...] = ()

    def converting(self, written: int, needed: int) -> float:
        """The cost of having a layout besides the one written; infinite where that cannot be."""
        return 0.0 if written == needed else self.conversion.get((written, needed), math.inf)


@dataclass(frozen=True)
class Problem:
    """Nodes, each after those whose tensors it reads, and all of their tensors.

    Each node takes one option. A tensor is written in the layout that its producer's option says;
    a reader needs it in the layout of its own. Each conversion, from the written layout to one that
    is needed, is paid once whoever reads the result; conversions are never chained.
    """

    nodes: tuple[Node, ...]
    tensors: tuple[Tensor, ...]

    def __post_init__(self) -> None:
        _unique("node", (node.name for node in self.nodes))
        _unique("tensor", (tensor.name for tensor in self.tensors))
        for tensor in self.tensors:
            _check_tensor(tensor)
        there = {tensor.name for tensor in self.tensors if tensor.given is not None}
        for node in self.nodes:
            self._check_node(node, there)
            there.update(node.writes)
        for tensor in self.tensors:
            if tensor.name not in there:
                raise InvariantError(f"tensor {tensor.name}: neither given nor written by a node")

    def _check_node(self, node: Node, there: set[str]) -> None:
        for name in node.reads:
            if name not in there:
                raise InvariantError(f"node {node.name}: reads {name} before it is there")
        for name in node.writes:
            if name not in self.tensor_of:
                raise InvariantError(f"node {node.name}: writes {name}, which is no tensor")
            if name in there or node.writes.count(name) > 1:
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
        """Of each tensor that is not given: its node and the port there."""
        return {
            name: (index, len(node.reads) + place)
            for index, node in enumerate(self.nodes)
            for place, name in enumerate(node.writes)
        }

    @cached_property
    def readers_of(self) -> dict[str, list[tuple[int, int]]]:
        """Of each tensor: the nodes and ports that read it."""
        found: dict[str, list[tuple[int, int]]] = {tensor.name: [] for tensor in self.tensors}
        for index, node in enumerate(self.nodes):
            for port, name in enumerate(node.reads):
                found[name].append((index, port))
        return found


@dataclass(frozen=True)
class Conversion:
    """Of one tensor, from the layout written to another."""

    tensor: str
    source: int
    target: int


@dataclass(frozen=True)
class Assignment:
    """What was chosen. ``options`` by node, ``written`` by tensor: the layout it is written (or
    given) in. ``cost`` of it all; no assignment costs less than ``bound``. ``left``: the entries of
    the tables of costs that the exact reductions left to the solver."""

    options: Mapping[str, int]
    written: Mapping[str, int]
    conversions: tuple[Conversion, ...]
    cost: float
    bound: float
    proven: bool
    seconds: float
    left: int

    @property
    def gap(self) -> float:
        """How much less than ``cost`` an assignment might cost, as a part of it."""
        if self.cost == self.bound:
            return 0.0
        return (self.cost - self.bound) / abs(self.cost) if self.cost else math.inf


def _unique(what: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InvariantError(f"{what} {name}: there are two of this name")
        seen.add(name)


def _check_tensor(tensor: Tensor) -> None:
    count = len(tensor.layouts)
    given = () if tensor.given is None else (tensor.given,)
    for layout in (*given, *tensor.wanted, *(end for pair in tensor.conversion for end in pair)):
        if not 0 <= layout < count:
            raise InvariantError(f"tensor {tensor.name}: has no layout {layout}")
    for (source, target), cost in tensor.conversion.items():
        if not 0 <= cost < math.inf:
            raise InvariantError(
                f"tensor {tensor.name}: converting {source} to {target} costs {cost}; leave it out "
                "where it is impossible"
            )


@dataclass(frozen=True)
class Outcome:
    """Of one option a node: ``cost`` is infinite where a conversion is impossible, and
    ``obstacle`` is then the first tensor that cannot be converted."""

    written: Mapping[str, int]
    conversions: tuple[Conversion, ...]
    cost: float
    obstacle: str | None = None


def evaluate(problem: Problem, options: Sequence[int]) -> Outcome:
    """The conversions that options (by number, one a node) lead to, and the cost of all. A tensor
    whose producer writes any layout has the one that costs least, the lowest number of several."""
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
        needed = needed_layouts(problem, tensor, options)
        conversions += [Conversion(tensor.name, layout, k) for k in sorted(needed - {layout})]
    return Outcome(written, tuple(conversions), math.fsum(costs), obstacle)


def needed_layouts(problem: Problem, tensor: Tensor, options: Sequence[int]) -> set[int]:
    """The layouts in which a tensor is read or wanted in the end."""
    needed = set(tensor.wanted)
    for node, port in problem.readers_of[tensor.name]:
        needed.add(problem.nodes[node].options[options[node]].layouts[port])
    return needed - {ANY}


def tensor_cost(problem: Problem, tensor: Tensor, options: Sequence[int]) -> tuple[int, int, float]:
    """The layout in which a tensor is written, the number of conversions that are impossible, and
    the cost of the others."""
    layout = tensor.given
    if layout is None:
        node, port = problem.producer_of[tensor.name]
        layout = problem.nodes[node].options[options[node]].layouts[port]
    needed = needed_layouts(problem, tensor, options)
    layouts = range(len(tensor.layouts)) if layout == ANY else (layout,)
    impossible, cost, best = min((*_converting(tensor, k, needed), k) for k in layouts)
    return best, impossible, cost


def _converting(tensor: Tensor, written: int, needed: set[int]) -> tuple[int, float]:
    costs = [tensor.converting(written, layout) for layout in needed]
    possible = [cost for cost in costs if cost < math.inf]
    return len(costs) - len(possible), math.fsum(possible)
