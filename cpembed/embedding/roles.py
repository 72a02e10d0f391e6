"""Which workload axes could feed an instruction axis, and why each does not, in words.

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
from cpembed.hw.instruction import StrideRule
from cpembed.ir.index import IndexExpr


def join(words: Sequence[str], last: str = "and") -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return f" {last} ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def candidates(problem: EmbeddingProblem, axis: str) -> tuple[str, ...]:
    """Workload axes with the role of an instruction axis, in the workload's order."""
    role = _role(problem, axis)
    return tuple(
        other.name
        for other in problem.workload.axes
        if role == [_indexes(pair.workload.index, other.name) for pair in problem.pairs]
    )


def every_axis_has_a_role(problem: EmbeddingProblem) -> bool:
    """Whether a workload axis has the role of each instruction axis that must be fed."""
    axes = problem.instruction.axes
    return all(candidates(problem, axis.name) for axis in axes if axis.minimum > 1)


def _role(problem: EmbeddingProblem, axis: str) -> list[bool]:
    return [_indexes(pair.instruction.index, axis) for pair in problem.pairs]


def _indexes(index: Sequence[IndexExpr], axis: str) -> bool:
    return any(axis in expression.iterators for expression in index)


def axis_words(problem: EmbeddingProblem, axis: str) -> str:
    """``z (16, reduction)``: name, extent and kind of an instruction axis."""
    allowed = problem.instruction.axis(axis).describe_allowed()
    return f"{axis} ({allowed}, {problem.instruction.loop_axis(axis).kind})"


def role_words(problem: EmbeddingProblem, axis: str) -> str:
    """The role in terms of the workload's operands: ``W and O but not I``."""
    names = [pair.workload.operand for pair in problem.pairs]
    role = _role(problem, axis)
    indexed = dict.fromkeys(n for n, inside in zip(names, role, strict=True) if inside)
    others = dict.fromkeys(n for n, inside in zip(names, role, strict=True) if not inside)
    both = join(list(indexed)) or "none of the operands"
    return f"{both} but not {join(list(others), 'or')}" if others and indexed else both


def sized(problem: EmbeddingProblem, axis: str) -> str:
    """``c=3``"""
    return f"{axis}={problem.workload.extents[axis]}"


def counts(
    problem: EmbeddingProblem, constraints: ConstraintSet, axis: str, other: str
) -> tuple[int, ...]:
    """Digit counts above 1 that a workload axis can give an instruction axis at stride 1."""
    extent = problem.workload.extents[other]
    allowed = problem.instruction.axis(axis).allowed
    limit = constraints.padding.on(problem).limit(other, extent)
    covered = constraints.get("padding") is not None
    return tuple(
        count
        for count in range(2, allowed[-1] + 1)
        if any(full % count == 0 for full in allowed)
        and (limit is None or (-(-extent // count) * count if covered else count) <= limit)
    )


def obstacles(
    problem: EmbeddingProblem, constraints: ConstraintSet, axis: str, other: str
) -> list[str]:
    """Reasons why a workload axis of the right role cannot feed an axis, whatever the extents."""
    found: list[str] = []
    linear = constraints.get("linear_access")
    stencil = stencil_axes(problem).get(other)
    if stencil is not None and isinstance(linear, LinearAccess) and linear.stencil == "none":
        found.append(f"is a stencil axis of {stencil} (linear_access)")
    for pair in problem.pairs:
        for index in pair.workload.index:
            if other in index.iterators:
                found += _index_obstacles(problem, constraints, pair, index, axis, other)
    return found


def all_or_nothing(problem: EmbeddingProblem, constraints: ConstraintSet, other: str) -> bool:
    """Whether a workload axis cannot share an instruction axis with others: a stencil that is
    read in place is one digit of the axis's whole extent."""
    linear = constraints.get("linear_access")
    in_place = isinstance(linear, LinearAccess) and linear.stencil == "in_place"
    return in_place and other in stencil_axes(problem)


def _index_obstacles(
    problem: EmbeddingProblem,
    constraints: ConstraintSet,
    pair: AccessPair,
    index: IndexExpr,
    axis: str,
    other: str,
) -> list[str]:
    """Obstacles in one dimension of one operand."""
    found: list[str] = []
    operand, step = pair.instruction.operand, index.coefficient(other)
    several = len(index.iterators) > 1
    text = f"{pair.workload.operand}[{index}]"
    linear, dense = constraints.get("linear_access"), constraints.get("dense")
    if step < 0 and constraints.get("hyper_rectangle") is not None:
        found.append(f"runs backwards in {text} (hyper_rectangle)")
    in_place = isinstance(linear, LinearAccess) and linear.stencil == "in_place"
    if (
        in_place
        and slides(problem, index, (other,))
        and stride_in_place(problem, operand, axis) == 0
    ):
        words = f"is a stencil axis of {text}, which {axis} cannot read in place"
        found.append(f"{words} (linear_access)")
    if step > 1 and isinstance(dense, Dense):
        rule = problem.instruction.memory[operand].stride_rule(axis)
        if not (dense.stencil_stride == "memory" and several and rule is StrideRule.ANY):
            found.append(f"has stride {step} in {text} (dense)")
    return found


def refusal(
    problem: EmbeddingProblem,
    constraints: ConstraintSet,
    axis: str,
    other: str,
) -> str | None:
    """Why a workload axis of the right role does not feed an instruction axis by itself.

    None where no reason is known that concerns this axis by itself.
    """
    reasons = obstacles(problem, constraints, axis, other)
    if all_or_nothing(problem, constraints, other):
        words = f"is a stencil axis that must feed all of {axis} to be read in place"
        reasons.append(f"{words} (linear_access)")
    reasons += _extent_reason(problem, constraints, axis, other)
    if not reasons:
        return None
    return f"{sized(problem, other)} {join(list(dict.fromkeys(reasons)))}"


def _extent_reason(
    problem: EmbeddingProblem, constraints: ConstraintSet, axis: str, other: str
) -> list[str]:
    wanted = problem.instruction.axis(axis)
    found = counts(problem, constraints, axis, other)
    if set(found) & set(wanted.allowed):
        return []
    extent = problem.workload.extents[other]
    limit = constraints.padding.on(problem).limit(other, extent)
    how = "without padding" if limit == extent else f"within the padded extent of {limit}"
    goal = wanted.describe_allowed()
    if not found:
        part = f"gives no factor of {goal}" if wanted.is_fixed else f"gives no part of {goal}"
    else:
        part = f"gives at most {found[-1]} of {goal}"
    return [f"{part} {how}"]
