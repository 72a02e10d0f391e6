"""Layouts fixed beforehand and each operator's fastest option, beside an assignment."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest

from cpembed.errors import LoweringError
from cpembed.network.assignment import Assignment, Node, Option, Problem, Tensor, assign
from cpembed.network.assignment.solve import by_policy, policy_cost
from tests.unit.network.assignment.problems import random_problem

PLAIN, LAST = 0, 1
NAMES = ("NCHW", "NHWC")
CONVERSION = {(PLAIN, LAST): 3.0, (LAST, PLAIN): 3.0}
ALL_LAST = dict.fromkeys("xyz", LAST)


def two_layers() -> Problem:
    """The first is fastest plain, the second channels last; the last tensor is wanted plain."""
    first = (Option("plain", (PLAIN, PLAIN), 2.0), Option("last", (LAST, LAST), 4.0))
    second = (Option("plain", (PLAIN, PLAIN), 7.0), Option("last", (LAST, LAST), 1.0))
    nodes = (Node("first", ("x",), ("y",), first), Node("second", ("y",), ("z",), second))
    tensors = (
        Tensor("x", NAMES, CONVERSION, input_layout=PLAIN),
        Tensor("y", NAMES, CONVERSION),
        Tensor("z", NAMES, CONVERSION, output_layouts=(PLAIN,)),
    )
    return Problem(nodes, tensors)


def by(problem: Problem, fixed: Mapping[str, int] | None) -> Assignment:
    found = by_policy(problem, assign(problem), fixed)
    assert found.cost == policy_cost(problem, fixed)
    return found


def test_the_costs_are_those_of_each_policy() -> None:
    problem = two_layers()
    fixed, alone = by(problem, ALL_LAST), by(problem, None)
    assert (fixed.cost, len(fixed.conversions)) == (5 + 6, 2)
    assert (alone.cost, len(alone.conversions)) == (3 + 6, 2)
    assert fixed.bound == assign(problem).cost == 9.0
    assert not fixed.proven


def test_a_node_without_the_fixed_layout_takes_what_is_nearest_to_it() -> None:
    problem = two_layers()
    only_plain = replace(problem.nodes[1], options=problem.nodes[1].options[:1])
    problem = replace(problem, nodes=(problem.nodes[0], only_plain))
    assert policy_cost(problem, ALL_LAST) == 4 + 7 + 3 + 3


def test_no_policy_costs_less_than_the_assignment() -> None:
    dearer = 0
    for seed in range(150):
        problem = random_problem(seed)
        try:
            found = assign(problem)
        except LoweringError:
            continue
        for fixed in ({tensor.name: 0 for tensor in problem.tensors}, None):
            cost = policy_cost(problem, fixed)
            assert cost >= found.cost - 1e-9
            dearer += cost > found.cost + 1e-9
    assert dearer > 50


def test_a_policy_that_cannot_be_is_refused() -> None:
    problem = two_layers()
    # The second layer reads what only the dearer option of the first one writes.
    last_only = replace(problem.nodes[1], options=problem.nodes[1].options[1:])
    tensors = (problem.tensors[0], Tensor("y", NAMES), problem.tensors[2])
    problem = Problem((problem.nodes[0], last_only), tensors)
    assert policy_cost(problem, None) == math.inf
    assert assign(problem).cost == 3 + 4 + 1 + 3
    with pytest.raises(LoweringError, match="y cannot be converted: choose layouts together"):
        by_policy(problem, assign(problem), None)


def test_a_policy_takes_what_can_be_had_before_what_is_fastest() -> None:
    problem = two_layers()
    # The second layer would be fastest channels last, but the first one writes plain.
    tensors = (problem.tensors[0], Tensor("y", NAMES), problem.tensors[2])
    problem = replace(problem, tensors=tensors)
    found = by(problem, None)
    assert (found.cost, found.conversions) == (2 + 7, ())
    # What is wanted in the end counts as well.
    tensors = (*tensors[:2], Tensor("z", NAMES, output_layouts=(LAST,)))
    nodes = (problem.nodes[0], replace(problem.nodes[1], reads=("x",)))
    assert policy_cost(Problem(nodes, tensors), {"z": PLAIN}) == 2 + 1 + 3
