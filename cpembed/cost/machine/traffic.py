"""Tilings of a nest for a hierarchy of memories, many at a time, and the bytes that they move.

A tiling is decided from main memory inwards. At each boundary between two levels, the tile of the
outer one is cut into tiles of the inner one: loops over these, in some order, some of them shared
by the units of the inner level. A level may be cut in several stages, each inside the one before:
an operand is held from one of them on, so that one can stay while slices of another stream by.
Transfers are counted tile by tile (:mod:`cpembed.cost.machine.regions`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np
from numpy.typing import NDArray

from cpembed.cost.machine.nest import ExecutionNest, Floats
from cpembed.cost.machine.passes import Integers, Stage
from cpembed.cost.machine.regions import Regions, Traffic
from cpembed.hw.machine import Hierarchy, Overlapping

_PERMUTED = 3
"""Maximum number of sets of loops that leave an operand in place of which all orders are compared;
of more, each is compared as the innermost."""


@dataclass(frozen=True)
class Tilings:
    """Tilings from main memory down to some level, one a row.

    ``sizes`` are the tiles of that level, in iterations by loop, and ``stages`` the cuts so far,
    the outermost first. ``share`` is the fraction of all executions that the first unit does,
    ``waits`` the number of these that follow each other because they add to the same outputs, and
    ``busy`` the number of units of each level that have work, the innermost first. ``room`` are the
    iterations of each loop through which a memory farther in can leave an operand in place: those
    of the tile in which the operand is held. ``traffic`` is that of each link between memories, by
    its name; ``first`` that of the first tiles, for memories that are filled while another tile is
    computed.
    """

    sizes: Mapping[str, Floats]
    stages: tuple[Stage, ...]
    share: Floats
    busy: tuple[Floats, ...]
    waits: Floats
    room: Mapping[str, Floats]
    traffic: Mapping[str, Traffic] = field(default_factory=dict[str, Traffic])
    first: Mapping[str, Traffic] = field(default_factory=dict[str, Traffic])

    @property
    def rows(self) -> int:
        return len(self.share)

    def select(self, rows: Sequence[int] | Integers) -> Tilings:
        """Return some of the rows, which may be repeated."""

        def pick(values: Sequence[Floats]) -> Floats:
            (column,) = values
            return column[rows]

        return _combined([self], pick)


def joined(tilings: Sequence[Tilings]) -> Tilings:
    """Return the rows of all."""
    return _combined(tilings, np.concatenate)


def _combined(
    tilings: Sequence[Tilings], function: Callable[[Sequence[Floats]], Floats]
) -> Tilings:
    """Apply ``function`` to the arrays that have the same place in each."""

    def named(mappings: Sequence[Mapping[str, Floats]]) -> dict[str, Floats]:
        return {name: function([m[name] for m in mappings]) for name in mappings[0]}

    def stage(number: int) -> Stage:
        every = [t.stages[number] for t in tilings]
        return Stage(
            every[0].level,
            named([s.sizes for s in every]),
            named([s.parts for s in every]),
            named([s.ranks for s in every]),
            every[0].operands,
        )

    def traffic(mappings: Sequence[Mapping[str, Traffic]]) -> dict[str, Traffic]:
        columns = [f.name for f in fields(Traffic)]
        return {
            name: Traffic(*(function([getattr(m[name], c) for m in mappings]) for c in columns))
            for name in mappings[0]
        }

    first = tilings[0]
    return Tilings(
        sizes=named([t.sizes for t in tilings]),
        stages=tuple(stage(number) for number in range(len(first.stages))),
        share=function([t.share for t in tilings]),
        busy=tuple(function([t.busy[n] for t in tilings]) for n in range(len(first.busy))),
        waits=function([t.waits for t in tilings]),
        room=named([t.room for t in tilings]),
        traffic=traffic([t.traffic for t in tilings]),
        first=traffic([t.first for t in tilings]),
    )


@dataclass(frozen=True)
class HeldTile:
    """Tile sizes of a stage, a row for each tiling, and the operands that a level holds from it."""

    sizes: Mapping[str, Floats]
    operands: frozenset[str]


def untiled(nest: ExecutionNest) -> Tilings:
    """Return the tiling of main memory, which holds everything."""
    ones = np.ones(1)
    sizes = {loop.name: ones * loop.extent for loop in nest.loops}
    return Tilings(sizes, stages=(), share=ones, busy=(ones,), waits=ones, room=sizes)


def orders(nest: ExecutionNest) -> list[tuple[str, ...]]:
    """Return orders of loops, innermost first; one is optimal unless there are many operands."""
    # Only the sets of loops that leave an operand in place tell orders apart.
    names = [loop.name for loop in nest.loops]
    staying = dict.fromkeys(frozenset(names) - operand.loops for operand in nest.operands)
    sets = [loops for loops in staying if loops]
    # Orders in which each operand stays in place through as many loops are equivalent.
    if len(sets) <= _PERMUTED:
        priorities = list(itertools.permutations(sets))
    else:
        priorities = [(first, *(s for s in sets if s != first)) for first in sets]
    different = dict.fromkeys(
        tuple(sorted(names, key=lambda name: tuple(name not in loops for loops in priority)))
        for priority in priorities
    )
    return list(different)


def cut(
    outer: Tilings,
    level: int,
    tiles: Sequence[HeldTile],
    parts: Mapping[str, Floats],
    loop_orders: Sequence[Sequence[Sequence[str]]],
    nest: ExecutionNest,
    machine: Hierarchy,
    guessed: Mapping[str, NDArray[np.bool_]] | None = None,
) -> Iterator[Tilings]:
    """Yield the tilings with one more level, for each order of the loops.

    Parameters
    ----------
    outer : Tilings
        Tilings down to the level outside.
    level : int
        Level that is cut, 0 for the innermost.
    tiles : sequence of HeldTile
        Tiles of the level's stages, the outermost first; all operands are held by one of them.
    parts : mapping of str to array
        Number of blocks into which the tiles of each loop in the first stage are dealt to units.
    loop_orders : sequence of sequence of sequence of str
        For each result the orders of the loops over tiles of each stage, innermost loops first.
    nest : ExecutionNest
        Nest that is tiled.
    machine : Hierarchy
        Machine with its memories.
    guessed : mapping of str to array, optional
        Memories farther in whose traffic is guessed: what passes by the level is loaded with its
        tiles, and again in each iteration of the rows that are true.
    """
    rows = outer.rows
    stages = [
        Stage(level, tile.sizes, {} if number else parts, {}, tile.operands)
        for number, tile in enumerate(tiles)
    ]
    # Sizes and divisions do not depend on the order of the loops: regions serve all orders.
    memories = [*machine.levels[level], *(machine.memories[name] for name in guessed or ())]
    regions = Regions((*outer.stages, *stages), memories, rows, nest, machine)
    busy, waits, room = regions.busy, regions.waits, _room(outer, tiles, nest)
    first = {
        name: regions.first(link)
        for name, link in regions.links.items()
        # Only a double-buffered memory waits for its first tile and then no more.
        if link.memory.effective_overlap is Overlapping.DOUBLE_BUFFER
    }
    around = [outer.sizes, *(tile.sizes for tile in tiles)]
    for stage_orders in loop_orders:
        ranks = [
            _ranks(order, *pair, rows)
            for order, pair in zip(stage_orders, itertools.pairwise(around), strict=True)
        ]
        history = [*(s.ranks for s in outer.stages), *ranks]
        moved = {
            name: regions.moved(link, history, (guessed or {}).get(link.memory.name))
            for name, link in regions.links.items()
        }
        ordered = [replace(s, ranks=rank) for s, rank in zip(stages, ranks, strict=True)]
        yield Tilings(
            sizes=tiles[-1].sizes,
            stages=(*outer.stages, *ordered),
            share=regions.share[0],
            busy=(busy, *outer.busy),
            waits=waits,
            room=room,
            traffic={**outer.traffic, **moved},
            first={**outer.first, **first},
        )


def _room(outer: Tilings, tiles: Sequence[HeldTile], nest: ExecutionNest) -> dict[str, Floats]:
    """Return the iterations through which memories farther in can leave operands in place."""
    room = {name: np.array(sizes) for name, sizes in tiles[-1].sizes.items()}
    for operand in nest.operands:
        resident = next((tile.sizes for tile in tiles if operand.name in tile.operands), None)
        stays = np.ones(outer.rows, bool)
        if resident is not None:
            # An operand that is cut here is replaced in the loops around.
            for name in operand.loops:
                stays = stays & (resident[name] == outer.sizes[name])
        for name in room.keys() - operand.loops:
            inside = outer.room[name] if resident is None else resident[name]
            most = np.where(stays, outer.room[name], inside)
            room[name] = np.maximum(room[name], most)
    return room


def _ranks(
    order: Sequence[str], outer: Mapping[str, Floats], inner: Mapping[str, Floats], rows: int
) -> dict[str, Floats]:
    """Return the positions of loops among those of several tiles, 0 for the others."""
    ranks, place = dict[str, Floats](), np.zeros(rows)
    for name in order:
        several = outer[name] > inner[name]
        ranks[name] = np.where(several, place, 0.0)
        place = place + several
    return ranks
