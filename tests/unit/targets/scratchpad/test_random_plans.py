"""Random operators in random tiles, executed: the reference's numbers, in whatever order processing
elements run and transfers arrive."""

from __future__ import annotations

import random

import numpy as np
import pytest

from cpembed.errors import LoweringError
from cpembed.ir.parser import parse_computation
from cpembed.ir.reference import reference
from cpembed.targets.scratchpad.executor import program
from cpembed.targets.scratchpad.schedule import Plan
from cpembed.targets.scratchpad.space import ScratchpadSpace
from cpembed.targets.scratchpad.target import SEEDS
from tests.unit.targets.scratchpad.executor.running import needs_compiler
from tests.unit.targets.scratchpad.plans import (
    TARGETS,
    products,
    random_plan,
    random_plans,
    random_workload,
    small_inputs,
    types,
)

pytestmark = needs_compiler


def check_numbers(plan: Plan, seed: int) -> None:
    given, made = plan.product.program.unfused, program(plan)
    inputs = small_inputs(given, seed)
    expected = reference(given, inputs)
    for order in SEEDS:
        found = made.run(inputs, order)
        np.testing.assert_array_equal(found, expected, err_msg=f"{given}, {plan.schedule}")


def check_some(target: str, seeds: range) -> int:
    checked = 0
    for seed in seeds:
        for plan in random_plans(seed, target):
            check_numbers(plan, seed)
            checked += 1
    return checked


def check_ranked(target: str, seed: int) -> None:
    """What the model likes best of an embedding, and what it likes least of those kept."""
    rng = random.Random(seed)
    for product in products(random_workload(rng, target), target, top=3):
        try:
            ranked = ScratchpadSpace(product).ranked()
        except LoweringError:
            continue
        for each in (ranked[0], ranked[-1]):
            check_numbers(Plan(product, each.schedule), seed)


@pytest.mark.parametrize("target", TARGETS)
def test_random_tiles_give_the_reference(target: str) -> None:
    assert check_some(target, range(12)) > 3


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_ranked_gives_the_reference(target: str) -> None:
    check_ranked(target, 300)


@pytest.mark.parametrize("target", ["sw26010", "gemmini_16x16"])
def test_axes_and_operands_may_be_called_anything(target: str) -> None:
    """Also what variables of the text are called, or words of C."""
    dtypes = dict[str, str](zip(["a", "next", "now"], types(target), strict=True))
    text, extents = "now[A,t] += a[A,int] * next[int,t]", {"A": 33, "t": 33, "int": 17}
    given = parse_computation(text, extents, name="names", dtypes=dtypes)
    for product in products(given, target, top=2):
        plan = random_plan(random.Random(1), product)
        if plan is not None:
            check_numbers(plan, 1)
            return
    raise AssertionError(target)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("part", range(4))
def test_hundreds_of_random_tiles_give_the_reference(target: str, part: int) -> None:
    assert check_some(target, range(10 + 60 * part, 70 + 60 * part)) > 20


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_much_of_what_is_ranked_gives_the_reference(target: str) -> None:
    for seed in range(301, 330):
        check_ranked(target, seed)
