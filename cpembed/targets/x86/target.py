"""The x86 target: the code generator of an instruction, by the CPU feature that provides it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from cpembed.codegen.epilogue import Epilogue
from cpembed.codegen.host_cpu import processor_name
from cpembed.errors import BackendUnavailable, LoweringError
from cpembed.hw.instruction import HardwareSpec
from cpembed.hw.loader import load_hardware_spec
from cpembed.ir.computation import AxisKind
from cpembed.resources import hardware_spec_files
from cpembed.runtime.baselines import Baseline
from cpembed.targets.cpu.calibration import model_constants, product_ns
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
from cpembed.targets.x86.calibrate import ThrottlingProbe, instruction_peak_gops
from cpembed.targets.x86.dot_products import (
    AVX2_ONLY,
    AVX512,
    DOT_PRODUCTS,
    WRITE_YMM,
    YMM,
    ZMM,
)
from cpembed.targets.x86.down_converting_store import write_narrow
from cpembed.targets.x86.features import missing_features
from cpembed.transform.program import DerivedProgram

Opener = Callable[[HardwareSpec, Epilogue | None], Baseline]
"""Loads a library for a target and an output type (None: the library's own). Raises
:class:`~cpembed.errors.BackendUnavailable` if the two cannot be compared on this machine."""


class X86Target(CpuTarget):
    """Target of an x86 instruction; the CPU features of its specification select the generator."""

    def missing(self) -> tuple[str, ...]:
        reason = no_back_end(self.spec)
        if reason is not None:
            return (reason,)
        features = missing_features(self.spec)
        return (f"{processor_name()} lacks {' and '.join(features)}",) if features else ()

    @property
    def back_end(self) -> BackEnd:
        reason = no_back_end(self.spec)
        if reason is not None:
            raise BackendUnavailable(f"{reason}; else use the generic back end")
        generators = _generators(self.spec)
        return next(generators[name] for name in generators if name in self.spec.cpu_features)

    def lower(self, program: DerivedProgram, epilogue: Any = None) -> Lowered:
        try:
            return super().lower(program, epilogue)
        except LoweringError as error:
            raise LoweringError(f"{error}{accepted_shapes(self.spec)}") from error

    @property
    def column_dot(self) -> DotProduct | None:
        """Dot product with columns as lanes that executes the instruction, if one does."""
        instruction = self.spec.instruction
        by_lane = len(instruction.axes) == 1 and all(
            o.shape for o in instruction.computation.inputs
        )
        if by_lane or adds_to_one_sum(self.spec) or self.missing():
            return None
        dots = (dot for dot in _best_fits(self.spec) if dot.feature in self.spec.cpu_features)
        return next(dots, None)

    def peak_gops(self) -> float | None:
        return instruction_peak_gops(self.spec)

    def throttle_probe(self) -> ThrottlingProbe | None:
        return ThrottlingProbe.for_target(self.spec)

    def baselines(self) -> Mapping[str, Any]:
        return openers()


def openers() -> Mapping[str, Opener]:
    """Return the functions that load the libraries to compare with, by name."""
    # Libraries are optional, and only benchmarks need them.
    from cpembed.targets.x86.baselines.metaschedule import open_metaschedule
    from cpembed.targets.x86.baselines.onednn import open_onednn
    from cpembed.targets.x86.baselines.sgemm import open_mkl, open_openblas

    return {
        "onednn": open_onednn,
        "mkl": open_mkl,
        "openblas": open_openblas,
        "tvm": open_metaschedule,
    }


_AMX, _AMX_FLOAT = (
    BackEnd(amx.lane_nest, amx.register_model, amx.plan, partial(product_ns, product=product))
    for product in ("tdpbusd", "tdpbf16ps")
)

_LANES = LaneProduct(
    "x86.vector",
    ZMM,
    "vpdpbusd",
    model_constants().lane_products,
    # With AVX512-VNNI, LLVM makes one VPDPWSSD of a product and a sum, and splits it again if that
    # shortens a chain. These kernels have many chains, so ports limit them, not latencies.
    attributes=("+fast-dpwssd", *AVX512),
    store=write_narrow,
)
_YMM_LANES = replace(
    _LANES,
    backend="x86.avx2",
    timed="vpdpbusd_ymm",
    registers=YMM,
    attributes=AVX2_ONLY,
    store=WRITE_YMM,
)
_FLOAT_LANES = LaneProduct(
    "x86.fma_lanes", ZMM, "vfmadd231ps", 1.0, attributes=AVX512, store=write_narrow
)
_YMM_FLOAT_LANES = LaneProduct(
    "x86.avx2_fma_lanes", YMM, "vfmadd231ps_ymm", 1.0, attributes=AVX2_ONLY, store=WRITE_YMM
)
_YMM_WIDENED_LANES = replace(
    _YMM_FLOAT_LANES,
    backend="x86.avx2_widened_lanes",
    relative_time=model_constants().lane_products,
)


def no_back_end(spec: HardwareSpec) -> str | None:
    """Return the reason why no code generator accepts a target's CPU features; None if one does."""
    features = _generators(spec)
    if any(name in spec.cpu_features for name in features):
        return None
    return (
        f"the back end {spec.backend} has no kernel for {spec.name}: its cpu_features name none "
        f"of {', '.join(features)}{accepted_shapes(spec)}"
    )


def accepted_shapes(spec: HardwareSpec) -> str:
    """Return a message that lists instructions with kernels; empty for the package's own."""
    # The package's own specifications fit; only a user's may have a shape without a kernel.
    # Where candidates are compared this is asked for each that is refused, so no file is read.
    if spec.path in map(str, hardware_spec_files().values()):
        return ""
    names = [n for n in hardware_spec_files() if load_hardware_spec(n).backend == spec.backend]
    return (
        f"; kernels exist for instructions of the shapes, types and operand layouts of "
        f"{', '.join(names)} (see `cpembed targets`)"
    )


def _generators(spec: HardwareSpec) -> Mapping[str, BackEnd]:
    """Return the code generators for an instruction's shape by CPU feature, preferred first."""
    if adds_to_one_sum(spec):
        return {dot.feature: sum_back_end(dot) for dot in _best_fits(spec) if dot.total}
    inputs = spec.instruction.computation.inputs
    if len(spec.instruction.axes) == 1 and all(operand.shape for operand in inputs):
        widens = "bfloat16" in _factor_types(spec)
        # The order matters: specifications of lanes narrower than 32 bits name AVX512BW besides
        # AVX512F, and those of float lanes FMA besides AVX2.
        return {
            "avx512bw": lane_back_end(_LANES),
            "avx512f": lane_back_end(_FLOAT_LANES),
            "fma": lane_back_end(_YMM_WIDENED_LANES if widens else _YMM_FLOAT_LANES),
            "avx2": lane_back_end(_YMM_LANES),
        }
    columns = {dot.feature: column_back_end(dot) for dot in _best_fits(spec)}
    return {"amx_int8": _AMX, "amx_bf16": _AMX_FLOAT, **columns}


def _best_fits(spec: HardwareSpec) -> list[DotProduct]:
    """Return one dot product of each CPU feature: the one closest to the instruction."""
    axes, types = spec.instruction.computation.axes, _factor_types(spec)
    depth = math.prod(axis.extent for axis in axes if axis.kind is AxisKind.REDUCTION)

    def differs(dot: DotProduct) -> tuple[bool, bool]:
        return dot.depth != depth, not types.issuperset(dot.factors)

    # Sorting is stable, so of equals the first in DOT_PRODUCTS stays first.
    best: dict[str, DotProduct] = {}
    for dot in sorted(DOT_PRODUCTS.values(), key=differs):
        best.setdefault(dot.feature, dot)
    return list(best.values())


def _factor_types(spec: HardwareSpec) -> set[str]:
    inputs = spec.instruction.computation.inputs
    return {dtype for operand in inputs for dtype in spec.instruction.dtypes[operand.name]}
