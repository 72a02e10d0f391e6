"""An execution that computes points of a statement, on tags."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from cpembed.accelerator.proof.chains import GENERATION
from cpembed.accelerator.proof.instances import Integers
from cpembed.accelerator.proof.result import ObligationError
from cpembed.accelerator.proof.steps import Role, Step, folded
from cpembed.accelerator.proof.tags import FIRST_ELEMENT, UNCLAIMED
from cpembed.accelerator.proof.terms import stored_number
from cpembed.accelerator.proof.touched import UNKNOWN, Booleans, Touched
from cpembed.ir.dtypes import dtype_info
from cpembed.ir.expression import Access

if TYPE_CHECKING:
    from cpembed.accelerator.proof.execution import Execution

Number = int | float


class Computing:
    """An execution that computes points of a statement."""

    def __init__(
        self,
        execution: Execution,
        step: Step,
        reads: Mapping[str, Touched],
        output: Touched,
        constants: Mapping[Access, Number],
    ) -> None:
        assert step.number is not None
        self._execution, self._step, self._constants = execution, step, constants
        self._reads, self._output = reads, output
        self._enumeration, self._facts = execution.enumeration, execution.facts
        self._tensors = execution.enumeration.tensors
        self._number: int = step.number
        self._statement = self._tensors.statement(step.number)
        self._extents = self._statement.computation.extents
        self._values = [
            read
            for read in self._facts.assignment.reads
            if read not in constants
            and read not in self._facts.element_reads
            and read != step.previous
            and read.operand in reads
            and reads[read.operand].operand.content
        ]
        self._target = output.elements.numbers[self._facts.assignment.store]

    def run(self) -> None:
        """Check what is read, count the points and write the result."""
        step, tensors = self._step, self._tensors
        domain = self._domain
        if not step.is_identical:
            self._compare_indices(domain)
        for read in self._values:
            self._check_read(read, domain)
        inside = self._output.inside
        beyond = self._ignored(domain, inside)
        tags = self._output.claims
        levels: Any
        if step.role is Role.COMPLETE:
            tensor = self._output.operand.tensor
            levels = self._output.level(tensors.level_before(self._number + 1, tensor))
        else:
            levels = self._chained(domain, inside)
        if inside is not None:
            tags, levels = np.where(inside, tags, beyond), np.where(inside, levels, 0)
        self._execution.write(self._output, tags, levels)

    def _chained(self, domain: Booleans | None, inside: Booleans | None) -> Integers:
        """Return the levels of partial results, with the numbers of their chains."""
        chains, elements = self._enumeration.chains(self._number), self._output.flat
        base: Any = self._output.level(
            self._tensors.level_before(self._number, self._output.operand.tensor)
        )
        base = np.broadcast_to(base, elements.shape)
        begins, levels = np.ones(elements.shape, bool), base
        if self._step.role is Role.CONTINUE:
            begins, levels = self._previous_levels(base, inside)
        chains.begin(elements[begins if inside is None else begins & inside])
        levels = levels + self._new_points(domain)
        return levels + chains.generations(elements) * GENERATION

    @cached_property
    def _grid(self) -> dict[str, Integers]:
        return self._execution.instances.grid(self._execution.sizes)

    @cached_property
    def _points(self) -> dict[str, Any]:
        """Value of each axis of the statement at each point of the instruction."""
        at = self._execution.iteration
        count = self._execution.instances.points(self._execution.sizes)
        return {
            axis: np.broadcast_to(
                split.values(at, split.inner.evaluate(self._grid), self._grid), (count,)
            )
            for axis, split in self._enumeration.points(self._execution.which).items()
        }

    @cached_property
    def _domain(self) -> Booleans | None:
        """Points of the instruction that are points of the statement; None for all of them."""
        domain: Any = True
        for axis, extent in self._extents.items():
            values = self._points[axis]
            domain = domain & (values >= 0) & (values < extent)
        return None if bool(np.all(domain)) else np.asarray(domain)

    def _compare_indices(self, domain: Booleans | None) -> None:
        """Compare the claimed indices with the statement's, where they differ as expressions."""
        pairs = list(self._step.pairs)
        pairs.append((self._facts.assignment.store, self._statement.computation.statement.store))
        previous = self._step.previous
        if previous is not None:
            pairs.append((previous, self._statement.computation.statement.store))
        for access, wanted_access in pairs:
            if access in self._facts.element_reads:
                self._compare_element(access, wanted_access, domain)
                continue
            touched = self._reads.get(access.operand, self._output)
            numbers = touched.elements.numbers[access]
            for index, required in zip(touched.index, wanted_access.index, strict=True):
                differs = np.asarray(index)[numbers] != required.evaluate(self._points)
                wrong = differs if domain is None else differs & domain
                if wrong.any():
                    at = int(np.flatnonzero(wrong)[0])
                    point = ", ".join(f"{a}={int(v[at])}" for a, v in self._points.items())
                    raise ObligationError(
                        f"{self._execution.text}: {access} is claimed to be another element of "
                        f"{touched.operand.tensor} than {wanted_access} at {point}"
                    )

    def _compare_element(self, access: Access, required: Access, domain: Booleans | None) -> None:
        """Compare the element that a register or an immediate holds with the statement's."""
        for index, term in zip(self._execution.claimed_index(access), required.index, strict=True):
            differs: Any = term.evaluate(self._points) != index
            if np.any(differs if domain is None else differs & domain):
                raise ObligationError(
                    f"{self._execution.text}: {access} is claimed to be another element of the "
                    f"constant than {required}"
                )

    def _check_read(self, read: Access, domain: Booleans | None) -> None:
        """Check that the points of the statement read their elements, complete."""
        touched = self._reads[read.operand]
        mask = None
        if domain is not None:
            mask = np.zeros(touched.elements.places.shape, bool)
            mask[touched.elements.numbers[read][domain]] = True
        claims = touched.claims
        if touched.inside is not None:
            # Outside of its shape a tensor of the statement is zero.
            zero = self._enumeration.tags.number(0, touched.operand.dtype)
            claims = np.where(touched.inside, claims, zero)
        uniform = self._enumeration.tags.uniform(touched.operand.tensor, touched.operand.dtype)
        if uniform is not None and all(read != access for access, _ in self._step.pairs):
            claims = np.full(claims.shape, uniform)
        required = touched.level(self._tensors.level_before(self._number, touched.operand.tensor))
        levels = required if touched.inside is None else np.where(touched.inside, required, 0)
        self._execution.require(touched, claims, mask, levels)

    def _previous_levels(
        self, base: Integers, inside: Booleans | None
    ) -> tuple[Booleans, Integers]:
        """Return which partial results begin a chain, and the levels of all of them."""
        previous = self._step.previous
        if previous is None:
            source, order = self._output, np.arange(len(self._output.elements.places))
        else:
            source = self._reads[previous.operand]
            order = np.zeros(self._output.elements.places.shape, np.int64)
            order[self._target] = source.elements.numbers[previous]
        tags, claims = source.tags[order], source.claims[order]
        generations, levels = np.divmod(source.levels[order], GENERATION)
        elements = self._output.flat
        begins = (tags == claims) & (levels == base)
        last = self._enumeration.chains(self._number).generations(elements)
        count = self._output.level(self._tensors.points_per_element(self._number))
        goes_on = (tags == claims) & (levels > base) & (levels <= base + count)
        goes_on &= generations == last
        if not self._statement.accumulates:
            starts = self._neutral_numbers(source)[order]
            levels = np.where(starts, base, levels)
            begins |= starts
        right = begins | goes_on
        wrong = ~right if inside is None else ~right & inside
        if wrong.any():
            element = int(np.flatnonzero(wrong)[0])
            at = int(order[element])
            place = int(source.places.reshape(len(source.places), -1)[at, 0])
            raise ObligationError(
                f"{self._execution.text} goes on from {source.operand.name}, claimed to hold "
                f"the last partial result of {self._enumeration.tags.text(int(claims[element]))}, "
                f"and {source.store.text(place)} holds "
                f"{self._enumeration.held_text(source.store, place)}"
            )
        return begins, levels

    def _neutral_numbers(self, source: Touched) -> Booleans:
        """Return which elements hold a number from which a reduction may begin."""
        which, numbers = source.numbers()
        neutral = [False, *(self._tensors.is_neutral(self._number, n) for n in numbers)]
        return np.asarray(neutral, bool)[which + 1]

    def _new_points(self, domain: Booleans | None) -> Integers:
        """Count the statement's points that are combined with each element, each once."""
        chains = self._enumeration.chains(self._number)
        reduction = self._statement.computation.statement.reduction
        flat: Any = np.zeros((), np.int64)
        for axis, extent in self._extents.items():
            flat = flat * extent + self._points[axis]
        target = self._target
        if domain is not None:
            flat, target = flat[domain], target[domain]
        flat = np.atleast_1d(flat)
        elements = self._output.flat[target]
        again = chains.has(flat, elements)
        if reduction in ("max", "min"):
            # Idempotent: a point counts when it comes first.
            flat, first = np.unique(flat[~again], return_index=True)
            target, elements = target[~again][first], elements[~again][first]
        elif again.any() or (not self._are_distinct and len(np.unique(flat)) != len(flat)):
            at = int(flat[np.flatnonzero(again)[0]]) if again.any() else _duplicate(flat)
            raise ObligationError(
                f"{self._execution.text} executes {self._point_text(at)} of "
                f"{self._statement.computation} a second time"
            )
        chains.add(flat, elements)
        return np.bincount(target, minlength=len(self._output.elements.places))

    @property
    def _are_distinct(self) -> bool:
        """True if points of the instruction are different points whatever the loops' values are."""
        splits = self._enumeration.points(self._execution.which)
        indices = {axis: split.inner for axis, split in splits.items()}
        if any(split.mixed is not None for split in splits.values()):
            return False
        return self._execution.instances.are_distinct(self._execution.sizes, indices)

    def _point_text(self, flat: int) -> str:
        values = np.unravel_index(flat, tuple(self._extents.values()))
        return ", ".join(f"{a}={int(v)}" for a, v in zip(self._extents, values, strict=True))

    def _ignored(self, domain: Booleans | None, inside: Booleans | None) -> Any:
        """Check points beyond the statement's, and return the tags of elements beyond the tensor.

        A point beyond the statement's that is added to an element of the tensor must not change it.
        """
        count = len(self._output.elements.places)
        if inside is not None:
            outside = ~inside[self._target]
            if (outside if domain is None else outside & domain).any():
                raise ObligationError(
                    f"{self._execution.text}: {self._output.operand.name} is claimed to be outside "
                    "of its tensor at a point of the statement"
                )
        if domain is None:
            return 0
        points = np.flatnonzero(~domain)
        values = self._point_values(points)
        targets = self._target[points]
        reduction = self._statement.computation.statement.reduction
        if reduction is None:
            bad = np.ones(len(points), bool)
        else:
            bad = ~self._is_neutral(values)
        of_tensor = np.ones(len(points), bool) if inside is None else inside[targets]
        if (bad & of_tensor).any():
            at = int(points[np.flatnonzero(bad & of_tensor)[0]])
            point = ", ".join(f"{a}={int(v[at])}" for a, v in self._points.items())
            raise ObligationError(
                f"{self._execution.text} adds the point {point}, which is none of the statement's, "
                "to an element of the tensor, and reads no zeros there that would make it neutral"
            )
        tags = np.full(count, UNCLAIMED, np.int64)
        if reduction is None:
            tags[targets] = self._number_tags(values)
            return tags
        changed = np.zeros(count, bool)
        changed[targets[bad]] = True
        if self._step.role is Role.BEGIN:
            start = self._tensors.neutral(self._number)
            if start is None:
                return tags
            tags[:] = self._enumeration.tags.number(start, self._output.operand.dtype)
        elif self._step.previous is None:
            tags = np.where(self._output.tags < FIRST_ELEMENT, self._output.tags, UNCLAIMED)
        return np.where(changed, UNCLAIMED, tags)

    def _is_neutral(self, values: list[Number | None]) -> Booleans:
        tensors, number = self._tensors, self._number
        # Points are many, and their values few.
        neutral = {v: v is not None and tensors.is_neutral(number, v) for v in set(values)}
        return np.asarray([neutral[v] for v in values], bool)

    def _number_tags(self, values: list[Number | None]) -> list[int]:
        dtype = self._output.operand.dtype
        tags: list[int] = []
        for value in values:
            tags.append(UNCLAIMED)
            if value is not None:
                tags[-1] = self._enumeration.tags.number(stored_number(value, dtype), dtype)
        return tags

    @property
    def _start(self) -> dict[Access, Number]:
        """Number that makes the read of a partial result have no part in the value."""
        if self._step.previous is None:
            return {}
        start = self._tensors.neutral(self._number)
        reduction = self._statement.computation.statement.reduction
        if start is None:
            dtype = dtype_info(self._facts.dtype(self._step.previous.operand))
            if not dtype.is_integer:
                start = float("-inf") if reduction == "max" else float("inf")
            else:
                start = dtype.integer_range[reduction == "min"]
        return {self._step.previous: start}

    def _point_values(self, points: Integers) -> list[Number | None]:
        """Return the value added at points, None where it depends on unknown elements."""
        columns: list[Integers] = []
        values: list[list[Number]] = []
        reads = [r for r in self._facts.assignment.reads if r not in self._constants]
        # A register or immediate with an element of a constant may be any number.
        unnumbered = {self._step.previous, *self._facts.element_reads}
        reads = [r for r in reads if r not in unnumbered]
        for read in reads:
            which, numbers = self._reads[read.operand].numbers()
            columns.append(which[self._reads[read.operand].elements.numbers[read]][points])
            values.append(numbers)
        constants = {**self._constants, **self._start}
        if not columns:
            return [folded(self._facts, constants)] * len(points)
        # Numbers of one combination of reads instead of rows of a table, which sort slowly.
        least = [int(column.min(initial=0)) for column in columns]
        shape = tuple(
            int(column.max(initial=0)) - low + 1 for column, low in zip(columns, least, strict=True)
        )
        shifted = [column - low for column, low in zip(columns, least, strict=True)]
        combinations, inverse = np.unique(np.ravel_multi_index(shifted, shape), return_inverse=True)
        rows = [
            [int(digit) + low for digit, low in zip(digits, least, strict=True)]
            for digits in zip(*np.unravel_index(combinations, shape), strict=True)
        ]
        results: list[Number | None] = []
        for row in rows:
            numbers_read: dict[Access, Number] = {
                read: numbers[number]
                for read, numbers, number in zip(reads, values, row, strict=True)
                if number != UNKNOWN
            }
            results.append(folded(self._facts, {**constants, **numbers_read}))
        return [results[number] for number in inverse.reshape(-1).tolist()]


def _duplicate(flat: Integers) -> int:
    values, counts = np.unique(flat, return_counts=True)
    return int(values[np.flatnonzero(counts > 1)[0]])
