"""Constraints on digits: how many (``digits``), by which strides (``strides``), at which extents.

``extents`` restricts the extents of a configurable instruction axis.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from cpembed.embedding.constraints.base import Constraint
from cpembed.embedding.digit_model import DigitModel, DigitOption
from cpembed.embedding.embedding import Digit
from cpembed.embedding.node_map import NodeMap, decode
from cpembed.embedding.problem import EmbeddingProblem
from cpembed.embedding.scalar_model import DigitChoice, ScalarModel
from cpembed.ir.computation import AxisKind
from cpembed.time_limit import check_time

StrideKind = Literal["one", "spread", "step"]


@dataclass(frozen=True)
class Digits(Constraint):
    """At most ``per_axis`` digits feed an instruction axis."""

    name: ClassVar[str] = "digits"
    per_axis: int = 1

    def __post_init__(self) -> None:
        if self.per_axis < 1:
            raise ValueError(f"per_axis is {self.per_axis}: an instruction axis has at least 1")

    def post(self, model: ScalarModel) -> None:
        literals: dict[str, list[int]] = {}
        for axis in model.problem.workload.axes:
            for name, choice in model.axis_choices(axis.name):
                literals.setdefault(name, []).append(choice.literal)
        for feeding in literals.values():
            terms = [(1, np.array([literal])) for literal in feeding]
            model.builder.linear(terms, 0, self.per_axis)

    def holds(self, problem: EmbeddingProblem, node_map: NodeMap) -> bool:
        embedding = decode(problem, node_map)
        return embedding is not None and all(
            len(digits) <= self.per_axis for digits in embedding.digits.values()
        )

    def post_digits(self, model: DigitModel) -> None:
        for axis in model.extent_literals:
            model.at_most([o for o in model.options if o.instruction_axis == axis], self.per_axis)

    @property
    def needs_boxes(self) -> bool:
        return True

    def words(self) -> str:
        return f"digits: at most {self.per_axis} workload axes feed an instruction axis"


@dataclass(frozen=True)
class Extents(Constraint):
    """A configurable axis is used at its largest extent, or at one that needs no padding.

    An axis shorter than the instruction allows is worth it where it divides the workload exactly;
    to shorten it and pad as well only wastes more.
    """

    name: ClassVar[str] = "extents"

    def post(self, model: ScalarModel) -> None:
        for axis in model.problem.workload.axes:
            for instruction_axis, choice in model.axis_choices(axis.name):
                largest = model.extent_literals[instruction_axis][
                    model.problem.instruction.axis(instruction_axis).maximum
                ]
                high = model.builder.range_of(choice.stride)[1]
                tiles, rest = divmod(axis.extent, choice.count)
                exact = [] if rest else [s for s in _divisors(tiles) if s <= high]
                # Where the extent is not the largest, the stride divides the axis (0: no digit).
                model.builder.restrict_unless(largest, choice.stride, [0, *exact])

    def holds(self, problem: EmbeddingProblem, node_map: NodeMap) -> bool:
        embedding = decode(problem, node_map)
        extents = problem.workload.extents
        return embedding is not None and all(
            node_map.extents[axis.name] == axis.maximum
            or all(extents[d.axis] % (d.count * d.stride) == 0 for d in embedding.digits[axis.name])
            for axis in problem.instruction.axes
        )

    def post_digits(self, model: DigitModel) -> None:
        for option in model.options:
            if option.extent % (option.digit.count * option.digit.stride):
                axis = model.problem.instruction.axis(option.instruction_axis)
                model.requires_extent(option, axis.maximum)

    @property
    def needs_boxes(self) -> bool:
        return True

    def words(self) -> str:
        return "extents: a configurable axis is whole, or divides the workload exactly"


@dataclass(frozen=True)
class Strides(Constraint):
    """Digits move by one of the listed strides.

    "one" is consecutive iterations; "spread" divides the axis into as many parts as the digit has
    counts, extent / count rounded up (independent sub-images); "step" is where the next window of
    a strided or dilated stencil that shares no element begins: for ``a*p + b*r``, ``b / gcd(a, b)``
    along p.

    ``mixed`` says which strides above 1 several digits of one instruction axis may have: "any";
    "none"; or those of "sub_images", which are an image cut in several directions at a time: all
    the digits on spatial axes of a stencil move by spread, or none does, and the others by 1.
    """

    name: ClassVar[str] = "strides"
    allowed: tuple[StrideKind, ...] = ("one",)
    mixed: Literal["any", "sub_images", "none"] = "any"

    def __post_init__(self) -> None:
        if self.mixed == "sub_images" and "spread" not in self.allowed:
            raise ValueError('mixed is "sub_images", which move by "spread": allow it')

    def values(self, problem: EmbeddingProblem, axis: str, count: int) -> tuple[int, ...]:
        """Return the strides allowed to a digit of this count on a workload axis, ascending."""
        strides: set[int] = set()
        if "one" in self.allowed:
            strides.add(1)
        if "spread" in self.allowed:
            strides.add(_spread(problem.workload.extents[axis], count))
        if "step" in self.allowed:
            strides |= _stencil_steps(problem, axis)
        return tuple(sorted(strides))

    def post(self, model: ScalarModel) -> None:
        spread_axes = self._spread_axes(model.problem)
        images: list[tuple[str, str, DigitChoice]] = []
        for axis in model.problem.workload.axes:
            for instruction_axis, choice in model.axis_choices(axis.name):
                allowed = self.values(model.problem, axis.name, choice.count)
                model.builder.restrict(choice.stride, [0, *allowed])
                if self.mixed == "any":
                    continue
                part = _spread(axis.extent, choice.count) if axis.name in spread_axes else 1
                if part > 1:
                    images.append((instruction_axis, axis.name, choice))
                # A digit that is all of its instruction axis mixes with nothing: `end` excuses it.
                end = model.extent_literals[instruction_axis].get(choice.count)
                if choice.weight == 1 and end is not None:
                    model.builder.restrict_unless(end, choice.stride, [0, 1, part])
                else:
                    model.builder.restrict(choice.stride, [0, 1, part])
        for instruction_axis, axis, choice in images:
            # A digit that takes a piece of the image as it lies leaves no other cut into parts.
            further = [
                c for digit_axis, a, c in images if digit_axis == instruction_axis and a != axis
            ]
            elsewhere = _is_not_one(model, choice) if further else 0
            for further_choice in further:
                model.builder.restrict_unless(elsewhere, further_choice.stride, [0, 1])

    def _spread_axes(self, problem: EmbeddingProblem) -> set[str]:
        """Return the axes that may be cut into parts together."""
        if self.mixed != "sub_images":
            return set()
        return {a.name for a in problem.workload.axes if _is_image(problem, (a.name,))}

    def holds(self, problem: EmbeddingProblem, node_map: NodeMap) -> bool:
        embedding = decode(problem, node_map)
        return embedding is not None and all(
            all(d.stride in self.values(problem, d.axis, d.count) for d in digits)
            and (len(digits) == 1 or self._may_mix(problem, digits))
            for digits in embedding.digits.values()
        )

    def _may_mix(self, problem: EmbeddingProblem, digits: tuple[Digit, ...]) -> bool:
        if self.mixed == "any" or all(digit.stride == 1 for digit in digits):
            return True
        axes, extents = self._spread_axes(problem), problem.workload.extents
        return self.mixed == "sub_images" and all(
            d.stride == (_spread(extents[d.axis], d.count) if d.axis in axes else 1) for d in digits
        )

    def allows(self, problem: EmbeddingProblem, option: DigitOption) -> bool:
        digit = option.digit
        # A weight above 1 means that another digit of the instruction axis comes before.
        if digit.stride > 1 and option.weight > 1 and not self._mixes(problem, option):
            return False
        if len(option.members) > 1:
            # Parts and windows are those of one workload axis: a fused one is walked in its order.
            return "one" in self.allowed and digit.stride == 1
        return digit.stride in self.values(problem, digit.axis, digit.count)

    def _mixes(self, problem: EmbeddingProblem, option: DigitOption) -> bool:
        """Return True if a digit of a stride above 1 need not be the only one of its axis."""
        if self.mixed != "sub_images":
            return self.mixed == "any"
        part = _spread(option.extent, option.digit.count)
        return option.digit.stride == part and _is_image(problem, option.members)

    def post_digits(self, model: DigitModel) -> None:
        if self.mixed == "any":
            return
        # Digits that cut an image axis into parts, and those that take a piece of it as it lies.
        parts: dict[tuple[str, str], list[DigitOption]] = {}
        pieces: dict[tuple[str, str], list[DigitOption]] = {}
        for option in model.options:
            key = option.instruction_axis, option.digit.axis
            if option.digit.stride > 1:
                if self._mixes(model.problem, option):
                    parts.setdefault(key, []).append(option)
                else:
                    model.requires_extent(option, option.digit.count)
            elif _spread(option.extent, option.digit.count) > 1 and _is_image(
                model.problem, option.members
            ):
                pieces.setdefault(key, []).append(option)
        for (instruction_axis, axis), spread_options in parts.items():
            for (piece_axis, along), uncut_options in pieces.items():
                if instruction_axis == piece_axis and axis != along:
                    model.at_most_one([*spread_options, *uncut_options])

    @property
    def needs_boxes(self) -> bool:
        return True

    def words(self) -> str:
        return f"strides: a digit moves by {', '.join(self.allowed)} only"


def _divisors(number: int) -> set[int]:
    """Return the divisors of a positive integer, by trial up to its root."""
    divisors: set[int] = set()
    for divisor in range(1, math.isqrt(number) + 1):
        check_time()
        if number % divisor == 0:
            divisors |= {divisor, number // divisor}
    return divisors


def _spread(extent: int, count: int) -> int:
    """Return the stride that divides an axis into ``count`` parts."""
    return -(-extent // count)


def _is_not_one(model: ScalarModel, choice: DigitChoice) -> int:
    """Return a literal that is false exactly where the digit is used at stride 1."""
    literal, opposite = model.builder.boolean(), model.builder.boolean()
    model.builder.exactly_one([literal, opposite])
    _, high = model.builder.range_of(choice.stride)
    model.builder.restrict_unless(literal, choice.stride, [1])
    model.builder.restrict_unless(opposite, choice.stride, [0, range(2, high + 1)])
    return literal


def _is_image(problem: EmbeddingProblem, members: tuple[str, ...]) -> bool:
    """Return True if an axis, given by its members if fused, is a spatial one of a stencil."""
    workload = problem.workload
    if next(a.kind for a in workload.axes if a.name in members) is not AxisKind.SPATIAL:
        return False
    for pair in problem.pairs:
        for index in pair.workload.index:
            # An axis of extent 1 moves nothing, and so makes no stencil.
            moving = [t for t in index.terms if not t.is_zero(workload.extents)]
            reached = {name for term in moving for name in term.iterators}
            if not reached.isdisjoint(members) and not reached <= set(members):
                return True
    return False


def _stencil_steps(problem: EmbeddingProblem, axis: str) -> set[int]:
    """Return the strides above 1 along an axis after which a window of its stencils starts anew."""
    steps: set[int] = set()
    for pair in problem.pairs:
        for index in pair.workload.index:
            coefficient = abs(index.coefficient(axis))
            for term in index.terms:
                # An axis of extent 1 has one window: none begins anew.
                if not coefficient or term.iterator == axis:
                    continue
                if not term.is_zero(problem.workload.extents):
                    steps.add(abs(term.coefficient) // math.gcd(coefficient, term.coefficient))
    return {step for step in steps if step > 1}
