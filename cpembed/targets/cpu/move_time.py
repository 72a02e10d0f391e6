"""How long packing and unpacking take by the model, and how many threads they are worth."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cpembed.ir.dtypes import size_bytes
from cpembed.kernel.layout_transform import effort, plan_move, runs
from cpembed.kernel.nest import Nest
from cpembed.kernel.per_thread_packing import PerThreadPacking
from cpembed.kernel.traffic import LINE_BYTES, USED_SHARE
from cpembed.targets.cpu.calibration import Calibration
from cpembed.targets.cpu.estimate import COHERENCE_MISS
from cpembed.transform.program import PackedOperand

_WORTH = 4.0
"""Launches of a parallel kernel that each thread's share must be worth: beside the launch, the
contraction finds data in the other core's cache."""

_RUN_NS = 0.34
"""What a run of a window takes at least, however fast lines are copied (measured on Zen 5: 527,000
runs of a 7x7 stem in 180 us, where a line takes 0.6 to 1.0 ns; on Sapphire Rapids a fifth of a
line's 1.9 ns)."""


def kept_near(
    nest: Nest, operands: Sequence[PackedOperand], machine: Calibration, threads: int
) -> frozenset[str]:
    """Which operands of a nest, given as packed in its order, each thread moves the part of that it
    computes with.

    Packing shares out rows of the packed layout, the contraction its outermost loop. The parts are
    the same where that loop is an operand's outermost dimension and both fall into equal parts. It
    costs a launch: a few lines come faster from the other core.
    """
    loop = next((task for task in nest.tasks if task.count > 1), None)
    if threads == 1 or loop is None or loop.recomputes or loop.count % threads:
        return frozenset()
    each = loop.count // threads
    if any(loop.start(part * each) * threads != part * loop.extent for part in range(threads)):
        return frozenset()
    return frozenset(
        packed.name
        for operand, packed in zip(nest.operands, operands, strict=True)
        # Parts of sums are not the output.
        if operand.stride(loop.name) * loop.extent == operand.elements == packed.elements
        and plan_move(packed).row_count % threads == 0
        and _near_us(packed, machine, threads) < _apart_us(packed, machine, threads)
    )


def threads_worth(
    operand: PackedOperand, machine: Calibration, threads: int, *, near: bool = False
) -> int:
    """Over how many threads a move is shared out; ``near``: see :func:`kept_near`."""
    share = _WORTH * machine.launch_us
    if near or threads == 1 or share <= 0:
        return threads
    return max(1, min(threads, int(_alone_us(operand, machine) / share)))


def move_us(
    operand: PackedOperand, machine: Calibration, threads: int, *, near: bool = False
) -> float:
    """Microseconds of one move by a kernel of its own, and of bringing what it wrote to the cores
    that read it; ``near``: see :func:`kept_near`."""
    return (_near_us if near else _apart_us)(operand, machine, threads)


def _near_us(operand: PackedOperand, machine: Calibration, threads: int) -> float:
    return machine.launch_us + _alone_us(operand, machine) / threads


def _apart_us(operand: PackedOperand, machine: Calibration, threads: int) -> float:
    used = threads_worth(operand, machine, threads)
    call = machine.call_us if used == 1 else machine.launch_us
    line_ns = COHERENCE_MISS * machine.vector_line_ns[2]
    handed_over = _lines(operand) * line_ns * (1 - 1 / threads)
    return call + _alone_us(operand, machine) / used + handed_over / 1e3


def private_move_us(packing: PerThreadPacking, machine: Calibration) -> float:
    """Microseconds of packing inside a kernel, in the part that packs most; what it writes stays
    near."""
    operand = packing.operand
    alone = _copied_us(operand, machine) + _far_us(_original_bytes(operand), machine)
    return alone * packing.share()


def _alone_us(operand: PackedOperand, machine: Calibration) -> float:
    """Of one thread, which walks the larger of the two layouts, both where they lie."""
    sides = _original_bytes(operand), operand.elements * size_bytes(operand.dtype)
    return _copied_us(operand, machine) + sum(_far_us(side, machine) for side in sides)


def _copied_us(operand: PackedOperand, machine: Calibration) -> float:
    """Both layouts being in the second-level cache."""
    lines_ns = _lines(operand) * effort(operand) * machine.copy_ns_per_line
    return max(lines_ns, runs(operand) * _RUN_NS) / 1e3


def _far_us(size: int, machine: Calibration) -> float:
    """What it takes more to read, or to write, so many bytes from beyond that cache."""
    level = 1
    for farther in (2, 3):
        held = machine.cache_bytes[farther - 1]
        level = farther if held and size > held * USED_SHARE else level
    line_ns = max(0.0, machine.vector_line_ns[level] - machine.vector_line_ns[1])
    return size / LINE_BYTES * line_ns / 1e3


def _original_bytes(operand: PackedOperand) -> int:
    return math.prod(operand.original_shape) * size_bytes(operand.dtype)


def _lines(operand: PackedOperand) -> int:
    elements = max(math.prod(operand.original_shape), operand.elements)
    return -(-elements * size_bytes(operand.dtype) // LINE_BYTES)
