"""Area, leakage and energy of a core, from the tables of a technology.

Counted are the processing elements (a multiplier, an adder, registers for two factors and a sum, a
local memory), the scratchpad's banks and main memory's energy. Not counted, as no source has them
by parameter: the network between scratchpad and array, the DMA engine and the controller, and
leakage of logic.
"""

from __future__ import annotations

from dataclasses import dataclass

from cpembed.exploration.cores.description import Core
from cpembed.ir.dtypes import size_bytes
from cpembed.machine.technology import Sram, technology
from cpembed.targets.family import Activity

_FEWEST_WORDS, _FEWEST_BYTES = 32, 64
"""Of a macro of SRAM, as CACTI finds no organisation of fewer: less is a register file."""

_MACROS = 2
"""Of a local memory: one is read while the other is written."""


@dataclass(frozen=True)
class Silicon:
    """``pe_um2`` is one processing element with its registers and without its local memory;
    ``local`` is None where there is none; energies are of a byte."""

    pe_um2: float
    local_um2: float
    local_leakage_w: float
    local_read_pj: float
    local_write_pj: float
    scratchpad: Sram
    mac_pj: float
    dram_pj: float
    elements: int

    @property
    def area_um2(self) -> float:
        each = self.pe_um2 + self.local_um2
        return each * self.elements + self.scratchpad.area_um2

    @property
    def leakage_w(self) -> float:
        return self.local_leakage_w * self.elements + self.scratchpad.leakage_w

    def energy_pj(self, activity: Activity, clock_mhz: float) -> float:
        """With what leaks meanwhile."""
        counts = activity.counts
        dynamic = (
            counts["macs"] * self.mac_pj
            + counts.get("local.read", 0.0) * self.local_read_pj
            + counts.get("local.written", 0.0) * self.local_write_pj
            + counts["scratchpad.read"] * self.scratchpad.read_pj_per_byte
            + counts["scratchpad.written"] * self.scratchpad.write_pj_per_byte
            + (counts["dram.read"] + counts["dram.written"]) * self.dram_pj
        )
        # W over cycles of 1/MHz is uJ.
        return dynamic + self.leakage_w * activity.cycles / clock_mhz * 1e6


def silicon(core: Core) -> Silicon:
    """Raises :class:`~cpembed.errors.SpecError` where the technology has no such memory or unit."""
    known = technology(core.technology)
    scratchpad = known.sram(core.scratchpad_bytes, core.bank_bits, core.banks)
    unit = known.mac(core.dtype, core.sums)
    bits = 8 * (2 * size_bytes(core.dtype) + size_bytes(core.sums))
    area, leakage, read, write = _local(core)
    return Silicon(
        unit.area_um2 + known.register_area_um2(bits),
        area,
        leakage,
        read,
        write,
        scratchpad,
        unit.energy_pj + known.register_pj(bits),
        known.dram_pj(1),
        core.elements,
    )


def _local(core: Core) -> tuple[float, float, float, float]:
    """Area, leakage, and energy of a byte read and written, of the local memory of one processing
    element."""
    if not core.local_bytes:
        return 0.0, 0.0, 0.0, 0.0
    known = technology(core.technology)
    each = core.local_bytes / core.elements
    width = 8 * size_bytes(core.type_of(core.intrinsic.stationary))
    if each / _MACROS < max(_FEWEST_BYTES, _FEWEST_WORDS * width / 8):
        energy = known.register_pj(8)
        return known.register_area_um2(8 * each), 0.0, energy, energy
    memory = known.sram(each, width, _MACROS)
    return (
        memory.area_um2,
        memory.leakage_w,
        memory.read_pj_per_byte,
        memory.write_pj_per_byte,
    )
