"""Schedules: how a tile nest is cut into pieces that fit VTA's buffers, and in which order."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cpembed.errors import LoweringError
from cpembed.ir.computation import AxisKind
from cpembed.stores import Count
from cpembed.targets.vta.isa import Memory
from cpembed.targets.vta.regions import Interval, Tile, region_of
from cpembed.targets.vta.tiles import TileNest, TileTensor


@dataclass(frozen=True)
class Schedule:
    """Knobs of the lowering.

    ``tiles`` has the size of each loop's tile (the last one of a loop may be smaller); ``order``
    lists all loops outermost first, spatial ones before reductions. With two ``threads`` two
    output tiles are in flight, each in its half of the accumulators: consecutive ones, or where
    ``thread_loop`` names a spatial loop, neighbours along it whose reductions are interleaved.
    ``slots`` says how many regions of INP and of WGT lie in SRAM at a time, ``reuse`` whether a
    step finds there what an earlier one has loaded, and ``trim`` whether products with zero padding
    are left out where that is faster.
    """

    tiles: Mapping[str, Count]
    order: tuple[str, ...]
    threads: Count = 2
    thread_loop: str | None = None
    slots: tuple[Count, Count] = (2, 2)
    reuse: bool = True
    trim: bool = True


@dataclass(frozen=True, slots=True)
class Step:
    """A part of an output tile's reduction: each loop's interval, the half of the accumulators
    (``thread``), and whether it begins and ends the reduction."""

    tile: Tile
    thread: int
    begins: bool
    ends: bool


def check_schedule(nest: TileNest, schedule: Schedule) -> None:
    """Raises :class:`LoweringError` where the schedule is not one of the nest or does not fit."""
    problem = _mismatch(nest, schedule)
    if problem is not None:
        raise LoweringError(f"schedule: {problem}")
    for memory, (needed, available) in occupancy(nest, schedule).items():
        if needed > available:
            raise LoweringError(
                f"schedule: tiles take {needed} elements of {memory.name}, which has {available}: "
                "make them smaller"
            )


def _mismatch(nest: TileNest, schedule: Schedule) -> str | None:
    names = {loop.name for loop in nest.loops}
    kinds = {loop.name: loop.kind for loop in nest.loops}
    if set(schedule.order) != names or len(schedule.order) != len(names):
        return f"order {schedule.order} is no order of the loops {tuple(nest.extents)}"
    spatial = [kinds[name] is AxisKind.SPATIAL for name in schedule.order]
    if spatial != sorted(spatial, reverse=True):
        return "reduction loops stand inside the spatial ones"
    for name, extent in nest.extents.items():
        if not 1 <= schedule.tiles.get(name, 0) <= extent:
            return f"loop {name} of extent {extent} has the tile {schedule.tiles.get(name)}"
    if schedule.threads not in (1, 2):
        return f"{schedule.threads} threads: 1 or 2"
    if schedule.thread_loop is not None and (
        schedule.threads == 1 or kinds.get(schedule.thread_loop) is not AxisKind.SPATIAL
    ):
        return (
            f"two threads over a spatial loop, not {schedule.threads} over {schedule.thread_loop}"
        )
    if min(schedule.slots) < 1:
        return f"slots {schedule.slots}: 1 or more"
    return None


def occupancy(nest: TileNest, schedule: Schedule) -> dict[Memory, tuple[int, int]]:
    """Elements that a schedule takes of each buffer, and those that the buffer has."""
    largest = largest_regions(nest, schedule)
    acc = schedule.threads * largest[Memory.ACC]
    if nest.bias is not None:
        acc += _largest(nest, nest.bias, schedule)
    inp, wgt = (
        count * largest[tensor.memory]
        for tensor, count in zip(nest.factors, schedule.slots, strict=True)
    )
    needed = {Memory.INP: inp, Memory.WGT: wgt, Memory.ACC: acc}
    return {memory: (count, nest.config.elements(memory)) for memory, count in needed.items()}


def largest_regions(nest: TileNest, schedule: Schedule) -> dict[Memory, int]:
    """Elements of the largest region of each operand."""
    tensors = (*nest.factors, nest.acc)
    return {tensor.memory: _largest(nest, tensor, schedule) for tensor in tensors}


def _largest(nest: TileNest, tensor: TileTensor, schedule: Schedule) -> int:
    """Regions of equal tiles are equal, unless an access has digits of a loop: then every tile of
    that loop is looked at."""
    cuts = [
        loop_tiles(nest.extents[name], size) if name in tensor.digit_loops else [(0, size)]
        for name, size in schedule.tiles.items()
    ]
    return max(
        region_of(tensor, dict(zip(schedule.tiles, place, strict=True))).tiles
        for place in itertools.product(*cuts)
    )


def steps(nest: TileNest, schedule: Schedule) -> Iterator[Step]:
    """All steps in the order in which they execute; a tile has its loops in the nest's order."""
    kinds = {loop.name: loop.kind for loop in nest.loops}
    cuts = {name: loop_tiles(nest.extents[name], schedule.tiles[name]) for name in schedule.order}
    spatial = [name for name in schedule.order if kinds[name] is AxisKind.SPATIAL]
    reduction = [name for name in schedule.order if kinds[name] is AxisKind.REDUCTION]
    parts = [
        dict(zip(reduction, part, strict=True))
        for part in itertools.product(*(cuts[name] for name in reduction))
    ]
    number = 0
    paired = paired_loop(nest, schedule)
    for group in _groups(spatial, cuts, paired):
        for k, part in enumerate(parts):
            for member, tile in enumerate(group):
                thread = (number + member) % schedule.threads
                intervals = tile | part
                whole = {name: intervals[name] for name in nest.extents}
                yield Step(whole, thread, k == 0, k == len(parts) - 1)
        number += len(group) if paired is None else schedule.threads


def paired_loop(nest: TileNest, schedule: Schedule) -> str | None:
    """The thread loop where it has neighbours; a single tile along it pairs nothing, and the
    threads take turns as without one."""
    name = schedule.thread_loop
    single = name is not None and schedule.tiles[name] >= nest.extents[name]
    return None if single else name


def loop_tiles(extent: int, size: int) -> list[Interval]:
    """A loop cut into tiles of one size; the last may be smaller."""
    return [(first, min(size, extent - first)) for first in range(0, extent, size)]


def _groups(
    spatial: list[str], cuts: Mapping[str, list[Interval]], thread_loop: str | None
) -> Iterator[list[dict[str, Interval]]]:
    """Output tiles that are computed together: each alone, or pairs along the thread loop."""
    choices: list[list[tuple[Interval, ...]]] = []
    for name in spatial:
        size = 2 if name == thread_loop else 1
        choices.append([tuple(cuts[name][k : k + size]) for k in range(0, len(cuts[name]), size)])
    for place in itertools.product(*choices):
        width = max(map(len, place), default=1)
        yield [
            {name: at[min(t, len(at) - 1)] for name, at in zip(spatial, place, strict=True)}
            for t in range(width)
        ]
