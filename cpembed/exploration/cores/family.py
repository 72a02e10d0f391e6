"""Cores of HASCO's kind as a family of machines."""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from typing import Any, ClassVar

from cpembed.embedding.constraint_set import load_constraint_set
from cpembed.errors import CpembedError, SpecError
from cpembed.exploration.cores.costs import Silicon, silicon
from cpembed.exploration.cores.description import SUMS, Core, specification_text
from cpembed.exploration.cores.intrinsics import DATAFLOWS
from cpembed.exploration.cores.software import CoreAnalysis, analyse
from cpembed.hw.schema import close_match, one_of
from cpembed.ir.computation import Computation
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
"""Whole numbers, with the least and the most."""

_LARGEST_CLOCK = 10_000


class CoreFamily(Family):
    """Cycles, energy and area are estimated. HASCO's names are in ``docs/cores.md``."""

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
        core, built = _read(_key(point))
        return built.energy_pj(activity, core.clock_mhz)

    def typed(self, layer: Layer) -> Computation:
        """As int8; an analysis takes it on the point's own types."""
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
        """The costs themselves: nothing is left to evaluate."""
        found = analysis.best(_read(_key(point))[0])
        if found is None or found.activity is None:
            return None
        return Costs(found.activity.cycles, self.energy_pj(point, found.activity))

    def choices(self, point: Point, analysis: CoreAnalysis) -> tuple[Choice, ...]:
        found = analysis.best(_read(_key(point))[0])
        return () if found is None else (found,)

    def evaluate(self, point: Point, workload: Computation, choice: Choice) -> Activity:
        """Never asked: every choice has its activity."""
        assert choice.activity is not None
        return choice.activity

    def specification(self, point: Point) -> str:
        return specification_text(_read(_key(point))[0])


def _key(point: Point) -> tuple[tuple[str, Value], ...]:
    return tuple(sorted(point.items()))


@lru_cache(maxsize=1 << 14)
def _read(key: tuple[tuple[str, Value], ...]) -> tuple[Core, Silicon]:
    """Raises :class:`SpecError`: which parameter, what is wrong with it, and the remedy."""
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
    if isinstance(clock, str) or not 0 < clock <= _LARGEST_CLOCK:
        raise SpecError(f"clock_mhz = {clock}; allowed: above 0, to {_LARGEST_CLOCK:,}")
    core = Core.of(point)
    built = silicon(core)
    cycle = built.scratchpad.cycle_ns
    if cycle * core.clock_mhz > 1000:
        raise SpecError(
            f"clock_mhz = {core.clock_mhz:g}: a bank of the scratchpad takes {cycle:.2f} ns; "
            f"allowed: {1000 // cycle:g} and less, or more banks"
        )
    return core, built


def _check_words(point: dict[str, Value]) -> None:
    allowed = {"intrinsic": tuple(DATAFLOWS), "dtype": tuple(SUMS)}
    for name, words in allowed.items():
        value = point[name]
        if value not in words:
            near = close_match(str(value), words)
            raise SpecError(f"{name} = {value}{near}; allowed: {one_of(words)}")
    dataflows = DATAFLOWS[str(point["intrinsic"])]
    if point["dataflow"] not in dataflows:
        raise SpecError(
            f"dataflow = {point['dataflow']}; allowed for {point['intrinsic']}: {one_of(dataflows)}"
        )
    try:
        load_constraint_set(str(point["constraints"]))
    except CpembedError as error:
        raise SpecError(f"constraints: {error}") from None
