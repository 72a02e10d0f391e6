"""``padding``: which axes may be extended beyond the workload, and how far (section 4.2.4)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from cpembed.embedding.constraints.base import Constraint
from cpembed.embedding.digit_model import DigitOption
from cpembed.embedding.flatten import members_of
from cpembed.embedding.node_map import NodeMap, decode
from cpembed.embedding.problem import EmbeddingProblem
from cpembed.embedding.scalar_model import ScalarModel


@dataclass(frozen=True)
class Padding(Constraint):
    """The translated boxes must cover each workload axis, padded where that is allowed.

    ``axes``: the axes that may be padded, or "all"; none by default. ``below``: only axes with an
    extent smaller than this. ``growth``: the padded extent is at most this multiple of the
    extent. Without padding a digit's count times its stride must divide the axis's extent. Where
    zeros would change the result (a maximum over a padded axis) an axis is not padded either.
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
        """The rule on a workload: an axis whose padding would change results is never padded, and a
        fused axis only where each of its members may be.
        """
        neutral = problem.neutral_axes
        if self.axes == "all":
            everything = len(neutral) == len(problem.workload.axes)
            return self if everything else replace(self, axes=neutral)
        listed = set(self.axes)
        members = {axis: members_of(problem.groups, axis) for axis in neutral}
        return replace(self, axes=tuple(a for a in neutral if listed.issuperset(members[a])))

    def limit(self, axis: str, extent: int) -> int | None:
        """Largest padded extent of an axis; None when unlimited."""
        allowed = self.axes == "all" or axis in self.axes
        if not allowed or (self.below is not None and extent >= self.below):
            return extent
        return None if self.growth is None else max(extent, math.floor(extent * self.growth))

    def post(self, model: ScalarModel) -> None:
        rule = self.on(model.problem)
        for axis in model.problem.workload.axes:
            for _, choice in model.axis_choices(axis.name):
                high = model.builder.range_of(choice.stride)[1]
                strides = range(1, (min(high, 1) if model.dense_strides else high) + 1)
                allowed = [
                    s for s in strides if rule._covers(axis.name, axis.extent, choice.count, s)
                ]
                model.builder.restrict(choice.stride, [0, *allowed])

    def holds(self, problem: EmbeddingProblem, node_map: NodeMap) -> bool:
        rule = self.on(problem)
        for axis, image in zip(problem.workload.axes, node_map.points, strict=True):
            limit = rule.limit(axis.name, axis.extent)
            if limit is not None and int(np.max(image)) >= limit:
                return False
        embedding = decode(problem, node_map)
        if embedding is None:
            return True
        return all(
            rule._covers(
                digit.axis, problem.workload.extents[digit.axis], digit.count, digit.stride
            )
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

    def _covers(self, axis: str, extent: int, count: int, stride: int) -> bool:
        limit = self.limit(axis, extent)
        return limit is None or -(-extent // (count * stride)) * count * stride <= limit
