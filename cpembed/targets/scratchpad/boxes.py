"""Boxes of operands in a scratchpad, and the axes that one execution of a primitive covers.

Both follow from the axes of which a PE holds more than one point of a tile, whatever the sizes are:
this is a :class:`Form`. A box keeps the order of its operand's dimensions, so what is contiguous in
main memory stays contiguous; the leading dimensions of a call are distances in the box.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cpembed.errors import LoweringError
from cpembed.targets.scratchpad.lower import Axis, BoxProduct, Operand


@dataclass(frozen=True, kw_only=True)
class BoxDimension:
    """A dimension of a box."""

    walks: Mapping[str, int]
    """Coefficients of the axes in the number of places, ``1 + sum(coefficient * (held - 1))``."""
    starts: Mapping[str, int]
    """Factors of the first points of a PE's part in the operand's dimension: place u of the box is
    its place ``sum(factor * start) + constant + step * u``."""
    constant: int
    step: int
    size: int
    """Size of the operand's dimension."""
    stride_bytes: int
    """Bytes between neighbouring places in main memory."""

    def places(self, held: Mapping[str, Any]) -> Any:
        """Return the number of places for numbers of held points, or arrays of them."""
        return 1 + sum(factor * (held[name] - 1) for name, factor in self.walks.items())


@dataclass(frozen=True)
class Box:
    """The part of an operand that a PE holds for a tile, dimensions outermost first; ``tiled`` if
    main memory contains it in this form already, box after box.
    """

    operand: Operand
    dimensions: tuple[BoxDimension, ...]
    tiled: bool

    def places(self, held: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(dimension.places(held) for dimension in self.dimensions)

    def elements(self, held: Mapping[str, Any]) -> Any:
        return math.prod(self.places(held))

    def walk(self, axis: str) -> tuple[tuple[int, int], ...]:
        """Return the dimensions that an axis walks, with the places of its step."""
        return tuple(
            (number, dimension.walks[axis])
            for number, dimension in enumerate(self.dimensions)
            if axis in dimension.walks
        )

    def stride(self, axis: str, places: Sequence[int]) -> int:
        """Return the elements between neighbours along an axis, in a box of so many places."""
        return sum(factor * math.prod(places[number + 1 :]) for number, factor in self.walk(axis))

    def _unit_dimension(self, axis: str) -> int | None:
        """Return the only dimension that an axis walks, if it does so place by place."""
        walk = self.walk(axis)
        return walk[0][0] if len(walk) == 1 and walk[0][1] == 1 else None

    def own_dimension(self, axis: str) -> int | None:
        """Return the dimension that only this axis walks, place by place; None if there is none."""
        number = self._unit_dimension(axis)
        if number is None or len(self.dimensions[number].walks) != 1:
            return None
        return number

    def follows(self, outer: str, inner: str) -> bool:
        """True if one index walks both axes, all of the inner one in each step of the outer."""
        first, second = self.own_dimension(outer), self.own_dimension(inner)
        if first is None or second is None or first >= second:
            return False
        return not any(dimension.walks for dimension in self.dimensions[first + 1 : second])

    def is_unit(self, axis: str) -> bool:
        """True if neighbours along an axis are neighbours in the box."""
        number = self._unit_dimension(axis)
        return number is not None and not any(d.walks for d in self.dimensions[number + 1 :])


@dataclass(frozen=True)
class Form:
    """A product in which each PE holds one point of the axes ``single`` of a tile, and more of all
    others; ``ahead`` if constant operands are in main memory box after box.
    """

    product: BoxProduct
    single: frozenset[str]
    ahead: bool

    @cached_property
    def boxes(self) -> tuple[Box, Box, Box]:
        a, b, c = map(self._box, self.product.operands)
        return a, b, c

    @cached_property
    def chains(self) -> Mapping[str, tuple[Axis, ...]]:
        """Axes that one execution covers by instruction axis, innermost first.

        Raises :class:`LoweringError` if the points of a granule have no constant stride.
        """
        return {lane: self._chain(lane) for lane in self.product.lanes if lane}

    @cached_property
    def repeated(self) -> tuple[Axis, ...]:
        """Axes of which a PE holds several points that an execution does not cover."""
        covered = set[str]()
        # An instruction of fixed size is executed for one granule after the other.
        if self.product.machine.sized:
            covered = {axis.name for chain in self.chains.values() for axis in chain}
        axes = self.product.axes.values()
        return tuple(a for a in axes if a.name not in covered and a.name not in self.single)

    def _boxes_of(self, lane: str) -> tuple[Box, Box]:
        """Return the boxes that an instruction axis moves in."""
        a, b, c = self.boxes
        x, y, _ = self.product.lanes
        return (a, c) if lane == x else (b, c) if lane == y else (a, b)

    def _box(self, operand: Operand) -> Box:
        tiled = operand.constant and self.ahead
        dimensions = self._tiled_dimensions if tiled else self._dimensions
        return Box(operand, tuple(dimensions(operand)), tiled)

    def _dimensions(self, operand: Operand) -> Iterator[BoxDimension]:
        for index, size, stride in zip(operand.index, operand.shape, operand.strides, strict=True):
            factors = {name: index.coefficient(name) for name in index.iterators}
            if any(factor < 0 for factor in factors.values()):
                raise LoweringError(f"{operand.name} is walked backwards: {index}")
            walks = {name: f for name, f in factors.items() if name not in self.single}
            step = math.gcd(*walks.values()) if walks else 1
            yield BoxDimension(
                walks={name: factor // step for name, factor in walks.items()},
                starts=factors,
                constant=index.constant,
                step=step,
                size=size,
                stride_bytes=step * stride,
            )

    def _tiled_dimensions(self, operand: Operand) -> Iterator[BoxDimension]:
        """Yield a dimension for each axis: first those that only tiles walk, then in the order of
        the instruction's tile, the digits of one instruction axis from the outermost.
        """
        program = self.product.program
        order = program.instruction.memory[operand.role].axes
        ranks = {
            digit.axis: -number
            for digits in program.embedding.digits.values()
            for number, digit in enumerate(digits)
        }

        def rank(name: str) -> tuple[int, bool, int]:
            lane = self.product.lane_of(name) or ""
            return order.index(lane) if lane in order else -1, name in ranks, ranks.get(name, 0)

        for name in sorted(operand.axes, key=rank):
            yield BoxDimension(
                walks={} if name in self.single else {name: 1},
                starts={name: 1},
                constant=0,
                step=1,
                size=self.product.axes[name].extent,
                stride_bytes=0,
            )

    def _chain(self, lane: str) -> tuple[Axis, ...]:
        digits = self.product.program.embedding.digits[lane]
        embedded = [self.product.axes[digit.axis] for digit in digits]
        if not self.product.machine.sized:
            return self._granule_axes(lane, embedded)
        required = [axis for axis in embedded if axis.grain > 1]
        chains = [c for c in self._chains_of(lane) if all(axis in c for axis in required)]
        if not chains:
            names = " and ".join(axis.name for axis in required)
            raise LoweringError(f"{lane}: {names} are not walked by one index of the scratchpad")
        return max(chains, key=lambda chain: (math.prod(a.granule for a in chain), len(chain)))

    def _chains_of(self, lane: str) -> Iterator[tuple[Axis, ...]]:
        """Yield sequences of axes that one index walks in both boxes, innermost first."""
        yield ()
        axes = [a for a in self.product.axes_of_lane(lane) if a.name not in self.single]
        boxes = self._boxes_of(lane)
        for first in axes:
            slides = any(box.own_dimension(first.name) is None for box in boxes)
            if lane == self.product.lanes[2] and slides:
                # Rows and columns of a factor would share elements.
                continue
            chain = [first]
            while outer := next(
                (
                    axis
                    for axis in axes
                    if axis not in chain
                    and all(box.follows(axis.name, chain[-1].name) for box in boxes)
                ),
                None,
            ):
                chain.append(outer)
            yield tuple(chain)

    def _granule_axes(self, lane: str, embedded: Sequence[Axis]) -> tuple[Axis, ...]:
        axes = tuple(axis for axis in embedded if axis.granule > 1)
        if len(axes) > 1:
            raise LoweringError(
                f"{lane}: an instruction of fixed size walks one axis, not "
                f"{' and '.join(axis.name for axis in axes)}"
            )
        return axes
