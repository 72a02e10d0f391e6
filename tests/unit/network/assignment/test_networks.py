"""Assignments of networks: their size, their time, and how the search reports and ends."""

from __future__ import annotations

import importlib.util
import itertools
import math
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from cpembed.errors import LoweringError
from cpembed.network.assignment import (
    REDUCTIONS,
    Bounds,
    Problem,
    Reductions,
    assign,
)

NOTHING = Bounds(joined=0, result=0, total=0)
SOLVER = Reductions(NOTHING, NOTHING)


def _benchmark() -> ModuleType:
    path = Path(__file__).parents[4] / "benchmarks" / "assignment.py"
    spec = importlib.util.spec_from_file_location("benchmark_of_assignments", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


SHAPES = _benchmark()
REDUCED = ("ResNet-50", "Inception", "MobileNet", "ShuffleNet", "U-Net")


def chain(length: int) -> Problem:
    net = SHAPES.Drawing(0, layouts=6, options=10)
    x = net.image()
    for _ in range(length):
        x = net.product(x)
    return net.problem()


def shortest_path(problem: Problem) -> float:
    """Of a chain: the least cost of each layout, tensor after tensor."""
    first = problem.tensors[0]
    best = np.full(len(first.layouts), np.inf)
    best[first.input_layout] = 0
    for node in problem.nodes:
        source = problem.tensor_of[node.reads[0]]
        after = np.full(len(problem.tensor_of[node.writes[0]].layouts), np.inf)
        for option in node.options:
            reading, writing = option.layouts
            there = min(
                cost + source.conversion_cost(layout, reading) for layout, cost in enumerate(best)
            )
            after[writing] = min(after[writing], there + option.cost)
        best = after
    last = problem.tensors[-1]
    (wanted,) = last.output_layouts
    return min(cost + last.conversion_cost(layout, wanted) for layout, cost in enumerate(best))


@pytest.mark.parametrize("length", [1, 2, 40])
def test_a_chain_is_a_shortest_path(length: int) -> None:
    problem = chain(length)
    found = assign(problem)
    assert found.cost == pytest.approx(shortest_path(problem))
    assert found.solver_entries == 0


@pytest.mark.parametrize("shape", REDUCED)
def test_reductions_alone_solve_networks_of_blocks(shape: str) -> None:
    found = assign(SHAPES.drawn(shape))
    assert found.solver_entries == 0
    assert found.proven
    assert found.gap == 0


def test_reductions_and_the_solver_agree() -> None:
    for seed in range(3):
        problem = SHAPES.drawn("MobileNet", 5, 6, seed)
        whole = assign(problem, reductions=None)
        assert assign(problem).cost == pytest.approx(whole.cost, rel=1e-5)
        assert whole.solver_entries > 0
        assert whole.proven


def test_options_are_the_same_in_every_run() -> None:
    problem = SHAPES.drawn("HRNet", 4, 6)
    assert assign(problem).options == assign(problem).options


def test_a_search_without_time_returns_what_it_has_with_a_bound() -> None:
    problem = SHAPES.drawn("ResNet-50", 6, 8)
    found = assign(problem, reductions=SOLVER, time_limit=0.0)
    best = assign(problem)
    assert not found.proven
    assert found.bound <= best.cost <= found.cost
    assert found.gap > 0
    assert found.seconds < 3


def test_a_search_that_finds_nothing_in_time_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    # Without the first assignment, there is none when the time is over.
    problem = SHAPES.drawn("ResNet-50", 12, 8)
    dearest = [
        node.options.index(max(node.options, key=lambda o: o.cost)) for node in problem.nodes
    ]
    monkeypatch.setattr("cpembed.network.assignment.solve.descend", lambda p, k: dearest)
    monkeypatch.setattr(
        "cpembed.network.assignment.solve.evaluate",
        lambda p, o: type("Outcome", (), {"cost": float("inf")}),
    )
    with pytest.raises(LoweringError, match="within 0 s: allow more time"):
        assign(problem, reductions=SOLVER, time_limit=0.0)


def test_reductions_alone_do_not_load_the_solver() -> None:
    code = (
        "import sys; from cpembed.network.assignment import *; "
        "assign(Problem((), ())); sys.exit('ortools' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("reductions", [REDUCTIONS, SOLVER])
def test_a_tensor_may_have_very_many_readers_and_a_node_many_inputs(
    reductions: Reductions,
) -> None:
    net = SHAPES.Drawing(0, layouts=3, options=3)
    x = net.image()
    ys = [net.product(x, size=1 + k % 3) for k in range(70)]
    net.through(*ys)
    problem = net.problem()
    best = min(joined_in(problem, layout) for layout in range(3))
    assert assign(problem, reductions=reductions).cost == pytest.approx(best, rel=1e-5)
    fixed = [replace(node, options=node.options[:1]) for node in problem.nodes]
    found = assign(replace(problem, nodes=tuple(fixed)), reductions=reductions)
    assert set(found.options.values()) == {0}


def joined_in(problem: Problem, layout: int) -> float:
    """The least cost where the last node takes all it reads in one layout: of all sets of layouts
    that are paid for of the first tensor, the best."""
    first, last = problem.tensors[0], problem.tensors[-1]
    (end,) = [option for option in problem.nodes[-1].options if option.layouts[0] == layout]
    best = math.inf
    for there in itertools.product((False, True), repeat=len(first.layouts)):
        paid = {k for k, is_there in enumerate(there) if is_there} | {first.input_layout}
        total = end.cost + last.conversion_cost(layout, last.output_layouts[0])
        total += sum(first.conversion_cost(first.input_layout, k) for k in paid)
        for node in problem.nodes[:-1]:
            written = problem.tensor_of[node.writes[0]]
            total += min(
                (
                    option.cost + written.conversion_cost(option.layouts[1], layout)
                    for option in node.options
                    if option.layouts[0] in paid
                ),
                default=math.inf,
            )
        best = min(best, total)
    return best


@pytest.mark.slow
@pytest.mark.parametrize("layouts, options", [(6, 8), (12, 16)])
@pytest.mark.parametrize("shape", [*REDUCED, "BERT", "HRNet"])
def test_networks_are_proven_within_ten_seconds(shape: str, layouts: int, options: int) -> None:
    for seed in range(2):
        problem = SHAPES.drawn(shape, layouts, options, seed)
        started = time.process_time()
        found = assign(problem, time_limit=120.0)
        # Of this process alone: others may use the processor as well.
        assert time.process_time() - started < 10
        assert found.proven
        assert found.gap < 1e-4


@pytest.mark.slow
def test_a_network_that_reads_everything_again_is_solved_with_fewer_layouts() -> None:
    found = assign(SHAPES.drawn("DenseNet-121", 6, 8), time_limit=120.0)
    assert found.proven
