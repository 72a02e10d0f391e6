"""The time of a kernel on a described GPU, from what it does and from published figures.

A block goes through steps: it fetches factors from L2 into shared memory, and computes products of
them; at the end it stores results. Two things bound how long the blocks of a multiprocessor take: a
block alone waits for what it asked for, one thing after the other; and all of them together keep a
unit busy, be it the tensor cores, shared memory, the schedulers or the path to L2. Where many
blocks are resident, each waits while others work, so the longer of the two is the time. Blocks
beyond those that are resident come in further rounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

from cpembed.errors import LoweringError
from cpembed.targets.cuda.gpu import Gpu

__all__ = ["Gpu", "GpuEstimate", "KernelWork", "Phase", "estimate", "product_cycles"]


@dataclass(frozen=True)
class Phase:
    """What a block does once.

    ``cycles`` pass until it is done by a block that is alone on its multiprocessor. The others say
    how busy that multiprocessor's units are with it: cycles of the busiest ``tensor`` core,
    wavefronts of ``shared`` memory and L1 (one a cycle), cycles of the busiest scheduler
    (``issue``), ``bytes`` from and to L2.
    """

    cycles: float = 0.0
    tensor: float = 0.0
    shared: float = 0.0
    issue: float = 0.0
    bytes: float = 0.0

    def __add__(self, other: Phase) -> Phase:
        """One after the other."""
        return Phase(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def times(self, count: float) -> Phase:
        return Phase(*(getattr(self, field.name) * count for field in fields(self)))


@dataclass(frozen=True)
class KernelWork:
    """A kernel of ``blocks`` of ``warps`` each.

    A block has ``shared_bytes`` of shared memory and ``registers`` in each thread. It fetches and
    computes ``steps`` times, and stores ``results`` times. With ``stages`` of shared memory the
    factors of so many steps less one are fetched ahead; with one, nothing overlaps. ``dram_bytes``
    go from and to main memory in all. ``others`` are launched before and after it: packing, sums
    of parts.
    """

    name: str
    blocks: int
    warps: int
    shared_bytes: int
    registers: int
    steps: int = 1
    stages: int = 1
    fetch: Phase = Phase()
    compute: Phase = Phase()
    result: Phase = Phase()
    results: int = 1
    dram_bytes: float = 0.0
    others: tuple[KernelWork, ...] = ()

    @property
    def block(self) -> Phase:
        """All that a block does; its cycles where it is alone."""
        busy = (self.fetch + self.compute).times(self.steps) + self.result.times(self.results)
        stored = self.results * self.result.cycles
        if self.stages == 1:
            return busy
        step = max(self.compute.cycles, self.fetch.cycles / (self.stages - 1))
        alone = self.fetch.cycles + self.steps * step + stored
        return Phase(alone, busy.tensor, busy.shared, busy.issue, busy.bytes)


@dataclass(frozen=True)
class GpuEstimate:
    """``us`` with all launches; ``parts``: how long each unit is busy, in microseconds, the
    busiest multiprocessor's, and how long blocks wait that are alone (``latency_us``).
    ``occupancy``: blocks that are resident on a multiprocessor; ``waves``: rounds of blocks;
    ``others`` as in :class:`KernelWork`."""

    name: str
    us: float
    parts: Mapping[str, float]
    occupancy: int
    waves: int
    others: tuple[GpuEstimate, ...] = ()

    @property
    def bound(self) -> str:
        """The part that takes longest."""
        return max(self.parts, key=lambda name: self.parts[name])


def product_cycles(gpu: Gpu, warps: int, chains: int, depth: int) -> Phase:
    """Products of ``warps``: each ``chains`` of sums that do not depend on each other, ``depth``
    products in each.

    A warp executes on one of the tensor cores, of which there are as many as schedulers.
    """
    turns = math.ceil(warps / gpu.unit.schedulers)
    busy = turns * chains * depth * gpu.product_cycles
    issue = warps * chains * depth / gpu.unit.schedulers
    return Phase(max(busy, depth * gpu.product_latency), busy, 0.0, issue)


def estimate(work: KernelWork, gpu: Gpu) -> GpuEstimate:
    """Raises :class:`LoweringError` for a block that no multiprocessor can hold."""
    resident = gpu.resident(work.warps, work.shared_bytes, work.registers)
    if not resident:
        raise LoweringError(
            f"{work.name}: a multiprocessor of {gpu.name} holds no block of {work.warps} warps, "
            f"{work.shared_bytes:,} bytes of shared memory and {work.registers} registers"
        )
    block = work.block
    busy = {
        "tensor": block.tensor,
        "shared": block.shared,
        "issue": block.issue,
        "l2": block.bytes / gpu.l2_bytes_each,
    }
    busiest = max(busy.values())
    share = math.ceil(work.blocks / gpu.multiprocessors)
    rounds, rest = divmod(share, resident)
    cycles = rounds * max(block.cycles, resident * busiest)
    cycles += max(block.cycles, rest * busiest) if rest else 0.0
    dram = work.dram_bytes / gpu.dram_bytes
    cycles = max(cycles, work.blocks * block.bytes / gpu.l2_bytes, dram)
    # Parameters are read before anything else, and results arrive in L2 after all else.
    cycles += 2 * gpu.l2_cycles
    waves = rounds + (rest > 0)
    parts = {f"{unit}_us": gpu.microseconds(share * time) for unit, time in busy.items()}
    parts["latency_us"] = gpu.microseconds(waves * block.cycles)
    parts["dram_us"] = gpu.microseconds(dram)
    parts["launch_us"] = gpu.unit.launch_us
    others = tuple(estimate(other, gpu) for other in work.others)
    us = gpu.microseconds(cycles) + gpu.unit.launch_us + sum(other.us for other in others)
    return GpuEstimate(work.name, us, parts, resident, waves, others)
