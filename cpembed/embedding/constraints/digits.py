"""``digits``: how many workload axes may feed one instruction axis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from cpembed.embedding.constraints.base import Constraint
from cpembed.embedding.digit_model import DigitModel
from cpembed.embedding.node_map import NodeMap, decode
from cpembed.embedding.problem import EmbeddingProblem
from cpembed.embedding.scalar_model import ScalarModel


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
