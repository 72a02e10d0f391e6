"""Boxes of operands in a scratchpad, and which axes one execution of a primitive covers.

Both follow from the axes of which a PE holds more than one point of a tile, whatever the sizes are:
this is a :class:`Form`. A box keeps the order of its operand's dimensions, so what is contiguous in
main memory stays so; leading dimensions of a call are distances in the box.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cpembed.errors import LoweringError
from cpembed.targets.scratchpad.lower import Axis, BoxProduct, Operand


@dataclass(frozen=True)
class BoxDimension:
    """A dimension of a box: ``1 + sum(coefficient * (held - 1))`` places of the axes ``walks``.

    Its place u is ``sum(factor * start) + constant + step * u`` of the operand's dimension, for the
    ``starts`` of a PE's part; it has ``size`` of them, ``apart`` bytes from each other.
    """

    walks: Mapping[str, int]
    starts: Mapping[str, int]
    constant: int
    step: int
    size: int
    apart: int

    def places(self, held: Mapping[str, Any]) -> Any:
        """For numbers of held points, or arrays of them."""
        return 1 + sum(factor * (held[name] - 1) for name, factor in self.walks.items())


@dataclass(frozen=True)
class Box:
    """What a PE holds of an operand for a tile, dimensions outermost first. ``tiled``: main memory
    has it in this form already, box after box."""

    operand: Operand
    dimensions: tuple[BoxDimension, ...]
    tiled: bool

    def places(self, held: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(dimension.places(held) for dimension in self.dimensions)

    def elements(self, held: Mapping[str, Any]) -> Any:
        return math.prod(self.places(held))

    def walk(self, axis: str) -> tuple[tuple[int, int], ...]:
        """Dimensions that an axis walks, with the places of a step of it."""
        return tuple(
            (number, dimension.walks[axis])
            for number, dimension in enumerate(self.dimensions)
            if axis in dimension.walks
        )

    def stride(self, axis: str, places: Sequence[int]) -> int:
        """Elements between neighbours along an axis, in a box of so many places."""
        return sum(factor * math.prod(places[number + 1 :]) for number, factor in self.walk(axis))

    def alone(self, axis: str) -> int | None:
        """The dimension that an axis has for itself, place by place; None where it has none."""
        walked = self.walk(axis)
        if len(walked) != 1 or walked[0][1] != 1:
            return None
        number = walked[0][0]
        return number if len(self.dimensions[number].walks) == 1 else None

    def follows(self, outer: str, inner: str) -> bool:
        """Whether one index walks both axes, the inner one whole in each step of the outer."""
        first, second = self.alone(outer), self.alone(inner)
        if first is None or second is None or first >= second:
            return False
        return not any(dimension.walks for dimension in self.dimensions[first + 1 : second])

    def is_unit(self, axis: str) -> bool:
        """Whether neighbours along an axis are neighbours in the box."""
        walked = self.walk(axis)
        if len(walked) != 1 or walked[0][1] != 1:
            return False
        return not any(d.walks for d in self.dimensions[walked[0][0] + 1 :])


@dataclass(frozen=True)
class Form:
    """A product of whose tiles each PE holds one point of the axes ``single``, more of all others.

    ``ahead``: constant operands lie in main memory box after box.
    """

    product: BoxProduct
    single: frozenset[str]
    ahead: bool

    @cached_property
    def boxes(self) -> tuple[Box, Box, Box]:
        one, other, result = map(self._box, self.product.operands)
        return one, other, result

    @cached_property
    def chains(self) -> Mapping[str, tuple[Axis, ...]]:
        """By instruction axis, the axes that one execution covers, innermost first.

        Raises :class:`LoweringError` where a granule's points are no regular walk.
        """
        return {lane: self._chain(lane) for lane in self.product.lanes if lane}

    @cached_property
    def repeated(self) -> tuple[Axis, ...]:
        """Axes of which a PE holds several points that an execution does not cover."""
        covered = {axis.name for chain in self.chains.values() for axis in chain}
        axes = self.product.axes.values()
        if not self.product.machine.sized:
            # Their granules are executed one after the other.
            return tuple(axis for axis in axes if axis.name not in self.single)
        return tuple(a for a in axes if a.name not in covered and a.name not in self.single)

    def held_of(self, lane: str) -> tuple[Box, Box]:
        """The boxes that an instruction axis moves in."""
        one, other, result = self.boxes
        x, y, _ = self.product.lanes
        return (one, result) if lane == x else (other, result) if lane == y else (one, other)

    def _box(self, operand: Operand) -> Box:
        tiled = operand.constant and self.ahead
        make = self._tiled if tiled else self._in_place
        return Box(operand, tuple(make(operand)), tiled)

    def _in_place(self, operand: Operand) -> Iterator[BoxDimension]:
        for index, size, stride in zip(operand.index, operand.shape, operand.strides, strict=True):
            factors = {name: index.coefficient(name) for name in index.iterators}
            if any(factor < 0 for factor in factors.values()):
                raise LoweringError(f"{operand.name} is walked backwards: {index}")
            walks = {name: f for name, f in factors.items() if name not in self.single}
            step = math.gcd(*walks.values()) if walks else 1
            yield BoxDimension(
                {name: factor // step for name, factor in walks.items()},
                factors,
                index.constant,
                step,
                size,
                step * stride,
            )

    def _tiled(self, operand: Operand) -> Iterator[BoxDimension]:
        """A dimension for each axis, in the order of the instruction's tile; of one instruction
        axis, the digits from the outermost, after axes that only tiles walk."""
        program = self.product.program
        order = program.instruction.memory[operand.role].axes
        lanes = [self.product.class_of(name) or "" for name in operand.axes]
        digits = {
            digit.axis: -number
            for each in program.embedding.digits.values()
            for number, digit in enumerate(each)
        }
        ranked = sorted(
            zip(lanes, operand.axes, strict=True),
            key=lambda item: (
                order.index(item[0]) if item[0] in order else -1,
                item[1] in digits,
                digits.get(item[1], 0),
            ),
        )
        for _, name in ranked:
            walks = {} if name in self.single else {name: 1}
            yield BoxDimension(walks, {name: 1}, 0, 1, self.product.axes[name].extent, 0)

    def _chain(self, lane: str) -> tuple[Axis, ...]:
        moving = [a for a in self.product.of_lane(lane) if a.name not in self.single]
        embedded = [
            self.product.axes[digit.axis] for digit in self.product.program.embedding.digits[lane]
        ]
        needed = [axis for axis in embedded if axis.grain > 1]
        if not self.product.machine.sized:
            return self._granule(lane, embedded)
        found: list[tuple[Axis, ...]] = [()]
        boxes = self.held_of(lane)
        for first in moving:
            slides = any(box.alone(first.name) is None for box in boxes)
            if lane == self.product.lanes[2] and slides:
                # Rows and columns of a matrix would be the same elements in part.
                continue
            chain = [first]
            while True:
                more = [
                    axis
                    for axis in moving
                    if axis not in chain
                    and all(box.follows(axis.name, chain[-1].name) for box in boxes)
                ]
                if not more:
                    break
                chain.append(more[0])
            found.append(tuple(chain))
        right = [chain for chain in found if all(axis in chain for axis in needed)]
        if not right:
            names = " and ".join(axis.name for axis in needed)
            raise LoweringError(f"{lane}: {names} are not walked by one index of the scratchpad")
        return max(right, key=lambda chain: (math.prod(a.granule for a in chain), len(chain)))

    def _granule(self, lane: str, embedded: Sequence[Axis]) -> tuple[Axis, ...]:
        """The axes of a granule, which one stride walks only if all but the outermost are whole."""
        moving = tuple(axis for axis in embedded if axis.granule > 1)
        if len(moving) > 1:
            raise LoweringError(
                f"{lane}: an instruction of fixed size walks one axis, not "
                f"{' and '.join(axis.name for axis in moving)}"
            )
        return moving
