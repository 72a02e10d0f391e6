"""``domain_bound``: smaller domains for groups of variables (Rieber et al. 2021, section 7)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from cpembed.embedding.constraints.base import Constraint, displacements
from cpembed.embedding.digit_model import DigitModel, DigitOption
from cpembed.embedding.node_map import NodeMap
from cpembed.embedding.problem import EmbeddingProblem
from cpembed.embedding.scalar_model import ScalarModel


@dataclass(frozen=True)
class DomainBound(Constraint):
    """No coordinate is ``bound * stride`` or more away from the first one of its axis.

    Equation 11: each axis of a group of variables is cut to ``bound * stride`` where it is larger.
    ``bound`` is the instruction's largest axis unless given, ``stride`` the largest stride that is
    to remain possible. ``images``: the group is the operations (axes of the iteration domain), the
    elements (dimensions of the operands), or all of them. A dimension begins at the element that
    the first point of the iteration domain accesses.

    The cut is made on single variables, before any search; it may cost solutions: a digit of few
    counts and a large stride, or two digits that meet in one dimension.
    """

    name: ClassVar[str] = "domain_bound"
    bound: int | None = None
    stride: int = 1
    images: Literal["operations", "operands", "all"] = "all"

    def size(self, problem: EmbeddingProblem) -> int:
        """The extent that every axis is cut to."""
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
            high < size and -low < size for _, _, low, high in reach(problem, option)
        )

    def post_digits(self, model: DigitModel) -> None:
        """Digits that meet in one dimension add up."""
        if self.images == "operations":
            return
        lengths: dict[tuple[str, int, bool], dict[DigitOption, int]] = {}
        for option in model.options:
            for operand, dimension, low, high in reach(model.problem, option):
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


def reach(problem: EmbeddingProblem, option: DigitOption) -> Iterator[tuple[str, int, int, int]]:
    """Distances by which a digit moves each operand: (operand, dimension, backwards, forwards)."""
    for operand, dimension, moved in displacements(problem, option):
        yield operand, dimension, int(np.min(moved)), int(np.max(moved))
