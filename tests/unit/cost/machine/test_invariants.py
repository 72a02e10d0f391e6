"""Invariants of every estimate, on random machines and programs: what has to be moved is moved,
more work never takes less time, and more of a machine never takes more."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from cpembed.cost.machine.nest import ExecutionNest
from cpembed.cost.machine.search import best_tilings
from cpembed.cost.machine.times import compute_time, cycles, memory_times
from cpembed.hw.machine import ComputeUnit, Hierarchy, Overlapping, TransferUnit
from tests.unit.cost.machine.simulated import conv, gemm, image, machine

ROWS = 512
"""Limit of the work of a search."""


def random_machine(rng: random.Random, room: int) -> Hierarchy:
    deep = rng.random() < 0.3
    capacities = [rng.randint(12, room), *([rng.randint(3 * room, 6 * room)] if deep else [])]
    units = rng.choice([(1, 1), (2, 1), (3, 1), (4, 2)] if deep else [(1,), (2,), (3,)])
    hierarchy = machine(*capacities, units=units, overlap=rng.choice(list(Overlapping)))
    memories = dict(hierarchy.memories)
    for name, memory in memories.items():
        outer = memory.parent is None
        memories[name] = replace(
            memory,
            read_bytes=rng.choice((0.5, 1.0, 3.0)) if memory.level else memory.read_bytes,
            write_bytes=rng.choice((0.5, 1.0, 3.0)) if memory.level else memory.write_bytes,
            half_duplex=rng.random() < 0.3,
            latency_cycles=rng.choice((0.0, 5.0)) if outer else 0.0,
            granule_bytes=1 if outer else rng.choice((1, 1, 3)),
            multicast=memory.level > 0 and rng.random() < 0.4,
            bypass=memory.level > 0 and not outer and rng.random() < 0.4,
            transfer_unit=rng.choice((TransferUnit.REGION, TransferUnit.TILE))
            if not memory.level
            else TransferUnit.REGION,
        )
    compute = ComputeUnit(rng.choice((0.5, 1.0, 4.0)), rng.choice((0.0, 1.0, 6.0)))
    return replace(hierarchy, memories=memories, compute=compute)


def random_extents(rng: random.Random, hierarchy: Hierarchy) -> tuple[str, list[int]]:
    """Smaller ones for two levels, of which there are many more tilings."""
    kind = rng.choice(("gemm", "conv", "image"))
    deep = len(hierarchy.levels) > 2
    most = {"gemm": (3, 2, 2) if deep else (5, 5, 5), "conv": (2, 3, 1, 2), "image": (3, 2, 2, 1)}
    extents = [rng.randint(1, size if deep else size + 1) for size in most[kind]]
    return kind, [*extents, *([rng.randint(1, 2) for _ in range(2)] if kind == "image" else [])]


def random_product(kind: str, extents: list[int]) -> ExecutionNest:
    return {"gemm": gemm, "conv": conv, "image": image}[kind](*extents)


def least(nest: ExecutionNest, hierarchy: Hierarchy) -> float:
    best = best_tilings(nest, hierarchy, ROWS)
    assert best.bound <= best.cost
    return float(cycles(best.tilings, best.nest, hierarchy)[0])


def changed(hierarchy: Hierarchy, rng: random.Random) -> Hierarchy:
    """More of something: units, capacity, bandwidth."""
    change = rng.choice(("units", "capacity", "bandwidth"))
    memories = dict(hierarchy.memories)
    if change == "units":
        level = rng.randrange(len(hierarchy.levels) - 1)
        for name, memory in memories.items():
            if memory.level <= level:
                memories[name] = replace(memory, units=2 * memory.units)
        return replace(hierarchy, memories=memories)
    outer = change != "capacity"
    name = rng.choice([n for n, m in memories.items() if (m.parent is None) == outer])
    memory = memories[name]
    if change == "capacity":
        more = replace(memory, capacity_bytes=(memory.capacity_bytes or 0) + rng.randint(1, 9))
    else:
        more = replace(
            memory,
            read_bytes=memory.read_bytes * rng.choice((1, 1.5)),
            write_bytes=memory.write_bytes * rng.choice((1, 1.5, 2)),
        )
    return replace(hierarchy, memories={**memories, name: more})


def seeds(quick: int, slow: int) -> list[object]:
    every = [pytest.param(n, marks=pytest.mark.slow) for n in range(quick, slow)]
    return [*range(quick), *every]


@pytest.mark.parametrize("seed", seeds(12, 300))
def test_what_has_to_be_moved_is_moved(seed: int) -> None:
    """Each input is read once at least and the output written, at every level; of the model's own
    choice, many tilings of which leave units idle or parts of tiles."""
    rng = random.Random(seed)
    hierarchy = random_machine(rng, 40)
    nest = random_product(*random_extents(rng, hierarchy))
    for rows in (ROWS, 16):
        best = best_tilings(nest, hierarchy, rows)
        tilings, executed = best.tilings, best.nest
        computing = compute_time(tilings, executed, hierarchy).longest
        full = {loop.name: np.full(1, float(loop.extent)) for loop in nest.loops} | nest.fixed
        for time in memory_times(tilings, executed, hierarchy, computing):
            passing = [o for o in executed.operands if time.memory not in o.bypassed]
            sizes = {o: float(o.elements(full)[0]) * o.element_bytes for o in passing}
            assert time.read_bytes[0] >= sum(sizes[o] for o in passing if not o.is_output)
            assert time.written_bytes[0] >= sum(sizes[o] for o in passing if o.is_output)
        share = float(tilings.share[0])
        assert 1 / hierarchy.levels[0][0].units - 1e-9 <= share <= 1
        busy = tilings.busy[0][0]
        assert busy <= hierarchy.levels[0][0].units
        assert share * busy >= 1 - 1e-9


@pytest.mark.parametrize("seed", seeds(12, 300))
def test_more_work_never_takes_less_time(seed: int) -> None:
    rng = random.Random(seed)
    hierarchy = random_machine(rng, 30)
    kind, extents = random_extents(rng, hierarchy)
    more = list(extents)
    more[rng.randrange(4 if kind == "image" else len(more))] += 1
    assert (
        least(random_product(kind, extents), hierarchy)
        <= least(random_product(kind, more), hierarchy) + 1e-6
    )


@pytest.mark.parametrize("seed", seeds(12, 300))
def test_more_of_a_machine_never_takes_more_time(seed: int) -> None:
    rng = random.Random(seed)
    hierarchy = random_machine(rng, 30)
    nest = random_product(*random_extents(rng, hierarchy))
    assert math.isfinite(least(nest, hierarchy))
    assert least(nest, changed(hierarchy, rng)) <= least(nest, hierarchy) + 1e-6
