"""The time of a kernel by an analytical model, to choose among embeddings and schedules.

In the sense of AMOS section 5.3 and swATOP section 4.6: levels are the instruction, the caches and
the cores; each has a few constants of the machine (:mod:`~cpembed.targets.cpu.calibration`).
Products and loads overlap, so a task takes the longer of the two and a share of the other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cpembed.codegen.halo import executed_share, stepped_share
from cpembed.codegen.nest import Nest
from cpembed.codegen.traffic import USED_SHARE, Reuse
from cpembed.ir.dtypes import size_bytes
from cpembed.targets.cpu.calibration import Calibration
from cpembed.targets.cpu.figures import figures


@dataclass(frozen=True)
class BlockStep:
    """What one reduction step of a register block costs, data being in the first-level cache.

    ``products_ns`` is bounded by the latency of a product, which adds to what the last step left.
    ``loads_ns`` is for all rows of tiles, or vectors, that are loaded; ``line_ns`` for one that
    comes from L1, L2, L3 or memory, ``loaded_lines`` how many are loaded of each factor;
    ``stored_lines`` are rows that the block's results fill; ``share_more`` is added to the kernel's
    time, as a share of it; ``task_ns`` is what a task takes beside its steps. ``streams`` are the
    places of the first factor that steps walk along, at so many a time, where they are far from
    each other; ``aliased``: their lines share sets of the first-level cache, and are more than its
    ways. ``second_lines`` is what a line of the second factor takes for one that begins at a line.
    ``waits``: of what a line takes longer from beyond L1, the share that products wait for
    it.
    """

    products_ns: float
    loads_ns: float
    line_ns: tuple[float, float, float, float]
    stored_lines: float
    loaded_lines: tuple[int, int] = (0, 0)
    share_more: float = 0.0
    streams: int = 1
    aliased: bool = False
    second_lines: float = 1.0
    task_ns: float = 0.0
    waits: float = 0.0


@dataclass(frozen=True)
class Estimate:
    """Microseconds of a kernel on all threads, and its parts on the busiest one."""

    us: float
    products_us: float
    loads_us: float
    stores_us: float
    overhead_us: float


def shared_lines(nest: Nest, threads: int) -> float:
    """Lines of the output that two threads write, because the loop that is shared out ends a
    thread's part of a row of results within a line: of 96 channels of a byte, 48 are each one's."""
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
    """The time of a tiled nest, whose ``reuse`` it is by so many threads; ``non_temporal`` is the
    factor, by number, whose loads leave the first-level cache to the other operands.
    ``packed_bytes`` of the first one are packed before they are read, and are still in a cache that
    has room for them."""
    constants = figures()
    tasks = math.ceil(nest.task_count / max(1, min(threads, nest.task_count)))
    steps = tasks * math.prod(loop.extent for loop in nest.reductions)
    products = steps * executed_share(nest) * step.products_ns
    stepped = stepped_share(nest)
    steps *= stepped
    loads = nearest = steps * step.loads_ns
    stores = tasks * step.stored_lines * machine.store_line_ns[0]
    share = tasks / reuse.tasks
    for level, size in enumerate(machine.cache_bytes):
        if not size:
            # Unknown: taken to be no smaller than the next one outside.
            continue
        past = non_temporal if level == 0 else None
        first, second, output = (lines * share for lines in reuse.traffic(size, past))
        second *= step.second_lines
        if 0 < packed_bytes <= size * USED_SHARE:
            first = 0.0
        if past is not None:
            first += steps * step.loaded_lines[past]
        if level == 0 and step.aliased:
            # What hardware prefetch brings is evicted before it is used, and comes from L2 again:
            # beside lines from memory that does not show.
            first += max(0.0, first - share * reuse.traffic(machine.cache_bytes[2])[0])
        if level > 0 and step.streams > constants.hardware_streams:
            first *= constants.unforeseen
        further = step.line_ns[level + 1] - step.line_ns[level]
        # What is not multiplied is not loaded either.
        loads += (first + second) * stepped * max(0.0, further)
        if level + 1 < len(machine.store_line_ns):
            stores += output * (machine.store_line_ns[level + 1] - machine.store_line_ns[level])
        if level == 1:
            for near, part, more in constants.pieces:
                pieces = output * reuse.pieces(part * machine.cache_bytes[near])
                stores += pieces * more * machine.store_line_ns[2]
    busy = (
        max(products, loads)
        + constants.not_hidden * min(products, loads)
        + step.waits * (loads - nearest)
    )
    launch = machine.call_us if threads == 1 or nest.task_count == 1 else machine.launch_us
    line_ns = constants.coherence_miss * machine.vector_line_ns[2]
    overhead = tasks * (machine.task_ns + step.task_ns) + shared_lines(nest, threads) * line_ns
    return Estimate(
        us=(1 + step.share_more) * (busy + stores + overhead) / 1e3 + launch,
        products_us=products / 1e3,
        loads_us=loads / 1e3,
        stores_us=stores / 1e3,
        overhead_us=overhead / 1e3 + launch,
    )


def adding_us(nest: Nest, machine: Calibration, threads: int) -> float:
    """Microseconds of adding up partial sums, most of which other threads have made."""
    sums = nest.operands[2]
    lines = sums.elements * size_bytes(sums.dtype) / nest.line_bytes / threads
    line_ns = figures().coherence_miss * machine.vector_line_ns[2]
    return machine.launch_us + lines * line_ns * (1 - 1 / threads) / 1e3
