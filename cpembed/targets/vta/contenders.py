"""The software that a layer has on VTAs that differ in their buffers only.

A program does not depend on the sizes of buffers, it fits them or not. So embeddings and schedules
are looked at once for all sizes: kept is whatever is among the ``keep`` best by estimate on some
of these machines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

from cpembed.errors import LoweringError
from cpembed.targets.vta.config import VtaConfig
from cpembed.targets.vta.estimate import Tilings, estimated_cycles, needs, pairs
from cpembed.targets.vta.floor import Floor, Floors
from cpembed.targets.vta.isa import Memory
from cpembed.targets.vta.planner import combinations, forms, tile_sizes, with_tiles
from cpembed.targets.vta.schedule import Schedule, occupancy
from cpembed.targets.vta.space import Machine
from cpembed.targets.vta.tiles import TileNest

SIZED = (Memory.INP, Memory.WGT, Memory.ACC)
"""Buffers whose sizes decide what fits."""

LARGEST = 16
"""Binary logarithm of the elements that a buffer holds at most, which its fields address."""

COMBINATIONS = 1 << 13
"""Tile sizes tried together at most: fewer than where one machine is looked at, of which there are
hundreds here."""

SMALLEST = {Memory.INP: 1 << 10, Memory.WGT: 1 << 12, Memory.ACC: 1 << 12}
"""Bytes of the smallest buffers that are looked at."""

Logs = tuple[int, int, int]
"""Binary logarithms of numbers of elements, in the order of :data:`SIZED`."""


class Contender(msgspec.Struct, frozen=True):
    """A schedule of an embedding, by its place in a list; what it ``needs`` of each buffer; its
    estimate, and the floor of what it does."""

    embedding: int
    schedule: Schedule
    needs: Logs
    estimate: float
    floor: Floor


@dataclass(frozen=True, eq=False)
class _Row:
    """A schedule, before it is made, of the nest of ``number``."""

    number: int
    tilings: Tilings
    form: Schedule
    at: int
    estimate: float


@dataclass(eq=False)
class _Best:
    """The least estimates at each size of the three buffers, ``[place, inp, wgt, acc]``, and of
    which row each is; sizes are logarithms."""

    keep: int
    rows: list[_Row] = field(default_factory=list[_Row])

    def __post_init__(self) -> None:
        shape = (self.keep, *(LARGEST + 1,) * len(SIZED))
        self.estimates = np.full(shape, np.inf)
        self.which = np.full(shape, -1)

    @property
    def worst(self) -> NDArray[np.float64]:
        """Where an estimate is not less, it is of no use."""
        return self.estimates[-1]

    def add(self, rows: Sequence[_Row], places: NDArray[np.int64]) -> None:
        """Rows of one form, the least estimate first, at what they need; at each size the first
        that fits counts: its neighbours would be as fast."""
        first = len(self.rows)
        self.rows += rows
        rank = np.full(self.worst.shape, len(rows))
        rank[tuple(places[::-1].T)] = np.arange(len(rows))[::-1]
        for axis in range(rank.ndim):
            np.minimum.accumulate(rank, axis=axis, out=rank)
        found = np.array([*(row.estimate for row in rows), np.inf])[rank]
        # Equal estimates are nearly always of one program that has several embeddings.
        found[(self.estimates == found).any(axis=0)] = np.inf
        estimates = np.concatenate([self.estimates, found[None]])
        which = np.concatenate([self.which, (first + rank)[None]])
        places_of = np.argsort(estimates, axis=0, kind="stable")[: self.keep]
        self.estimates = np.take_along_axis(estimates, places_of, axis=0)
        self.which = np.take_along_axis(which, places_of, axis=0)

    def kept(self) -> list[_Row]:
        return [self.rows[k] for k in np.unique(self.which[np.isfinite(self.estimates)]).tolist()]


def contenders(nests: Sequence[TileNest], machine: Machine, keep: int) -> list[Contender]:
    """The schedules of nests that are among the ``keep`` of least estimates on some machine that
    differs from ``machine`` in its buffers, the least estimate first.

    Raises :class:`LoweringError` where nothing fits the largest.
    """
    best = _Best(keep)
    floors = [Floors(nest, machine.tail, machine.memory) for nest in nests]
    least = [floor.least.busiest_module for floor in floors]
    for number in sorted(range(len(nests)), key=lambda k: least[k]):
        tilings = Tilings(nests[number], combinations(tile_sizes(nests[number], COMBINATIONS)))
        for form in _forms(nests[number], least[number], best):
            _screen(number, tilings, form, machine, best)
    found = [_contender(row, floors[row.number]) for row in best.kept()]
    if not found:
        raise LoweringError("no schedule: single tiles exceed the buffers of any configuration")
    return sorted(found, key=lambda item: item.estimate)


def _forms(nest: TileNest, least: float, best: _Best) -> Iterator[Schedule]:
    """Forms of a nest that could be of use: none where what fits as little is faster than any of
    its schedules can be."""
    single = Tilings(nest, {name: np.ones(1, np.int64) for name in nest.extents})
    for form in forms(nest):
        smallest = np.minimum(_logs(single, form)[0], LARGEST)
        if best.worst[tuple(smallest)] > least:
            yield form


def _screen(number: int, tilings: Tilings, form: Schedule, machine: Machine, best: _Best) -> None:
    """Keep, of each need, the schedule of least estimate, where it is among the best."""
    logs = _logs(tilings, form)
    possible = pairs(tilings, form) & (logs <= LARGEST).all(axis=1)
    cycles = estimated_cycles(tilings, form, machine.tail, machine.memory)
    possible &= cycles < best.worst[tuple(np.minimum(logs, LARGEST).T)]
    at = np.flatnonzero(possible)
    if not len(at):
        return
    order = at[np.argsort(cycles[at], kind="stable")]
    _, first = np.unique(logs[order], axis=0, return_index=True)
    chosen = order[np.sort(first)]
    rows = [_Row(number, tilings, form, int(k), float(cycles[k])) for k in chosen]
    best.add(rows, logs[chosen])


def _logs(tilings: Tilings, form: Schedule) -> NDArray[np.int64]:
    """What schedules need of each buffer, up to the next size that a machine can have."""
    needed = needs(tilings, form)
    columns = [
        np.maximum(fewest(tilings.nest.config, memory), np.ceil(np.log2(needed[memory])))
        for memory in SIZED
    ]
    return np.stack(columns, axis=1).astype(np.int64)


def fewest(config: VtaConfig, memory: Memory) -> int:
    """Binary logarithm of the elements that the smallest buffer holds: two at least."""
    return max(1, (SMALLEST[memory] // config.element_bytes(memory)).bit_length() - 1)


def _contender(row: _Row, floors: Floors) -> Contender:
    schedule = with_tiles(row.form, row.tilings.sizes, row.at)
    taken = occupancy(floors.nest, schedule)
    inp, wgt, acc = (max(1, (taken[memory][0] - 1).bit_length()) for memory in SIZED)
    return Contender(row.number, schedule, (inp, wgt, acc), row.estimate, floors.of(schedule))
