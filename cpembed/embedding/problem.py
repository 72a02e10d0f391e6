"""The embedding problem: which instruction operand plays which workload operand, and the graphs.

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
from cpembed.ir.computation import Assignment, Computation, Operand, changed_accesses
from cpembed.ir.expression import Access, Cast, Constant, Expression, Operation
from cpembed.ir.index import IndexExpr
from cpembed.ir.neutral import is_neutral


@dataclass(frozen=True)
class AccessPair:
    """One edge family of the dataflow: the instruction's access and the workload's counterpart."""

    instruction: Access
    workload: Access


@dataclass(frozen=True)
class EmbeddingProblem:
    """A workload, an instruction, and the pairing of their operands and accesses.

    Both are in port form (:mod:`cpembed.ir.ports`): each operand has one access. A workload operand
    that has several accesses is a port for each, ``X@0``, ``X@1`` ...;
    ``original`` is the workload as it was. ``roles`` maps instruction operand to workload operand;
    ``pairs`` lists the accesses in the order of the statements, the stores last. ``groups`` are the
    fused axes of the workload, with their members (:mod:`cpembed.embedding.flatten`), and
    ``unfused`` is the problem before they were fused.
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
        return tuple(pair for pair in self.pairs if pair.instruction.operand in self.outputs)

    def shared_elements(
        self, shapes: Mapping[str, tuple[int, ...]]
    ) -> list[tuple[tuple[str, tuple[int, ...]], tuple[str, tuple[int, ...]]]]:
        """Pairs of (operand, element) that are the same element of the instruction's tensor, seen
        through two ports; ``shapes`` are the operands' at the extents in question."""
        owners: dict[tuple[str, tuple[int, ...]], tuple[str, tuple[int, ...]]] = {}
        found: list[tuple[tuple[str, tuple[int, ...]], tuple[str, tuple[int, ...]]]] = []
        for port, element in port_elements(self.instruction, shapes):
            first = owners.setdefault(element, port)
            if first != port:
                found.append((first, port))
        return found

    @cached_property
    def index_names(self) -> dict[str, tuple[str | None, ...]]:
        """Per instruction operand, the instruction axis that walks each of its dimensions; None
        where the index is not a single axis."""
        return {
            pair.instruction.operand: tuple(i.single_iterator for i in pair.instruction.index)
            for pair in self.pairs
        }

    @cached_property
    def index_axes(self) -> dict[str, tuple[tuple[str, ...], ...]]:
        """Per instruction operand, the instruction axes that each of its dimensions is indexed by:
        several where the instruction reads a window."""
        return {
            pair.instruction.operand: tuple(index.iterators for index in pair.instruction.index)
            for pair in self.pairs
        }

    @cached_property
    def operand_axes(self) -> dict[str, frozenset[str]]:
        """Per instruction operand, all instruction axes that index it."""
        return {
            operand: frozenset(itertools.chain.from_iterable(dimensions))
            for operand, dimensions in self.index_axes.items()
        }

    @cached_property
    def window_groups(self) -> dict[str, dict[str, frozenset[str]]]:
        """Per instruction operand and axis, the axes that index a dimension together with it,
        directly or through others: itself alone where the instruction reads no window."""
        found: dict[str, dict[str, frozenset[str]]] = {}
        for operand, dimensions in self.index_axes.items():
            groups = {axis: frozenset([axis]) for axis in self.operand_axes[operand]}
            for axes in dimensions:
                joined = frozenset[str]().union(*(groups[axis] for axis in axes))
                groups |= dict.fromkeys(joined, joined)
            found[operand] = groups
        return found

    @cached_property
    def workload_indices(self) -> dict[str, tuple[IndexExpr, ...]]:
        """Per instruction operand, the workload operand's index expressions."""
        return {pair.instruction.operand: pair.workload.index for pair in self.pairs}

    @cached_property
    def neutral_axes(self) -> tuple[str, ...]:
        """Workload axes whose padding changes no result."""
        return tuple(a.name for a in self.workload.axes if is_neutral(self.workload, a.name))

    @cached_property
    def direct_dimension(self) -> dict[str, tuple[str, int]]:
        """Workload axis -> (instruction operand, dimension) whose index is exactly that axis,
        where there is one and the instruction walks that operand by single axes; the operand
        with the fewest elements in the instruction is taken."""
        found: dict[str, tuple[int, str, int]] = {}
        for pair in self.pairs:
            operand = pair.instruction.operand
            if None in self.index_names[operand]:
                continue
            size = self.instruction.computation.operand(operand).elements
            for dimension, index in enumerate(pair.workload.index):
                axis = index.single_iterator
                if axis is not None and (axis not in found or size < found[axis][0]):
                    found[axis] = (size, operand, dimension)
        return {axis: (operand, dimension) for axis, (_, operand, dimension) in found.items()}

    def element_index(
        self, pair: AccessPair, extents: Mapping[str, int] | None = None
    ) -> tuple[NDArray[np.int64], ...]:
        """Index arrays of the instruction element that each instruction point accesses."""
        grid = point_grid(self.instruction, extents)
        shape = next(iter(grid.values())).shape
        return tuple(
            np.broadcast_to(np.asarray(index.evaluate(grid), np.int64), shape)
            for index in pair.instruction.index
        )


def port_elements(
    instruction: Instruction, shapes: Mapping[str, tuple[int, ...]]
) -> Iterator[tuple[tuple[str, tuple[int, ...]], tuple[str, tuple[int, ...]]]]:
    """Each element of each port, as (port, element), and the element of the tensor that it is."""
    for name, view in instruction.views.items():
        tensor = instruction.computation.operand(name).tensor
        for at in np.ndindex(shapes[name]):
            place = {f"d{k}": step for k, step in enumerate(at)}
            yield (name, at), (tensor, tuple(int(index.evaluate(place)) for index in view))


def point_grid(
    instruction: Instruction, extents: Mapping[str, int] | None = None
) -> dict[str, NDArray[np.int64]]:
    """Coordinates of every instruction point, one array per axis, all of the box's shape."""
    sizes = [(extents or instruction.extents)[axis.name] for axis in instruction.axes]
    arrays = np.indices(sizes, dtype=np.int64)
    return {axis.name: arrays[i] for i, axis in enumerate(instruction.axes)}


@dataclass(frozen=True)
class LabelMismatch:
    """Why the graphs cannot be isomorphic whatever the sizes: a label that differs, in words."""

    reason: str


def pair_operands(
    workload: Computation, instruction: Instruction
) -> EmbeddingProblem | LabelMismatch:
    """Match operation labels and operand roles, and check element types.

    Raises :class:`WorkloadError` where only the dtypes differ (the remedy is to say another
    dtype), :class:`SpecError` where the instruction's accesses are beyond the graph's form.
    """
    found = match_graphs(workload, instruction)
    if isinstance(found, EmbeddingProblem):
        _check_dtypes(found)
    return found


def match_graphs(
    workload: Computation, instruction: Instruction
) -> EmbeddingProblem | LabelMismatch:
    """Match operation labels and operand roles, whatever the element types.

    The order of statements means nothing: the first order in which all match is taken.
    """
    ported = instruction.in_ports
    _check_reachable(ported)
    mine, theirs = len(ported.computation.statements), len(workload.statements)
    if mine != theirs:
        return LabelMismatch(
            f"{instruction.name} computes {_results(mine)} at a point, the workload "
            f"{_results(theirs)}"
        )
    first: LabelMismatch | None = None
    for order in itertools.permutations(workload.statements):
        found = _pair(workload, order, ported)
        if isinstance(found, EmbeddingProblem):
            return found
        first = first or found
    assert first is not None
    return first


def _results(count: int) -> str:
    return "one result" if count == 1 else f"{count} results"


def _pair(
    workload: Computation, statements: Sequence[Assignment], instruction: Instruction
) -> EmbeddingProblem | LabelMismatch:
    """The problem where the workload's statements, in this order, are those of the instruction."""
    occurrences: list[tuple[list[AccessPair], AccessPair]] = []
    for ours, theirs in zip(instruction.computation.statements, statements, strict=True):
        if ours.reduction != theirs.reduction:
            return LabelMismatch(
                f"{instruction.name} combines results by {ours.reduction or 'assignment'}, "
                f"the workload by {theirs.reduction or 'assignment'}"
            )
        reads: list[AccessPair] = []
        mismatch = _match(ours.value, theirs.value, instruction.name, reads)
        if mismatch is not None:
            return mismatch
        occurrences.append((reads, AccessPair(ours.store, theirs.store)))
    pairs = [pair for reads, _ in occurrences for pair in reads]
    pairs += [store for _, store in occurrences]
    mismatch = _mixed_roles(pairs, instruction)
    if mismatch is not None:
        return mismatch
    names = _port_names(workload, pairs)
    roles = {pair.instruction.operand: names[pair] for pair in pairs}
    renamed = tuple(
        _renamed(statement, reads, store, names)
        for statement, (reads, store) in zip(statements, occurrences, strict=True)
    )
    return EmbeddingProblem(
        _in_ports(workload, renamed, {names[pair]: pair.workload.operand for pair in pairs}),
        instruction,
        roles,
        tuple(
            dict.fromkeys(
                AccessPair(pair.instruction, replace(pair.workload, operand=names[pair]))
                for pair in pairs
            )
        ),
        workload,
    )


def _mixed_roles(pairs: Sequence[AccessPair], instruction: Instruction) -> LabelMismatch | None:
    """The mismatch where one access of the instruction would be two of the workload, or the ports
    of one operand those of two; None where there is none."""
    access: dict[str, Access] = {}
    tensor: dict[str, str] = {}
    for pair in pairs:
        name = pair.instruction.operand
        known = access.setdefault(name, pair.workload)
        if known != pair.workload:
            return LabelMismatch(
                f"{name} of {instruction.name} is one element at a point where the workload has "
                f"two, {known} and {pair.workload}"
            )
        owner = instruction.computation.operand(name).tensor
        whole = tensor.setdefault(owner, pair.workload.operand)
        if whole != pair.workload.operand:
            return LabelMismatch(
                f"{owner} of {instruction.name} is one operand where the workload has two, "
                f"{whole} and {pair.workload.operand}"
            )
    return None


def _port_names(workload: Computation, pairs: Sequence[AccessPair]) -> dict[AccessPair, str]:
    """Name of the workload's operand in each pair: its own where it has one access, else with the
    number of the access, whatever order the statements are in."""
    takers: dict[Access, set[str]] = {}
    for pair in pairs:
        takers.setdefault(pair.workload, set()).add(pair.instruction.operand)
    names: dict[AccessPair, str] = {}
    for pair in pairs:
        operand = name = pair.workload.operand
        accesses = sorted(workload.access_maps[operand], key=_place)
        if len(accesses) > 1 or len(takers[pair.workload]) > 1:
            name = f"{operand}@{accesses.index(pair.workload)}"
        if len(takers[pair.workload]) > 1:
            # A square: two operands of the instruction take the same elements.
            name += f":{pair.instruction.operand}"
        names[pair] = name
    return names


def _place(access: Access) -> tuple[tuple[int, str], ...]:
    return tuple((index.constant, str(index)) for index in access.index)


def _renamed(
    statement: Assignment,
    reads: Sequence[AccessPair],
    store: AccessPair,
    names: Mapping[AccessPair, str],
) -> Assignment:
    """A statement of the workload on ports; ``reads`` are in the order of its leaves."""
    queue = iter([store, *reads])
    (renamed,) = changed_accesses(
        [statement], lambda access: replace(access, operand=names[next(queue)])
    )
    return renamed


def _in_ports(
    workload: Computation, statements: tuple[Assignment, ...], owners: Mapping[str, str]
) -> Computation:
    """The workload with these statements; ``owners`` gives each port's operand."""

    def operand(name: str) -> Operand:
        whole = workload.operand(owners[name])
        return whole if name == whole.name else replace(whole, name=name, port_of=whole.tensor)

    reads = dict.fromkeys(read.operand for s in statements for read in s.reads)
    stores = dict.fromkeys(s.store.operand for s in statements)
    return replace(
        workload,
        inputs=tuple(map(operand, reads)),
        outputs=tuple(map(operand, stores)),
        statements=statements,
    )


def _match(
    ours: Expression, theirs: Expression, name: str, pairs: list[AccessPair]
) -> LabelMismatch | None:
    if isinstance(ours, Access) and isinstance(theirs, Access):
        pairs.append(AccessPair(ours, theirs))
        return None
    if isinstance(ours, Operation) and isinstance(theirs, Operation) and ours.op == theirs.op:
        for left, right in zip(ours.args, theirs.args, strict=True):
            mismatch = _match(left, right, name, pairs)
            if mismatch is not None:
                return mismatch
        return None
    if isinstance(ours, Cast) and isinstance(theirs, Cast) and ours.dtype == theirs.dtype:
        return _match(ours.arg, theirs.arg, name, pairs)
    if isinstance(ours, Constant) and isinstance(theirs, Constant) and ours.value == theirs.value:
        return None
    return LabelMismatch(f"{name} computes {ours} where the workload computes {theirs}")


def _check_dtypes(problem: EmbeddingProblem) -> None:
    for ours, theirs in problem.roles.items():
        operand, accepted = problem.workload.operand(theirs), problem.instruction.dtypes[ours]
        if operand.dtype not in accepted:
            raise WorkloadError(
                f"operand {operand.tensor} is {operand.dtype}, but {ours} of "
                f"{problem.instruction.name} takes {' or '.join(accepted)}: "
                "give dtype= types that it takes, or leave dtype= out: the workload then has the "
                "target's types"
            )


def _check_reachable(instruction: Instruction) -> None:
    """Each element of each operand must be touched: an untouched one would be a free node."""
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
