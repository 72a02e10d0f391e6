"""Constraints on where images lie: ``fixed_origin``, ``padding`` and ``domain_bound``.

They fix the first point, extend axes beyond the workload, and cut the domains of variables.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from cpembed.embedding.constraints.base import Constraint, displacements
from cpembed.embedding.digit_model import DigitModel, DigitOption
from cpembed.embedding.flatten import members_of
from cpembed.embedding.node_map import NodeMap, decode
from cpembed.embedding.problem import EmbeddingProblem
from cpembed.embedding.scalar_model import ScalarModel
from cpembed.ir.computation import Axis
from cpembed.time_limit import check_time


@dataclass(frozen=True)
class FixedOrigin(Constraint):
    """The first operation of the instruction is the first of the workload.

    The elements that it reads and writes are then those that the first point of the iteration
    domain accesses: 0 in every dimension, or -pad where the workload reads a zero border. Other
    positions are translations of the same embedding; the derived program's loops visit them.
    """

    name: ClassVar[str] = "fixed_origin"

    def post(self, model: ScalarModel) -> None:
        # The dataflow ties the first elements to this point, so that they need no rows.
        for ids in model.points.values():
            model.builder.bound(ids[(0,) * ids.ndim].reshape(1), 0, 0)

    def holds(self, problem: EmbeddingProblem, node_map: NodeMap) -> bool:
        return not np.any(node_map.points.reshape(len(node_map.points), -1)[:, 0])

    def words(self) -> str:
        return "fixed_origin: the first operation is at the origin of every axis"


@dataclass(frozen=True)
class Padding(Constraint):
    """The translated boxes must cover each workload axis, padded where that is allowed.

    ``axes``: the axes that may be padded, or "all"; none by default. ``below``: only axes with an
    extent smaller than this. ``growth``: the padded extent is at most this multiple of the
    extent. Without padding a digit's count times its stride must divide the axis's extent. Where
    zeros would change the result (a maximum over a padded axis) an axis is not padded either
    (Rieber et al. 2021, section 4.2.4).
    """

    name: ClassVar[str] = "padding"
    axes: Literal["all"] | tuple[str, ...] = ()
    below: int | None = None
    growth: float | None = None

    def __post_init__(self) -> None:
        if self.growth is not None and not self.growth >= 1:
            raise ValueError(f"growth is {self.growth}: a padded axis is at least as long, so 1")
        if self.below is not None and self.below < 1:
            raise ValueError(f"below is {self.below}: an extent is at least 1")

    def on(self, problem: EmbeddingProblem) -> Padding:
        """Return the rule on a workload, without axes whose padding would change results."""
        neutral = problem.neutral_axes
        if self.axes == "all":
            everything = len(neutral) == len(problem.workload.axes)
            return self if everything else replace(self, axes=neutral)
        # A fused axis is padded only where each of its members may be.
        listed = set(self.axes)
        members = {axis: members_of(problem.groups, axis) for axis in neutral}
        return replace(self, axes=tuple(a for a in neutral if listed.issuperset(members[a])))

    def limit(self, axis: str, extent: int) -> int | None:
        """Return the largest padded extent of an axis; None when unlimited."""
        allowed = self.axes == "all" or axis in self.axes
        if not allowed or (self.below is not None and extent >= self.below):
            return extent
        return None if self.growth is None else max(extent, math.floor(extent * self.growth))

    def post(self, model: ScalarModel) -> None:
        rule = self.on(model.problem)
        for axis in model.problem.workload.axes:
            for _, choice in model.axis_choices(axis.name):
                high = model.builder.range_of(choice.stride)[1]
                largest = min(high, 1) if model.dense_strides else high
                allowed = rule._strides(axis, choice.count, largest)
                model.builder.restrict(choice.stride, [0, *allowed])

    def holds(self, problem: EmbeddingProblem, node_map: NodeMap) -> bool:
        rule = self.on(problem)
        extents = problem.workload.extents
        for axis, image in zip(problem.workload.axes, node_map.points, strict=True):
            limit = rule.limit(axis.name, axis.extent)
            if limit is not None and int(np.max(image)) >= limit:
                return False
        embedding = decode(problem, node_map)
        # Tiles, and so what they cover, are defined for axis maps only.
        return embedding is None or all(
            rule._covers(digit.axis, extents[digit.axis], digit.count, digit.stride)
            for digits in embedding.digits.values()
            for digit in digits
        )

    def allows(self, problem: EmbeddingProblem, option: DigitOption) -> bool:
        digit, rule = option.digit, self.on(problem)
        if len(option.members) > 1 and rule.axes != "all":
            # Padding puts the outermost member outside of its extent, and no other.
            free = self.axes == "all" or set(option.members) <= set(self.axes)
            fused = (digit.axis,) if free and option.members[0] in problem.neutral_axes else ()
            rule = replace(self, axes=fused)
        limit = rule.limit(digit.axis, option.extent)
        fits = limit is None or (digit.count - 1) * digit.stride < limit
        return fits and rule._covers(digit.axis, option.extent, digit.count, digit.stride)

    @property
    def needs_boxes(self) -> bool:
        return True

    def words(self) -> str:
        if not self.axes:
            return "padding: off, a tile must divide the axis"
        which = "every axis" if self.axes == "all" else ", ".join(self.axes)
        below = "" if self.below is None else f" shorter than {self.below}"
        growth = "" if self.growth is None else f" up to {self.growth:g} times its extent"
        return f"padding: only {which}{below} may be padded{growth}"

    def _strides(self, axis: Axis, count: int, largest: int) -> list[range]:
        """Return the strides, as ranges, with which tiles of ``count`` points cover an axis."""
        limit = self.limit(axis.name, axis.extent)
        if limit is None:
            return [range(1, largest + 1)]
        # A long axis has too many strides to try each: above the root, few tiles cover it, and the
        # strides with which a number of tiles does are a range.
        root = math.isqrt(axis.extent // count) + 1
        allowed: list[range] = []
        for stride in range(1, min(root, largest) + 1):
            check_time()
            if self._covers(axis.name, axis.extent, count, stride):
                allowed.append(range(stride, stride + 1))
        for tiles in range(1, root + 1):
            check_time()
            least = -(-axis.extent // (count * tiles))
            allowed.append(range(least, min(limit // (count * tiles), largest) + 1))
        return allowed

    def _covers(self, axis: str, extent: int, count: int, stride: int) -> bool:
        limit = self.limit(axis, extent)
        return limit is None or -(-extent // (count * stride)) * count * stride <= limit


@dataclass(frozen=True)
class DomainBound(Constraint):
    """No coordinate is ``bound * stride`` or more away from the first one of its axis.

    Equation 11 of Rieber et al. 2021, section 7: each axis of a group of variables is cut to
    ``bound * stride`` where it is larger. ``bound`` is the instruction's largest axis unless given,
    ``stride`` the largest stride that is to remain possible. ``images``: the group is the
    operations (axes of the iteration domain), the elements (dimensions of the operands), or all of
    them. A dimension begins at the element that the first point of the iteration domain accesses.

    The cut is made on single variables, before any search; it may cost solutions: a digit of few
    counts and a large stride, or two digits that meet in one dimension.
    """

    name: ClassVar[str] = "domain_bound"
    bound: int | None = None
    stride: int = 1
    images: Literal["operations", "operands", "all"] = "all"

    def size(self, problem: EmbeddingProblem) -> int:
        """Return the extent that every axis is cut to."""
        largest = max((axis.maximum for axis in problem.instruction.axes), default=1)
        return (largest if self.bound is None else self.bound) * self.stride

    def post(self, model: ScalarModel) -> None:
        last = self.size(model.problem) - 1
        if self.images != "operands":
            for ids in model.present_points():
                model.builder.bound(ids, 0, last)
        if self.images != "operations":
            for pair in model.problem.pairs:
                groups = model.present_elements(pair.instruction.operand)
                for ids, index in zip(groups, pair.workload.index, strict=True):
                    # An index may run backwards, so that elements lie on both sides of the first.
                    model.builder.bound(ids, index.constant - last, index.constant + last)

    def holds(self, problem: EmbeddingProblem, node_map: NodeMap) -> bool:
        size = self.size(problem)
        if self.images != "operands" and node_map.points.max(initial=0) >= size:
            return False
        if self.images == "operations":
            return True
        origin = {axis.name: np.int64(0) for axis in problem.workload.axes}
        for pair in problem.pairs:
            image = node_map.elements[pair.instruction.operand]
            for coordinates, index in zip(image, pair.workload.index, strict=True):
                if np.abs(coordinates - index.evaluate(origin)).max() >= size:
                    return False
        return True

    def allows(self, problem: EmbeddingProblem, option: DigitOption) -> bool:
        size = self.size(problem)
        if self.images != "operands" and (option.digit.count - 1) * option.digit.stride >= size:
            return False
        return self.images == "operations" or all(
            high < size and -low < size for _, _, low, high in _reach(problem, option)
        )

    def post_digits(self, model: DigitModel) -> None:
        """Bound the sum of the distances of digits that meet in one dimension."""
        if self.images == "operations":
            return
        lengths: dict[tuple[str, int, bool], dict[DigitOption, int]] = {}
        for option in model.options:
            for operand, dimension, low, high in _reach(model.problem, option):
                for backwards, length in ((False, high), (True, -low)):
                    if length > 0:
                        key = (operand, dimension, backwards)
                        lengths.setdefault(key, {})[option] = length
        last = self.size(model.problem) - 1
        for meeting in lengths.values():
            # A workload axis feeds one digit at most, so most dimensions cannot exceed the bound.
            longest: dict[tuple[str, ...], int] = {}
            for option, length in meeting.items():
                longest[option.members] = max(longest.get(option.members, 0), length)
            if sum(longest.values()) > last:
                # All of them at once would be too many anyway: this only says they are coupled.
                model.at_most(list(meeting), len(meeting))
                terms = [(length, model.options[option]) for option, length in meeting.items()]
                model.builder.row(terms, 0, last)

    def words(self) -> str:
        bound = "the instruction's largest axis" if self.bound is None else str(self.bound)
        strides = "" if self.stride == 1 else f" times {self.stride}"
        return f"domain_bound: a tile reaches no further along an axis than {bound}{strides}"


def _reach(problem: EmbeddingProblem, option: DigitOption) -> Iterator[tuple[str, int, int, int]]:
    """Yield how far a digit moves each operand: (operand, dimension, backwards, forwards)."""
    for operand, dimension, moved in displacements(problem, option):
        yield operand, dimension, int(np.min(moved)), int(np.max(moved))
