"""Which schedule: all that are worth trying, those of smallest estimate, and the default."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from cpembed.errors import LoweringError
from cpembed.ir.computation import AxisKind
from cpembed.targets.vta.estimate import Counts, Tilings, estimate
from cpembed.targets.vta.schedule import Schedule
from cpembed.targets.vta.tail import Tail
from cpembed.targets.vta.tiles import TileNest
from cpembed.targets.vta.timing import MemorySystem

DEFAULT_MEMORY = MemorySystem()

SLOTS = (2, 4)
"""Regions of INP and of WGT in SRAM at a time, with two threads."""

MAX_COMBINATIONS = 1 << 16
"""Tile sizes tried together at most; above that, loops get fewer choices."""


def default_schedule(nest: TileNest, tail: Tail, memory: MemorySystem = DEFAULT_MEMORY) -> Schedule:
    """The schedule with the smallest estimate; see :func:`ranked_schedules`."""
    return ranked_schedules(nest, tail, 1, memory)[0][1]


def ranked_schedules(
    nest: TileNest, tail: Tail, limit: int, memory: MemorySystem = DEFAULT_MEMORY
) -> list[tuple[float, Schedule]]:
    """The legal schedules of smallest estimates, in cycles, best first; each program once.

    Raises :class:`LoweringError` where not even single tiles fit the buffers.
    """
    choices = tile_sizes(nest)
    sizes = combinations(choices)
    found: list[tuple[float, int, Schedule]] = []
    tilings = Tilings(nest, sizes)
    for form in forms(nest):
        cycles = estimate(tilings, form, tail, memory)
        best = np.argsort(cycles, kind="stable")[:limit]
        found += [(float(cycles[at]), int(at), form) for at in best if np.isfinite(cycles[at])]
    if not found:
        raise LoweringError("no schedule: single tiles exceed the buffers of the configuration")
    found.sort(key=lambda item: item[0])
    distinct: dict[object, tuple[float, Schedule]] = {}
    for cycles, at, form in found:
        schedule = with_tiles(form, sizes, at)
        distinct.setdefault(_program(nest, schedule), (cycles, schedule))
    return list(distinct.values())[:limit]


def _program(nest: TileNest, schedule: Schedule) -> object:
    """Equal for schedules of equal programs: where a loop with a single tile stands is nothing."""
    walked = tuple(n for n in schedule.order if schedule.tiles[n] < nest.extents[n])
    tiles = tuple(schedule.tiles.items())
    return walked, tiles, schedule.threads, schedule.thread_loop, schedule.slots


def forms(nest: TileNest) -> Iterator[Schedule]:
    """Schedules without their tiles: orders that keep one operand's regions while the other's
    change, with one thread or two."""
    spatial = [loop.name for loop in nest.loops if loop.kind is AxisKind.SPATIAL]
    reduction = [loop.name for loop in nest.loops if loop.kind is AxisKind.REDUCTION]
    orders = {
        (*sorted(spatial, key=lambda name: (name in nest.wgt.loops) is inside), *reduction)
        for inside in (False, True)
    }
    for order in sorted(orders):
        yield Schedule({}, order, 1, None, (1, 1))
        for loop in (None, *(n for n in spatial if nest.extents[n] > 1)):
            for slots in SLOTS:
                yield Schedule({}, order, 2, loop, (slots, slots))


def tile_sizes(nest: TileNest, most: int = MAX_COMBINATIONS) -> dict[str, list[int]]:
    """Sizes that cut each loop into equal parts, as nearly as can be; ``most`` combinations."""
    choices = {
        loop.name: sorted({-(-loop.extent // parts) for parts in range(1, loop.extent + 1)})
        for loop in nest.loops
    }
    while math.prod(map(len, choices.values())) > most:
        longest = max(choices, key=lambda name: len(choices[name]))
        # Every other size, always with a single iteration and the whole loop.
        first, *others = choices[longest]
        choices[longest] = [first, *others[::-2][::-1]]
    return choices


def combinations(choices: dict[str, list[int]]) -> dict[str, Counts]:
    """Every choice of a size for each loop, as arrays."""
    grids = np.meshgrid(*(np.array(c, np.int64) for c in choices.values()), indexing="ij")
    return {name: grid.reshape(-1) for name, grid in zip(choices, grids, strict=True)}


def with_tiles(form: Schedule, sizes: dict[str, Counts], at: int) -> Schedule:
    """The schedule of a form with one of the choices of sizes."""
    return replace(form, tiles={name: int(size[at]) for name, size in sizes.items()})
