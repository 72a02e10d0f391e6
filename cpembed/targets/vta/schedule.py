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

    Attributes
    ----------
    tiles
        Size of each loop's tile; the last tile of a loop may be smaller.
    order
        All loops, outermost first, spatial ones before reductions.
    threads
        Output tiles in flight, 1 or 2, each in its part of the accumulators.
    thread_loop
        Spatial loop along which two threads compute neighbours, with interleaved reductions; None
        for consecutive output tiles.
    slots
        Regions of INP and of WGT that lie in SRAM at a time.
    reuse
        Whether a step uses a region that an earlier step loaded and that is still in SRAM.
    trim
        Whether products with zero padding are left out where that is faster.
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
    """Part of an output tile's reduction: each loop's interval, the part of the accumulators
    (``thread``), and whether it begins and ends the reduction.
    """

    tile: Tile
    thread: int
    begins: bool
    ends: bool


def check_schedule(nest: TileNest, schedule: Schedule) -> None:
    """Raise :class:`LoweringError` if a schedule does not belong to the nest or does not fit."""
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
    """Return why a schedule does not belong to the nest, or None if it does."""
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
    """Return the elements of each buffer that a schedule occupies, and those that the buffer
    has.
    """
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
    """Return the number of elements of each operand's largest region."""
    tensors = (*nest.factors, nest.acc)
    return {tensor.memory: _largest(nest, tensor, schedule) for tensor in tensors}


def _largest(nest: TileNest, tensor: TileTensor, schedule: Schedule) -> int:
    """Return the number of elements of a tensor's largest region."""
    # Equal tiles have equal regions unless an access takes digits of a loop: then all tiles of that
    # loop are compared.
    cuts = [
        loop_tiles(nest.extents[name], size) if name in tensor.digit_loops else [(0, size)]
        for name, size in schedule.tiles.items()
    ]
    return max(
        region_of(tensor, dict(zip(schedule.tiles, place, strict=True))).tiles
        for place in itertools.product(*cuts)
    )


def steps(nest: TileNest, schedule: Schedule) -> Iterator[Step]:
    """Yield all steps in the order in which they execute; a tile has the nest's order of loops."""
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
                ordered = {name: intervals[name] for name in nest.extents}
                yield Step(ordered, thread, begins=k == 0, ends=k == len(parts) - 1)
        number += len(group) if paired is None else schedule.threads


def paired_loop(nest: TileNest, schedule: Schedule) -> str | None:
    """Return the thread loop if it has several tiles; a single tile has no neighbour, and threads
    take turns as without a thread loop.
    """
    name = schedule.thread_loop
    single = name is not None and schedule.tiles[name] >= nest.extents[name]
    return None if single else name


def loop_tiles(extent: int, size: int) -> list[Interval]:
    """Cut a loop into tiles of one size; the last may be smaller."""
    return [(first, min(size, extent - first)) for first in range(0, extent, size)]


def _groups(
    spatial: list[str], cuts: Mapping[str, list[Interval]], thread_loop: str | None
) -> Iterator[list[dict[str, Interval]]]:
    """Yield the groups of output tiles with interleaved reductions: single tiles, or pairs along
    the thread loop.
    """
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
