"""Statements of Weng et al. (UNIT, CGO 2021) about their figures on CPUs.

The charts print no values but those of bars that leave the axis, so a bar is not repeated here as a
number that nobody stated: each figure has what the text of the paper says of it, with its section.
"""

from __future__ import annotations

VNNI_MACHINE = "Amazon c5.12xlarge, 24 cores of Intel Xeon Platinum 8275CL at 3.0 GHz (section V.A)"
ARM_MACHINE = "Amazon m6g.8xlarge, 32 cores of Graviton2 at 2.3 GHz (section V.A)"

NETWORKS = {
    "resnet-18": "resnet18",
    "resnet-50": "resnet50_v1",
    "resnet-50_v1b": "resnet50",
    "inception-bn": "inception_bn",
    "inception-v3": "inception_v3",
    "resnet-101": "resnet101_v1",
    "resnet-152": "resnet152_v1",
    "mobilenet-v1": "mobilenet_v1",
    "mobilenet-v2": "mobilenet_v2",
}
"""Networks of figures 8 and 12 in their order, and the builder of each in ``tests/models``."""

DISTINCT_CONVOLUTIONS = 148
"""Number of different convolutions in these networks (section VI.B)."""

FIGURE8_MEANS = {"MXNet with oneDNN 1.6.1": 1.3, "TVM's hand-written schedules": 1.18}
"""UNIT's speed-up over each, geometric mean of the networks (section VI.A)."""

FIGURE10_LIMITS = {"parallel": 3000, "unroll": 8}
"""Iterations of the fused parallel loop, and of what is unrolled, before tuning (section VI.B)."""
FIGURE10_FIRST = 0.5
"""More than this share of the kernels is fastest with these limits, untuned (section VI.B)."""
FIGURE10_BEHIND = ("1", "4")
"""Layers that UNIT does poorly on beside oneDNN: their outputs divide badly (section VI.B)."""
FIGURE10_AXIS = 4.0
"""Relative performance at which the chart's axis ends; every bar is below."""

FIGURE12_MEAN = 1.13
"""UNIT's speed-up over TVM's hand-written schedules for DOT: "1.13" in the conclusion, "up to 1.13"
in the introduction."""
FIGURE12_CUT = (12.6, 10.0, 15.4)
"""Labels of the bars that leave the axis of the chart, which ends at 8 times TVM for NEON."""

FIGURE13_MEAN = 1.2
"""UNIT's speed-up over oneDNN, mean of the 3-D convolutions (section VI.C)."""
FIGURE13_CUT = (2.0, 2.4, 2.0)
"""Labels of the bars that leave the axis of the chart, which ends at 1.2."""
