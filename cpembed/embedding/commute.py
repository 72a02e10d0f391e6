"""Operand commutation: the same workload with the factors of a commutative operation exchanged.

An instruction's operands have roles in the order of its expression. Exchanging the workload's
factors gives each role to the other operand (weights as A, image as B): other layouts, other axes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace

from cpembed.embedding.problem import EmbeddingProblem, LabelMismatch, pair_operands
from cpembed.errors import InvariantError, WorkloadError
from cpembed.hw.instruction import Instruction, OperandMemory
from cpembed.ir.computation import Computation
from cpembed.ir.expression import OPERATIONS, Cast, Expression, Operation


def commuted(workload: Computation) -> Iterator[Computation]:
    """The workload with the operands of its commutative operations in every order, as it is
    first. Operands keep their names and the result is the same."""
    for value in _orders(workload.value):
        found = replace(workload, value=value)
        names = list(dict.fromkeys(read.operand for read in found.reads))
        yield replace(found, inputs=tuple(found.operand(name) for name in names))


def _orders(node: Expression) -> Iterator[Expression]:
    if isinstance(node, Cast):
        for arg in _orders(node.arg):
            yield Cast(node.dtype, arg)
    elif isinstance(node, Operation):
        for args in itertools.product(*(list(_orders(arg)) for arg in node.args)):
            yield Operation(node.op, args)
            if OPERATIONS[node.op].commutative and args[0] != args[1]:
                yield Operation(node.op, args[::-1])
    else:
        yield node


def is_symmetric(instruction: Instruction, exchange: Mapping[str, str]) -> bool:
    """Whether the instruction cannot tell operands apart that ``exchange`` maps to each other.

    True where renaming its axes turns each operand's access, element types and memory side into
    those of its partner: embeddings with the roles exchanged are then the same ones.
    """
    axes = [axis.name for axis in instruction.axes]
    return any(
        _invariant(instruction, exchange, dict(zip(axes, order, strict=True)))
        for order in itertools.permutations(axes)
    )


def _invariant(
    instruction: Instruction, exchange: Mapping[str, str], renamed: Mapping[str, str]
) -> bool:
    for old, new in renamed.items():
        if replace(instruction.axis(old), name=new) != instruction.axis(new):
            return False
    computation = instruction.computation
    for operand in computation.operands:
        partner = exchange.get(operand.name, operand.name)
        index = tuple(i.rename(renamed.__getitem__) for i in computation.access(operand.name).index)
        same = index == computation.access(partner).index
        same &= set(instruction.dtypes[operand.name]) == set(instruction.dtypes[partner])
        ours, theirs = instruction.memory[operand.name], instruction.memory[partner]
        if not same or _renamed(ours, renamed) != _renamed(theirs, {a: a for a in renamed}):
            return False
    return True


def _renamed(memory: OperandMemory, axes: Mapping[str, str]) -> OperandMemory:
    """The memory side over renamed axes, whatever its scope is called."""
    tile = tuple(replace(part, axis=axes[part.axis]) for part in memory.tile)
    strides = {axes[axis]: rule for axis, rule in memory.strides.items()}
    return replace(memory, scope="", tile=tile, strides=strides)


def exchanged_problems(first: EmbeddingProblem) -> list[EmbeddingProblem]:
    """The problems with operands exchanged, where the instruction minds."""
    found: list[EmbeddingProblem] = []
    for workload in list(commuted(first.workload))[1:]:
        problem = pair_operands_or_none(workload, first.instruction)
        if problem is None:
            continue
        owner = {theirs: ours for ours, theirs in first.roles.items()}
        exchange = {ours: owner[theirs] for ours, theirs in problem.roles.items()}
        if not is_symmetric(first.instruction, exchange):
            found.append(problem)
    return found


def pair_operands_or_none(
    workload: Computation, instruction: Instruction
) -> EmbeddingProblem | None:
    """The problem, or None where labels or element types do not fit in this order."""
    try:
        found = pair_operands(workload, instruction)
    except WorkloadError:
        return None
    return None if isinstance(found, LabelMismatch) else found


def with_roles(problem: EmbeddingProblem, roles: Mapping[str, str]) -> EmbeddingProblem:
    """The problem with the operands in the roles of an embedding."""
    if dict(problem.roles) == dict(roles):
        return problem
    for workload in commuted(problem.workload):
        found = pair_operands_or_none(workload, problem.instruction)
        if found is not None and dict(found.roles) == dict(roles):
            return found
    raise InvariantError(f"no order of operands gives the roles {dict(roles)}")
