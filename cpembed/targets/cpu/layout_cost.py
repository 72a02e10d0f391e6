"""Layout-transform cost: how long packing and unpacking take, how many threads they are worth, and
which transforms leave data in the cache of the core that computes with them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from cpembed.codegen.nest import Nest
from cpembed.codegen.packing import Direction, blocks_of, plan_transform
from cpembed.codegen.per_thread_packing import PerThreadPacking
from cpembed.codegen.traffic import USED_SHARE
from cpembed.ir.dtypes import size_bytes
from cpembed.targets.cpu.calibration import Calibration
from cpembed.targets.cpu.figures import figures
from cpembed.transform.program import PackedOperand


def cache_affine(
    nest: Nest, operands: Sequence[PackedOperand], machine: Calibration, threads: int
) -> frozenset[str]:
    """Cache affinity: which operands of a nest, given as packed in its order, have each thread
    transform the part that it computes with.

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
        # Partial sums are not the output.
        if operand.stride(loop.name) * loop.extent == operand.elements == packed.elements
        and plan_transform(packed).row_count % threads == 0
        and _near_us(packed, machine, threads) < _apart_us(packed, machine, threads)
    )


def threads_worth(
    operand: PackedOperand, machine: Calibration, threads: int, *, near: bool = False
) -> int:
    """Threads over which a layout transform is shared out; ``near``: see :func:`cache_affine`."""
    share = figures().launches_worth * machine.launch_us
    if near or threads == 1 or share <= 0:
        return threads
    return max(1, min(threads, int(_alone_us(operand, machine) / share)))


def transform_us(
    operand: PackedOperand, machine: Calibration, threads: int, *, near: bool = False
) -> float:
    """Microseconds of a layout transform by a kernel of its own, and of bringing what it wrote to
    the cores that read it; ``near``: see :func:`cache_affine`."""
    return (_near_us if near else _apart_us)(operand, machine, threads)


def _near_us(operand: PackedOperand, machine: Calibration, threads: int) -> float:
    return machine.launch_us + _alone_us(operand, machine) / threads


def _apart_us(operand: PackedOperand, machine: Calibration, threads: int) -> float:
    used = threads_worth(operand, machine, threads)
    call = machine.call_us if used == 1 else machine.launch_us
    line_ns = figures().coherence_miss * machine.vector_line_ns[2]
    handed_over = _lines(operand) * line_ns * (1 - 1 / threads)
    return call + _alone_us(operand, machine) / used + handed_over / 1e3


def per_thread_packing_us(packing: PerThreadPacking, machine: Calibration) -> float:
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
    lines_ns = _lines(operand) * element_cost(operand) * machine.copy_ns_per_line
    return max(lines_ns, segments(operand) * figures().segment_ns) / 1e3


def _far_us(size: int, machine: Calibration) -> float:
    """What it takes more to read, or to write, so many bytes from beyond that cache."""
    level = 1
    for farther in (2, 3):
        held = machine.cache_bytes[farther - 1]
        level = farther if held and size > held * USED_SHARE else level
    line_ns = max(0.0, machine.vector_line_ns[level] - machine.vector_line_ns[1])
    return size / figures().line_bytes * line_ns / 1e3


def _original_bytes(operand: PackedOperand) -> int:
    return math.prod(operand.original_shape) * size_bytes(operand.dtype)


def _lines(operand: PackedOperand) -> int:
    elements = max(math.prod(operand.original_shape), operand.elements)
    return -(-elements * size_bytes(operand.dtype) // figures().line_bytes)


@lru_cache(1 << 10)
def element_cost(operand: PackedOperand) -> float:
    """How long an element takes to pack or unpack, in units of one that is copied beside its
    neighbours."""
    if not operand.dimensions:
        return 1.0
    constants, transform = figures(), plan_transform(operand)
    if transform.copies:
        return 1.0
    if transform.windows is not None:
        lines = transform.windows.size * size_bytes(operand.dtype) / constants.line_bytes
        return max(1.0, constants.segment_lines * transform.windows.copied / lines)
    inner = [t for t in transform.original_index.terms if set(t.iterators) & set(transform.order)]
    if not all(term.is_affine for term in inner) or transform.bounds()[2]:
        return constants.computed
    transposed = blocks_of(transform, Direction.PACK) is not None
    return constants.transposed if transposed else constants.scattered


@lru_cache(1 << 10)
def segments(operand: PackedOperand) -> int:
    """Contiguous segments that im2col packing copies; 0 where it does not."""
    windows = plan_transform(operand).windows if operand.dimensions else None
    return 0 if windows is None else operand.elements // windows.size * windows.copied
