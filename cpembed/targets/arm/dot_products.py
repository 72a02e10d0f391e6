"""Advanced SIMD's products of bytes: SDOT and UDOT by element, SMMLA, and lane by lane.

Sources: Arm Architecture Reference Manual for A-profile architecture (DDI 0487); LLVM's
IntrinsicsAArch64.td.
"""

from __future__ import annotations

from functools import partial

from cpembed.targets.cpu.dot_products import DotProduct, Registers
from cpembed.targets.cpu.lane_products import LaneProduct

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
