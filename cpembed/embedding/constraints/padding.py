"""``padding``: which axes may be extended beyond the workload, and how far (section 4.2.4)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from cpembed.embedding.constraints.base import Constraint
from cpembed.embedding.digit_model import DigitOption
from cpembed.embedding.model import ScalarModel
from cpembed.embedding.node_map import NodeMap, decode
from cpembed.embedding.problem import EmbeddingProblem


@dataclass(frozen=True)
class Padding(Constraint):
    """The translated boxes must cover each workload axis, padded where that is allowed.

    ``axes``: the axes that may be padded, or "all"; none by default. ``below``: only axes with an
    extent smaller than this. ``growth``: the padded extent is at most this multiple of the
    extent. Without padding a digit's count times its stride must divide the axis's extent.
    """

    name: ClassVar[str] = "padding"
    axes: Literal["all"] | tuple[str, ...] = ()
    below: int | None = None
    growth: float | None = None

    def limit(self, axis: str, extent: int) -> int | None:
        """Largest padded extent of an axis; None when unlimited."""
        allowed = self.axes == "all" or axis in self.axes
        if not allowed or (self.below is not None and extent >= self.below):
            return extent
        return None if self.growth is None else max(extent, math.floor(extent * self.growth))

    def post(self, model: ScalarModel) -> None:
        for axis in model.problem.workload.axes:
            for _, choice in model.axis_choices(axis.name):
                high = model.builder.range_of(choice.stride)[1]
                strides = range(1, (min(high, 1) if model.dense_strides else high) + 1)
                allowed = [
                    s for s in strides if self._covers(axis.name, axis.extent, choice.count, s)
                ]
                model.builder.restrict(choice.stride, [0, *allowed])

    def holds(self, problem: EmbeddingProblem, node_map: NodeMap) -> bool:
        for axis, image in zip(problem.workload.axes, node_map.points, strict=True):
            limit = self.limit(axis.name, axis.extent)
            if limit is not None and int(np.max(image)) >= limit:
                return False
        embedding = decode(problem, node_map)
        if embedding is None:
            return True
        return all(
            self._covers(
                digit.axis, problem.workload.extents[digit.axis], digit.count, digit.stride
            )
            for digits in embedding.digits.values()
            for digit in digits
        )

    def allows(self, problem: EmbeddingProblem, option: DigitOption) -> bool:
        digit = option.digit
        for member in option.members:
            # A fused axis is padded as a whole, and only where each member may be.
            limit = self.limit(member, option.extent)
            fits = limit is None or (digit.count - 1) * digit.stride < limit
            if not fits or not self._covers(member, option.extent, digit.count, digit.stride):
                return False
        return True

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
