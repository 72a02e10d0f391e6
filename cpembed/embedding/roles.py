"""Roles: the workload axes that could feed an instruction axis, and why each does not, as text.

A workload axis has the role of an instruction axis when both index the same operands and no
others: ``c`` of a convolution that of ``z`` of ``C[x,y] += A[x,z] * B[z,y]``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.embedding.constraints.base import slides, stencil_axes
from cpembed.embedding.constraints.memory_access import Dense, LinearAccess, stride_in_place
from cpembed.embedding.problem import AccessPair, EmbeddingProblem
from cpembed.hw.instruction import Instruction, StrideRule
from cpembed.ir.computation import Computation
from cpembed.ir.index import IndexExpr


def join(parts: Sequence[str], last: str = "and") -> str:
    """Return an enumeration: ``a``, ``a and b``, ``a, b and c``."""
    return f" {last} ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))


def candidates(problem: EmbeddingProblem, axis: str) -> tuple[str, ...]:
    """Return the workload axes with the role of an instruction axis, in the workload's order."""
    return _candidates(problem.workload, problem.pairs, axis)


def _candidates(workload: Computation, pairs: Sequence[AccessPair], axis: str) -> tuple[str, ...]:
    role = _role(pairs, axis)
    return tuple(
        workload_axis.name
        for workload_axis in workload.axes
        if role == [_indexes(pair.workload.index, workload_axis.name) for pair in pairs]
    )


def every_axis_has_a_role(
    workload: Computation, instruction: Instruction, pairs: Sequence[AccessPair]
) -> bool:
    """Return True if a workload axis has the role of each instruction axis that must be fed.

    Parameters
    ----------
    workload, instruction : Computation, Instruction
        Owners of the axes.
    pairs : sequence of AccessPair
        Their accesses, paired by :func:`~cpembed.embedding.problem.match_statements`.
    """
    axes = (axis.name for axis in instruction.axes if axis.minimum > 1)
    return all(_candidates(workload, pairs, axis) for axis in axes)


def _role(pairs: Sequence[AccessPair], axis: str) -> list[bool]:
    return [_indexes(pair.instruction.index, axis) for pair in pairs]


def _indexes(index: Sequence[IndexExpr], axis: str) -> bool:
    return any(axis in expression.iterators for expression in index)


def axis_text(problem: EmbeddingProblem, axis: str) -> str:
    """Return name, extent and kind of an instruction axis: ``z (16, reduction)``."""
    allowed = problem.instruction.axis(axis).describe_allowed()
    return f"{axis} ({allowed}, {problem.instruction.loop_axis(axis).kind})"


def role_text(problem: EmbeddingProblem, axis: str) -> str:
    """Return a role in terms of the workload's operands: ``W and O but not I``."""
    names = [pair.workload.operand for pair in problem.pairs]
    role = _role(problem.pairs, axis)
    indexed = dict.fromkeys(n for n, inside in zip(names, role, strict=True) if inside)
    unindexed = dict.fromkeys(n for n, inside in zip(names, role, strict=True) if not inside)
    both = join(list(indexed)) or "none of the operands"
    return f"{both} but not {join(list(unindexed), 'or')}" if unindexed and indexed else both


def sized(problem: EmbeddingProblem, axis: str) -> str:
    """Return a workload axis with its extent: ``c=3``."""
    return f"{axis}={problem.workload.extents[axis]}"


@dataclass(frozen=True)
class Feed:
    """An instruction axis and a workload axis of its role that may feed it under a set."""

    problem: EmbeddingProblem
    constraints: ConstraintSet
    axis: str
    workload_axis: str

    @property
    def _extent(self) -> int:
        return self.problem.workload.extents[self.workload_axis]

    @property
    def _limit(self) -> int | None:
        """Largest padded extent of the workload axis; None when unlimited."""
        rule = self.constraints.padding.on(self.problem)
        return rule.limit(self.workload_axis, self._extent)

    def counts(self) -> tuple[int, ...]:
        """Return the counts above 1 that a digit of stride 1 can have."""
        extent, limit = self._extent, self._limit
        allowed = self.problem.instruction.axis(self.axis).allowed
        # Without `padding` coordinates are limited, but tiles need not cover the axis.
        covered = self.constraints.get("padding") is not None
        return tuple(
            count
            for count in range(2, allowed[-1] + 1)
            if any(full % count == 0 for full in allowed)
            and (limit is None or (-(-extent // count) * count if covered else count) <= limit)
        )

    def obstacles(self) -> list[str]:
        """Return reasons for which the workload axis cannot feed the other one at any extent."""
        reasons: list[str] = []
        linear = self.constraints.get("linear_access")
        stencil = stencil_axes(self.problem).get(self.workload_axis)
        if stencil is not None and isinstance(linear, LinearAccess) and linear.stencil == "none":
            reasons.append(f"is a stencil axis of {stencil} (linear_access)")
        for pair in self.problem.pairs:
            for index in pair.workload.index:
                if self.workload_axis in index.iterators:
                    reasons += self._index_obstacles(pair, index)
        return reasons

    def _index_obstacles(self, pair: AccessPair, index: IndexExpr) -> Iterator[str]:
        """Yield the obstacles in one dimension of one operand."""
        operand, step = pair.instruction.operand, index.coefficient(self.workload_axis)
        several = len(index.iterators) > 1
        text = f"{pair.workload.operand}[{index}]"
        dense = self.constraints.get("dense")
        if step < 0 and self.constraints.get("hyper_rectangle") is not None:
            yield f"runs backwards in {text} (hyper_rectangle)"
        if (
            self._reads_in_place
            and slides(self.problem, index, (self.workload_axis,))
            and stride_in_place(self.problem, operand, self.axis) == 0
        ):
            cannot = f"{self.axis} cannot read in place"
            yield f"is a stencil axis of {text}, which {cannot} (linear_access)"
        if step > 1 and isinstance(dense, Dense):
            rule = self.problem.instruction.memory[operand].stride_rule(self.axis)
            if not (dense.stencil_stride == "memory" and several and rule is StrideRule.ANY):
                yield f"has stride {step} in {text} (dense)"

    @property
    def _reads_in_place(self) -> bool:
        linear = self.constraints.get("linear_access")
        return isinstance(linear, LinearAccess) and linear.stencil == "in_place"

    @property
    def is_undivided(self) -> bool:
        """True if the axis can be fed by this workload axis alone, or not by it at all."""
        # A stencil that is read in place is one digit of the instruction axis's full extent.
        return self._reads_in_place and self.workload_axis in stencil_axes(self.problem)

    def rejection(self) -> str | None:
        """Explain why the workload axis does not feed the other one by itself.

        Returns a clause that begins with the axis and its extent; None where no reason concerns
        this axis alone.
        """
        reasons = self.obstacles()
        if self.is_undivided:
            goal = f"must feed all of {self.axis} to be read in place"
            reasons.append(f"is a stencil axis that {goal} (linear_access)")
        reasons += self._extent_reason()
        if not reasons:
            return None
        return f"{sized(self.problem, self.workload_axis)} {join(list(dict.fromkeys(reasons)))}"

    def _extent_reason(self) -> Iterator[str]:
        instruction_axis = self.problem.instruction.axis(self.axis)
        counts, limit = self.counts(), self._limit
        if set(counts) & set(instruction_axis.allowed):
            return
        if counts:
            part = f"at most {counts[-1]}"
        else:
            part = "no factor" if instruction_axis.is_fixed else "no part"
        within = f"within the padded extent of {limit}"
        restriction = "without padding" if limit == self._extent else within
        yield f"gives {part} of {instruction_axis.describe_allowed()} {restriction}"
