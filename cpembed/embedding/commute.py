"""Commuted operands: the same workload with the factors of commutative operations in any order.

An instruction's operands have roles in the order of its expression. Commuting the workload's
factors gives each role to another operand (weights as A, image as B): other layouts, other axes.
:class:`Pairing` matches each order once and is shared by search, bounds and explanations.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from cpembed.embedding.problem import (
    EmbeddingProblem,
    LabelMismatch,
    check_dtypes,
    match_graphs,
    port_elements,
)
from cpembed.errors import InvariantError, WorkloadError
from cpembed.hw.instruction import Instruction, OperandMemory
from cpembed.ir.computation import Assignment, Computation
from cpembed.ir.expression import OPERATIONS, Cast, Expression, Operation, walk

_MOST_ORDERS = 4096
"""Maximum number of orders tried per workload, beyond what the operations of any known instruction
need."""


def commuted(workload: Computation, factors: bool = True) -> Iterator[Computation]:
    """Yield the workload in every order that computes the same, unchanged order first.

    Statements are permuted and, with ``factors``, the operands of commutative operations too.
    Operands keep their names. A workload of more than ``_MOST_ORDERS`` orders yields only itself.
    """
    if _count_orders(workload, factors) > _MOST_ORDERS:
        yield workload
        return
    for statements in itertools.permutations(workload.statements):
        choices = [
            [replace(s, value=value) for value in _orders(s.value)] if factors else [s]
            for s in statements
        ]
        for ordered in itertools.product(*choices):
            order = replace(workload, statements=ordered)
            names = list(dict.fromkeys(read.operand for read in order.reads))
            yield replace(order, inputs=tuple(order.operand(name) for name in names))


def _count_orders(workload: Computation, factors: bool) -> int:
    """Return an upper bound on the number of orders."""
    commutative = sum(
        isinstance(node, Operation) and OPERATIONS[node.op].commutative
        for statement in workload.statements
        for node in walk(statement.value)
    )
    return math.factorial(len(workload.statements)) * 2 ** (commutative if factors else 0)


def orders_left_out(workload: Computation, factors: bool) -> tuple[str, ...]:
    """Describe the roles that :func:`commuted` skips; empty unless there are very many orders."""
    if _count_orders(workload, factors) <= _MOST_ORDERS:
        return ()
    return (f"other orders of the factors: the workload has more than {_MOST_ORDERS:,}",)


def same_operations(workload: Computation, instruction: Computation) -> bool:
    """Return True if both have the same number of statements and of each operation.

    No order changes these numbers: where they differ, none of the workload's orders matches.
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
    """Yield an expression with the arguments of its commutative operations in every order."""
    if isinstance(node, Cast):
        for arg in _orders(node.arg):
            yield replace(node, arg=arg)
    elif isinstance(node, Operation):
        for args in itertools.product(*(list(_orders(arg)) for arg in node.args)):
            yield Operation(node.op, args)
            # A square has one order.
            if OPERATIONS[node.op].commutative and args[0] != args[1]:
                yield Operation(node.op, args[::-1])
    else:
        yield node


def is_symmetric(instruction: Instruction, exchange: Mapping[str, str]) -> bool:
    """Return True if the instruction cannot distinguish operands that ``exchange`` maps.

    Renaming its axes then turns each operand's access, element types and memory side into those of
    its partner: embeddings with the operands exchanged are the same ones.
    """
    axes = [axis.name for axis in instruction.axes]
    # Instructions have a handful of axes, so that all renamings can be tried.
    return _keeps_elements(instruction, exchange) and any(
        _invariant(instruction, exchange, dict(zip(axes, order, strict=True)))
        for order in itertools.permutations(axes)
    )


def _keeps_elements(instruction: Instruction, exchange: Mapping[str, str]) -> bool:
    """Return True if ports that share an element still share one after the exchange."""
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
    return all(len(targets) == 1 for targets in images.values())


def _invariant(
    instruction: Instruction, exchange: Mapping[str, str], renamed: Mapping[str, str]
) -> bool:
    """Return True if renaming the axes turns each operand into its partner."""
    for old, new in renamed.items():
        if replace(instruction.axis(old), name=new) != instruction.axis(new):
            return False
    computation = instruction.computation
    for operand in computation.operands:
        partner = exchange.get(operand.name, operand.name)
        index = tuple(i.rename(renamed.__getitem__) for i in computation.access(operand.name).index)
        same = index == computation.access(partner).index
        same &= set(instruction.dtypes[operand.name]) == set(instruction.dtypes[partner])
        memory = _renamed(instruction.memory[operand.name], renamed)
        if not same or memory != _renamed(instruction.memory[partner], {a: a for a in renamed}):
            return False
    return True


def _renamed(memory: OperandMemory, axes: Mapping[str, str]) -> OperandMemory:
    """Return the memory side over renamed axes, without the name of its scope."""
    tile = tuple(replace(part, axis=axes[part.axis]) for part in memory.tile)
    strides = {axes[axis]: rule for axis, rule in memory.strides.items()}
    contiguous = tuple(sorted(axes[axis] for axis in memory.contiguous))
    return replace(memory, scope="", tile=tile, strides=strides, contiguous=contiguous)


@dataclass(frozen=True)
class Pairing:
    """The operands of a workload paired with those of an instruction, in every order that matters.

    An order is matched when it is first needed, and only once.

    Attributes
    ----------
    workload : Computation
        The workload, its statements and factors in any order.
    instruction : Instruction
        The instruction, with or without its operands in ports.
    """

    workload: Computation
    instruction: Instruction
    _matches: dict[tuple[Assignment, ...], EmbeddingProblem | LabelMismatch] = field(
        default_factory=dict[tuple[Assignment, ...], "EmbeddingProblem | LabelMismatch"],
        repr=False,
        compare=False,
    )
    """Match of each order so far; element types are not compared."""

    def match(self, order: Computation) -> EmbeddingProblem | LabelMismatch:
        """Return the match of one order of the workload; element types are not compared."""
        if order.statements not in self._matches:
            self._matches[order.statements] = match_graphs(order, self.instruction)
        return self._matches[order.statements]

    def fits(self, order: Computation) -> EmbeddingProblem | None:
        """Return the problem of an order, or None where labels or element types differ."""
        problem = self.match(order)
        if isinstance(problem, LabelMismatch):
            return None
        try:
            check_dtypes(problem)
        except WorkloadError:
            return None
        return problem

    @cached_property
    def order(self) -> Computation:
        """First order with the instruction's labels and element types, else the workload."""
        orders = (order for order in commuted(self.workload) if self.fits(order) is not None)
        return next(orders, self.workload)

    @cached_property
    def problem(self) -> EmbeddingProblem | LabelMismatch:
        """Problem of the first order that fits, or the reason why labels differ.

        Raises :class:`WorkloadError` where only element types differ.
        """
        problem = self.match(self.order)
        if isinstance(problem, EmbeddingProblem):
            check_dtypes(problem)
        return problem

    @cached_property
    def _alternatives(self) -> dict[bool, tuple[EmbeddingProblem, ...]]:
        """Alternatives without and with commuted factors, as far as they were needed."""
        return {}

    def alternatives(self, factors: bool) -> tuple[EmbeddingProblem, ...]:
        """Return the problems beyond the first whose embeddings differ from the earlier ones'.

        ``factors`` admits commuted factors besides reordered statements. Empty where labels differ.
        """
        if factors not in self._alternatives:
            self._alternatives[factors] = tuple(self._asymmetric(factors))
        return self._alternatives[factors]

    def _asymmetric(self, factors: bool) -> Iterator[EmbeddingProblem]:
        first = self.problem
        if isinstance(first, LabelMismatch):
            return
        assignments = [dict(first.roles)]
        for order in commuted(first.original, factors):
            problem = self.fits(order)
            if problem is None or dict(problem.roles) in assignments:
                continue
            # Roles that an automorphism of the instruction leads to give the same embeddings.
            if not any(
                is_symmetric(first.instruction, _exchange(s, problem.roles)) for s in assignments
            ):
                yield problem
            assignments.append(dict(problem.roles))

    def problems(self, factors: bool) -> tuple[EmbeddingProblem, ...] | LabelMismatch:
        """Return every problem whose embeddings are those of the workload, the first one first.

        ``factors`` admits commuted factors: ``commute`` of the constraint ``dataflow``.
        """
        if isinstance(self.problem, LabelMismatch):
            return self.problem
        return (self.problem, *self.alternatives(factors))

    def with_roles(self, roles: Mapping[str, str]) -> EmbeddingProblem:
        """Return the problem whose operands have the roles of an embedding.

        Raises :class:`InvariantError` where no order of operands gives these roles.
        """
        for order in commuted(self.workload):
            problem = self.fits(order)
            if problem is not None and dict(problem.roles) == dict(roles):
                return problem
        raise InvariantError(f"no order of operands gives the roles {dict(roles)}")


def _exchange(first: Mapping[str, str], second: Mapping[str, str]) -> dict[str, str]:
    """Map each instruction operand to the one that has its workload operand in ``first``."""
    owner = {partner: operand for operand, partner in first.items()}
    return {operand: owner.get(partner, operand) for operand, partner in second.items()}
