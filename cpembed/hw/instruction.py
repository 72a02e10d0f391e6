"""Instructions and the memories that feed them: the hardware side of an embedding."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from cpembed.errors import SpecError
from cpembed.ir.computation import Axis, Computation, Operand
from cpembed.ir.ports import View, split_ports

if TYPE_CHECKING:
    from cpembed.hw.levels import Hierarchy


@dataclass(frozen=True)
class InstructionAxis:
    """An instruction axis: fixed (``minimum == maximum``) or configurable in steps.

    The computation of the instruction is written at ``maximum``; AMX, for example, takes 1 to 16
    rows, set by its tile configuration. One execution of a primitive of any size covers up to
    ``largest`` points in whole multiples of ``maximum``, its granule, which is what is embedded
    (swATOP 4.1); None: ``maximum`` is all that one execution covers.
    """

    name: str
    minimum: int
    maximum: int
    step: int = 1
    largest: int | None = None

    @property
    def is_fixed(self) -> bool:
        return self.minimum == self.maximum

    @property
    def allowed(self) -> tuple[int, ...]:
        """Extents the axis can be configured to, ascending."""
        return tuple(range(self.minimum, self.maximum + 1, self.step))

    def describe_allowed(self) -> str:
        """``16``, ``1..16``, ``4..16 in steps of 4`` or ``multiples of 32 up to 4096``."""
        if self.largest is not None:
            return f"multiples of {self.maximum} up to {self.largest}"
        if self.is_fixed:
            return str(self.maximum)
        steps = "" if self.step == 1 else f" in steps of {self.step}"
        return f"{self.minimum}..{self.maximum}{steps}"


class StrideRule(StrEnum):
    """How far apart in memory consecutive elements along an instruction axis may lie."""

    UNIT = "unit"
    """Where the tile's own order puts them: the tile is dense in memory."""
    ANY = "any"
    """At any constant distance (a row stride that is a register of the instruction)."""


@dataclass(frozen=True)
class TileDimension:
    """One dimension of an operand's tile as memory holds it: ``(axis // divisor) % modulus``."""

    axis: str
    divisor: int = 1
    modulus: int | None = None

    def size(self, extent: int) -> int:
        """Values the dimension takes when its axis has ``extent``."""
        whole = -(-extent // self.divisor)
        return whole if self.modulus is None else min(whole, self.modulus)

    def __str__(self) -> str:
        text = self.axis if self.divisor == 1 else f"{self.axis}/{self.divisor}"
        return text if self.modulus is None else f"{text}%{self.modulus}"


@dataclass(frozen=True)
class OperandMemory:
    """The memory side of one operand (AMOS's memory abstraction).

    ``tile`` lists the dimensions outermost first and holds one element for each combination of
    values of its axes; ``strides`` gives the rule per instruction axis (unit where not named),
    ``capacity_bytes`` the size of the whole scope, ``alignment_bytes`` what the address of a tile
    in main memory must be a multiple of.
    """

    scope: str
    tile: tuple[TileDimension, ...]
    strides: Mapping[str, StrideRule] = field(default_factory=dict[str, StrideRule])
    alignment_bytes: int = 1
    capacity_bytes: int | None = None

    @property
    def axes(self) -> tuple[str, ...]:
        """Instruction axes of the tile, in the order in which they first occur."""
        return tuple(dict.fromkeys(dimension.axis for dimension in self.tile))

    def stride_rule(self, axis: str) -> StrideRule:
        return self.strides.get(axis, StrideRule.UNIT)

    def tile_shape(self, extents: Mapping[str, int]) -> tuple[int, ...]:
        """Size of each tile dimension at the given extents of the instruction axes."""
        return tuple(dimension.size(extents[dimension.axis]) for dimension in self.tile)

    def reads_contiguously(self, axis: str, element_bytes: int, extents: Mapping[str, int]) -> bool:
        """Whether an axis can walk neighbouring elements wherever they begin: it is the last of an
        unaligned tile, and the other axes take any stride or, by ``extents``, one step."""
        if not self.tile:
            return False
        last = self.tile[-1]
        return (
            (last.axis, last.divisor, last.modulus) == (axis, 1, None)
            and self.alignment_bytes <= element_bytes
            and all(
                self.stride_rule(other) is StrideRule.ANY or extents[other] == 1
                for other in self.axes
                if other != axis
            )
        )


@dataclass(frozen=True)
class Instruction:
    """What the hardware does in one go.

    ``computation`` is written at the largest extents; ``dtypes`` lists, per operand, the element
    types it takes (the computation holds the first of each). ``views`` says which elements of its
    tensor the elements of a port are (:mod:`cpembed.ir.ports`); only :attr:`in_ports` has any.
    """

    name: str
    axes: tuple[InstructionAxis, ...]
    computation: Computation
    dtypes: Mapping[str, tuple[str, ...]]
    memory: Mapping[str, OperandMemory]
    views: Mapping[str, View] = field(default_factory=dict[str, View])

    @cached_property
    def in_ports(self) -> Instruction:
        """The instruction with an operand per access; itself where each operand has only one.

        Every port is fed as its operand is, by a tile over the axes that it depends on.
        """
        ports = split_ports(self.computation)
        if not ports.views:
            return self
        operands = ports.computation.operands
        memory: dict[str, OperandMemory] = {}
        for operand in operands:
            own = {n for i in ports.computation.access(operand.name).index for n in i.iterators}
            whole = self.memory[operand.tensor]
            tile = tuple(part for part in whole.tile if part.axis in own)
            strides = {axis: rule for axis, rule in whole.strides.items() if axis in own}
            memory[operand.name] = replace(whole, tile=tile, strides=strides)
        return replace(
            self,
            computation=ports.computation,
            dtypes={operand.name: self.dtypes[operand.tensor] for operand in operands},
            memory=memory,
            views=ports.views,
        )

    @cached_property
    def extents(self) -> dict[str, int]:
        """Largest extent of each axis."""
        return {axis.name: axis.maximum for axis in self.axes}

    @property
    def macs(self) -> int:
        """Multiply-accumulates one execution occupies the unit for: its largest extents."""
        return math.prod(axis.maximum for axis in self.axes)

    @property
    def configurable_axes(self) -> tuple[InstructionAxis, ...]:
        return tuple(axis for axis in self.axes if not axis.is_fixed)

    @property
    def dtype_choices(self) -> tuple[dict[str, str], ...]:
        """Every combination of operand dtypes; the first is the one of ``computation``."""
        names = tuple(self.dtypes)
        combinations = itertools.product(*self.dtypes.values())
        return tuple(dict(zip(names, dtypes, strict=True)) for dtypes in combinations)

    def axis(self, name: str) -> InstructionAxis:
        for axis in self.axes:
            if axis.name == name:
                return axis
        raise KeyError(name)

    def loop_axis(self, name: str) -> Axis:
        return self.computation.axis(name)

    def tile_shape(self, operand: str, extents: Mapping[str, int] | None = None) -> tuple[int, ...]:
        """Shape of an operand's tile, outermost first; axes that are not named are at their
        largest extent."""
        return self.memory[operand].tile_shape({**self.extents, **(extents or {})})

    def at(self, extents: Mapping[str, int]) -> Computation:
        """The computation configured to other extents; axes that are not named keep theirs.

        Raises :class:`SpecError` for an axis the instruction lacks or an extent it cannot take.
        """
        for name, extent in extents.items():
            if name not in self.extents:
                raise SpecError(f"{self.name} has no axis {name}; it has {', '.join(self.extents)}")
            if extent not in self.axis(name).allowed:
                raise SpecError(
                    f"{self.name} cannot set axis {name} to {extent}: "
                    f"it takes {self.axis(name).describe_allowed()}"
                )
        sizes = {**self.computation.extents, **extents}
        if sizes == self.computation.extents:
            return self.computation

        def resize(operand: Operand) -> Operand:
            shape = list(operand.shape)
            for dimension in range(len(shape)):
                indices = [
                    access.index[dimension] for access in self.computation.access_maps[operand.name]
                ]
                # Sizes that no configured axis indexes stay as declared.
                if any(name in extents for index in indices for name in index.iterators):
                    shape[dimension] = 1 + max(index.bounds(sizes)[1] for index in indices)
            return replace(operand, shape=tuple(shape))

        axes = tuple(replace(a, extent=sizes[a.name]) for a in self.computation.axes)
        # In one step: shapes that do not fit the extents are refused.
        return replace(
            self.computation,
            axes=axes,
            inputs=tuple(resize(operand) for operand in self.computation.inputs),
            outputs=tuple(resize(operand) for operand in self.computation.outputs),
        )


class Machine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[machine]``: the clock and the path to main memory of a unit that moves its own data.

    A transfer moves ``bus_bits`` a cycle in bursts of up to ``burst_beats``; the first beat comes
    ``dram_delay_cycles`` after the request.
    """

    clock_mhz: float
    bus_bits: int
    burst_beats: int
    dram_delay_cycles: int


@dataclass(frozen=True)
class HardwareSpec:
    """A target: one instruction, its memories, and what executes it.

    ``backend`` names what executes it (:mod:`cpembed.targets.known`) or is None while nothing does:
    solving works, running takes portable code. ``cpu_features`` are the features that a machine
    must report, as Linux spells them in ``/proc/cpuinfo``. ``alternatives`` are targets that may
    run what this instruction cannot, or runs badly. ``constraints`` is the set that is searched
    where none is named; None: those of every target. ``memories`` are the capacities in bytes of
    all scopes (None: not limited), also of those that hold no operand; ``machine`` is None where
    the processor moves the data. ``machines`` are those that have the instruction, the first of
    them the default. ``path`` is the file it was read from.
    """

    name: str
    description: str
    source: str
    instruction: Instruction
    backend: str | None = None
    cpu_features: tuple[str, ...] = ()
    alternatives: tuple[str, ...] = ()
    constraints: str | None = None
    path: str = ""
    memories: Mapping[str, int | None] = field(default_factory=dict[str, int | None])
    machine: Machine | None = None
    machines: Mapping[str, Hierarchy] = field(default_factory=dict[str, "Hierarchy"])
