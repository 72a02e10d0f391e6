"""Dot-product and matrix instructions of Arm cores, executed by such a core or emulated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import msgspec

from cpembed.codegen.compiled import CompiledKernel, Processor
from cpembed.codegen.host_cpu import architecture, cpu_features, processor_name
from cpembed.errors import BackendUnavailable
from cpembed.hw.instruction import HardwareSpec
from cpembed.hw.schema import read_table
from cpembed.provenance import Provenance
from cpembed.runtime.measurement.runner import Timing
from cpembed.targets.arm.emulator import TRIPLE, EmulatedProcessor, emulator, missing
from cpembed.targets.base import Array
from cpembed.targets.cpu.calibration import Calibration, published_for
from cpembed.targets.cpu.dot_products import DotProduct, Registers, column_back_end
from cpembed.targets.cpu.lane_products import LaneProduct, lane_back_end
from cpembed.targets.cpu.lowering import BackEnd
from cpembed.targets.cpu.space import Objective
from cpembed.targets.cpu.target import CpuTarget

_NEON = Registers(32, 16)


def _call(name: str, sums: str, first: str, second: str, _: bool) -> str:
    # The suffix selects the overload by the types of sums and factors.
    number = f'T.llvm_lookup_intrinsic_id("llvm.aarch64.neon.{name}.v4i32.v16i8")'
    return f'T.call_llvm_pure_intrin({number}, {sums}, {first}, {second}, dtype="int32x4")'


SDOT = DotProduct(
    name="sdot",
    feature="asimddp",
    backend="arm.sdot",
    registers=_NEON,
    depth=4,
    factors=("int8", "int8"),
    sums="int32",
    timed="sdot",
    call=partial(_call, "sdot"),
    attributes=("+dotprod",),
)
UDOT = replace(
    SDOT,
    name="udot",
    backend="arm.udot",
    factors=("uint8", "uint8"),
    timed="udot",
    call=partial(_call, "udot"),
)
SMMLA = replace(
    SDOT,
    name="smmla",
    feature="i8mm",
    backend="arm.smmla",
    rows=2,
    depth=8,
    timed="smmla",
    call=partial(_call, "smmla"),
    attributes=("+i8mm",),
)


def _fused(sums: str, first: str, second: str, _: bool) -> str:
    number = 'T.llvm_lookup_intrinsic_id("llvm.fma.v4f32")'
    return f'T.call_llvm_pure_intrin({number}, {first}, {second}, {sums}, dtype="float32x4")'


FMLA = DotProduct(
    name="fmla",
    feature="asimd",
    backend="arm.fmla",
    registers=_NEON,
    depth=1,
    factors=("float32", "float32"),
    sums="float32",
    timed="fmla",
    call=_fused,
)
LANES = LaneProduct("arm.vector", _NEON, "smlal", 1.0)
FLOAT_LANES = LaneProduct("arm.fmla_lanes", _NEON, "fmla", 1.0)
"""Multiplication lane by lane, for operators in which lanes share nothing."""

_MACHINE_FILE = Path(__file__).parent / "machines" / "neoverse_v2.toml"


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
    """Return published constants of a core, for kernels with so many threads.

    Nothing has been measured on Arm yet.
    """
    published = read_table(_MACHINE_FILE, _Core)
    cycle, cycles = 1 / published.clock_ghz, published.cycles
    first, second, third, memory = (cycle * line for line in cycles.line)
    near, far, beyond = (cycle * line for line in cycles.store)
    return Calibration(
        cpu=published.cpu,
        threads=threads,
        cache_bytes=published.cache_bytes,
        product_ns={name: cycle * cost for name, cost in published.product_cycles.items()},
        # There are no tiles whose rows could be fewer.
        product_row_ns=dict.fromkeys(published.product_cycles, 0.0),
        latency_ns={name: cycle * cost for name, cost in published.latency_cycles.items()},
        tile_line_ns=(0.0, 0.0, 0.0, 0.0),
        vector_line_ns=(first, second, third, memory),
        store_line_ns=(near, far, beyond),
        task_ns=cycle * cycles.task,
        launch_us=cycle * cycles.launch / 1e3,
        call_us=cycle * cycles.call / 1e3,
        copy_ns_per_line=cycle * cycles.copy,
        measured="",
    )


def _generator(spec: HardwareSpec) -> BackEnd | None:
    """Return the code generator for a target's CPU features and element types, if there is one."""
    instruction = spec.instruction
    names = [operand.name for operand in instruction.computation.inputs]
    types = {tuple(choice[name] for name in names) for choice in instruction.dtype_choices}
    by_lane = len(instruction.axes) == 1 and all(o.shape for o in instruction.computation.inputs)
    # SDOT and UDOT have one CPU feature, so the element types decide.
    for dot in () if by_lane else (SDOT, UDOT, SMMLA, FMLA):
        if dot.feature in spec.cpu_features and dot.factors in types:
            return column_back_end(dot)
    if "asimd" not in spec.cpu_features:
        return None
    return lane_back_end(FLOAT_LANES if FMLA.factors in types else LANES)


def is_arm() -> bool:
    """True if kernels are built for a core that executes AArch64's instructions itself."""
    return architecture() == "aarch64"


class ArmTarget(CpuTarget):
    """Target of an Arm instruction.

    On another machine, an emulator executes kernels on one thread: numbers are right, and there
    are no times.
    """

    def __init__(self, spec: HardwareSpec, objective: Objective = "total") -> None:
        super().__init__(spec, objective)
        self.provenance = Provenance.MEASURED if is_arm() else Provenance.EMULATED
        self.triple = None if is_arm() else TRIPLE

    def missing(self) -> tuple[str, ...]:
        if _generator(self.spec) is None:
            return (self._no_kernel(),)
        # The emulated core has every feature.
        if not is_arm():
            return () if emulator() else (missing(),)
        lacking = [name for name in self.spec.cpu_features if name not in cpu_features()]
        missing_features = f"{processor_name()} lacks CPU feature {' and '.join(lacking)}"
        return (missing_features,) if lacking else ()

    @property
    def back_end(self) -> BackEnd:
        generator = _generator(self.spec)
        if generator is None:
            raise BackendUnavailable(self._no_kernel())
        return generator

    def _no_kernel(self) -> str:
        return (
            f"the back end {self.spec.backend} has no kernel for {self.spec.name}: there are those "
            "of arm_sdot, arm_udot, arm_smmla, arm_int8, arm_f32 and arm_f32_lanes, by "
            "cpu_features and element types"
        )

    @property
    def processor(self) -> Processor:
        return super().processor if is_arm() else EmulatedProcessor()

    @property
    def machine(self) -> Calibration:
        return published_for(core(self.processor.thread_count()))

    def time(self, artifact: CompiledKernel, inputs: Mapping[str, Array]) -> Timing:
        # An emulator's times mean nothing.
        if is_arm():
            return super().time(artifact, inputs)
        return Timing(self.provenance, artifact.program.workload.macs, None)
