"""``fixed_origin``: the first element of each operand sits at its origin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from cpembed.embedding.constraints.base import Constraint
from cpembed.embedding.model import ScalarModel
from cpembed.embedding.node_map import NodeMap
from cpembed.embedding.problem import EmbeddingProblem


@dataclass(frozen=True)
class FixedOrigin(Constraint):
    """The first element of an operand is the first one the workload reads or writes.

    That is the element which the first point of the iteration domain accesses: 0 in every
    dimension, or -pad where the workload reads a zero border. Other positions are translations of
    the same embedding; the derived program's loops visit them.
    """

    name: ClassVar[str] = "fixed_origin"

    def post(self, model: ScalarModel) -> None:
        for ids in model.points.values():
            model.builder.bound(ids[(0,) * ids.ndim].reshape(1), 0, 0)
        for pair in model.problem.pairs:
            dimensions = model.elements[pair.instruction.operand]
            for ids, index in zip(dimensions, pair.workload.index, strict=True):
                first = index.constant
                model.builder.bound(ids[(0,) * ids.ndim].reshape(1), first, first)

    def holds(self, problem: EmbeddingProblem, node_map: NodeMap) -> bool:
        if np.any(node_map.points.reshape(len(node_map.points), -1)[:, 0]):
            return False
        for pair in problem.pairs:
            image = node_map.elements[pair.instruction.operand]
            for first, index in zip(
                image[(slice(None), *([0] * (image.ndim - 1)))], pair.workload.index, strict=True
            ):
                if first != index.constant:
                    return False
        return True

    def words(self) -> str:
        return "fixed_origin: the first element of each operand is at its origin"
