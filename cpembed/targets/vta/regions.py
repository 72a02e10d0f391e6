"""Boxes of tile tensors: their place in SRAM, their transfers, and their parts without padding."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cpembed.errors import InvariantError
from cpembed.ir.index import IndexExpr
from cpembed.targets.vta.tiles import MAX_STRIDE, TileTensor

Interval = tuple[int, int]
"""First value and number of values of a loop within a tile."""

Tile = Mapping[str, Interval]
"""Interval of each loop."""


@dataclass(frozen=True, slots=True)
class Span:
    """Positions ``low + step * i`` for ``0 <= i < count`` of one dimension; positions outside the
    tensor hold zeros.
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
        return tuple(math.prod(counts[k + 1 :]) for k in range(len(counts)))

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
        """Return the SRAM position, from the region's first tile, that the program accesses at some
        values of the loops.
        """
        total: NDArray[np.int64] | int = 0
        for index, span, stride in zip(self.tensor.access, self.spans, self.strides, strict=True):
            if span.count > 1:
                total = total + (index.evaluate(values) - span.low) // span.step * stride
        return total

    def coefficient(self, loop: str) -> int:
        """Return the SRAM distance of a step of a loop; all accesses must be affine in it."""
        return sum(
            index.coefficient(loop) // span.step * stride
            for index, span, stride in zip(
                self.tensor.access, self.spans, self.strides, strict=True
            )
            if span.count > 1
        )


class Box2D(NamedTuple):
    """Operands of a LOAD or STORE, with addresses from the tensor's and the region's first tile."""

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
    """Dimension of a transfer: ``count`` rows in DRAM between rows of zeros, and the distances of
    two rows in DRAM and in SRAM.
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
    """Return the smallest box of a tensor that is accessed while each loop runs over its
    interval.
    """
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
    low, step, count = _span(tensor.access[k], tile)
    # Padded dimensions must be x and y of one transfer, so x is dense.
    if step > 1 and (k == tensor.padded_x or tensor.strides[k] * step > MAX_STRIDE):
        step, count = 1, (count - 1) * step + 1
    return Span(low, step, count)


def _span(index: IndexExpr, tile: Tile) -> tuple[int, int, int]:
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
    step = step or 1
    return low, step, reach // step + 1


def _enumerated_span(index: IndexExpr, tile: Tile) -> tuple[int, int, int]:
    """Return the span of an index with digits, by its values at all points of the tile."""
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
        stride = tensor.strides[k] * span.step
        if count > 1 or before or after:
            runs.append(_Run(count, stride, region.strides[k], before=before, after=after))
    x, y, *outer = _plane(_merged(runs))
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


MAX_PARTS = 64
"""Maximum number of parts of a tile; a tile that needs more is computed whole."""


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
    low, high = _bounds(index, tile)
    if low >= 0 and high < size:
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


def _bounds(index: IndexExpr, tile: Tile) -> tuple[int, int]:
    """Return the smallest and the largest value of an affine index in a tile."""
    low = high = index.constant
    for term in index.terms:
        first, count = tile[term.iterator]
        ends = term.coefficient * first, term.coefficient * (first + count - 1)
        low, high = low + min(ends), high + max(ends)
    return low, high


def _inside(step: int, rest: int, size: int, interval: Interval) -> Interval | None:
    """Return the values ``v`` of an interval with ``0 <= step * v + rest < size``; None if there
    are none.
    """
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
