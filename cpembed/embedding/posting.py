"""Posting a constraint set to the scalar model."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.embedding.constraints.hyper_rectangle import HyperRectangle
from cpembed.embedding.model import ScalarModel
from cpembed.embedding.problem import EmbeddingProblem
from cpembed.embedding.regular import padded_extents


def post(
    problem: EmbeddingProblem,
    constraints: ConstraintSet,
    configuration: Mapping[str, int] | None = None,
) -> ScalarModel:
    """The scalar model with every constraint of the set posted."""
    model = ScalarModel(
        problem,
        padded_extents(problem, constraints),
        dense_strides=constraints.get("dense") is not None,
        separable=constraints.get("hyper_rectangle") == HyperRectangle("operands")
        and all(None not in names for names in problem.index_names.values()),
        configuration=configuration,
    )
    for constraint in constraints.constraints:
        constraint.post(model)
    return model


def configurations(
    problem: EmbeddingProblem, constraints: ConstraintSet
) -> list[Mapping[str, int] | None]:
    """Extents that are fixed before a scalar model is posted, one model each: without operand boxes
    those of configurable axes."""
    axes = problem.instruction.axes
    boxes = constraints.get("hyper_rectangle") == HyperRectangle("operands")
    if boxes or not problem.instruction.configurable_axes:
        return [None]
    sizes = itertools.product(*(axis.allowed for axis in axes))
    return [dict(zip((axis.name for axis in axes), chosen, strict=True)) for chosen in sizes]
