"""One execution of an instruction on tags: what it reads, whether that is its claim, what it writes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cpembed.accelerator.proof.instances import Elements, Integers, dense_strides
from cpembed.accelerator.proof.result import ObligationError
from cpembed.accelerator.proof.steps import Role, Step, folded
from cpembed.accelerator.proof.tags import FIRST_ELEMENT, PART
from cpembed.accelerator.proof.tensors import Levels
from cpembed.ir.dtypes import dtype_info, is_integer, numpy_dtype
from cpembed.ir.expression import Access

if TYPE_CHECKING:
    from cpembed.accelerator.proof.enumerated import Enumeration, OperandTrace, Store

Number = int | float
Booleans = NDArray[np.bool_]

_UNKNOWN = -1


class Touched:
    """The elements of an operand that an execution reads or writes, with claims and places."""

    def __init__(self, execution: Execution, operand: OperandTrace, elements: Elements) -> None:
        self.operand, self.elements = operand, elements
        self._execution = execution
        self.store = execution.store(operand)
        self.places = self._places()

    def _places(self) -> Integers:
        """Return the places of each element; of several parts, a column for each."""
        operand, at = self.operand, self._execution.iteration
        store, elements = self.store, self.elements
        rows = elements.places + operand.base[at]
        lanes = elements.lanes + operand.lane[at]
        units = lanes * operand.parts
        rows_count = len(store.tags) // store.row_units
        outside = (
            (rows < 0)
            | (rows >= rows_count)
            | (units < 0)
            | (units + operand.parts > store.row_units)
        )
        if outside.any():
            at_element = int(np.flatnonzero(outside)[0])
            raise ObligationError(
                f"{self._execution.text}: {operand.name} leaves {store.name}: row or element "
                f"{int(rows[at_element])}, lane {int(lanes[at_element])}, of {rows_count}"
            )
        places = rows * store.row_units + units
        return places if operand.parts == 1 else places[:, None] + np.arange(operand.parts)

    @cached_property
    def tags(self) -> Integers:
        """Tag of each element as memory holds it; 0 where the parts are of several elements."""
        tags = self.store.tags[self.places]
        if self.operand.parts == 1:
            return tags
        agree = (tags - PART * np.arange(self.operand.parts) == tags[:, :1]).all(axis=1)
        return np.where(agree, tags[:, 0], 0)

    @cached_property
    def levels(self) -> Integers:
        """Level of each element."""
        levels = self.store.levels[self.places]
        return levels if self.operand.parts == 1 else levels[:, 0]

    @cached_property
    def index(self) -> tuple[Any, ...]:
        """Claimed index of each element."""
        at, elements = self._execution.iteration, self.elements
        pairs = zip(self.operand.content, elements.content, strict=True)
        return tuple(split.values(at, inner, elements.dimensions) for split, inner in pairs)

    @cached_property
    def inside(self) -> Booleans | None:
        """Elements whose claimed index is inside of the tensor; None for all of them."""
        at, bounds = self._execution.iteration, self.elements.bounds
        operand = self.operand
        if all(
            split.mixed is None and low + split.outer[at] >= 0 and high + split.outer[at] < size
            for split, (low, high), size in zip(operand.content, bounds, operand.shape, strict=True)
        ):
            return None
        inside = np.ones(self.elements.places.shape, bool)
        for index, size in zip(self.index, operand.shape, strict=True):
            inside &= (index >= 0) & (index < size)
        return None if inside.all() else inside

    @cached_property
    def flat(self) -> Integers:
        """Row-major number of the claimed element; 0 outside of the tensor."""
        flat: Any = np.zeros(self.elements.places.shape, np.int64)
        for index, size in zip(self.index, self.operand.shape, strict=True):
            flat = flat * size + index
        return flat if self.inside is None else np.where(self.inside, flat, 0)

    @cached_property
    def claims(self) -> Integers:
        """Tag of the claimed element; 0 outside of the tensor."""
        tags = self._execution.tags.elements(self.operand.tensor, self.operand.dtype, self.flat)
        return tags if self.inside is None else np.where(self.inside, tags, 0)

    def numbers(self) -> tuple[Integers, list[Number]]:
        """Return which number each element holds, -1 for anything else, and the numbers."""
        unique, inverse = np.unique(self.tags, return_inverse=True)
        values: list[Number] = []
        which = np.full(len(unique), _UNKNOWN, np.int64)
        for position, tag in enumerate(unique.tolist()):
            value = self._execution.tags.value(tag, self.operand.dtype)
            if value is not None:
                which[position] = len(values)
                values.append(value)
        return which[inverse.reshape(self.tags.shape)], values

    def level(self, level: Levels) -> Any:
        """Return the level that each element should have."""
        return level if isinstance(level, int) else level[self.flat]


class Execution:
    """One execution of an instruction of the text."""

    def __init__(self, enumeration: Enumeration, which: int, iteration: int, time: int) -> None:
        self.enumeration, self.tags = enumeration, enumeration.tags
        self.which, self.iteration, self.time = which, iteration, time
        self.instances = enumeration.instances[which]
        self.facts = self.instances.facts
        self.sizes = self.instances.sizes[iteration]
        self.operands = enumeration.operands(which)

    @property
    def text(self) -> str:
        return self.instances.describe(self.iteration)

    def store(self, operand: OperandTrace) -> Store:
        """Return the places of an operand's memory."""
        name = operand.memory.removeprefix("tensor ")
        return self.enumeration.store(name, is_tensor=name != operand.memory)

    def run(self) -> None:
        """Check the execution and write its tags."""
        constants = self._constants()
        step = self.enumeration.step(self.which, constants)
        reads = {
            name: self._touched(name)
            for name in self.facts.instruction.inputs
            if name in self.operands
        }
        output = self._touched(self.facts.output)
        if not output.elements.are_distinct:
            raise ObligationError(f"{self.text} writes several elements of {output.operand.name} to one "
                           "place")  # fmt: skip
        if self.enumeration.is_loaded(output.store.name) and output.store.tensor is not None:
            raise ObligationError(f"{self.text} writes {output.store.name}, which the loader wrote")
        self._check_overlaps(reads, output)
        if self.facts.instruction.banks_differ:
            self._check_banks(reads | {self.facts.output: output})
        if self.enumeration.clocks is not None:
            self._check_order(reads, output)
        match step.role:
            case Role.OPAQUE:
                self._write(output, 0, 0)
            case Role.CONSTANT:
                self._write(output, self.tags.number(step.value, output.operand.dtype), 0)
            case Role.MOVE:
                self._move(step, reads, output)
            case _:
                Computing(self, step, reads, output, constants).run()

    def _constants(self) -> dict[Access, Number]:
        """Return the numbers that registers and immediates hold, by their reads."""
        constants: dict[Access, Number] = {}
        for read in self.facts.assignment.reads:
            value: Number | None = None
            if self.facts.is_immediate(read.operand):
                value = self._immediate(read.operand)
            elif self.facts.is_register(read.operand):
                value = self._register(self.facts.place(read.operand).memory)
            if value is not None:
                constants[read] = value
        return constants

    def _immediate(self, operand: str) -> Number:
        address = self.facts.issue.operands[operand]
        value: Number
        if address.value is not None:
            value = address.value
        else:
            value = int(address.base.evaluate(self.instances.iteration(self.iteration)))
        return self.facts.held_number(operand, value)

    def _register(self, name: str) -> Number | None:
        store = self.enumeration.store(name, is_tensor=False)
        dtype = self.enumeration.machine.memories[name].dtype
        tag = int(store.tags[0])
        if tag == 0:
            raise ObligationError(f"{self.text} reads register {name}, and it holds "
                           f"{self.enumeration.held(store, 0)}")  # fmt: skip
        return self.tags.value(tag, dtype)

    def _touched(self, name: str) -> Touched:
        operand = self.operands[name]
        strides = self._strides(operand)
        elements = self.instances.elements(name, self.sizes, strides, operand.content)
        return Touched(self, operand, elements)

    def _strides(self, operand: OperandTrace) -> tuple[int, ...]:
        strides: list[int] = []
        for position, source in enumerate(operand.strides):
            if isinstance(source, int):
                strides.append(source)
            elif source == "dense":
                place = self.facts.place(operand.name)
                sizes = self.instances.dimension_sizes(operand.name, self.sizes)
                named = dict(zip(place.dimensions, sizes, strict=True))
                strides.append(dense_strides(place, named, position))
            else:
                value = self._register(source)
                if not isinstance(value, int):
                    raise ObligationError(f"{self.text}: register {source}, a stride, holds no integer")
                strides.append(value)
        return tuple(strides)

    def _check_overlaps(self, reads: Mapping[str, Touched], output: Touched) -> None:
        for name, read in reads.items():
            if read.store is not output.store:
                continue
            first, second = read.places, output.places
            if first.max() < second.min() or second.max() < first.min():
                continue
            if not np.isin(first, second).any():
                continue
            if name not in self.facts.instruction.in_place or not self._is_in_place(read, output):
                raise ObligationError(f"{self.text} writes {output.operand.name} over {name}, which it "
                               "reads")  # fmt: skip

    def _is_in_place(self, read: Touched, output: Touched) -> bool:
        store = self.facts.assignment.store
        written = output.places[output.elements.numbers[store]]
        return all(
            numbers.shape == output.elements.numbers[store].shape
            and np.array_equal(read.places[numbers], written)
            for numbers in read.elements.numbers.values()
        )

    def _check_banks(self, touched: Mapping[str, Touched]) -> None:
        for pair in self.facts.instruction.banks_differ:
            first, second = (touched[name] for name in pair)
            if first.store is not second.store:
                continue
            memory = self.enumeration.machine.memories[first.store.name]
            units = memory.bank_rows * first.store.row_units
            banks = np.intersect1d(first.places // units, second.places // units)
            if len(banks):
                raise ObligationError(f"{self.text}: {pair[0]} and {pair[1]} are both in bank "
                               f"{int(banks[0])} of {memory.name}")  # fmt: skip

    def _check_order(self, reads: Mapping[str, Touched], output: Touched) -> None:
        """Check that synchronization orders the execution behind what it depends on."""
        clocks, issue = self.enumeration.clocks, self.facts.issue
        assert clocks is not None
        name = self.facts.instruction.unit
        unit, clock = clocks.begin(name, issue.waits, self.text)
        registers = [
            self.enumeration.store(source, is_tensor=False)
            for operand in self.operands.values()
            for source in operand.strides
            if isinstance(source, str) and source != "dense"
        ]
        accesses = [(t.store, t.places) for t in reads.values()]
        accesses += [(store, np.zeros(1, np.int64)) for store in registers]
        if self.facts.instruction.reads_outputs:
            accesses.append((output.store, output.places))
        for store, places in accesses:
            assert store.accesses is not None
            place = store.accesses.read(places, unit, clock)
            if place is not None:
                raise ObligationError(
                    f"{self.text} reads {store.text(place)}, and no signal orders it behind "
                    f"{self.enumeration.describe(int(store.writers[place]))}, which writes it"
                )
        assert output.store.accesses is not None
        place = output.store.accesses.write(output.places, unit, clock)
        if place is not None:
            raise ObligationError(f"{self.text} writes {output.store.text(place)}, and no signal orders "
                           "it behind the accesses before it")  # fmt: skip
        clocks.end(name, clock, issue.signals, self.text)

    def write(self, touched: Touched, tags: Any, levels: Any) -> None:
        """Write the tags and levels of an operand's elements."""
        self._write(touched, tags, levels)

    def _write(self, touched: Touched, tags: Any, levels: Any) -> None:
        store, places, parts = touched.store, touched.places, touched.operand.parts
        if parts > 1:
            tags = np.broadcast_to(tags, places.shape[:1])[:, None]
            tags = np.where(tags != 0, tags + PART * np.arange(parts), 0)
            levels = np.broadcast_to(levels, places.shape[:1])[:, None]
        store.tags[places] = tags
        store.levels[places] = levels
        store.writers[places] = self.time

    def _move(self, step: Step, reads: Mapping[str, Touched], output: Touched) -> None:
        read = step.previous
        assert read is not None
        source = reads[read.operand]
        # Without reduction each element of the output is that of one point.
        target_numbers = output.elements.numbers[self.facts.assignment.store]
        of_source = np.zeros(output.elements.places.shape, np.int64)
        of_source[target_numbers] = source.elements.numbers[read]
        if not step.is_identical:
            for first, second in zip(source.index, output.index, strict=True):
                if not np.array_equal(np.asarray(first)[of_source], second):
                    raise ObligationError(f"{self.text} moves elements of {source.operand.tensor} to "
                                   "where it claims others")  # fmt: skip
        self.require(source, source.claims, None if source.inside is None else source.inside)
        tags = output.claims
        if output.inside is not None:
            which, values = source.numbers()
            tags = np.where(output.inside, tags, self._converted(which, values, output)[of_source])
        self._write(output, tags, source.levels[of_source])

    def _converted(self, which: Integers, values: list[Number], output: Touched) -> Integers:
        """Return the tags of numbers after a move into the output's type; 0 for anything else."""
        dtype = output.operand.dtype
        tags = [0]
        for value in values:
            with np.errstate(all="ignore"):
                held = np.asarray(value).astype(numpy_dtype(dtype)).item()
            tags.append(self.tags.number(held, dtype) if held == value else 0)
        return np.asarray(tags, np.int64)[which + 1]

    def require(
        self, touched: Touched, claims: Integers, mask: Booleans | None, levels: Any = None
    ) -> None:
        """Check that elements are claimed ones, of a level if there is one."""
        wrong = touched.tags != claims
        if levels is not None:
            wrong = wrong | (touched.levels != levels)
        if mask is not None:
            wrong = wrong & mask
        if not wrong.any():
            return
        at = int(np.flatnonzero(wrong)[0])
        place = int(touched.places.reshape(len(touched.places), -1)[at, 0])
        claimed = self.tags.text(int(claims[at]))
        if levels is not None and int(touched.tags[at]) == int(claims[at]):
            level = int(np.broadcast_to(levels, touched.levels.shape)[at])
            claimed += f" of {level} points" if level else " as it is loaded"
        raise ObligationError(
            f"{self.text}: {touched.operand.name} is claimed to hold {claimed}, and "
            f"{touched.store.text(place)} holds {self.enumeration.held(touched.store, place)}"
        )


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
            if read not in constants and read != step.previous and read.operand in reads
            and reads[read.operand].operand.content
        ]  # fmt: skip
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
        neutral = self._ignored(domain, inside)
        base = self._output.level(tensors.level_before(self._number, self._output.operand.tensor))
        levels = base
        if step.role is Role.CONTINUE:
            levels = self._previous_levels(base, inside)
        if step.role is Role.COMPLETE:
            levels = self._output.level(
                tensors.level_before(self._number + 1, self._output.operand.tensor)
            )
        else:
            levels = levels + self._new_points(domain)
        tags: Any = self._output.claims
        if inside is not None:
            tags, levels = np.where(inside, tags, neutral), np.where(inside, levels, 0)
        self._execution.write(self._output, tags, levels)

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
        if uniform is not None and all(read != own for own, _ in self._step.pairs):
            claims = np.full(claims.shape, uniform)
        required = touched.level(self._tensors.level_before(self._number, touched.operand.tensor))
        levels = required if touched.inside is None else np.where(touched.inside, required, 0)
        self._execution.require(touched, claims, mask, levels)

    def _previous_levels(self, base: Any, inside: Booleans | None) -> Any:
        """Return the levels of the partial results that the execution goes on from."""
        previous = self._step.previous
        if previous is None:
            source, order = self._output, np.arange(len(self._output.elements.places))
        else:
            source = self._reads[previous.operand]
            order = np.zeros(self._output.elements.places.shape, np.int64)
            order[self._target] = source.elements.numbers[previous]
        tags, levels = source.tags[order], source.levels[order]
        claims = source.claims[order]
        right = (tags == claims) & (levels >= base)
        neutral = self._tensors.neutral(self._number)
        if neutral is not None and not self._statement.accumulates:
            start = self._enumeration.tags.number(neutral, source.operand.dtype)
            begins = tags == start
            levels = np.where(begins, base, levels)
            right |= begins
        wrong = ~right if inside is None else ~right & inside
        if wrong.any():
            at = int(order[np.flatnonzero(wrong)[0]])
            place = int(source.places.reshape(len(source.places), -1)[at, 0])
            raise ObligationError(
                f"{self._execution.text} goes on from {self._enumeration.tags.text(int(claims[0]))}"
                f" and others, and {source.store.text(place)} holds "
                f"{self._enumeration.held(source.store, place)}"
            )
        return levels

    def _new_points(self, domain: Booleans | None) -> Integers:
        """Count the statement's points that are added to each element, each once in the program."""
        reduction = self._statement.computation.statement.reduction
        flat: Any = np.zeros((), np.int64)
        for axis, extent in self._extents.items():
            flat = flat * extent + self._points[axis]
        target = self._target
        if domain is not None:
            flat, target = flat[domain], target[domain]
        flat = np.atleast_1d(flat)
        covered = self._enumeration.covered(self._number)
        again = covered[flat]
        if reduction in ("max", "min"):
            # Idempotent: a point counts when it is first executed.
            flat, first = np.unique(flat[~again], return_index=True)
            target = target[~again][first]
        elif again.any() or _has_duplicates(flat):
            at = int(flat[np.flatnonzero(again)[0]]) if again.any() else _duplicate(flat)
            raise ObligationError(f"{self._execution.text} executes {self._point_text(at)} of "
                           f"{self._statement.computation} a second time")  # fmt: skip
        covered[flat] = True
        return np.bincount(target, minlength=len(self._output.elements.places))

    def _point_text(self, flat: int) -> str:
        values = np.unravel_index(flat, tuple(self._extents.values()))
        return ", ".join(f"{a}={int(v)}" for a, v in zip(self._extents, values, strict=True))

    def _ignored(self, domain: Booleans | None, inside: Booleans | None) -> Any:
        """Check points beyond the statement's, and return the tags of elements beyond the tensor.

        A point beyond the statement's that is added to an element of the tensor must not change it.
        """
        count = len(self._output.elements.places)
        if inside is not None and domain is not None:
            beyond = ~inside[self._target]
            if (beyond & domain).any():
                raise ObligationError(f"{self._execution.text}: {self._output.operand.name} is claimed to "
                               "be outside of its tensor at a point of the statement")  # fmt: skip
        elif inside is not None:
            raise ObligationError(f"{self._execution.text}: {self._output.operand.name} is claimed to be "
                           "outside of its tensor at a point of the statement")  # fmt: skip
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
        tags = np.zeros(count, np.int64)
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
            tags = np.where(self._output.tags < FIRST_ELEMENT, self._output.tags, 0)
        return np.where(changed, 0, tags)

    def _is_neutral(self, values: list[Number | None]) -> Booleans:
        tensors, number = self._tensors, self._number
        return np.asarray([v is not None and tensors.is_neutral(number, v) for v in values], bool)

    def _number_tags(self, values: list[Number | None]) -> list[int]:
        dtype = self._output.operand.dtype
        tags: list[int] = []
        for value in values:
            tags.append(0)
            if value is not None:
                with np.errstate(all="ignore"):
                    held = np.asarray(value).astype(numpy_dtype(dtype)).item()
                tags[-1] = self._enumeration.tags.number(held, dtype)
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
        reads = [r for r in reads if r != self._step.previous]
        for read in reads:
            which, numbers = self._reads[read.operand].numbers()
            columns.append(which[self._reads[read.operand].elements.numbers[read]][points])
            values.append(numbers)
        constants = {**self._constants, **self._start}
        if not columns:
            return [folded(self._facts, constants)] * len(points)
        rows, inverse = np.unique(np.stack(columns, axis=-1), axis=0, return_inverse=True)
        results: list[Number | None] = []
        for row in rows.tolist():
            numbers_read = {
                read: numbers[number]
                for read, numbers, number in zip(reads, values, row, strict=True)
                if number != _UNKNOWN
            }
            results.append(folded(self._facts, {**constants, **numbers_read}))
        return [results[number] for number in inverse.reshape(-1).tolist()]


def _has_duplicates(flat: Integers) -> bool:
    return len(np.unique(flat)) != len(flat)


def _duplicate(flat: Integers) -> int:
    values, counts = np.unique(flat, return_counts=True)
    return int(values[np.flatnonzero(counts > 1)[0]])
