"""``fixed_origin``: an embedding begins at the workload's first point."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from cpembed.embedding.constraints.base import Constraint
from cpembed.embedding.node_map import NodeMap
from cpembed.embedding.problem import EmbeddingProblem
from cpembed.embedding.scalar_model import ScalarModel


@dataclass(frozen=True)
class FixedOrigin(Constraint):
    """The first operation of the instruction is the first of the workload.

    The elements that it reads and writes are then those that the first point of the iteration
    domain accesses: 0 in every dimension, or -pad where the workload reads a zero border. Other
    positions are translations of the same embedding; the derived program's loops visit them.
    """

    name: ClassVar[str] = "fixed_origin"

    def post(self, model: ScalarModel) -> None:
        for ids in model.points.values():
            model.builder.bound(ids[(0,) * ids.ndim].reshape(1), 0, 0)

    def holds(self, problem: EmbeddingProblem, node_map: NodeMap) -> bool:
        return not np.any(node_map.points.reshape(len(node_map.points), -1)[:, 0])

    def words(self) -> str:
        return "fixed_origin: the first operation is at the origin of every axis"
