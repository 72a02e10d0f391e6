"""Cores of HASCO's kind as a family of machines, with area, leakage and energy."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from cpembed.cost.machine.technology import Sram, technology
from cpembed.embedding.constraint_set import load_constraint_set
from cpembed.errors import CpembedError, SpecError
from cpembed.exploration.cores.description import DATAFLOWS, SUMS, Core, specification_text
from cpembed.exploration.cores.software import CoreAnalysis, analyse
from cpembed.hw.schema import close_match, joined
from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import size_bytes
from cpembed.targets.family import Activity, Choice, Costs, Family, Parameter, Point, Value
from cpembed.workloads.suites import Layer

_RANGES: dict[str, tuple[int, int]] = {
    "pe_rows": (1, 256),
    "pe_columns": (0, 256),
    "scratchpad_kib": (1, 1 << 16),
    "banks": (1, 64),
    "bank_bits": (8, 512),
    "local_kib": (0, 1 << 14),
    "dma_bits": (8, 4096),
    "dma_burst_bytes": (1, 4096),
    "dram_latency_cycles": (0, 10_000),
}
"""Minimum and maximum of the parameters that are integers."""

_MAX_CLOCK_MHZ = 10_000


class CoreFamily(Family):
    """The family of cores; cycles, energy and area are estimated (``docs/cores.md``)."""

    name: ClassVar[str] = "core"
    analysis: ClassVar[Any] = CoreAnalysis
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("intrinsic", "what the array computes: gemm, conv2d, gemv, dot"),
        Parameter("pe_rows", "rows of the array of processing elements"),
        Parameter("pe_columns", "columns of the array; 0: as many as rows", 0),
        Parameter("scratchpad_kib", "KiB of the scratchpad"),
        Parameter("banks", "banks of the scratchpad, each read or written once a cycle"),
        Parameter("bank_bits", "bits of an access to a bank", 64),
        Parameter("local_kib", "KiB of the local memories of all processing elements together", 0),
        Parameter(
            "dataflow", "what stays in the processing elements: os (sums), ws (weights)", "os"
        ),
        Parameter("dtype", "element type of the factors: int8, float16, float32", "int8"),
        Parameter("dma_bits", "bits a cycle to and from main memory", 128),
        Parameter("dma_burst_bytes", "bytes of a burst, of which transfers are whole ones", 64),
        Parameter("dram_latency_cycles", "cycles until main memory answers", 100),
        Parameter("clock_mhz", "MHz", 200),
        Parameter("constraints", "constraint set of the embeddings", "cut_boxes"),
        Parameter("technology", "of area and energy", "45nm"),
    )

    def flaw(self, point: Point) -> str | None:
        try:
            _read(_key(point))
        except SpecError as error:
            return str(error)
        return None

    def clock_mhz(self, point: Point) -> float:
        return _read(_key(point))[0].clock_mhz

    def area_um2(self, point: Point) -> float:
        return _read(_key(point))[1].area_um2

    def leakage_w(self, point: Point) -> float:
        return _read(_key(point))[1].leakage_w

    def energy_pj(self, point: Point, activity: Activity) -> float:
        core, costs = _read(_key(point))
        return costs.energy_pj(activity, core.clock_mhz)

    def typed(self, layer: Layer) -> Computation:
        """Return the layer on int8, which an analysis replaces by the point's own types."""
        return layer.workload(("int8", "int8", "int32"))

    def group(self, point: Point) -> Hashable:
        core, _ = _read(_key(point))
        return (
            *(core.intrinsic_name, core.rows, core.columns, core.dataflow, core.dtype),
            *(core.scratchpad_bytes, core.local_bytes, core.bank_bits, core.dma_burst_bytes),
            core.constraints,
        )

    def analyse(self, point: Point, workload: Computation) -> CoreAnalysis:
        core, _ = _read(_key(point))
        outputs = {operand.name for operand in workload.outputs}
        types = {o.name: core.sums if o.name in outputs else core.dtype for o in workload.operands}
        return analyse(core, workload.with_dtypes(types))

    def bound(self, point: Point, analysis: CoreAnalysis) -> Costs | None:
        """Return the costs themselves: nothing is left to evaluate."""
        choice = analysis.best(_read(_key(point))[0])
        if choice is None or choice.activity is None:
            return None
        return Costs(choice.activity.cycles, self.energy_pj(point, choice.activity))

    def choices(self, point: Point, analysis: CoreAnalysis) -> tuple[Choice, ...]:
        choice = analysis.best(_read(_key(point))[0])
        return () if choice is None else (choice,)

    def evaluate(self, point: Point, workload: Computation, choice: Choice) -> Activity:
        """Return the activity of the choice; no search calls this, as every choice has one."""
        assert choice.activity is not None
        return choice.activity

    def specification(self, point: Point) -> str:
        return specification_text(_read(_key(point))[0])


def _key(point: Point) -> tuple[tuple[str, Value], ...]:
    return tuple(sorted(point.items()))


@lru_cache(maxsize=1 << 14)
def _read(key: tuple[tuple[str, Value], ...]) -> tuple[Core, Silicon]:
    """Return the core of a point; a :class:`SpecError` names the parameter, flaw and remedy."""
    point = dict(key)
    _check_words(point)
    for name, (least, most) in _RANGES.items():
        value = point[name]
        if not isinstance(value, int) or not least <= value <= most:
            raise SpecError(f"{name} = {value}; allowed: {least:,} to {most:,}")
    for name in ("bank_bits", "dma_bits"):
        if int(point[name]) % 8:
            raise SpecError(f"{name} = {point[name]} is no multiple of 8")
    clock = point["clock_mhz"]
    if isinstance(clock, str) or not 0 < clock <= _MAX_CLOCK_MHZ:
        raise SpecError(f"clock_mhz = {clock}; allowed: above 0, to {_MAX_CLOCK_MHZ:,}")
    core = Core.of(point)
    costs = silicon(core)
    cycle = costs.scratchpad.cycle_ns
    if cycle * core.clock_mhz > 1000:
        raise SpecError(
            f"clock_mhz = {core.clock_mhz:g}: a bank of the scratchpad takes {cycle:.2f} ns; "
            f"allowed: {1000 // cycle:g} and less, or more banks"
        )
    return core, costs


def _check_words(point: dict[str, Value]) -> None:
    allowed = {"intrinsic": tuple(DATAFLOWS), "dtype": tuple(SUMS)}
    for name, words in allowed.items():
        value = point[name]
        if value not in words:
            near = close_match(str(value), words)
            raise SpecError(f"{name} = {value}{near}; allowed: {joined(words)}")
    dataflows = DATAFLOWS[str(point["intrinsic"])]
    if point["dataflow"] not in dataflows:
        raise SpecError(
            f"dataflow = {point['dataflow']}; allowed for {point['intrinsic']}: {joined(dataflows)}"
        )
    try:
        load_constraint_set(str(point["constraints"]))
    except CpembedError as error:
        raise SpecError(f"constraints: {error}") from None


# ------------------------------------------------------------------------------ area and energy

_MIN_SRAM_WORDS, _MIN_SRAM_BYTES = 32, 64
"""Minimum size of a macro of SRAM: CACTI finds no organisation of a smaller one, which is a
register file instead."""

_LOCAL_MACROS = 2
"""Number of macros of a local memory: one is read while the other is written."""


@dataclass(frozen=True, kw_only=True)
class LocalMemory:
    """Area and leakage of the local memory of one processing element, and energies of a byte; all
    are 0 where there is none.
    """

    area_um2: float = 0.0
    leakage_w: float = 0.0
    read_pj: float = 0.0
    write_pj: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Silicon:
    """Areas, leakage and energies of a core's parts.

    Counted are the processing elements (a multiplier, an adder, registers for two factors and a
    sum, a local memory), the scratchpad's banks and main memory's energy. The network between
    scratchpad and array, the DMA engine and the controller, and leakage of logic are not counted,
    because no source has them by parameter.

    ``pe_um2`` is the area of one processing element with its registers and without its local
    memory. Energies of memories are of a byte, that of ``mac_pj`` is of a multiply-accumulate.
    """

    pe_um2: float
    local: LocalMemory
    scratchpad: Sram
    mac_pj: float
    dram_pj: float
    elements: int

    @property
    def area_um2(self) -> float:
        """Area of the core."""
        element = self.pe_um2 + self.local.area_um2
        return element * self.elements + self.scratchpad.area_um2

    @property
    def leakage_w(self) -> float:
        """Leakage of the core's memories."""
        return self.local.leakage_w * self.elements + self.scratchpad.leakage_w

    def energy_pj(self, activity: Activity, clock_mhz: float) -> float:
        """Return the energy of an execution, with leakage meanwhile."""
        counts = activity.counts
        dynamic = (
            counts["macs"] * self.mac_pj
            + counts.get("local.read", 0.0) * self.local.read_pj
            + counts.get("local.written", 0.0) * self.local.write_pj
            + counts["scratchpad.read"] * self.scratchpad.read_pj_per_byte
            + counts["scratchpad.written"] * self.scratchpad.write_pj_per_byte
            + (counts["dram.read"] + counts["dram.written"]) * self.dram_pj
        )
        # W over cycles of 1/MHz is uJ.
        return dynamic + self.leakage_w * activity.cycles / clock_mhz * 1e6


def silicon(core: Core) -> Silicon:
    """Return the areas and energies of a core.

    Raises :class:`~cpembed.errors.SpecError` where the technology has no such memory or unit.
    """
    tables = technology(core.technology)
    scratchpad = tables.sram(core.scratchpad_bytes, core.bank_bits, core.banks)
    mac = tables.mac(core.dtype, core.sums)
    bits = 8 * (2 * size_bytes(core.dtype) + size_bytes(core.sums))
    return Silicon(
        pe_um2=mac.area_um2 + tables.register_area_um2(bits),
        local=_local_memory(core),
        scratchpad=scratchpad,
        mac_pj=mac.energy_pj + tables.register_pj(bits),
        dram_pj=tables.dram_pj(1),
        elements=core.elements,
    )


def _local_memory(core: Core) -> LocalMemory:
    if not core.local_bytes:
        return LocalMemory()
    tables = technology(core.technology)
    size = core.local_bytes / core.elements
    width = 8 * size_bytes(core.type_of(core.intrinsic.stationary))
    if size / _LOCAL_MACROS < max(_MIN_SRAM_BYTES, _MIN_SRAM_WORDS * width / 8):
        energy = tables.register_pj(8)
        area = tables.register_area_um2(8 * size)
        return LocalMemory(area_um2=area, read_pj=energy, write_pj=energy)
    sram = tables.sram(size, width, _LOCAL_MACROS)
    return LocalMemory(
        area_um2=sram.area_um2,
        leakage_w=sram.leakage_w,
        read_pj=sram.read_pj_per_byte,
        write_pj=sram.write_pj_per_byte,
    )
