"""Performance model of CPU kernels and of the layout transforms around them.

As in AMOS (section 5.3) and swATOP (section 4.6), the model has the levels instruction, caches and
cores, with a few constants of the machine each (:mod:`~cpembed.targets.cpu.calibration`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from cpembed.codegen.halo import executed_share, stepped_share
from cpembed.codegen.nest import Nest
from cpembed.codegen.packing import Direction, blocks_of, plan_transform
from cpembed.codegen.per_thread_packing import PerThreadPacking
from cpembed.codegen.traffic import USED_SHARE, Reuse
from cpembed.ir.dtypes import size_bytes
from cpembed.targets.cpu.calibration import Calibration, model_constants
from cpembed.transform.program import PackedOperand


@dataclass(frozen=True)
class BlockStep:
    """Cost of one reduction step of a register block whose data is in the first-level cache."""

    products_ns: float
    """Time of the products, at least the latency of one, which adds to the result of the previous
    step."""
    loads_ns: float
    """Time of loading all rows of tiles, or vectors."""
    line_ns: tuple[float, float, float, float]
    """Time of a line from L1, L2, L3 and memory."""
    stored_lines: float
    """Number of lines that the block's results fill."""
    loaded_lines: tuple[int, int] = (0, 0)
    """Number of lines loaded of each factor."""
    slowdown: float = 0.0
    """Additional time of the kernel, as a fraction of it."""
    streams: int = 1
    """Number of distant places of the first factor that a step walks along."""
    aliased: bool = False
    """True if the lines of these streams map to the same sets of the first-level cache and are more
    than its ways."""
    second_line_factor: float = 1.0
    """Time of a line of the second factor, relative to one that begins at a line."""
    task_ns: float = 0.0
    """Time of a task besides its steps."""
    exposed_latency: float = 0.0
    """Fraction of the additional time of a line from beyond L1 that products wait for."""


@dataclass(frozen=True)
class Estimate:
    """Microseconds of a kernel on all threads (``us``), and of its parts on the busiest thread."""

    us: float
    products_us: float
    loads_us: float
    stores_us: float
    overhead_us: float


def shared_lines(nest: Nest, threads: int) -> float:
    """Return the number of output lines that two threads write."""
    # The loop that is divided among threads may end a thread's part of a row of results within a
    # line: of 96 channels of one byte, each of two threads writes 48.
    loop = next((task for task in nest.tasks if task.count > 1), None)
    output = nest.operands[2]
    stride = 0 if loop is None else abs(output.stride(loop.name))
    if loop is None or threads == 1 or not stride:
        return 0.0
    size = size_bytes(output.dtype)
    pitch = loop.extent * stride * size
    rows = output.elements / (loop.extent * stride)
    # Rows begin at all multiples of this in a line.
    step = math.gcd(pitch, nest.line_bytes)
    parts = min(threads, loop.count)
    # Where each thread's part of a row ends: at a line, its neighbour begins a new one.
    ends = [loop.count * part // parts * loop.tile * stride * size for part in range(parts)]
    if rows <= 1:
        return 0.0
    return rows * sum(1 - step / nest.line_bytes if end % step == 0 else 1.0 for end in ends)


def estimate(
    nest: Nest,
    step: BlockStep,
    machine: Calibration,
    threads: int,
    reuse: Reuse,
    non_temporal: int | None = None,
    packed_bytes: int = 0,
) -> Estimate:
    """Estimate the time of a tiled nest.

    Parameters
    ----------
    nest : Nest
        Nest after all passes.
    step : BlockStep
        Cost of a reduction step.
    machine : Calibration
        Constants of the machine.
    threads : int
        Number of threads.
    reuse : Reuse
        Cache traffic of the nest on these threads.
    non_temporal : int, optional
        Number of the factor whose loads bypass the first-level cache, leaving it to the other
        operands.
    packed_bytes : int
        Bytes of the first factor that are packed just before they are read, and are still in a
        cache that has room for them.

    Returns
    -------
    Estimate
        Time with its parts, in microseconds.
    """
    constants = model_constants()
    tasks = math.ceil(nest.task_count / max(1, min(threads, nest.task_count)))
    # The busiest thread decides: it has the tasks that remain, rounded up.
    steps = tasks * math.prod(loop.extent for loop in nest.reductions)
    products = steps * executed_share(nest) * step.products_ns
    stepped = stepped_share(nest)
    steps *= stepped
    loads = nearest = steps * step.loads_ns
    stores = tasks * step.stored_lines * machine.store_line_ns[0]
    thread_share = tasks / reuse.tasks
    for level, size in enumerate(machine.cache_bytes):
        if not size:
            # Unknown size: assumed to be no smaller than the next cache outside.
            continue
        bypassing = non_temporal if level == 0 else None
        first, second, output = (lines * thread_share for lines in reuse.traffic(size, bypassing))
        second *= step.second_line_factor
        # Packed just before, in a cache that has room for it: nothing comes from further out.
        if 0 < packed_bytes <= size * USED_SHARE:
            first = 0.0
        if bypassing is not None:
            first += steps * step.loaded_lines[bypassing]
        if level == 0 and step.aliased:
            # Prefetched lines are evicted before they are used and come from L2 again. Lines from
            # memory take so long that this does not show in their time.
            first += max(0.0, first - thread_share * reuse.traffic(machine.cache_bytes[2])[0])
        if level > 0 and step.streams > constants.hardware_streams:
            first *= constants.unforeseen
        added_ns = step.line_ns[level + 1] - step.line_ns[level]
        # Steps in the halo that are left out load nothing either.
        loads += (first + second) * stepped * max(0.0, added_ns)
        if level + 1 < len(machine.store_line_ns):
            stores += output * (machine.store_line_ns[level + 1] - machine.store_line_ns[level])
        if level == 1:
            for cache, fraction, extra_lines in constants.pieces:
                pieces = output * reuse.pieces(fraction * machine.cache_bytes[cache])
                stores += pieces * extra_lines * machine.store_line_ns[2]
    # Products and loads overlap, but not fully: as in AMOS (section 5.3) and swATOP (section 4.6),
    # the model takes the longer of both, and a calibrated fraction of the shorter.
    busy = (
        max(products, loads)
        + constants.not_hidden * min(products, loads)
        + step.exposed_latency * (loads - nearest)
    )
    launch = machine.call_us if threads == 1 or nest.task_count == 1 else machine.launch_us
    line_ns = constants.coherence_miss * machine.vector_line_ns[2]
    overhead = tasks * (machine.task_ns + step.task_ns) + shared_lines(nest, threads) * line_ns
    return Estimate(
        us=(1 + step.slowdown) * (busy + stores + overhead) / 1e3 + launch,
        products_us=products / 1e3,
        loads_us=loads / 1e3,
        stores_us=stores / 1e3,
        overhead_us=overhead / 1e3 + launch,
    )


def split_k_sum_us(nest: Nest, machine: Calibration, threads: int) -> float:
    """Estimate the microseconds of adding up the partial sums of split-K.

    Parameters
    ----------
    nest : Nest
        Nest of the partial sums.
    machine : Calibration
        Constants of the machine.
    threads : int
        Number of threads.
    """
    sums = nest.operands[2]
    lines = sums.elements * size_bytes(sums.dtype) / nest.line_bytes / threads
    # All sums but those of the adding thread itself lie in the caches of other cores.
    line_ns = model_constants().coherence_miss * machine.vector_line_ns[2]
    return machine.launch_us + lines * line_ns * (1 - 1 / threads) / 1e3


def cache_affine(
    nest: Nest, operands: Sequence[PackedOperand], machine: Calibration, threads: int
) -> frozenset[str]:
    """Return the names of the operands that each thread transforms exactly where it computes.

    Parameters
    ----------
    nest : Nest
        Nest as it is executed.
    operands : sequence of PackedOperand
        Operands in the nest's order.
    machine : Calibration
        Constants of the machine.
    threads : int
        Number of threads.
    """
    loop = next((task for task in nest.tasks if task.count > 1), None)
    # Packing divides rows of the packed layout among threads, the contraction its outermost loop.
    # The parts are the same if that loop is the operand's outermost dimension and both fall into
    # equal parts.
    if threads == 1 or loop is None or loop.recomputes or loop.count % threads:
        return frozenset()
    loops_per_thread = loop.count // threads
    if any(
        loop.start(part * loops_per_thread) * threads != part * loop.extent
        for part in range(threads)
    ):
        return frozenset()
    return frozenset(
        packed.name
        for operand, packed in zip(nest.operands, operands, strict=True)
        # The comparison fails for partial sums (split-K), which are not the packed output.
        if operand.stride(loop.name) * loop.extent == operand.elements == packed.elements
        and plan_transform(packed).row_count % threads == 0
        # All threads take a launch; a few lines come faster from the core that packed them.
        and _affine_us(packed, machine, threads) < _unrelated_us(packed, machine, threads)
    )


def threads_worth(
    operand: PackedOperand, machine: Calibration, threads: int, *, affine: bool = False
) -> int:
    """Return the number of threads to divide a layout transform among.

    Parameters
    ----------
    operand : PackedOperand
        Layout to pack into or unpack from.
    machine : Calibration
        Constants of the machine.
    threads : int
        Maximum number of threads.
    affine : bool
        True if each thread transforms what it computes with (:func:`cache_affine`).
    """
    share = model_constants().launches_worth * machine.launch_us
    if affine or threads == 1 or share <= 0:
        return threads
    return max(1, min(threads, int(_one_thread_us(operand, machine) / share)))


def transform_us(
    operand: PackedOperand, machine: Calibration, threads: int, *, affine: bool = False
) -> float:
    """Estimate the microseconds of a layout transform by a kernel of its own.

    The time includes bringing what it wrote to the cores that read it.

    Parameters
    ----------
    operand, machine, threads, affine
        As in :func:`threads_worth`.
    """
    return (_affine_us if affine else _unrelated_us)(operand, machine, threads)


def _affine_us(operand: PackedOperand, machine: Calibration, threads: int) -> float:
    return machine.launch_us + _one_thread_us(operand, machine) / threads


def _unrelated_us(operand: PackedOperand, machine: Calibration, threads: int) -> float:
    used_threads = threads_worth(operand, machine, threads)
    call = machine.call_us if used_threads == 1 else machine.launch_us
    line_ns = model_constants().coherence_miss * machine.vector_line_ns[2]
    # Which core packs a line has nothing to do with which reads it, so of n threads all but one in
    # n fetch it from another core.
    handed_over = _lines(operand) * line_ns * (1 - 1 / threads)
    return call + _one_thread_us(operand, machine) / used_threads + handed_over / 1e3


def per_thread_packing_us(packing: PerThreadPacking, machine: Calibration) -> float:
    """Estimate the microseconds of packing inside a kernel, in the part that packs most."""
    operand = packing.operand
    # Only reading costs the way to a far cache: what is written stays in a near one.
    one_thread_us = _copied_us(operand, machine) + _distance_us(_original_bytes(operand), machine)
    return one_thread_us * packing.share()


def _one_thread_us(operand: PackedOperand, machine: Calibration) -> float:
    """Estimate one thread, which walks the larger of the two layouts, both wherever they fit."""
    sides = _original_bytes(operand), operand.elements * size_bytes(operand.dtype)
    return _copied_us(operand, machine) + sum(_distance_us(side, machine) for side in sides)


def _copied_us(operand: PackedOperand, machine: Calibration) -> float:
    """Estimate one thread with both layouts in the second-level cache."""
    lines_ns = _lines(operand) * element_cost(operand) * machine.copy_ns_per_line
    return max(lines_ns, segments(operand) * model_constants().segment_ns) / 1e3


def _distance_us(size: int, machine: Calibration) -> float:
    """Additional time of reading, or writing, so many bytes from beyond the second-level cache."""
    level = 1
    for outer in (2, 3):
        capacity = machine.cache_bytes[outer - 1]
        level = outer if capacity and size > capacity * USED_SHARE else level
    line_ns = max(0.0, machine.vector_line_ns[level] - machine.vector_line_ns[1])
    return size / model_constants().line_bytes * line_ns / 1e3


def _original_bytes(operand: PackedOperand) -> int:
    return math.prod(operand.original_shape) * size_bytes(operand.dtype)


def _lines(operand: PackedOperand) -> int:
    elements = max(math.prod(operand.original_shape), operand.elements)
    return -(-elements * size_bytes(operand.dtype) // model_constants().line_bytes)


@lru_cache(1 << 10)
def element_cost(operand: PackedOperand) -> float:
    """Return the time to pack or unpack an element, relative to copying it with its neighbours."""
    if not operand.dimensions:
        return 1.0
    constants, transform = model_constants(), plan_transform(operand)
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
    """Return the number of contiguous segments that im2col packing copies, else 0."""
    windows = plan_transform(operand).windows if operand.dimensions else None
    return 0 if windows is None else operand.elements // windows.size * windows.copied
