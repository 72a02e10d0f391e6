"""Cycles of tilings, from their traffic: at each memory the maximum of computing, reading, writing.

The recursion is that of AMOS (section 5.3), whose innermost level is the instruction. A transfer
takes a latency and its bytes, in full granules, at the bandwidth of the path (swATOP, section 4.6,
equation 1).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cpembed.cost.machine.nest import ExecutionNest, Floats
from cpembed.cost.machine.regions import Traffic
from cpembed.cost.machine.traffic import Tilings
from cpembed.hw.machine import Hierarchy, Link, Memory, Overlapping, TransferUnit


@dataclass(frozen=True)
class MemoryTime:
    """Cycles of one unit of a memory with everything below it.

    ``moving`` is the time of the transfers, ``total`` includes computing; ``waits`` is true where
    computing waits for data. Bytes are those that the memories below exchange with all units of the
    memory.
    """

    memory: str
    computing: Floats
    reading: Floats
    writing: Floats
    moving: Floats
    total: Floats
    waits: NDArray[np.bool_]
    read_bytes: Floats
    written_bytes: Floats


@dataclass(frozen=True)
class ComputeTime:
    """Cycles of the busiest unit, and the ``longest`` of them with the latency of an execution.

    They are those of executing one call after the other, of waiting for results that are added to,
    and of issuing executions and loads of tiles.
    """

    executing: Floats
    waiting: Floats
    issuing: Floats
    longest: Floats


def compute_time(tilings: Tilings, nest: ExecutionNest, machine: Hierarchy) -> ComputeTime:
    """Return the cycles of the units that execute, a lower bound if inner tiles are undecided.

    Parameters
    ----------
    tilings : Tilings
        Tilings, from main memory down to some level.
    nest : ExecutionNest
        Nest that they tile.
    machine : Hierarchy
        Machine with its memories.
    """
    unit = machine.compute
    calls = nest.calls * tilings.share
    is_complete = len(tilings.busy) == len(machine.levels)
    zero = np.zeros(tilings.rows)
    if not is_complete:
        level = len(machine.levels) - len(tilings.busy)
        # Inner levels are undecided: at best all units below share the work equally.
        more = machine.levels[0][0].units / machine.levels[level][0].units
        executing = unit.cycles * calls / more
        return ComputeTime(executing, zero, zero, executing)
    waiting = zero
    # Each execution that adds to the same output waits for the one before.
    if nest.has_reduction:
        waiting = nest.executed * unit.latency_cycles * tilings.waits
    loads = zero
    for memory in machine.levels[0]:
        # Tiles of single executions are loaded by instructions, which take issue slots.
        if memory.transfer_unit is not TransferUnit.REGION:
            for name in nest.links(machine, [memory]):
                traffic = tilings.traffic[name]
                loads = loads + traffic.read_transfers + traffic.write_transfers
    issuing = (calls + loads) / unit.issues_per_cycle
    executing = unit.cycles * calls
    # The last result arrives a latency after its execution began.
    longest = np.maximum(np.maximum(executing, waiting), issuing) + unit.latency_cycles
    return ComputeTime(executing, waiting, issuing, longest)


def memory_times(
    tilings: Tilings, nest: ExecutionNest, machine: Hierarchy, computing: Floats
) -> Iterator[MemoryTime]:
    """Yield the times of every memory that others are filled from, the innermost first.

    Parameters
    ----------
    tilings, nest, machine
        Those of :func:`compute_time`.
    computing : array
        Cycles of computing.
    """
    total = computing
    for level in machine.levels[1:]:
        for memory in level:
            links = machine.links_below(memory)
            used = [link for link in links if link.name in tilings.traffic]
            if not used:
                continue
            time = _time(tilings, nest, machine, memory, used, total)
            yield time
            total = time.total


def cycles(tilings: Tilings, nest: ExecutionNest, machine: Hierarchy) -> Floats:
    """Return the cycles of tilings, a lower bound if inner tiles are undecided.

    Parameters
    ----------
    tilings, nest, machine
        Those of :func:`compute_time`.
    """
    total = compute_time(tilings, nest, machine).longest
    for time in memory_times(tilings, nest, machine, total):
        total = time.total
    return total


def _time(
    tilings: Tilings,
    nest: ExecutionNest,
    machine: Hierarchy,
    memory: Memory,
    links: Sequence[Link],
    computing: Floats,
) -> MemoryTime:
    traffic = [(link.memory, tilings.traffic[link.name]) for link in links]
    reading, writing = _transfer_times(memory, traffic, tilings.rows)
    moving = reading + writing if memory.half_duplex else np.maximum(reading, writing)
    modes = {link.memory.effective_overlap for link in links}
    # Children may differ; a memory serves them all, so the one that overlaps least decides.
    strictest = next(mode for mode in Overlapping if mode in modes)
    total, waits = np.maximum(computing, moving), moving > computing
    if strictest is Overlapping.NONE:
        moving = reading + writing
        total, waits = computing + moving, moving > computing
    elif strictest is Overlapping.DOUBLE_BUFFER:
        # The first tile is read before anything is computed, the last one written after that; and
        # at least one tile is computed without a simultaneous transfer.
        first = [(k.memory, tilings.first[k.name]) for k in links if k.name in tilings.first]
        ends = sum(_transfer_times(memory, first, tilings.rows), start=np.zeros(1))
        transferring = moving + _tile_time(tilings, nest, machine, memory)
        total = np.maximum(computing + ends, transferring)
        waits = (transferring > computing + ends) | (ends > computing)
    return MemoryTime(
        memory=memory.name,
        computing=computing,
        reading=reading,
        writing=writing,
        moving=moving,
        total=total,
        waits=waits,
        read_bytes=sum((t.total_read for _, t in traffic), start=np.zeros(tilings.rows)),
        written_bytes=sum((t.total_write for _, t in traffic), start=np.zeros(tilings.rows)),
    )


def _transfer_times(
    memory: Memory, exchanged: Sequence[tuple[Memory, Traffic]], rows: int
) -> tuple[Floats, Floats]:
    """Return the cycles in which memories below read from a memory, and write to it."""
    reading, writing, read, write = (np.zeros(rows) for _ in range(4))
    for child, traffic in exchanged:
        read, write = read + traffic.shared_read, write + traffic.shared_write
        # Without hardware that requests ahead, every transfer waits for its first data.
        is_blocking = child.overlap is not Overlapping.HARDWARE
        is_blocking = is_blocking and child.transfer_unit is TransferUnit.REGION
        waits = memory.latency_cycles if is_blocking else 0.0
        reading = reading + waits * traffic.read_transfers
        writing = writing + waits * traffic.write_transfers
        reading = np.maximum(reading, traffic.read_bytes / memory.child_read_bytes)
        writing = np.maximum(writing, traffic.write_bytes / memory.child_write_bytes)
    return reading + read / memory.read_bytes, writing + write / memory.write_bytes


def _tile_time(tilings: Tilings, nest: ExecutionNest, machine: Hierarchy, memory: Memory) -> Floats:
    """Return a lower bound on the cycles of the first tile that a memory hands down."""
    stage = next(stage for stage in tilings.stages if stage.level < memory.level)
    units = machine.levels[0][0].units / machine.levels[stage.level][0].units
    size = math.prod(stage.sizes.values(), start=np.ones(tilings.rows))
    return machine.compute.cycles * nest.executed * size / units
