"""Estimated time of a plan: transfers in whole transactions, executions (swATOP 4.6).

Sizes are numpy arrays with an element for each of many plans of one form, which are compared at
once. Boxes that reach beyond an operand, into padding, are transferred in more calls of as many
bytes; filling scratchpads with zeros takes no time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.targets.scratchpad.boxes import Axis, Box, BoxDimension
from cpembed.targets.scratchpad.forms import Form

Numbers = NDArray[np.float64]
Points = Mapping[str, Any]
"""Points of a tile by axis: integers, or arrays of them."""


@dataclass(frozen=True, kw_only=True)
class Times:
    """Cycles of a plan.

    They are those of all transfers, of all executions, of the first and the last transfer, which
    nothing hides (``exposed``), and in total; ``moved_bytes`` are those of whole transactions.
    """

    transferring: Numbers
    executing: Numbers
    exposed: Numbers
    total: Numbers
    moved_bytes: Numbers


@dataclass(frozen=True)
class Pattern:
    """Transfer of a box by a PE: calls, each of ``blocks`` of ``block`` bytes ``stride`` apart."""

    calls: Numbers
    blocks: Numbers
    block: Numbers
    stride: Numbers

    def moved(self, transaction: int) -> Numbers:
        """Return the bytes of all transactions that contain a part of it."""
        # A single block begins with a transaction. Several begin at multiples of what their stride
        # and a transaction have in common, and of all such beginnings the average counts.
        grid = np.where(
            self.blocks * self.calls > 1,
            np.gcd(self.stride.astype(np.int64), transaction),
            transaction,
        )
        block = np.ceil(self.block / grid) * grid + transaction - grid
        return self.calls * self.blocks * block


def pattern(box: Box, pe_points: Points, cut: Collection[int] = ()) -> Pattern:
    """Return the transfer of a box.

    What is contiguous in main memory and in the scratchpad is one block, and blocks at one distance
    are one call.

    Parameters
    ----------
    box
        Box of an operand.
    pe_points
        Points that a PE holds of each axis.
    cut
        Dimensions with places outside of the operand. These leave gaps in the scratchpad between
        what the outer dimensions contain, so that each is a call of its own.
    """
    element = float(box.operand.element_bytes)
    ones = np.ones(1)
    block, blocks, calls, stride = ones * element, ones, ones, ones * 0
    counting, calling, gaps = np.zeros(1, bool), np.zeros(1, bool), np.zeros(1, bool)
    if box.tiled:
        return Pattern(ones, ones, np.asarray(box.elements(pe_points)) * element, stride)
    transferred = [(n, d) for n, d in enumerate(box.dimensions) if not d.blocked]
    for number, dimension in reversed(transferred):
        places = np.asarray(dimension.places(pe_points), np.float64)
        distance, several = dimension.stride_bytes, places > 1
        # A dimension extends the block, begins or extends the blocks of a call, or repeats calls.
        joins = several & ~counting & ~gaps & (block == distance)
        begins = several & ~counting & ~gaps & ~joins
        extends = several & counting & ~calling & ~gaps & (distance == stride * blocks)
        repeats = several & ~joins & ~begins & ~extends
        block = np.where(joins, block * places, block)
        stride = np.where(begins | (repeats & ~counting & ~calling), distance, stride)
        blocks = np.where(begins | extends, blocks * places, blocks)
        calls = np.where(repeats, calls * places, calls)
        counting, calling = counting | begins, calling | repeats
        if number in cut or dimension.room > dimension.within:
            gaps = gaps | several
    # Each block is transferred by itself.
    for dimension in box.dimensions:
        if dimension.blocked:
            calls = calls * np.asarray(dimension.places(pe_points), np.float64)
    return Pattern(calls, blocks, block, stride)


def _places_beyond(form: Form, box: Box) -> dict[int, tuple[int, int]]:
    """Return by dimension the places outside of the operand, before its first and after its last.

    They are padding of the operand, or of the last granule. Dimensions without any are left out.
    """
    axes, beyond = form.product.axes, dict[int, tuple[int, int]]()
    for number, dimension in enumerate(box.dimensions):
        if dimension.blocked:
            continue
        last = dimension.constant
        for name, factor in dimension.starts.items():
            granules = -(-axes[name].extent // axes[name].granule)
            last += factor * (granules * axes[name].granule - 1)
        places = max(0, -dimension.constant), max(0, last - dimension.size + 1)
        if any(places) and not box.tiled:
            beyond[number] = places
    return beyond


class Work:
    """Transfers and executions of tiles, in whatever order they are visited.

    Arrays of sizes may have any shapes that broadcast against each other; what depends on some axes
    only is computed once for all sizes of the others.
    """

    def __init__(self, form: Form, tile: Points) -> None:
        self.form = form
        axes = form.product.axes
        sizes = {n: np.asarray(tile[n], np.float64) for n in axes}
        self.counts = {n: np.ceil(a.extent / sizes[n]) for n, a in axes.items()}
        self.several = {n: count > 1 for n, count in self.counts.items()}
        self.pe_points = {
            n: _points_per_pe(a, np.minimum(sizes[n], a.extent)) for n, a in axes.items()
        }
        sums = {n: _sum(a, sizes[n], self.counts[n], self.pe_points[n]) for n, a in axes.items()}
        self._partly = {n: self._ends_within(a, sizes[n]) for n, a in axes.items()}
        self.steps = math.prod(self.counts.values(), start=np.ones(1))
        self.executing = _executing(form, self.counts, sums)
        self._shares = {n: sums[n] / (self.counts[n] * self.pe_points[n]) for n in axes}

    @cached_property
    def _boxes(self) -> list[tuple[Numbers, Numbers, Numbers]]:
        """Cycles and bytes of a box's transfer, and its average size as a share of a full one."""
        boxes: list[tuple[Numbers, Numbers, Numbers]] = []
        for box in self.form.boxes:
            # The last tile along an axis is smaller; its transfers count as that share of a full
            # one.
            share = [self._shares[name] for name in box.operand.axes]
            boxes.append((*self._transfer(box), math.prod(share, start=np.ones(1))))
        return boxes

    @cached_property
    def exposed(self) -> Numbers:
        """Cycles of the first and the last transfer, which nothing hides."""
        return sum((cycles for cycles, _, _ in self._boxes), start=np.zeros(1))

    def _transfer(self, box: Box) -> tuple[Numbers, Numbers]:
        """Return cycles and bytes of a transfer, averaged over tiles with and without padding."""
        machine = self.form.product.machine
        engine = machine.engines[box.operand.role]

        def transfer(cut: Collection[int]) -> tuple[Numbers, Numbers]:
            calls = pattern(box, self.pe_points, cut)
            # Bytes of a pattern are those of arrays of numpy, which elements do not share.
            shared = box.operand.per_byte
            moved = calls.moved(engine.transaction_bytes * shared) / shared * machine.elements
            return calls.calls * engine.latency_cycles + moved / engine.bytes_per_cycle, moved

        beyond, inner = _places_beyond(self.form, box), transfer(())
        if not beyond:
            return inner
        inner_share = np.ones(1)
        for number, places in beyond.items():
            inner_share = inner_share * (1 - self._cut_share(box.dimensions[number], places))
        cycles, moved = (
            inside * inner_share + cut * (1 - inner_share)
            for inside, cut in zip(inner, transfer(tuple(beyond)), strict=True)
        )
        return cycles, moved

    def _ends_within(self, axis: Axis, size: Numbers) -> NDArray[np.bool_]:
        """True if the last tile ends within a PE's part of it, not between two PEs."""
        points = axis.extent - (self.counts[axis.name] - 1) * size
        return points % _points_per_pe(axis, points) > 0

    def _cut_share(self, dimension: BoxDimension, places: tuple[int, int]) -> Numbers:
        """Return the share of tiles whose boxes reach beyond a dimension."""
        if not places[0] and list(dimension.starts.values()) == [1]:
            (name,) = dimension.starts
            return np.where(self._partly[name], 1, 0) / self.counts[name]
        cut, tiles = np.zeros(1), np.ones(1)
        # Along one axis it may be the last tile; under taps the first and the last, each under as
        # many taps as there are places beyond.
        taps = [n for n in dimension.starts if self.form.product.axes[n].reduction]
        for name in dimension.starts:
            tiles = tiles * self.counts[name]
        for beyond in filter(None, places):
            several = [np.minimum(self.counts[name], beyond) for name in taps]
            cut = cut + math.prod(several, start=np.ones(1))
        return np.minimum(1, cut / tiles)

    def times(self, order: Sequence[str], buffers: int) -> Times:
        """Return the times for an order of the loops over tiles."""
        transferring, moved_bytes = np.zeros(1), np.zeros(1)
        for box, (cycles, moved, share) in zip(self.form.boxes, self._boxes, strict=True):
            number = self._transfers(box, order) * share
            transferring = transferring + cycles * number
            moved_bytes = moved_bytes + moved * number
        if buffers == 2 and self.form.product.machine.overlaps:
            # One of both is hidden by the other, but for the first and last transfer, or the
            # execution of the last tile.
            total = np.maximum(
                self.executing + self.exposed, transferring + self.executing / self.steps
            )
        else:
            total = transferring + self.executing
        return Times(
            transferring=transferring,
            executing=self.executing,
            exposed=self.exposed,
            total=total,
            moved_bytes=moved_bytes,
        )

    def room(self, buffers: int, placed: Callable[[Box], int]) -> list[Numbers]:
        """Return the bytes of each memory of a PE.

        A box that a loop moves has so many ``buffers``, another one has one; ``placed`` gives their
        alignment in bytes.
        """
        used = [np.zeros(1) for _ in self.form.product.machine.memories]
        for box in self.form.boxes:
            size = box.operand.bytes_of(np.asarray(box.elements(self.pe_points), np.float64))
            alignment = placed(box)
            room = np.ceil(size / alignment) * alignment
            number = np.where(self._moves(box), buffers, 1)
            memory = box.operand.memory
            # Buffers follow each other, each at multiples of its own alignment.
            used[memory] = np.ceil(used[memory] / alignment) * alignment + room * number
        return used

    def _moves(self, box: Box) -> Any:
        """True if a loop over several tiles moves a box."""
        moves = np.zeros(1, bool)
        for name in box.operand.axes:
            moves = moves | self.several[name]
        return moves

    def _transfers(self, box: Box, order: Sequence[str]) -> Numbers:
        """Return how often a box is transferred."""
        # An input comes whenever a loop moves it: the loops inside of the innermost one that does
        # repeat nothing. The output leaves once, when it is complete: no reduction moves it, and
        # these are innermost.
        number, started = np.ones(1), np.zeros(1, bool)
        for name in reversed(order):
            if name in box.operand.axes:
                started = started | self.several[name]
            if started.any():
                number = number * np.where(started, self.counts[name], 1)
        return number


def _points_per_pe(axis: Axis, points: Any) -> Numbers:
    return np.ceil(np.asarray(points) / axis.granule) * axis.grain


def _sum(axis: Axis, size: Any, count: Numbers, pe_points: Numbers) -> Numbers:
    """Return the points that a PE holds of all tiles of an axis, one after the other."""
    return (count - 1) * pe_points + _points_per_pe(axis, axis.extent - (count - 1) * size)


def _executing(form: Form, counts: Points, sums: Points) -> Numbers:
    """Return the cycles of all executions.

    These are granules, and what each call takes in addition, by its sizes (equation 2, summed over
    all tiles).
    """
    product, machine = form.product, form.product.machine
    total = machine.cycles * math.prod(
        (sums[n] / axis.grain for n, axis in product.axes.items()), start=np.ones(1)
    )
    covered = {a.name: lane for lane, chain in form.chains.items() for a in chain}
    for lanes, cycles in machine.call_cycles:
        term = np.full(1, cycles)
        for name, axis in product.axes.items():
            lane = covered.get(name)
            if not machine.sized:
                term = term * sums[name] / axis.grain
            elif lane is None or lane in lanes:
                term = term * sums[name]
            else:
                term = term * counts[name]
        sizes = product.program.instruction.extents
        for lane in lanes:
            term = term * (machine.parts(lane) if machine.sized else sizes[lane])
        total = total + term
    return total
