"""The time of a plan: transfers in whole transactions and executions of the primitive (swATOP 4.6).

Sizes are numpy arrays, an element for each of many plans of one form, so that they are compared in
one go. Boxes that reach beyond an operand, where padding is, are transferred in more calls, of as
many bytes; filling scratchpads with zeros counts nothing.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.targets.scratchpad.boxes import Box, BoxDimension, Form
from cpembed.targets.scratchpad.lower import Axis

Numbers = NDArray[np.float64]
Points = Mapping[str, Any]
"""Points of a tile by axis: integers, or arrays of them."""


@dataclass(frozen=True)
class Times:
    """Cycles: of all transfers, of all executions, of the first transfer and the last, which
    nothing hides; together. ``moved_bytes``: what is transferred, whole transactions."""

    transferring: Numbers
    executing: Numbers
    exposed: Numbers
    total: Numbers
    moved_bytes: Numbers


@dataclass(frozen=True)
class Pattern:
    """How a PE transfers a box: calls, each of ``blocks`` of ``block`` bytes ``stride`` apart."""

    calls: Numbers
    blocks: Numbers
    block: Numbers
    stride: Numbers

    def moved(self, transaction: int) -> Numbers:
        """Bytes of all transactions that hold a part of it: of the first block from its first byte,
        of blocks that begin anywhere as many as on average."""
        grid = np.where(
            self.blocks * self.calls > 1,
            np.gcd(self.stride.astype(np.int64), transaction),
            transaction,
        )
        whole = np.ceil(self.block / grid) * grid + transaction - grid
        return self.calls * self.blocks * whole


def pattern(box: Box, held: Points, cut: Collection[int] = ()) -> Pattern:
    """What is contiguous, in main memory as in the scratchpad, is one block; what lies at one
    distance, one call. Of the dimensions ``cut``, places at an end are outside of the operand:
    there are gaps in the scratchpad between what is further outside, so each is a call."""
    element = float(box.operand.element_bytes)
    ones = np.ones(1)
    block, blocks, calls, stride = ones * element, ones, ones, ones * 0
    counting, calling, gaps = np.zeros(1, bool), np.zeros(1, bool), np.zeros(1, bool)
    if box.tiled:
        return Pattern(ones, ones, np.asarray(box.elements(held)) * element, stride)
    for number, dimension in reversed(list(enumerate(box.dimensions))):
        places = np.asarray(dimension.places(held), np.float64)
        several = places > 1
        joins = several & ~counting & ~gaps & (block == dimension.apart)
        begins = several & ~counting & ~gaps & ~joins
        goes_on = several & counting & ~calling & ~gaps & (dimension.apart == stride * blocks)
        repeats = several & ~joins & ~begins & ~goes_on
        block = np.where(joins, block * places, block)
        stride = np.where(begins | (repeats & ~counting & ~calling), dimension.apart, stride)
        blocks = np.where(begins | goes_on, blocks * places, blocks)
        calls = np.where(repeats, calls * places, calls)
        counting, calling = counting | begins, calling | repeats
        if number in cut:
            gaps = gaps | several
    return Pattern(calls, blocks, block, stride)


def _beyond(form: Form, box: Box) -> dict[int, tuple[int, int]]:
    """By dimension, how many places are outside of the operand before its first and after its last:
    padding of the operand, or of the last granule. Dimensions without any are left out."""
    axes, found = form.product.axes, dict[int, tuple[int, int]]()
    for number, dimension in enumerate(box.dimensions):
        last = dimension.constant
        for name, factor in dimension.starts.items():
            granules = -(-axes[name].extent // axes[name].granule)
            last += factor * (granules * axes[name].granule - 1)
        places = max(0, -dimension.constant), max(0, last - dimension.size + 1)
        if any(places) and not box.tiled:
            found[number] = places
    return found


class Work:
    """What tiles of so many points move and execute, in whatever order they are visited.

    Arrays of sizes may be of any shapes that broadcast against each other; what depends on some
    axes alone is then computed once for all sizes of the others.
    """

    def __init__(self, form: Form, tile: Points) -> None:
        self.form = form
        axes = form.product.axes
        sizes = {n: np.asarray(tile[n], np.float64) for n in axes}
        self.counts = {n: np.ceil(a.extent / sizes[n]) for n, a in axes.items()}
        self.several = {n: count > 1 for n, count in self.counts.items()}
        self.held = {n: _held(a, np.minimum(sizes[n], a.extent)) for n, a in axes.items()}
        sums = {n: _sum(a, sizes[n], self.counts[n], self.held[n]) for n, a in axes.items()}
        self._partly = {n: self._ends_within(a, sizes[n]) for n, a in axes.items()}
        self.steps = math.prod(self.counts.values(), start=np.ones(1))
        self.executing = _executing(form, self.counts, self.held, sums)
        self._shares = {n: sums[n] / (self.counts[n] * self.held[n]) for n in axes}

    @cached_property
    def _boxes(self) -> list[tuple[Numbers, Numbers, Numbers]]:
        """Of each box: cycles and bytes of a transfer, and the average size of one, as a share of a
        whole one."""
        found: list[tuple[Numbers, Numbers, Numbers]] = []
        for box in self.form.boxes:
            share = [self._shares[name] for name in box.operand.axes]
            found.append((*self._box(box), math.prod(share, start=np.ones(1))))
        return found

    @cached_property
    def exposed(self) -> Numbers:
        """Cycles of the first transfer and the last, which nothing hides."""
        return sum((cycles for cycles, _, _ in self._boxes), start=np.zeros(1))

    def _box(self, box: Box) -> tuple[Numbers, Numbers]:
        """Cycles and bytes of a transfer, on average over tiles that padding is in and others."""
        machine = self.form.product.machine
        engine = machine.engines[box.operand.role]

        def found(cut: Collection[int]) -> tuple[Numbers, Numbers]:
            each = pattern(box, self.held, cut)
            moved = each.moved(engine.transaction_bytes) * machine.elements
            return each.calls * engine.latency_cycles + moved / engine.bytes_per_cycle, moved

        beyond, whole = _beyond(self.form, box), found(())
        if not beyond:
            return whole
        inner = np.ones(1)
        for number, places in beyond.items():
            inner = inner * (1 - self._cut(box.dimensions[number], places))
        cycles, moved = (
            one * inner + other * (1 - inner)
            for one, other in zip(whole, found(tuple(beyond)), strict=True)
        )
        return cycles, moved

    def _ends_within(self, axis: Axis, size: Numbers) -> NDArray[np.bool_]:
        """Whether the last tile ends within what a PE holds of it, not between two PEs."""
        points = axis.extent - (self.counts[axis.name] - 1) * size
        return points % _held(axis, points) > 0

    def _cut(self, dimension: BoxDimension, places: tuple[int, int]) -> Numbers:
        """The share of tiles whose boxes reach beyond a dimension. Along one axis it may be the
        last; under taps the first and the last, each under as many as there are places beyond."""
        if not places[0] and list(dimension.starts.values()) == [1]:
            (name,) = dimension.starts
            return np.where(self._partly[name], 1, 0) / self.counts[name]
        cut, tiles = np.zeros(1), np.ones(1)
        taps = [n for n in dimension.starts if self.form.product.axes[n].reduction]
        for name in dimension.starts:
            tiles = tiles * self.counts[name]
        for beyond in filter(None, places):
            several = [np.minimum(self.counts[name], beyond) for name in taps]
            cut = cut + math.prod(several, start=np.ones(1))
        return np.minimum(1, cut / tiles)

    def times(self, order: Sequence[str], buffers: int) -> Times:
        """In an order of the loops over tiles."""
        transferring, moved_bytes = np.zeros(1), np.zeros(1)
        for box, (cycles, moved, share) in zip(self.form.boxes, self._boxes, strict=True):
            number = self._transfers(box, order) * share
            transferring = transferring + cycles * number
            moved_bytes = moved_bytes + moved * number
        if buffers == 2 and self.form.product.machine.overlaps:
            total = np.maximum(
                self.executing + self.exposed, transferring + self.executing / self.steps
            )
        else:
            total = transferring + self.executing
        return Times(transferring, self.executing, self.exposed, total, moved_bytes)

    def room(self, buffers: int, placed: int) -> list[Numbers]:
        """Bytes of each memory of a PE: of each box as many as there are ``buffers``, of one that
        no loop moves one, each from a multiple of ``placed`` bytes."""
        used = [np.zeros(1) for _ in self.form.product.machine.memories]
        for box in self.form.boxes:
            size = np.asarray(box.elements(self.held)) * float(box.operand.element_bytes)
            room = np.ceil(size / placed) * placed
            number = np.where(self._moves(box), buffers, 1)
            memory = box.operand.memory
            used[memory] = used[memory] + room * number
        return used

    def _moves(self, box: Box) -> Any:
        """Whether a loop over several tiles moves a box."""
        moves = np.zeros(1, bool)
        for name in box.operand.axes:
            moves = moves | self.several[name]
        return moves

    def _transfers(self, box: Box, order: Sequence[str]) -> Numbers:
        """How often a box is transferred: an input again whenever a loop moves it, the output once,
        when it is complete."""
        number, started = np.ones(1), np.zeros(1, bool)
        for name in reversed(order):
            if name in box.operand.axes:
                started = started | self.several[name]
            if started.any():
                number = number * np.where(started, self.counts[name], 1)
        return number


def _held(axis: Axis, points: Any) -> Numbers:
    return np.ceil(np.asarray(points) / axis.granule) * axis.grain


def _sum(axis: Axis, size: Any, count: Numbers, held: Numbers) -> Numbers:
    """Points that a PE holds of all tiles of an axis, one after the other."""
    return (count - 1) * held + _held(axis, axis.extent - (count - 1) * size)


def _executing(form: Form, counts: Points, held: Points, sums: Points) -> Numbers:
    """Cycles of all executions: granules, and what each call takes besides, by its sizes (equation
    2, summed over all tiles)."""
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
