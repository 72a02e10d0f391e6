"""What the executor counts is what the plan says, and what the accesses need."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from cpembed.driver.named import workload
from cpembed.ir.reference import reference
from cpembed.targets.scratchpad.executor import program
from cpembed.targets.scratchpad.schedule import Plan, Schedule, check
from tests.unit.targets.scratchpad.counting import (
    executions,
    has_gaps,
    moved_boxes,
    moved_elements,
    needed_elements,
)
from tests.unit.targets.scratchpad.executor.running import needs_compiler
from tests.unit.targets.scratchpad.plans import (
    TARGETS,
    products,
    random_plans,
    small_inputs,
    spec,
)

pytestmark = needs_compiler


def check_counts(plan: Plan, seed: int) -> None:
    """Numbers, bytes by operand and direction, executions by size, and what is used of memories."""
    made, given = program(plan), plan.product.program.unfused
    inputs = small_inputs(given, seed)
    np.testing.assert_array_equal(made.run(inputs, seed), reference(given, inputs))
    counted = made.counters
    assert counted is not None
    for number, operand in enumerate(plan.product.operands):
        way = "put" if operand.is_output else "get"
        moved = sum(moved_elements(plan, number, points) for _, points in moved_boxes(plan, number))
        found = counted.moved.get((number, way))
        assert (found.bytes if found else 0) == moved * operand.element_bytes, operand.name
    calls = Counter({(m, n, k): times for (m, n, k, _), times in counted.gemms.items()})
    for (_, m, n, k), times in counted.instructions.items():
        calls[m, n, k] += times
    assert calls == executions(plan)
    for name, used, peak in zip(
        plan.product.machine.memories, plan.used, counted.peaks, strict=True
    ):
        assert peak <= used, name


def check_needed(plan: Plan, rng: random.Random, most: int = 15) -> tuple[int, int]:
    """A transfer brings what its points access, and more only where indices leave gaps. How many
    transfers are exact, and how many of operands as they lie are not."""
    exact, larger = 0, 0
    for number, box in enumerate(plan.form.boxes):
        boxes = [points for _, points in moved_boxes(plan, number)]
        for points in rng.sample(boxes, min(most, len(boxes))):
            moved = moved_elements(plan, number, points)
            needed = needed_elements(plan, number, points)
            assert moved >= needed
            if not box.tiled and not has_gaps(plan, number, points):
                assert moved == needed, (box.operand.name, points)
                exact += 1
            larger += moved > needed and not box.tiled
    return exact, larger


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_moved_and_executed_is_what_the_plan_says(target: str) -> None:
    found = [plan for seed in range(100, 112) for plan in random_plans(seed, target)]
    assert len(found) > 2
    for seed, plan in enumerate(found):
        check_counts(plan, seed)


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_moved_is_what_the_accesses_need(target: str) -> None:
    rng = random.Random(target)
    found = [plan for seed in range(200, 204) for plan in random_plans(seed, target)]
    counted = [check_needed(plan, rng) for plan in found]
    exact, larger = (sum(numbers) for numbers in zip(*counted, strict=True))
    assert exact > 10 * larger


def strided(tile: dict[str, int]) -> Plan:
    """A convolution of stride 3 whose taps are 2 apart, in tiles of so many points."""
    given = workload("conv1d n=1 c=8 w=64 k=32 s=3 stride=3 dilation=2 layout=NWC", spec("sw26010"))
    for product in products(given, "sw26010"):
        axes = product.axes
        if axes["k"].lane == "x" and axes["q"].lane == "y":
            points = tuple((name, tile.get(name, axis.granule)) for name, axis in axes.items())
            return check(Plan(product, Schedule(points, tuple(axes), 1, False)))
    raise AssertionError


def test_several_taps_are_a_window_without_gaps() -> None:
    """Each of eight rows holds two of a tile's sixteen outputs: with one tap they are a lattice,
    with several all that is between the first and the last."""
    image = 1  # W and O are cut along the rows that k is on.
    one, several = strided({"q": 16}), strided({"q": 16, "s": 3})
    assert [dimension.step for dimension in one.form.boxes[image].dimensions] == [1, 3, 1]
    assert [dimension.step for dimension in several.form.boxes[image].dimensions] == [1, 1, 1]
    for plan in (one, several):
        check_counts(plan, 1)
    assert check_needed(one, random.Random(0))[1] == 0
    # Two outputs with three taps need 0, 2, 3, 4, 5 and 7 of places 0 to 7.
    points = {"n": range(1), "q": range(2), "s": range(3), "c": range(1)}
    assert needed_elements(several, image, points) == 6
    assert moved_elements(several, image, points) == 8


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("part", range(4))
def test_many_plans_move_and_execute_what_they_say(target: str, part: int) -> None:
    for seed in range(1000 + 25 * part, 1025 + 25 * part):
        for plan in random_plans(seed, target):
            check_counts(plan, seed)
            check_needed(plan, random.Random(seed))
