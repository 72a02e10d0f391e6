"""Schedules: how a tile nest is cut to fit VTA's buffers, in which order, and what tiles access.

A *region* is the box of a tile tensor that one tile of the loops accesses. It lies densely in SRAM;
its transfers follow from it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cpembed.errors import InvariantError, LoweringError
from cpembed.ir.computation import AxisKind
from cpembed.ir.index import IndexExpr, row_major_strides
from cpembed.stores import Count
from cpembed.targets.vta.isa import Memory
from cpembed.targets.vta.tiles import MAX_STRIDE, TileNest, TileTensor
from cpembed.wording import plural

Interval = tuple[int, int]
"""First value and number of values of a loop within a tile."""

Tile = Mapping[str, Interval]
"""Interval of each loop."""


@dataclass(frozen=True, slots=True)
class Span:
    """Positions ``low + step * i`` of one dimension, for ``0 <= i < count``.

    Positions outside the tensor hold zeros.
    """

    low: int
    step: int
    count: int


@dataclass(frozen=True)
class Region:
    """Box of a tile tensor, dense and row-major in SRAM."""

    tensor: TileTensor
    spans: tuple[Span, ...]

    @cached_property
    def tiles(self) -> int:
        return math.prod(span.count for span in self.spans)

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """SRAM distance between neighbours along each dimension."""
        counts = [span.count for span in self.spans]
        return row_major_strides(counts)

    @cached_property
    def is_empty(self) -> bool:
        """True if no position lies in the tensor, so that the region holds zeros only."""
        pairs = zip(self.spans, self.tensor.shape, strict=True)
        return any(existing(span, size)[1] <= 0 for span, size in pairs)

    @cached_property
    def loads(self) -> tuple[Box2D, ...]:
        """Transfers that fill the region, with zeros by their pads; it must not be empty.

        Neighbouring dimensions that are contiguous in both memories become one. Each position of
        dimensions beyond two takes a transfer of its own.
        """
        return tuple(_transfers(self, keep_zeros=True))

    @cached_property
    def stores(self) -> tuple[Box2D, ...]:
        """Transfers of the positions that lie in the tensor."""
        return tuple(_transfers(self, keep_zeros=False))

    def offsets(self, values: Mapping[str, NDArray[np.int64] | int]) -> NDArray[np.int64] | int:
        """Return the SRAM position, from the region's first tile, accessed at some loop values."""
        total: NDArray[np.int64] | int = 0
        for index, span, stride in zip(self.tensor.access, self.spans, self.strides, strict=True):
            if span.count > 1:
                total = total + (index.evaluate(values) - span.low) // span.step * stride
        return total

    def coefficient(self, loop: str) -> int:
        """Return the SRAM distance of a step of a loop.

        All accesses must be affine in it.
        """
        return sum(
            index.coefficient(loop) // span.step * stride
            for index, span, stride in zip(
                self.tensor.access, self.spans, self.strides, strict=True
            )
            if span.count > 1
        )


class Box2D(NamedTuple):
    """Fields of a LOAD or STORE, with addresses from the tensor's and the region's first tile."""

    sram: int
    dram: int
    y: int
    x: int
    x_stride: int
    y_before: int = 0
    y_after: int = 0
    x_before: int = 0
    x_after: int = 0


@dataclass(slots=True)
class _Run:
    """Dimension of a transfer: ``count`` rows between ``before`` and ``after`` rows of zeros.

    ``dram`` and ``sram`` are the distances of two rows in each memory.
    """

    count: int
    dram: int
    sram: int
    before: int = 0
    after: int = 0

    @property
    def padded(self) -> bool:
        return bool(self.before or self.after)


def region_of(tensor: TileTensor, tile: Tile) -> Region:
    """Return the smallest box of a tensor that holds all accesses of a tile."""
    return Region(tensor, tuple(span_of(tensor, k, tile) for k in range(tensor.rank)))


def span_of(tensor: TileTensor, k: int, tile: Tile) -> Span:
    """Return the region of a tensor along one dimension.

    Parameters
    ----------
    tensor
        Operand of a tile nest.
    k
        Dimension of the operand.
    tile
        Interval of each loop.
    """
    low, step, count = index_span(tensor.access[k], tile)
    # Padded dimensions must be x and y of one transfer, so x is dense.
    if step > 1 and (k == tensor.padded_x or tensor.strides[k] * step > MAX_STRIDE):
        step, count = 1, (count - 1) * step + 1
    return Span(low, step, count)


def index_span(index: IndexExpr, tile: Tile) -> tuple[int, int, int]:
    """Return the smallest value, the common step and the number of values of an index in a tile."""
    if not index.is_affine:
        return _enumerated_span(index, tile)
    low, step, reach = index.constant, 0, 0
    for term in index.terms:
        first, size = tile[term.iterator]
        coefficient = term.coefficient
        low += coefficient * first
        if size > 1:
            if coefficient < 0:
                low += coefficient * (size - 1)
            step = math.gcd(step, coefficient)
            reach += abs(coefficient) * (size - 1)
    # All values are multiples of the greatest common divisor apart, but not all of these occur:
    # the box has room for them.
    step = step or 1
    return low, step, reach // step + 1


def _enumerated_span(index: IndexExpr, tile: Tile) -> tuple[int, int, int]:
    """Return the span of an index with digits, by its values at all points of the tile."""
    # Digits are not monotonous in the loops, so no bounds of the values follow from the ends.
    tiles = [tile[name] for name in index.iterators]
    grids = np.ix_(*(np.arange(f, f + n, dtype=np.int64) for f, n in tiles))
    values = np.unique(index.evaluate(dict(zip(index.iterators, grids, strict=True))))
    low, high = int(values[0]), int(values[-1])
    step = math.gcd(*(int(value) - low for value in values)) or 1
    return low, step, (high - low) // step + 1


def existing(span: Span, size: int) -> tuple[int, int, int]:
    """Return the numbers of positions before the tensor, inside it, and after it."""
    before = min(span.count, max(0, -(span.low // span.step)))
    after = min(span.count, max(0, span.count - 1 - (size - 1 - span.low) // span.step))
    return before, span.count - before - after, after


def _transfers(region: Region, *, keep_zeros: bool) -> Iterator[Box2D]:
    """Yield the transfers of a region, with the zeros around the tensor only if ``keep_zeros``."""
    tensor = region.tensor
    runs: list[_Run] = []
    dram = sram = 0
    for k, span in enumerate(region.spans):
        before, count, after = existing(span, tensor.shape[k])
        dram += (span.low + before * span.step) * tensor.strides[k]
        if not keep_zeros:
            sram += before * region.strides[k]
            before = after = 0
        # A dimension of one position adds to the addresses only.
        stride = tensor.strides[k] * span.step
        if count > 1 or before or after:
            runs.append(_Run(count, stride, region.strides[k], before=before, after=after))
    x, y, *outer = _plane(_merged(runs))
    # Tile nests drop zeros in the two innermost dimensions only (tiles._cropped_input).
    if any(run.padded for run in outer):
        raise InvariantError(f"{tensor.name}: zeros beyond the two dimensions of a LOAD: {region}")
    for place in itertools.product(*(range(run.count) for run in reversed(outer))):
        at = list(zip(reversed(place), outer, strict=True))
        yield Box2D(
            sram=sram + sum(i * run.sram for i, run in at),
            dram=dram + sum(i * run.dram for i, run in at),
            y=y.count,
            x=x.count,
            x_stride=y.dram,
            y_before=y.before,
            y_after=y.after,
            x_before=x.before,
            x_after=x.after,
        )


def _merged(runs: list[_Run]) -> list[_Run]:
    """Return the runs, innermost first, after joining runs that are contiguous in both memories."""
    merged: list[_Run] = []
    for run in reversed(runs):
        inside = merged[-1] if merged else None
        if (
            inside is not None
            and not (inside.padded or run.padded)
            and run.dram == inside.count * inside.dram
            and run.sram == inside.count * inside.sram
        ):
            inside.count *= run.count
        else:
            merged.append(run)
    return merged


def _plane(runs: list[_Run]) -> list[_Run]:
    """Return the runs with x and y in front, a missing one as a run of one row.

    x is contiguous in both memories; y's rows follow each other in SRAM, and its stride in DRAM
    fits its field.
    """
    if not runs or runs[0].dram != 1 or runs[0].sram != 1:
        runs = [_Run(1, 1, 1), *runs]
    x = runs[0]
    width = x.before + x.count + x.after
    if len(runs) == 1 or runs[1].sram != width or runs[1].dram > MAX_STRIDE:
        runs = [x, _Run(1, width, width), *runs[1:]]
    return runs


@dataclass
class Slot:
    """Room for a region in SRAM: its content, the LOAD that completed it, and its last GEMM."""

    base: int
    content: Region | None = None
    loaded: int | None = None
    used: int | None = None


class Ring:
    """Slots of a buffer, the least recently used first."""

    def __init__(self, count: int, size: int) -> None:
        self._slots = [Slot(k * size) for k in range(count)]

    def find(self, region: Region) -> tuple[Slot, bool]:
        """Return a region's slot, by default the least recently used, and whether it holds it."""
        resident = next((slot for slot in self._slots if slot.content == region), None)
        slot = resident or self._slots[0]
        self._slots.remove(slot)
        self._slots.append(slot)
        return slot, resident is not None

    def forget(self) -> None:
        """Mark all slots as empty, so that the next region is loaded."""
        for slot in self._slots:
            slot.content = None


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

    def __str__(self) -> str:
        """``tiles k.o:2  p.o:14; two threads along q.o; 2 regions of INP, 2 of WGT``."""
        sizes = "  ".join(f"{name}:{self.tiles[name]}" for name in self.order)
        along = f" along {self.thread_loop}" if self.thread_loop is not None else ""
        threads = f"two threads{along}" if self.threads == 2 else "one thread"
        regions = f"{plural(self.slots[0], 'region')} of INP, {self.slots[1]} of WGT"
        return f"tiles {sizes}; {threads}; {regions}"

    def to_json(self) -> dict[str, Any]:
        return {
            "tiles": {name: self.tiles[name] for name in self.order},
            "threads": self.threads,
            "thread_loop": self.thread_loop,
            "slots": {"inp": self.slots[0], "wgt": self.slots[1]},
        }


@dataclass(frozen=True, slots=True)
class Step:
    """Part of an output tile's reduction.

    ``tile`` has each loop's interval, ``thread`` is the part of the accumulators that it adds to;
    ``begins`` and ``ends`` tell whether it is the first and the last of the reduction.
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
    """Return the elements of each buffer that a schedule occupies, and those that it has."""
    largest = largest_regions(nest, schedule)
    # Slots are equal, so each has room for the largest region; a bias has one slot in ACC.
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
    # Threads alternate: a group of a pair takes both, of which the second is idle at an odd end.
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
    """Return the thread loop if it has several tiles."""
    # A single tile has no neighbour: threads then take turns as without a thread loop.
    name = schedule.thread_loop
    single = name is not None and schedule.tiles[name] >= nest.extents[name]
    return None if single else name


def loop_tiles(extent: int, size: int) -> list[Interval]:
    """Cut a loop into tiles of one size; the last may be smaller."""
    return [(first, min(size, extent - first)) for first in range(0, extent, size)]


def _groups(
    spatial: list[str], cuts: Mapping[str, list[Interval]], thread_loop: str | None
) -> Iterator[list[dict[str, Interval]]]:
    """Yield groups of output tiles whose reductions are interleaved: pairs along a thread loop."""
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
