"""Instructions and the memories that feed them: the hardware side of an embedding.

An :class:`Instruction` is a computation with, for each operand, the element types that it takes and
the tile that its memory holds. :class:`HardwareSpec` adds what executes it.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property

from cpembed.errors import SpecError
from cpembed.hw.machine import Hierarchy, MemoryInterface
from cpembed.ir.accesses import View, split_ports
from cpembed.ir.computation import Axis, Computation, Operand


@dataclass(frozen=True)
class InstructionAxis:
    """An instruction axis: fixed (``minimum == maximum``) or configurable in steps.

    The computation of the instruction is written at ``maximum``. AMX, for example, takes 1 to 16
    rows, set by its tile configuration:

    >>> InstructionAxis("x", 1, 16).describe_allowed()
    '1..16'
    """

    name: str
    minimum: int
    maximum: int
    step: int = 1
    # A primitive of any size (swATOP 4.1) embeds its granule, `maximum`: one execution covers up to
    # `largest` points in whole multiples of it. Else one execution covers `maximum`.
    largest: int | None = None

    @property
    def is_fixed(self) -> bool:
        return self.minimum == self.maximum

    @property
    def allowed(self) -> tuple[int, ...]:
        """Extents to which the axis can be configured, ascending."""
        return tuple(range(self.minimum, self.maximum + 1, self.step))

    @property
    def takes_any_size(self) -> bool:
        """True if an execution may have any size up to the largest one."""
        return not self.is_fixed and self.minimum == self.step == 1

    def rounded(self, size: int) -> int:
        """Return the smallest allowed extent that is at least a size, or the largest one."""
        steps = max(0, -(-(size - self.minimum) // self.step))
        return min(self.maximum, self.minimum + steps * self.step)

    def describe_allowed(self) -> str:
        """Return ``16``, ``1..16``, ``4..16 in steps of 4`` or ``multiples of 32 up to 4096``."""
        if self.largest is not None:
            return f"multiples of {self.maximum} up to {self.largest}"
        if self.is_fixed:
            return str(self.maximum)
        steps = "" if self.step == 1 else f" in steps of {self.step}"
        return f"{self.minimum}..{self.maximum}{steps}"


class StrideRule(StrEnum):
    """Allowed distance of consecutive elements along an instruction axis, where it reads them.

    That is main memory for an instruction of a processor, and the scratchpad that a transfer fills
    for a unit with scratchpads.
    """

    UNIT = "unit"
    """The distance in the tile itself: the tile is dense in memory."""
    ANY = "any"
    """Any constant distance (a row stride that is a register of the instruction)."""


@dataclass(frozen=True)
class TileDimension:
    """One dimension of an operand's tile as memory holds it: ``(axis // divisor) % modulus``.

    >>> TileDimension("z", 4, 16).size(64), str(TileDimension("z", 4, 16))
    (16, 'z/4%16')
    """

    axis: str
    divisor: int = 1
    modulus: int | None = None

    def size(self, extent: int) -> int:
        """Number of values of the dimension if its axis has ``extent``."""
        quotients = -(-extent // self.divisor)
        return quotients if self.modulus is None else min(quotients, self.modulus)

    def __str__(self) -> str:
        text = self.axis if self.divisor == 1 else f"{self.axis}/{self.divisor}"
        return text if self.modulus is None else f"{text}%{self.modulus}"


@dataclass(frozen=True)
class OperandMemory:
    """The memory side of one operand (AMOS's memory abstraction).

    Attributes
    ----------
    scope : str
        Name of the register file or buffer that holds the tile.
    tile : tuple of TileDimension
        Dimensions, outermost first; one element for each combination of values of its axes.
    strides : mapping of str to StrideRule
        Rule per instruction axis, ``UNIT`` for axes that are not listed.
    alignment_bytes : int
        The address of a tile in main memory must be a multiple of this.
    capacity_bytes : int or None
        Capacity of the scope; None where it is not limited.
    contiguous : tuple of str
        Axes along which a copy engine reads contiguous rows from main memory, one of them for each
        operand; empty: there is no such engine (the constraint ``contiguous``).
    """

    scope: str
    tile: tuple[TileDimension, ...]
    strides: Mapping[str, StrideRule] = field(default_factory=dict[str, StrideRule])
    alignment_bytes: int = 1
    capacity_bytes: int | None = None
    contiguous: tuple[str, ...] = ()

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
        """Return True if an axis can walk neighbouring elements from any address."""
        # It has to be the last dimension of an unaligned tile, and every other axis takes any
        # stride or has a single step: a dense tile begins at multiples of its rows.
        return (
            bool(self.tile)
            and self.tile[-1] == TileDimension(axis)
            and self.alignment_bytes <= element_bytes
            and all(
                self.stride_rule(outer) is StrideRule.ANY or extents[outer] == 1
                for outer in self.axes
                if outer != axis
            )
        )


@dataclass(frozen=True)
class Instruction:
    """One execution of the hardware, as a computation with the memories of its operands.

    >>> from cpembed.hw.loader import load_hardware_spec
    >>> vnni = load_hardware_spec("avx512_vnni").instruction
    >>> vnni.extents, vnni.macs, vnni.tile_shape("B")
    ({'y': 16, 'z': 4}, 64, (16, 4))

    Attributes
    ----------
    axes : tuple of InstructionAxis
        The axes, in loop order.
    computation : Computation
        The computation at the largest extents, in the first element type of each operand.
    dtypes : mapping of str to tuple of str
        Element types that each operand takes.
    memory : mapping of str to OperandMemory
        Tile and scope of each operand.
    views : mapping of str to View
        For each port, its elements within the operand's tensor (:mod:`cpembed.ir.accesses`); empty
        unless the instruction is in port form (:attr:`in_ports`).
    """

    name: str
    axes: tuple[InstructionAxis, ...]
    computation: Computation
    dtypes: Mapping[str, tuple[str, ...]]
    memory: Mapping[str, OperandMemory]
    views: Mapping[str, View] = field(default_factory=dict[str, View])

    @cached_property
    def in_ports(self) -> Instruction:
        """The instruction in port form: one operand per access (itself if that holds already)."""
        ports = split_ports(self.computation)
        if not ports.views:
            return self
        operands = ports.computation.operands
        memory: dict[str, OperandMemory] = {}
        # A port is fed as its operand is, by a tile over the axes that it depends on.
        for operand in operands:
            axes = ports.computation.access(operand.name).iterators
            tensor = self.memory[operand.tensor]
            tile = tuple(dimension for dimension in tensor.tile if dimension.axis in axes)
            strides = {axis: rule for axis, rule in tensor.strides.items() if axis in axes}
            memory[operand.name] = replace(tensor, tile=tile, strides=strides)
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
        """Multiply-accumulates of one execution at its largest extents, which it is charged for."""
        return math.prod(axis.maximum for axis in self.axes)

    @property
    def configurable_axes(self) -> tuple[InstructionAxis, ...]:
        return tuple(axis for axis in self.axes if not axis.is_fixed)

    @property
    def dtype_choices(self) -> tuple[dict[str, str], ...]:
        """Every combination of operand dtypes; the first one is that of ``computation``."""
        names = tuple(self.dtypes)
        combinations = itertools.product(*self.dtypes.values())
        return tuple(dict(zip(names, dtypes, strict=True)) for dtypes in combinations)

    def axis(self, name: str) -> InstructionAxis:
        """Return an axis with the extents it can take; raise KeyError if there is none."""
        return {axis.name: axis for axis in self.axes}[name]

    def loop_axis(self, name: str) -> Axis:
        """Return an axis of the computation, with its role."""
        return self.computation.axis(name)

    def tile_shape(self, operand: str, extents: Mapping[str, int] | None = None) -> tuple[int, ...]:
        """Shape of an operand's tile, outermost first, at the largest extents unless given."""
        return self.memory[operand].tile_shape({**self.extents, **(extents or {})})

    def with_extents(self, extents: Mapping[str, int]) -> Computation:
        """Configure the computation to other extents; axes that are not listed keep theirs.

        Raises :class:`SpecError` for an axis that the instruction lacks, or an extent that it
        cannot take.
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
        # Most instructions are fixed, and a computation checks itself whenever it is made.
        if sizes == self.computation.extents:
            return self.computation

        def resize(operand: Operand) -> Operand:
            shape, accesses = list(operand.shape), self.computation.access_maps[operand.name]
            for dimension in range(len(shape)):
                indices = [access.index[dimension] for access in accesses]
                # A declared size may exceed what the indices reach: keep it where nothing changes.
                if any(name in extents for index in indices for name in index.iterators):
                    shape[dimension] = 1 + max(index.bounds(sizes)[1] for index in indices)
            return replace(operand, shape=tuple(shape))

        axes = tuple(replace(a, extent=sizes[a.name]) for a in self.computation.axes)
        inputs, outputs = (
            tuple(map(resize, operands))
            for operands in (self.computation.inputs, self.computation.outputs)
        )
        # In one step, since a computation rejects shapes that do not fit its extents.
        return replace(self.computation, axes=axes, inputs=inputs, outputs=outputs)


@dataclass(frozen=True)
class HardwareSpec:
    """A target: one instruction, its memories, and its back end.

    Attributes
    ----------
    name, description, source : str
        Identifier, one line for people, and the publication or manual behind the numbers.
    backend : str or None
        The back end that executes it (:mod:`cpembed.targets.known`). With None, solving works and
        running uses portable code.
    cpu_features : tuple of str
        Features that a host must report, as Linux spells them in ``/proc/cpuinfo``.
    alternatives : tuple of str
        Targets that may run what this instruction cannot, or runs badly.
    constraints : str or None
        Constraint set to search by default; None for the presets of every target.
    path : str
        File of the specification.
    memories : mapping of str to int or None
        Capacity in bytes of every scope, including those without operands; None if not limited.
    row_elements : mapping of str to int
        Elements of a row of each scope that is addressed by rows; a row holds no more than the last
        dimension of a tile.
    machine : MemoryInterface or None
        The unit's path to main memory; None where the processor moves the data.
    machines : mapping of str to Hierarchy
        Machines that have the instruction; the first one is the default.
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
    row_elements: Mapping[str, int] = field(default_factory=dict[str, int])
    machine: MemoryInterface | None = None
    machines: Mapping[str, Hierarchy] = field(default_factory=dict[str, Hierarchy])

    def for_machine(self, name: str) -> HardwareSpec:
        """Return the specification with another of its machines as the default."""
        # The first one is the default wherever a machine is needed.
        return replace(self, machines={name: self.machines[name], **self.machines})

    def __repr__(self) -> str:
        axes = "  ".join(f"{axis} {extent}" for axis, extent in self.instruction.extents.items())
        return f"<target {self.name}: {self.instruction.computation}, {axes}>"


_DIMENSION = re.compile(r"([A-Za-z_]\w*)(?:/(\d{1,9}))?(?:%(\d{1,9}))?", re.ASCII)

ErrorWith = Callable[[str], SpecError]
"""Function from a problem to its error, with the file and the key."""


def read_tile(
    texts: Sequence[str],
    operand_axes: Sequence[str],
    axes: Mapping[str, InstructionAxis],
    error: ErrorWith,
) -> tuple[TileDimension, ...]:
    """Parse the notation of a tile and check that it holds each axis exactly once.

    >>> z = InstructionAxis("z", 64, 64)
    >>> y = InstructionAxis("y", 16, 16)
    >>> tile = read_tile(["z/4", "y", "z%4"], ["z", "y"], {"z": z, "y": y}, SpecError)
    >>> [dimension.size({"z": 64, "y": 16}[dimension.axis]) for dimension in tile]
    [16, 16, 4]

    Parameters
    ----------
    texts : sequence of str
        Dimensions as a specification writes them, outermost first.
    operand_axes : sequence of str
        Axes on which the operand depends.
    axes : mapping of str to InstructionAxis
        All axes of the instruction.
    error : callable
        Function from a problem to the error that is raised.
    """
    tile = tuple(_read_dimension(text, operand_axes, error) for text in texts)
    for axis in operand_axes:
        _check_parts(axes[axis], [d for d in tile if d.axis == axis], error)
    return tuple(_without_redundant_modulus(d, axes[d.axis].maximum) for d in tile)


def _read_dimension(text: str, operand_axes: Sequence[str], error: ErrorWith) -> TileDimension:
    match = _DIMENSION.fullmatch(text.replace(" ", ""))
    if not match:
        raise error(
            f"{text!r} is not a tile dimension; allowed: an axis, axis/divisor, axis%modulus "
            "or axis/divisor%modulus"
        )
    axis, divisor, modulus = match[1], int(match[2] or 1), int(match[3] or 0)
    if divisor == 0 or (match[3] and modulus == 0):
        raise error(f"{text!r} divides by zero")
    if axis not in operand_axes:
        raise error(
            f"{axis} is not an axis of the operand; its axes: {', '.join(operand_axes) or 'none'}"
        )
    return TileDimension(axis, divisor, modulus or None)


def _check_parts(axis: InstructionAxis, parts: Sequence[TileDimension], error: ErrorWith) -> None:
    """Check that the parts of an axis are consecutive digits of it that cover its extent."""
    if not parts:
        raise error(f"lacks axis {axis.name}: a tile holds each axis of its operand exactly once")
    if not axis.is_fixed and parts != [TileDimension(axis.name)]:
        raise error(f"splits {axis.name}, which is configurable; allowed: {axis.name} whole")
    # From the innermost digit outwards, each part has to begin where the previous ones end: only
    # then do the parts, as digits of one number, name every value of the axis once.
    covered = 1
    ordered = sorted(parts, key=lambda part: (part.divisor, part.modulus or math.inf))
    for number, part in enumerate(ordered):
        if part.divisor < covered or (number and covered == axis.maximum):
            raise error(f"holds axis {axis.name} more than once, again in {part}")
        if part.divisor > covered:
            expected = axis.name if covered == 1 else f"{axis.name}/{covered}"
            raise error(
                f"{part} leaves a gap: the parts of {axis.name} inside it multiply to {covered}, "
                f"the next one starts with {expected}"
            )
        size = part.modulus or axis.maximum // covered
        if axis.maximum % (covered * size):
            raise error(f"{part} does not divide the extent {axis.maximum} of {axis.name}")
        covered *= size
    if covered != axis.maximum:
        raise error(f"the parts of {axis.name} multiply to {covered}, its extent is {axis.maximum}")


def _without_redundant_modulus(dimension: TileDimension, extent: int) -> TileDimension:
    """Turn ``z/4%16`` of extent 64 into ``z/4``, so that equal tiles are equal values."""
    if dimension.modulus and dimension.divisor * dimension.modulus == extent:
        return TileDimension(dimension.axis, dimension.divisor)
    return dimension
