"""Executions from tables equal what a search for each shape finds."""

from __future__ import annotations

import math
import random
from pathlib import Path

import numpy as np
import pytest

from cpembed.driver.named import workload
from cpembed.embedding.commute import Pairing
from cpembed.embedding.constraint_set import ConstraintSet, load_constraint_set
from cpembed.embedding.domains import allowed_digits
from cpembed.exploration.shapes.executions import layer_executions
from cpembed.exploration.shapes.feeds import FeedTables
from cpembed.exploration.shapes.shape import Scope, Shape, instruction_of, shapes_within, template
from cpembed.ir.computation import Computation
from tests.random_workloads import layer
from tests.unit.exploration.shapes.layers import random_shape, small_layer, solved

MACS = 64
SETS = ("strict", "in_place_padded", "relaxed", "complete")
OTHERS = ("in_place", "strict_padded", "fused", "flattened", "boxes", "cut_boxes")


def read(found: Computation, constraints: str | ConstraintSet, shape: Shape) -> float:
    """What the tables say of a shape."""
    chosen = load_constraint_set(constraints) if isinstance(constraints, str) else constraints
    scope = Scope(MACS)
    tables = layer_executions(found, chosen, scope, template())
    assert tables.obstacle is None
    (place,) = np.flatnonzero((scope.shapes == list(shape.extents.values())).all(axis=1))
    return float(tables.executions[place])


def compare(constraints: str, seed: int, pairs: int, largest: int = MACS) -> None:
    rng = random.Random(seed)
    fitting = 0
    for _ in range(pairs):
        found, shape = small_layer(rng), random_shape(rng, largest)
        least = solved(found, shape, constraints)
        assert read(found, constraints, shape) == least, (str(found), found.extents, shape)
        fitting += math.isfinite(least)
    # Both answers are there: a comparison of nothing but failures would say little.
    assert fitting > pairs / 10


@pytest.mark.slow
@pytest.mark.parametrize("constraints", SETS)
def test_equal_what_solve_finds(constraints: str) -> None:
    compare(constraints, seed=1, pairs=60, largest=24)


@pytest.mark.quick(2)
@pytest.mark.parametrize("constraints", OTHERS)
def test_equal_what_solve_finds_under_other_sets(constraints: str) -> None:
    compare(constraints, seed=2, pairs=8, largest=24)


@pytest.mark.slow
@pytest.mark.parametrize("constraints", [*SETS, *OTHERS])
def test_many_equal_what_solve_finds(constraints: str) -> None:
    compare(constraints, seed=3, pairs=220)


@pytest.mark.slow
@pytest.mark.parametrize("constraints", SETS)
def test_larger_layers_equal_what_solve_finds(constraints: str) -> None:
    rng = random.Random(4)
    for _ in range(60):
        found, shape = workload(layer(rng), template()), random_shape(rng, MACS)
        least = solved(found, shape, constraints)
        assert read(found, constraints, shape) == least, (str(found), found.extents, shape)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "text",
    [
        'extends = "relaxed"\n[padding]\naxes = "all"\nbelow = 5',
        'extends = "complete"\n[padding]\naxes = "all"\ngrowth = 1.25',
        'extends = "relaxed"\n[digits]\nper_axis = 2\n[padding]\naxes = ["q", "k", "c"]',
        'extends = "flattened"\n[flatten]\nmax_axes = 2\nplain = true',
    ],
)
def test_equal_under_sets_of_a_user(text: str, tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text(text)
    rng = random.Random(5)
    for _ in range(12):
        found, shape = small_layer(rng), random_shape(rng, 24)
        assert read(found, str(file), shape) == solved(found, shape, str(file))


@pytest.mark.parametrize("constraints", ["strict", "in_place_padded", "complete"])
def test_counts_are_those_that_the_engine_allows(constraints: str) -> None:
    """A feed has a count where the engine has a digit of stride 1."""
    chosen = load_constraint_set(constraints).removing("extents")
    found = workload("conv2d n=1 c=6 h=7 w=9 k=10 r=3 s=2 stride=1", template())
    shape = Shape(6, 12, 8)
    problems = Pairing(found, instruction_of(shape, template())).problems(chosen.commutes)
    assert isinstance(problems, tuple)
    first = problems[0]
    digits = {
        (o.instruction_axis, frozenset(o.members), o.digit.count)
        for o in allowed_digits(first, chosen)
        if o.digit.stride == 1
    }
    listed = {
        (feed.axis, feed.members, count)
        for feed in FeedTables(chosen, 12).feeds(first).feeds
        for count in range(2, shape.extents[feed.axis] + 1)
        if shape.extents[feed.axis] % count == 0 and np.isfinite(feed.executions[count])
    }
    assert listed == digits


def test_without_padding_a_shape_fits_where_its_extents_divide() -> None:
    """And then no execution is lost; where they do not, the factors may be exchanged."""
    found = workload("gemm m=6 n=4 k=9", template())
    tables = layer_executions(found, load_constraint_set("strict"), Scope(36), template())
    divided = {False: 0, True: 0}
    for n, (x, y, z) in enumerate(Scope(36).shapes.tolist()):
        own, other = ((a % x, b % y, 9 % z) == (0, 0, 0) for a, b in ((6, 4), (4, 6)))
        executions = 6 * 4 * 9 / (x * y * z) if own or other else math.inf
        assert tables.executions[n] == executions
        assert tables.commuted[n] == (other and not own)
        divided[own] += 1
    assert all(divided.values())


def test_a_window_excludes_the_axis_that_it_meets() -> None:
    """In place, rows of the image may feed x or rows of the filter z, never both: the tables of the
    two axes are no product."""
    found = workload("conv2d n=1 c=1 h=6 w=1 k=1 r=3 s=1", template())
    for shape in (Shape(4, 1, 1), Shape(1, 1, 3), Shape(4, 1, 3), Shape(2, 1, 3)):
        assert read(found, "in_place_padded", shape) == solved(found, shape, "in_place_padded")
    alone = (
        read(found, "in_place_padded", Shape(4, 1, 1)),
        read(found, "in_place_padded", Shape(1, 1, 3)),
    )
    assert alone == (3, 4)
    assert read(found, "in_place_padded", Shape(4, 1, 3)) == 3


def test_shapes_are_all_triples_within_the_budget() -> None:
    for macs, powers, smallest in ((1, False, 1), (12, False, 1), (64, True, 1), (64, False, 3)):
        sizes = [2**k for k in range(7)] if powers else list(range(1, macs + 1))
        expected = [
            [x, y, z]
            for x in sizes
            for y in sizes
            for z in sizes
            if x * y * z <= macs and min(x, y, z) >= smallest
        ]
        found = shapes_within(macs, powers=powers, smallest=smallest)
        assert found.tolist() == expected


def test_what_cannot_be_fed_has_no_executions() -> None:
    found = workload("depthwise n=1 c=4 h=6 w=6 r=3 s=3", template())
    assert math.isinf(read(found, "relaxed", Shape(2, 2, 1)))
    assert math.isfinite(read(found, "relaxed", Shape(2, 1, 3)))
    largest = workload('"O[m,n] max= A[m,k] * B[k,n]" m=4 n=4 k=4'.replace('"', ""), template())
    tables = layer_executions(largest, load_constraint_set("relaxed"), Scope(8), template())
    assert tables.reason is not None
    assert "max" in tables.reason
