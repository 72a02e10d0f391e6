"""Costs with packing, and sets whose executions no table knows, against all candidates of solve."""

from __future__ import annotations

import itertools
import math
import random
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from cpembed.driver.matching import typed_for
from cpembed.driver.named import workload
from cpembed.driver.solve import solve
from cpembed.embedding.constraint_set import load_constraint_set
from cpembed.exploration.shapes import cells, finding
from cpembed.exploration.shapes.cells import (
    Cell,
    FewestExecutions,
    NoProgramError,
    embed,
    search_cell,
)
from cpembed.exploration.shapes.choice import drop_redundant
from cpembed.exploration.shapes.executions import layer_executions
from cpembed.exploration.shapes.finding import find_shapes
from cpembed.exploration.shapes.question import Question, ShapeResult
from cpembed.exploration.shapes.shape import Cost, Model, Scope, Shape, template
from cpembed.ir.computation import Computation
from cpembed.runtime.cluster import open_workers
from tests.random_workloads import sum_of_products
from tests.unit.exploration.shapes.layers import random_shape, small_layer, solved, target_of

BOUND = 'extends = "relaxed"\n[domain_bound]\nbound = 3'


def of_all(layer: Computation, shape: Shape, constraints: str, cost: Cost) -> float:
    """The least cost of all candidates, one by one."""
    found = solve(layer, target_of(shape), constraints=constraints, top=None)
    return min(
        (cost.combined(c.overheads.calls, c.overheads.packing_bytes) for c in found.embeddings),
        default=math.inf,
    )


def compare(constraints: str, seed: int, pairs: int, largest: int) -> None:
    rng = random.Random(seed)
    chosen = load_constraint_set(constraints)
    for _ in range(pairs):
        layer, shape = small_layer(rng), random_shape(rng, largest)
        cost = Cost(rng.choice((1, 8, 64, 1000)))
        cell = search_cell(Cell(layer, chosen, shape), cost, None)
        least = of_all(layer, shape, constraints, cost)
        assert cell.bound == cell.cost(cost) == least, (str(layer), layer.extents, shape, cost)


@pytest.mark.quick(1)
@pytest.mark.parametrize("constraints", ["in_place_padded", "fused"])
def test_costs_are_the_least_of_all_candidates(constraints: str) -> None:
    compare(constraints, 1, 12, 12)


@pytest.mark.slow
@pytest.mark.parametrize("constraints", ["strict", "in_place_padded", "fused", "relaxed"])
def test_many_costs_are_the_least_of_all_candidates(constraints: str) -> None:
    compare(constraints, 2, 60, 12)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "words, shape, constraints",
    [
        ("n=4 c=3 h=9 w=6 k=4 r=2 s=2 stride=2", Shape(2, 1, 8), "in_place_padded"),
        ("n=2 c=3 h=11 w=6 k=2 r=5 s=1 stride=2", Shape(4, 4, 2), "relaxed"),
    ],
)
def test_more_executions_are_taken_for_fewer_bytes(
    words: str, shape: Shape, constraints: str
) -> None:
    """Where a byte is worth an execution; where it is worth little they are not."""
    layer, chosen = workload(f"conv2d {words}", template()), load_constraint_set(constraints)
    fewest = solved(layer, shape, constraints)
    for bytes_per_execution in (1, 10, 10_000):
        cost = Cost(bytes_per_execution)
        cell = search_cell(Cell(layer, chosen, shape), cost, None)
        assert cell.bound == cell.cost(cost) == of_all(layer, shape, constraints, cost)
        assert cell.embedded is not None
        if bytes_per_execution != 10:
            assert (cell.embedded.executions > fewest) == (bytes_per_execution == 1)


def test_executions_under_a_set_without_tables(tmp_path: Path) -> None:
    file = tmp_path / "bound.toml"
    file.write_text(BOUND)
    chosen, scope = load_constraint_set(str(file)), Scope(8)
    rng = random.Random(3)
    for _ in range(6):
        layer, shape = small_layer(rng), random_shape(rng, 8)
        tables = layer_executions(layer, chosen, scope, template())
        least = solved(layer, shape, str(file))
        (place,) = np.flatnonzero((scope.shapes == list(shape.extents.values())).all(axis=1))
        assert tables.obstacle is not None
        assert tables.executions[place] <= least
        assert search_cell(Cell(layer, chosen, shape), Cost(), None).bound == least


def compare_irregular(seed: int, pairs: int) -> None:
    """Tables count embeddings, of which those of an operand that repeats an axis may have no
    program: there, and where no table knows, executions are at least what tables say, and searches
    find what solve does."""
    rng = random.Random(seed)
    equal = 0
    scope = Scope(16)
    for _ in range(pairs):
        layer, shape = typed_for(sum_of_products(rng), template()), random_shape(rng, 16)
        constraints = rng.choice(("strict", "in_place_padded", "relaxed", "complete"))
        tables = layer_executions(layer, load_constraint_set(constraints), scope, template())
        if tables.reason is not None:
            continue
        least = solved(layer, shape, constraints)
        (place,) = np.flatnonzero((scope.shapes == list(shape.extents.values())).all(axis=1))
        if tables.executions[place] == least and tables.obstacle is None:
            equal += 1
            continue
        assert tables.executions[place] <= least
        cell = search_cell(Cell(layer, load_constraint_set(constraints), shape), Cost(), None)
        assert cell.bound == cell.cost(Cost()) == least
    assert equal > pairs / 2


@pytest.mark.slow
def test_irregular_products() -> None:
    compare_irregular(1, 40)


@pytest.mark.slow
def test_many_irregular_products() -> None:
    compare_irregular(2, 600)


def asked(suite: Path, question: Question) -> ShapeResult:
    with open_workers() as workers:
        return find_shapes(Model(str(suite)), question, workers, silent)


def silent(what: str, done: int, total: int) -> None:
    """No progress."""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    file = tmp_path / "layers.csv"
    rows = ("gemm m=6 n=4 k=5,2", "conv2d n=1 c=3 h=5 w=6 k=4 r=3 s=3,1", "gemm m=1 n=7 k=9,3")
    file.write_text("layer,count\n" + "\n".join(rows) + "\n")
    return file


@pytest.mark.quick(1)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_best_shapes_with_packing_are_those_of_all_cells(suite: Path, count: int) -> None:
    """Most cells are never searched; all of them give the same."""
    constraints, cost = load_constraint_set("in_place_padded"), Cost(50)
    scope = Scope(6, powers=count == 3)
    result = asked(suite, Question(scope, count, constraints, cost, within=5.0))
    words = ("gemm m=6 n=4 k=5", "conv2d n=1 c=3 h=5 w=6 k=4 r=3 s=3", "gemm m=1 n=7 k=9")
    shapes = [Shape(*map(int, row)) for row in scope.shapes]
    costs = np.array(
        [
            [
                times * search_cell(Cell(layer, constraints, shape), cost, None).bound
                for shape in shapes
            ]
            for layer, times in zip(
                (workload(word, template()) for word in words), (2, 1, 3), strict=True
            )
        ]
    )
    best = costs.sum(axis=0).min()
    if count > 1:
        first = costs[:, :, None]
        pairs = np.minimum(first, costs[:, None, :])
        best = pairs.sum(axis=0).min()
        if count > 2:
            triples = np.minimum(pairs[:, :, :, None], costs[:, None, None, :])
            best = triples.sum(axis=0).min()
    assert result.proven
    assert result.sets.cost == best
    assert result.executions is not None
    assert result.sets.cost == result.executions * 50 + result.packing_bytes
    assert 0 < (result.counts.searched or 0) < costs.size
    check_others(result, costs, shapes, count)


def check_others(
    result: ShapeResult, costs: NDArray[np.float64], shapes: list[Shape], count: int
) -> None:
    """The runner-up, and all sets within 5 %, are those of all cells."""
    every = {
        chosen: float(costs[:, chosen].min(axis=1).sum())
        for size in range(1, count + 1)
        for chosen in itertools.combinations(range(len(shapes)), size)
    }
    best = {shapes.index(shape) for shape in result.shapes}
    least = min(every.values())
    assert result.sets.next_proven
    assert result.sets.next_cost == min(c for s, c in every.items() if not best <= set(s))
    assert result.near is not None
    assert result.near.complete
    assert dict(result.near.sets) == {
        tuple(shapes[n] for n in chosen): cost
        for chosen, cost in every.items()
        if cost * 100 <= least * 105 and drop_redundant(costs, chosen) == chosen
    }


@pytest.mark.parametrize("count", [1, 2])
def test_the_runner_up_by_tables_is_that_of_all_shapes(suite: Path, count: int) -> None:
    constraints, scope = load_constraint_set("in_place_padded"), Scope(12)
    result = asked(suite, Question(scope, count, constraints, within=5.0))
    words = ("gemm m=6 n=4 k=5", "conv2d n=1 c=3 h=5 w=6 k=4 r=3 s=3", "gemm m=1 n=7 k=9")
    layers = [workload(word, template()) for word in words]
    rows = [layer_executions(layer, constraints, scope, template()).executions for layer in layers]
    shapes = [Shape(*map(int, row)) for row in scope.shapes]
    check_others(result, np.stack(rows) * [[2], [1], [3]], shapes, count)


@pytest.mark.slow
def test_a_set_without_tables_gives_the_best_of_its_searches(suite: Path, tmp_path: Path) -> None:
    file = tmp_path / "bound.toml"
    file.write_text(BOUND)
    constraints, scope = load_constraint_set(str(file)), Scope(4)
    result = asked(suite, Question(scope, 1, constraints))
    words = ("gemm m=6 n=4 k=5", "conv2d n=1 c=3 h=5 w=6 k=4 r=3 s=3", "gemm m=1 n=7 k=9")
    totals = [
        sum(
            times * solved(workload(word, template()), Shape(*map(int, row)), str(file))
            for word, times in zip(words, (2, 1, 3), strict=True)
        )
        for row in scope.shapes
    ]
    assert result.proven
    assert result.executions == min(totals)


def test_where_the_fewest_executions_have_no_program_searches_decide(
    suite: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if no rewrite served what the tables found."""
    question = Question(Scope(6), 1, load_constraint_set("in_place_padded"))
    expected = asked(suite, question)

    def refuse(*_: object) -> None:
        raise NoProgramError("no rewrite")

    monkeypatch.setattr(finding, "embed", refuse)
    result = asked(suite, question)
    assert result.proven
    assert result.executions == expected.executions
    assert result.counts.searched
    assert result.counts.not_dominated is None


@pytest.mark.slow
def test_embeddings_are_found_below_a_ceiling_where_time_is_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same as where all are found; also where only the first few are."""
    layer = workload("conv2d n=1 c=6 h=9 w=8 k=8 r=3 s=3", template())
    constraints, shape = load_constraint_set("complete"), Shape(4, 4, 6)
    fewest = FewestExecutions(int(solved(layer, shape, "complete")), commuted=False)
    whole = embed(Cell(layer, constraints, shape), fewest)
    assert whole.first_ranked
    monkeypatch.setattr(cells, "_ALL_SECONDS", 1e-3)
    below = embed(Cell(layer, constraints, shape), fewest)
    assert below.first_ranked
    assert below.embedding == whole.embedding
    monkeypatch.setattr(cells, "_TIES_SECONDS", 1e-3)
    some = embed(Cell(layer, constraints, shape), fewest)
    assert some.executions == fewest.executions


def test_a_stopped_search_has_a_gap(suite: Path) -> None:
    constraints = load_constraint_set("in_place_padded")
    result = asked(suite, Question(Scope(64), 1, constraints, Cost(1), timeout=0.2))
    assert not result.proven
    assert result.gap is None or 0 < result.gap < 1
