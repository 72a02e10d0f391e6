"""Roles: which access of the workload stands for which access of the instruction.

Definitions: docs/embedding.md, "Roles".
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cpembed.hw.instruction import Instruction, OperandMemory
from cpembed.ir.computation import Assignment, Computation
from cpembed.ir.expression import (
    OPERATIONS,
    Access,
    Cast,
    Constant,
    Expression,
    Operation,
)

Point = tuple[int, ...]


@dataclass(frozen=True)
class Roles:
    """Pairs of an access of the instruction and the workload's; ``names`` are their operands'."""

    pairs: tuple[tuple[Access, Access], ...]
    names: tuple[tuple[str, str], ...]


def role_assignments(
    workload: Computation, instruction: Instruction, *, commute: bool
) -> list[Roles]:
    """The assignments that are searched, those that symmetries lead to left out."""
    orders = [
        order for order in _orders(workload.statements) if _fits(order, workload, instruction)
    ]
    if not orders:
        return []
    base = orders[0]
    tried = _orders(base) if commute else itertools.permutations(base)
    earlier: list[Roles] = []
    listed: list[Roles] = []
    for order in tried:
        roles = _matched(order, workload, instruction)
        if roles is None or roles in earlier:
            continue
        if not any(_leads(instruction, first, roles) for first in earlier):
            listed.append(roles)
        earlier.append(roles)
    return listed


def _orders(statements: Sequence[Assignment]) -> Iterator[tuple[Assignment, ...]]:
    """The statements in every order, with the factors of their operations in every order."""
    for order in itertools.permutations(statements):
        for values in itertools.product(*(_variants(s.value) for s in order)):
            yield tuple(replace(s, value=v) for s, v in zip(order, values, strict=True))


def _variants(value: Expression) -> list[Expression]:
    if isinstance(value, Cast):
        return [replace(value, arg=arg) for arg in _variants(value.arg)]
    if not isinstance(value, Operation):
        return [value]
    variants: list[Expression] = []
    for args in itertools.product(*map(_variants, value.args)):
        variants.append(Operation(value.op, args))
        if OPERATIONS[value.op].commutative and args[0] != args[1]:
            variants.append(Operation(value.op, args[::-1]))
    return variants


def _fits(order: Sequence[Assignment], workload: Computation, instruction: Instruction) -> bool:
    """Whether the statements in some order have the instruction's labels and element types."""
    permuted = itertools.permutations(order)
    return any(_matched(each, workload, instruction) is not None for each in permuted)


def _matched(
    order: Sequence[Assignment], workload: Computation, instruction: Instruction
) -> Roles | None:
    """The roles where the statements, one by one, are those of the instruction."""
    ours = instruction.computation.statements
    if len(ours) != len(order):
        return None
    pairs: list[tuple[Access, Access]] = []
    for mine, theirs in zip(ours, order, strict=True):
        if mine.reduction != theirs.reduction or not _same(mine.value, theirs.value, pairs):
            return None
        pairs.append((mine.store, theirs.store))
    pairs = list(dict.fromkeys(pairs))
    operands = {(a.operand, b.operand) for a, b in pairs}
    if len(dict(pairs)) < len(pairs) or len(dict(operands)) < len(operands):
        return None
    for mine_name, theirs_name in operands:
        if workload.operand(theirs_name).dtype not in instruction.dtypes[mine_name]:
            return None
    return Roles(tuple(pairs), tuple(sorted(_names(pairs, workload, instruction))))


def _same(ours: Expression, theirs: Expression, pairs: list[tuple[Access, Access]]) -> bool:
    if isinstance(ours, Access) and isinstance(theirs, Access):
        pairs.append((ours, theirs))
        return True
    if isinstance(ours, Constant) and isinstance(theirs, Constant):
        return ours.value == theirs.value
    if isinstance(ours, Cast) and isinstance(theirs, Cast):
        return ours.dtype == theirs.dtype and _same(ours.arg, theirs.arg, pairs)
    if isinstance(ours, Operation) and isinstance(theirs, Operation) and ours.op == theirs.op:
        return all(_same(a, b, pairs) for a, b in zip(ours.args, theirs.args, strict=True))
    return False


def _names(
    pairs: Sequence[tuple[Access, Access]], workload: Computation, instruction: Instruction
) -> Iterator[tuple[str, str]]:
    """Names of the ports: numbered, where an operand has several accesses."""
    for ours, theirs in pairs:
        mine = list(instruction.computation.access_maps[ours.operand])
        name = ours.operand if len(mine) == 1 else f"{ours.operand}.{mine.index(ours)}"
        accesses = sorted(
            workload.access_maps[theirs.operand],
            key=lambda access: [(index.constant, str(index)) for index in access.index],
        )
        takers = sum(other == theirs for _, other in pairs)
        port = theirs.operand
        if len(accesses) > 1 or takers > 1:
            port += f"@{accesses.index(theirs)}"
        yield name, f"{port}:{name}" if takers > 1 else port


def _leads(instruction: Instruction, first: Roles, second: Roles) -> bool:
    """Whether a symmetry of the instruction turns one assignment into the other."""
    accesses = [ours for ours, _ in first.pairs]
    role = dict(second.pairs)
    axes = [axis.name for axis in instruction.axes]
    for partners in itertools.product(
        *([b for b in accesses if role[b] == theirs] for _, theirs in first.pairs)
    ):
        if len(set(partners)) < len(partners):
            continue
        exchange = dict(zip(accesses, partners, strict=True))
        for order in itertools.permutations(axes):
            if _is_symmetry(instruction, exchange, dict(zip(axes, order, strict=True))):
                return True
    return False


def _is_symmetry(
    instruction: Instruction, exchange: Mapping[Access, Access], renamed: Mapping[str, str]
) -> bool:
    for old, new in renamed.items():
        if replace(instruction.axis(old), name=new) != instruction.axis(new):
            return False
    for ours, partner in exchange.items():
        if set(instruction.dtypes[ours.operand]) != set(instruction.dtypes[partner.operand]):
            return False
        if _memory(instruction, ours, renamed) != _memory(
            instruction, partner, {axis: axis for axis in renamed}
        ):
            return False
    # Elements of the instruction go to elements: also those that two accesses share.
    images: dict[tuple[str, Point], tuple[str, Point]] = {}
    names = list(instruction.extents)
    for point in itertools.product(*(range(instruction.extents[name]) for name in names)):
        step = dict(zip(names, point, strict=True))
        moved = {renamed[name]: at for name, at in step.items()}
        for ours, partner in exchange.items():
            element = ours.operand, tuple(i.evaluate(step) for i in ours.index)
            image = partner.operand, tuple(i.evaluate(moved) for i in partner.index)
            if images.setdefault(element, image) != image:
                return False
    if len(set(images.values())) < len(images):
        return False
    return all(_walks(a, renamed) == _walks(b) for a, b in exchange.items())


def _walks(access: Access, renamed: Mapping[str, str] | None = None) -> list[object]:
    """Which axes move which dimension, those that none moves left out."""
    new = renamed or {}
    moving = [
        {new.get(t.iterator, t.iterator): t.coefficient for t in i.terms} for i in access.index
    ]
    return [terms for terms in moving if terms]


def _memory(instruction: Instruction, access: Access, names: Mapping[str, str]) -> object:
    """What feeds an access, the scope aside."""
    axes = {name for index in access.index for name in index.iterators}
    memory: OperandMemory = instruction.memory[access.operand]
    tile = [(names[p.axis], p.divisor, p.modulus) for p in memory.tile if p.axis in axes]
    rules = {names[axis]: memory.stride_rule(axis) for axis in axes}
    contiguous = {names[axis] for axis in memory.contiguous if axis in axes}
    return tile, rules, memory.alignment_bytes, memory.capacity_bytes, contiguous
