"""The embedding problem: instruction operands paired with workload operands, label by label.

Dataflow graphs agree in operation labels exactly when the statements' expression trees do, each
statement of one with one of the other; leaves then pair an access of the instruction with an access
of the workload (Rieber et al. 2021, sections 3.1 and 4.2.1). The operations of one point are joined
by identity relations and share their image.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cpembed.errors import SpecError, WorkloadError
from cpembed.hw.instruction import Instruction
from cpembed.ir.accesses import is_neutral
from cpembed.ir.computation import Assignment, Computation, Operand, changed_accesses
from cpembed.ir.expression import Access, Cast, Constant, Expression, Operation
from cpembed.ir.index import IndexExpr

Element = tuple[str, tuple[int, ...]]
"""Operand, or port of one, and an element's coordinates."""

_MOST_INDICES = 64
"""Maximum number of index arrays that a problem keeps; an instruction has a few operands."""


@dataclass(frozen=True)
class AccessPair:
    """A family of edges of the dataflow: the instruction's access and its workload counterpart."""

    instruction: Access
    workload: Access


@dataclass(frozen=True)
class EmbeddingProblem:
    """A workload, an instruction, and the pairing of their operands and accesses.

    Both are in port form (:mod:`cpembed.ir.accesses`): each operand has one access.

    Attributes
    ----------
    workload, instruction : Computation, Instruction
        Both in port form. A workload operand that has several accesses is a port for each, ``X@0``,
        ``X@1`` ...
    roles : Mapping
        Workload operand of each instruction operand.
    pairs : tuple of AccessPair
        Accesses in the order of the statements, the stores last.
    original : Computation
        The workload before it was written on ports.
    groups : Mapping
        Fused axes of the workload with their members (:mod:`cpembed.embedding.flatten`).
    unfused : EmbeddingProblem, optional
        The problem before they were fused.
    """

    workload: Computation
    instruction: Instruction
    roles: Mapping[str, str]
    pairs: tuple[AccessPair, ...]
    original: Computation
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    unfused: EmbeddingProblem | None = None

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """Instruction operands that are written."""
        return tuple(operand.name for operand in self.instruction.computation.outputs)

    @cached_property
    def store_pairs(self) -> tuple[AccessPair, ...]:
        """Paired accesses that write."""
        return tuple(pair for pair in self.pairs if pair.instruction.operand in self.outputs)

    def shared_elements(
        self, shapes: Mapping[str, tuple[int, ...]] | None = None
    ) -> list[tuple[Element, Element]]:
        """Return the pairs of elements of two ports that are one of the instruction's tensor.

        ``shapes`` are the operands' at other than the largest extents.
        """
        operands = self.instruction.computation.operands
        shapes = shapes or {operand.name: operand.shape for operand in operands}
        owners: dict[Element, Element] = {}
        shared: list[tuple[Element, Element]] = []
        for port, element in port_elements(self.instruction, shapes):
            first = owners.setdefault(element, port)
            if first != port:
                shared.append((first, port))
        return shared

    @cached_property
    def index_names(self) -> dict[str, tuple[str | None, ...]]:
        """Instruction axis that alone indexes each dimension of each operand, or None."""
        return {
            pair.instruction.operand: tuple(i.single_iterator for i in pair.instruction.index)
            for pair in self.pairs
        }

    @cached_property
    def index_axes(self) -> dict[str, tuple[tuple[str, ...], ...]]:
        """Instruction axes that index each dimension of each instruction operand.

        They are several where the instruction reads a window.
        """
        return {
            pair.instruction.operand: tuple(index.iterators for index in pair.instruction.index)
            for pair in self.pairs
        }

    @cached_property
    def operand_axes(self) -> dict[str, frozenset[str]]:
        """All instruction axes that index each instruction operand."""
        return {
            operand: frozenset(itertools.chain.from_iterable(dimensions))
            for operand, dimensions in self.index_axes.items()
        }

    @cached_property
    def window_groups(self) -> dict[str, dict[str, frozenset[str]]]:
        """Axes that index a dimension together, by instruction operand and axis.

        It is the axis alone where the instruction reads no window; axes of one window may be
        connected through others.
        """
        windows: dict[str, dict[str, frozenset[str]]] = {}
        for operand, dimensions in self.index_axes.items():
            groups = {axis: frozenset([axis]) for axis in self.operand_axes[operand]}
            for axes in dimensions:
                joined = frozenset[str]().union(*(groups[axis] for axis in axes))
                # Windows that share an axis are one group.
                groups |= dict.fromkeys(joined, joined)
            windows[operand] = groups
        return windows

    @cached_property
    def workload_indices(self) -> dict[str, tuple[IndexExpr, ...]]:
        """Index expressions of the workload operand of each instruction operand."""
        return {pair.instruction.operand: pair.workload.index for pair in self.pairs}

    @cached_property
    def neutral_axes(self) -> tuple[str, ...]:
        """Workload axes whose padding changes no result."""
        return tuple(a.name for a in self.workload.axes if is_neutral(self.workload, a.name))

    @cached_property
    def direct_dimension(self) -> dict[str, tuple[str, int]]:
        """Workload axis -> (instruction operand, dimension) that it alone indexes.

        Only operands that the instruction walks by single axes count.
        """
        # Of several operands, that with the fewest elements has the smallest box of its own.
        smallest: dict[str, tuple[int, str, int]] = {}
        for pair in self.pairs:
            operand = pair.instruction.operand
            if None in self.index_names[operand]:
                continue
            size = self.instruction.computation.operand(operand).elements
            for dimension, index in enumerate(pair.workload.index):
                axis = index.single_iterator
                if axis is not None and (axis not in smallest or size < smallest[axis][0]):
                    smallest[axis] = (size, operand, dimension)
        return {axis: (operand, dimension) for axis, (_, operand, dimension) in smallest.items()}

    def element_index(
        self, pair: AccessPair, extents: Mapping[str, int] | None = None
    ) -> tuple[NDArray[np.int64], ...]:
        """Return index arrays of the instruction element that each instruction point accesses."""
        sizes = extents or self.instruction.extents
        key = (pair.instruction, tuple(sizes[axis.name] for axis in self.instruction.axes))
        # Thousands of node maps of one problem are judged at the same few extents.
        if key not in self._element_indices:
            if len(self._element_indices) >= _MOST_INDICES:
                self._element_indices.clear()
            grid = point_grid(self.instruction, extents)
            shape = next(iter(grid.values())).shape
            self._element_indices[key] = tuple(
                np.broadcast_to(np.asarray(index.evaluate(grid), np.int64), shape)
                for index in pair.instruction.index
            )
        return self._element_indices[key]

    def at_points(
        self, pair: AccessPair, elements: NDArray[np.int64], extents: Mapping[str, int]
    ) -> NDArray[np.int64]:
        """Return the images of the elements that the instruction's points access.

        ``elements`` are images of the operand's elements, of shape ``(workload dimensions,
        *instruction operand's shape)``. In the result, axes that walk no element have the size 1.
        """
        dimensions = self._plain_dimensions[pair.instruction.operand]
        if dimensions is None:
            return elements[(slice(None), *self.element_index(pair, extents))]
        # A view: gathering thousands of elements by index arrays takes many times as long.
        order = [1 + dimension for dimension in dimensions if dimension is not None]
        spread = tuple(None if dimension is None else slice(None) for dimension in dimensions)
        return elements.transpose(0, *order)[(slice(None), *spread)]

    def first_points(
        self, pair: AccessPair, images: NDArray[np.int64], extents: Mapping[str, int]
    ) -> NDArray[np.int64]:
        """Return the images of an operand's elements, each by a point that accesses it.

        ``images``, of shape ``(workload dimensions, *extents)``, are the workload elements that the
        instruction's points access.
        """
        dimensions = self._plain_dimensions[pair.instruction.operand]
        if dimensions is not None:
            # The element is the same at all points of the other axes: 0 stands for them.
            first = images[(slice(None), *(0 if d is None else slice(None) for d in dimensions))]
            order = [dimension for dimension in dimensions if dimension is not None]
            return first.transpose(0, *(1 + order.index(d) for d in range(len(order))))
        where = self.element_index(pair, extents)
        box = tuple(int(index.max()) + 1 for index in where)
        elements = np.zeros((len(images), *box), np.int64)
        elements[(slice(None), *where)] = images
        return elements

    @cached_property
    def _plain_dimensions(self) -> dict[str, list[int | None] | None]:
        """Dimension of each operand that each instruction axis walks, None for the other axes.

        An operand has None altogether unless each dimension is walked by one axis of its own.
        """
        dimensions: dict[str, list[int | None] | None] = {}
        for operand, names in self.index_names.items():
            place = {name: number for number, name in enumerate(names)}
            is_plain = None not in place and len(place) == len(names)
            axes = self.instruction.axes
            dimensions[operand] = [place.get(axis.name) for axis in axes] if is_plain else None
        return dimensions

    @cached_property
    def _element_indices(
        self,
    ) -> dict[tuple[Access, tuple[int, ...]], tuple[NDArray[np.int64], ...]]:
        return {}


def port_elements(
    instruction: Instruction, shapes: Mapping[str, tuple[int, ...]]
) -> Iterator[tuple[Element, Element]]:
    """Yield each element of each port, with its element of the tensor."""
    for name, view in instruction.views.items():
        tensor = instruction.computation.operand(name).tensor
        for element in np.ndindex(shapes[name]):
            point = {f"d{k}": step for k, step in enumerate(element)}
            yield (name, element), (tensor, tuple(int(index.evaluate(point)) for index in view))


def point_grid(
    instruction: Instruction, extents: Mapping[str, int] | None = None
) -> dict[str, NDArray[np.int64]]:
    """Return the coordinates of all instruction points, one array of the box's shape per axis."""
    sizes = [(extents or instruction.extents)[axis.name] for axis in instruction.axes]
    arrays = np.indices(sizes, dtype=np.int64)
    return {axis.name: arrays[i] for i, axis in enumerate(instruction.axes)}


@dataclass(frozen=True)
class LabelMismatch:
    """Difference in labels for which the graphs cannot be isomorphic at any sizes."""

    reason: str


def pair_operands(
    workload: Computation, instruction: Instruction
) -> EmbeddingProblem | LabelMismatch:
    """Match operation labels and operand roles, and check element types.

    Raises :class:`WorkloadError` where only the element types differ, :class:`SpecError` where the
    instruction leaves elements of an operand unused.
    """
    problem = match_graphs(workload, instruction)
    if isinstance(problem, EmbeddingProblem):
        check_dtypes(problem)
    return problem


@dataclass(frozen=True)
class MatchedStatements:
    """Statements of a workload in the order of an instruction's, with their accesses paired.

    ``occurrences`` has, per statement, the pairs of its reads in the order of the leaves, and that
    of its store. Operands have the workload's names, not yet those of ports.
    """

    statements: tuple[Assignment, ...]
    occurrences: tuple[tuple[tuple[AccessPair, ...], AccessPair], ...]

    @cached_property
    def pairs(self) -> tuple[AccessPair, ...]:
        """All pairs, the stores last."""
        reads = itertools.chain.from_iterable(reads for reads, _ in self.occurrences)
        return (*reads, *(store for _, store in self.occurrences))


def match_graphs(
    workload: Computation, instruction: Instruction
) -> EmbeddingProblem | LabelMismatch:
    """Match operation labels and operand roles, whatever the element types."""
    _check_reachable(instruction.in_ports)
    matched = match_statements(workload, instruction)
    if isinstance(matched, LabelMismatch):
        return matched
    return _problem(workload, matched, instruction.in_ports)


def match_statements(
    workload: Computation, instruction: Instruction
) -> MatchedStatements | LabelMismatch:
    """Match the expression trees of all statements, whatever the element types."""
    ported = instruction.in_ports
    count, available = len(ported.computation.statements), len(workload.statements)
    if count != available:
        return LabelMismatch(
            f"{instruction.name} computes {_results(count)} at a point, the workload "
            f"{_results(available)}"
        )
    mismatches: list[LabelMismatch] = []
    # Statements of one point have no order: the first permutation in which all match is taken.
    for order in itertools.permutations(workload.statements):
        matched = _match_in_order(order, ported)
        if isinstance(matched, MatchedStatements):
            return matched
        mismatches.append(matched)
    # The order as written is the one that a person can compare.
    return mismatches[0]


def _results(count: int) -> str:
    return "one result" if count == 1 else f"{count} results"


def _match_in_order(
    statements: tuple[Assignment, ...], instruction: Instruction
) -> MatchedStatements | LabelMismatch:
    occurrences: list[tuple[tuple[AccessPair, ...], AccessPair]] = []
    for pattern, statement in zip(instruction.computation.statements, statements, strict=True):
        if pattern.reduction != statement.reduction:
            return LabelMismatch(
                f"{instruction.name} combines results by {pattern.reduction or 'assignment'}, "
                f"the workload by {statement.reduction or 'assignment'}"
            )
        reads: list[AccessPair] = []
        mismatch = _match(pattern.value, statement.value, instruction.name, reads)
        if mismatch is not None:
            return mismatch
        occurrences.append((tuple(reads), AccessPair(pattern.store, statement.store)))
    matched = MatchedStatements(statements, tuple(occurrences))
    return _mixed_roles(matched.pairs, instruction) or matched


def _problem(
    workload: Computation, matched: MatchedStatements, instruction: Instruction
) -> EmbeddingProblem:
    """Name the ports of a match, and rewrite the workload on them."""
    pairs = matched.pairs
    names = _port_names(workload, pairs)
    roles = {pair.instruction.operand: names[pair] for pair in pairs}
    # In the order in which the accesses of a statement are rewritten: its store, then its leaves.
    queue = iter([pair for reads, store in matched.occurrences for pair in (store, *reads)])
    renamed = changed_accesses(
        matched.statements, lambda access: replace(access, operand=names[next(queue)])
    )
    ports = {names[pair]: pair.workload.operand for pair in pairs}
    accesses = (
        AccessPair(pair.instruction, replace(pair.workload, operand=names[pair])) for pair in pairs
    )
    return EmbeddingProblem(
        workload=_in_ports(workload, renamed, ports),
        instruction=instruction,
        roles=roles,
        pairs=tuple(dict.fromkeys(accesses)),
        original=workload,
    )


def _mixed_roles(pairs: Sequence[AccessPair], instruction: Instruction) -> LabelMismatch | None:
    """Return the mismatch if an access, or the ports of an operand, would have two counterparts."""
    accesses: dict[str, Access] = {}
    tensors: dict[str, str] = {}
    for pair in pairs:
        name = pair.instruction.operand
        access = accesses.setdefault(name, pair.workload)
        if access != pair.workload:
            return LabelMismatch(
                f"{name} of {instruction.name} is one element at a point where the workload has "
                f"two, {access} and {pair.workload}"
            )
        owner = instruction.computation.operand(name).tensor
        tensor = tensors.setdefault(owner, pair.workload.operand)
        if tensor != pair.workload.operand:
            return LabelMismatch(
                f"{owner} of {instruction.name} is one operand where the workload has two, "
                f"{tensor} and {pair.workload.operand}"
            )
    return None


def _port_names(workload: Computation, pairs: Sequence[AccessPair]) -> dict[AccessPair, str]:
    """Return the name of the workload's port in each pair.

    It is the operand's if that has one access, else with the number of the access.
    """
    takers: dict[Access, set[str]] = {}
    for pair in pairs:
        takers.setdefault(pair.workload, set()).add(pair.instruction.operand)
    names: dict[AccessPair, str] = {}
    for pair in pairs:
        operand = name = pair.workload.operand
        # Sorted by indices, numbers do not depend on the order of the statements.
        accesses = sorted(
            workload.access_maps[operand],
            key=lambda access: [(index.constant, str(index)) for index in access.index],
        )
        if len(accesses) > 1 or len(takers[pair.workload]) > 1:
            name = f"{operand}@{accesses.index(pair.workload)}"
        if len(takers[pair.workload]) > 1:
            # A square: two operands of the instruction take the same elements.
            name += f":{pair.instruction.operand}"
        names[pair] = name
    return names


def _in_ports(
    workload: Computation, statements: tuple[Assignment, ...], owners: Mapping[str, str]
) -> Computation:
    """Return the workload with these statements; ``owners`` maps each port to its operand."""

    def operand(name: str) -> Operand:
        owner = workload.operand(owners[name])
        return owner if name == owner.name else replace(owner, name=name, port_of=owner.tensor)

    reads = dict.fromkeys(read.operand for s in statements for read in s.reads)
    stores = dict.fromkeys(s.store.operand for s in statements)
    return replace(
        workload,
        inputs=tuple(map(operand, reads)),
        outputs=tuple(map(operand, stores)),
        statements=statements,
    )


def _match(
    pattern: Expression, value: Expression, name: str, pairs: list[AccessPair]
) -> LabelMismatch | None:
    """Match two expression trees node by node; pairs of leaves are appended to ``pairs``."""
    match pattern, value:
        case Access(), Access():
            pairs.append(AccessPair(pattern, value))
            return None
        case Operation(), Operation() if pattern.op == value.op:
            for left, right in zip(pattern.args, value.args, strict=True):
                mismatch = _match(left, right, name, pairs)
                if mismatch is not None:
                    return mismatch
            return None
        case Cast(), Cast() if (pattern.dtype, pattern.saturate) == (value.dtype, value.saturate):
            return _match(pattern.arg, value.arg, name, pairs)
        case Constant(), Constant() if pattern.value == value.value:
            return None
        case _:
            return LabelMismatch(f"{name} computes {pattern} where the workload computes {value}")


def check_dtypes(problem: EmbeddingProblem) -> None:
    """Raise :class:`WorkloadError` if the instruction does not take an operand's element type."""
    for role, name in problem.roles.items():
        operand, accepted = problem.workload.operand(name), problem.instruction.dtypes[role]
        if operand.dtype not in accepted:
            raise WorkloadError(
                f"operand {operand.tensor} is {operand.dtype}, but {role} of "
                f"{problem.instruction.name} takes {' or '.join(accepted)}: "
                "give dtype= types that it takes, or leave dtype= out: the workload then has the "
                "target's types"
            )


def _check_reachable(instruction: Instruction) -> None:
    """Raise if an element of an operand is never accessed: it would be a node without an image."""
    computation = instruction.computation
    grid = point_grid(instruction)
    for access in (*computation.reads, *computation.stores):
        shape = computation.operand(access.operand).shape
        touched = np.zeros(shape, np.bool_)
        touched[tuple(index.evaluate(grid) for index in access.index)] = True
        if not touched.all():
            raise SpecError(
                f"instruction {instruction.name}: {access} leaves elements of {access.operand} "
                "unused: give the operand the shape that the instruction reads"
            )
