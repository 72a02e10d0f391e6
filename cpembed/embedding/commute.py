"""Operand commutation: the same workload with the factors of a commutative operation exchanged.

An instruction's operands have roles in the order of its expression. Exchanging the workload's
factors gives each role to the other operand (weights as A, image as B): other layouts, other axes.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

from cpembed.embedding.problem import (
    EmbeddingProblem,
    LabelMismatch,
    pair_operands,
    port_elements,
)
from cpembed.errors import InvariantError, WorkloadError
from cpembed.hw.instruction import Instruction, OperandMemory
from cpembed.ir.computation import Computation
from cpembed.ir.expression import OPERATIONS, Cast, Expression, Operation, walk

_MOST_ORDERS = 4096
"""Of one workload that are tried; no instruction has as many operations as more would take."""


def commuted(workload: Computation, factors: bool = True) -> Iterator[Computation]:
    """The workload with its statements in every order and, with ``factors``, the operands of its
    commutative operations too; as it is first. Operands keep their names and the result is the
    same. A workload of more than ``_MOST_ORDERS`` orders stays as it is."""
    if _count_orders(workload, factors) > _MOST_ORDERS:
        yield workload
        return
    for statements in itertools.permutations(workload.statements):
        choices = [
            [replace(s, value=value) for value in _orders(s.value)] if factors else [s]
            for s in statements
        ]
        for chosen in itertools.product(*choices):
            found = replace(workload, statements=chosen)
            names = list(dict.fromkeys(read.operand for read in found.reads))
            yield replace(found, inputs=tuple(found.operand(name) for name in names))


def _count_orders(workload: Computation, factors: bool) -> int:
    """An upper bound on the number of orders."""
    exchangeable = sum(
        isinstance(node, Operation) and OPERATIONS[node.op].commutative
        for statement in workload.statements
        for node in walk(statement.value)
    )
    return math.factorial(len(workload.statements)) * 2 ** (exchangeable if factors else 0)


def orders_left_out(workload: Computation, factors: bool) -> tuple[str, ...]:
    """The roles that :func:`commuted` does not try, in words: none unless there are very many."""
    if _count_orders(workload, factors) <= _MOST_ORDERS:
        return ()
    return (f"other orders of the factors: the workload has more than {_MOST_ORDERS:,}",)


def same_operations(workload: Computation, instruction: Computation) -> bool:
    """True if both have the same number of statements and of each operation.

    Exchanging factors or statements changes none of these numbers, so where they differ, no order
    of the workload matches the instruction.
    """
    return len(workload.statements) == len(instruction.statements) and (
        _operation_counts(workload) == _operation_counts(instruction)
    )


def _operation_counts(computation: Computation) -> Counter[str]:
    return Counter(
        node.op
        for statement in computation.statements
        for node in walk(statement.value)
        if isinstance(node, Operation)
    )


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
    those of its partner, and what is one element stays one: embeddings with the roles exchanged are
    then the same ones.
    """
    axes = [axis.name for axis in instruction.axes]
    return _keeps_elements(instruction, exchange) and any(
        _invariant(instruction, exchange, dict(zip(axes, order, strict=True)))
        for order in itertools.permutations(axes)
    )


def _keeps_elements(instruction: Instruction, exchange: Mapping[str, str]) -> bool:
    """Whether ports that share an element share one after the exchange."""
    shapes = {operand.name: operand.shape for operand in instruction.computation.operands}
    if any(shapes[exchange.get(name, name)] != shapes[name] for name in shapes):
        return False
    tensor_element = dict(port_elements(instruction, shapes))
    images: dict[tuple[str, tuple[int, ...]], set[tuple[str, tuple[int, ...]]]] = {}
    for (port, at), element in tensor_element.items():
        image = tensor_element.get((exchange.get(port, port), at))
        if image is None:
            return False
        images.setdefault(element, set()).add(image)
    return all(len(found) == 1 for found in images.values())


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


def exchanged_problems(first: EmbeddingProblem, factors: bool = True) -> list[EmbeddingProblem]:
    """The problems with operands exchanged, where the instruction minds; ``factors`` as in
    :func:`commuted`."""
    found: list[EmbeddingProblem] = []
    seen = [dict(first.roles)]
    for workload in commuted(first.original, factors):
        problem = pair_operands_or_none(workload, first.instruction)
        if problem is None or dict(problem.roles) in seen:
            continue
        # Roles that an automorphism of the instruction leads to give the same embeddings.
        if not any(is_symmetric(first.instruction, _exchange(s, problem.roles)) for s in seen):
            found.append(problem)
        seen.append(dict(problem.roles))
    return found


def _exchange(first: Mapping[str, str], second: Mapping[str, str]) -> dict[str, str]:
    """Instruction operand in the second assignment of roles -> the one that has its place in the
    first."""
    owner = {theirs: ours for ours, theirs in first.items()}
    return {ours: owner.get(theirs, ours) for ours, theirs in second.items()}


def fitting_order(workload: Computation, instruction: Instruction) -> Computation:
    """The workload with its operands in the first order that has the instruction's labels and
    element types; as it is where none has."""
    orders = (o for o in commuted(workload) if pair_operands_or_none(o, instruction) is not None)
    return next(orders, workload)


def pair_operands_or_none(
    workload: Computation, instruction: Instruction
) -> EmbeddingProblem | None:
    """The problem, or None where labels or element types do not fit in this order."""
    try:
        found = pair_operands(workload, instruction)
    except WorkloadError:
        return None
    return None if isinstance(found, LabelMismatch) else found


def problem_of(
    workload: Computation, instruction: Instruction, roles: Mapping[str, str]
) -> EmbeddingProblem:
    """The problem with the operands in the roles of an embedding.

    Raises :class:`InvariantError` where no order of operands gives these roles.
    """
    for order in commuted(workload):
        found = pair_operands_or_none(order, instruction)
        if found is not None and dict(found.roles) == dict(roles):
            return found
    raise InvariantError(f"no order of operands gives the roles {dict(roles)}")


def with_roles(problem: EmbeddingProblem, roles: Mapping[str, str]) -> EmbeddingProblem:
    """The problem with the operands in the roles of an embedding."""
    if dict(problem.roles) == dict(roles):
        return problem
    return problem_of(problem.original, problem.instruction, roles)
