"""Estimated time of a kernel on a described GPU, from its work and from published figures only.

A block fetches factors from L2 into shared memory and computes their products, step by step; at the
end it stores results. Two things bound the time of the blocks of a multiprocessor: a single block
waits for its fetches and products one after the other, and all of them together keep a unit busy,
be it the tensor cores, shared memory, the schedulers or the path to L2. While one resident block
waits the others work, so the longer of the two is the time, and blocks also meet at units that are
not the busiest (:func:`round_cycles`). Blocks beyond the resident ones run in further rounds.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import msgspec

from cpembed.cost.machine.estimate import machine_of
from cpembed.errors import LoweringError, SpecError
from cpembed.hw.instruction import HardwareSpec
from cpembed.hw.schema import read_table
from cpembed.targets.cuda.instructions import LANES

_FOLDER = Path(__file__).parent / "machines"


class Multiprocessor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``machines/ARCHITECTURE.toml``: limits and allocation units of a multiprocessor, latencies.

    ``machines`` are the names of the GPUs that have it. Allocations are in bytes, registers, warps
    and blocks; latencies in cycles. ``integer_cycles``
    are those of an integer instruction of a warp, ``launch_us`` the time of an empty kernel in a
    queue of kernels.
    """

    architecture: str
    machines: tuple[str, ...]
    warps: int
    blocks: int
    registers: int
    register_unit: int
    registers_per_thread: int
    shared_bytes_per_block: int
    shared_reserved_bytes: int
    shared_unit: int
    unified_bytes: int
    schedulers: int
    integer_cycles: float
    l1_cycles: float
    shared_load_cycles: float
    shared_store_cycles: float
    launch_us: float


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU with an instruction of its tensor cores."""

    name: str
    clock_mhz: float
    multiprocessors: int
    unit: Multiprocessor
    shared_total: int
    """Bytes of shared memory of a multiprocessor."""
    l2_capacity: int
    """Bytes of L2."""
    l2_bytes: float
    """Bytes per cycle between L2 and all multiprocessors."""
    l2_bytes_each: float
    """Bytes per cycle between L2 and one multiprocessor."""
    l2_cycles: float
    dram_bytes: float
    """Bytes per cycle from and to main memory."""
    dram_cycles: float
    product_cycles: float
    """Cycles of a tensor core for an instruction."""
    product_latency: float
    """Cycles from an instruction to the next one that adds to the same sums."""

    @property
    def architecture(self) -> str:
        """Nvcc's name of the architecture: ``sm_80``."""
        return self.unit.architecture

    @property
    def has_bulk_copies(self) -> bool:
        """True if the GPU has TMA and barrier objects."""
        return int(self.architecture.removeprefix("sm_")) >= 90

    @property
    def shared_bytes(self) -> int:
        """Maximum bytes of shared memory of a block."""
        return self.unit.shared_bytes_per_block

    def microseconds(self, cycles: float) -> float:
        return cycles / self.clock_mhz

    def resident(self, warps: int, shared_bytes: int, registers: int) -> int:
        """Return the number of blocks that a multiprocessor holds at a time.

        Parameters
        ----------
        warps
            Number of warps of a block.
        shared_bytes
            Bytes of shared memory of a block.
        registers
            Number of registers of a thread.
        """
        unit = self.unit
        if registers > unit.registers_per_thread or shared_bytes > self.shared_bytes:
            return 0
        # Registers are allocated to warps in units, and a block reserves shared memory for itself.
        warp_registers = math.ceil(registers * LANES / unit.register_unit) * unit.register_unit
        shared = shared_bytes + unit.shared_reserved_bytes
        shared = math.ceil(shared / unit.shared_unit) * unit.shared_unit
        # Each scheduler has a part of the registers, and the warps of its own (CUDA Occupancy
        # Calculator: warps are allocated by four).
        register_warps = unit.registers // unit.schedulers // warp_registers * unit.schedulers
        return min(
            unit.blocks,
            unit.warps // warps,
            register_warps // warps,
            self.shared_total // shared,
        )


def multiprocessor_of(architecture: str) -> Multiprocessor:
    """Return the multiprocessor of an architecture.

    Raises :class:`SpecError` if none is described.
    """
    for unit in _multiprocessors():
        if unit.architecture == architecture:
            return unit
    raise SpecError(f"no figures of a GPU of architecture {architecture}")


@cache
def _multiprocessors() -> tuple[Multiprocessor, ...]:
    return tuple(read_table(path, Multiprocessor) for path in sorted(_FOLDER.glob("*.toml")))


def _multiprocessor(name: str) -> Multiprocessor:
    """Return the multiprocessor of a machine."""
    for unit in _multiprocessors():
        if name in unit.machines:
            return unit
    names = ", ".join(sorted(name for unit in _multiprocessors() for name in unit.machines))
    raise SpecError(f"no figures of a GPU {name!r} to estimate times from; there are {names}")


def gpu(spec: HardwareSpec, name: str | None = None) -> Gpu:
    """Return a GPU with the instruction of ``spec``, by default its first machine.

    Raises :class:`SpecError` if the specification or ``machines/`` does not describe it.
    """
    machine = machine_of(spec, name)
    name = machine.name
    unit = _multiprocessor(name)
    missing = sorted({"shared", "l2", "dram"} - machine.memories.keys())
    if missing:
        raise SpecError(f"{spec.name}: [machines.{name}] has no memory {', '.join(missing)}")
    shared, l2, dram = (machine.memories[level] for level in ("shared", "l2", "dram"))
    return Gpu(
        name=name,
        clock_mhz=machine.clock_mhz,
        multiprocessors=shared.units,
        unit=unit,
        shared_total=shared.capacity_bytes or unit.unified_bytes,
        l2_capacity=l2.capacity_bytes or 0,
        l2_bytes=l2.read_bytes,
        l2_bytes_each=l2.child_read_bytes,
        l2_cycles=l2.latency_cycles,
        dram_bytes=dram.read_bytes,
        dram_cycles=dram.latency_cycles,
        product_cycles=machine.compute.cycles,
        product_latency=machine.compute.latency_cycles,
    )


@dataclass(frozen=True)
class Phase:
    """Part of a block's work, with the cycles of each unit that it keeps busy."""

    cycles: float = 0.0
    """Cycles until it is done by a block that is alone on its multiprocessor."""
    tensor: float = 0.0
    """Cycles of the busiest tensor core."""
    shared: float = 0.0
    """Wavefronts of shared memory and L1, which take one cycle each."""
    issue: float = 0.0
    """Cycles of the busiest scheduler."""
    bytes: float = 0.0
    """Bytes from and to L2."""
    multicast: float = 0.0
    """Bytes of these that L2 reads for another block of the cluster, which receives them too."""

    def __add__(self, phase: Phase) -> Phase:
        return Phase(*map(operator.add, self._values, phase._values))

    def times(self, count: float) -> Phase:
        return Phase(*(value * count for value in self._values))

    @property
    def _values(self) -> tuple[float, ...]:
        # Without asking the dataclass for its fields: phases are added for every schedule.
        return (self.cycles, self.tensor, self.shared, self.issue, self.bytes, self.multicast)

    def busy(self, gpu: Gpu) -> dict[str, float]:
        """Return the cycles that each unit is busy."""
        return {
            "tensor": self.tensor,
            "shared": self.shared,
            "issue": self.issue,
            "l2": self.bytes / gpu.l2_bytes_each,
        }

    def unshared_cycles(self, gpu: Gpu) -> float:
        """Return the cycles of a block that is alone: it waits, or a unit is busy for longer."""
        return max(self.cycles, *self.busy(gpu).values())


@dataclass(frozen=True)
class KernelWork:
    """Work of a kernel: its blocks, and the traffic and computation of each."""

    name: str
    blocks: int
    warps: int
    """Number of warps of a block."""
    shared_bytes: int
    """Bytes of shared memory of a block."""
    registers: int
    """Number of registers of a thread."""
    steps: int = 1
    """Number of times that a block fetches and computes."""
    stages: int = 1
    """Number of stages of shared memory, all but one of them fetched ahead of the products."""
    fetch: Phase = Phase()
    """Fetches of a step."""
    compute: Phase = Phase()
    """Products of a step."""
    result: Phase = Phase()
    """Stores of results."""
    results: int = 1
    """Number of times that a block stores results."""
    overlapped: bool = False
    """True if some warps store results while others compute the next ones."""
    dram_bytes: float = 0.0
    """Bytes from and to main memory, of all blocks."""
    auxiliary: tuple[KernelWork, ...] = ()
    """Kernels that are launched before and after: packing, sums of parts."""

    def block(self, gpu: Gpu) -> Phase:
        """Return all work of a block, with the cycles of a block that is alone."""
        busy = (self.fetch + self.compute).times(self.steps) + self.result.times(self.results)
        # Barriers keep the warps of a block in one phase, so that no phase ends before its busiest
        # unit does, however idle that is in the others.
        fetch, compute, result = (
            phase.unshared_cycles(gpu) for phase in (self.fetch, self.compute, self.result)
        )
        # With one stage nothing overlaps: a block fetches, then computes.
        if self.stages == 1:
            cycles = (fetch + compute) * self.steps + result * self.results
        else:
            # Fetches of all stages but the one that computes are in flight together, and none is
            # while the last stage computes.
            step = max(compute, fetch / (self.stages - 1))
            computing = (self.steps - 1) * step + compute
            storing = self.results * result
            if self.overlapped:
                # Two sets of warps, each of which stores half of the results, the last one alone.
                cycles = fetch + max(computing, (computing + storing) / 2) + result
            else:
                cycles = fetch + computing + storing
        return replace(busy, cycles=cycles)


@dataclass(frozen=True, kw_only=True)
class GpuEstimate:
    """Estimated time of a kernel."""

    name: str
    us: float
    """Microseconds, including all launches."""
    parts: Mapping[str, float]
    """Microseconds that each unit is busy, and that blocks would take alone (``latency_us``)."""
    occupancy: int
    """Number of blocks that are resident on a multiprocessor."""
    waves: int
    """Number of rounds of blocks."""
    auxiliary: tuple[GpuEstimate, ...] = ()
    """Estimates of the kernels before and after."""

    @property
    def bound(self) -> str:
        """Name of the part that takes longest."""
        return max(self.parts, key=lambda name: self.parts[name])


def product_cycles(gpu: Gpu, warps: int, chains: int, depth: int) -> Phase:
    """Return the work of products.

    Parameters
    ----------
    gpu
        GPU that executes them.
    warps
        Number of warps; each executes on one of as many tensor cores as there are schedulers.
    chains
        Number of sums of a warp that do not depend on each other.
    depth
        Number of products of each sum.
    """
    # Each scheduler has a tensor core, on which its warps take turns.
    turns = math.ceil(warps / gpu.unit.schedulers)
    busy = turns * chains * depth * gpu.product_cycles
    issue = warps * chains * depth / gpu.unit.schedulers
    return Phase(max(busy, depth * gpu.product_latency), busy, 0.0, issue)


def round_cycles(block: Phase, busy: Mapping[str, float], blocks: int) -> float:
    """Return the cycles of a round of blocks that a multiprocessor holds together.

    They are customers of a closed queueing network whose stations are the units. Its throughput is
    at most that of the busiest unit, and at most that of a network with the same total demand,
    spread evenly over the stations (balanced job bounds: Zahorjan, Sevcik, Eager and Galler,
    Communications of the ACM 25, 1982).

    Parameters
    ----------
    block : Phase
        All work of a block, with the cycles of a block that is alone.
    busy : mapping of str to float
        Cycles of a block at each unit.
    blocks : int
        Number of blocks.
    """
    demand = sum(busy.values())
    # The share of its time that a block is at a unit, where it meets others, and does not wait.
    present = min(1.0, demand / block.cycles) if block.cycles else 0.0
    queueing = (blocks - 1) * demand / len(busy) * present
    return max(block.cycles + queueing, blocks * max(busy.values()))


def estimate(work: KernelWork, gpu: Gpu) -> GpuEstimate:
    """Estimate the time of a kernel and of those around it.

    Raises :class:`LoweringError` if no multiprocessor can hold a block.
    """
    resident = gpu.resident(work.warps, work.shared_bytes, work.registers)
    if not resident:
        raise LoweringError(
            f"{work.name}: a multiprocessor of {gpu.name} holds no block of {work.warps} warps, "
            f"{work.shared_bytes:,} bytes of shared memory and {work.registers} registers"
        )
    block = work.block(gpu)
    busy = block.busy(gpu)
    share = math.ceil(work.blocks / gpu.multiprocessors)
    rounds, rest = divmod(share, resident)
    # The last round has fewer blocks.
    cycles = rounds * round_cycles(block, busy, resident)
    cycles += round_cycles(block, busy, rest) if rest else 0.0
    dram = work.dram_bytes / gpu.dram_bytes
    # Paths that all multiprocessors share bound the kernel as a whole.
    cycles = max(cycles, work.blocks * (block.bytes - block.multicast) / gpu.l2_bytes, dram)
    # Parameters are read before anything else, and results arrive in L2 after all else.
    cycles += 2 * gpu.l2_cycles
    waves = rounds + (rest > 0)
    parts = {f"{unit}_us": gpu.microseconds(share * time) for unit, time in busy.items()}
    parts["latency_us"] = gpu.microseconds(waves * block.cycles)
    parts["dram_us"] = gpu.microseconds(dram)
    parts["launch_us"] = gpu.unit.launch_us
    auxiliary = tuple(estimate(kernel, gpu) for kernel in work.auxiliary)
    us = gpu.microseconds(cycles) + gpu.unit.launch_us + sum(kernel.us for kernel in auxiliary)
    return GpuEstimate(
        name=work.name, us=us, parts=parts, occupancy=resident, waves=waves, auxiliary=auxiliary
    )
