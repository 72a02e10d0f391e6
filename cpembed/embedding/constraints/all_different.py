"""``all_different``: no two operations of the instruction on the same one of the workload."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from cpembed.embedding.constraints.base import Constraint, couple_meeting, moved_dimensions
from cpembed.embedding.digit_model import DigitModel, DigitOption
from cpembed.embedding.model_builder import Ids
from cpembed.embedding.node_map import Coordinates, NodeMap
from cpembed.embedding.problem import EmbeddingProblem
from cpembed.embedding.scalar_model import ScalarModel


@dataclass(frozen=True)
class AllDifferent(Constraint):
    """Scalar operations, outputs included, map injectively.

    ``elements`` says what else differs: "all" elements of every operand, or those "along_axes",
    that is, along each single index of an instruction operand (a stencil's window may overlap with
    the next one, but a window has no element twice), or "none". The contracted reduction is an
    operation, so outputs always count.
    """

    name: ClassVar[str] = "all_different"
    elements: Literal["none", "along_axes", "all"] = "none"

    def post(self, model: ScalarModel) -> None:
        if model.injective:
            return
        if not model.boxed:
            self._post_tuples(model, model.present_points())
        outputs = model.problem.outputs
        for operand in model.elements:
            dimensions = model.present_elements(operand)
            if not dimensions and (operand in outputs or self.elements != "none"):
                self._post_one_element(model, operand)
            elif operand in outputs or self.elements == "all":
                self._post_tuples(model, dimensions)
            elif self.elements == "along_axes" and dimensions:
                for index in range(dimensions[0].ndim):
                    lines = [np.moveaxis(ids, index, -1) for ids in dimensions]
                    for line in np.ndindex(lines[0].shape[:-1]):
                        self._post_tuples(model, [ids[line] for ids in lines])

    def _post_one_element(self, model: ScalarModel, operand: str) -> None:
        """Make the instruction's operand one element, as the workload's is."""
        names = model.problem.index_names[operand]
        shape = model.problem.instruction.computation.operand(operand).shape
        for name, size in zip(names, shape, strict=True):
            if name is None and size > 1:
                # No literal decides this size: one of no literals is never true.
                model.builder.exactly_one([])
            for extent, literal in model.extent_literals.get(name or "", {}).items():
                if extent > 1:
                    model.forbid(literal)

    def _post_tuples(self, model: ScalarModel, dimensions: list[Ids]) -> None:
        if dimensions and dimensions[0].size > 1:
            tuples = np.stack([ids.ravel() for ids in dimensions], axis=1)
            model.builder.all_different(tuples)

    def holds(self, problem: EmbeddingProblem, node_map: NodeMap) -> bool:
        groups = [_as_one_line(node_map.points)]
        outputs = problem.outputs
        for operand, image in node_map.elements.items():
            if self.elements == "all" or operand in outputs:
                groups.append(_as_one_line(image))
            elif self.elements == "along_axes":
                groups += [np.moveaxis(image, index, -1) for index in range(1, image.ndim)]
        return all(_distinct(image) for image in groups)

    def allows(self, problem: EmbeddingProblem, option: DigitOption) -> bool:
        outputs = problem.outputs
        # A digit has at least two values, so that it must move every operand with such elements.
        indexed = {
            operand
            for operand, axes in problem.operand_axes.items()
            if option.instruction_axis in axes and (operand in outputs or self.elements != "none")
        }
        return indexed <= {operand for operand, _, _ in moved_dimensions(problem, option)}

    def post_digits(self, model: DigitModel) -> None:
        # Along one axis `allows` suffices; along several, the digits' sums have to differ.
        operands = model.problem.operand_axes if self.elements == "all" else model.problem.outputs
        couple_meeting(model, operands)

    def words(self) -> str:
        return "all_different: no operation of the workload is computed twice in one instruction"


def _as_one_line(images: Coordinates) -> Coordinates:
    """Return images of shape ``(dimensions, *nodes)`` with all nodes along one axis."""
    return images.reshape(len(images), math.prod(images.shape[1:]))


def _distinct(images: Coordinates) -> bool:
    """Return True if the images along the last axis are pairwise different, in every line.

    ``images`` has the shape ``(dimensions, *lines, nodes)``.
    """
    nodes = images.shape[-1]
    if nodes <= 1:
        return True
    # One number for each image, different for different ones.
    codes = np.zeros(images.shape[1:], np.int64)
    codes_end = 1
    for coordinates in images:
        low = int(coordinates.min())
        size = int(coordinates.max()) - low + 1
        codes_end *= size
        if codes_end >= 2**62:
            # The numbers would overflow 64 bits: rows are compared as they are, far more slowly.
            lines = np.moveaxis(images, 0, -1).reshape(-1, nodes, len(images))
            return all(len(np.unique(line, axis=0)) == nodes for line in lines)
        if size > 1:
            codes = codes * size + (coordinates - low)
    codes.sort(axis=-1)
    return bool(np.all(codes[..., 1:] != codes[..., :-1]))
