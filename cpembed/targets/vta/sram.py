"""What lies where in SRAM while a program is made: regions of operands, and micro-ops."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cpembed.targets.vta.gemm_kernels import Indices
from cpembed.targets.vta.isa import Load, Memory
from cpembed.targets.vta.regions import Region
from cpembed.targets.vta.tokens import Dependences


@dataclass
class Slot:
    """Room for a region: what it holds, the LOAD that completed that, and its last GEMM."""

    base: int
    holds: Region | None = None
    loaded: int | None = None
    used: int | None = None


class Ring:
    """The slots of a buffer, the one used longest ago first."""

    def __init__(self, count: int, size: int) -> None:
        self._slots = [Slot(k * size) for k in range(count)]

    def find(self, region: Region) -> tuple[Slot, bool]:
        """The slot that holds a region, or the one to overwrite with it."""
        held = next((slot for slot in self._slots if slot.holds == region), None)
        slot = held or self._slots[0]
        self._slots.remove(slot)
        self._slots.append(slot)
        return slot, held is not None

    def forget(self) -> None:
        """Hold nothing any more: the next region is loaded, whichever it is."""
        for slot in self._slots:
            slot.holds = None


class MicroOps:
    """Micro-ops in main memory and in SRAM, each list once.

    SRAM is filled from its start; where a list does not fit, it is filled from its start again:
    loads of micro-ops and what uses them execute in order in one module.
    """

    def __init__(self, program: Dependences, capacity: int, dram: int) -> None:
        self._program = program
        self._capacity = capacity
        self._dram = dram
        self._lists: list[Indices] = []
        self._length = 0
        self._stored: dict[bytes, int] = {}
        self._resident: dict[bytes, int] = {}
        self._free = 0

    @property
    def image(self) -> Indices:
        """Every list, as it lies in main memory."""
        return np.concatenate([np.empty((0, 3), np.int64), *self._lists])

    def place(self, uops: Indices) -> int:
        """Where in SRAM a list lies, after loading it if need be."""
        key = uops.tobytes()
        if key in self._resident:
            return self._resident[key]
        if key not in self._stored:
            self._stored[key] = self._length
            self._lists.append(uops)
            self._length += len(uops)
        count = len(uops)
        if self._free + count > self._capacity:
            self._resident.clear()
            self._free = 0
        at = self._resident[key] = self._free
        self._free += count
        self._program.append(Load(Memory.UOP, at, self._dram + self._stored[key], 1, count, count))
        return at
