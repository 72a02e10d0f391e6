"""Which sizes get instances: losses beside brute force, and limits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from functools import cache, partial

import pytest

from cpembed.frontends.builder import Builder
from cpembed.graph import kinds
from cpembed.graph.family import Family, Sizes
from cpembed.graph.graph import Graph
from cpembed.graph.instances import Mode, Openness, openness
from cpembed.graph.kinds import TensorType
from cpembed.network.size_choice import CostModel, SizeChoice, rough_us, spread
from tests.unit.graph.test_size_relation import recurrent


def softmax(sizes: Mapping[str, int]) -> Graph:
    builder = Builder("net")
    x = builder.input("x", TensorType((sizes["rows"], sizes["columns"]), "float32"))
    return builder.graph({"y": builder.add(kinds.Softmax(1), [x], "op")})


FAMILY = Family("net", {"rows": range(1, 9), "columns": range(1, 33)}, softmax)


class Costs(CostModel):
    """A call and each element cost something."""

    def us(self, sizes: Sizes) -> float:
        return 4.0 + math.prod(sizes) / 8


@pytest.fixture(scope="module")
def facts() -> Openness:
    return openness(FAMILY)


def best_run(choice: SizeChoice, instances: list[Sizes], sizes: Sizes) -> float:
    """The least cost of all sequences of instances."""
    columns = sizes[1]
    parts = [at for at in instances if at[1] >= columns]
    costs = Costs(FAMILY)

    @cache
    def least(rows: int) -> float:
        if rows <= 0:
            return 0.0
        return min((costs.us(at) + least(rows - at[0]) for at in parts), default=math.inf)

    return least(sizes[0])


def test_the_loss_is_that_of_the_best_runs(facts: Openness) -> None:
    assert facts.modes == {"rows": Mode.SPLIT, "columns": Mode.PADDED}
    choice, costs = SizeChoice(FAMILY, facts), Costs(FAMILY)
    instances = [(8, 32), (1, 32), (3, 5), (1, 9)]
    loss = choice.loss(instances, costs)
    losses = {
        (rows, columns): best_run(choice, instances, (rows, columns)) / costs.us((rows, columns))
        for rows in range(1, 9)
        for columns in range(1, 33)
    }
    assert loss.largest == pytest.approx(max(losses.values()))
    assert losses[loss.sizes] == pytest.approx(loss.largest)
    assert loss.mean == pytest.approx(sum(losses.values()) / len(losses))


@pytest.mark.parametrize("allowed", [1.05, 1.15, 1.5])
def test_instances_are_added_until_the_loss_is_allowed(facts: Openness, allowed: float) -> None:
    choice, costs = SizeChoice(FAMILY, facts, allowed, 256), Costs(FAMILY)
    instances = choice.extended([], costs)
    assert (8, 32) in instances
    assert choice.loss(instances, costs).largest <= allowed
    assert len(instances) < 8 * 32


def test_few_instances_are_spread_over_all_sizes(facts: Openness) -> None:
    """The limit is kept, and no size pays for it more than it has to."""
    costs = Costs(FAMILY)
    losses: list[float] = []
    for most in (1, 3, 6, 12):
        choice = SizeChoice(FAMILY, facts, 1.01, most)
        instances = choice.extended([], costs)
        assert len(instances) <= most
        losses.append(choice.loss(instances, costs).largest)
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < min(2.0, losses[0] / 3)


def test_rough_estimates_are_polynomials_of_the_sizes() -> None:
    costs = CostModel(FAMILY)
    for sizes in ((1, 1), (3, 7), (8, 32), (5, 16)):
        assert costs.rough(sizes) == pytest.approx(rough_us(FAMILY.graph(sizes)))


def test_plans_correct_the_estimates_near_by() -> None:
    costs = CostModel(FAMILY)
    costs.add((8, 32), 3 * costs.rough((8, 32)))
    assert costs.us((8, 32)) == pytest.approx(3 * costs.rough((8, 32)))
    assert costs.us((7, 31)) == pytest.approx(3 * costs.rough((7, 31)))
    costs.add((1, 1), costs.rough((1, 1)))
    assert costs.rough((2, 1)) < costs.us((2, 1)) < costs.us((7, 31))
    costs.add((1, 2), math.inf)
    assert costs.us((1, 2)) == costs.rough((1, 2))


def test_fewer_steps_of_a_loop_cost_less() -> None:
    """What is outside of loops costs as much as at the instance's size, and steps their number."""
    ranges = {"b": range(4, 5), "s": range(2, 65)}
    family = Family("net", ranges, partial(recurrent, backwards=True))
    model = CostModel(family)
    assert model.stepped == (1,)
    whole = model.run_us((4, 64), (4, 64))
    assert whole == pytest.approx(model.us((4, 64)))
    costs = [model.run_us((4, 64), (4, s)) for s in (2, 16, 32, 48, 64)]
    assert costs == sorted(costs)
    steps = rough_us(family.graph((4, 64)), in_loops=True)
    half = whole - model.run_us((4, 64), (4, 32))
    assert half == pytest.approx(steps / 2, rel=0.05)
    # One instance is enough where next to nothing is outside.
    choice = SizeChoice(family, openness(family))
    assert choice.loss([(4, 64)], model).mean < 1.2
    plain = CostModel(FAMILY)
    assert plain.stepped == ()
    assert plain.run_us((8, 32), (8, 2)) == plain.us((8, 32))


def test_spread_sizes_have_equal_ratios_and_both_ends() -> None:
    for values in ([*range(1, 17)], [*range(3, 200)], [7, 8, 9]):
        for count in (2, 3, 5, 300):
            chosen = spread(values, count)
            assert {values[0], values[-1]} <= {*chosen} <= {*values}
            assert len(chosen) <= max(2, count)
            assert chosen == sorted({*chosen})


@pytest.mark.parametrize("most", [2, 3])
def test_few_instances_are_close_to_the_best_ones(facts: Openness, most: int) -> None:
    """Beside all choices of as many instances, of coarser sizes."""
    choice, costs = SizeChoice(FAMILY, facts, 1.01, most), Costs(FAMILY)
    sizes = itertools.product((1, 2, 4, 8), (2, 5, 12, 32))
    others = [at for at in sizes if at != (8, 32)]
    best = min(
        choice.loss([(8, 32), *rest], costs).largest
        for rest in itertools.combinations(others, most - 1)
    )
    assert choice.loss(choice.extended([], costs), costs).largest <= 1.25 * best
