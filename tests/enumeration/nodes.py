"""The scalar level: what axis maps do to the points and the elements of an instruction.

Definitions: docs/embedding.md, "The constraint problem".
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from cpembed.hw.instruction import Instruction
from cpembed.ir.computation import Computation
from cpembed.ir.expression import Access
from tests.enumeration.roles import Point, Roles


@dataclass(frozen=True)
class Digit:
    """``count`` steps of ``stride`` along an axis, or along the fused axis of several members."""

    members: tuple[str, ...]
    count: int
    stride: int


AxisMaps = Mapping[str, tuple[Digit, ...]]
"""Digits of each instruction axis, innermost first."""


@dataclass(frozen=True)
class BoxDigit:
    """A digit of an image: index ``place`` of an operand moves along ``dimension``."""

    place: int
    dimension: int
    count: int
    stride: int


@dataclass(frozen=True)
class Grid:
    """The points of an instruction, and for each pair the element that each point accesses: by name
    and index, and by its place among those that are accessed."""

    steps: list[dict[str, int]]
    elements: list[list[tuple[tuple[str, Point], Point]]]


def _elements(access: Access, steps: Sequence[Mapping[str, int]]) -> list[Any]:
    elements = [tuple(index.evaluate(step) for index in access.index) for step in steps]
    columns = [sorted(set(column)) for column in zip(*elements, strict=True)]
    moving = [k for k, index in enumerate(access.index) if index.iterators]
    return [
        ((access.operand, element), tuple(columns[k].index(element[k]) for k in moving))
        for element in elements
    ]


@dataclass(frozen=True)
class Task:
    """An instruction, a workload, and the roles."""

    workload: Computation
    instruction: Instruction
    roles: Roles
    _grids: dict[object, Grid] = field(default_factory=dict[object, Grid])

    @property
    def pairs(self) -> tuple[tuple[Access, Access], ...]:
        return self.roles.pairs

    @cached_property
    def sums(self) -> list[list[tuple[int, dict[str, int]]]]:
        """For each pair, the workload's indices: a constant and the factors of its axes."""
        return [
            [
                (index.constant, {t.iterator: t.coefficient for t in index.terms})
                for index in a.index
            ]
            for _, a in self.pairs
        ]

    @cached_property
    def stored(self) -> list[bool]:
        outputs = {operand.name for operand in self.instruction.computation.outputs}
        return [ours.operand in outputs for ours, _ in self.pairs]

    def grid(self, extents: tuple[tuple[str, int], ...]) -> Grid:
        """The instruction's points at some extents."""
        if extents not in self._grids:
            names = [name for name, _ in extents]
            steps = [
                dict(zip(names, step, strict=True))
                for step in itertools.product(*(range(extent) for _, extent in extents))
            ]
            self._grids[extents] = Grid(steps, [_elements(ours, steps) for ours, _ in self.pairs])
        return self._grids[extents]

    def extent(self, members: Sequence[str]) -> int:
        return math.prod(self.workload.extents[member] for member in members)

    def indexed(self, members: Sequence[str]) -> list[bool]:
        """Which of the pairs' workload accesses an axis is in, or one of several."""
        return [any(set(terms) & set(members) for _, terms in sums) for sums in self.sums]

    def walked(self, pair: int) -> list[tuple[str, ...]]:
        """The instruction axes of each dimension of an operand that any axis walks."""
        indices = self.pairs[pair][0].index
        return [index.iterators for index in indices if index.iterators]


def coordinates(digit: Digit, step: int, extents: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """The member axes' coordinates at a step of a digit: the last member is the fastest, and the
    first one goes on beyond its extent."""
    at = step * digit.stride
    for member in reversed(digit.members[1:]):
        at, coordinate = divmod(at, extents[member])
        yield member, coordinate
    yield digit.members[0], at


class Nodes:
    """The images of all nodes under axis maps at some extents of the instruction's axes.

    ``images``: for each pair, the image of each element of the instruction's operand; elements are
    counted from 0 along each dimension that an axis walks. ``respects_dataflow``: each element has
    one image; without it, the images are not complete.
    """

    def __init__(
        self, task: Task, extents: Mapping[str, int], maps: AxisMaps, origin: Mapping[str, int]
    ) -> None:
        self.task, self.extents, self.maps = task, extents, maps
        grid = task.grid(tuple(extents.items()))
        self.points = [self._point(step, origin) for step in grid.steps]
        self.images: list[dict[Point, Point]] = []
        self.respects_dataflow = False
        shared: dict[tuple[str, Point], tuple[str, Point]] = {}
        for (_, theirs), sums, elements in zip(task.pairs, task.sums, grid.elements, strict=True):
            images: dict[Point, Point] = {}
            for (element, place), point in zip(elements, self.points, strict=True):
                image = tuple([c + sum([f * point[a] for a, f in t.items()]) for c, t in sums])
                target = theirs.operand, image
                if shared.setdefault(element, target) != target:
                    return
                images[place] = image
            self.images.append(images)
        self.respects_dataflow = True

    def _point(self, step: Mapping[str, int], origin: Mapping[str, int]) -> dict[str, int]:
        extents = self.task.workload.extents
        point = {axis: origin.get(axis, 0) for axis in extents}
        for name, position in step.items():
            rest = position
            for digit in self.maps.get(name, ()):
                rest, value = divmod(rest, digit.count)
                for axis, coordinate in coordinates(digit, value, extents):
                    point[axis] += coordinate
        return point

    @property
    def moved(self) -> set[str]:
        """Workload axes that the points differ in."""
        first = self.points[0]
        return {axis for point in self.points for axis in point if point[axis] != first[axis]}


def first_lines(image: Mapping[Point, Point]) -> list[tuple[int, list[Point]]]:
    """The images along each index of an operand, the other indices at 0."""
    sizes = [max(column) + 1 for column in zip(*image, strict=True)] if any(image) else []
    return [
        (place, [image[tuple(step * (k == place) for k in range(len(sizes)))] for step in range(n)])
        for place, n in enumerate(sizes)
    ]


def digit_stride(moves: Sequence[int]) -> int | None:
    """The stride of the one digit that a coordinate moves by along a line; 0 where it stands
    still, None where it moves otherwise."""
    weight = next((step for step, distance in enumerate(moves) if distance), 0)
    stride = moves[weight]
    if stride == 0:
        return 0
    count = max(moves) // stride + 1
    expected = [stride * (step // weight % count) for step in range(len(moves))]
    return stride if stride > 0 and list(moves) == expected else None


def is_box(image: Mapping[Point, Point]) -> bool:
    """Whether an operand's image is a box along its dimensions, each used at most once."""
    lines = first_lines(image)
    first = lines[0][1][0] if lines else next(iter(image.values()))
    digits: list[BoxDigit] = []
    for place, line in lines:
        counted = _number_system(
            [tuple(a - b for a, b in zip(at, first, strict=True)) for at in line], place
        )
        if counted is None:
            return False
        digits += counted
    dimensions = [digit.dimension for digit in digits]
    if len(set(dimensions)) < len(dimensions):
        return False
    for element, at in image.items():
        expected, rest = list(first), list(element)
        for digit in digits:
            rest[digit.place], value = divmod(rest[digit.place], digit.count)
            expected[digit.dimension] += value * digit.stride
        if tuple(expected) != at:
            return False
    return True


def _number_system(moves: Sequence[Point], place: int) -> list[BoxDigit] | None:
    """The digits that count along a line: from the first weight on, the dimension that the step at
    that weight moves forwards, alone, as often as it does."""
    digits: list[BoxDigit] = []
    weight = 1
    while weight < len(moves):
        moving = [k for k, distance in enumerate(moves[weight]) if distance]
        if len(moving) != 1 or moves[weight][moving[0]] < 0:
            return None
        stride = moves[weight][moving[0]]
        count = 1
        while count * weight < len(moves) and moves[count * weight] == tuple(
            stride * count * (k == moving[0]) for k in range(len(moves[0]))
        ):
            count += 1
        digits.append(BoxDigit(place, moving[0], count, stride))
        weight *= count
    return digits if weight == len(moves) else None
