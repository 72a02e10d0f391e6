"""Kernels next to the product: they pack the factors, and put results in place."""

from __future__ import annotations

import math
from functools import cache

from cpembed.targets.cuda.model import Gpu, KernelWork, Phase, estimate
from experiments.amos2022.a100_schedules.addresses import LANES, access, result_lines
from experiments.amos2022.a100_schedules.copies import (
    LOOP_INSTRUCTIONS,
    ROLLED,
    WRITTEN_OUT,
    address_instructions,
    checked,
    copy_cycles,
    digit_instructions,
)
from experiments.amos2022.a100_schedules.schedules import (
    COLUMNS,
    DEPTH,
    ROWS,
    Layer,
    OtherKernels,
    Schedule,
    undivided,
)

MOST_WARPS = 32
MOST_BLOCKS = 65_536
"""Maximum number of blocks of a kernel that AMOS tries."""


def auxiliary_works(row: Schedule, divided: OtherKernels, gpu: Gpu) -> tuple[KernelWork, ...]:
    """Return the work of the kernels that pack factors and place results.

    A lane packs or places one element after the other.

    Parameters
    ----------
    row : Schedule
        Schedule of AMOS.
    divided : OtherKernels
        Division of these kernels among blocks and warps.
    gpu : Gpu
        GPU that runs them.
    """
    works = [_placing(row, divided, gpu)]
    if not row.inline:
        works += [_packing(row, factor, divided, gpu) for factor in "ab"]
    return tuple(works)


def _packing(row: Schedule, factor: str, divided: OtherKernels, gpu: Gpu) -> KernelWork:
    spatial = [
        axis.total for name, axis in row.spatial_axes.items() if (name == "j") is (factor == "b")
    ]
    total = math.prod(spatial) * math.prod(axis.total for axis in row.reduce)
    total *= DEPTH * (ROWS if factor == "a" else COLUMNS)
    reads = access(row, factor, 1, entire_factor=True)
    loads_ahead = 1 if checked(row, factor) else ROLLED
    instructions = address_instructions(row, factor, entire_factor=True) + LOOP_INSTRUCTIONS
    return _elementwise(
        f"pack {factor}", total, divided, reads.lines, reads.missing, instructions, loads_ahead, gpu
    )


def _placing(row: Schedule, divided: OtherKernels, gpu: Gpu) -> KernelWork:
    """Return the work of the kernel that puts results in place."""
    layer, lines = row.layer, result_lines(row.layer, row.pixels)
    instructions = 20 + digit_instructions(layer.p) + digit_instructions(layer.q)
    written_out = divided.sequence <= max(divided.unroll, 8)
    ahead = WRITTEN_OUT[1] if written_out else ROLLED
    return _elementwise(
        "place", layer.outputs, divided, lines, 1.0, instructions, ahead, gpu, written_out
    )


def _elementwise(
    name: str,
    total: int,
    divided: OtherKernels,
    lines: float,
    missing: float,
    instructions: float,
    ahead: float,
    gpu: Gpu,
    written_out: bool = False,
) -> KernelWork:
    count = divided.sequence
    cycles = copy_cycles(count, min(ahead, count), missing, instructions, written_out, gpu)
    issue = count * divided.warps * instructions * gpu.unit.integer_cycles / gpu.unit.schedulers
    shared = count * divided.warps * (lines + 1)
    blocks = math.ceil(total / (LANES * divided.warps * count))
    phase = Phase(cycles, 0.0, shared, issue)
    return KernelWork(name, blocks, divided.warps, 0, 32, fetch=phase)


@cache
def usual_works(layer: Layer, mapping: str, inline: bool, gpu: Gpu) -> tuple[KernelWork, ...]:
    """Return the median of all divisions of the other kernels, by their times.

    Of the numbers of a schedule, only the mapping and ``inline`` matter.
    """
    row = undivided(layer, mapping, inline=inline)
    variants = [
        auxiliary_works(row, divided, gpu) for divided in _divisions(layer.outputs // LANES)
    ]
    variants.sort(key=lambda works: sum(estimate(work, gpu).us for work in works))
    return variants[len(variants) // 2]


def _divisions(total: int) -> list[OtherKernels]:
    """Return all divisions that AMOS tries."""
    divisors = [number for number in range(1, total + 1) if total % number == 0]
    return [
        OtherKernels(total // warps // sequence, sequence, warps, 512)
        for warps in divisors
        if warps <= MOST_WARPS
        for sequence in divisors
        if total % (warps * sequence) == 0 and total // warps // sequence <= MOST_BLOCKS
    ]
