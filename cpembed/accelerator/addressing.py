"""Operands of one instruction bound to elements of tensors: addresses, strides and claims."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.accelerator.layouts import (
    LayoutDigit,
    RowLayout,
    StrideFit,
    fit_strides,
    main_digits,
    main_element,
)
from cpembed.accelerator.program import Address, Content, MainTensor
from cpembed.hw.isa import IMMEDIATE, IsaInstruction, OperandPlace
from cpembed.ir.index import IndexExpr, IndexTerm

Array = NDArray[Any]

_SAMPLES = 2
"""Number of random iterations of the loops at which strides are compared."""


@dataclass(frozen=True)
class InMain:
    """A tensor in main memory as the place of a box."""

    tensor: MainTensor


@dataclass(frozen=True)
class InRows:
    """A box of a tensor in rows.

    ``starts`` is the index of its first element, and ``base`` is added to the layout's rows.
    """

    layout: RowLayout
    starts: tuple[IndexExpr, ...]
    base: IndexExpr = field(default_factory=IndexExpr)

    @property
    def memory(self) -> str | None:
        return self.layout.memory


Place = InMain | InRows


@dataclass(frozen=True)
class TableEntry:
    """Element of a constant that differs between iterations: its place in all of its numbers."""

    numbers: tuple[int | float, ...]
    place: IndexExpr

    def address(self) -> Address:
        """Return the immediate that holds it."""
        return Address(self.place, table=self.numbers)


Scalar = int | float | TableEntry
"""Value of a register or an immediate."""


@dataclass(frozen=True)
class Binding:
    """One operand of an execution: its address, its claim and the registers that it depends on."""

    address: Address
    content: Content | None
    registers: tuple[tuple[str, Scalar | None], ...] = ()

    def moved(self, rows: IndexExpr) -> Binding:
        """Return the binding a number of rows further on."""
        if not rows.terms and not rows.constant:
            return self
        return replace(self, address=replace(self.address, base=self.address.base + rows))


def bind_scalar(
    place: OperandPlace, tensor: str, value: Scalar, index: tuple[IndexExpr, ...] = ()
) -> Binding:
    """Bind an operand without dimensions to a constant: an immediate or a register.

    Parameters
    ----------
    place : OperandPlace
    tensor : str
        Name of the tensor that holds the constant; empty for a number of the statement.
    value : number or TableEntry
        The constant.
    index : tuple of IndexExpr
        Index of the tensor's element, over the loops around the instruction.
    """
    content = Content(tensor, index) if tensor else None
    if place.memory != IMMEDIATE:
        return Binding(Address(), content, ((place.memory, value),))
    if isinstance(value, TableEntry):
        return Binding(value.address(), content)
    if isinstance(value, int):
        return Binding(Address(IndexExpr((), value)), content)
    return Binding(Address(value=float(value)), content)


def bind(
    instruction: IsaInstruction,
    operand: str,
    index: Sequence[IndexExpr],
    place: Place,
    tensor: str,
    axis_sizes: Mapping[str, int],
    loops: Mapping[str, int],
    shrinking: frozenset[str] = frozenset(),
) -> Binding | None:
    """Bind an operand to elements of a tensor; None if the instruction cannot reach them.

    Parameters
    ----------
    instruction : IsaInstruction
    operand : str
        Name of the operand.
    index : sequence of IndexExpr
        Index of the tensor's element at each point, over loops and the instruction's axes.
    place : InMain or InRows
        Where the tensor lies.
    tensor : str
        Name of the tensor, for the claim.
    axis_sizes : mapping of str to int
        Largest size of each axis in this use.
    loops : mapping of str to int
        Extent of each loop around the instruction.
    shrinking : frozenset of str
        Axes that have smaller sizes in some executions.
    """
    described = instruction.places[operand]
    operand_index = instruction.computation.access(operand).index
    # All axes that the tensor's index depends on, though the operand's own index may lack them.
    axes = dict.fromkeys(
        n for e in (*operand_index, *index) for n in e.iterators if n in axis_sizes
    )
    smaller = frozenset(
        name
        for name, e in zip(described.dimensions, operand_index, strict=True)
        if not shrinking.isdisjoint(e.iterators)
    )
    if isinstance(place, InMain):
        digits, lane_digits = main_digits(place.tensor), None
        local = [e + b for e, b in zip(index, place.tensor.before, strict=True)]
    else:
        digits, lane_digits = place.layout.rows, place.layout.lanes
        local = [e + s.times(-1) for e, s in zip(index, place.starts, strict=True)]
        if not described.lanes and not described.rows:
            lane_digits = ()
    relevant = _relevant(local, (*digits, *(lane_digits or ())), loops)
    moved_by = {n for e in relevant for n in e.iterators if n not in axis_sizes}
    fit = _fit(
        described,
        operand_index,
        tuple((a, axis_sizes[a]) for a in axes),
        relevant,
        digits,
        lane_digits,
        tuple((n, extent) for n, extent in loops.items() if n in moved_by),
        smaller,
    )
    if fit is None:
        return None
    zero = {a: IndexExpr() for a in axis_sizes}
    content = _content(instruction, operand, index, tensor, axis_sizes)
    if not {n for e in content.index for n in e.iterators} <= {*described.dimensions, *loops}:
        # The operand reaches the elements, but its dimensions do not say which they are.
        return None
    if isinstance(place, InMain):
        base = main_element(place.tensor, [e.substitute(zero) for e in index], loops)
        address = Address(base, place.tensor.name, strides=fit.arguments)
    else:
        first = [e.substitute(zero) for e in local]
        row = place.layout.row(first, loops) + place.base
        lane = place.layout.lane(first, loops)
        if (lane.terms or lane.constant) and not described.any_lane:
            return None
        address = Address(row, lane=lane, strides=fit.arguments)
    return Binding(address, content, fit.registers)


def _relevant(
    local: Sequence[IndexExpr], digits: Sequence[LayoutDigit], loops: Mapping[str, int]
) -> tuple[IndexExpr, ...]:
    """Return an index without the terms of loops that move all of an operand's elements alike."""
    periods = [1] * len(local)
    for d in digits:
        periods[d.dimension] = math.lcm(periods[d.dimension], d.divisor * (d.modulus or 1))
    return tuple(
        IndexExpr(
            tuple(
                t
                for t in e.terms
                if t.coefficient % period or any(name not in loops for name in t.iterators)
            ),
            e.constant % period,
        )
        for e, period in zip(local, periods, strict=True)
    )


@lru_cache(maxsize=1 << 13)
def _fit(
    described: OperandPlace,
    operand_index: tuple[IndexExpr, ...],
    axes: tuple[tuple[str, int], ...],
    local: tuple[IndexExpr, ...],
    digits: tuple[LayoutDigit, ...],
    lane_digits: tuple[LayoutDigit, ...] | None,
    loops: tuple[tuple[str, int], ...],
    smaller: frozenset[str],
) -> StrideFit | None:
    """Return the strides with which an operand reaches elements in iterations of loops.

    None says that it cannot reach them, or needs other strides in other iterations.
    """
    grids = np.meshgrid(*(np.arange(size) for _, size in axes), indexing="ij")
    points = {a: np.asarray(g).reshape(-1) for (a, _), g in zip(axes, grids, strict=True)}
    count = math.prod(size for _, size in axes)
    operand_values = {
        name: _values(e, points, count)
        for name, e in zip(described.dimensions, operand_index, strict=True)
    }
    dimension_sizes = {name: 1 + int(v.max()) for name, v in operand_values.items()}
    fit = None
    for sample in _samples(dict(loops)):
        at = [_values(e, {**sample, **points}, count) for e in local]
        target = _digits(digits, at, count)
        lanes = None if lane_digits is None else _digits(lane_digits, at, count)
        current = fit_strides(
            described,
            operand_values,
            dimension_sizes,
            target - target[0],
            None if lanes is None else lanes - lanes[0],
            smaller,
        )
        if current is None or (fit is not None and current != fit):
            return None
        fit = current
    return fit


def _values(e: IndexExpr, points: Mapping[str, Any], count: int) -> Array:
    return np.broadcast_to(np.asarray(e.evaluate(points)), (count,)).astype(np.int64)


def _samples(loops: Mapping[str, int]) -> Sequence[Mapping[str, int]]:
    """Return iterations at which strides are compared: the first, the last and random ones."""
    if not loops:
        return ({},)
    generator = random.Random(0)
    samples = [dict.fromkeys(loops, 0), {n: e - 1 for n, e in loops.items()}]
    samples += [{n: generator.randrange(e) for n, e in loops.items()} for _ in range(_SAMPLES)]
    return samples


def _digits(digits: Sequence[LayoutDigit], at: Sequence[Array], count: int) -> Array:
    total = np.zeros(count, np.int64)
    for d in digits:
        value = at[d.dimension]
        if d.divisor != 1:
            value = value // d.divisor
        if d.modulus is not None:
            value = value % d.modulus
        total += d.stride * value
    return total


def _content(
    instruction: IsaInstruction,
    operand: str,
    index: Sequence[IndexExpr],
    tensor: str,
    axis_sizes: Mapping[str, int],
) -> Content:
    """Return the claim of an operand, in its own dimensions instead of the instruction's axes."""
    described = instruction.places[operand]
    # An axis of one element moves nothing: the window of a single tap is the pixel itself.
    still = {a: IndexExpr() for a, size in axis_sizes.items() if size == 1}
    operand_index = [
        e if e.single_iterator else e.substitute(still)
        for e in instruction.computation.access(operand).index
    ]
    single = {
        e.single_iterator: name
        for name, e in zip(described.dimensions, operand_index, strict=True)
        if e.single_iterator
    }
    claimed: list[IndexExpr] = []
    for e in index:
        moving = [t for t in e.terms if any(n in axis_sizes for n in t.iterators)]
        rest = IndexExpr.sum([t for t in e.terms if t not in moving], e.constant)
        if all(n in single for t in moving for n in t.iterators if n in axis_sizes):
            replaced = {a: IndexExpr.iterator(n) for a, n in single.items()}
            claimed.append(rest + IndexExpr.sum(moving).substitute(replaced))
            continue
        claimed.append(rest + _window(described, operand_index, IndexExpr.sum(moving)))
    return Content(tensor, tuple(claimed))


def _window(
    place: OperandPlace, operand_index: Sequence[IndexExpr], moving: IndexExpr
) -> IndexExpr:
    """Return a sum of axes as a multiple of the dimension that the same sum indexes."""
    for name, e in zip(place.dimensions, operand_index, strict=True):
        for factor in (moving.terms[0].coefficient // max(1, t.coefficient) for t in e.terms):
            scaled = IndexExpr.sum(e.times(factor).terms)
            if factor and sorted(map(str, scaled.terms)) == sorted(map(str, moving.terms)):
                return IndexExpr((IndexTerm(name, factor),))
    return moving
