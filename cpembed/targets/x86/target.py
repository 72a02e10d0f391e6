"""The instructions of x86 processors: AMX, AVX512-VNNI, AVX512-BF16, AVX-512 and AVX2 vectors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cpembed.errors import BackendUnavailable, LoweringError
from cpembed.hw.instruction import HardwareSpec
from cpembed.hw.loader import load_hardware_spec
from cpembed.ir.computation import AxisKind
from cpembed.resources import hardware_spec_files
from cpembed.targets.cpu.calibration import model_constants
from cpembed.targets.cpu.dot_products import (
    DotProduct,
    adds_to_one_sum,
    column_back_end,
    sum_back_end,
)
from cpembed.targets.cpu.lane_products import LaneProduct, lane_back_end
from cpembed.targets.cpu.lowering import BackEnd, Lowered
from cpembed.targets.cpu.target import CpuTarget
from cpembed.targets.x86 import amx
from cpembed.targets.x86.baselines import openers
from cpembed.targets.x86.calibrate import instruction_peak_gops
from cpembed.targets.x86.dot_products import (
    AVX2_ONLY,
    DOT_PRODUCTS,
    VFMADD231PS,
    VFMADD231PS_YMM,
    VPDPBUSD,
    VPDPBUSD_YMM,
    YMM,
    ZMM,
)
from cpembed.targets.x86.down_converting_store import write_narrow_here
from cpembed.targets.x86.features import missing_features
from cpembed.targets.x86.throttling import ThrottlingProbe
from cpembed.transform.program import DerivedProgram


class X86Target(CpuTarget):
    """Which code generator it has, a CPU feature of the specification decides."""

    def missing(self) -> tuple[str, ...]:
        lacking = no_back_end(self.spec)
        if lacking is not None:
            return (lacking,)
        features = missing_features(self.spec)
        return (f"this machine lacks {' and '.join(features)}",) if features else ()

    @property
    def back_end(self) -> BackEnd:
        return back_end(self.spec)

    def lower(self, program: DerivedProgram, epilogue: Any = None) -> Lowered:
        try:
            return super().lower(program, epilogue)
        except LoweringError as error:
            raise LoweringError(f"{error}{shapes_taken(self.spec)}") from error

    def peak_gops(self) -> float | None:
        return instruction_peak_gops(self.spec)

    def throttle_probe(self) -> ThrottlingProbe | None:
        return ThrottlingProbe.of(self.spec)

    def baselines(self) -> Mapping[str, Any]:
        return openers()


_AMX = BackEnd(amx.lane_nest, amx.register_model, amx.plan)

_LANES = LaneProduct(
    "x86.vector",
    ZMM,
    VPDPBUSD.name,
    model_constants().lane_products,
    attributes=("+fast-dpwssd",),
    store=write_narrow_here,
)
"""Where there is AVX512-VNNI, LLVM makes VPDPWSSD of a product and a sum, and two instructions of
it again where that shortens a chain: here there are many chains, and ports are what is short."""

_YMM_LANES = replace(
    _LANES,
    backend="x86.avx2",
    timed=VPDPBUSD_YMM.name,
    registers=YMM,
    attributes=AVX2_ONLY,
    store=None,
)

_FLOAT_LANES = LaneProduct("x86.fma_lanes", ZMM, VFMADD231PS.name, 1.0, store=write_narrow_here)
_YMM_FLOAT_LANES = LaneProduct(
    "x86.avx2_fma_lanes", YMM, VFMADD231PS_YMM.name, 1.0, attributes=AVX2_ONLY
)

_YMM_WIDENED_LANES = replace(
    _YMM_FLOAT_LANES,
    backend="x86.avx2_widened_lanes",
    relative_time=model_constants().lane_products,
)


def back_end(spec: HardwareSpec) -> BackEnd:
    """Raises :class:`BackendUnavailable` where a target has none."""
    lacking = no_back_end(spec)
    if lacking is not None:
        raise BackendUnavailable(f"{lacking}; else use the generic back end")
    by_feature = _by_feature(spec)
    return next(of for name, of in by_feature.items() if name in spec.cpu_features)


def no_back_end(spec: HardwareSpec) -> str | None:
    """Why no code generator takes a target; None where one does, as far as its ``cpu_features``
    say.
    """
    features = _by_feature(spec)
    if any(name in spec.cpu_features for name in features):
        return None
    return (
        f"no kernel of the back end {spec.backend} is for {spec.name}: its cpu_features name none "
        f"of {', '.join(features)}{shapes_taken(spec)}"
    )


def shapes_taken(spec: HardwareSpec) -> str:
    """Which instructions have kernels, to be said after what is wrong with one of a user's own."""
    shipped = {name: load_hardware_spec(name) for name in hardware_spec_files()}
    if spec.path in {other.path for other in shipped.values()}:
        return ""
    names = [name for name, other in shipped.items() if other.backend == spec.backend]
    return (
        f"; kernels are there for instructions of the shapes, types and operand layouts of "
        f"{', '.join(names)} (see `cpembed targets`)"
    )


def _by_feature(spec: HardwareSpec) -> Mapping[str, BackEnd]:
    """Of several features the first. By the shape of the instruction: one sum, a sum for each step
    of its only axis, or more.
    """
    if adds_to_one_sum(spec):
        return {dot.feature: sum_back_end(dot) for dot in _fitting(spec) if dot.total}
    inputs = spec.instruction.computation.inputs
    if len(spec.instruction.axes) == 1 and all(operand.shape for operand in inputs):
        widens = "bfloat16" in _factor_types(spec)
        return {
            "avx512bw": lane_back_end(_LANES),
            "avx512f": lane_back_end(_FLOAT_LANES),
            "fma": lane_back_end(_YMM_WIDENED_LANES if widens else _YMM_FLOAT_LANES),
            "avx2": lane_back_end(_YMM_LANES),
        }
    columns = {dot.feature: column_back_end(dot) for dot in _fitting(spec)}
    return {"amx_int8": _AMX, "amx_bf16": _AMX, **columns}


def _fitting(spec: HardwareSpec) -> list[DotProduct]:
    """One dot product of each feature, those that are as deep and of the same types first."""
    axes, types = spec.instruction.computation.axes, _factor_types(spec)
    depth = math.prod(axis.extent for axis in axes if axis.kind is AxisKind.REDUCTION)

    def differs(dot: DotProduct) -> tuple[bool, bool]:
        return dot.depth != depth, not types.issuperset(dot.factors)

    found: dict[str, DotProduct] = {}
    for dot in sorted(DOT_PRODUCTS.values(), key=differs):
        found.setdefault(dot.feature, dot)
    return list(found.values())


def _factor_types(spec: HardwareSpec) -> set[str]:
    inputs = spec.instruction.computation.inputs
    return {dtype for operand in inputs for dtype in spec.instruction.dtypes[operand.name]}
