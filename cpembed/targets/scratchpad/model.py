"""The time of a plan: transfers in whole transactions and executions of the primitive (swATOP 4.6).

Sizes are numpy arrays, an element for each of many plans of one form, so that they are compared in
one go. Transfers of boxes that reach beyond an operand, where padding is, count as whole ones;
filling scratchpads with zeros counts nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.targets.scratchpad.boxes import Box, Form
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
            self.blocks > 1, np.gcd(self.stride.astype(np.int64), transaction), transaction
        )
        whole = np.ceil(self.block / grid) * grid + transaction - grid
        return self.calls * self.blocks * whole


def pattern(box: Box, held: Points) -> Pattern:
    """Of a box without a part outside of the operand. What is contiguous, in main memory as in the
    scratchpad, is one block; what lies at one distance, one call."""
    element = float(box.operand.element_bytes)
    ones = np.ones(1)
    block, blocks, calls, stride = ones * element, ones, ones, ones * 0
    counting, calling = np.zeros(1, bool), np.zeros(1, bool)
    if box.tiled:
        return Pattern(ones, ones, np.asarray(box.elements(held)) * element, stride)
    for dimension in reversed(box.dimensions):
        places = np.asarray(dimension.places(held), np.float64)
        several = places > 1
        joins = several & ~counting & (block == dimension.apart)
        begins = several & ~counting & ~joins
        goes_on = several & counting & ~calling & (dimension.apart == stride * blocks)
        repeats = several & counting & ~goes_on
        block = np.where(joins, block * places, block)
        stride = np.where(begins, dimension.apart, stride)
        blocks = np.where(begins | goes_on, blocks * places, blocks)
        calls = np.where(repeats, calls * places, calls)
        counting, calling = counting | begins, calling | repeats
    return Pattern(calls, blocks, block, stride)


def times(form: Form, tile: Points, order: Sequence[str], buffers: int) -> Times:
    """Of tiles of so many points, visited in an order."""
    axes, machine = form.product.axes, form.product.machine
    counts = {n: np.ceil(a.extent / np.asarray(tile[n])) for n, a in axes.items()}
    held = {n: _held(a, np.minimum(tile[n], a.extent)) for n, a in axes.items()}
    sums = {n: _sum(a, np.asarray(tile[n]), counts[n], held[n]) for n, a in axes.items()}
    parts = machine.elements
    transferring, first, last, moved_bytes = (np.zeros(1) for _ in range(4))
    for box in form.boxes:
        found = pattern(box, held)
        moved = found.moved(machine.engine.transaction_bytes) * parts
        cycles = (
            found.calls * machine.engine.latency_cycles + moved / machine.engine.bytes_per_cycle
        )
        number, share = _transfers(box, order, counts, held, sums)
        transferring = transferring + cycles * number * share
        moved_bytes = moved_bytes + moved * number * share
        if box.operand.is_output:
            last = last + cycles
        else:
            first = first + cycles
    executing = _executing(form, counts, held, sums)
    exposed = first + last
    steps = math.prod(counts.values(), start=np.ones(1))
    if buffers == 2 and machine.overlaps:
        total = np.maximum(executing + exposed, transferring + executing / steps)
    else:
        total = transferring + executing
    return Times(transferring, executing, exposed, total, moved_bytes)


def box_bytes(form: Form, tile: Points) -> list[Numbers]:
    """Bytes of each operand's box of a whole tile, in a PE."""
    axes = form.product.axes
    held = {n: _held(a, np.minimum(tile[n], a.extent)) for n, a in axes.items()}
    return [np.asarray(b.elements(held)) * float(b.operand.element_bytes) for b in form.boxes]


def moving_loops(box: Box, counts: Points) -> Any:
    """Whether a loop over several tiles moves a box."""
    moves = np.zeros(1, bool)
    for name in box.operand.axes:
        moves = moves | (counts[name] > 1)
    return moves


def _held(axis: Axis, points: Any) -> Numbers:
    return np.ceil(np.asarray(points) / axis.granule) * axis.grain


def _sum(axis: Axis, size: Any, count: Numbers, held: Numbers) -> Numbers:
    """Points that a PE holds of all tiles of an axis, one after the other."""
    return (count - 1) * held + _held(axis, axis.extent - (count - 1) * size)


def _transfers(
    box: Box, order: Sequence[str], counts: Points, held: Points, sums: Points
) -> tuple[Numbers, Numbers]:
    """How often a box is transferred, and how large it is on average, as a share of a whole one.

    An input comes again whenever a loop moves it, the output goes once when it is complete.
    """
    number, started, share = np.ones(1), np.zeros(1, bool), np.ones(1)
    for name in reversed(order):
        moves = name in box.operand.axes
        started = started | (moves & (counts[name] > 1))
        number = number * np.where(started, counts[name], 1)
        if moves:
            share = share * sums[name] / (counts[name] * held[name])
    return number, share


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
