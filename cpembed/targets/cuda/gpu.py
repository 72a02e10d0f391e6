"""A GPU as kernels' times are estimated from it: published figures, none measured or fitted.

What an instruction's specification says of a machine (:mod:`cpembed.hw.machine`) is taken from
there; what only GPUs have is in ``machines/NAME.toml`` beside this file, with its sources.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec

from cpembed.errors import SpecError
from cpembed.hw.instruction import HardwareSpec
from cpembed.hw.schema import read_table
from cpembed.targets.cuda.instructions import LANES

_FOLDER = Path(__file__).parent / "machines"


class Multiprocessor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``machines/NAME.toml``: limits of a multiprocessor and the units in which it allots, in
    bytes, registers, warps and blocks; latencies in cycles; ``integer_cycles`` that an integer
    instruction of a warp takes; ``launch_us`` of an empty kernel in a queue of kernels."""

    architecture: str
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


@dataclass(frozen=True)
class Gpu:
    """``product_cycles`` are those of a tensor core for an instruction of the specification,
    ``product_latency`` those from one to the next that adds to the same sums. ``l2_bytes`` and
    ``dram_bytes`` are bytes a cycle of the whole GPU, ``l2_bytes_each`` of one multiprocessor;
    ``l2_cycles`` and ``dram_cycles`` latencies; ``shared_bytes`` what a block can have."""

    name: str
    clock_mhz: float
    multiprocessors: int
    unit: Multiprocessor
    shared_total: int
    l2_capacity: int
    l2_bytes: float
    l2_bytes_each: float
    l2_cycles: float
    dram_bytes: float
    dram_cycles: float
    product_cycles: float
    product_latency: float

    @property
    def architecture(self) -> str:
        """As nvcc calls it: ``sm_80``."""
        return self.unit.architecture

    @property
    def shared_bytes(self) -> int:
        return self.unit.shared_bytes_per_block

    def microseconds(self, cycles: float) -> float:
        return cycles / self.clock_mhz

    def resident(self, warps: int, shared_bytes: int, registers: int) -> int:
        """Blocks of so many warps, bytes of shared memory and registers of a thread that a
        multiprocessor holds at a time; 0 where it holds none."""
        unit = self.unit
        if registers > unit.registers_per_thread or shared_bytes > self.shared_bytes:
            return 0
        of_warp = math.ceil(registers * LANES / unit.register_unit) * unit.register_unit
        shared = shared_bytes + unit.shared_reserved_bytes
        shared = math.ceil(shared / unit.shared_unit) * unit.shared_unit
        return min(
            unit.blocks,
            unit.warps // warps,
            unit.registers // (of_warp * warps),
            self.shared_total // shared,
        )


def multiprocessor_of(architecture: str) -> Multiprocessor:
    """Of a GPU of this architecture; raises :class:`SpecError` where none is described."""
    for file in sorted(_FOLDER.glob("*.toml")):
        found = _multiprocessor(file.stem)
        if found.architecture == architecture:
            return found
    raise SpecError(f"no figures of a GPU of architecture {architecture}")


@cache
def _multiprocessor(name: str) -> Multiprocessor:
    path = _FOLDER / f"{name}.toml"
    if not path.exists():
        known = ", ".join(sorted(file.stem for file in _FOLDER.glob("*.toml")))
        raise SpecError(f"no figures of a GPU {name!r} to estimate times from; there are {known}")
    return read_table(path, Multiprocessor)


def gpu(spec: HardwareSpec, name: str) -> Gpu:
    """The GPU ``name`` with the instruction of ``spec``; raises :class:`SpecError` where either
    does not describe it."""
    unit = _multiprocessor(name)
    if name not in spec.machines:
        has = ", ".join(spec.machines) or "none"
        raise SpecError(f"{spec.name} has no machine {name!r}; it has {has}")
    machine = spec.machines[name]
    missing = sorted({"shared", "l2", "dram"} - machine.memories.keys())
    if missing:
        raise SpecError(f"{spec.name}: [machines.{name}] has no memory {', '.join(missing)}")
    shared, l2, dram = (machine.memories[level] for level in ("shared", "l2", "dram"))
    return Gpu(
        name,
        machine.clock_mhz,
        shared.units,
        unit,
        shared.capacity_bytes or unit.unified_bytes,
        l2.capacity_bytes or 0,
        l2.read_bytes,
        l2.child_read_bytes,
        l2.latency_cycles,
        dram.read_bytes,
        dram.latency_cycles,
        machine.compute.cycles,
        machine.compute.latency_cycles,
    )
