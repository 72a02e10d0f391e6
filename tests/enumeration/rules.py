"""The rules of a constraint set, judged at the scalar level and digit by digit.

Definitions: docs/embedding.md, "Constraints". A set is its tables as they stand in the file.
"""

from __future__ import annotations

import itertools
import math
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cpembed.hw.instruction import StrideRule
from cpembed.ir.computation import Assignment, AxisKind
from cpembed.ir.dtypes import size_bytes
from cpembed.ir.expression import Access, Cast, Constant, Expression, Operation
from tests.enumeration.nodes import (
    Digit,
    Nodes,
    Point,
    Task,
    coordinates,
    digit_stride,
    first_lines,
    is_box,
)

Tables = Mapping[str, Mapping[str, Any]]


def read_tables(path: Path) -> dict[str, Any]:
    """The tables of a set over those of the set that it extends."""
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    base = tables.pop("extends", None)
    if base is not None:
        tables = {**read_tables(path.parent / f"{base}.toml"), **tables}
    return {name: table for name, table in tables.items() if isinstance(table, dict)}


class Rules:
    """The tables of a set, on one problem."""

    def __init__(self, tables: Tables, task: Task) -> None:
        self.tables, self.task = tables, task
        self.extents = task.workload.extents
        self.neutral = {axis: self._is_neutral(axis) for axis in self.extents}
        self._digits: dict[int, list[Digit]] = {}

    def parameter(self, table: str, name: str, default: Any) -> Any:
        return self.tables.get(table, {}).get(name, default)

    def digits(self, count: int) -> list[Digit]:
        """Every digit of this count that the set allows by itself."""
        if count not in self._digits:
            self._digits[count] = [d for d in self._all_digits(count) if self._covers(d)]
        return self._digits[count]

    def _all_digits(self, count: int) -> list[Digit]:
        digits: list[Digit] = []
        for axis in self.extents:
            digits += [Digit((axis,), count, stride) for stride in self._strides(axis, count)]
        largest = self.parameter("flatten", "max_axes", 1)
        least = self.parameter("flatten", "min_extent", 1)
        for size in range(2, largest + 1):
            for members in itertools.permutations(self.extents, size):
                alike = all(
                    self.task.indexed([m]) == self.task.indexed(members[:1]) for m in members
                )
                if alike and all(self.extents[m] >= least for m in members):
                    digit = Digit(members, count, 1)
                    if self._needs_fusing(digit) and "one" in self._listed(("one",)):
                        digits.append(digit)
        return digits

    def _listed(self, default: Sequence[str]) -> Sequence[str]:
        if "strides" not in self.tables:
            return default
        return self.parameter("strides", "allowed", ("one",))

    def _strides(self, axis: str, count: int) -> list[int]:
        listed = self._listed(())
        if not listed:
            last = (self.points(axis) - 1) // (count - 1)
            return list(range(1, last + 1))
        strides: set[int] = {1} if "one" in listed else set()
        if "spread" in listed:
            strides.add(self._spread((axis,), count))
        if "step" in listed:
            for sums in self.task.sums:
                for _, terms in sums:
                    for other, factor in terms.items():
                        if axis in terms and other != axis and self.extents[other] > 1:
                            step = abs(factor) // math.gcd(factor, terms[axis])
                            strides |= {step} if step > 1 else set()
        return sorted(strides)

    def _spread(self, members: Sequence[str], count: int) -> int:
        return -(-self.task.extent(members) // count)

    def _needs_fusing(self, digit: Digit) -> bool:
        """Whether no digits on the members, or with ``plain`` no digit on the last one, give the
        same tiles."""
        if self.parameter("flatten", "plain", False):
            return self.extents[digit.members[-1]] % digit.count != 0
        points = self.task.extent(digit.members) * digit.count
        steps = Digit(digit.members, points, 1)
        walk = [dict(coordinates(steps, step, self.extents)) for step in range(points)]
        tiles = [
            [
                tuple(walk[first + k][m] - walk[first][m] for m in digit.members)
                for k in range(digit.count)
            ]
            for first in range(0, points, digit.count)
        ]
        return any(tile != tiles[0] for tile in tiles)

    def _limit(self, members: Sequence[str]) -> int | None:
        """How far an axis may be padded; None: as far as a tile needs."""
        extent = self.task.extent(members)
        axes = self.parameter("padding", "axes", ())
        below = self.parameter("padding", "below", None)
        growth = self.parameter("padding", "growth", None)
        named = axes == "all" or all(member in axes for member in members)
        # Beyond a fused axis lies what is beyond its first member.
        if not named or not self.neutral[members[0]] or (below is not None and extent >= below):
            return extent
        return None if growth is None else max(extent, math.floor(extent * growth))

    def _covers(self, digit: Digit) -> bool:
        extent, limit = self.task.extent(digit.members), self._limit(digit.members)
        last = (digit.count - 1) * digit.stride
        if limit is None:
            return True
        if "padding" not in self.tables:
            return last < extent
        block = digit.count * digit.stride
        return last < limit and -(-extent // block) * block <= limit

    def points(self, axis: str) -> int:
        """Points of an axis where no list limits the strides."""
        limit = self._limit((axis,))
        largest = self.extents[axis] + math.prod(self.task.instruction.extents.values()) - 1
        return largest if limit is None else min(limit, largest)

    def _is_neutral(self, axis: str) -> bool:
        return all(self._changes_nothing(s, axis) for s in self.task.workload.statements)

    def _changes_nothing(self, statement: Assignment, axis: str) -> bool:
        """Whether what a statement does beyond an axis is dropped, or adds zero."""
        if self._leaves(statement.store, axis):
            return True
        return statement.reduction == "add" and self._is_zero(statement.value, axis)

    def _is_zero(self, value: Expression, axis: str) -> bool:
        if isinstance(value, Access):
            return self._leaves(value, axis)
        if isinstance(value, Constant):
            return value.value == 0
        if isinstance(value, Cast):
            return self._is_zero(value.arg, axis)
        assert isinstance(value, Operation)
        zero = [self._is_zero(arg, axis) for arg in value.args]
        if value.op == "mul":
            return any(zero)
        if value.op in ("exp", "rsqrt", "div"):
            constant = value.args[-1]
            is_nonzero = isinstance(constant, Constant) and constant.value != 0
            return value.op == "div" and is_nonzero and zero[0]
        return zero[0] if value.op == "shr" else all(zero)

    def _leaves(self, access: Access, axis: str) -> bool:
        """Whether some dimension that the axis indexes alone ends where the axis does."""
        shape = self.task.workload.operand(access.operand).shape
        return any(
            index.iterators == (axis,)
            and not 0 <= index.evaluate({axis: self.extents[axis]}) < size
            for index, size in zip(access.index, shape, strict=True)
        )

    def allows_on_axis(self, name: str, extent: int, digits: Sequence[Digit]) -> bool:
        """Whether an instruction axis may have these digits at this extent."""
        if "digits" in self.tables and len(digits) > self.parameter("digits", "per_axis", 1):
            return False
        largest = self.task.instruction.axis(name).maximum
        exact = all(self.task.extent(d.members) % (d.count * d.stride) == 0 for d in digits)
        if "extents" in self.tables and extent != largest and not exact:
            return False
        if "strides" not in self.tables or len(digits) < 2 or all(d.stride == 1 for d in digits):
            return True
        mixed = self.parameter("strides", "mixed", "any")
        if mixed == "sub_images":
            return all(
                d.stride == (self._spread(d.members, d.count) if self._is_cut(d.members) else 1)
                for d in digits
            )
        return mixed == "any"

    def _is_cut(self, members: Sequence[str]) -> bool:
        """Whether an axis is a spatial one of a sliding window."""
        kinds = {axis.name: axis.kind for axis in self.task.workload.axes}
        if kinds[members[0]] is not AxisKind.SPATIAL:
            return False
        for sums in self.task.sums:
            for _, terms in sums:
                moving = {axis for axis in terms if self.extents[axis] > 1}
                if moving & set(members) and moving - set(members):
                    return True
        return False

    def hold(self, nodes: Nodes) -> bool:
        """Whether a node map is an embedding, as far as its points and elements decide it."""
        if not self.keep_apart(nodes):
            return False
        boxes = self.parameter("hyper_rectangle", "images", "operands") == "operands"
        return (
            (not boxes or all(map(is_box, nodes.images)))
            and ("dense" not in self.tables or self._is_dense(nodes))
            and ("linear_access" not in self.tables or self._is_linear(nodes))
            and ("domain_bound" not in self.tables or self._is_bounded(nodes))
            and ("contiguous" not in self.tables or self._is_contiguous(nodes))
        )

    def keep_apart(self, nodes: Nodes) -> bool:
        """``dataflow`` and ``all_different``; part of a node map that holds them holds them too."""
        if not nodes.respects_dataflow:
            return False
        elements = self.parameter("all_different", "elements", "none")
        for stored, image in zip(self.task.stored, nodes.images, strict=True):
            values = list(image.values())
            if stored and values[0] in values[1:]:
                return False
            if "all_different" not in self.tables:
                continue
            if (stored or elements == "all") and len(set(values)) < len(values):
                return False
            if elements == "along_axes" and not all(map(_different, _lines(image))):
                return False
        if "all_different" not in self.tables:
            return True
        return _different([tuple(point.values()) for point in nodes.points])

    def _is_dense(self, nodes: Nodes) -> bool:
        """Whether each index of an operand moves along a dimension in one digit of stride 1, or of
        one that memory takes."""
        memory = self.parameter("dense", "stencil_stride", "one") == "memory"
        for pair, image in enumerate(nodes.images):
            for place, line in first_lines(image):
                walkers = self.task.walked(pair)[place]
                for dimension, (_, terms) in enumerate(self.task.sums[pair]):
                    stride = digit_stride([at[dimension] - line[0][dimension] for at in line])
                    free = memory and len(terms) > 1 and all(self._any(pair, w) for w in walkers)
                    if stride is None or (stride > 1 and not free):
                        return False
        return True

    def _any(self, pair: int, name: str) -> bool:
        """Whether an operand's memory takes any stride along an axis; one of one step has none."""
        memory = self.task.instruction.memory[self.task.pairs[pair][0].operand]
        return self.task.instruction.extents[name] == 1 or (
            memory.stride_rule(name) is StrideRule.ANY
        )

    def _is_linear(self, nodes: Nodes) -> bool:
        in_place = self.parameter("linear_access", "stencil", "none") == "in_place"
        for pair, sums in enumerate(self.task.sums):
            for _, terms in sums:
                if self._slides(terms, nodes.moved) and not (
                    in_place and self._in_place(nodes, pair, terms)
                ):
                    return False
        return True

    def _slides(self, terms: Mapping[str, int], moved: set[str]) -> bool:
        """Whether an index is a sliding window where these axes move: by another than the one
        that walks it."""
        steps = [axis for axis in terms if self.extents[axis] > 1]
        if len(steps) > 1:
            return bool(moved & set(terms))
        kinds = {axis.name: axis.kind for axis in self.task.workload.axes}
        spatial = [axis for axis in terms if kinds[axis] is AxisKind.SPATIAL]
        walker = [*steps, *spatial, *terms][:1]
        return bool(moved & set(terms) - set(walker))

    def _in_place(self, nodes: Nodes, pair: int, terms: Mapping[str, int]) -> bool:
        """Whether memory feeds a window without a copy: each digit that moves it is all of its
        instruction axis, and its steps are ones that this axis can take."""
        for name, digits in nodes.maps.items():
            for digit in digits:
                if not set(digit.members) & set(terms):
                    continue
                step = digit.stride * terms.get(digit.members[0], 0)
                fits = self._any(pair, name) or (step == 1 and self._contiguous(pair, name))
                if len(digits) > 1 or len(digit.members) > 1 or not fits:
                    return False
        return True

    def _contiguous(self, pair: int, name: str) -> bool:
        """Whether an axis is the innermost of a tile that may begin anywhere."""
        instruction = self.task.instruction
        access = self.task.pairs[pair][0]
        memory = instruction.memory[access.operand]
        axes = {axis for index in access.index for axis in index.iterators}
        tile = [part for part in memory.tile if part.axis in axes]
        size = size_bytes(instruction.computation.operand(access.operand).dtype)
        last = tile[-1]
        return (
            (last.axis, last.divisor, last.modulus) == (name, 1, None)
            and memory.alignment_bytes <= size
            and all(other == name or self._any(pair, other) for other in axes)
        )

    def _is_contiguous(self, nodes: Nodes) -> bool:
        """Whether one of the axes that an operand names walks its innermost dimension, alone."""
        for pair, image in enumerate(nodes.images):
            ours, theirs = self.task.pairs[pair]
            memory = self.task.instruction.memory[ours.operand]
            extents = self.task.instruction.extents
            if not memory.contiguous or any(extents[axis] < 2 for axis in memory.contiguous):
                continue
            operand = self.task.workload.operand(theirs.operand)
            row = operand.shape[-1] * size_bytes(operand.dtype) if operand.shape else 0
            if not row or (len(operand.shape) > 1 and row % memory.alignment_bytes):
                return False
            places = [index.iterators for index in ours.index if index.iterators]
            first = image[min(image)]
            # Place by place: what a step from the first element to another one changes.
            walking = [
                place
                for place, axes in enumerate(places)
                if len(axes) == 1
                and axes[0] in memory.contiguous
                and max(element[place] for element in image) > 0
                and all(
                    at[-1] == first[-1] + element[place]
                    and at[:-1] == image[_at(element, place, 0)][:-1]
                    for element, at in image.items()
                )
            ]
            if len(walking) != 1:
                return False
        return True

    def _is_bounded(self, nodes: Nodes) -> bool:
        largest = max(self.task.instruction.extents.values(), default=1)
        bound = self.parameter("domain_bound", "bound", None) or largest
        size = bound * self.parameter("domain_bound", "stride", 1)
        images = self.parameter("domain_bound", "images", "all")
        if images != "operands" and any(
            at >= size for point in nodes.points for at in point.values()
        ):
            return False
        return images == "operations" or all(
            abs(at - constant) < size
            for sums, image in zip(self.task.sums, nodes.images, strict=True)
            for element in image.values()
            for at, (constant, _) in zip(element, sums, strict=True)
        )


def _at(element: Point, place: int, number: int) -> Point:
    return (*element[:place], number, *element[place + 1 :])


def _different(values: Sequence[object]) -> bool:
    return len(set(values)) == len(values)


def _lines(image: Mapping[Point, Point]) -> list[list[Point]]:
    """The images along each single index of an operand."""
    lines: dict[tuple[int, Point], list[Point]] = {}
    for element, at in image.items():
        for place in range(len(element)):
            rest = (*element[:place], *element[place + 1 :])
            lines.setdefault((place, rest), []).append(at)
    return list(lines.values())
