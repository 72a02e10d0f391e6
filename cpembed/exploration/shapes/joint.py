"""Shapes, ways and layouts of a network chosen together by CP-SAT.

Each product takes a way of an open shape, each tensor a layout that it is stored in, and each other
layout that some reader needs costs a copy, once. A way that is not known yet stands for all of its
shape: the executions that it has at least, any layouts.

:mod:`cpembed.network.assignment` assigns layouts where each node has options of its own; here the
nodes' options hang together, as at most K shapes are open.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportAttributeAccessIssue=false
from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cpembed.exploration.shapes.median import Budget, solved
from cpembed.exploration.shapes.network import Network, NetworkTensor, OtherNode, ProductNode
from cpembed.exploration.shapes.tensor_layout import TensorLayout
from cpembed.exploration.shapes.ways import Read, Way


@dataclass(frozen=True)
class Option:
    """A way of a shape, a column, for one use; ``way`` is None for all that are not known.
    ``cost``: its executions in bytes, at least."""

    column: int
    cost: int
    way: Way | None = None


@dataclass(frozen=True)
class Copy:
    """Of a tensor into a layout that it is not stored in; ``name`` is the layout's."""

    tensor: str
    layout: TensorLayout
    name: str
    moved_bytes: int

    def to_json(self) -> dict[str, Any]:
        return {
            "tensor": self.tensor,
            "shape": list(self.layout.shape),
            "layout": self.name,
            "moved_bytes": self.moved_bytes,
        }


@dataclass(frozen=True)
class Choice:
    """``options`` by the products of the network; infinite ``cost`` and ``bound`` where there is
    none. No choice costs less than ``bound``."""

    options: tuple[Option, ...]
    copies: tuple[Copy, ...]
    cost: float
    bound: float

    @property
    def columns(self) -> tuple[int, ...]:
        return tuple(sorted({option.column for option in self.options}))


@dataclass(frozen=True)
class Limits:
    """At most ``count`` shapes, within a ``budget`` of all columns; not all of ``without``."""

    count: int
    budget: Budget | None = None
    without: tuple[int, ...] = ()
    seconds: float | None = None


def choose_together(
    network: Network, options: Sequence[Sequence[Option]], limits: Limits
) -> Choice:
    """The least sum of executions and copies, both in bytes; ``options`` of each use."""
    if not all(options):
        return Choice((), (), math.inf, math.inf)
    return _Model(network, options, limits).solve()


def layouts_of(
    network: Network, options: Sequence[Sequence[Option]]
) -> dict[str, list[TensorLayout]]:
    """The layouts that each tensor may be stored in or copied to: those of ways, taken along by
    what stands between products, and the order of the axes."""
    found = {name: {tensor.plain: None} for name, tensor in network.tensors.items()}
    for node in network.products:
        for way in (option.way for option in options[node.use] if option.way is not None):
            found[node.writes][way.writes] = None
            for name, read in zip(node.reads, way.reads, strict=True):
                found[name][read.layout] = None
            if node.added is not None:
                found[node.added][way.writes] = None
    along = [node for node in network.others if node.takes_along]
    while True:
        before = sum(map(len, found.values()))
        for node in along:
            names = (*node.reads, *node.writes)
            for source in names:
                for layout in list(found[source]):
                    for name in names:
                        shape = network.tensors[name].shape
                        taken = layout.taken_along(shape, node.axes)
                        if name != source and taken is not None:
                            found[name][taken] = None
        if sum(map(len, found.values())) == before:
            return {name: list(layouts) for name, layouts in found.items()}


@dataclass
class _Stored:
    """Literals by the layout that a tensor is stored in, and of those that store it in any."""

    tensor: NetworkTensor
    of: dict[TensorLayout, list[Any]] = field(default_factory=dict[TensorLayout, list[Any]])
    any: list[Any] = field(default_factory=list[Any])
    copies: dict[TensorLayout, Any] = field(default_factory=dict[TensorLayout, Any])

    def copy_bytes(self, layout: TensorLayout) -> int:
        return layout.moved * self.tensor.item_bytes


class _Model:
    def __init__(
        self, network: Network, options: Sequence[Sequence[Option]], limits: Limits
    ) -> None:
        from ortools.sat.python import cp_model

        self._network, self._options, self._limits = network, options, limits
        self._model = cp_model.CpModel()
        self._terms: list[Any] = []
        self._stored = {name: _Stored(tensor) for name, tensor in network.tensors.items()}
        self._layouts = layouts_of(network, options)
        self._open_shapes()
        self._taken = [self._take(node) for node in network.products]
        self._along = {n.name: self._take_along(n) for n in network.others if n.takes_along}
        for stored in self._stored.values():
            if stored.tensor.given:
                stored.of[stored.tensor.plain] = [1]
        for node in network.others:
            if not node.takes_along:
                for name in node.writes:
                    self._stored[name].of[network.tensors[name].plain] = [1]
        self._read_all()

    def solve(self) -> Choice:
        self._model.minimize(sum(self._terms))
        response = solved(self._model, self._limits.seconds)
        if response.status.name == "INFEASIBLE":
            return Choice((), (), math.inf, math.inf)
        bound = math.ceil(response.best_objective_bound - 1e-6)
        if response.status.name not in ("OPTIMAL", "FEASIBLE"):
            least = sum(
                min(o.cost for o in self._options[node.use]) for node in self._network.products
            )
            return Choice((), (), math.inf, float(max(bound, least)))
        values = list(response.solution)
        chosen = tuple(
            next(option for option, literal in taken if values[literal.index])
            for taken in self._taken
        )
        copies = [
            Copy(name, layout, self._network.named(layout), stored.copy_bytes(layout))
            for name, stored in self._stored.items()
            for layout, literal in stored.copies.items()
            if values[literal.index]
        ]
        cost = sum(option.cost for option in chosen) + sum(copy.moved_bytes for copy in copies)
        return Choice(chosen, tuple(copies), float(cost), float(min(bound, cost)))

    # ------------------------------------------------------------------------------ what is chosen

    def _open_shapes(self) -> None:
        columns = dict.fromkeys(option.column for one in self._options for option in one)
        self._open = {column: self._model.new_bool_var("") for column in columns}
        limits = self._limits
        self._model.add(sum(self._open.values()) <= limits.count)
        if limits.budget is not None:
            sizes = [limits.budget.sizes[column] * o for column, o in self._open.items()]
            self._model.add(sum(sizes) <= limits.budget.most)
        if limits.without and all(column in self._open for column in limits.without):
            opened = sum(self._open[column] for column in limits.without)
            self._model.add(opened <= len(limits.without) - 1)

    def _take(self, node: ProductNode) -> list[tuple[Option, Any]]:
        """One option, of an open shape."""
        by_column: dict[int, list[Any]] = {}
        taken: list[tuple[Option, Any]] = []
        for option in self._options[node.use]:
            literal = self._model.new_bool_var("")
            taken.append((option, literal))
            by_column.setdefault(option.column, []).append(literal)
            self._terms.append(option.cost * literal)
            stored = self._stored[node.writes]
            if option.way is None:
                stored.any.append(literal)
            else:
                stored.of.setdefault(option.way.writes, []).append(literal)
        self._model.add_exactly_one([literal for _, literal in taken])
        for column, literals in by_column.items():
            self._model.add(sum(literals) <= self._open[column])
        return taken

    def _take_along(self, node: OtherNode) -> dict[TensorLayout, Any]:
        """One layout of the result."""
        (name,) = node.writes
        literals: dict[TensorLayout, Any] = {}
        for layout in self._layouts[name]:
            needed = [self._needed(layout, read, node) for read in node.reads]
            if layout.packed or any(one is None for one in needed):
                continue
            literals[layout] = self._model.new_bool_var("")
            self._stored[name].of.setdefault(layout, []).append(literals[layout])
        self._model.add_exactly_one(list(literals.values()))
        return literals

    def _needed(self, layout: TensorLayout, read: str, node: OtherNode) -> TensorLayout | None:
        """Where an input has to lie for a result in some layout; one of another rank lies in the
        order of its axes."""
        tensor = self._network.tensors[read]
        if len(tensor.shape) != len(layout.shape):
            return tensor.plain
        if layout == self._network.tensors[node.writes[0]].plain:
            return tensor.plain
        return layout.taken_along(tensor.shape, node.axes)

    # ------------------------------------------------------------------------------ what is copied

    def _read_all(self) -> None:
        network = self._network
        for node, taken in zip(network.products, self._taken, strict=True):
            known = [(option.way, literal) for option, literal in taken if option.way is not None]
            for port, name in enumerate(node.reads):
                self._read(name, ((way.reads[port], literal) for way, literal in known))
            if node.added is not None:
                self._read(node.added, ((Read(w.writes, False), literal) for w, literal in known))
        for node in network.others:
            for name in node.reads:
                if node.takes_along:
                    pairs = [
                        (Read(needed, False), literal)
                        for layout, literal in self._along[node.name].items()
                        if (needed := self._needed(layout, name, node)) is not None
                    ]
                    self._read(name, pairs)
                else:
                    self._read(name, [(Read(network.tensors[name].plain, False), 1)])
        for name, tensor in network.tensors.items():
            if tensor.wanted:
                self._read(name, [(Read(tensor.plain, False), 1)])

    def _read(self, name: str, reads: Iterable[tuple[Read, Any]]) -> None:
        """The tensor is there in the layout that is read: stored so, or copied."""
        stored = self._stored[name]
        readers: dict[tuple[TensorLayout, bool], list[Any]] = {}
        for read, literal in reads:
            # A buffer of ours has room for padding; what is given has none.
            readers.setdefault((read.layout, stored.tensor.given and read.padded), []).append(
                literal
            )
        for (layout, padded), literals in readers.items():
            there = [] if padded else [*stored.of.get(layout, ()), *stored.any]
            if any(isinstance(one, int) for one in there):
                continue
            if layout not in stored.copies:
                stored.copies[layout] = self._model.new_bool_var("")
                self._terms.append(stored.copy_bytes(layout) * stored.copies[layout])
            self._model.add(stored.copies[layout] + sum(there) >= sum(literals))
