"""One execution of an instruction on tags: it is compared with its claim, then writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from cpembed.accelerator.proof.chains import GENERATION
from cpembed.accelerator.proof.computing import Computing
from cpembed.accelerator.proof.instances import Integers, dense_strides
from cpembed.accelerator.proof.result import ObligationError
from cpembed.accelerator.proof.steps import Role, Step, folded
from cpembed.accelerator.proof.tags import PART, UNCLAIMED, UNWRITTEN
from cpembed.accelerator.proof.terms import stored_number
from cpembed.accelerator.proof.touched import Booleans, Touched
from cpembed.ir.expression import Access

if TYPE_CHECKING:
    from cpembed.accelerator.proof.enumerated import Enumeration, OperandTrace, Store

Number = int | float


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
            raise ObligationError(
                f"{self.text} writes several elements of {output.operand.name} to one place"
            )
        if self.enumeration.is_loaded(output.store.name) and output.store.tensor is not None:
            raise ObligationError(f"{self.text} writes {output.store.name}, which the loader wrote")
        self._check_written(reads, output)
        self._check_overlaps(reads, output)
        if self.facts.instruction.banks_differ:
            self._check_banks(reads | {self.facts.output: output})
        if self.enumeration.clocks is not None:
            self._check_order(reads, output)
        match step.role:
            case Role.OPAQUE:
                self.write(output, UNCLAIMED, 0)
            case Role.CONSTANT:
                self.write(output, self.tags.number(step.value, output.operand.dtype), 0)
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
            if value is None:
                continue
            if read in self.facts.element_reads:
                self._check_element(read, value)
            else:
                constants[read] = value
        return constants

    def _check_element(self, read: Access, value: Number) -> None:
        """Check that a register or immediate holds the element of a constant that it claims."""
        content = self.facts.content(read.operand)
        assert content is not None
        index = self.claimed_index(read)
        tensors = self.enumeration.tensors
        shape = tensors.shape(content.tensor)
        number: Number | None = None
        if all(0 <= i < size for i, size in zip(index, shape, strict=True)):
            constant = tensors.specification.constants[content.tensor].reshape(shape)
            number = stored_number(constant[index].item(), self.facts.dtype(read.operand))
            number = number if number == constant[index].item() else None
        if number is None or value != number:
            element = f"{content.tensor}[{', '.join(map(str, index))}]"
            raise ObligationError(
                f"{self.text}: {read.operand} is claimed to hold {element}, and holds {value}"
            )

    def claimed_index(self, read: Access) -> tuple[int, ...]:
        """Return the index of the element that a register or an immediate is claimed to hold."""
        content = self.facts.content(read.operand)
        assert content is not None
        loops = self.instances.iteration(self.iteration)
        return tuple(int(index.evaluate(loops)) for index in content.index)

    def _immediate(self, operand: str) -> Number:
        address = self.facts.issue.operands[operand]
        value = address.number(self.instances.iteration(self.iteration))
        return self.facts.held_number(operand, value)

    def _register(self, name: str) -> Number | None:
        store = self.enumeration.store(name, is_tensor=False)
        dtype = self.enumeration.machine.memories[name].dtype
        tag = int(store.tags[0])
        if tag == UNWRITTEN:
            raise ObligationError(f"{self.text} reads register {name}, which nothing has written")
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
                strides.append(dense_strides(place, sizes, position))
            else:
                value = self._register(source)
                if not isinstance(value, int):
                    raise ObligationError(
                        f"{self.text}: register {source}, a stride, holds no integer"
                    )
                strides.append(value)
        return tuple(strides)

    def _check_written(self, reads: Mapping[str, Touched], output: Touched) -> None:
        """Check that nothing is read that was never written."""
        read = [*reads.values(), *([output] if self.facts.instruction.reads_outputs else [])]
        for touched in read:
            missing = touched.tags == UNWRITTEN
            if missing.any():
                at = int(np.flatnonzero(missing)[0])
                place = int(touched.places.reshape(len(touched.places), -1)[at, 0])
                raise ObligationError(
                    f"{self.text} reads {touched.store.text(place)} as {touched.operand.name}, "
                    "which nothing has written"
                )

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
                raise ObligationError(
                    f"{self.text} writes {output.operand.name} over {name}, which it reads"
                )

    def _is_in_place(self, read: Touched, output: Touched) -> bool:
        if self.facts.assignment.reduction is not None:
            return False
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
                raise ObligationError(
                    f"{self.text}: {pair[0]} and {pair[1]} are both in bank "
                    f"{int(banks[0])} of {memory.name}"
                )

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
            raise ObligationError(
                f"{self.text} writes {output.store.text(place)}, and no signal orders "
                "it behind the accesses before it"
            )
        clocks.end(name, clock, issue.signals, self.text)

    def write(self, touched: Touched, tags: Any, levels: Any) -> None:
        """Write the tags and levels of an operand's elements."""
        store, places, parts = touched.store, touched.places, touched.operand.parts
        if parts > 1:
            column = np.broadcast_to(np.asarray(tags, np.int64), places.shape[:1])[:, None]
            tags = np.where(column > 0, column + PART * np.arange(parts), column)
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
                    raise ObligationError(
                        f"{self.text} moves elements of {source.operand.tensor} to "
                        "where it claims others"
                    )
        self.require(source, source.claims, source.inside)
        tags = output.claims
        if output.inside is not None:
            which, values = source.numbers()
            converted = self._converted(read, which, values, output)
            tags = np.where(output.inside, tags, converted[of_source])
        self.write(output, tags, source.levels[of_source])

    def _converted(
        self, read: Access, which: Integers, values: list[Number], output: Touched
    ) -> Integers:
        """Return the tag of each element after a move of numbers; other values are others."""
        dtype, constants = output.operand.dtype, self._constants()
        tags = [UNCLAIMED]
        for value in values:
            moved = folded(self.facts, {**constants, read: value})
            number = None if moved is None else stored_number(moved, dtype)
            tags.append(UNCLAIMED if number is None else self.tags.number(number, dtype))
        return np.asarray(tags, np.int64)[which + 1]

    def require(
        self, touched: Touched, claims: Integers, mask: Booleans | None, levels: Any = None
    ) -> None:
        """Check that elements are claimed ones, of a level if there is one."""
        wrong = touched.tags != claims
        if levels is not None:
            wrong = wrong | (touched.levels % GENERATION != levels)
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
            f"{touched.store.text(place)} holds {self.enumeration.held_text(touched.store, place)}"
        )
