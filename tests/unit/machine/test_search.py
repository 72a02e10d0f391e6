"""Traffic against a simulator, and the tilings that are chosen against all there are."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from cpembed.errors import TransformError
from cpembed.machine.nest import TileNest
from cpembed.machine.search import best_tilings
from cpembed.machine.times import cycles as modelled
from cpembed.machine.traffic import LevelTiles, Tilings, boundaries, cut, whole
from tests.unit.machine.simulated import (
    conv,
    cycles,
    divisors,
    gemm,
    machine,
    simulate,
    tilings,
)

NESTS = {
    "gemm": lambda rng: gemm(*(rng.randint(1, 6) for _ in range(3))),
    "conv": lambda rng: conv(rng.choice((2, 4)), rng.choice((3, 4)), 2, rng.choice((1, 3))),
}


def cut_once(given: TileNest, tiles: list[dict[str, int]], numbers: list[int], m) -> Tilings:
    """One tiling; ``tiles`` innermost first, ``numbers`` of the boundaries likewise."""
    found = whole(given)
    orders = list(boundaries(given, 1))
    for level in reversed(range(len(tiles))):
        sizes = {name: np.array([float(size)]) for name, size in tiles[level].items()}
        inner = LevelTiles.of(level, sizes, given, m)
        found = cut(found, inner, (numbers[level], orders[numbers[level]]), given, m)
    return found


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kind", NESTS)
def test_traffic_is_that_of_a_simulated_run(kind: str, seed: int) -> None:
    rng = random.Random(seed)
    given, m = NESTS[kind](rng), machine(1000, 10000)
    orders = list(boundaries(given, 1))
    outer = {loop.name: rng.choice(divisors(loop.extent)) for loop in given.loops}
    inner = {name: rng.choice(divisors(size)) for name, size in outer.items()}
    numbers = [rng.randrange(len(orders)) for _ in range(2)]
    found = cut_once(given, [inner, outer], numbers, m)
    counted = simulate(given, m, [inner, outer], [orders[number].order for number in numbers])
    for name in ("a", "b", "c", "m1"):
        traffic = found.traffic[name]
        assert traffic.read_bytes[0] == counted.read.get(name, 0), name
        assert traffic.write_bytes[0] == counted.write.get(name, 0), name


@pytest.mark.parametrize("seed", range(8))
def test_parts_of_tiles_are_counted_as_such(seed: int) -> None:
    rng = random.Random(seed)
    given, m = gemm(*(rng.randint(2, 9) for _ in range(3))), machine(1000)
    orders = list(boundaries(given, 1))
    tile = {loop.name: rng.randint(1, loop.extent) for loop in given.loops}
    for number, boundary in enumerate(orders):
        found = cut_once(given, [tile], [number], m)
        counted = simulate(given, m, [tile], [boundary.order])
        for name in "abc":
            assert found.traffic[name].read_bytes[0] == pytest.approx(counted.read.get(name, 0))
            assert found.traffic[name].write_bytes[0] == pytest.approx(counted.write.get(name, 0))


CASES = [
    (gemm(4, 4, 4), machine(8)),
    (gemm(6, 2, 4), machine(16)),
    (gemm(4, 1, 6), machine(8)),
    (conv(4, 3, 2, 3), machine(12)),
    (gemm(4, 2, 4), machine(4, 24)),
    (gemm(4, 4, 4), machine(6, 40)),
]


@pytest.mark.quick(3)
@pytest.mark.parametrize("given, m", CASES)
def test_no_tiling_and_no_order_is_better(given: TileNest, m) -> None:
    """All tilings by divisors in all orders of the loops at each level."""
    found = best_tilings(given, m, rows=200_000)
    assert found.exact
    names = [loop.name for loop in given.loops]
    least = min(
        cycles(simulate(given, m, tiles, orders), given, m)
        for tiles in tilings(given, m)
        for orders in itertools.product(itertools.permutations(names), repeat=len(tiles))
    )
    assert modelled(found.tilings, given, m)[0] <= least + 1e-6
    chosen = {name: int(size[0]) for name, size in found.tilings.sizes.items()}
    if all(chosen[loop.name] in divisors(loop.extent) for loop in given.loops):
        assert modelled(found.tilings, given, m)[0] == pytest.approx(least)


@pytest.mark.parametrize("given, m", CASES)
def test_few_rows_lose_little(given: TileNest, m) -> None:
    every = modelled(best_tilings(given, m, rows=200_000).tilings, given, m)[0]
    few = modelled(best_tilings(given, m, rows=32).tilings, given, m)[0]
    assert every <= few <= 1.5 * every


def test_units_share_the_parallel_loops() -> None:
    given = gemm(8, 8, 8)
    one = best_tilings(given, machine(64, 1024)).tilings
    four = best_tilings(given, machine(64, 1024, units=(4, 1))).tilings
    assert one.share[0] == 1
    assert four.share[0] == 0.25
    assert four.busy[0][0] == 4


def test_a_sum_is_not_shared() -> None:
    found = best_tilings(gemm(1, 1, 8), machine(64, 1024, units=(4, 1))).tilings
    assert found.share[0] == 1


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(TransformError, match=r"one execution takes 4 bytes of c, which has room"):
        best_tilings(gemm(2, 2, 2), machine(2))
