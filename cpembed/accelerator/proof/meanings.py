"""Agreement of claims, instructions and statements at all points, by isl."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import islpy as isl

from cpembed.accelerator.proof.relations import IssueRelations, Touch, box
from cpembed.accelerator.proof.result import UndecidedError
from cpembed.accelerator.proof.steps import Role, folded
from cpembed.accelerator.proof.tensors import Tensors
from cpembed.accelerator.proof.terms import Number, stored_number
from cpembed.ir.expression import Access
from cpembed.ir.index import IndexExpr


class Meanings:
    """Comparison of instructions of the text with the statements that they are claimed to compute.

    Parameters
    ----------
    tensors : Tensors
        The tensors of the specification.
    touches : mapping of int to sequence of Touch
        Operands in memories of each instruction of the text that is executed.
    """

    def __init__(self, tensors: Tensors, touches: Mapping[int, Sequence[Touch]]) -> None:
        self.tensors, self._touches = tensors, touches

    def check(self, issue: IssueRelations) -> None:
        """Check that claims, instruction and statement agree at every point."""
        facts, step = issue.facts, issue.step
        if step.role is Role.MOVE and step.previous is not None:
            read, written = facts.element(step.previous), facts.element(facts.assignment.store)
            if not step.is_identical and not self._equal(issue, read, written, issue.points):
                raise UndecidedError(f"{facts.text} moves other elements than it claims")
        if step.number is None or issue.number not in self._touches:
            return
        statement = self.tensors.statement(step.number)
        computation = statement.computation
        extents = list(computation.extents.values())
        points = issue.at_points("D", [facts.points[axis] for axis in computation.extents])
        inside = points.intersect_range(box("D", extents)).domain()
        stored = computation.statement.store
        pairs = [*step.pairs, (facts.assignment.store, stored)]
        if step.previous is not None:
            pairs.append((step.previous, stored))
        for access, required in pairs:
            if not step.is_identical and not self._equal(
                issue, facts.element(access), facts.point_element(required), inside
            ):
                raise UndecidedError(f"{facts.text}: {access} is not {required}")
        self._check_zeros(issue, inside)
        beyond = issue.points.subtract(inside)
        if not beyond.is_empty():
            self._check_neutral(issue, beyond)

    def _equal(
        self,
        issue: IssueRelations,
        first: tuple[IndexExpr, ...] | None,
        second: tuple[IndexExpr, ...] | None,
        points: isl.Set,
    ) -> bool:
        """Return True if tuples of indices are equal at points of the instruction."""
        if first is None or second is None:
            return False
        left = issue.at_points("C", first)
        right = issue.at_points("C", second)
        return bool(left.intersect_domain(points).is_subset(right))

    def _outside(self, issue: IssueRelations, access: Access) -> isl.Set:
        """Return the points at which a read is claimed to be outside of its tensor."""
        content = issue.facts.content(access.operand)
        element = issue.facts.element(access)
        if content is None or element is None:
            raise UndecidedError(f"{issue.facts.text}: {access.operand} has no claim")
        inside = issue.at_points("C", element)
        shape = self.tensors.shape(content.tensor)
        return issue.points.subtract(inside.intersect_range(box("C", shape)).domain())

    def _check_zeros(self, issue: IssueRelations, inside: isl.Set) -> None:
        """Check that reads outside of a tensor are zeros at the statement's points."""
        for access in self._value_reads(issue):
            if self._outside(issue, access).intersect(inside).is_empty():
                continue
            is_pair = any(access == read for read, _ in issue.step.pairs)
            if not is_pair or self._outside_value(issue, access) != 0:
                raise UndecidedError(
                    f"{issue.facts.text}: {access} is outside of its tensor, "
                    "where it may not be zero"
                )

    def _value_reads(self, issue: IssueRelations) -> list[Access]:
        """Return the reads of elements, without that of a partial result."""
        facts = issue.facts
        return [
            read
            for read in dict.fromkeys(facts.assignment.reads)
            if read != issue.step.previous
            and not facts.is_immediate(read.operand)
            and not facts.is_register(read.operand)
        ]

    def _outside_value(self, issue: IssueRelations, access: Access) -> Number | None:
        """Return the number that every read outside of a tensor yields; None if it is unknown."""
        content = issue.facts.content(access.operand)
        tensor = "" if content is None else content.tensor
        main = self.tensors.main(tensor)
        if main is None or tensor in self.computed_outside | self.tensors.spoiled_margins:
            return None
        return stored_number(main.fill, main.dtype)

    @cached_property
    def computed_outside(self) -> set[str]:
        """Tensors outside of whose shape instructions write something else than their fill."""
        tensors: set[str] = set()
        for touches in self._touches.values():
            for touch in touches:
                step, main = touch.relations.step, self.tensors.main(touch.tensor)
                is_fill = (
                    main is not None and step.role is Role.CONSTANT and step.value == main.fill
                )
                is_computed = touch.is_write and step.role is not Role.MOVE and not is_fill
                if is_computed and touch.tensor and not touch.domain.is_subset(touch.inside):
                    tensors.add(touch.tensor)
        return tensors

    def _check_neutral(self, issue: IssueRelations, beyond: isl.Set) -> None:
        """Check that points beyond the statement's change no element of its tensor."""
        facts, step = issue.facts, issue.step
        store = facts.element(facts.assignment.store)
        assert store is not None
        assert step.number is not None
        statement = self.tensors.statement(step.number)
        stored = issue.at_points("C", store).intersect_range(box("C", statement.output.shape))
        changing = beyond.intersect(stored.domain())
        if changing.is_empty():
            return
        if step.role is Role.COMPLETE or step.previous is not None:
            raise UndecidedError(f"{facts.text} computes points beyond the statement's")
        reads = self._value_reads(issue)
        numbers = {read: self._outside_value(issue, read) for read in reads}
        subsets = [(read,) for read in reads] + [tuple(reads)]
        for subset in subsets:
            values = {read: number for read in subset if (number := numbers[read]) is not None}
            if len(values) < len(subset):
                continue
            value = folded(facts, {**issue.constants(), **values})
            if value is None or not self.tensors.is_neutral(step.number, value):
                continue
            outside = [self._outside(issue, read) for read in subset]
            common = outside[0]
            for points in outside[1:]:
                common = common.intersect(points)
            changing = changing.subtract(common)
        if not changing.is_empty():
            raise UndecidedError(
                f"{facts.text} adds points beyond the statement's that may not be neutral"
            )
