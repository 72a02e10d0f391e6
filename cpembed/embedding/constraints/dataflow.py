"""``dataflow``: subgraph isomorphism between the two graphs (Rieber et al. 2021, 4.2.1)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from cpembed.embedding.constraints.base import Constraint
from cpembed.embedding.digit_model import DigitOption
from cpembed.embedding.model import ScalarModel
from cpembed.embedding.node_map import NodeMap
from cpembed.embedding.problem import EmbeddingProblem


@dataclass(frozen=True)
class Dataflow(Constraint):
    """Labels agree and every edge of the instruction's graph is an edge of the workload's.

    Labels were paired when the problem was made. Sequential edges are in every model (see
    :class:`~cpembed.embedding.model.ScalarModel`); spatial edges, pruned to a star around the
    first output, say that another output of the instruction is another output of the workload.
    ``commute`` also pairs the operands of commutative operations in the other order (a search per
    order; it changes which problems are posted, not what holds in one).
    """

    name: ClassVar[str] = "dataflow"
    commute: bool = False

    def post(self, model: ScalarModel) -> None:
        if model.injective:
            return
        for output in model.problem.outputs:
            self._post_star(model, output)

    def _post_star(self, model: ScalarModel, output: str) -> None:
        dimensions = model.present_elements(output)
        if not dimensions:
            # All outputs of the instruction would be the workload's only one.
            if model.problem.instruction.computation.operand(output).elements > 1:
                model.builder.exactly_one([])
            return
        tuples = np.stack([ids.ravel() for ids in dimensions], axis=1)
        for other in tuples[1:]:
            model.builder.differ(tuples[0], other)

    def holds(self, problem: EmbeddingProblem, node_map: NodeMap) -> bool:
        for pair in problem.pairs:
            where = problem.element_index(pair, node_map.extents)
            point = {axis.name: node_map.points[i] for i, axis in enumerate(problem.workload.axes)}
            elements = node_map.elements[pair.instruction.operand]
            for image, index in zip(elements, pair.workload.index, strict=True):
                if not np.all(image[where] == index.evaluate(point)):
                    return False
        shapes = {name: image.shape[1:] for name, image in node_map.elements.items()}
        for (first, at), (second, there) in problem.shared_elements(shapes):
            mine, theirs = node_map.elements[first], node_map.elements[second]
            if np.any(mine[(slice(None), *at)] != theirs[(slice(None), *there)]):
                return False
        return all(_first_differs(node_map.elements[output]) for output in problem.outputs)

    def allows(self, problem: EmbeddingProblem, option: DigitOption) -> bool:
        """An element that the instruction shares along an axis must be shared by the workload."""
        return not any(
            member in index.iterators
            for member in option.members
            for operand, names in problem.index_names.items()
            if option.instruction_axis not in names
            for index in problem.workload_indices[operand]
        )

    def words(self) -> str:
        return "dataflow: every operation reads and writes what the workload's operation does"


def _first_differs(output: np.ndarray) -> bool:
    """Whether the first output's image is that of no other output."""
    flat = output.reshape(len(output), math.prod(output.shape[1:]))
    return not np.any(np.all(flat[:, 1:] == flat[:, :1], axis=0)) if flat.shape[1] > 1 else True
