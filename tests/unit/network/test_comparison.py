"""An assignment beside layouts fixed beforehand and each operator's fastest option."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from rich.console import Console

from cpembed.errors import LoweringError
from cpembed.network.assignment import Node, Option, Problem, Tensor, assign
from cpembed.network.comparison import Policy, compare
from cpembed.report.assignment import comparison
from tests.unit.network.assignment.problems import random_problem

PLAIN, LAST = 0, 1
NAMES = ("NCHW", "NHWC")
CONVERSION = {(PLAIN, LAST): 3.0, (LAST, PLAIN): 3.0}


def two_layers() -> Problem:
    """The first is fastest plain, the second channels last; the last tensor is wanted plain."""
    first = (Option("plain", (PLAIN, PLAIN), 2.0), Option("last", (LAST, LAST), 4.0))
    second = (Option("plain", (PLAIN, PLAIN), 7.0), Option("last", (LAST, LAST), 1.0))
    nodes = (Node("first", ("x",), ("y",), first), Node("second", ("y",), ("z",), second))
    tensors = (
        Tensor("x", NAMES, CONVERSION, given=PLAIN),
        Tensor("y", NAMES, CONVERSION),
        Tensor("z", NAMES, CONVERSION, wanted=(PLAIN,)),
    )
    return Problem(nodes, tensors)


def test_the_costs_are_those_of_each_policy() -> None:
    problem = two_layers()
    compared = compare(problem, assign(problem), dict.fromkeys("xyz", LAST))
    assert compared.fixed == Policy("all channels last", 5.0, 6.0, 2)
    assert compared.alone == Policy("each operator's fastest", 3.0, 6.0, 2)
    assert compared.assigned.cost == 9.0
    assert compared.relative(compared.fixed) == pytest.approx(11 / 9)


def test_a_node_without_the_fixed_layout_takes_what_is_nearest_to_it() -> None:
    problem = two_layers()
    only_plain = replace(problem.nodes[1], options=problem.nodes[1].options[:1])
    problem = replace(problem, nodes=(problem.nodes[0], only_plain))
    compared = compare(problem, assign(problem), dict.fromkeys("xyz", LAST))
    assert compared.fixed.operators == 4 + 7
    assert compared.fixed.converting == 3 + 3


def test_no_policy_costs_less_than_the_assignment() -> None:
    dearer = 0
    for seed in range(150):
        problem = random_problem(seed)
        try:
            found = assign(problem)
        except LoweringError:
            continue
        compared = compare(problem, found, {tensor.name: 0 for tensor in problem.tensors})
        assert compared.assigned.cost == pytest.approx(found.cost)
        for policy in compared.policies:
            assert policy.cost >= found.cost - 1e-9
            assert (policy.cost == math.inf) == (policy.obstacle is not None)
            dearer += policy.cost > found.cost + 1e-9
    assert dearer > 50


def test_a_policy_that_cannot_be_is_said_to_be_impossible() -> None:
    problem = two_layers()
    # The second layer reads what only the dearer option of the first one writes.
    last_only = replace(problem.nodes[1], options=problem.nodes[1].options[1:])
    tensors = (problem.tensors[0], Tensor("y", NAMES), problem.tensors[2])
    problem = Problem((problem.nodes[0], last_only), tensors)
    compared = compare(problem, assign(problem), {})
    assert compared.alone.obstacle == "y"
    assert compared.assigned.cost == 3 + 4 + 1 + 3
    console = Console(width=120, record=True)
    for part in comparison(compared):
        console.print(part)
    rows = console.export_text().splitlines()
    assert [row.split() for row in rows if "impossible" in row][-1][-5:] == [
        *("impossible", "y", "cannot", "be", "converted")
    ]
    assert ["assigned", "together", "11", "us", "x1.00", "5", "us", "6", "us", "2"] in [
        row.split() for row in rows
    ]


def test_a_policy_takes_what_can_be_had_before_what_is_fastest() -> None:
    problem = two_layers()
    # The second layer would be fastest channels last, but the first one writes plain.
    tensors = (problem.tensors[0], Tensor("y", NAMES), problem.tensors[2])
    problem = replace(problem, tensors=tensors)
    compared = compare(problem, assign(problem), {})
    assert (compared.alone.operators, compared.alone.converting) == (2 + 7, 0)
    # What is wanted in the end counts as well.
    tensors = (*tensors[:2], Tensor("z", NAMES, wanted=(LAST,)))
    nodes = (problem.nodes[0], replace(problem.nodes[1], reads=("x",)))
    compared = compare(found := Problem(nodes, tensors), assign(found), {"z": PLAIN})
    assert (compared.fixed.operators, compared.fixed.converting) == (2 + 1, 3)
