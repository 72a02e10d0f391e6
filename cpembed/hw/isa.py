"""Instruction sets of accelerators: memories, units, and instructions with their semantics.

An :class:`InstructionSet` is what a target file with ``[[instructions]]`` describes. Loads, stores,
products, vector operations and configuration are instructions of one kind: a computation over
operands, each of which lies in a memory. :mod:`cpembed.hw.isa_reader` makes these values of a file;
the format is described in ``docs/accelerators.md``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

from cpembed.hw.instruction import InstructionAxis, TileDimension
from cpembed.hw.machine import Evidence
from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import dtype_info


class MemoryKind(StrEnum):
    """Meaning of an address of a memory."""

    MAIN = "main"
    """An element of a named tensor."""
    ROWS = "rows"
    """A row of a fixed number of bytes."""
    REGISTER = "register"
    """Nothing: the memory holds one scalar."""


IMMEDIATE = "immediate"
"""Memory of operands whose value is part of the instruction's word."""


class StrideSource(StrEnum):
    """Source of the distance between two indices of a dimension."""

    ANY = "any"
    """An argument of the instruction."""
    DENSE = "dense"
    """The product of the run-time sizes of the dimensions inside of it."""


class Synchronization(StrEnum):
    """Order of instructions on units that execute in parallel."""

    IN_ORDER = "in_order"
    """An instruction begins when the one before it has ended."""
    INTERLOCKED = "interlocked"
    """Each unit executes in order; hardware delays an instruction until earlier ones that touch
    the same rows, tensors or registers have ended."""
    CHANNELS = "channels"
    """Each unit executes in order; instructions wait for, and send, signals on named channels."""


@dataclass(frozen=True, kw_only=True)
class IsaMemory:
    """A memory of an accelerator.

    Attributes
    ----------
    rows : int
        Number of rows; 0 for main memory and for registers.
    row_bytes : int
        Bytes of a row; of a register, bytes of its scalar.
    banks : int
        Number of banks, each of ``rows / banks`` consecutive rows.
    dtype : str
        Element type of a register; empty for other memories, whose operands have types.
    bytes_per_cycle : float
        Bytes per cycle that all units together move to and from it; infinite by default.
    latency_cycles : float
        Cycles from a request to the first byte.
    energy_pj_per_byte : float or None
        Picojoules of reading or writing a byte; None if the file does not say.
    """

    name: str
    kind: MemoryKind
    rows: int = 0
    row_bytes: int = 0
    banks: int = 1
    dtype: str = ""
    bytes_per_cycle: float = math.inf
    latency_cycles: float = 0.0
    energy_pj_per_byte: float | None = None

    @property
    def capacity_bytes(self) -> int | None:
        """Capacity; None for main memory, which is not limited."""
        return None if self.kind is MemoryKind.MAIN else max(1, self.rows) * self.row_bytes

    @property
    def bank_rows(self) -> int:
        """Number of rows of a bank."""
        return self.rows // self.banks

    def lanes(self, dtype: str) -> int:
        """Return the number of elements of a type that a row holds."""
        return 8 * self.row_bytes // dtype_info(dtype).storage_bits


@dataclass(frozen=True, kw_only=True)
class OperandPlace:
    """Place of an instruction's operand in a memory.

    In a memory of rows, element ``i`` of an operand lies in row ``base + sum(stride * digit)`` over
    ``rows`` and in lane ``base_lane + sum(digit)``, mixed radix, over ``lanes``. In main memory it
    lies ``base + sum(stride * i[d])`` elements behind the first element of its tensor. Registers
    and immediates have no dimensions.

    Attributes
    ----------
    memory : str
        Name of the memory, or :data:`IMMEDIATE`.
    dimensions : tuple of str
        Name of each dimension of the operand, as the expression indexes it.
    rows, lanes : tuple of TileDimension
        Digits of dimensions that select the row and the lane, outermost first; ``axis`` of a
        :class:`TileDimension` is the name of a dimension.
    strides : mapping of str to int, StrideSource or str
        Distance, in rows (in elements of main memory), for each digit in ``rows`` (each dimension
        of an operand in main memory), by its text: a number, a :class:`StrideSource`, or the name
        of a register that holds it.
    any_lane : bool
        True if the first element may lie in any lane; otherwise in lane 0.
    """

    memory: str
    dtype: str
    dimensions: tuple[str, ...] = ()
    rows: tuple[TileDimension, ...] = ()
    lanes: tuple[TileDimension, ...] = ()
    strides: Mapping[str, int | str] = field(default_factory=dict[str, int | str])
    any_lane: bool = False

    def __hash__(self) -> int:
        # Places are keys of caches, and the strides are a mapping.
        return hash((self.memory, self.dtype, self.dimensions, self.rows, self.lanes))

    @property
    def stride_keys(self) -> tuple[str, ...]:
        """Keys of ``strides``, outermost first."""
        return tuple(map(str, self.rows)) if self.rows or self.lanes else self.dimensions

    @property
    def stride_arguments(self) -> tuple[str, ...]:
        """Keys of the strides that are arguments of the instruction."""
        return tuple(k for k in self.stride_keys if self.strides.get(k) is StrideSource.ANY)


@dataclass(frozen=True, kw_only=True)
class IsaInstruction:
    """An instruction: a computation over operands in memories.

    Attributes
    ----------
    unit : str
        Name of the unit that executes it.
    axes : tuple of InstructionAxis
        The axes, in loop order. An axis that is not fixed has its size as an argument.
    computation : Computation
        The computation at the largest sizes.
    places : mapping of str to OperandPlace
        Place of each operand.
    accumulates : bool
        True if a reduction goes on from what the output holds; False if it begins anew.
    saturates : bool
        True if each step of a reduction saturates in the output's type instead of wrapping.
    cycles : tuple of (tuple of str, float)
        Cycles that it occupies its unit: coefficients of products of the sizes of these axes.
    latency_cycles : float
        Additional cycles until its results can be read.
    emit : str
        Template of its text in the machine's language; empty for the project's own assembly.
    banks_differ : tuple of (str, str)
        Pairs of operands that must lie in different banks.
    in_place : frozenset of str
        Inputs that may lie exactly where the output lies.
    """

    name: str
    unit: str
    axes: tuple[InstructionAxis, ...]
    computation: Computation
    places: Mapping[str, OperandPlace]
    accumulates: bool = True
    saturates: bool = False
    cycles: tuple[tuple[tuple[str, ...], float], ...] = (((), 1.0),)
    latency_cycles: float = 0.0
    energy_pj: float | None = None
    emit: str = ""
    banks_differ: tuple[tuple[str, str], ...] = ()
    in_place: frozenset[str] = frozenset()

    @cached_property
    def extents(self) -> dict[str, int]:
        """Largest size of each axis."""
        return {axis.name: axis.maximum for axis in self.axes}

    @cached_property
    def size_arguments(self) -> tuple[InstructionAxis, ...]:
        """Axes whose size is an argument of the instruction."""
        return tuple(axis for axis in self.axes if not axis.is_fixed)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the operands that are read, without the old contents of the outputs."""
        return tuple(operand.name for operand in self.computation.inputs)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the operands that are written."""
        return tuple(operand.name for operand in self.computation.outputs)

    @property
    def reads_outputs(self) -> bool:
        """True if it reads what its outputs held before."""
        statements = self.computation.statements
        return self.accumulates and any(s.reduction is not None for s in statements)

    @property
    def is_configuration(self) -> bool:
        """True if it writes registers and nothing else."""
        return not self.axes

    def dimension_sizes(
        self, operand: str, sizes: Mapping[str, int] | None = None
    ) -> dict[str, int]:
        """Return the size of each dimension of an operand in an execution, by default the largest.

        Parameters
        ----------
        operand : str
        sizes : mapping of str to int, optional
            Sizes of axes of the execution.
        """
        extents = {**self.extents, **(sizes or {})}
        accesses = self.computation.access_maps[operand]
        return {
            name: 1 + max(access.index[d].bounds(extents)[1] for access in accesses)
            for d, name in enumerate(self.places[operand].dimensions)
        }

    def lane_radices(self, operand: str) -> list[int]:
        """Return the number of values of each digit that selects the lane of an operand."""
        # Where a digit lies in the row is wiring: it does not move with the sizes of an execution.
        sizes = self.dimension_sizes(operand)
        return [digit.size(sizes[digit.axis]) for digit in self.places[operand].lanes]

    def occupied_cycles(self, sizes: Mapping[str, int]) -> float:
        """Return the cycles that an execution of these sizes occupies its unit."""
        complete = {**self.extents, **sizes}
        return sum(c * math.prod(complete[axis] for axis in axes) for axes, c in self.cycles)


@dataclass(frozen=True, kw_only=True)
class Channel:
    """A counting semaphore between two units; ``depth`` signals fit in it."""

    name: str
    sender: str
    receiver: str
    depth: int = 1 << 30


@dataclass(frozen=True, kw_only=True, eq=False)
class InstructionSet:
    """An accelerator: its memories, its units and its instructions.

    An instruction set is equal to itself alone, so that caches can have it in their keys.

    Attributes
    ----------
    name, description, source : str
        Identifier, one line for people, and the publication or manual behind the numbers.
    units : tuple of str
        Units that execute instructions, each in the order in which it gets them.
    channels : tuple of Channel
        Channels of a machine that is synchronized by channels.
    host : mapping of str to float
        Figures of the processor beside the accelerator, for the steps that the instructions cannot
        do: ``cycles_per_element``, ``cycles_per_mac`` and ``clock_mhz``, those that are described.
    preamble : str
        Text before the instructions' texts (``emit``), such as declarations of variables in them.
    warnings : tuple of str
        What to beware of, one line each: accumulators that few additions can overflow.
    """

    name: str
    description: str
    source: str
    evidence: Evidence
    clock_mhz: float
    memories: Mapping[str, IsaMemory]
    units: tuple[str, ...]
    instructions: Mapping[str, IsaInstruction]
    synchronization: Synchronization = Synchronization.INTERLOCKED
    channels: tuple[Channel, ...] = ()
    host: Mapping[str, float] = field(default_factory=dict[str, float])
    path: str = ""
    preamble: str = ""
    warnings: tuple[str, ...] = ()

    @cached_property
    def main(self) -> IsaMemory:
        """Main memory."""
        return next(m for m in self.memories.values() if m.kind is MemoryKind.MAIN)

    def row_memories(self) -> tuple[IsaMemory, ...]:
        """Return the memories that are addressed by rows."""
        return tuple(m for m in self.memories.values() if m.kind is MemoryKind.ROWS)
