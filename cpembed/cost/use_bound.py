"""A bound on the share of an instruction that any embedding of a constraint set can use.

It takes no search: each instruction axis is fed as well as a digit can that the set allows by
itself, whatever the other axes have.
"""

from __future__ import annotations

import math

from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.embedding.constraints.digits import Digits
from cpembed.embedding.digit_model import DigitOption
from cpembed.embedding.domains import digit_model_obstacle, full_digits
from cpembed.embedding.problem import EmbeddingProblem
from cpembed.hw.instruction import InstructionAxis


def utilisation_bound(problem: EmbeddingProblem, constraints: ConstraintSet) -> float | None:
    """The largest utilisation that an embedding can have; None where this is not known: of
    instructions that the digit model does not take, and sets that feed an instruction axis from
    several axes at a time."""
    digits = constraints.get("digits")
    single_digit = isinstance(digits, Digits) and digits.per_axis == 1
    if not single_digit or digit_model_obstacle(problem, constraints) is not None:
        return None
    best = {axis.name: float(axis.minimum == 1) / axis.maximum for axis in problem.instruction.axes}
    for option in full_digits(problem, constraints):
        axis = problem.instruction.axis(option.instruction_axis)
        best[axis.name] = max(best[axis.name], _used(option, axis))
    return math.prod(best.values())


def _used(option: DigitOption, axis: InstructionAxis) -> float:
    """Useful share of the axis at its largest extent, which is what every execution is charged."""
    step = option.digit.count * option.digit.stride
    executions = -(-option.extent // step) * option.digit.stride
    return option.extent / (executions * axis.maximum)
