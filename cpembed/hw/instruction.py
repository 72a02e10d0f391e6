"""Instructions and the memories that feed them: the hardware side of an embedding."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

from cpembed.ir.computation import Axis, Computation


@dataclass(frozen=True)
class InstructionAxis:
    """An instruction axis: fixed (``minimum == maximum``) or configurable in steps.

    The computation of the instruction is written at ``maximum``; AMX, for example, takes 1 to 16
    rows, set by its tile configuration.
    """

    name: str
    minimum: int
    maximum: int
    step: int = 1

    @property
    def is_fixed(self) -> bool:
        return self.minimum == self.maximum

    @property
    def allowed(self) -> tuple[int, ...]:
        """Extents the axis can be configured to, ascending."""
        return tuple(range(self.minimum, self.maximum + 1, self.step))


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

    def __str__(self) -> str:
        text = self.axis if self.divisor == 1 else f"{self.axis}/{self.divisor}"
        return text if self.modulus is None else f"{text}%{self.modulus}"


@dataclass(frozen=True)
class OperandMemory:
    """The memory side of one operand (AMOS's memory abstraction).

    ``tile`` lists the dimensions outermost first, ``strides`` the rule per instruction axis (unit
    where not named), ``capacity_bytes`` the size of the whole scope, ``alignment_bytes`` what the
    address of a tile must be a multiple of.
    """

    scope: str
    tile: tuple[TileDimension, ...]
    strides: Mapping[str, StrideRule] = field(default_factory=dict[str, StrideRule])
    alignment_bytes: int = 1
    capacity_bytes: int | None = None

    def stride_rule(self, axis: str) -> StrideRule:
        return self.strides.get(axis, StrideRule.UNIT)


@dataclass(frozen=True)
class Instruction:
    """What the hardware does in one go.

    ``computation`` is written at the largest extents; ``dtypes`` lists, per operand, the element
    types it takes (the computation holds the first of each).
    """

    name: str
    axes: tuple[InstructionAxis, ...]
    computation: Computation
    dtypes: Mapping[str, tuple[str, ...]]
    memory: Mapping[str, OperandMemory]

    @cached_property
    def extents(self) -> dict[str, int]:
        """Largest extent of each axis."""
        return {axis.name: axis.maximum for axis in self.axes}

    @property
    def macs(self) -> int:
        """Multiply-accumulates one execution occupies the unit for: its largest extents."""
        return math.prod(axis.maximum for axis in self.axes)

    def axis(self, name: str) -> InstructionAxis:
        for axis in self.axes:
            if axis.name == name:
                return axis
        raise KeyError(name)

    def loop_axis(self, name: str) -> Axis:
        return self.computation.axis(name)


@dataclass(frozen=True)
class HardwareSpec:
    """A target: one instruction, its memories, and what executes it.

    ``backend`` names the package that generates code for it (``x86`` …) or is None while there is
    none: solving works, running uses the generic code path. ``cpu_features`` are the feature names
    of the instruction set's vendor that a machine must report.
    """

    name: str
    description: str
    source: str
    instruction: Instruction
    backend: str | None = None
    cpu_features: tuple[str, ...] = ()
    path: str = ""
