"""The obligations decided by execution on tags: every place holds the name of its value.

The program's executions are followed in the order of the text. Instead of a number, each place of
a memory holds a *tag*: an element of a tensor with its level, a number, or a value that no claim
describes. An execution is compared with its claim on the tags that it really reads, and writes the
tags of what it then has computed. Nothing is approximated, so this decides every program that is
small enough to be enumerated.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.accelerator.program import ZERO, MainTensor
from cpembed.accelerator.proof.chains import GENERATION, Chains
from cpembed.accelerator.proof.execution import Execution
from cpembed.accelerator.proof.instances import (
    Instances,
    Integers,
    Split,
    element_bits,
    stride_sources,
    trace_order,
)
from cpembed.accelerator.proof.result import ObligationError
from cpembed.accelerator.proof.steps import Step, step
from cpembed.accelerator.proof.tags import FIRST_ELEMENT, UNCLAIMED, UNWRITTEN, Tags
from cpembed.accelerator.proof.tensors import Tensors
from cpembed.hw.isa import InstructionSet, MemoryKind, Synchronization
from cpembed.ir.dtypes import numpy_dtype
from cpembed.ir.expression import Access
from cpembed.time_limit import check_time

Number = int | float


@dataclass
class Store:
    """The places of a memory, of a tensor in main memory or of a register.

    Attributes
    ----------
    row_units : int
        Units of a row; 1 in main memory.
    unit_bits : int
        Bits of a unit: the greatest that all elements in this memory are multiples of.
    """

    name: str
    row_units: int
    unit_bits: int
    tags: Integers
    levels: Integers
    writers: Integers
    tensor: MainTensor | None = None
    accesses: Accesses | None = None

    def text(self, place: int) -> str:
        """Describe a place."""
        if self.tensor is not None:
            return f"element {place} of the buffer of {self.name}"
        if len(self.tags) == 1:
            return f"register {self.name}"
        row, unit = divmod(place, self.row_units)
        return f"row {row} of {self.name}, byte {unit * self.unit_bits // 8}"


@dataclass
class OperandTrace:
    """An operand of an instruction of the text over its iterations."""

    name: str
    dtype: str
    memory: str
    parts: int
    base: list[int]
    lane: list[int]
    strides: list[int | str]
    content: tuple[Split, ...] = ()
    tensor: str = ""
    shape: tuple[int, ...] = ()


class Enumeration:
    """Execution of a program on tags."""

    def __init__(self, tensors: Tensors) -> None:
        self.program, self.tensors = tensors.program, tensors
        self.machine = tensors.program.machine
        self.tags = Tags(tensors)
        self.instances, self.which, self.iterations = trace_order(tensors)
        self.clocks = (
            Clocks(self.machine)
            if self.machine.synchronization is Synchronization.CHANNELS
            else None
        )
        self._units = self._unit_bits()
        self.stores: dict[str, Store] = {}
        self._operands: dict[int, dict[str, OperandTrace]] = {}
        self._points: dict[int, dict[str, Split]] = {}
        self._steps: dict[tuple[int, tuple[tuple[str, Number], ...]], Step] = {}
        self._chains: dict[int, Chains] = {}
        self.spoiled_margins: list[str] = []

    def run(self) -> None:
        """Follow every execution; raise :class:`ObligationError` at the first that is wrong."""
        for tensor in self.program.tensors:
            self.store(tensor, is_tensor=True)
        pairs = zip(self.which.tolist(), self.iterations.tolist(), strict=True)
        for time, (which, iteration) in enumerate(pairs):
            if time % 256 == 0:
                check_time()
            Execution(self, which, iteration, time).run()
        self._check_outputs()

    def describe(self, time: int) -> str:
        """Describe an execution by its time."""
        return self.instances[int(self.which[time])].describe(int(self.iterations[time]))

    def _unit_bits(self) -> dict[str, int]:
        units: dict[str, int] = {}
        for instances in self.instances:
            for place in instances.facts.instruction.places.values():
                memory = self.machine.memories.get(place.memory)
                if memory is not None and memory.kind is MemoryKind.ROWS:
                    bits = math.gcd(
                        units.get(memory.name, 8 * memory.row_bytes), element_bits(place.dtype)
                    )
                    units[memory.name] = bits
        return units

    def store(self, name: str, *, is_tensor: bool) -> Store:
        """Return the places of a memory or of a tensor in main memory."""
        key = f"tensor {name}" if is_tensor else name
        if key not in self.stores:
            self.stores[key] = self._tensor(name) if is_tensor else self._memory(name)
        return self.stores[key]

    def _memory(self, name: str) -> Store:
        memory = self.machine.memories[name]
        unit = self._units.get(name, 8 * max(1, memory.row_bytes))
        row_units = max(1, 8 * memory.row_bytes // unit)
        return self._places(name, max(1, memory.rows) * row_units, row_units, unit)

    def _places(self, name: str, places: int, row_units: int, unit_bits: int) -> Store:
        accesses = None
        if self.clocks is not None:
            accesses = Accesses(places, len(self.machine.units))
        zeros = np.zeros(places, np.int64)
        writers = np.full(places, -1, np.int64)
        return Store(name, row_units, unit_bits, zeros, zeros.copy(), writers, accesses=accesses)

    def _tensor(self, name: str) -> Store:
        """Return a tensor as the loader leaves it."""
        tensor = self.program.tensors[name]
        store = self._places(name, tensor.elements, 1, element_bits(tensor.dtype))
        store.tensor = tensor
        is_spoiled = name in self.tensors.spoiled_margins
        store.tags[:] = UNCLAIMED if is_spoiled else self._fill(tensor)
        inside = element_numbers(tensor)
        is_loaded = name in self._loaded
        elements = self.tags.elements(name, tensor.dtype, inside[inside >= 0])
        store.tags[inside >= 0] = elements if is_loaded else UNWRITTEN
        return store

    @cached_property
    def _loaded(self) -> frozenset[str]:
        specification = self.tensors.specification
        return frozenset((*specification.inputs, *specification.constants))

    def is_loaded(self, tensor: str) -> bool:
        """Return True for a tensor that the loader writes and the program has to leave as it is."""
        return tensor in self._loaded

    def _fill(self, tensor: MainTensor) -> int:
        fill = np.asarray(tensor.fill).astype(numpy_dtype(tensor.dtype)).item()
        return self.tags.number(fill, tensor.dtype)

    def _check_outputs(self) -> None:
        for name in self.tensors.specification.outputs:
            store = self.store(name, is_tensor=True)
            tensor = self.program.tensors[name]
            numbers = element_numbers(tensor)
            places = np.flatnonzero(numbers >= 0)
            flat = numbers[places]
            expected = self.tags.elements(name, tensor.dtype, flat)
            level = self.tensors.final_level(name)
            levels = level if isinstance(level, int) else level[flat]
            wrong = store.tags[places] != expected
            wrong |= store.levels[places] % GENERATION != levels
            if wrong.any():
                at = int(np.flatnonzero(wrong)[0])
                place = int(places[at])
                element = self.tags.text(int(expected[at]))
                raise ObligationError(
                    f"in the end {store.text(place)} has to hold {element}, complete, and holds "
                    f"{self.held_text(store, place)}"
                )
            if (store.tags[numbers < 0] != self._fill(tensor)).any():
                self.spoiled_margins.append(name)

    def held_text(self, store: Store, place: int) -> str:
        """Describe what a place holds and who wrote it."""
        tag, writer = int(store.tags[place]), int(store.writers[place])
        writer_text = ", as at the beginning"
        if writer >= 0:
            writer_text = f", written by {self.describe(writer)}"
        level = int(store.levels[place]) % GENERATION
        part = f" after {level} points" if level and tag >= FIRST_ELEMENT else ""
        return f"{self.tags.text(tag)}{part}{writer_text}"

    def operands(self, which: int) -> dict[str, OperandTrace]:
        """Return the operands of an instruction of the text that lie in memories."""
        if which not in self._operands:
            instances = self.instances[which]
            facts = instances.facts
            self._operands[which] = {
                operand.name: self._operand(instances, operand.name)
                for operand in facts.instruction.computation.operands
                if not facts.is_immediate(operand.name)
            }
        return self._operands[which]

    def _operand(self, instances: Instances, name: str) -> OperandTrace:
        facts = instances.facts
        place, address, content = facts.place(name), facts.issue.operands[name], facts.content(name)
        memory = self.machine.memories[place.memory]
        key, parts = place.memory, 1
        if memory.kind is MemoryKind.MAIN:
            if address.tensor not in self.program.tensors:
                raise ObligationError(
                    f"{facts.text}: {name} is in main memory, and {address.tensor!r} is "
                    "no tensor of the program"
                )
            dtype = self.program.tensors[address.tensor].dtype
            if dtype != place.dtype:
                raise ObligationError(
                    f"{facts.text}: {name} is {place.dtype} and tensor {address.tensor} is {dtype}"
                )
            key = f"tensor {address.tensor}"
        elif memory.kind is MemoryKind.ROWS:
            parts = element_bits(place.dtype) // self._units[memory.name]
        is_register = memory.kind is MemoryKind.REGISTER
        return OperandTrace(
            name,
            place.dtype,
            key,
            parts,
            [0] * instances.count if is_register else instances.at_iterations(address.base),
            # Only rows have lanes.
            instances.at_iterations(address.lane if memory.kind is MemoryKind.ROWS else ZERO),
            stride_sources(facts, name),
            () if content is None else tuple(Split(i, instances) for i in content.index),
            "" if content is None else content.tensor,
            () if content is None else self.tensors.shape(content.tensor),
        )

    def points(self, which: int) -> dict[str, Split]:
        """Return the claimed value of each axis of the statement."""
        if which not in self._points:
            instances = self.instances[which]
            self._points[which] = {
                axis: Split(index, instances) for axis, index in instances.facts.points.items()
            }
        return self._points[which]

    def step(self, which: int, constants: Mapping[Access, Number]) -> Step:
        """Return the step of an instruction of the text with these constants."""
        key = (which, tuple((str(access), value) for access, value in constants.items()))
        if key not in self._steps:
            self._steps[key] = step(self.instances[which].facts, constants)
        return self._steps[key]

    def chains(self, number: int) -> Chains:
        """Return the partial results of a statement."""
        if number not in self._chains:
            self._chains[number] = Chains(self.tensors.statement(number))
        return self._chains[number]


def element_numbers(tensor: MainTensor) -> Integers:
    """Return the row-major number of the element at each place of a buffer; -1 in margins."""
    numbers = np.arange(math.prod(tensor.shape), dtype=np.int64)
    return replace(tensor, dtype="int64", fill=-1).buffer(numbers)


# -- channels --------------------------------------------------------------------------------------


class Clocks:
    """The clock of each unit while the text is read."""

    def __init__(self, machine: InstructionSet) -> None:
        self._channels = {channel.name: channel for channel in machine.channels}
        self._numbers = {unit: number for number, unit in enumerate(machine.units)}
        self._clocks = np.zeros((len(machine.units), len(machine.units)), np.int64)
        self._signals: dict[str, deque[Integers]] = {c: deque() for c in self._channels}

    def begin(self, unit: str, waits: Sequence[str], place: str) -> tuple[int, Integers]:
        """Begin an execution.

        Parameters
        ----------
        unit : str
            Unit that executes it.
        waits : sequence of str
            Channels of which it takes a signal each.
        place : str
            Description of the execution, for the message.

        Returns
        -------
        tuple of (int, ndarray)
            The unit's number, and the clock of the execution; its own number is the unit's entry.

        Raises
        ------
        ObligationError
            If it waits for a signal that no earlier execution sends.
        """
        number = self._numbers[unit]
        clock = self._clocks[number]
        for name in waits:
            channel = self._channel(name, place)
            if channel.receiver != unit:
                raise ObligationError(f"{place}: unit {unit} cannot wait on channel {name}")
            if not self._signals[name]:
                raise ObligationError(
                    f"{place} waits on {name}, on which nothing before it signals"
                )
            np.maximum(clock, self._signals[name].popleft(), out=clock)
        clock[number] += 1
        return number, clock.copy()

    def end(self, unit: str, clock: Integers, signals: Sequence[str], place: str) -> None:
        """End an execution, which sends its signals."""
        for name in signals:
            channel = self._channel(name, place)
            if channel.sender != unit:
                raise ObligationError(f"{place}: unit {unit} cannot signal on channel {name}")
            if len(self._signals[name]) >= channel.depth:
                raise ObligationError(
                    f"{place} signals on {name}, which holds {channel.depth} signals: "
                    "its receiver has to take one before"
                )
            self._signals[name].append(clock)

    def _channel(self, name: str, place: str) -> Any:
        if name not in self._channels:
            raise ObligationError(f"{place}: {name} is no channel of the machine")
        return self._channels[name]


class Accesses:
    """The last accesses of each place of a memory, by unit."""

    def __init__(self, places: int, units: int) -> None:
        # Column u is the number of the last read (write) by unit u; 0 if there was none.
        self._reads = np.zeros((places, units), np.int32)
        self._writes = np.zeros((places, units), np.int32)

    def read(self, places: Integers, unit: int, clock: Integers) -> int | None:
        """Record a read; return a place whose last write does not happen before it."""
        conflict = _unordered(self._writes, places, unit, clock)
        self._reads[places, unit] = clock[unit]
        return conflict

    def write(self, places: Integers, unit: int, clock: Integers) -> int | None:
        """Record a write; return a place with an access that does not happen before it."""
        conflict = _unordered(self._writes, places, unit, clock)
        if conflict is None:
            conflict = _unordered(self._reads, places, unit, clock)
        self._writes[places, unit] = clock[unit]
        return conflict


def _unordered(
    accesses: NDArray[np.int32], places: Integers, unit: int, clock: Integers
) -> int | None:
    late = accesses[places] > clock
    # A unit executes in order: only others can be late.
    late[..., unit] = False
    if not late.any():
        return None
    return int(places.reshape(-1)[int(np.flatnonzero(late.any(axis=-1).reshape(-1))[0])])
