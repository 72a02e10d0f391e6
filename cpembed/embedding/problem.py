"""The embedding problem: which instruction operand plays which workload operand, and the graphs.

Both computations have one scalar statement, so their dataflow graphs agree in operation labels
exactly when the two expression trees do; leaves then pair an access of the instruction with an
access of the workload (Rieber et al. 2021, sections 3.1 and 4.2.1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cpembed.errors import SpecError, WorkloadError
from cpembed.hw.instruction import Instruction
from cpembed.ir.computation import Computation
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

    ``roles`` maps instruction operand to workload operand; ``pairs`` lists the accesses in the
    order of the expression, the store last.
    """

    workload: Computation
    instruction: Instruction
    roles: Mapping[str, str]
    pairs: tuple[AccessPair, ...]

    @cached_property
    def index_names(self) -> dict[str, tuple[str | None, ...]]:
        """Per instruction operand, the instruction axis that walks each of its dimensions; None
        where the index is not a single axis."""
        return {
            pair.instruction.operand: tuple(i.single_iterator for i in pair.instruction.index)
            for pair in self.pairs
        }

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
    computation = instruction.computation
    if computation.reduction != workload.reduction:
        return LabelMismatch(
            f"{instruction.name} combines results by {computation.reduction or 'assignment'}, "
            f"the workload by {workload.reduction or 'assignment'}"
        )
    pairs: list[AccessPair] = []
    mismatch = _match(computation.value, workload.value, instruction.name, pairs)
    if mismatch is not None:
        return mismatch
    pairs.append(AccessPair(computation.store, workload.store))
    roles: dict[str, str] = {}
    for pair in pairs:
        known = roles.setdefault(pair.instruction.operand, pair.workload.operand)
        if known != pair.workload.operand or pair.instruction.operand in {
            other.instruction.operand for other in pairs if other is not pair
        }:
            return LabelMismatch(
                f"{pair.instruction.operand} of {instruction.name} is read more than once"
            )
    _check_dtypes(workload, instruction, roles)
    _check_reachable(instruction)
    return EmbeddingProblem(workload, instruction, roles, tuple(pairs))


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


def _check_dtypes(
    workload: Computation, instruction: Instruction, roles: Mapping[str, str]
) -> None:
    for ours, theirs in roles.items():
        dtype, accepted = workload.operand(theirs).dtype, instruction.dtypes[ours]
        if dtype not in accepted:
            raise WorkloadError(
                f"operand {theirs} is {dtype}, but {ours} of {instruction.name} takes "
                f"{' or '.join(accepted)}: say another dtype= or leave it out to take the target's"
            )


def _check_reachable(instruction: Instruction) -> None:
    """Each element of each operand must be touched: an untouched one would be a free node."""
    computation = instruction.computation
    grid = point_grid(instruction)
    for access in (*computation.reads, computation.store):
        shape = computation.operand(access.operand).shape
        touched = np.zeros(shape, np.bool_)
        touched[tuple(index.evaluate(grid) for index in access.index)] = True
        if not touched.all():
            raise SpecError(
                f"instruction {instruction.name}: {access} leaves elements of {access.operand} "
                "unused: give the operand the shape that the instruction reads"
            )
