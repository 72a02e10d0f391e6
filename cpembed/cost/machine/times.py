"""Cycles of tilings, from their traffic: at each memory the larger of computing, reading, writing.

The recursion of AMOS (section 5.3), whose innermost level is the instruction; a transfer takes a
latency and its bytes, whole granules, at the bandwidth of the path (swATOP, section 4.6,
equation 1).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cpembed.cost.machine.nest import Floats, TileNest
from cpembed.cost.machine.traffic import Tilings, Traffic
from cpembed.hw.machine import Hierarchy, Memory, Overlapping, TransferUnit


@dataclass(frozen=True)
class MemoryTime:
    """Cycles of one unit of a memory and all below it: what that computes, what it reads from the
    memory and writes to it, how long it is ``moving`` data, and all of that ``together``; whether
    computing ``waits`` for data. Bytes are those that are read from all units of the memory, and
    written to them, by those below."""

    memory: str
    computing: Floats
    reading: Floats
    writing: Floats
    moving: Floats
    together: Floats
    waits: NDArray[np.bool_]
    read_bytes: Floats
    written_bytes: Floats


@dataclass(frozen=True)
class ComputeTime:
    """Cycles of the busiest unit: executions one after the other, waiting for results that are
    added to, and issuing executions and loads of tiles; the longest of them."""

    executing: Floats
    waiting: Floats
    issuing: Floats
    longest: Floats


def compute_time(tilings: Tilings, nest: TileNest, machine: Hierarchy) -> ComputeTime:
    """Of the units that execute. Where the innermost tiles are not chosen yet, what is known: a
    lower bound."""
    unit = machine.compute
    calls = nest.calls * tilings.share
    chosen = len(tilings.busy) == len(machine.levels)
    zero = np.zeros(tilings.rows)
    if not chosen:
        level = len(machine.levels) - len(tilings.busy)
        more = machine.levels[0][0].units / machine.levels[level][0].units
        executing = unit.cycles * calls / more
        return ComputeTime(executing, zero, zero, executing)
    waiting = zero
    if nest.has_reduction:
        waiting = nest.executed * unit.latency_cycles * tilings.waits
    loads = zero
    for memory in machine.levels[0]:
        if memory.transfer_unit is not TransferUnit.REGION:
            traffic = tilings.traffic[memory.name]
            loads = loads + traffic.read_transfers + traffic.write_transfers
    issuing = (calls + loads) / unit.issues_per_cycle
    executing = unit.cycles * calls
    longest = np.maximum(np.maximum(executing, waiting), issuing) + unit.latency_cycles
    return ComputeTime(executing, waiting, issuing, longest)


def memory_times(
    tilings: Tilings, nest: TileNest, machine: Hierarchy, computing: Floats
) -> Iterator[MemoryTime]:
    """Of every memory that others are filled from, the innermost first."""
    together = computing
    for level in machine.levels[1:]:
        for memory in level:
            below = [m for m in machine.memories.values() if m.parent == memory.name]
            known = [m for m in below if m.name in tilings.traffic]
            if not known:
                continue
            found = _time(tilings, nest, machine, memory, known, together)
            yield found
            together = found.together


def cycles(tilings: Tilings, nest: TileNest, machine: Hierarchy) -> Floats:
    """Of all, or, where inner tiles are not chosen yet, a lower bound."""
    total = compute_time(tilings, nest, machine).longest
    for found in memory_times(tilings, nest, machine, total):
        total = found.together
    return total


def _time(
    tilings: Tilings,
    nest: TileNest,
    machine: Hierarchy,
    memory: Memory,
    below: list[Memory],
    computing: Floats,
) -> MemoryTime:
    traffic = [(child, tilings.traffic[child.name]) for child in below]
    reading, writing = _transfer_times(memory, traffic, tilings.rows)
    moving = _beside(memory, reading, writing)
    modes = {child.effective_overlap for child in below}
    strictest = next(mode for mode in Overlapping if mode in modes)
    together, waits = np.maximum(computing, moving), moving > computing
    if strictest is Overlapping.NONE:
        moving = reading + writing
        together, waits = computing + moving, moving > computing
    elif strictest is Overlapping.DOUBLE_BUFFER:
        # The first tile is read before anything is computed, the last one written after that; and
        # a tile is computed beside no transfer.
        first = [(c, tilings.first[c.name]) for c in below if c.name in tilings.first]
        ends = sum(_transfer_times(memory, first, tilings.rows), start=np.zeros(1))
        alone = moving + _tile_time(tilings, nest, machine, memory)
        together = np.maximum(computing + ends, alone)
        waits = (alone > computing + ends) | (ends > computing)
    return MemoryTime(
        memory.name,
        computing,
        reading,
        writing,
        moving,
        together,
        waits,
        sum((t.total_read for _, t in traffic), start=np.zeros(tilings.rows)),
        sum((t.total_write for _, t in traffic), start=np.zeros(tilings.rows)),
    )


def _transfer_times(
    memory: Memory, exchanged: list[tuple[Memory, Traffic]], rows: int
) -> tuple[Floats, Floats]:
    """Cycles that memories below need to read from a memory, and to write to it."""
    reading, writing, read, write = (np.zeros(rows) for _ in range(4))
    for child, traffic in exchanged:
        read, write = read + traffic.shared_read, write + traffic.shared_write
        waits = memory.latency_cycles if _starts_anew(child) else 0.0
        reading = reading + waits * traffic.read_transfers
        writing = writing + waits * traffic.write_transfers
        reading = np.maximum(reading, traffic.read_bytes / memory.child_read_bytes)
        writing = np.maximum(writing, traffic.write_bytes / memory.child_write_bytes)
    return reading + read / memory.read_bytes, writing + write / memory.write_bytes


def _beside(memory: Memory, reading: Floats, writing: Floats) -> Floats:
    """Cycles of both, one after the other where a memory does one at a time."""
    return reading + writing if memory.half_duplex else np.maximum(reading, writing)


def _tile_time(tilings: Tilings, nest: TileNest, machine: Hierarchy, memory: Memory) -> Floats:
    """Cycles of the executions of the first tile that a memory gives away, at least."""
    stage = next(stage for stage in tilings.stages if stage.level < memory.level)
    units = machine.levels[0][0].units / machine.levels[stage.level][0].units
    size = math.prod(stage.sizes.values(), start=np.ones(tilings.rows))
    return machine.compute.cycles * nest.executed * size / units


def _starts_anew(child: Memory) -> bool:
    """Whether every transfer into a memory waits for its first data: nothing asks ahead."""
    return child.overlap is not Overlapping.HARDWARE and child.transfer_unit is TransferUnit.REGION
