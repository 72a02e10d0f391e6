"""Registers of a thread, estimated from what it holds, and the launch bounds that follow.

A thread holds its sums, its fragments, and the places from which it loads them. If a loop copies
later stages, it holds what :mod:`cpembed.targets.cuda.multistage.copies` keeps of each row beside
them. How many registers ptxas takes for that was counted in 278 kernels of random workloads and
schedules for three architectures (``benchmarks/gpu/registers.md``).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from cpembed.ir.dtypes import size_bytes
from cpembed.targets.cuda.instructions import LANES, TensorCoreInstruction

if TYPE_CHECKING:
    from cpembed.targets.cuda.fragment_products import MatrixImage
    from cpembed.targets.cuda.multistage.schedule import Plan

MAX_REGISTERS = 255

SPILL_ESTIMATE = 256
"""Estimated registers beyond which ptxas was seen to spill with 255: in 8 of 78 kernels of the
largest tiles, for three architectures, and in none of 102 up to here."""

MULTIPROCESSOR_REGISTERS = 65_536

MULTIPROCESSOR_THREADS = 1536
"""Maximum number of threads of a multiprocessor of sm_86, sm_89 and sm_120, the least of all."""

MULTIPROCESSOR_BLOCKS = 24
"""Maximum number of blocks of a multiprocessor of sm_89 and sm_120, the least of the architectures
that are described. ptxas warns of more, and ignores them."""

PLACE_REGISTERS = 2
"""Number of registers for a place in shared memory: before the loop, and in the stage that is read.
"""

THREAD_REGISTERS, LOOP_REGISTERS = 4, 11
"""Number of registers for the thread's own place, and for the loop that copies: its count, the
stages that are read and filled, addresses of both factors, digits of the depth."""

COPY_REGISTERS, ROW_REGISTERS, SHORT_REGISTERS = 1, 2, 1
"""Number of registers for a vector that the loop copies, more for one of a row at no fixed distance
from others (an address of 64 bits), and more for one that is copied through registers."""

LOCATED_REGISTERS = 4
"""Number of registers for each of some unrolled copies that compute their addresses."""

TURN_REGISTERS, PAIR_REGISTERS = 8, 4
"""Further ones if each stage of the ring has its own statements, or steps are written in pairs."""

REGISTER_MARGIN, PAIR_MARGIN = 24, 16
"""Number of registers beyond the estimate that ptxas takes in one of a hundred kernels, and more of
them where steps are written in pairs."""


def registers(plan: Plan) -> int:
    """Return the estimated registers of a thread, which are allocated in units of 8."""
    schedule = plan.schedule
    # A block that computes one depth alone has one set of fragments.
    sets = min(2, plan.steps * schedule.depth)
    total = product_registers(
        plan.product.instruction, schedule.tile, schedule.depth, plan.shared_tiles, sets
    )
    copies = LOOP_REGISTERS + sum(_copy_registers(plan, number) for number in range(2))
    if plan.copying > 1:
        total += copies
        total += TURN_REGISTERS if plan.ring_turns else PAIR_REGISTERS * (schedule.depth % 2)
    # Copies before the loop are all issued before the first fragment is loaded.
    total = max(total, THREAD_REGISTERS + copies)
    return -(-total // 8) * 8


def product_registers(
    instruction: TensorCoreInstruction,
    tile: tuple[int, int],
    depth: int,
    images: tuple[MatrixImage, MatrixImage],
    sets: int = 2,
) -> int:
    """Return the registers of a thread for the products of a stage, those of its own place too.

    Parameters
    ----------
    instruction : TensorCoreInstruction
        Instruction of a warp.
    tile : tuple of int and int
        Number of instruction tiles of the warp along rows and columns.
    depth : int
        Number of instruction tiles along the depth of a stage.
    images : tuple of MatrixImage and MatrixImage
        Both factors in a stage.
    sets : int
        Number of sets of fragments.
    """
    total = THREAD_REGISTERS + math.prod(tile) * instruction.registers[2]
    for number, image in enumerate(images):
        extent = (instruction.m, instruction.n)[number]
        # Bytes along the depth of a row. Fragments of WMMA have each element twice, of which ptxas
        # keeps one.
        width = instruction.k * size_bytes((instruction.a, instruction.b)[number])
        total += sets * tile[number] * extent * width // (4 * LANES)
        # Places do not follow from each other by a constant where chunks are permuted. One load
        # takes two tiles of columns.
        places = {0}
        if instruction.kind == "mma":
            places = {
                image.matrix_moves(row * extent, inner * width)[0]
                for row in range(0, tile[number], 1 + number)
                for inner in range(depth)
            }
        total += PLACE_REGISTERS * len(places)
    return total


def most_registers(plan: Plan) -> int:
    """Return the number of registers of a thread with which no kernel was seen to spill."""
    return plan.registers + REGISTER_MARGIN + PAIR_MARGIN * (plan.schedule.depth % 2)


TAIL_MARGIN = 10
"""Number of further registers that ptxas took, for tiles of 64 x 64, for each of rows and columns
that do not fill all blocks."""


def may_spill(plan: Plan) -> bool:
    """Return True if a thread needs so many registers that kernels like this were seen to spill."""
    tiles, block = plan.product.tiles[1:3], plan.schedule.block
    tails = sum(count % size > 0 for count, size in zip(tiles, block, strict=True))
    margin = max(PAIR_MARGIN * (plan.schedule.depth % 2), TAIL_MARGIN * tails)
    return plan.registers + margin > SPILL_ESTIMATE


def _copy_registers(plan: Plan, number: int) -> int:
    """Return the registers that the copies of a factor keep in the loop."""
    tile, turns = plan.shared_tiles[number], plan.copy_turns(number)
    if plan.separation(number) is None:
        return LOCATED_REGISTERS * plan.unrolled_copies(number)
    each = COPY_REGISTERS
    if turns > 1 and plan.row_distance(number) is None:
        each += ROW_REGISTERS
    return turns * (each + SHORT_REGISTERS * (tile.width < 4))


def resident_blocks(count: int, threads: int) -> int:
    """Return the number of blocks that a multiprocessor has registers for, at least 1.

    ptxas takes as many registers as leave room for so many blocks if launch bounds name them. By
    itself it takes fewer on some architectures, for more blocks, and spills.

    Parameters
    ----------
    count : int
        Number of registers of a thread.
    threads : int
        Number of threads of a block.
    """
    # Each of the four schedulers has a quarter of the registers.
    warps = 4 * (MULTIPROCESSOR_REGISTERS // 4 // (-(-count // 8) * 8 * LANES))
    blocks = min(warps, MULTIPROCESSOR_THREADS // LANES) * LANES // threads
    return max(1, min(blocks, MULTIPROCESSOR_BLOCKS))
