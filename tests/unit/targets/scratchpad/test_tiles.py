"""Tiles, parts of the mesh and granules: every point once, and nothing of padding in a result."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import islpy as isl
import numpy as np
import pytest

from cpembed.driver.solve import solve
from cpembed.errors import LoweringError
from cpembed.ir.parser import parse_computation
from cpembed.targets.scratchpad.boxes import Axis, lower
from cpembed.targets.scratchpad.executor import program
from cpembed.targets.scratchpad.schedule import Plan
from cpembed.transform.proof.lemmas import covers_once
from tests.unit.targets.scratchpad.counting import moved_boxes, tiles
from tests.unit.targets.scratchpad.executor.running import needs_compiler
from tests.unit.targets.scratchpad.plans import (
    TARGETS,
    machine,
    plan_of,
    random_plans,
    small_inputs,
    spec,
)


def boxes_of_tiles(plan: Plan) -> list[isl.Set]:
    """Of each tile, the points of the iteration domain, all axes together."""
    axes = plan.product.axes
    names = ", ".join(f"i{n}" for n in range(len(axes)))
    found: list[isl.Set] = []
    for tile in tiles(plan):
        bounds = " and ".join(
            f"{tile.first[name]} <= i{n} < {min(axis.extent, tile.first[name] + plan.tile[name])}"
            for n, (name, axis) in enumerate(axes.items())
        )
        found.append(isl.Set(f"{{ [{names}] : {bounds} }}"))
    return found


@pytest.mark.parametrize("target", TARGETS)
def test_tiles_partition_the_iteration_domain(target: str) -> None:
    checked = 0
    for plan in (plan for seed in range(600, 606) for plan in random_plans(seed, target)):
        boxes = boxes_of_tiles(plan)
        if len(boxes) > 150:
            continue
        checked += 1
        whole = isl.Set("{ [] }")
        for axis in plan.product.axes.values():
            whole = whole.flat_product(isl.Set(f"{{ [i] : 0 <= i < {axis.extent} }}"))
        union = boxes[0]
        for box in boxes[1:]:
            assert union.is_disjoint(box)
            union = union.union(box)
        assert union.is_equal(whole)
    assert checked > 1


@pytest.mark.parametrize("target", TARGETS)
def test_elements_store_every_result_once(target: str) -> None:
    """What all PEs store of all tiles, granules cut off at the axes, is the output, once."""
    for plan in (plan for seed in range(610, 613) for plan in random_plans(seed, target)):
        output = plan.product.output
        stored: Counter[tuple[int, ...]] = Counter()
        for _, points in moved_boxes(plan, 2):
            ranges = [
                points[index.iterators[0]] if index.iterators else range(1)
                for index in output.index
            ]
            stored.update(
                place
                for place in itertools.product(*ranges)
                if all(p < size for p, size in zip(place, output.shape, strict=True))
            )
        assert set(stored.values()) == {1}
        assert len(stored) == int(np.prod(output.shape))


def covered(extent: int, tile: int, granule: int, parts: int) -> bool:
    """By definition: points of tiles, parts and places, counted."""
    axis = Axis("i", extent, False, "x", granule, parts)
    points: Counter[int] = Counter()
    for first in range(0, extent, tile):
        held = axis.points_per_pe(min(tile, extent - first))
        points.update(first + part * held + at for part in range(parts) for at in range(held))
    room = -(-extent // granule) * granule
    once = all(times == 1 for times in points.values())
    return once and set(range(extent)) <= set(points) <= set(range(room))


def test_the_proof_agrees_with_counting() -> None:
    rng, answers = random.Random(1), Counter[bool]()
    for _ in range(300):
        parts = rng.choice((1, 2, 4))
        granule = parts * rng.choice((1, 2, 3))
        extent, tile = rng.randint(1, 40), rng.choice((granule, 2 * granule, rng.randint(1, 40)))
        expected = covered(extent, tile, granule, parts)
        assert covers_once(extent, tile, granule, parts) == expected
        answers[expected] += 1
    assert min(answers.values()) > 20


@needs_compiler
@pytest.mark.parametrize(
    "target, words, lanes, tile",
    [
        ("sw26010", "gemm m=33 n=9 k=9", {"n": "x", "m": "y", "k": "z"}, {}),
        ("gemmini_16x16", "gemm m=17 n=33 k=18", {"m": "x", "n": "y", "k": "z"}, {"n": 48}),
        ("nvdla_small", "gemm m=3 n=9 k=11 trans_b=1", {"n": "y", "k": "z"}, {"m": 2}),
    ],
)
def test_padding_reaches_no_result(
    target: str, words: str, lanes: dict[str, str], tile: dict[str, int]
) -> None:
    """One point of every axis is in a granule of its own, which is filled up. With infinities and
    the largest integers in all inputs, a product with one that is beyond would be seen."""
    plan = plan_of(target, words, lanes, tile)
    given = plan.product.program.unfused
    inputs = {
        name: np.full_like(array, np.inf if array.dtype.kind == "f" else -128)
        for name, array in small_inputs(given, 1).items()
    }
    found = program(plan).run(inputs, 1)
    depth = given.macs // found.size
    expected = np.inf if found.dtype.kind == "f" else depth * 128 * 128
    np.testing.assert_array_equal(found, np.full(found.shape, expected, found.dtype))


def diagonals(taps: int) -> int:
    """How many embeddings become products of boxes. Beyond the last tap both factors have elements
    of other points."""
    given = parse_computation(
        "O[a,b] += A[a+x] * B[b+x]",
        {"a": 32, "b": 32, "x": taps},
        name="diagonals",
        dtypes=dict.fromkeys("ABO", "float32"),
    )
    found = 0
    for each in solve(given, spec("sw26010"), top=10).embeddings:
        try:
            lower(each.candidate.program, machine("sw26010"))
        except LoweringError:
            continue
        found += 1
    return found


def test_a_reduction_that_no_factor_ends_with_is_not_filled_up() -> None:
    assert diagonals(8) > 0
    assert diagonals(5) == 0
