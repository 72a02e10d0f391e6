"""Workloads whose kernels store through epilogues, by name, for given element types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cpembed.ir.computation import Computation
from cpembed.workloads.convolutions import conv2d
from cpembed.workloads.einsum import gemm

WORKLOADS: dict[str, Callable[[Any], Computation]] = {
    "conv": lambda d: conv2d(n=1, c=5, h=9, w=7, k=37, r=3, s=3, pad=1, dtype=d),
    "channels last": lambda d: conv2d(n=2, c=8, h=6, w=6, k=48, r=1, s=1, layout="NHWC", dtype=d),
    "blocks": lambda d: conv2d(
        n=1, c=32, h=6, w=6, k=48, r=3, s=3, pad=1, layout="NCHW16c", dtype=d
    ),
    "gemm": lambda d: gemm(m=19, n=33, k=70, dtype=d),
}
