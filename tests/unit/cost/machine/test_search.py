"""Traffic against a simulator, and the tilings that are chosen against all there are."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from cpembed.cost.machine.divisions import dealt
from cpembed.cost.machine.nest import ExecutionNest
from cpembed.cost.machine.objective import Cost, Objective, Price
from cpembed.cost.machine.refinement import Decisions
from cpembed.cost.machine.search import best_tilings
from cpembed.cost.machine.times import cycles as modelled
from cpembed.cost.machine.traffic import HeldTile, Tilings, cut, untiled
from cpembed.errors import TransformError
from cpembed.hw.machine import Hierarchy
from tests.unit.cost.machine.simulated import (
    Level,
    all_parts,
    all_tilings,
    conv,
    cut_ranges,
    cycles,
    gemm,
    image,
    machine,
    simulate,
)
from tests.unit.cost.machine.test_bounds import random_decisions


def random_nest(kind: str, rng: random.Random) -> ExecutionNest:
    if kind == "gemm":
        return gemm(rng.randint(1, 7), rng.randint(1, 7), rng.randint(1, 7))
    if kind == "image":
        steps = rng.choice((1, 1, 2, 3)), rng.choice((1, 1, 2))
        return image(*(rng.randint(1, 5) for _ in range(2)), rng.randint(1, 3), 2, *steps)
    return conv(rng.choice((2, 3)), rng.randint(2, 6), 2, rng.choice((1, 2, 3)))


def cut_as(nest: ExecutionNest, levels: list[Level], m: Hierarchy) -> Tilings:
    """One tiling; ``levels`` innermost first."""
    tilings = untiled(nest)
    for level in reversed(range(len(levels))):
        level_cut = levels[level]
        sizes = {name: np.array([float(size)]) for name, size in level_cut.tile.items()}
        tile = HeldTile(sizes, frozenset(operand.name for operand in nest.operands))
        blocks = dealt(tilings.sizes, sizes, level_cut.parts, m.fan_out(level))
        (tilings,) = cut(tilings, level, [tile], blocks, [[level_cut.order]], nest, m)
    return tilings


def random_levels(rng: random.Random, nest: ExecutionNest, m: Hierarchy) -> list[Level]:
    """Tiles of any sizes in any order, shared in any way."""
    around = {loop.name: loop.extent for loop in nest.loops}
    random_cuts: list[Level] = []
    for level in reversed(range(len(m.levels) - 1)):
        around = {name: rng.randint(1, size) for name, size in around.items()}
        order = rng.sample(list(around), len(around))
        parts = rng.choice(list(all_parts(nest, m.fan_out(level))))
        random_cuts.append(Level(around, order, parts if m.fan_out(level) > 1 else {}))
    return random_cuts[::-1]


@pytest.mark.quick(60)
@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("units", [(1, 1), (4, 1), (2, 2), (6, 3)])
@pytest.mark.parametrize("kind", ["gemm", "conv", "image"])
def test_traffic_is_that_of_a_simulated_run(kind: str, units: tuple[int, int], seed: int) -> None:
    """Traffic of the first unit, of those below its parent, and of all units is that of a run,
    where one read serves several units, and where operands pass by a memory."""
    rng = random.Random(f"{kind}{units}{seed}")
    nest = random_nest(kind, rng)
    m = machine(10**6, 10**6, units=units, multicast=rng.random() < 0.5, bypass=True)
    passing_by = rng.choice(("", "", "A", "AC", "ABC"))
    operands = (replace(o, bypassed=frozenset({"m1"})) for o in nest.operands)
    operands = (o if o.name in passing_by else replace(o, bypassed=frozenset()) for o in operands)
    nest = replace(nest, operands=tuple(operands))
    levels = random_levels(rng, nest, m)
    tilings, counted = cut_as(nest, levels, m), simulate(nest, m, levels)
    assert {name for name, _ in counted.moves} <= tilings.traffic.keys()
    for link in m.links:
        name = link.name
        if name not in tilings.traffic:
            continue
        traffic = tilings.traffic[name]
        first, fed = (
            (0,) * (len(m.levels) - 1 - memory.level) for memory in (link.memory, link.parent)
        )
        for counts, first_unit, total in (
            (counted.read, traffic.read_bytes, traffic.received),
            (counted.write, traffic.write_bytes, traffic.total_write),
        ):
            assert first_unit[0] == counts[name, first], name
            assert total[0] == counted.below(counts, name, ()), name
            assert first_unit[0] == max((c for (n, _), c in counts.items() if n == name), default=0)
        assert traffic.shared_write[0] == counted.below(counted.write, name, fed), name
        assert traffic.shared_read[0] == counted.sent(link, fed), name
        parents = {place[: len(fed)] for (n, place) in counted.moves if n == name}
        assert traffic.total_read[0] == sum(counted.sent(link, unit) for unit in parents), name
        moves = traffic.read_transfers[0] + traffic.write_transfers[0]
        assert moves == counted.moves[name, first]
    assert counted.calls[(0, 0)] == max(counted.calls.values())
    assert tilings.share[0] * nest.calls == pytest.approx(counted.calls[(0, 0)])
    assert tilings.busy[0][0] == len(counted.calls)


CASES = [
    (gemm(4, 4, 4), machine(8)),
    (gemm(5, 2, 4), machine(16)),
    (gemm(4, 1, 7), machine(8)),
    (conv(3, 3, 2, 3), machine(12)),
    (gemm(3, 3, 1), machine(6, 20, units=(4, 2))),
    (conv(1, 5, 1, 3), machine(6)),
    (gemm(5, 3, 2), machine(12, units=(4,))),
    (image(3, 3, 2, 2, 1, 1), machine(9)),
    (gemm(3, 2, 2), machine(4, 24)),
    (gemm(4, 4, 2), machine(8, units=(4,), multicast=True)),
    (gemm(3, 2, 2), machine(6, 40, units=(2, 1))),
    (image(2, 4, 1, 3, 2, 1), machine(8)),
    (gemm(3, 2, 2), machine(6, 14, bypass=True)),
    (image(3, 2, 2, 2, 1, 2), machine(9, units=(2,), multicast=True)),
    (gemm(3, 2, 2), machine(4, 16, units=(2, 1), multicast=True)),
    (conv(2, 5, 1, 2), machine(9, units=(3,))),
    (gemm(2, 2, 2), machine(6, 14, units=(2, 1), multicast=True, bypass=True)),
]


@pytest.mark.quick(6)
@pytest.mark.parametrize("nest, m", CASES)
def test_no_tiling_no_order_and_no_sharing_is_better(nest: ExecutionNest, m: Hierarchy) -> None:
    """All tile sizes in all orders of the loops at each level, shared in all ways."""
    best = best_tilings(nest, m, rows=200_000)
    assert best.exact
    names = [loop.name for loop in nest.loops]
    shares = [list(all_parts(nest, m.fan_out(level))) for level in range(len(m.levels) - 1)]
    free = [name for name, memory in m.memories.items() if memory.bypass]
    least = min(
        cycles(simulate(each, m, list(map(Level, tiles, orders, parts))), each, m)
        for passing_by in itertools.product((frozenset[str](), frozenset(free)), repeat=3)
        if free or not any(passing_by)
        for each in [_passing_by(nest, passing_by)]
        for tiles in all_tilings(each, m)
        for orders in itertools.product(itertools.permutations(names), repeat=len(tiles))
        for parts in itertools.product(*shares)
    )
    assert modelled(best.tilings, best.nest, m)[0] == pytest.approx(least)


def _passing_by(nest: ExecutionNest, bypassed: Sequence[frozenset[str]]) -> ExecutionNest:
    pairs = zip(nest.operands, bypassed, strict=True)
    return replace(nest, operands=tuple(replace(o, bypassed=names) for o, names in pairs))


@pytest.mark.parametrize("nest, m", CASES)
def test_few_rows_lose_little_and_do_not_claim_more(nest: ExecutionNest, m: Hierarchy) -> None:
    best = best_tilings(nest, m, rows=200_000)
    few = best_tilings(nest, m, rows=32)
    every, some = (modelled(result.tilings, result.nest, m)[0] for result in (best, few))
    assert every <= some <= 1.5 * every
    assert some == pytest.approx(every) or not few.exact


def test_units_share_the_parallel_loops() -> None:
    nest = gemm(8, 8, 8)
    # A fast main memory, so that computing decides.
    one, several = (machine(64, 1024, units=units) for units in ((1, 1), (4, 1)))
    fast = {"read_bytes": 1e3, "write_bytes": 1e3}
    single, four = (
        best_tilings(
            nest,
            replace(m, memories={n: replace(v, **fast) for n, v in m.memories.items()}),
        ).tilings
        for m in (one, several)
    )
    assert single.share[0] == 1
    assert four.share[0] == 0.25
    assert four.busy[0][0] == 4


def test_a_sum_is_not_shared() -> None:
    tilings = best_tilings(gemm(1, 1, 8), machine(64, 1024, units=(4, 1))).tilings
    assert tilings.share[0] == 1


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(TransformError, match=r"one execution takes 4 bytes of c, which has room"):
        best_tilings(gemm(2, 2, 2), machine(2))


def staged_bytes(nest: ExecutionNest, decisions: Decisions) -> dict[str, tuple[int, int]]:
    """Return the bytes read and written of each operand of a product, tile after tile.

    A tile of an operand is moved where its place is reached with another tile than before.
    """
    names = [loop.name for loop in nest.loops]
    read, written = dict.fromkeys("ABC", 0), dict.fromkeys("ABC", 0)
    contents: dict[str, object] = {}
    sums = set[object]()

    def run(number: int, path: list[dict[str, range]]) -> None:
        if number == len(decisions.stages):
            return
        _, operands = decisions.stages[number]
        sizes = dict(zip(names, decisions.sizes[number, :, 0].astype(int).tolist(), strict=True))
        for tile in cut_ranges(path[-1], sizes, decisions.orders[number]):
            inside = [*path, tile]
            for operand in nest.operands:
                if operand.name not in operands:
                    continue
                loops = sorted(operand.loops)
                region = tuple(tuple(ranges[name] for name in loops) for ranges in inside)
                if contents.get(operand.name) == region:
                    continue
                contents[operand.name] = region
                size = operand.element_bytes
                for name in loops:
                    size *= len(tile[name])
                if operand.is_output:
                    written[operand.name] += size
                    read[operand.name] += size if region in sums else 0
                    sums.add(region)
                else:
                    read[operand.name] += size
            run(number + 1, inside)

    run(0, [{loop.name: range(loop.extent) for loop in nest.loops}])
    return {name: (read[name], written[name]) for name in "ABC"}


@pytest.mark.parametrize("seed", range(60))
def test_operands_held_inside_each_other_move_as_in_a_run(seed: int) -> None:
    """One level in three stages of any sizes, from each of which one operand is held."""
    rng = random.Random(3000 + seed)
    nest, m = gemm(rng.randint(2, 7), rng.randint(2, 7), rng.randint(2, 7)), machine(10**6)
    decisions = random_decisions(nest, m, rng, 1)
    tilings, expected = decisions.tilings(nest, m), staged_bytes(nest, decisions)
    for name, (read, written) in expected.items():
        traffic = tilings.traffic[name.lower()]
        assert traffic.read_bytes[0] == read, name
        assert traffic.write_bytes[0] == written, name


def test_operands_at_home_on_chip_move_no_further() -> None:
    nest, hierarchy = gemm(4, 3, 5), machine(12, 40, units=(1, 1))
    root, outer = hierarchy.root.name, hierarchy.levels[1][0].name
    prices = {
        name: Price(float(memory.parent == root), float(memory.parent == root))
        for name, memory in hierarchy.memories.items()
    }
    cost = Cost(Objective.BYTES, prices)
    homes = tuple(replace(o, home=outer if o.name == "A" else "") for o in nest.operands)
    moved = best_tilings(nest, hierarchy, cost=cost)
    at_home = best_tilings(replace(nest, operands=homes), hierarchy, cost=cost)
    size = next(o for o in nest.operands if o.name == "A").element_bytes
    # The 4 x 5 elements of A no longer come from main memory, and leave room for the others.
    assert at_home.cost <= moved.cost - 4 * 5 * size
    assert at_home.tilings.traffic[outer].total_read[0] > 0
