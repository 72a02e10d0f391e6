"""Reductions of cost networks that no assignment problem needs to have led to."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from cpembed.network.assignment import Bounds, Node, Option, Problem, Tensor
from cpembed.network.assignment.elimination import (
    CostNetwork,
    Order,
    SharedConversions,
    Table,
    eliminate,
    plan,
)
from cpembed.network.assignment.formulation import prune_options

AMPLE = Bounds(joined=10**6, result=10**6, total=10**7)


def cost(network: CostNetwork, values: tuple[int, ...]) -> float:
    total = sum(float(t.costs[tuple(values[k] for k in t.scope)]) for t in network.tables)
    for shared in network.shared:
        needed = {n[values[r]] for r, n in zip(shared.readers, shared.needs, strict=True)} - {-1}
        total += sum(float(shared.costs[values[shared.written], column]) for column in needed)
    return total


def least(network: CostNetwork) -> float:
    return min(cost(network, v) for v in itertools.product(*map(range, network.sizes)))


def with_few_contents(seed: int) -> CostNetwork:
    """Variables of three values, and tables of which most are equal but for their variables."""
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    contents = [numbers.integers(0, 9, (3, 3)).astype(float) for _ in range(2)]
    pairs = [rng.sample(range(6), 2) for _ in range(7)]
    tables = [Table((a, b), rng.choice(contents)) for a, b in pairs]
    tables += [Table((k,), numbers.integers(0, 9, 3).astype(float)) for k in range(6)]
    needs = tuple(tuple(rng.randrange(-1, 4) for _ in range(3)) for _ in range(3))
    readers = tuple(rng.sample(range(1, 6), 3))
    shared = SharedConversions(0, numbers.integers(0, 9, (3, 4)).astype(float), readers, needs)
    return CostNetwork((3,) * 6, tuple(tables), (shared,))


@pytest.mark.parametrize("seed", range(12))
def test_elimination_in_any_order_keeps_the_least_cost(seed: int) -> None:
    network = with_few_contents(seed)
    variables = list(range(6))
    random.Random(seed).shuffle(variables)
    reduced = eliminate(network, Order(tuple(variables), True))
    assert reduced.constant == least(network)
    assert cost(network, tuple(reduced.complete([0] * 6))) == reduced.constant


@pytest.mark.parametrize("seed", range(12))
def test_what_remains_of_a_reduction_in_part_has_the_same_least_cost(seed: int) -> None:
    network = with_few_contents(seed)
    reduced = eliminate(network, plan(network, Bounds(joined=60, result=9, total=200)))
    best, values = min((cost(reduced.rest, v), v) for v in itertools.product(range(3), repeat=6))
    assert reduced.constant + best == least(network)
    assert cost(network, tuple(reduced.complete(values))) == reduced.constant + best


@pytest.mark.parametrize("seed", range(12))
def test_tables_in_pairs_say_what_shared_conversions_say(seed: int) -> None:
    network = with_few_contents(seed)
    (shared,) = network.shared
    pairs = shared.as_pairs(len(network.sizes))
    split = CostNetwork((*network.sizes, 2, 2, 2, 2), (*network.tables, *pairs))
    whole = CostNetwork(network.sizes, (*network.tables, shared.as_table()))
    assert eliminate(whole, plan(whole, AMPLE)).constant == least(network)
    assert eliminate(split, plan(split, AMPLE)).constant == least(whole)


def test_bounds_hold() -> None:
    network = CostNetwork((4, 4, 4), (Table((0, 1), np.zeros((4, 4))),))
    assert plan(network, Bounds(joined=15, result=99, total=99)).variables == (2,)
    assert plan(network, Bounds(joined=99, result=3, total=99)).variables == (2,)
    assert len(plan(network, Bounds(joined=99, result=99, total=20)).variables) == 2
    assert plan(network, Bounds(joined=16, result=4, total=24)).complete


def test_an_option_stays_that_saves_a_little_for_each_of_two_readers() -> None:
    names = ("a", "b", "c", "d")
    conversion = {(0, 2): 1.0, (0, 3): 1.0, (1, 2): 0.0, (1, 3): 0.0}
    tensor = Tensor("t", names, conversion)
    writer = Node("w", (), ("t",), (Option("a", (0,), 1.0), Option("b", (1,), 2.5)))
    readers = [Node(f"r{k}", ("t",), (), (Option("only", (k,), 0.0),)) for k in (2, 3)]
    assert prune_options(Problem((writer, *readers), (tensor,)))[0] == (0, 1)
    assert prune_options(Problem((writer, readers[0]), (tensor,)))[0] == (0,)
