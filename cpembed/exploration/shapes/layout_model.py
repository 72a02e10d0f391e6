"""Shapes, mappings and layouts of a network in one CP-SAT model.

Each product takes a mapping of an open shape, each tensor a layout that it is stored in, and each
other layout that some reader needs costs one copy.

:mod:`cpembed.network.assignment` assigns layouts where each node has options of its own; in this
model the nodes' options depend on each other, as at most K shapes are open.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportAttributeAccessIssue=false
from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cpembed.cost.ranking import Candidate, derive_candidate, overheads
from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.embedding.cpsat import Status
from cpembed.embedding.digit_search import check_embedding
from cpembed.embedding.embedding import Embedding
from cpembed.exploration.shapes.cells import (
    Cell,
    ProgramWalk,
    ProvenEmbedding,
    ShapeSearch,
    search_shape,
)
from cpembed.exploration.shapes.choice import Columns, OpenShapes, SetLimits
from cpembed.exploration.shapes.network import (
    Network,
    NetworkTensor,
    Port,
    ProductNode,
    TensorLayout,
    UnmappedNode,
    Use,
    tensor_layout,
)
from cpembed.exploration.shapes.shape import Shape
from cpembed.time_limit import Clock
from cpembed.transform.program import DerivedProgram, PackedOperand


@dataclass(frozen=True)
class Read:
    """The layout in which a layer reads a tensor.

    ``padded``: with a halo or padding around the tensor, or with elements more than once, none of
    which an input of the network has.
    """

    layout: TensorLayout
    padded: bool


@dataclass(frozen=True)
class LayerMapping:
    """An embedding with its executions and the layouts of its tensors, in the order of ports."""

    executions: int
    reads: tuple[Read, ...]
    writes: TensorLayout
    embedding: Embedding
    commuted: bool

    @property
    def layouts(self) -> tuple[TensorLayout, ...]:
        """The layouts that it reads, then the one that it writes."""
        return (*(read.layout for read in self.reads), self.writes)


@dataclass(frozen=True)
class LayerMappings:
    """The mappings of a shape in a layer, for each layouts the one of the fewest executions.

    Those that can be in no best choice are left out. Mappings that were not looked at have
    ``bound`` executions or more, infinite where all were.
    """

    mappings: tuple[LayerMapping, ...]
    bound: float = math.inf


def mappings_of(
    use: Use, constraints: ConstraintSet, shape: Shape, unit: int, seconds: float | None
) -> LayerMappings:
    """Return the mappings of a shape in a layer.

    Parameters
    ----------
    use
        The layer with its tensors.
    constraints
        The set under which the layer is embedded.
    shape
        The shape of the instruction.
    unit
        Bytes whose copying is worth an execution.
    seconds
        Time limit; None for no limit.
    """
    clock, cell = Clock(seconds), Cell(use.workload, constraints, shape)
    search = search_shape(cell, seconds)
    result = search.result
    if result.status is Status.INFEASIBLE:
        return LayerMappings(())
    walk = _MappingWalk(use, cell, search, unit)
    walk.run(clock)
    bound = math.inf if walk.complete else float(walk.executions)
    if not result.complete:
        bound = min(bound, float(cell.ideal))
    mappings = walk.needed()
    if result.problem is not None:
        for mapping in mappings:
            check_embedding(result.problem, search.constraints, mapping.embedding)
    return LayerMappings(mappings, bound)


def prove_mapping(cell: Cell, mapping: LayerMapping) -> ProvenEmbedding:
    """Return the embedding of a mapping of a cell with its program proven."""
    candidate = derive_candidate(cell.workload, cell.instruction, mapping.embedding)
    cost = overheads(candidate.program)
    return ProvenEmbedding.prove(candidate, cost, commuted=mapping.commuted, first_ranked=True)


class _MappingWalk(ProgramWalk):
    """Walk that collects mappings until no further one can be in a best choice."""

    def __init__(self, use: Use, cell: Cell, search: ShapeSearch, unit: int) -> None:
        super().__init__(cell, search)
        self._best: dict[tuple[tuple[Read, ...], TensorLayout], LayerMapping] = {}
        self._use, self._unit = use, unit
        self._commuted = search.commuted
        self._limit = math.inf

    def needed(self) -> tuple[LayerMapping, ...]:
        """Return the mappings that can be in a best choice."""
        # The limit may have fallen since a mapping was added.
        return tuple(m for m in self._best.values() if not self.ends_at(m.executions))

    def ends_at(self, executions: int) -> bool:
        return executions * self._unit >= self._limit

    def add(self, candidate: Candidate) -> None:
        use, program = self._use, candidate.program
        reads = tuple(_read(program, port) for port in use.reads)
        output = _operand(program, use.writes)
        writes = tensor_layout(output, use.writes.shape, stored=True)
        mapping = LayerMapping(
            program.calls, reads, writes, candidate.embedding, commuted=self._commuted
        )
        best = self._best.get((reads, writes))
        if best is None or mapping.executions < best.executions:
            self._best[reads, writes] = mapping
        # This mapping can replace any other one if the tensors that it reads are copied, and for
        # the readers those that the other one wrote. So a mapping whose executions exceed these and
        # the copies is never needed.
        copied = sum(
            read.layout.moved * port.item_bytes for read, port in zip(reads, use.reads, strict=True)
        )
        # The result is copied for readers that expect another layout: read and written.
        copied += 2 * writes.elements * use.writes.item_bytes
        if use.adds:
            # The tensor that is added has to lie as the result does.
            copied += writes.moved * use.writes.item_bytes
        self._limit = min(self._limit, mapping.executions * self._unit + copied)


def _operand(program: DerivedProgram, port: Port) -> PackedOperand:
    return next(operand for operand in program.operands if operand.name == port.operand)


def _read(program: DerivedProgram, port: Port) -> Read:
    operand = _operand(program, port)
    layout = tensor_layout(operand, port.shape, stored=False)
    return Read(layout, operand.elements != math.prod(port.shape))


@dataclass(frozen=True)
class Option:
    """A mapping of a shape (a column) for one use, or None for all that are not known.

    ``cost``: its executions in bytes, or a lower bound of them.
    """

    column: int
    cost: int
    mapping: LayerMapping | None = None


@dataclass(frozen=True)
class Copy:
    """A copy of a tensor into a layout that it is not stored in; ``name`` is the layout's."""

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
class LayoutChoice:
    """An option for each product of the network, with the copies between layouts.

    The ``cost`` is that of executions and copies, in bytes, and no choice costs less than
    ``bound``; both are infinite where there is no choice.
    """

    options: tuple[Option, ...] = ()
    copies: tuple[Copy, ...] = ()
    cost: float = math.inf
    bound: float = math.inf

    @property
    def columns(self) -> Columns:
        """The shapes of the options."""
        return tuple(sorted({option.column for option in self.options}))

    @property
    def is_known(self) -> bool:
        """True if there is a choice and every option in it has a known mapping."""
        return bool(self.options) and all(o.mapping is not None for o in self.options)


def choose_layouts(
    network: Network, options: Sequence[Sequence[Option]], limits: SetLimits
) -> LayoutChoice:
    """Return the choice of the least sum of executions and copies, both in bytes.

    Parameters
    ----------
    network
        The network.
    options
        The options of each use.
    limits
        Limits on the set of shapes, and on the time.
    """
    return _LayoutModel(network, options, limits).solve() if all(options) else LayoutChoice()


def _layouts_of(
    network: Network, options: Sequence[Sequence[Option]]
) -> dict[str, list[TensorLayout]]:
    """Return the layouts that each tensor may be stored in or copied to.

    These are the order of the axes and the layouts of mappings, carried along by the operators
    between products.
    """
    layouts = {name: {tensor.plain: None} for name, tensor in network.tensors.items()}
    for node in network.products:
        for mapping in (o.mapping for o in options[node.use] if o.mapping is not None):
            layouts[node.writes][mapping.writes] = None
            for name, read in zip(node.reads, mapping.reads, strict=True):
                layouts[name][read.layout] = None
            if node.added is not None:
                layouts[node.added][mapping.writes] = None
    carriers = [node for node in network.unmapped if node.any_layout]
    while True:
        # A layout may be carried along several operators, in either direction.
        before = sum(map(len, layouts.values()))
        for node in carriers:
            names = (*node.reads, *node.writes)
            for source in names:
                for layout in list(layouts[source]):
                    for name in names:
                        shape = network.tensors[name].shape
                        carried = layout.carried_to(shape, node.axes)
                        if name != source and carried is not None:
                            layouts[name][carried] = None
        if sum(map(len, layouts.values())) == before:
            return {name: list(distinct) for name, distinct in layouts.items()}


@dataclass
class _Storage:
    """The literals that store a tensor in a layout or in any, and those of copies by layout."""

    tensor: NetworkTensor
    stored: dict[TensorLayout, list[Any]] = field(default_factory=dict[TensorLayout, list[Any]])
    any_layout: list[Any] = field(default_factory=list[Any])
    copies: dict[TensorLayout, Any] = field(default_factory=dict[TensorLayout, Any])

    def copy_bytes(self, layout: TensorLayout) -> int:
        return layout.moved * self.tensor.item_bytes


class _LayoutModel(OpenShapes):
    """The model, built when it is made."""

    def __init__(
        self, network: Network, options: Sequence[Sequence[Option]], limits: SetLimits
    ) -> None:
        columns = dict.fromkeys(option.column for listed in options for option in listed)
        super().__init__(columns, limits)
        self._network, self._options = network, options
        self._terms: list[Any] = []
        self._storage = {name: _Storage(tensor) for name, tensor in network.tensors.items()}
        self._layouts = _layouts_of(network, options)
        self._product_literals = [self._choose_option(node) for node in network.products]
        self._carrier_literals = {
            node.name: self._choose_layout(node) for node in network.unmapped if node.any_layout
        }
        # Tensors that the model does not decide: inputs, and results of operators in fixed layouts.
        for storage in self._storage.values():
            if storage.tensor.is_input:
                storage.stored[storage.tensor.plain] = [1]
        for node in network.unmapped:
            if not node.any_layout:
                for name in node.writes:
                    self._storage[name].stored[network.tensors[name].plain] = [1]
        self._read_all()

    def solve(self) -> LayoutChoice:
        """Return the best choice that is found in the time, with a bound."""
        solution = self.minimize(sum(self._terms))
        if solution.infeasible:
            return LayoutChoice()
        if solution.values is None:
            least = sum(
                min(o.cost for o in self._options[node.use]) for node in self._network.products
            )
            return LayoutChoice(bound=max(solution.bound, float(least)))
        values = solution.values
        options = tuple(
            next(option for option, literal in literals if values[literal.index])
            for literals in self._product_literals
        )
        copies = tuple(
            Copy(name, layout, self._network.layout_name(layout), storage.copy_bytes(layout))
            for name, storage in self._storage.items()
            for layout, literal in storage.copies.items()
            if values[literal.index]
        )
        cost = sum(option.cost for option in options) + sum(copy.moved_bytes for copy in copies)
        return LayoutChoice(options, copies, float(cost), min(solution.bound, float(cost)))

    # ------------------------------------------------------------------------------ choices

    def _choose_option(self, node: ProductNode) -> list[tuple[Option, Any]]:
        """Post that a product takes exactly one option, of an open shape."""
        by_column: dict[int, list[Any]] = {}
        literals: list[tuple[Option, Any]] = []
        for option in self._options[node.use]:
            literal = self.model.new_bool_var("")
            literals.append((option, literal))
            by_column.setdefault(option.column, []).append(literal)
            self._terms.append(option.cost * literal)
            storage = self._storage[node.writes]
            # A mapping that is not searched yet is taken at its best: it writes any layout.
            if option.mapping is None:
                storage.any_layout.append(literal)
            else:
                storage.stored.setdefault(option.mapping.writes, []).append(literal)
        self.model.add_exactly_one([literal for _, literal in literals])
        for column, of_column in by_column.items():
            self.model.add(sum(of_column) <= self.open[column])
        return literals

    def _choose_layout(self, node: UnmappedNode) -> dict[TensorLayout, Any]:
        """Post that the result of an operator has exactly one layout."""
        (name,) = node.writes
        literals: dict[TensorLayout, Any] = {}
        for layout in self._layouts[name]:
            inputs = [self._input_layout(layout, read, node) for read in node.reads]
            # An operator between products does not store elements more than once.
            if layout.packed or None in inputs:
                continue
            literals[layout] = self.model.new_bool_var("")
            self._storage[name].stored.setdefault(layout, []).append(literals[layout])
        self.model.add_exactly_one(list(literals.values()))
        return literals

    def _input_layout(
        self, layout: TensorLayout, read: str, node: UnmappedNode
    ) -> TensorLayout | None:
        """Return the layout of an input for a result in some layout; None where there is none."""
        tensor = self._network.tensors[read]
        # Axes are compared by position, which means nothing for an input of another rank.
        if len(tensor.shape) != len(layout.shape):
            return tensor.plain
        if layout == self._network.tensors[node.writes[0]].plain:
            return tensor.plain
        return layout.carried_to(tensor.shape, node.axes)

    # ------------------------------------------------------------------------------ copies

    def _read_all(self) -> None:
        network = self._network
        for node, literals in zip(network.products, self._product_literals, strict=True):
            mapped = [(o.mapping, literal) for o, literal in literals if o.mapping is not None]
            for port, name in enumerate(node.reads):
                self._read(name, ((mapping.reads[port], literal) for mapping, literal in mapped))
            if node.added is not None:
                self._read(node.added, ((Read(m.writes, False), literal) for m, literal in mapped))
        for node in network.unmapped:
            for name in node.reads:
                if node.any_layout:
                    reads = [
                        (Read(layout, False), literal)
                        for result, literal in self._carrier_literals[node.name].items()
                        if (layout := self._input_layout(result, name, node)) is not None
                    ]
                    self._read(name, reads)
                else:
                    self._read(name, [(Read(network.tensors[name].plain, False), 1)])
        for name, tensor in network.tensors.items():
            if tensor.is_output:
                self._read(name, [(Read(tensor.plain, False), 1)])

    def _read(self, name: str, reads: Iterable[tuple[Read, Any]]) -> None:
        """Post that a tensor is stored in each layout that is read, or copied to it."""
        storage = self._storage[name]
        readers: dict[tuple[TensorLayout, bool], list[Any]] = {}
        for read, literal in reads:
            # A buffer of the network has room for padding; an input has none.
            padded = storage.tensor.is_input and read.padded
            readers.setdefault((read.layout, padded), []).append(literal)
        for (layout, padded), literals in readers.items():
            stored = [] if padded else [*storage.stored.get(layout, ()), *storage.any_layout]
            if any(isinstance(literal, int) for literal in stored):
                # The tensor always lies in this layout.
                continue
            if layout not in storage.copies:
                storage.copies[layout] = self.model.new_bool_var("")
                self._terms.append(storage.copy_bytes(layout) * storage.copies[layout])
            self.model.add(storage.copies[layout] + sum(stored) >= sum(literals))
