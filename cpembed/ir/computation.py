"""A computation: a perfect loop nest over named axes around its scalar statements.

The same type describes a workload (an operator at fixed sizes) and an instruction (one execution of
the hardware); see docs/embedding.md, "Computations". Almost every computation has one statement.
Several, such as the real and the imaginary part of a complex product, are executed at every point
in any order: none reads what another one writes.

>>> from cpembed.ir.parser import parse_computation
>>> gemm = parse_computation("C[m,n] += A[m,k] * B[k,n]", {"m": 4, "n": 2, "k": 8})
>>> gemm.extents, gemm.macs, [operand.shape for operand in gemm.operands]
({'m': 4, 'n': 2, 'k': 8}, 64, [(4, 8), (8, 2), (4, 2)])
>>> gemm.axis("k").kind.value, str(gemm.access("B"))
('reduction', 'B[k, n]')
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

import numpy as np

from cpembed.errors import InvariantError, WorkloadError
from cpembed.ir.dtypes import DTYPES, dtype_info, is_integer
from cpembed.ir.expression import (
    OPERATIONS,
    Access,
    Expression,
    accesses,
    replaced,
    yields_float,
)

# The solver's numbers have 64 bits, of which padding and sums need some, and costs are exact in
# floating point up to here.
LARGEST_SIZE, LARGEST_STEP = 2**53, 2**40
"""Maximum number of points, of elements of an operand and value of an index; maximum step of an
index along an axis."""


class AxisKind(StrEnum):
    """Role of an axis: it indexes the outputs, or is summed over (or otherwise reduced)."""

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

    Attributes
    ----------
    name, dtype : str
        Name and element type.
    shape : tuple of int
        Size of each dimension.
    zero_outside : bool
        True if reads outside ``shape`` yield zero, such as in the padding of a convolution's image,
        and stores outside are dropped. Otherwise every access must stay inside.
    port_of : str or None
        Operand of which this one is a *port* (:mod:`cpembed.ir.accesses`): the same tensor through
        one of its accesses.
    varies : bool
        True for an input that could be weights but is computed anew for every call, so that it
        cannot be packed ahead.
    spread : tuple of int
        Distance, in each dimension, between elements of the original tensor; the elements between
        them are zeros that were inserted. Empty if no zeros were inserted.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    zero_outside: bool = False
    port_of: str | None = None
    varies: bool = False
    spread: tuple[int, ...] = ()

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def tensor(self) -> str:
        """Name of the tensor that holds the elements."""
        return self.port_of or self.name


@dataclass(frozen=True)
class Assignment:
    """``store (reduction)= value``: a scalar statement.

    ``reduction`` is the operation (``add``, ``max`` ...) that combines the points of one output
    element, or None if each output element is written once. The arithmetic is that of
    :mod:`cpembed.ir.arithmetic`; its result is converted to the output's dtype.
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

    ``inputs`` are in the order of their first read, ``outputs`` in the order of their first store.
    All stores depend on the same axes, which are the spatial ones.

    Raises
    ------
    WorkloadError
        If an access leaves its operand, an axis is unused, an operand is unknown, an output is also
        read, two statements write the same element, or reduction axes have no reduction.
    """

    name: str
    axes: tuple[Axis, ...]
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    statements: tuple[Assignment, ...]

    def __post_init__(self) -> None:
        # In this order: accesses are looked up by name, and sizes need bounds of valid indices.
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
        """The only statement; raises :class:`InvariantError` if there are several."""
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
        return {name: tuple(accesses) for name, accesses in maps.items()}

    @cached_property
    def has_single_accesses(self) -> bool:
        """True in port form, in which every operand has one access."""
        return all(len(accesses) == 1 for accesses in self.access_maps.values())

    @property
    def macs(self) -> int:
        """Points of the iteration domain: the multiply-accumulates of a product-sum."""
        return math.prod(axis.extent for axis in self.axes)

    @cached_property
    def useful_macs(self) -> int:
        """Multiply-accumulates without those on zeros inserted in an operand (``spread``)."""
        # Reads outside such an operand do not count either. Padding of any other operand belongs to
        # the computation and counts.
        macs = self.macs
        for operand in self.inputs:
            if operand.spread:
                macs = macs * self._original_reads(operand) // self.macs
        return macs

    @cached_property
    def macs_inside(self) -> int:
        """Lower bound of the multiply-accumulates that read no operand outside its shape."""
        share, counted = 1.0, set[str]()
        for operand in self.inputs:
            if not operand.zero_outside:
                continue
            index = self.access(operand.name).index
            for expression, size in zip(index, operand.shape, strict=True):
                names = list(expression.iterators)
                grids = np.meshgrid(*(np.arange(self.extents[n]) for n in names), indexing="ij")
                position = np.asarray(expression.evaluate(dict(zip(names, grids, strict=True))))
                inside = float(np.mean((position >= 0) & (position < size)))
                # Reads of dimensions without a common axis are inside independently.
                is_independent = counted.isdisjoint(names)
                share = share * inside if is_independent else max(0.0, share + inside - 1)
                counted.update(names)
        return math.floor(share * self.macs)

    def _original_reads(self, operand: Operand) -> int:
        """Count the points that read a spread operand at an element of the original tensor."""
        names = [axis.name for axis in self.axes]
        original = np.ones((1,) * len(names), np.bool_)
        index = self.access(operand.name).index
        for expression, size, step in zip(index, operand.shape, operand.spread, strict=True):
            axes = [name for name in names if name in expression.iterators]
            ranges = [np.arange(self.extents[name]) for name in axes]
            grids = np.meshgrid(*ranges, indexing="ij")
            position = np.asarray(expression.evaluate(dict(zip(axes, grids, strict=True))))
            hits = (position >= 0) & (position < size) & (position % step == 0)
            original = original & hits.reshape([self.extents[n] if n in axes else 1 for n in names])
        # Axes that index no dimension of the operand repeat every read.
        return int(np.count_nonzero(original)) * (self.macs // original.size)

    def axis(self, name: str) -> Axis:
        """Return an axis by its name; raise KeyError if there is none."""
        return {axis.name: axis for axis in self.axes}[name]

    def operand(self, name: str) -> Operand:
        """Return an input or output by its name; raise KeyError if there is none."""
        for operand in self.operands:
            if operand.name == name:
                return operand
        raise KeyError(name)

    def access(self, operand: str) -> Access:
        """Return the only access of an operand; raise KeyError if there are several."""
        accesses = self.access_maps[operand]
        if len(accesses) != 1:
            raise KeyError(f"{operand} is accessed {len(accesses)} times")
        return accesses[0]

    def with_dtypes(self, dtypes: dict[str, str]) -> Computation:
        """Replace the element types of these operands."""
        return self.with_operands(lambda o: replace(o, dtype=dtypes.get(o.name, o.dtype)))

    def with_names(self, names: Mapping[str, str]) -> Computation:
        """Return the computation with other names of some operands, by their names."""

        def named(operand: Operand) -> Operand:
            return replace(operand, name=names.get(operand.name, operand.name))

        def access(old: Access) -> Access:
            return replace(old, operand=names.get(old.operand, old.operand))

        return replace(
            self,
            inputs=tuple(map(named, self.inputs)),
            outputs=tuple(map(named, self.outputs)),
            statements=changed_accesses(self.statements, access),
        )

    def with_operands(self, change: Callable[[Operand], Operand]) -> Computation:
        """Apply a function to every operand and keep the statements."""
        return replace(
            self,
            inputs=tuple(change(operand) for operand in self.inputs),
            outputs=tuple(change(operand) for operand in self.outputs),
        )

    def __str__(self) -> str:
        return "; ".join(map(str, self.statements))

    def _check_names(self) -> None:
        for kind, declared in (("axis", self.axes), ("operand", self.operands)):
            names = [item.name for item in declared]
            for name in names:
                if names.count(name) > 1:
                    raise WorkloadError(f"{self.name}: {kind} {name} is declared twice")
        for reduction in (statement.reduction for statement in self.statements):
            if reduction is not None and not OPERATIONS[reduction].commutative:
                raise WorkloadError(f"{self.name}: {reduction} is not a commutative reduction")

    def _check_accesses(self) -> None:
        used: set[str] = set()
        for access in (*self.reads, *self.stores):
            if access.operand not in {operand.name for operand in self.operands}:
                raise WorkloadError(f"{self.name}: {access} names an unknown operand")
            self._check_bounds(access)
            used.update(access.iterators)
        unused = [axis.name for axis in self.axes if axis.name not in used]
        if unused:
            raise WorkloadError(f"{self.name}: axis {unused[0]} is in no index: remove it")

    def _check_sizes(self) -> None:
        sizes = {"points": self.macs}
        sizes |= {f"elements of {operand.name}": operand.elements for operand in self.operands}
        for name, size in sizes.items():
            if size > LARGEST_SIZE:
                raise WorkloadError(f"{self.name}: more than 2^53 {name}: use smaller sizes")
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
        """Check that each output element is computed from inputs alone, by a single statement."""
        # Points may then be executed in any order, which every transformation relies on. Without a
        # reduction, a single point has to write an element.
        outputs = {operand.name for operand in self.outputs}
        for operand in self.outputs:
            if operand.dtype not in DTYPES:
                raise WorkloadError(
                    f"{self.name}: only inputs can be {operand.dtype}, not the output "
                    f"{operand.name}: make it {dtype_info(operand.dtype).in_memory}"
                )
        dtypes = {operand.name: operand.dtype for operand in self.operands}
        for statement in self.statements:
            output = dtypes[statement.store.operand]
            if is_integer(output) and yields_float(statement.value, dtypes):
                raise WorkloadError(
                    f"{self.name}: {statement.store.operand} is {output} and its value is a float: "
                    f"write {output}(...), which rounds and saturates, or use a float output"
                )
        for access in self.reads:
            if access.operand in outputs:
                raise WorkloadError(
                    f"{self.name}: the output {access.operand} is also read: combine its old "
                    "values with a reduction instead"
                )
        for first, second in itertools.combinations(self.stores, 2):
            if _may_overlap(first, second):
                raise WorkloadError(
                    f"{self.name}: {first} and {second} may write the same element: give each "
                    "statement elements of its own"
                )
        spatial = {axis.name for axis in self.axes if axis.kind is AxisKind.SPATIAL}
        reduced = [axis.name for axis in self.axes if axis.kind is AxisKind.REDUCTION]
        for statement in self.statements:
            stored = set(statement.store.iterators)
            # An axis is spatial for all statements or for none: kinds belong to the computation.
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
            if unknown:  # before the bounds, which look every extent up
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
    """Replace every access in the statements."""

    def changed(node: Expression) -> Access | None:
        return change(node) if isinstance(node, Access) else None

    return tuple(
        replace(statement, store=change(statement.store), value=replaced(statement.value, changed))
        for statement in statements
    )


def _may_overlap(first: Access, second: Access) -> bool:
    """True unless two accesses provably name different elements at all pairs of points."""
    if first.operand != second.operand:
        return False
    for left, right in zip(first.index, second.index, strict=True):
        # A difference of the two indices is a multiple of the greatest common divisor of all
        # coefficients, plus the distance of the constants: never 0 if that is no multiple.
        terms = (*left.terms, *right.terms)
        step = math.gcd(*(term.coefficient for term in terms))
        distance = left.constant - right.constant
        if (distance % step if step else distance) and all(t.is_affine for t in terms):
            return False
    return True
