"""Which code generator a target has: by the CPU feature that provides its instruction."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from cpembed.errors import BackendUnavailable
from cpembed.hw.instruction import HardwareSpec
from cpembed.hw.loader import load_hardware_spec
from cpembed.resources import hardware_spec_files
from cpembed.targets.cpu.build import BackEnd
from cpembed.targets.x86 import amx, dot_columns, dot_rows, vector
from cpembed.targets.x86.dot_products import DOT_PRODUCTS, DotProduct


def _columns(dot: DotProduct) -> BackEnd:
    nest, plan = partial(dot_columns.lane_nest, dot), partial(dot_columns.plan, dot)
    unpadded = partial(dot_columns.lane_nest, dot, unpadded=True)
    return BackEnd(nest, lambda _: dot_columns.registers(dot), plan, unpadded)


def _rows(dot: DotProduct) -> BackEnd:
    nest, plan = partial(dot_rows.lane_nest, dot), partial(dot_rows.plan, dot)
    return BackEnd(nest, lambda _: dot_rows.registers(dot), plan)


_AMX = BackEnd(amx.lane_nest, amx.register_model, amx.plan)

_BY_FEATURE: Mapping[str, BackEnd] = {
    "amx_int8": _AMX,
    "amx_bf16": _AMX,
    **{dot.feature: _columns(dot) for dot in DOT_PRODUCTS.values()},
    "avx512bw": BackEnd(
        vector.lane_nest,
        lambda _: vector.REGISTERS,
        vector.plan,
        partial(vector.lane_nest, unpadded=True),
    ),
}
"""Of several features the first."""

_ALONG_ROWS: Mapping[str, BackEnd] = {dot.feature: _rows(dot) for dot in DOT_PRODUCTS.values()}


def back_end(spec: HardwareSpec) -> BackEnd:
    """Raises :class:`BackendUnavailable` where a target has none."""
    lacking = no_back_end(spec)
    if lacking is not None:
        raise BackendUnavailable(f"{lacking}; use the generic back end")
    by_feature = _by_feature(spec)
    return next(of for name, of in by_feature.items() if name in spec.cpu_features)


def no_back_end(spec: HardwareSpec) -> str | None:
    """Why no code generator takes a target; None where one does, as far as its ``cpu_features``
    say."""
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
    return _ALONG_ROWS if dot_rows.is_along_rows(spec) else _BY_FEATURE
