"""A computation: a perfect loop nest over named axes around its scalar statements.

Almost every computation has one statement. Several (the real and the imaginary part of a complex
product) are executed at every point, in any order: none reads what another writes.

The same type describes a workload (an operator at fixed sizes) and an instruction (what the
hardware does in one go); see docs/embedding.md, "Computations".
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

import numpy as np

from cpembed.errors import InvariantError, WorkloadError
from cpembed.ir.dtypes import DTYPES, dtype_info
from cpembed.ir.expression import (
    OPERATIONS,
    Access,
    Cast,
    Expression,
    Operation,
    accesses,
)

LARGEST_SIZE, LARGEST_STEP = 2**53, 2**40
"""Points of a computation, elements of an operand, what an index reaches; what an axis moves an
index by. The solver's numbers have 64 bits, of which padding and sums need some, and costs are
exact in floating point up to here."""


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

    ``zero_outside``: a read outside ``shape`` yields zero (a convolution's own image padding), and
    what is stored there is dropped; without it every access must stay inside. ``of`` names the
    operand that this one is a *port* of (:mod:`cpembed.ir.ports`): the same tensor, through one of
    its accesses. ``varies``: an input that could be weights is made anew for every call, so that
    nothing of it can be packed ahead. ``spread``: for each dimension, of how many elements one is
    the tensor's own, the first one included; those between are zeros that were inserted. Empty: all
    elements are its own.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    zero_outside: bool = False
    of: str | None = None
    varies: bool = False
    spread: tuple[int, ...] = ()

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def tensor(self) -> str:
        """Name of the tensor that holds the elements."""
        return self.of or self.name


@dataclass(frozen=True)
class Assignment:
    """``store (reduction)= value``: a scalar statement.

    ``reduction`` is the operation (``add``, ``max`` ...) that combines the points with equal
    output element, or None when each output element is written once. Arithmetic is exact in 64
    bits (in float64 for a float output) and its result is converted to the output's dtype.
    """

    store: Access
    value: Expression
    reduction: str | None = "add"

    @cached_property
    def reads(self) -> tuple[Access, ...]:
        return accesses(self.value)

    def __str__(self) -> str:
        if self.reduction is None:
            return f"{self.store} = {self.value}"
        symbol = {"add": "+=", "mul": "*="}.get(self.reduction, f"{self.reduction}=")
        return f"{self.store} {symbol} {self.value}"


@dataclass(frozen=True)
class Computation:
    """Statements executed at every point of the axes.

    ``inputs`` are in the order of their first read, ``outputs`` in the order of their first store;
    all stores depend on the same axes, which are the spatial ones.

    Raises :class:`WorkloadError` when an access leaves its operand, an axis is unused, an operand
    is unknown, an output is also read, two statements write the same element, or reduction axes
    have no reduction.
    """

    name: str
    axes: tuple[Axis, ...]
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    statements: tuple[Assignment, ...]

    def __post_init__(self) -> None:
        self._check_names()
        self._check_accesses()
        self._check_sizes()
        self._check_outputs()

    @cached_property
    def extents(self) -> dict[str, int]:
        """Extent of each axis, in loop order."""
        return {axis.name: axis.extent for axis in self.axes}

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Inputs in order of first read, then the outputs."""
        return (*self.inputs, *self.outputs)

    @property
    def statement(self) -> Assignment:
        """The only statement; :class:`InvariantError` where there are several."""
        if len(self.statements) != 1:
            raise InvariantError(f"{self.name} has {len(self.statements)} statements, not one")
        return self.statements[0]

    @property
    def output(self) -> Operand:
        """The operand that the only statement writes."""
        return self.operand(self.statement.store.operand)

    @cached_property
    def reads(self) -> tuple[Access, ...]:
        """Every read, in the order in which they are written."""
        return tuple(read for statement in self.statements for read in statement.reads)

    @cached_property
    def stores(self) -> tuple[Access, ...]:
        return tuple(statement.store for statement in self.statements)

    @cached_property
    def access_maps(self) -> dict[str, tuple[Access, ...]]:
        """The different accesses of each operand, stores included."""
        maps: dict[str, dict[Access, None]] = {operand.name: {} for operand in self.operands}
        for access in (*self.reads, *self.stores):
            maps[access.operand][access] = None
        return {name: tuple(found) for name, found in maps.items()}

    @property
    def macs(self) -> int:
        """Points of the iteration domain: the multiply-accumulates of a product-sum."""
        return math.prod(axis.extent for axis in self.axes)

    @cached_property
    def useful_macs(self) -> int:
        """:attr:`macs` without those that multiply zeros which were inserted between the elements
        of an operand (``Operand.spread``), or lie outside such an operand. Padding of any other
        operand belongs to the computation and counts."""
        found = self.macs
        for operand in self.inputs:
            if operand.spread:
                found = found * self._points_of_elements(operand) // self.macs
        return found

    def _points_of_elements(self, operand: Operand) -> int:
        """Points at which a spread operand is read at an element of its own."""
        names = [axis.name for axis in self.axes]
        inside = np.ones((1,) * len(names), np.bool_)
        index = self.access(operand.name).index
        for place, size, step in zip(index, operand.shape, operand.spread, strict=True):
            axes = [name for name in names if name in place.iterators]
            ranges = [np.arange(self.extents[name]) for name in axes]
            grids = np.meshgrid(*ranges, indexing="ij")
            at = np.asarray(place.evaluate(dict(zip(axes, grids, strict=True))))
            own = (at >= 0) & (at < size) & (at % step == 0)
            inside = inside & own.reshape([self.extents[n] if n in axes else 1 for n in names])
        return int(np.count_nonzero(inside)) * (self.macs // inside.size)

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

        return self.with_operands(change)

    def with_operands(self, change: Callable[[Operand], Operand]) -> Computation:
        """The same statements on changed operands."""
        return replace(
            self,
            inputs=tuple(change(operand) for operand in self.inputs),
            outputs=tuple(change(operand) for operand in self.outputs),
        )

    def __str__(self) -> str:
        return "; ".join(map(str, self.statements))

    def _check_names(self) -> None:
        names = [axis.name for axis in self.axes]
        for name in names:
            if names.count(name) > 1:
                raise WorkloadError(f"{self.name}: axis {name} is declared twice")
        operands = [operand.name for operand in self.operands]
        for name in operands:
            if operands.count(name) > 1:
                raise WorkloadError(f"{self.name}: operand {name} is declared twice")
        for reduction in (statement.reduction for statement in self.statements):
            if reduction is not None and not OPERATIONS[reduction].commutative:
                raise WorkloadError(f"{self.name}: {reduction} is not a commutative reduction")

    def _check_accesses(self) -> None:
        used: set[str] = set()
        for access in (*self.reads, *self.stores):
            if access.operand not in {operand.name for operand in self.operands}:
                raise WorkloadError(f"{self.name}: {access} names an unknown operand")
            self._check_bounds(access)
            used |= {name for index in access.index for name in index.iterators}
        unused = [axis.name for axis in self.axes if axis.name not in used]
        if unused:
            raise WorkloadError(f"{self.name}: axis {unused[0]} is in no index: remove it")

    def _check_sizes(self) -> None:
        sizes = {"points": self.macs}
        sizes |= {f"elements of {operand.name}": operand.elements for operand in self.operands}
        for what, size in sizes.items():
            if size > LARGEST_SIZE:
                raise WorkloadError(f"{self.name}: more than 2^53 {what}: use smaller sizes")
        for access in (*self.reads, *self.stores):
            for index in access.index:
                reached = max(map(abs, index.bounds(self.extents)))
                step = max((abs(term.coefficient) for term in index.terms), default=0)
                if reached > LARGEST_SIZE or step > LARGEST_STEP:
                    raise WorkloadError(
                        f"{self.name}: an index of {access.operand} reaches beyond 2^53 or moves "
                        "in steps beyond 2^40: use smaller numbers"
                    )

    def _check_outputs(self) -> None:
        """Each output element is made of inputs alone, by one statement and, without a reduction,
        by one point."""
        outputs = {operand.name for operand in self.outputs}
        for operand in self.outputs:
            if operand.dtype not in DTYPES:
                raise WorkloadError(
                    f"{self.name}: only inputs can be {operand.dtype}, not the output "
                    f"{operand.name}: make it {dtype_info(operand.dtype).in_memory}"
                )
        for access in self.reads:
            if access.operand in outputs:
                raise WorkloadError(
                    f"{self.name}: the output {access.operand} is also read: combine its old "
                    "values with a reduction instead"
                )
        for first, second in itertools.combinations(self.stores, 2):
            if may_overlap(first, second):
                raise WorkloadError(
                    f"{self.name}: {first} and {second} may write the same element: give each "
                    "statement elements of its own"
                )
        spatial = {axis.name for axis in self.axes if axis.kind is AxisKind.SPATIAL}
        reduced = [axis.name for axis in self.axes if axis.kind is AxisKind.REDUCTION]
        for statement in self.statements:
            stored = {name for index in statement.store.index for name in index.iterators}
            if len(self.statements) > 1 and stored != spatial:
                raise WorkloadError(
                    f"{self.name}: {statement.store} does not depend on the same axes as the "
                    f"other results, {' '.join(sorted(spatial))}: index all by the same axes"
                )
            if statement.reduction is None and reduced:
                raise WorkloadError(
                    f"{self.name}: {reduced[0]} is a reduction axis and there is no reduction: "
                    f"{statement.store.operand} is written repeatedly"
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


def changed_accesses(
    statements: Sequence[Assignment], change: Callable[[Access], Access]
) -> tuple[Assignment, ...]:
    """The statements with every access replaced."""

    def rewrite(node: Expression) -> Expression:
        if isinstance(node, Access):
            return change(node)
        if isinstance(node, Operation):
            return Operation(node.op, tuple(rewrite(arg) for arg in node.args))
        return Cast(node.dtype, rewrite(node.arg)) if isinstance(node, Cast) else node

    return tuple(
        replace(statement, store=change(statement.store), value=rewrite(statement.value))
        for statement in statements
    )


def may_overlap(first: Access, second: Access) -> bool:
    """Whether two accesses may name the same element, at whatever points.

    False only where in some dimension every reachable difference misses zero: the constants differ
    by no multiple of what the iterators move by.
    """
    if first.operand != second.operand:
        return False
    for mine, theirs in zip(first.index, second.index, strict=True):
        terms = (*mine.terms, *theirs.terms)
        step = math.gcd(*(term.coefficient for term in terms))
        distance = mine.constant - theirs.constant
        if (distance % step if step else distance) and all(t.is_affine for t in terms):
            return False
    return True
