"""Model copies from global to shared memory as compiled: instructions, loads under way, waits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from cpembed.targets.cuda.model import Gpu, Phase
from experiments.amos2022.a100_schedules.addresses import (
    ELEMENT,
    LANES,
    LINE,
    SECTOR,
    Access,
    sides,
)
from experiments.amos2022.a100_schedules.schedules import DEPTH, ROWS, Schedule

WRITTEN_OUT = {1: 7.9, 2: 8.4, 4: 4.0, 8: 3.5}
GUARDED = {1: 2.8, 2: 2.8, 4: 2.2, 8: 2.3}
"""Numbers of loads of a thread that are under way at a time where a loop is written out, and where
a guard keeps the last ones from reaching beyond a tile, by elements of a load. Loads of more
elements need more registers. Harmonic means over 288 such kernels (``windows.md``) by the ptxas of
CUDA 13 and of 11.8, the time of these measurements; single kernels have 1 to 30."""

GATHERED = 8
"""Number of elements whose addresses TVM has no vector of integers for, and takes apart: eight are
a ``longlong4`` in memory, where up to four are an ``int4`` in registers."""

ROLLED, ROLLED_WIDE = 4, 2
"""Numbers of such loads in a loop, which nvcc unrolls four times; twice, where vectors have four
elements or more."""

WRITTEN_OUT_INSTRUCTIONS, LOOP_INSTRUCTIONS = 4, 16
"""Instructions of a gathered element beside its address: load and store, and in a loop its control,
the guard of its last iteration, and addresses of 64 bits anew."""

LOOP_VECTOR_INSTRUCTIONS = 8
"""Instructions of a vector of a packed factor in a loop, with its address."""

GUARDED_ITERATIONS, MOST_REGISTERS = 8, 15
"""Copies of vectors that nvcc writes out by itself, of 50 kernels that were compiled: 8 iterations,
where a guard keeps the last ones from reaching beyond a tile; without one all, where a thread's
vectors of the image take 15 registers or fewer, and else none."""


def most_written_out(row: Schedule, tile: Mapping[str, int], warps: int) -> float:
    """Return the iterations of the copies of both factors that the compiler writes out by itself.

    Parameters
    ----------
    row : Schedule
        A row of the table.
    tile : mapping of str to int
        Number of elements of both factors in shared memory.
    warps : int
        Number of warps of a block.
    """
    group = row.vectorize * LANES * warps
    if any(elements % group for elements in tile.values()):
        return GUARDED_ITERATIONS
    registers = tile["a"] // group * max(1, row.vectorize * ELEMENT // 4)
    return math.inf if registers <= MOST_REGISTERS else 0


@dataclass(frozen=True)
class Copy:
    """A factor's refill by all threads of a block.

    ``loads`` of a thread, ``ahead`` of them under way at a time, each of ``instructions``;
    ``warp_loads`` of all warps, of ``lines`` of L1 each; ``stores`` wavefronts; ``missing``: the
    share of loads that L1 does not have; ``bytes`` from L2 then. ``written_out``: the next loads
    are issued while others are under way.
    """

    loads: int
    ahead: float
    written_out: bool
    instructions: float
    warp_loads: float
    lines: float
    stores: float
    missing: float
    bytes: float

    def phase(self, again: float, gpu: Gpu) -> Phase:
        """Return the phase; ``again`` is the share of the reads that no earlier tile left in L1."""
        missing = self.missing * again
        unit = gpu.unit
        cycles = copy_cycles(
            self.loads, self.ahead, missing, self.instructions, self.written_out, gpu
        )
        shared = self.warp_loads * self.lines + self.stores
        issue = self.warp_loads * self.instructions * unit.integer_cycles / unit.schedulers
        return Phase(cycles, 0.0, shared, issue, self.bytes * again)


def refill(copies: Sequence[Copy], again: Sequence[float], gpu: Gpu) -> Phase:
    """Return the phase of the copies of both factors, between which there is no barrier.

    Where both are written out, loads of one are under way while the other's are waited for, as in
    the machine code in which they were counted.

    Parameters
    ----------
    copies : sequence of Copy
        Copies of the factors.
    again : sequence of float
        Share of each factor's reads that no earlier tile left in L1.
    gpu : Gpu
        GPU that runs them.
    """
    phase = Phase()
    for copy, share in zip(copies, again, strict=True):
        phase += copy.phase(share, gpu)
    if not all(copy.written_out for copy in copies):
        return phase
    loads = sum(copy.loads for copy in copies)
    ahead = loads / sum(copy.loads / copy.ahead for copy in copies)
    missing = sum(c.loads * c.missing * share for c, share in zip(copies, again, strict=True))
    instructions = sum(copy.loads * copy.instructions for copy in copies)
    cycles = copy_cycles(loads, ahead, missing / loads, instructions / loads, True, gpu)
    return replace(phase, cycles=cycles)


def copy_cycles(
    loads: int, ahead: float, missing: float, instructions: float, written_out: bool, gpu: Gpu
) -> float:
    """Return the cycles of a thread's loads, ``ahead`` of which are under way at a time.

    In a loop it computes their addresses, waits for them and stores them, and begins anew. If all
    is written out, the first have to arrive; then it waits for the others or computes their
    addresses, whichever is longer.
    """
    unit = gpu.unit
    wait = unit.l1_cycles + (gpu.l2_cycles - unit.l1_cycles) * min(1, missing * ahead)
    issue_cycles = loads * instructions * unit.integer_cycles
    groups = math.ceil(loads / ahead)
    if written_out:
        return wait + max((groups - 1) * wait, issue_cycles)
    return groups * wait + issue_cycles


def packed_copy(row: Schedule, factor: str, tile: Mapping[str, int], warps: int) -> Copy:
    """Return the copy of what another kernel packed: vectors that lie one after the other.

    ``tile``: elements of both factors in shared memory.
    """
    vector, elements = row.vectorize, tile[factor]
    loads = math.ceil(elements / (vector * LANES * warps))
    lines = max(1.0, vector * ELEMENT * LANES / LINE)
    warp_loads = elements / LANES / vector
    written_out = loads <= row.unroll or loads <= most_written_out(row, tile, warps)
    instructions = LOOP_VECTOR_INSTRUCTIONS
    if written_out:
        stride = LANES * warps * vector
        instructions = 3 + address_instructions(
            row, factor, stride=stride, packed=True, written_out=True
        )
    guarded = any(count % (vector * LANES * warps) for count in tile.values())
    ahead = ROLLED if vector <= 2 else ROLLED_WIDE
    if written_out:
        ahead = (GUARDED if guarded else WRITTEN_OUT)[vector]
    return Copy(
        loads,
        ahead,
        written_out,
        instructions,
        warp_loads,
        lines,
        warp_loads * lines,
        1.0,
        ELEMENT * elements,
    )


def packing_copy(
    row: Schedule, factor: str, elements: int, warps: int, reads: Access, stays_in_l1: bool
) -> Copy:
    """Return the copy of elements gathered from where they lie.

    If the condition of padding is in each element's expression, elements are loaded and stored one
    by one, and branches keep the next load from being issued before; a condition that a vector has
    in common leaves the vector's loads in a group. ``stays_in_l1``: L1 holds a refill's lines until
    the next one.
    """
    vector = row.vectorize
    loads = math.ceil(elements / (vector * LANES * warps)) * vector
    condition = checked(row, factor)
    checks_elements = condition and factor == "a" and (row.depth % DEPTH > 0 or row.layer.pad > 0)
    single_elements = (checks_elements and vector > 1) or vector == GATHERED
    statements = loads if single_elements else loads // vector
    written_out = statements <= row.unroll
    instructions = address_instructions(
        row,
        factor,
        stride=LANES * warps * vector if written_out else None,
        written_out=written_out,
    )
    shared_by = 1 if single_elements else vector
    warp_loads = elements / LANES
    stores = (
        max(1.0, vector * ELEMENT * LANES / LINE) * warp_loads / (1 if single_elements else vector)
    )
    if condition:
        ahead = 1 if checks_elements else vector
    else:
        ahead = WRITTEN_OUT[1] if loads <= row.unroll else max(ROLLED, vector)
        ahead = min(loads, ahead)
    missing, sectors = reads.missing, reads.sectors
    if not stays_in_l1:
        missing, sectors = reads.missing_once, reads.sectors_once
    return Copy(
        loads,
        ahead,
        written_out and not condition,
        instructions / shared_by + (WRITTEN_OUT_INSTRUCTIONS if written_out else LOOP_INSTRUCTIONS),
        warp_loads,
        reads.lines,
        stores,
        missing,
        sectors * warp_loads * SECTOR,
    )


def checked(row: Schedule, factor: str) -> bool:
    """True if elements may lie outside the factor: in padding, or beyond the fused axes."""
    if row.depth % DEPTH:
        return True
    return factor == "a" and (row.layer.pad > 0 or row.rows % ROWS > 0)


def digit_instructions(extent: int) -> int:
    """Return the instructions of an index divided by a constant, and of the remainder.

    They are shifts and masks, or products.
    """
    return 2 if extent & (extent - 1) == 0 else 6


@lru_cache(maxsize=256)
def address_instructions(
    row: Schedule,
    factor: str,
    *,
    stride: int | None = None,
    entire_factor: bool = False,
    packed: bool = False,
    written_out: bool = False,
) -> float:
    """Return integer instructions for the address of an element, or of a vector if ``packed``.

    Its index is taken apart into the tile's axes, and these into the image's or the filters'. From
    one load of a thread to the next the index grows by ``stride``: axes that it does not move are
    computed once, and those that it moves by multiples of their extents are constants in a loop
    that is written out.
    """
    count, inner = 0.0, 1
    moved: set[str] = set()
    for side in reversed(sides(row, factor)):
        extent = side.total if entire_factor else side.tile
        if extent == 1:
            continue
        inner_before, inner = inner, inner * extent
        if stride is not None and written_out and inner_before % stride == 0:
            continue
        if stride is None or stride % inner:
            moved.add(side.name)
            count += digit_instructions(extent)
    if packed:
        return count + len(moved)
    return count + _unpacked_instructions(row, factor, moved)


def _unpacked_instructions(row: Schedule, factor: str, moved: set[str]) -> float:
    """Return the instructions from tiles' indices to those of the image or the filters.

    The conditions of padding count too.
    """
    count = 2.0
    if moved & {"x", "depth"}:
        count += _fused_instructions(row, row.sums) + (2 if row.depth % DEPTH else 0)
    if factor == "b":
        return count
    if moved & {"i", "row"}:
        count += _fused_instructions(row, row.pixels) + (2 if row.rows % ROWS else 0)
    # Two comparisons with each edge, and their conjunctions.
    return count + 2 + (6 if row.layer.pad else 0)


def _fused_instructions(row: Schedule, axes: tuple[str, ...]) -> float:
    sizes = [row.layer.sizes[axis] for axis in axes if row.layer.sizes[axis] > 1]
    return sum(digit_instructions(size) for size in sizes) if len(sizes) > 1 else 0
