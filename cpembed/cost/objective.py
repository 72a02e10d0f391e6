"""Bounds on the score as linear constraints of the digit model (Rieber et al. 2021, section 4.4).

A search under a time limit looks below a ceiling of the score first: CP-SAT is given what a digit
does to the executions of the instruction and to the elements of the operands at least, so that it
leaves out what is above. Executions are a product over workload axes; their logarithm is a sum,
rounded down, that no extent overflows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cpembed.embedding.constraint_set import Weights
from cpembed.embedding.cpsat import SearchLimits, minimise
from cpembed.embedding.digit_model import DigitModel, DigitOption
from cpembed.embedding.problem import EmbeddingProblem
from cpembed.ir.computation import Operand
from cpembed.ir.index import IndexExpr

_UNIT = 2**20
"""Steps of the logarithm to base 2: executions are told apart that differ by a millionth."""

_LARGEST = 2**40
"""Elements beyond this are as good as infinitely many, and their sums stay within 64 bits."""


@dataclass(frozen=True)
class Least:
    """Lower bounds over all solutions of a component, in the units of the rows."""

    executions: int
    elements: int


class Objective:
    """Rows that leave out the embeddings of a problem whose score is above a ceiling."""

    def __init__(self, problem: EmbeddingProblem, weights: Weights) -> None:
        self.weights = weights
        self.macs, self.macs_per_call = problem.workload.macs, problem.instruction.macs
        self.extents = problem.workload.extents
        self.operands = [
            (operand, problem.workload.access(operand.name).index)
            for operand in problem.workload.operands
        ]
        tensors = {operand.tensor: operand for operand, _ in self.operands}
        self.data = sum(math.prod(operand.shape) for operand in tensors.values())
        # Ports of one tensor may share their elements: only tensors with one port count.
        names = [operand.tensor for operand, _ in self.operands]
        self.single = [item for item in self.operands if names.count(item[0].tensor) == 1]
        self.base = sum(self._least_elements(*item) for item in self.single)

    def executions(self, option: DigitOption) -> int:
        """Logarithm of the share of an axis's iterations that are executions under the digit."""
        digit = option.digit
        calls = -(-option.extent // (digit.count * digit.stride)) * digit.stride
        return math.floor(_UNIT * math.log2(calls / option.extent) - 1e-6)

    def elements(self, option: DigitOption) -> int:
        """Elements that padding for the digit adds at least to all operands."""
        if len(option.members) > 1:
            return 0
        axis = option.digit.axis
        block = option.digit.count * option.digit.stride
        padding = -option.extent % block
        added = 0
        for operand, index in self.single:
            if any(_follows(expression, axis) for expression in index):
                added += self._least_elements(operand, index) * padding // option.extent
        return min(added, _LARGEST)

    def _least_elements(self, operand: Operand, index: Sequence[IndexExpr]) -> int:
        """Lower bound on the elements of any layout of an operand: the longest axis of each
        dimension."""
        return math.prod(
            max((self.extents[axis] for axis in expression.iterators), default=1)
            for expression in index
        )

    def least(self, models: Sequence[DigitModel], limits: SearchLimits) -> list[Least] | None:
        """The bounds of each component by the solver; None where one has no solution."""
        bounds_of_models: list[Least] = []
        for model in models:
            bounds: list[int] = []
            for weigh in (self.executions, self.elements):
                terms = {literal: weigh(option) for option, literal in model.options.items()}
                bound = minimise(model.build(), terms, limits)
                if bound is None:
                    return None
                bounds.append(bound)
            bounds_of_models.append(Least(*bounds))
        return bounds_of_models

    def floor(self, least: Sequence[Least]) -> float:
        """A score that no embedding is below."""
        logarithm = sum(bound.executions for bound in least) / _UNIT
        calls = 2.0**logarithm * self.macs * (1 - 1e-9)
        mac = self.weights.mac * max(0.0, calls * self.macs_per_call - self.macs)
        data = self.weights.data * max(0, self._extra(least))
        return math.hypot(mac, data)

    @property
    def scale(self) -> float:
        """The score of the workload's own MACs and elements, taken as overhead."""
        return math.hypot(self.weights.mac * self.macs, self.weights.data * self.data)

    def _extra(self, least: Sequence[Least]) -> int:
        return self.base - self.data + sum(bound.elements for bound in least)

    def post(self, models: Sequence[DigitModel], least: Sequence[Least], ceiling: float) -> None:
        """Leave out of each component what is above the ceiling whatever the others choose.

        Every embedding whose score is at most the ceiling stays, and some others: bounds are
        rounded to the safe side.
        """
        above = ceiling * (1 + 1e-9)
        for model, model_least in zip(models, least, strict=True):
            if self.weights.mac:
                calls = (self.macs + above / self.weights.mac) / self.macs_per_call
                limit = math.ceil(_UNIT * math.log2(calls / self.macs)) + 1
                elsewhere = sum(bound.executions for bound in least) - model_least.executions
                _at_most(model, self.executions, limit - elsewhere)
            if self.weights.data:
                limit = math.ceil(min(above / self.weights.data, _LARGEST)) + 1
                elsewhere = self._extra(least) - model_least.elements
                _at_most(model, self.elements, limit - elsewhere)


def _at_most(model: DigitModel, weigh: Callable[[DigitOption], int], limit: int) -> None:
    terms = [(weigh(option), literal) for option, literal in model.options.items()]
    terms = [(weight, literal) for weight, literal in terms if weight]
    low = sum(min(weight, 0) for weight, _ in terms)
    if limit < low:
        model.builder.exactly_one([])
    elif terms:
        model.builder.row(terms, low, limit)


def _follows(index: IndexExpr, axis: str) -> bool:
    """Whether a dimension follows the axis one to one, up to an offset."""
    return index.iterators == (axis,) and index.is_affine and index.coefficient(axis) == 1
