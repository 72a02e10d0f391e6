"""Lower bounds against random mappings: none may cost less, by any objective."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from cpembed.cost.machine.bounds import Bounds, Grid, level_operands, moving_loops
from cpembed.cost.machine.nest import ExecutionNest
from cpembed.cost.machine.objective import Cost, Objective, Price, cycles_cost
from cpembed.cost.machine.refinement import Decisions
from cpembed.cost.machine.search import best_tilings, loop_order
from cpembed.hw.machine import Hierarchy
from tests.unit.cost.machine.test_invariants import random_extents, random_machine, random_product

SAMPLES = 400


def random_cost(hierarchy: Hierarchy, rng: random.Random) -> Cost:
    """Return an objective with any prices of bytes."""
    objective = rng.choice(list(Objective))
    if objective is Objective.CYCLES:
        return cycles_cost(hierarchy)
    prices = {
        link.name: Price(*(rng.choice(each) for each in ((0.0, 1.0, 7.0), (0.0, 2.0), (0.0, 1.0))))
        for link in hierarchy.links
    }
    return Cost(objective, prices, fixed=rng.choice((0.0, 5.0)))


def random_bypass(nest: ExecutionNest, hierarchy: Hierarchy, rng: random.Random) -> ExecutionNest:
    """Return the nest with operands that pass by some of the memories that allow it."""
    free = [name for name, memory in hierarchy.memories.items() if memory.bypass]
    operands = (
        replace(o, bypassed=frozenset(name for name in free if rng.random() < 0.5))
        for o in nest.operands
    )
    return replace(nest, operands=tuple(operands))


def random_decisions(
    nest: ExecutionNest, hierarchy: Hierarchy, rng: random.Random, count: int
) -> Decisions:
    """Return mappings of random sizes and divisions, whose operands are held in one random order.

    Tiles are often as large as those around them, or single executions.
    """
    names = tuple(loop.name for loop in nest.loops)
    stages = list[tuple[int, frozenset[str]]]()
    orders = list[tuple[str, ...]]()
    for level in reversed(range(len(hierarchy.levels) - 1)):
        held = level_operands(nest, hierarchy, level)
        rng.shuffle(held)
        for place, operands in enumerate([frozenset([name]) for name in held] or [frozenset()]):
            stages.append((level, operands))
            if rng.random() < 0.7:
                orders.append(loop_order(tuple(held[place:]), nest, moving_loops(nest)))
            else:
                orders.append(tuple(rng.sample(names, len(names))))
    sizes = np.ones((len(stages), len(names), count))
    parts = np.ones((len(hierarchy.levels) - 1, len(names), count))
    for row in range(count):
        for place, loop in enumerate(nest.loops):
            around = loop.extent
            for number in range(len(stages)):
                around = rng.choice((around, around, 1, rng.randint(1, around)))
                sizes[number, place, row] = around
        for level in range(parts.shape[0]):
            left = hierarchy.fan_out(level)
            for place, loop in enumerate(nest.loops):
                if loop.kind == "spatial":
                    parts[level, place, row] = rng.randint(1, left)
                    left //= int(parts[level, place, row])
    return Decisions(names, tuple(stages), tuple(orders), sizes, parts)


@pytest.mark.parametrize("limit", [1, 30, 10_000])
@pytest.mark.parametrize(
    "seed", [*range(25), *(pytest.param(n, marks=pytest.mark.slow) for n in range(25, 300))]
)
def test_no_mapping_costs_less_than_the_bound(seed: int, limit: int) -> None:
    """Of any grid of tile sizes: cells of a coarse one have bounds of all their sizes."""
    rng = random.Random(seed)
    hierarchy = random_machine(rng, 40)
    nest = random_bypass(random_product(*random_extents(rng, hierarchy)), hierarchy, rng)
    cost = random_cost(hierarchy, rng)
    bound = Bounds(nest, hierarchy, Grid.for_nest(nest, limit), cost).least
    if not nest.loops:
        return
    for _ in range(4):
        decisions = random_decisions(nest, hierarchy, rng, SAMPLES // 4)
        fitting = decisions.select(decisions.fit(nest, hierarchy))
        if fitting.sizes.shape[2]:
            tilings = fitting.tilings(nest, hierarchy)
            assert bound <= cost.value(tilings, nest, hierarchy).min() * (1 + 1e-9)


@pytest.mark.parametrize(
    "seed", [*range(10), *(pytest.param(n, marks=pytest.mark.slow) for n in range(10, 100))]
)
def test_no_random_mapping_costs_less_than_the_best(seed: int) -> None:
    rng = random.Random(1000 + seed)
    hierarchy = random_machine(rng, 40)
    nest = random_product(*random_extents(rng, hierarchy))
    cost = random_cost(hierarchy, rng)
    best = best_tilings(nest, hierarchy, 512, cost)
    assert best.bound <= best.cost
    if not nest.loops:
        return
    nest = random_bypass(nest, hierarchy, rng)
    decisions = random_decisions(nest, hierarchy, rng, SAMPLES)
    fitting = decisions.select(decisions.fit(nest, hierarchy))
    if fitting.sizes.shape[2]:
        least = cost.value(fitting.tilings(nest, hierarchy), nest, hierarchy).min()
        # The search has a limit: what it leaves is within the gap, and small.
        assert best.cost <= least * (1.1 if len(hierarchy.levels) > 2 else 1.05)
        assert best.cost <= least / (1 - best.gap) * (1 + 1e-9)
