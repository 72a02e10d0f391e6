"""A computation: a perfect loop nest over named axes around one scalar statement.

The same type describes a workload (an operator at fixed sizes) and an instruction (what the
hardware does in one go); see ``docs/architecture.md`` and Rieber et al. 2021, section 3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

from cpembed.errors import WorkloadError
from cpembed.ir.expression import OPERATIONS, Access, Expression, accesses


class AxisKind(StrEnum):
    SPATIAL = "spatial"
    REDUCTION = "reduction"


@dataclass(frozen=True)
class Axis:
    """A loop axis: iterations ``0 <= name < extent``."""

    name: str
    extent: int
    kind: AxisKind

    def __post_init__(self) -> None:
        if self.extent < 1:
            raise WorkloadError(
                f"axis {self.name} has extent {self.extent}: an extent is an integer of at least 1"
            )


@dataclass(frozen=True)
class Operand:
    """A tensor of the computation.

    ``zero_outside``: a read outside ``shape`` yields zero (a convolution's own image padding);
    without it every access must stay inside.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    zero_outside: bool = False

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Computation:
    """``output[...] (reduction)= value`` for every point of the axes.

    ``inputs`` are in the order of their first read in ``value``. ``reduction`` is the operation
    (``add``, ``max`` ...) that combines the points with equal output element, or None when each
    output element is written once. Arithmetic is done in the output's dtype: every read is
    converted to it first.

    Raises :class:`WorkloadError` when an access leaves its operand, an axis is unused, an operand
    is unknown, the output is also read, or reduction axes have no reduction.
    """

    name: str
    axes: tuple[Axis, ...]
    inputs: tuple[Operand, ...]
    output: Operand
    store: Access
    value: Expression
    reduction: str | None = "add"

    def __post_init__(self) -> None:
        self._check_names()
        self._check_accesses()
        self._check_output()

    @cached_property
    def extents(self) -> dict[str, int]:
        """Extent of each axis, in loop order."""
        return {axis.name: axis.extent for axis in self.axes}

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Inputs in order of first read, then the output."""
        return (*self.inputs, self.output)

    @cached_property
    def reads(self) -> tuple[Access, ...]:
        return accesses(self.value)

    @cached_property
    def access_maps(self) -> dict[str, tuple[Access, ...]]:
        """All accesses of each operand, the store included."""
        maps: dict[str, list[Access]] = {operand.name: [] for operand in self.operands}
        for access in (*self.reads, self.store):
            maps[access.operand].append(access)
        return {name: tuple(found) for name, found in maps.items()}

    @property
    def macs(self) -> int:
        """Points of the iteration domain: the multiply-accumulates of a product-sum."""
        return math.prod(axis.extent for axis in self.axes)

    def axis(self, name: str) -> Axis:
        for axis in self.axes:
            if axis.name == name:
                return axis
        raise KeyError(name)

    def operand(self, name: str) -> Operand:
        for operand in self.operands:
            if operand.name == name:
                return operand
        raise KeyError(name)

    def access(self, operand: str) -> Access:
        """The only access of an operand; raises KeyError where there are several."""
        found = self.access_maps[operand]
        if len(found) != 1:
            raise KeyError(f"{operand} is accessed {len(found)} times")
        return found[0]

    def with_dtypes(self, dtypes: dict[str, str]) -> Computation:
        """The same computation on operands of other dtypes."""

        def change(operand: Operand) -> Operand:
            return replace(operand, dtype=dtypes.get(operand.name, operand.dtype))

        return replace(
            self, inputs=tuple(change(o) for o in self.inputs), output=change(self.output)
        )

    def __str__(self) -> str:
        if self.reduction is None:
            return f"{self.store} = {self.value}"
        symbol = {"add": "+=", "mul": "*="}.get(self.reduction, f"{self.reduction}=")
        return f"{self.store} {symbol} {self.value}"

    def _check_names(self) -> None:
        names = [axis.name for axis in self.axes]
        for name in names:
            if names.count(name) > 1:
                raise WorkloadError(f"{self.name}: axis {name} is declared twice")
        operands = [operand.name for operand in self.operands]
        for name in operands:
            if operands.count(name) > 1:
                raise WorkloadError(f"{self.name}: operand {name} is declared twice")
        if self.reduction is not None and not OPERATIONS[self.reduction].commutative:
            raise WorkloadError(f"{self.name}: {self.reduction} is not a commutative reduction")

    def _check_accesses(self) -> None:
        used: set[str] = set()
        for access in (*self.reads, self.store):
            if access.operand not in {operand.name for operand in self.operands}:
                raise WorkloadError(f"{self.name}: {access} names an unknown operand")
            self._check_bounds(access)
            used |= {name for index in access.index for name in index.iterators}
        unused = [axis.name for axis in self.axes if axis.name not in used]
        if unused:
            raise WorkloadError(f"{self.name}: axis {unused[0]} is in no index: remove it")

    def _check_output(self) -> None:
        """Each output element is made of inputs alone and, without a reduction, by one point."""
        if any(access.operand == self.output.name for access in self.reads):
            raise WorkloadError(
                f"{self.name}: the output {self.output.name} is also read: combine its old values "
                "with a reduction instead"
            )
        reduced = [axis.name for axis in self.axes if axis.kind is AxisKind.REDUCTION]
        if self.reduction is None and reduced:
            raise WorkloadError(
                f"{self.name}: {reduced[0]} is a reduction axis and there is no reduction: "
                f"{self.output.name} is written repeatedly"
            )

    def _check_bounds(self, access: Access) -> None:
        operand = self.operand(access.operand)
        if len(access.index) != len(operand.shape):
            raise WorkloadError(
                f"{self.name}: {access} has {len(access.index)} indices, "
                f"{operand.name} has {len(operand.shape)} dimensions"
            )
        for dimension, (index, size) in enumerate(zip(access.index, operand.shape, strict=True)):
            unknown = [name for name in index.iterators if name not in self.extents]
            if unknown:
                raise WorkloadError(f"{self.name}: {access} uses {unknown[0]}, which has no extent")
            low, high = index.bounds(self.extents)
            if not operand.zero_outside and (low < 0 or high >= size):
                raise WorkloadError(
                    f"{self.name}: {access} reaches {low}..{high} in dimension {dimension} "
                    f"of {operand.name}, which has 0..{size - 1}"
                )
