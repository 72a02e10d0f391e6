"""Variants of a planner's problem, counted by walking the points of their statements."""

from __future__ import annotations

import itertools
import math

import pytest

from cpembed.accelerator.matching import match_statement
from cpembed.accelerator.problem import OperatorProblem, problem_variants
from cpembed.accelerator.specification import Specification, Statement
from cpembed.hw.isa_reader import load_instruction_set
from cpembed.workloads.naming import parse_workload

LAYERS = (
    "conv2d n=1 c=32 h=14 w=14 k=32 r=3 s=3 pad=1 layout=NHWC",
    "conv2d n=1 c=5 h=9 w=6 k=20 r=3 s=3 pad=1 stride=2",
    "conv2d n=2 c=16 h=7 w=7 k=24 r=1 s=1",
)


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("target", ["gemmini", "tpu_like"])
def test_variants_have_the_executions_of_their_own_digits(target: str, layer: str) -> None:
    workload = parse_workload(layer.split())
    names = tuple(o.name for o in workload.inputs)
    statement = Statement(workload)
    specification = Specification("layer", (statement,), names, (workload.output.name,), {})
    changed = 0
    for match in match_statement(statement, load_instruction_set(target)).matches:
        problem = OperatorProblem(specification, (match,))
        for variant in problem_variants(problem, lambda statement, match: True):
            (other,) = variant.matches
            if other.axes == match.axes:
                continue
            changed += 1
            sizes = dict.fromkeys(workload.extents, 1)
            for digit in itertools.chain.from_iterable(other.axes.values()):
                sizes[digit.axis] *= digit.count
            starts = [len(range(0, n, sizes[axis])) for axis, n in workload.extents.items()]
            assert other.executions == math.prod(starts)
    assert changed
