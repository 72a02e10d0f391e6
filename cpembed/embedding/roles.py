"""Roles: the workload axes that could feed an instruction axis, and why each does not, as text.

A workload axis has the role of an instruction axis when both index the same operands and no
others: ``c`` of a convolution that of ``z`` of ``C[x,y] += A[x,z] * B[z,y]``.
"""

from __future__ import annotations

from collections.abc import Sequence

from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.embedding.constraints.base import slides, stencil_axes
from cpembed.embedding.constraints.dense import Dense
from cpembed.embedding.constraints.linear_access import LinearAccess, stride_in_place
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


def counts(
    problem: EmbeddingProblem, constraints: ConstraintSet, axis: str, workload_axis: str
) -> tuple[int, ...]:
    """Return the digit counts above 1 that a workload axis can give an axis at stride 1.

    Parameters
    ----------
    problem : EmbeddingProblem
        Problem with both axes.
    constraints : ConstraintSet
        Set whose padding limits the counts.
    axis, workload_axis : str
        Instruction axis, and a workload axis with its role.
    """
    extent = problem.workload.extents[workload_axis]
    allowed = problem.instruction.axis(axis).allowed
    limit = constraints.padding.on(problem).limit(workload_axis, extent)
    # Without `padding` the limit is that of the coordinates alone: tiles need not cover the axis.
    covered = constraints.get("padding") is not None
    return tuple(
        count
        for count in range(2, allowed[-1] + 1)
        if any(full % count == 0 for full in allowed)
        and (limit is None or (-(-extent // count) * count if covered else count) <= limit)
    )


def obstacles(
    problem: EmbeddingProblem, constraints: ConstraintSet, axis: str, workload_axis: str
) -> list[str]:
    """Return reasons why a workload axis of the right role cannot feed an axis at any extent.

    Parameters
    ----------
    problem : EmbeddingProblem
        Problem with both axes.
    constraints : ConstraintSet
        Set whose constraints may exclude the axis.
    axis, workload_axis : str
        Instruction axis, and a workload axis with its role.
    """
    reasons: list[str] = []
    linear = constraints.get("linear_access")
    stencil = stencil_axes(problem).get(workload_axis)
    if stencil is not None and isinstance(linear, LinearAccess) and linear.stencil == "none":
        reasons.append(f"is a stencil axis of {stencil} (linear_access)")
    for pair in problem.pairs:
        for index in pair.workload.index:
            if workload_axis in index.iterators:
                reasons += _index_obstacles(problem, constraints, pair, index, axis, workload_axis)
    return reasons


def all_or_nothing(
    problem: EmbeddingProblem, constraints: ConstraintSet, workload_axis: str
) -> bool:
    """Return True if a workload axis cannot feed an instruction axis together with further axes.

    Parameters
    ----------
    problem : EmbeddingProblem
        Problem with the axis.
    constraints : ConstraintSet
        Set that may have ``linear_access`` in place.
    workload_axis : str
        Workload axis, of a stencil or not.
    """
    # A stencil that is read in place is one digit of the instruction axis's full extent.
    return _reads_in_place(constraints) and workload_axis in stencil_axes(problem)


def _reads_in_place(constraints: ConstraintSet) -> bool:
    linear = constraints.get("linear_access")
    return isinstance(linear, LinearAccess) and linear.stencil == "in_place"


def _index_obstacles(
    problem: EmbeddingProblem,
    constraints: ConstraintSet,
    pair: AccessPair,
    index: IndexExpr,
    axis: str,
    workload_axis: str,
) -> list[str]:
    """Return the obstacles in one dimension of one operand."""
    reasons: list[str] = []
    operand, step = pair.instruction.operand, index.coefficient(workload_axis)
    several = len(index.iterators) > 1
    text = f"{pair.workload.operand}[{index}]"
    dense = constraints.get("dense")
    if step < 0 and constraints.get("hyper_rectangle") is not None:
        reasons.append(f"runs backwards in {text} (hyper_rectangle)")
    if (
        _reads_in_place(constraints)
        and slides(problem, index, (workload_axis,))
        and stride_in_place(problem, operand, axis) == 0
    ):
        reasons.append(
            f"is a stencil axis of {text}, which {axis} cannot read in place (linear_access)"
        )
    if step > 1 and isinstance(dense, Dense):
        rule = problem.instruction.memory[operand].stride_rule(axis)
        if not (dense.stencil_stride == "memory" and several and rule is StrideRule.ANY):
            reasons.append(f"has stride {step} in {text} (dense)")
    return reasons


def rejection(
    problem: EmbeddingProblem, constraints: ConstraintSet, axis: str, workload_axis: str
) -> str | None:
    """Explain why a workload axis of the right role does not feed an instruction axis by itself.

    Parameters
    ----------
    problem : EmbeddingProblem
        Problem with both axes.
    constraints : ConstraintSet
        Set under which it does not.
    axis, workload_axis : str
        Instruction axis, and a workload axis with its role.

    Returns
    -------
    str or None
        A clause that begins with the axis and its extent; None where no reason concerns this axis
        alone.
    """
    reasons = obstacles(problem, constraints, axis, workload_axis)
    if all_or_nothing(problem, constraints, workload_axis):
        reasons.append(
            f"is a stencil axis that must feed all of {axis} to be read in place (linear_access)"
        )
    reasons += _extent_reason(problem, constraints, axis, workload_axis)
    if not reasons:
        return None
    return f"{sized(problem, workload_axis)} {join(list(dict.fromkeys(reasons)))}"


def _extent_reason(
    problem: EmbeddingProblem, constraints: ConstraintSet, axis: str, workload_axis: str
) -> list[str]:
    instruction_axis = problem.instruction.axis(axis)
    feasible_counts = counts(problem, constraints, axis, workload_axis)
    if set(feasible_counts) & set(instruction_axis.allowed):
        return []
    extent = problem.workload.extents[workload_axis]
    limit = constraints.padding.on(problem).limit(workload_axis, extent)
    restriction = "without padding" if limit == extent else f"within the padded extent of {limit}"
    goal = instruction_axis.describe_allowed()
    if feasible_counts:
        part = f"at most {feasible_counts[-1]}"
    else:
        part = "no factor" if instruction_axis.is_fixed else "no part"
    return [f"gives {part} of {goal} {restriction}"]
