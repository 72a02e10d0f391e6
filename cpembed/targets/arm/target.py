"""The dot-product and matrix instructions of Arm's cores, executed by such a core or emulated."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path

import msgspec

from cpembed.codegen.compiled import CompiledKernel, Processor
from cpembed.codegen.host_cpu import cpu_features
from cpembed.errors import BackendUnavailable
from cpembed.hw.instruction import HardwareSpec
from cpembed.hw.schema import read_table
from cpembed.provenance import Provenance
from cpembed.runtime.measurement.runner import Timing
from cpembed.targets.arm.emulator import TRIPLE, EmulatedProcessor, emulator, missing
from cpembed.targets.base import Array
from cpembed.targets.cpu.calibration import Calibration
from cpembed.targets.cpu.dot_products import DotProduct, Registers, column_back_end
from cpembed.targets.cpu.lane_products import LaneProduct, lane_back_end
from cpembed.targets.cpu.lowering import BackEnd
from cpembed.targets.cpu.space import Objective
from cpembed.targets.cpu.target import CpuTarget

_V = Registers(32, 16)


def _call(name: str, sums: str, first: str, second: str, _: bool) -> str:
    number = f'T.llvm_lookup_intrinsic_id("llvm.aarch64.neon.{name}.v4i32.v16i8")'
    return f'T.call_llvm_pure_intrin({number}, {sums}, {first}, {second}, dtype="int32x4")'


SDOT, UDOT = (
    DotProduct(
        name=name,
        feature="asimddp",
        backend=f"arm.{name}",
        registers=_V,
        depth=4,
        factors=(dtype, dtype),
        sums="int32",
        timed=name,
        call=partial(_call, name),
        attributes=("+dotprod",),
    )
    for name, dtype in (("sdot", "int8"), ("udot", "uint8"))
)

SMMLA = DotProduct(
    name="smmla",
    feature="i8mm",
    backend="arm.smmla",
    registers=_V,
    rows=2,
    depth=8,
    factors=("int8", "int8"),
    sums="int32",
    timed="smmla",
    call=partial(_call, "smmla"),
    attributes=("+i8mm",),
)

DOT_PRODUCTS = (SDOT, UDOT, SMMLA)

LANES = LaneProduct("arm.vector", _V, "smlal", 1.0)
"""What multiplies lane by lane, where nothing is shared between lanes."""


_FILE = Path(__file__).parent / "machines" / "neoverse_v2.toml"


class _Cycles(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    line: tuple[float, float, float, float]
    store: tuple[float, float, float]
    task: float
    copy: float
    call: float
    launch: float


class _Core(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    cpu: str
    clock_ghz: float
    cache_bytes: tuple[int, int, int]
    product_cycles: dict[str, float]
    latency_cycles: dict[str, float]
    cycles: _Cycles


@cache
def core(threads: int) -> Calibration:
    """Published figures, of kernels on so many threads: nothing is measured on Arm yet."""
    found = read_table(_FILE, _Core)
    cycle, cycles = 1 / found.clock_ghz, found.cycles
    first, second, third, memory = (cycle * line for line in cycles.line)
    near, far, beyond = (cycle * line for line in cycles.store)
    return Calibration(
        cpu=found.cpu,
        threads=threads,
        cache_bytes=found.cache_bytes,
        product_ns={name: cycle * cost for name, cost in found.product_cycles.items()},
        product_row_ns=dict.fromkeys(found.product_cycles, 0.0),
        latency_ns={name: cycle * cost for name, cost in found.latency_cycles.items()},
        tile_line_ns=(0.0, 0.0, 0.0, 0.0),
        vector_line_ns=(first, second, third, memory),
        store_line_ns=(near, far, beyond),
        task_ns=cycle * cycles.task,
        launch_us=cycle * cycles.launch / 1e3,
        call_us=cycle * cycles.call / 1e3,
        copy_ns_per_line=cycle * cycles.copy,
        measured="",
    )


def back_end(spec: HardwareSpec) -> BackEnd | None:
    """The code generator that a specification's CPU features and element types ask for."""
    instruction = spec.instruction
    names = [operand.name for operand in instruction.computation.inputs]
    types = {tuple(choice[name] for name in names) for choice in instruction.dtype_choices}
    for dot in DOT_PRODUCTS:
        if dot.feature in spec.cpu_features and dot.factors in types:
            return column_back_end(dot)
    return lane_back_end(LANES) if "asimd" in spec.cpu_features else None


def is_arm() -> bool:
    """Whether this machine executes AArch64's instructions itself."""
    return platform.machine() == "aarch64"


class ArmTarget(CpuTarget):
    """On another machine an emulator executes kernels, on one thread: right numbers, no time."""

    def __init__(self, spec: HardwareSpec, objective: Objective = "total") -> None:
        super().__init__(spec, objective)
        self.provenance = Provenance.MEASURED if is_arm() else Provenance.EMULATED
        self.triple = None if is_arm() else TRIPLE

    def missing(self) -> tuple[str, ...]:
        if back_end(self.spec) is None:
            return (self._no_kernel(),)
        if not is_arm():
            return () if emulator() else (missing(),)
        lacking = [name for name in self.spec.cpu_features if name not in cpu_features()]
        return (f"this machine lacks CPU feature {' and '.join(lacking)}",) if lacking else ()

    @property
    def back_end(self) -> BackEnd:
        found = back_end(self.spec)
        if found is None:
            raise BackendUnavailable(self._no_kernel())
        return found

    def _no_kernel(self) -> str:
        return (
            f"no kernel of the back end {self.spec.backend} is for {self.spec.name}: there are "
            "those of arm_sdot, arm_udot, arm_smmla and arm_int8, by cpu_features and element types"
        )

    @property
    def processor(self) -> Processor:
        return super().processor if is_arm() else EmulatedProcessor()

    @property
    def machine(self) -> Calibration:
        return core(self.processor.thread_count())

    def time(self, artifact: CompiledKernel, inputs: Mapping[str, Array]) -> Timing:
        if is_arm():
            return super().time(artifact, inputs)
        return Timing(self.provenance, artifact.program.workload.macs, None)
