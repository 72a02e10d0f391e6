"""Every operator that has a translation, by its name; with its domain before it where that is not
the standard one."""

from __future__ import annotations

from collections.abc import Mapping

from cpembed.frontends.onnx.operators import (
    convolution,
    elementwise,
    matrices,
    movement,
    pooling,
    quantization,
)
from cpembed.frontends.onnx.site import Translation

STANDARD_DOMAINS = frozenset({"ai.onnx", ""})

TRANSLATIONS: Mapping[str, Translation] = {
    **convolution.TABLE,
    **elementwise.TABLE,
    **matrices.TABLE,
    **movement.TABLE,
    **pooling.TABLE,
    **quantization.TABLE,
}
