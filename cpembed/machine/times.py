"""Cycles of tilings, from their traffic: at each memory the larger of computing, reading, writing.

The recursion of AMOS (section 5.3), whose innermost level is the instruction; a transfer takes a
latency and its bytes, whole granules, at the bandwidth of the path (swATOP, section 4.6,
equation 1).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cpembed.hw.level_tables import Moved, Overlapping
from cpembed.hw.levels import Hierarchy, Memory
from cpembed.machine.nest import Floats, TileNest
from cpembed.machine.traffic import Tilings


@dataclass(frozen=True)
class MemoryTime:
    """Cycles of one unit of a memory and all below it: what that computes, what it reads from the
    memory and writes to it, how long it is ``moving`` data, and all of that ``together``. Bytes are
    those that are read from all units of the memory, and written to them, by those below."""

    memory: str
    computing: Floats
    reading: Floats
    writing: Floats
    moving: Floats
    together: Floats
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
        independent = np.full(tilings.rows, np.inf)
        for operand in nest.operands:
            if operand.is_output:
                touched = operand.elements({**nest.fixed, **tilings.sizes})
                tiles = touched / nest.execution_elements(operand)
                independent = np.minimum(independent, tiles)
        waiting = calls * unit.latency_cycles / independent
    loads = zero
    for memory in machine.levels[0]:
        if memory.moves is not Moved.REGION:
            loads = loads + tilings.traffic[memory.name].transfers
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
            found = _time(tilings, machine, memory, known, together)
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
    machine: Hierarchy,
    memory: Memory,
    below: list[Memory],
    computing: Floats,
) -> MemoryTime:
    busy = dict(zip(range(len(machine.levels) - 1, -1, -1), reversed(tilings.busy), strict=False))
    read, write, reading, writing = (np.zeros(tilings.rows) for _ in range(4))
    tiles = np.ones(tilings.rows)
    for child in below:
        traffic = tilings.traffic[child.name]
        # Of a level whose tiles are not chosen yet, what is known is that of the next one outside.
        active = busy.get(child.level, tilings.busy[0]) / busy[memory.level]
        read = read + active * traffic.read_bytes
        write = write + active * traffic.write_bytes
        waits = memory.latency_cycles if _starts_anew(child) else 0.0
        both = np.maximum(traffic.read_bytes + traffic.write_bytes, 1.0)
        latency = waits * traffic.transfers
        reading = reading + latency * traffic.read_bytes / both
        writing = writing + latency * traffic.write_bytes / both
        reading = np.maximum(reading, traffic.read_bytes / memory.each_read)
        writing = np.maximum(writing, traffic.write_bytes / memory.each_write)
        tiles = np.maximum(tiles, traffic.tiles)
    reading = reading + read / memory.read_bytes
    writing = writing + write / memory.write_bytes
    modes = {child.overlapped for child in below}
    strictest = next(mode for mode in Overlapping if mode in modes)
    in_turn = memory.half_duplex or strictest is Overlapping.NONE
    moving = reading + writing if in_turn else np.maximum(reading, writing)
    together = np.maximum(computing, moving)
    if strictest is Overlapping.NONE:
        together = computing + moving
    elif strictest is Overlapping.DOUBLE_BUFFER:
        # The first tile is read before anything is computed, the last one written after that.
        together = together + (computing + reading + writing - together) / tiles
    units = busy[memory.level]
    return MemoryTime(
        memory.name, computing, reading, writing, moving, together, units * read, units * write
    )


def _starts_anew(child: Memory) -> bool:
    """Whether every transfer into a memory waits for its first data: nothing asks ahead."""
    return child.overlap is not Overlapping.HARDWARE and child.moves is Moved.REGION
