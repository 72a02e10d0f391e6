"""Micro-ops under two loops: the GEMM and ALU instructions of a tile.

A GEMM instruction runs a list of micro-ops under two affine loops. Of a tile's loops, the two that
leave the fewest micro-ops become its iterations, the others are unrolled into micro-ops: reductions
outside, spatial loops inside, because the core needs three different accumulators in a row.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cpembed.ir.computation import AxisKind
from cpembed.ir.index import IndexExpr
from cpembed.targets.vta.isa import Factors, Load, Memory
from cpembed.targets.vta.schedule import Interval, Region, Tile, index_span
from cpembed.targets.vta.tiles import TileNest, TileTensor
from cpembed.targets.vta.timing import PIPELINE
from cpembed.targets.vta.tokens import Dependences

Indices = NDArray[np.int64]
"""Micro-ops as rows (dst, src, wgt)."""

FETCH_CYCLES = 3
"""Cycles to fetch an instruction, on the channel that the loads use."""

# The fields have 14 bits.
MAX_ITERATIONS = 16_383
"""Maximum extent of either loop of a GEMM or ALU instruction."""

# An accumulator that repeats within the pipeline's depth would be read before it is written.
DISTANCE = 3
"""Number of consecutive executions that need different accumulators."""

_NO_STEP = Factors()


@dataclass(frozen=True, eq=False)
class UopLoop:
    """List of micro-ops under two loops, with the steps of dst, src and wgt per iteration."""

    uops: Indices
    outer: int = 1
    inner: int = 1
    dst: Factors = _NO_STEP
    src: Factors = _NO_STEP
    wgt: Factors = _NO_STEP

    @property
    def cycles(self) -> int:
        """Cycles of the instruction: its executions, the pipeline, its fetch."""
        return len(self.uops) * self.outer * self.inner + PIPELINE + FETCH_CYCLES

    @cached_property
    def accumulators(self) -> frozenset[int]:
        """Accumulators that the instruction writes."""
        rounds = (
            np.arange(self.outer)[:, None, None] * self.dst.outer
            + np.arange(self.inner)[:, None] * self.dst.inner
        )
        return frozenset(np.unique(rounds + self.uops[:, 0]).tolist())


class MicroOps:
    """Micro-ops in main memory and in SRAM, each list once.

    SRAM is filled from its start; a list that does not fit in the rest starts there again. No token
    is needed, because loads of micro-ops and the instructions that use them are in one module.
    """

    def __init__(self, program: Dependences, capacity: int, dram: int) -> None:
        self._program = program
        self._capacity = capacity
        self._dram = dram
        self._lists: dict[bytes, tuple[int, Indices]] = {}
        """Place in main memory of each list, by its bytes."""
        self._length = 0
        self._resident: dict[bytes, int] = {}
        self._free = 0

    @property
    def image(self) -> Indices:
        """All lists as they lie in main memory, as rows of dst, src and wgt."""
        lists = (uops for _, uops in self._lists.values())
        return np.concatenate([np.empty((0, 3), np.int64), *lists])

    def place(self, uops: Indices) -> tuple[int, int]:
        """Return the first place of a list in SRAM and the one after it; load it if needed."""
        key, count = uops.tobytes(), len(uops)
        if key in self._resident:
            begin = self._resident[key]
            return begin, begin + count
        if key not in self._lists:
            self._lists[key] = self._length, uops
            self._length += count
        if self._free + count > self._capacity:
            # Lists are short and few: better load all again than keep track of gaps.
            self._resident.clear()
            self._free = 0
        begin = self._resident[key] = self._free
        self._free += count
        dram = self._dram + self._lists[key][0]
        self._program.append(Load(Memory.UOP, begin, dram, y=1, x=count, x_stride=count))
        return begin, begin + count


@dataclass(frozen=True)
class _Iteration:
    """One or several loops of a nest that an instruction can iterate over as one.

    ``names`` are outermost first; ``steps`` are those of dst, src and wgt.
    """

    names: tuple[str, ...]
    extent: int
    steps: tuple[int, int, int]


_ONCE = _Iteration((), 1, (0, 0, 0))


def gemm_loops(
    nest: TileNest,
    tile: Tile,
    regions: tuple[Region, Region, Region],
    bases: tuple[int, int, int],
    uop_limit: int,
) -> list[UopLoop]:
    """Return the GEMM instructions of a tile, in order.

    Parameters
    ----------
    nest
        Nest whose tile is multiplied.
    tile
        Interval of each loop.
    regions
        Regions of ACC, INP and WGT in SRAM.
    bases
        First elements of these regions.
    uop_limit
        Maximum number of micro-ops of an instruction.
    """
    candidates = _iterations(nest, tile, regions)
    pairs = [
        pair
        for pair in itertools.permutations([*candidates, _ONCE, _ONCE], 2)
        if not set(pair[0].names) & set(pair[1].names)
    ]
    # The more iterations, the fewer micro-ops to load.
    pairs.sort(key=lambda pair: -pair[0].extent * pair[1].extent)
    # Without repetitions: _ONCE stands in the list twice.
    for outer, inner in dict.fromkeys(pairs):
        uops = _uops(nest, tile, regions, bases, {*outer.names, *inner.names})
        parts = [uops[k : k + uop_limit] for k in range(0, len(uops), uop_limit)]
        if all(_keeps_distance(part[:, 0], outer, inner) for part in parts):
            return [_loop(part, outer, inner) for part in parts]
    # No pair of loops keeps equal accumulators apart, so everything is unrolled and cut.
    uops = _uops(nest, tile, regions, bases, set())
    return [UopLoop(part) for part in _runs(uops, uop_limit)]


def _loop(uops: Indices, outer: _Iteration, inner: _Iteration) -> UopLoop:
    dst, src, wgt = (Factors(o, i) for o, i in zip(outer.steps, inner.steps, strict=True))
    return UopLoop(uops, outer.extent, inner.extent, dst=dst, src=src, wgt=wgt)


def _iterations(
    nest: TileNest, tile: Tile, regions: tuple[Region, Region, Region]
) -> list[_Iteration]:
    """Return the loops that an instruction can iterate over, single ones and several as one."""
    # Steps are constant only along loops of which no access takes digits.
    digits = {name for region in regions for name in region.tensor.digit_loops}
    single: list[_Iteration] = []
    for name, (_, size) in tile.items():
        if size > 1 and name not in digits:
            dst, src, wgt = (region.coefficient(name) for region in regions)
            single.append(_Iteration((name,), size, (dst, src, wgt)))
    merged = list(single)
    # Merged loops are appended while they are visited, so that they merge further.
    for inner in merged:
        for outer in single:
            continues = outer.steps == tuple(step * inner.extent for step in inner.steps)
            if continues and outer.names[0] not in inner.names:
                names = (*outer.names, *inner.names)
                merged.append(_Iteration(names, outer.extent * inner.extent, inner.steps))
    # Steps are unsigned fields, as wide as an index of their memory.
    limits = [nest.config.elements(m) for m in (Memory.ACC, Memory.INP, Memory.WGT)]
    return [
        loop
        for loop in merged
        if loop.extent <= MAX_ITERATIONS
        and all(0 <= step < limit for step, limit in zip(loop.steps, limits, strict=True))
    ]


def _uops(
    nest: TileNest,
    tile: Tile,
    regions: tuple[Region, Region, Region],
    bases: tuple[int, int, int],
    iterated: set[str],
) -> Indices:
    """Return a micro-op for each point of the loops that are not ``iterated``."""
    kinds = {loop.name: loop.kind for loop in nest.loops}
    # Reductions outermost and the longest spatial loop innermost: consecutive micro-ops then have
    # different accumulators as far as possible.
    unrolled = [name for name, (_, size) in tile.items() if size > 1 and name not in iterated]
    unrolled.sort(key=lambda name: (kinds[name] is AxisKind.SPATIAL, tile[name][1]))
    values: dict[str, Indices | int] = {name: first for name, (first, _) in tile.items()}
    shape = [tile[name][1] for name in unrolled]
    if unrolled:
        ranges = (np.arange(tile[n][0], tile[n][0] + tile[n][1], dtype=np.int64) for n in unrolled)
        values |= dict(zip(unrolled, np.ix_(*ranges), strict=True))
    table = np.empty((math.prod(shape), 3), np.int64)
    for column, (region, base) in enumerate(zip(regions, bases, strict=True)):
        table[:, column] = np.broadcast_to(region.offsets(values) + base, shape).reshape(-1)
    return table


def _keeps_distance(dst: Indices, outer: _Iteration, inner: _Iteration) -> bool:
    """True if any :data:`DISTANCE` executions in a row have different accumulators."""
    rounds = (
        np.arange(outer.extent)[:, None, None] * outer.steps[0]
        + np.arange(inner.extent)[:, None] * inner.steps[0]
    )
    sequence = (rounds + dst).reshape(-1)
    return all(bool((sequence[lag:] != sequence[:-lag]).all()) for lag in range(1, DISTANCE))


def _runs(uops: Indices, limit: int) -> Iterator[Indices]:
    """Cut micro-ops into the longest parts that keep the distance."""
    # Between instructions the pipeline runs empty, so accumulators may repeat there.
    first = 0
    for k in range(1, len(uops) + 1):
        recent = uops[max(first, k - DISTANCE + 1) : k, 0]
        if k == len(uops) or k - first == limit or uops[k, 0] in recent:
            yield uops[first:k]
            first = k


@dataclass(frozen=True)
class _BiasLoop:
    """Neighbouring dimensions of an output tile that are one loop of an instruction.

    ``dst`` and ``src`` are the steps of its accumulators and of the bias.
    """

    extent: int
    dst: int
    src: int


def consecutive_loops(base: int, tiles: int, *, reads: bool = True) -> list[UopLoop]:
    """Return loops over accumulators that follow each other.

    Parameters
    ----------
    base, tiles
        First accumulator and their number.
    reads
        Whether the instruction reads the accumulators that it writes; a reset reads none.
    """
    loops: list[UopLoop] = []
    for first in range(base, base + tiles, MAX_ITERATIONS):
        count = min(MAX_ITERATIONS, base + tiles - first)
        # A loop of one iteration needs no step.
        step = Factors(0, int(count > 1))
        uops = np.array([[first, first if reads else 0, 0]])
        loops.append(UopLoop(uops, 1, count, dst=step, src=step if reads else _NO_STEP))
    return loops


def bias_loops(acc: Region, bias: Region, base: int, bias_base: int) -> list[UopLoop]:
    """Return the ALU instructions that add a region of the bias to its output tile.

    Parameters
    ----------
    acc, bias
        Regions of the output tile and of the bias.
    base, bias_base
        First elements of these regions in ACC.
    """
    names = [dimension.name for dimension in bias.tensor.packed.dimensions]
    merged: list[_BiasLoop] = []
    for k, dimension in enumerate(acc.tensor.packed.dimensions[: acc.tensor.rank]):
        # A dimension without bias repeats the same elements.
        has_bias = dimension.name in names
        src = bias.strides[names.index(dimension.name)] if has_bias else 0
        axis = _BiasLoop(acc.spans[k].count, acc.strides[k], src)
        outer = merged[-1] if merged else None
        if axis.extent == 1:
            continue
        if outer is not None and outer.src == axis.src * axis.extent:
            axis = _BiasLoop(outer.extent * axis.extent, axis.dst, axis.src)
            merged.pop()
        merged.append(axis)
    # The two longest become loops of the instruction, the others are unrolled into micro-ops.
    merged.sort(key=lambda axis: axis.extent)
    loops = [axis for axis in merged[-2:] if axis.extent <= MAX_ITERATIONS]
    # Fewer than two loops: the outer ones run once.
    outer, inner = ([_BiasLoop(1, 0, 0)] * 2 + loops)[-2:]
    unrolled = [axis for axis in merged if axis not in loops]
    return [
        UopLoop(
            _bias_uops(unrolled, base, bias_base),
            outer.extent,
            inner.extent,
            dst=Factors(outer.dst, inner.dst),
            src=Factors(outer.src, inner.src),
        )
    ]


def _bias_uops(merged: list[_BiasLoop], base: int, bias_base: int) -> Indices:
    places = np.indices([axis.extent for axis in merged]).reshape(
        len(merged), math.prod(axis.extent for axis in merged)
    )
    dst = base + sum(place * axis.dst for place, axis in zip(places, merged, strict=True))
    src = bias_base + sum(place * axis.src for place, axis in zip(places, merged, strict=True))
    table = np.zeros((places.shape[1], 3), np.int64)
    table[:, 0], table[:, 1] = dst, src
    return table


# Each part costs an instruction, so a tile that needs more parts is computed whole.
MAX_PARTS = 64
"""Maximum number of parts of a tile."""


def trimmed_tiles(tensor: TileTensor, tile: Tile) -> list[Tile]:
    """Cut a tile into parts without products that multiply zero padding.

    Of a convolution's tile at the image's border, some output rows see only padding through some
    filter rows. The parts are boxes of the loops, one for each filter row, or for several that see
    the same output rows. A tile without padding is its only part.
    """
    cut_loops: set[str] = set()
    choices: list[list[dict[str, Interval]]] = []
    for index, size in zip(tensor.access, tensor.shape, strict=True):
        names = set(index.iterators)
        # Of two dimensions that share a loop only the first is cut: parts have to stay boxes.
        if not index.is_affine or cut_loops & names:
            continue
        parts = _parts(index, size, tile)
        if parts is not None:
            cut_loops |= names
            choices.append(parts)
    if math.prod(map(len, choices)) > MAX_PARTS:
        return [tile]
    trimmed: list[Tile] = []
    for place in itertools.product(*choices):
        part = dict(tile)
        for intervals in place:
            part |= intervals
        trimmed.append(part)
    return trimmed


def _parts(index: IndexExpr, size: int, tile: Tile) -> list[dict[str, Interval]] | None:
    """Return the parts of one dimension, as intervals of its loops; None if it stays whole.

    The longest loop is cut, for each value of the other loops; consecutive values of the innermost
    of these that leave the same interval become one part.
    """
    low, step, count = index_span(index, tile)
    if low >= 0 and low + step * (count - 1) < size:
        return None
    names = sorted(index.iterators, key=lambda name: tile[name][1])
    cut, fixed = names[-1], names[:-1]
    step = index.coefficient(cut)
    values = [range(first, first + count) for first, count in (tile[name] for name in fixed)]
    parts: list[dict[str, Interval]] = []
    for place in itertools.product(*values):
        rest = index.constant + sum(
            index.coefficient(name) * value for name, value in zip(fixed, place, strict=True)
        )
        inside = _inside(step, rest, size, tile[cut])
        if inside is None:
            continue
        intervals = {name: (value, 1) for name, value in zip(fixed, place, strict=True)}
        last = parts[-1] if parts else None
        if last is not None and last[cut] == inside and _follows(last, intervals, fixed):
            first, count = last[fixed[-1]]
            last[fixed[-1]] = (first, count + 1)
            continue
        parts.append({**intervals, cut: inside})
        if len(parts) > MAX_PARTS:
            return None
    return parts


def _inside(step: int, rest: int, size: int, interval: Interval) -> Interval | None:
    """Return the values ``v`` of an interval with ``0 <= step * v + rest < size``, if any."""
    first, count = interval
    if step > 0:
        low, high = -(rest // step), (size - 1 - rest) // step
    else:
        low, high = -((size - 1 - rest) // -step), rest // -step
    low, high = max(low, first), min(high, first + count - 1)
    return (low, high - low + 1) if low <= high else None


def _follows(last: dict[str, Interval], intervals: dict[str, Interval], names: list[str]) -> bool:
    """True if intervals continue the last ones along the innermost loop."""
    *outer, inner = names
    first, count = last[inner]
    return intervals[inner][0] == first + count and all(
        last[name] == intervals[name] for name in outer
    )
