"""Copies from global to shared memory as compiled: instructions, loads under way, waits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from cpembed.targets.cuda.gpu import Gpu
from cpembed.targets.cuda.model import Phase
from experiments.a100_schedules.addresses import ELEMENT, LANES, LINE, Access, sides
from experiments.a100_schedules.schedules import DEPTH, ROWS, Schedule

WRITTEN_OUT = 16
"""Loads of a thread that are under way together where a loop is written out: what registers allow;
nvcc issues 8 to 39 before the first store."""

ROLLED = 4
"""In a loop, which nvcc unrolls four times; twice, where vectors of four elements or more are
copied under a condition (:data:`ROLLED_WIDE`)."""

ROLLED_WIDE = 2

FEW = 8
"""Iterations that nvcc writes out by itself."""


@dataclass(frozen=True)
class Copy:
    """Of a factor's refill by the whole block: ``loads`` of a thread, ``ahead`` of them under way
    together, each of ``instructions``; ``warp_loads`` of all warps together, of ``lines`` of L1
    each; ``stores`` wavefronts; ``missing``: the share of loads that L1 does not have; ``bytes``
    from L2 then. Of loads under conditions one ``serial`` group waits for the other."""

    loads: int
    ahead: int
    serial: bool
    instructions: float
    warp_loads: float
    lines: float
    stores: float
    missing: float
    bytes: float

    def phase(self, again: float, gpu: Gpu) -> Phase:
        """``again``: the share of the reads that no earlier tile left in L1."""
        missing = self.missing * again
        unit = gpu.unit
        if self.serial:
            groups = self.loads / self.ahead
            wait = unit.l1_cycles + (gpu.l2_cycles - unit.l1_cycles) * min(1, missing * self.ahead)
            cycles = groups * wait + self.loads * self.instructions * unit.integer_cycles
        else:
            cycles = copy_cycles(self.loads, self.ahead, missing, self.instructions, gpu)
        shared = self.warp_loads * self.lines + self.stores
        issue = self.warp_loads * self.instructions * unit.integer_cycles / unit.schedulers
        return Phase(cycles, 0.0, shared, issue, self.bytes * again)


def copy_cycles(loads: int, ahead: int, missing: float, instructions: float, gpu: Gpu) -> float:
    """Of a thread's loads, ``ahead`` under way together: the first have to arrive; then it waits
    for the others or computes their addresses, whichever is longer. Under conditions (``ahead`` of
    1) nothing overlaps."""
    unit = gpu.unit
    wait = unit.l1_cycles + (gpu.l2_cycles - unit.l1_cycles) * min(1, missing * ahead)
    own = loads * instructions * unit.integer_cycles
    if ahead == 1:
        return loads * wait + own
    return wait + max((math.ceil(loads / ahead) - 1) * wait, own)


def packed_copy(row: Schedule, factor: str, elements: int, warps: int, gpu: Gpu) -> Copy:
    """Of what another kernel packed: vectors that lie one after the other."""
    vector = row.vectorize
    loads = math.ceil(elements / (vector * LANES * warps))
    lines = max(1.0, vector * ELEMENT * LANES / LINE)
    warp_loads = elements / LANES / vector
    written_out = loads <= max(row.unroll, FEW)
    instructions = address_instructions(
        row, factor, stride=LANES * warps * vector, packed=True, written_out=written_out
    )
    instructions += 3 if written_out else 4
    ahead = WRITTEN_OUT if written_out else ROLLED if vector <= 2 else ROLLED_WIDE
    return Copy(
        loads,
        ahead,
        False,
        instructions,
        warp_loads,
        lines,
        warp_loads * lines,
        1.0,
        ELEMENT * elements,
    )


def packing_copy(
    row: Schedule, factor: str, elements: int, warps: int, found: Access, few: bool, gpu: Gpu
) -> Copy:
    """Of elements gathered from where they lie.

    Where the condition of padding is in each element's expression, elements are loaded and stored
    one by one, and branches keep the next load from being issued before; a condition that a vector
    has in common leaves the vector's loads together. ``few``: L1 holds a refill's lines until the
    next one.
    """
    vector = row.vectorize
    loads = math.ceil(elements / (vector * LANES * warps)) * vector
    condition = checked(row, factor)
    single = condition and factor == "a" and (row.depth % DEPTH > 0 or row.layer.pad > 0)
    apart = single and vector > 1
    statements = loads if apart else loads // vector
    written_out = statements <= row.unroll
    known = not apart or loads <= row.unroll
    instructions = address_instructions(
        row,
        factor,
        stride=LANES * warps * vector if known else None,
        written_out=written_out,
    )
    shared_by = 1 if apart else vector
    warp_loads = elements / LANES
    stores = max(1.0, vector * ELEMENT * LANES / LINE) * warp_loads / (1 if apart else vector)
    if condition:
        ahead = 1 if single else vector
    else:
        ahead = WRITTEN_OUT if loads <= row.unroll else max(ROLLED, vector)
        ahead = min(loads, ahead)
    missing, sectors = found.missing, found.sectors
    if not few:
        missing, sectors = found.missing_once, found.sectors_once
    return Copy(
        loads,
        ahead,
        condition,
        instructions / shared_by + 4,
        warp_loads,
        found.lines,
        stores,
        missing,
        sectors * warp_loads * 32,
    )


def checked(row: Schedule, factor: str) -> bool:
    """Whether elements may lie outside the factor: in padding, or beyond the fused axes."""
    if row.depth % DEPTH:
        return True
    return factor == "a" and (row.layer.pad > 0 or row.rows % ROWS > 0)


def digit_instructions(extent: int) -> int:
    """Of an index divided by a constant, and the remainder: shifts and masks, or products."""
    return 2 if extent & (extent - 1) == 0 else 6


@lru_cache(maxsize=256)
def address_instructions(
    row: Schedule,
    factor: str,
    *,
    stride: int | None = None,
    whole: bool = False,
    packed: bool = False,
    written_out: bool = False,
) -> float:
    """Integer instructions for the address of an element, or of a vector that is ``packed``.

    Its index is taken apart into the tile's axes, and these into the image's or the filters'. From
    one load of a thread to the next the index grows by ``stride``: axes that it does not move are
    computed once, and those that it moves by whole numbers are constants in a loop that is
    written out.
    """
    count, inner = 0.0, 1
    moved: set[str] = set()
    for side in reversed(sides(row, factor)):
        extent = side.total if whole else side.tile
        if extent == 1:
            continue
        before, inner = inner, inner * extent
        if stride is not None and written_out and before % stride == 0:
            continue
        if stride is None or stride % inner:
            moved.add(side.name)
            count += digit_instructions(extent)
    if packed:
        return count + len(moved)
    return count + _unpacked_instructions(row, factor, moved)


def _unpacked_instructions(row: Schedule, factor: str, moved: set[str]) -> float:
    """From tiles' indices to those of the image or the filters, with their conditions."""
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
