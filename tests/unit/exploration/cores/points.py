"""Points of the family of cores, and layers."""

from __future__ import annotations

from cpembed.exploration.cores.family import CoreFamily
from cpembed.targets.family import Point, Value
from cpembed.workloads.suites import Layer

FAMILY = CoreFamily()

SMALL: dict[str, Value] = {
    "intrinsic": "gemm",
    "pe_rows": 8,
    "scratchpad_kib": 64,
    "banks": 4,
    "local_kib": 16,
}


def point(**changed: Value) -> Point:
    defaults = {p.name: p.default for p in FAMILY.parameters if p.default is not None}
    return {**defaults, **SMALL, **changed}


def layer(label: str) -> Layer:
    return Layer("test", 0, "", label)


CONV = layer("conv2d n=1 c=24 h=14 w=14 k=40 r=3 s=3 pad=1 stride=1")
PRODUCT = layer("gemm m=100 n=60 k=200")
